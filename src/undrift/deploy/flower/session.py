"""The server's connection: a SuperLink of its own, a run on it, and a grid to speak through."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from undrift.deploy.flower.beating import beating
from undrift.deploy.flower.superlink import ALIVE, HEADER, TOKEN
from undrift.deploy.flower.surroundings import (
    end_process,
    environment,
    last_lines,
    look_often,
    spoken_to_directly,
    start,
    stop,
)
from undrift.utils.errors import UndriftError, require

READY = 60.0
"""Seconds in which a SuperLink must be there."""
BEAT = 5.0
"""Every so many seconds a SuperLink is told that there is a server."""
PATIENCE = 120.0
"""Seconds for which a lost connection is tried again."""
APP = Path(__file__).parent / "app"
LEFT = "superlink.json"
"""Where a server says which SuperLink it started; gone when it ended it."""
OWN = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where those who listen at every address are found."""


class Lost(ConnectionError):
    """The SuperLink no longer knows this run."""


class SuperLink:
    """A SuperLink of this process's own, or the one that a server left behind which was killed.

    It outlives a server that dies, so that the sites stay connected until the run goes on; it ends
    with the run, or when no server has been there for a while.

    Parameters
    ----------
    folder
        where it keeps its state and what it says
    host, port
        where it listens
    certs
        the folder `server` of the certificates; without them nothing is encrypted, which is for
        one machine only
    """

    def __init__(self, folder: Path, host: str, port: int, certs: Path | None = None):
        self.folder = folder
        self.port = port
        self._bind = host.strip("[]")
        self.host = OWN.get(self._bind, self._bind)
        self._certs = certs
        self._token = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._taken_over: int | None = None
        """the process of a SuperLink that was left behind"""
        self._beating = threading.Event()
        self.log = folder / "superlink.log"

    @property
    def address(self) -> str:
        """Where this process finds it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ca(self) -> bytes | None:
        """The certificate by which it is known."""
        return None if self._certs is None else (self._certs / "ca.crt").read_bytes()

    @property
    def secret(self) -> Path:
        """The file with the secret of those who may take up its runs."""
        return (self.folder if self._certs is None else self._certs) / "secret"

    def __enter__(self) -> SuperLink:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._certs is None:
            write_secret(self.secret)
        os.environ.update(spoken_to_directly(os.environ, self.host))
        self._beat()
        try:
            if not self._adopted():
                self._start()
        except BaseException:
            self._beating.set()
            raise
        try:
            if self._certs is not None:
                self._register(self._certs / "sites")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self._require_free()
        arguments = ["--host", self._bind, "--port", str(self.port), "--isolation", "process"]
        arguments += ["--database", str(self.folder / "superlink.db")]
        arguments += ["--superexec-auth-secret-file", str(self.secret)]
        arguments += ["--disable-runtime-dependency-installation"]
        if self._certs is None:
            arguments.append("--insecure")
        else:
            arguments += ["--ssl-certfile", str(self._certs / "server.pem")]
            arguments += ["--ssl-keyfile", str(self._certs / "server.key")]
            arguments += ["--ssl-ca-certfile", str(self._certs / "ca.crt")]
            arguments.append("--enable-supernode-auth")
        own = {TOKEN: self._token, ALIVE: str(self._alive)}
        around = environment(self.folder / "home", **own)
        self._process = start("undrift.deploy.flower.superlink", arguments, self.log, around)
        try:
            self._await()
        except BaseException:
            stop([self._process])
            raise
        write_private(
            self._left,
            json.dumps({"process": self._process.pid, "port": self.port, "token": self._token}),
        )

    def __exit__(self, *_: object) -> None:
        self._beating.set()
        if self._process is not None:
            stop([self._process])
        elif self._taken_over is not None:
            end_process(self._taken_over)
        self._left.unlink(missing_ok=True)

    @property
    def _left(self) -> Path:
        return self.folder / LEFT

    @property
    def _alive(self) -> Path:
        return self.folder / "alive"

    def _beat(self) -> None:
        """Say from now on that there is a server."""

        def beat() -> None:
            while True:
                with suppress(OSError):  # somebody removed the folder
                    self._alive.touch()
                if self._beating.wait(BEAT):
                    return

        self._alive.touch()
        threading.Thread(target=beat, daemon=True).start()

    def _adopted(self) -> bool:
        """Whether the SuperLink of a server that was killed is still there, and was taken over.

        Its run is ended, so that no site goes on with it.
        """
        from flwr.common.constant import Status
        from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest

        try:
            left = json.loads(self._left.read_text("utf-8"))
            require(left["port"] == self.port, "It listens elsewhere.")
            process, token = int(left["process"]), str(left["token"])
        except (OSError, ValueError, TypeError, KeyError, UndriftError):
            return False
        mine, self._token = self._token, token
        try:
            with self._control() as control:
                for number, run in control.ListRuns(ListRunsRequest()).run_dict.items():
                    if run.status.status != Status.FINISHED:
                        control.StopRun(StopRunRequest(run_id=number))
            self._taken_over = process
            return True
        except Exception:  # it is gone, or another one
            self._token = mine
            return False

    def _require_free(self) -> None:
        """Refuse an address that another process has, or that is not this machine's."""
        try:
            where = (self._bind or None, self.port)
            found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            with socket.socket(family, kind, protocol) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(address)
        except OSError as error:
            raise UndriftError(
                f"The server cannot listen at {self._bind or 'any address'}, port {self.port} "
                f"({error.strerror or error}): choose another --port or --host, or stop who is "
                f"there."
            ) from error

    def _await(self) -> None:
        assert self._process is not None
        kind, context = "http", None
        if self._certs is not None:
            kind, context = "https", ssl.create_default_context(cafile=self._certs / "ca.crt")
        own = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        until = time.monotonic() + READY
        while time.monotonic() < until:
            require(
                self._process.poll() is None,
                f"The SuperLink ended at once: {last_lines(self.log)}",
            )
            try:
                with own.open(f"{kind}://{self.address}/health", timeout=2):
                    return
            except OSError as error:
                why = getattr(error, "reason", error)
                if isinstance(why, ssl.SSLCertVerificationError):
                    raise UndriftError(
                        f"The certificate in {self._certs} does not fit {self.host} "
                        f"({why.verify_message.rstrip('.')}): make one by undrift deploy certs "
                        f"with --host {self.host}."
                    ) from error
                time.sleep(0.1)
        raise UndriftError(f"The SuperLink did not start within {READY:.0f} seconds.")

    def _register(self, sites: Path) -> None:
        """Let in the nodes that have a key."""
        import httpx
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        for file in sorted(sites.glob("*.pub")):
            key: Any = load_ssh_public_key(file.read_bytes())
            request = RegisterNodeRequest(public_key=public_key_to_bytes(key), name=file.stem)
            with self._control() as control:
                try:
                    control.RegisterNode(request)
                except httpx.HTTPStatusError as error:
                    if "already in use" not in error.response.text:
                        raise UndriftError(
                            f"The key of site {file.stem!r} cannot be registered: "
                            f"{error.response.text[:200]}"
                        ) from error

    def _control(self) -> Any:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        return ControlHttpClient.from_server_address(
            self.address, self.ca is None, self.ca, interceptors=[version, _Admitted(self._token)]
        )

    @contextmanager
    def grid(self) -> Iterator[Any]:
        """A run, and the grid through which its nodes are spoken to."""
        from flwr.common.constant import SubStatus
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        look_often()
        run = self._start_run()
        grid = HttpGrid(self.address, self.ca is None, self.ca, token=self._acquired(run))
        grid._retry_invoker.should_giveup = self._gives_up
        grid._retry_invoker.max_time = PATIENCE
        found = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = found.task_id
        TaskIdentity.run_id = found.run.run_id
        TaskIdentity.node_id = found.context.node_id
        grid.set_run(run_from_proto(found.run))
        status = SubStatus.FAILED
        try:
            with beating(grid._runtime_client):
                yield grid
            status = SubStatus.COMPLETED
        finally:
            grid._retry_invoker.max_tries = 1
            try:
                over = PushTaskOutputRequest(sub_status=status, details="")
                grid._runtime_client.PushTaskOutput(over)
            except Exception:
                pass  # it is over in any case, and the SuperLink notices within a minute
            grid.close()

    def _gives_up(self, error: Exception) -> bool:
        """Whether a request that failed is not tried again."""
        if self._process is not None and self._process.poll() is not None:
            raise Lost("it has ended") from error
        return _gives_up(error)

    def _start_run(self) -> int:
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content = build_fab_from_disk(APP)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = StartRunRequest(
            fab=fab_to_proto(fab),
            override_config=user_config_to_proto({}),
            federation="",
            app_spec="",
        )
        with self._control() as control:
            return int(control.StartRun(request).run_id)

    def _acquired(self, run: int) -> str:
        """The right to act as the server of a run."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        wanted = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        until = time.monotonic() + READY
        with runtime_client(self.address, self.ca, self.secret) as client:
            while time.monotonic() < until:
                found = client.AcquireTask(wanted)
                if found.token and found.task.run_id == run:
                    return str(found.token)
                time.sleep(0.1)
        raise UndriftError("The SuperLink does not give out the run that was started.")


class _Admitted:
    """Says with every request that it comes from who started the SuperLink."""

    def __init__(self, token: str):
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[HEADER.decode()] = self._token
        return call_next(context)


def runtime_client(address: str, ca: bytes | None, secret: Path) -> Any:
    """A connection to those who hand out work, which asks for the secret."""
    from flwr.supercore.auth import load_superexec_auth_secret
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    known = SuperExecAuthHttpInterceptor(
        master_secret=load_superexec_auth_secret(secret_file=str(secret)) or b"",
        protected_methods={"/flwr.proto.Runtime/AcquireTask"},
    )
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    return RuntimeHttpClient.from_server_address(
        address, ca is None, ca, interceptors=[version, known]
    )


def _gives_up(error: Exception) -> bool:
    """Whether a request that failed is not tried again; Flower's own rule ends the process."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        raise Lost(f"the SuperLink answers {status}: it ended this run, or lost its state")
    if any(word in str(error).lower() for word in ("certificate", "ssl", "tls")):
        return True
    return status is not None and status not in (502, 503, 504)


def write_private(path: Path, text: str) -> None:
    """A file for this user's eyes only."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def write_secret(path: Path) -> None:
    """A file with a new secret, for this user's eyes only, unless it is there already."""
    if not path.is_file():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
