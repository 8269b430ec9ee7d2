"""Certificates and keys for a deployment: TLS for the SuperLink, a key pair for each SuperNode."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.errors import ConfigError, StorageError
from coterie.storage import writing

CA_YEARS, SERVER_DAYS = 10, 825
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class KeyFolder:
    """Where the certificates and keys of a deployment lie.

    ca.pem                    the authority's certificate: every node needs it to know the SuperLink
    ca.key                    its key: only for making further server certificates, keep it offline
    superlink.pem, .key       the SuperLink's certificate and key
    nodes/NAME, NAME.pub      a SuperNode's private key, which stays with the node, and its public key
    """

    path: Path

    @property
    def ca(self) -> Path:
        return self.path / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.path / "ca.key"

    @property
    def certificate(self) -> Path:
        return self.path / "superlink.pem"

    @property
    def certificate_key(self) -> Path:
        return self.path / "superlink.key"

    def node(self, name: str) -> Path:
        return self.path / "nodes" / name

    def public(self, name: str) -> Path:
        return self.path / "nodes" / f"{name}.pub"


def make_certificates(folder: KeyFolder, hosts: Sequence[str]) -> list[Path]:
    """An authority, if there is none yet, and a certificate of it for the SuperLink under these names.

    Returns the files that were written.
    """
    if not hosts:
        raise ConfigError("a certificate needs at least one host name or address of the SuperLink.")
    names = [_alternative(host) for host in hosts]
    written = []
    if folder.ca.exists() != folder.ca_key.exists():
        missing = folder.ca_key if folder.ca.exists() else folder.ca
        raise ConfigError(f"{folder.path} holds one half of an authority: {missing.name} is missing.")
    if folder.ca.exists():
        authority, key = _read_authority(folder)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("Coterie test authority", None, key, key, [], CA_YEARS * 365)
        _write(folder.ca_key, _private(key), secret=True)
        _write(folder.ca, authority.public_bytes(_PEM))
        written += [folder.ca, folder.ca_key]
    own = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(hosts[0], authority, key, own, names, SERVER_DAYS)
    _write(folder.certificate_key, _private(own), secret=True)
    _write(folder.certificate, certificate.public_bytes(_PEM))
    return [*written, folder.certificate, folder.certificate_key]


def make_node_key(folder: KeyFolder, name: str) -> list[Path]:
    """A key pair for a SuperNode; one that is there already is kept. Returns the files that were written."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name.endswith(".pub"):
        raise ConfigError(
            f"{name!r} cannot name a node's key: use letters, digits, '.', '_' and '-' (not .pub at the end)."
        )
    private, public = folder.node(name), folder.public(name)
    if private.exists() and public.exists():
        return []
    if private.exists() or public.exists():
        missing = public if private.exists() else private
        raise ConfigError(f"{missing} is missing beside its other half: remove that, or bring it back.")
    # Flower wants the form that ssh-keygen writes
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(private, secret, secret=True)
    _write(public, line + f" {name}\n".encode())
    return [private, public]


def _certificate(
    name: str,
    authority: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    owner: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    is_authority = authority is None
    usage = {
        "digital_signature": True,
        "key_cert_sign": is_authority,
        "crl_sign": is_authority,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.subject)
        .public_key(owner.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(owner.public_key()), critical=False)
    )
    if not is_authority:
        builder = (
            builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
        )
    return builder.sign(signer, hashes.SHA256())


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.*-]*[A-Za-z0-9])?", host):
        raise ConfigError(f"{host!r} is neither a host name nor an address.")
    return x509.DNSName(host)


def _read_authority(folder: KeyFolder) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(folder.ca.read_bytes())
        key = serialization.load_pem_private_key(folder.ca_key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the authority in {folder.path} cannot be read: {error}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError(f"{folder.ca_key} is not the key of {folder.ca}.")
    return certificate, key


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, content: bytes, secret: bool = False) -> None:
    """Write a file; a secret one is never readable by others, not even while it is written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.part")
        beside.unlink(missing_ok=True)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(content)
            os.replace(beside, path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise StorageError(f"cannot write {path}: {error.strerror}.") from error
