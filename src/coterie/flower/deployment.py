"""A SuperLink and SuperNodes on this machine, for trying things out and for tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from coterie import storage
from coterie.errors import ConfigError, FederationError
from coterie.flower.keys import KeyFolder, make_certificates, make_node_key

LOCALHOST = "127.0.0.1"
CONNECTION = "local"
NodeConfig = Mapping[str, str | int | float | bool]


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes as processes of this machine.

    Parameters
    ----------
    project
        The folder of the Flower app. Keys, logs and Flower's own files go to `.flwr` in it, and it is where
        the SuperLink runs: relative paths in a run's configuration start there.
    port
        Of the SuperLink; a free one when 0.
    secure
        TLS, and a key pair for every node; otherwise neither.
    """

    project: Path
    port: int = 0
    secure: bool = True
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.project = self.project.resolve()
        self.port = self.port or free_port()
        self.keys = KeyFolder(self.home / "keys")

    @property
    def home(self) -> Path:
        """The FLWR_HOME for `flwr` commands to this deployment; its connection is called `local`."""
        return self.project / ".flwr"

    @property
    def address(self) -> str:
        return f"{LOCALHOST}:{self.port}"

    def start(self, wait: float = 60.0) -> None:
        """Start the SuperLink and wait until it is ready."""
        if _taken(self.port):
            raise ConfigError(f"port {self.port} of this machine is taken: choose another --port.")
        connection = {"address": self.address}
        security = ["--insecure"]
        if self.secure:
            make_certificates(self.keys, [LOCALHOST, "localhost"])
            connection["root-certificates"] = str(self.keys.ca)
            security = ["--ssl-ca-certfile", str(self.keys.ca)]
            security += ["--ssl-certfile", str(self.keys.certificate)]
            security += ["--ssl-keyfile", str(self.keys.certificate_key), "--enable-supernode-auth"]
        lines = [f"{key} = {json.dumps(value)}" for key, value in connection.items()]
        lines += [] if self.secure else ["insecure = true"]
        head = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        storage.write_text(self.home / "config.toml", head + "\n".join(lines) + "\n")
        command = ["flower-superlink", "--host", LOCALHOST, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", *security]
        self._launch("superlink", command, self.project)
        until = time.monotonic() + wait
        while not self._healthy():
            self._alive("superlink")
            if time.monotonic() > until:
                raise FederationError(
                    f"the SuperLink is not ready after {wait:g} s; see {self._log('superlink')}."
                )
            time.sleep(0.1)

    def register(self, name: str) -> None:
        """Make a key pair for a node, if it has none, and have the SuperLink accept it."""
        make_node_key(self.keys, name)
        self.flwr("supernode", "register", str(self.keys.public(name)), CONNECTION)

    def start_node(self, name: str, config: NodeConfig) -> None:
        """Start a SuperNode, or start it again."""
        command = ["flower-supernode", "--superlink", self.address, "--port", str(free_port())]
        command += ["--node-config", node_config(config)]
        if self.secure:
            command += ["--root-certificates", str(self.keys.ca)]
            if self.keys.node(name).exists():
                command += ["--auth-supernode-private-key", str(self.keys.node(name))]
        else:
            command.append("--insecure")
        self._launch(name, command, self.project)

    def start_nodes(self, configs: Mapping[str, NodeConfig], wait: float = 120.0) -> None:
        """Start SuperNodes and wait until the SuperLink knows them all."""
        if self.secure:
            for name in configs:
                self.register(name)
        for name, config in configs.items():
            self.start_node(name, config)
        until = time.monotonic() + wait
        while (there := self.online()) < len(configs):
            for name in configs:
                self._alive(name)
            if time.monotonic() > until:
                raise FederationError(
                    f"{there} of {len(configs)} SuperNodes are connected after {wait:g} s; see {self.logs}."
                )
            time.sleep(0.5)

    def online(self) -> int:
        """How many SuperNodes are connected."""
        nodes = self.flwr("supernode", "list", CONNECTION).get("nodes", [])
        return sum(node.get("status") == "online" for node in nodes)

    def flwr(self, *arguments: str, timeout: float = 120.0) -> dict[str, Any]:
        """A `flwr` command to this deployment, and what it says as JSON."""
        done = subprocess.run(
            [_program("flwr"), *arguments, "--format", "json"],
            cwd=self.project,
            env=self.environment(self.home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        try:
            said: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            said = {"error-message": (done.stderr or done.stdout).strip()}
        if not said.get("success"):
            raise FederationError(f"flwr {' '.join(arguments[:2])} failed: {said.get('error-message')}")
        return said

    def run(self, config: Mapping[str, str | int | float | bool] | None = None) -> str:
        """Run the project's app, and return the run's id at once."""
        options = ["--run-config", node_config(config)] if config else []
        return str(self.flwr("run", str(self.project), CONNECTION, *options)["run-id"])

    def status(self, run: str) -> tuple[str, str]:
        """Where a run stands, as Flower calls it, and its details."""
        (row,) = self.flwr("list", CONNECTION, "--run-id", run)["runs"]
        return str(row["status"]), str(row.get("status-details", ""))

    def wait_for(self, run: str, timeout: float) -> tuple[str, str]:
        """Wait for a run to finish; its status and details."""
        until = time.monotonic() + timeout
        while True:
            status, details = self.status(run)
            if status.startswith("finished"):
                return status, details
            if time.monotonic() > until:
                raise FederationError(f"run {run} is still {status} after {timeout:g} s; see {self.logs}.")
            time.sleep(0.5)

    def running(self) -> dict[str, int]:
        """The processes that are running, by name."""
        return {name: p.pid for name, p in self._processes.items() if p.poll() is None}

    def kill(self, name: str) -> None:
        """Kill a process and all that it has started, as a power cut would."""
        process = self._processes[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, patience: float = 10.0) -> None:
        """Stop every process: nodes first, so that they can take their leave."""
        nodes = [name for name in self._processes if name != "superlink"]
        for group in (nodes, ["superlink"]):
            here = [self._processes[name] for name in group if name in self._processes]
            for process in here:
                with suppress(ProcessLookupError):
                    process.terminate()
            until = time.monotonic() + patience
            for process in here:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))
                # what it has started, or is left of it
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def logs(self) -> Path:
        """Where every process writes what it says."""
        return self.home / "logs"

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of Flower's processes: our programs first, a home of their own, no telemetry."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        defaults = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds until a process sees its task; else 1
            "PYTHONUNBUFFERED": "1",
        }
        return {**defaults, **os.environ, "PATH": path, "FLWR_HOME": str(home)}

    def _launch(self, name: str, command: Sequence[str], folder: Path) -> None:
        home = self.home / "processes" / name
        home.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log: IO[bytes]
        with open(self._log(name), "ab") as log:
            # a session of its own: Ctrl-C is for us, who stop them in order
            self._processes[name] = subprocess.Popen(
                [_program(command[0]), *command[1:]],
                cwd=folder,
                env=self.environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _alive(self, name: str) -> None:
        code = self._processes[name].poll()
        if code is not None:
            lines = [
                line for line in self._log(name).read_text(errors="replace").splitlines() if line.strip()
            ]
            tail = lines[-1].strip() if lines else "it said nothing"
            raise FederationError(f"{name} ended with exit code {code}: {tail} (see {self._log(name)}).")

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.keys.ca)) if self.secure else None
        url = f"http{'s' if self.secure else ''}://{self.address}/health"
        try:
            with urllib.request.urlopen(url, timeout=1, context=context) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


def node_config(config: NodeConfig) -> str:
    """A configuration as Flower's command line takes it: key=value, values as in TOML."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        return int(probe.getsockname()[1])


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return True
    return False


def _program(name: str) -> str:
    """A program of Flower, first of all the one beside our own Python."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} is not installed: pip install 'coterie[flower]'.")
    return found
