"""Certificates and keys: good for what they are for, kept when they are there, secret where they must be."""

import datetime
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.errors import ConfigError, StorageError
from coterie.flower.keys import KeyFolder, make_certificates, make_node_key


@pytest.fixture
def folder(tmp_path):
    return KeyFolder(tmp_path / "keys")


def handshake(folder, host):
    """Talk TLS to ourselves, as a node called up a server of that name; the verified certificate."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder.certificate, folder.certificate_key)
    client = ssl.create_default_context(cafile=str(folder.ca))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        waiting = 0
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            return ends[0].getpeercert()
    raise AssertionError("no end to the handshake")


def test_a_node_that_has_the_authority_trusts_the_server_under_each_of_its_names(folder):
    hosts = ["flower.example.org", "10.1.2.3", "::1"]
    make_certificates(folder, hosts)
    assert all(handshake(folder, host) for host in hosts)


def test_a_server_of_another_name_or_another_authority_is_not_trusted(folder, tmp_path):
    make_certificates(folder, ["flower.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match=r"evil.example.org"):
        handshake(folder, "evil.example.org")
    other = KeyFolder(tmp_path / "other")
    make_certificates(other, ["flower.example.org"])
    other.ca.write_bytes(folder.ca.read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other, "flower.example.org")


def test_the_next_certificate_is_of_the_same_authority(folder):
    first = make_certificates(folder, ["a.example.org"])
    assert set(first) == {folder.ca, folder.ca_key, folder.certificate, folder.certificate_key}
    authority, old = folder.ca.read_bytes(), folder.certificate.read_bytes()
    assert set(make_certificates(folder, ["b.example.org"])) == {folder.certificate, folder.certificate_key}
    assert folder.ca.read_bytes() == authority and folder.certificate.read_bytes() != old
    assert handshake(folder, "b.example.org")


def test_certificates_end_and_only_the_authority_may_sign(folder):
    make_certificates(folder, ["localhost"])
    now = datetime.datetime.now(datetime.UTC)
    for file, authority, days in ((folder.ca, True, 3650), (folder.certificate, False, 825)):
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca == authority
        left = certificate.not_valid_after_utc - now
        assert datetime.timedelta(days=days - 1) < left <= datetime.timedelta(days=days)
        assert certificate.not_valid_before_utc < now


def test_private_keys_are_their_owners_alone(folder):
    make_certificates(folder, ["localhost"])
    make_node_key(folder, "a")
    for file in (folder.ca_key, folder.certificate_key, folder.node("a")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(folder.path.rglob(".*"))


def test_a_nodes_keys_are_a_pair_in_the_form_of_ssh_keygen(folder):
    assert make_node_key(folder, "hospital-a") == [folder.node("hospital-a"), folder.public("hospital-a")]
    private = serialization.load_ssh_private_key(folder.node("hospital-a").read_bytes(), None)
    line = folder.public("hospital-a").read_bytes()
    public = serialization.load_ssh_public_key(line)
    assert isinstance(private, ec.EllipticCurvePrivateKey) and private.public_key() == public
    assert line.startswith(b"ecdsa-sha2-nistp384 ") and line.endswith(b" hospital-a\n")


def test_a_key_that_is_there_is_kept(folder):
    make_node_key(folder, "a")
    before = folder.node("a").read_bytes()
    assert make_node_key(folder, "a") == []
    assert folder.node("a").read_bytes() == before
    make_node_key(folder, "b")
    assert folder.node("b").read_bytes() != before


@pytest.mark.parametrize("name", ["", "../evil", "a/b", "a b", ".hidden", "a.pub", "-x"])
def test_a_name_that_is_no_file_name_is_refused(folder, name):
    with pytest.raises(ConfigError, match="cannot name a node's key"):
        make_node_key(folder, name)
    assert not folder.path.exists()


@pytest.mark.parametrize("host", ["", "no spaces", "https://a.example.org", "a.example.org:8000", "-a", None])
def test_what_is_no_host_is_refused(folder, host):
    sentence = "at least one host" if host is None else "neither a host name nor an address"
    with pytest.raises(ConfigError, match=sentence):
        make_certificates(folder, [] if host is None else [host])
    assert not folder.certificate.exists()


def test_half_of_a_pair_is_not_overwritten(folder):
    make_node_key(folder, "a")
    folder.public("a").unlink()
    with pytest.raises(ConfigError, match=r"a.pub is missing"):
        make_node_key(folder, "a")
    make_certificates(folder, ["localhost"])
    folder.ca_key.unlink()
    with pytest.raises(ConfigError, match=r"ca.key is missing"):
        make_certificates(folder, ["localhost"])


def test_a_key_of_another_authority_is_refused(folder, tmp_path):
    make_certificates(folder, ["localhost"])
    other = KeyFolder(tmp_path / "other")
    make_certificates(other, ["localhost"])
    folder.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(ConfigError, match="is not the key of"):
        make_certificates(folder, ["localhost"])
    folder.ca_key.write_text("nonsense")
    with pytest.raises(ConfigError, match="cannot be read"):
        make_certificates(folder, ["localhost"])


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "keys").write_text("a file")
    with pytest.raises(StorageError, match="cannot write"):
        make_node_key(KeyFolder(tmp_path / "keys"), "a")
