"""The server's SuperLink: starts or takes over its process, registers sites, and connects a grid.

`undrift.deploy.flower.superlink_process` is what runs in that process.
"""

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

from undrift.deploy.flower.clocks import (
    OFFSET,
    SERVER_MODULES,
    current_offset,
    use_steady_clock,
)
from undrift.deploy.flower.environment import environment, poll_objects_often, without_proxy
from undrift.deploy.flower.heartbeats import heartbeats
from undrift.deploy.flower.processes import last_lines, start, stop, stop_foreign
from undrift.deploy.flower.superlink_process import ALIVE, KEYS, SITES, TOKEN
from undrift.deploy.flower.superlink_side.guard import HEADER
from undrift.deploy.private_files import write_private, write_secret
from undrift.utils.errors import UndriftError, require

START_SECONDS = 60.0
"""How long a SuperLink may take to start."""
ALIVE_SECONDS = 5.0
"""How often the server tells its SuperLink that it lives."""
RETRY_SECONDS = 120.0
"""How long the server tries to restore a lost connection."""
APP = Path(__file__).parent / "app"
"""The folder of the Flower app."""
MANY_SITES = 200
"""How many sites are expected if their number is not given."""
PROCESS_FILE = "superlink.json"
"""The file with the process, port and token of the SuperLink; removed when that is stopped."""
OWN_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this machine reaches a SuperLink that listens on all addresses."""


class SuperLinkLost(ConnectionError):
    """The SuperLink no longer knows this run."""


class SuperLink:
    """A SuperLink started by this process, or left running by a server that was killed.

    The SuperLink survives a server that dies, so that the sites stay connected until the run is
    resumed. It ends with the run, or when no server has come back for a while.

    Parameters
    ----------
    folder
        for its database and its log
    host, port
        where it listens
    certs
        the folder `server` of the certificates; None for no encryption, on one machine only
    sites
        the number of sites, which share the limits of one machine if there are no certificates
    """

    def __init__(
        self, folder: Path, host: str, port: int, certs: Path | None = None, sites: int = MANY_SITES
    ):
        self.folder = folder
        self.port = port
        self._bind = host.strip("[]")
        self.host = OWN_ADDRESS.get(self._bind, self._bind)
        self._certs = certs
        self._sites = sites
        self._token = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._taken_over: int | None = None
        """the id of the process that a killed server left running"""
        self._clock_offset = current_offset()
        self._ended = threading.Event()
        self.log = folder / "superlink.log"

    @property
    def address(self) -> str:
        """HOST:PORT at which this machine reaches it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ca(self) -> bytes | None:
        """The certificate of the CA that signed its certificate; None without encryption."""
        return None if self._certs is None else (self._certs / "ca.crt").read_bytes()

    @property
    def secret(self) -> Path:
        """The file with the secret that a process needs to act as the server of a run."""
        return (self.folder if self._certs is None else self._certs) / "secret"

    def __enter__(self) -> SuperLink:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._certs is None:
            write_secret(self.secret)
        os.environ.update(without_proxy(os.environ, self.host))
        self._keep_alive()
        try:
            if not self._take_over():
                self._start()
        except BaseException:
            self._ended.set()
            raise
        try:
            if self._certs is not None:
                self._register(self._certs / "sites")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self._require_free_port()
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
        keys = "" if self._certs is None else str(self._certs / "sites")
        own = {TOKEN: self._token, ALIVE: str(self._alive), OFFSET: repr(self._clock_offset)}
        own |= {KEYS: keys, SITES: str(self._sites)}
        variables = environment(self.folder / "home", **own)
        module = "undrift.deploy.flower.superlink_process"
        self._process = start(module, arguments, self.log, variables)
        try:
            self._wait_until_ready()
        except BaseException:
            stop([self._process])
            raise
        left = {"process": self._process.pid, "port": self.port, "token": self._token}
        write_private(self._process_file, json.dumps({**left, "clock": self._clock_offset}))

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._process is not None:
            stop([self._process])
        elif self._taken_over is not None:
            stop_foreign(self._taken_over)
        self._process_file.unlink(missing_ok=True)

    @property
    def _process_file(self) -> Path:
        return self.folder / PROCESS_FILE

    @property
    def _alive(self) -> Path:
        return self.folder / "alive"

    def _keep_alive(self) -> None:
        """Touch the file that tells the SuperLink that its server lives, until this one ends."""

        def keep_touching() -> None:
            while True:
                with suppress(OSError):  # the folder was removed
                    self._alive.touch()
                if self._ended.wait(ALIVE_SECONDS):
                    return

        self._alive.touch()
        threading.Thread(target=keep_touching, daemon=True).start()

    def _take_over(self) -> bool:
        """Take over the SuperLink of a server that was killed; False if there is none.

        Its run is stopped, so that no site continues to work for it.
        """
        from flwr.common.constant import Status
        from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest

        try:
            left = json.loads(self._process_file.read_text("utf-8"))
            require(left["port"] == self.port, "it listens on another port")
            process, token = int(left["process"]), str(left["token"])
            # One that an older undrift started has no clock of its own.
            offset = float(left.get("clock", self._clock_offset))
        except (OSError, ValueError, TypeError, KeyError, UndriftError):
            return False
        mine, self._token = self._token, token
        try:
            with self._control() as control:
                for number, run in control.ListRuns(ListRunsRequest()).run_dict.items():
                    if run.status.status != Status.FINISHED:
                        control.StopRun(StopRunRequest(run_id=number))
            self._taken_over, self._clock_offset = process, offset
            return True
        except Exception:  # it has ended, or another process has its port
            self._token = mine
            return False

    def _require_free_port(self) -> None:
        """Refuse an address that another process uses, or that is not one of this machine."""
        try:
            where = (self._bind or None, self.port)
            found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = found[0]
            with socket.socket(family, kind, protocol) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(address)
        except OSError as error:
            raise UndriftError(
                f"The server cannot listen on {self._bind or 'any address'}, port {self.port} "
                f"({error.strerror or error}): choose another --port or --host, or stop the "
                f"process that uses it."
            ) from error

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        scheme, context = "http", None
        if self._certs is not None:
            scheme, context = "https", ssl.create_default_context(cafile=self._certs / "ca.crt")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            require(
                self._process.poll() is None,
                f"The SuperLink ended while starting: {last_lines(self.log)}",
            )
            try:
                with opener.open(f"{scheme}://{self.address}/health", timeout=2):
                    return
            except OSError as error:
                why = getattr(error, "reason", error)
                if isinstance(why, ssl.SSLCertVerificationError):
                    raise UndriftError(
                        f"The certificate in {self._certs} is not valid for {self.host} "
                        f"({why.verify_message.rstrip('.')}): issue a new one with undrift deploy "
                        f"certs --host {self.host}."
                    ) from error
                time.sleep(0.1)
        raise UndriftError(f"The SuperLink did not start within {START_SECONDS:.0f} seconds.")

    def _register(self, sites: Path) -> None:
        """Register the public keys of the sites: the SuperLink accepts nodes with these only."""
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

    def revoke(self, site: str) -> None:
        """Refuse the key of a site from now on; for good, as Flower registers no key twice."""
        import httpx
        from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest

        if self._certs is None:
            return  # without certificates nobody has a key
        with self._control() as control:
            for node in control.ListNodes(ListNodesRequest()).nodes_info:
                if node.name == site and node.status != "unregistered":
                    try:
                        control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
                    except httpx.HTTPStatusError as error:
                        raise UndriftError(
                            f"The key of site {site!r} cannot be revoked: "
                            f"{error.response.text[:200]}"
                        ) from error

    def _control(self) -> Any:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        return ControlHttpClient.from_server_address(
            self.address, self.ca is None, self.ca, interceptors=[version, _AddToken(self._token)]
        )

    @contextmanager
    def grid(self) -> Iterator[Any]:
        """A grid, which sends messages to the nodes, connected to a new run that ends with it."""
        from flwr.common.constant import SubStatus
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        poll_objects_often()
        use_steady_clock(SERVER_MODULES, self._clock_offset)
        run = self._start_run()
        grid = HttpGrid(self.address, self.ca is None, self.ca, token=self._acquire(run))
        grid._runtime_client._interceptors += (_AddToken(self._token),)
        grid._retry_invoker.should_giveup = self._gives_up
        grid._retry_invoker.max_time = RETRY_SECONDS
        found = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = found.task_id
        TaskIdentity.run_id = found.run.run_id
        TaskIdentity.node_id = found.context.node_id
        grid.set_run(run_from_proto(found.run))
        status = SubStatus.FAILED
        try:
            with heartbeats(grid._runtime_client):
                yield grid
            status = SubStatus.COMPLETED
        finally:
            grid._retry_invoker.max_tries = 1
            try:
                end = PushTaskOutputRequest(sub_status=status, details="")
                grid._runtime_client.PushTaskOutput(end)
            except Exception:
                pass  # without heartbeats the SuperLink ends the run within a minute
            grid.close()

    def _gives_up(self, error: Exception) -> bool:
        """Whether a failed request is not repeated."""
        if self._process is not None and self._process.poll() is not None:
            raise SuperLinkLost("its process has ended") from error
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

    def _acquire(self, run: int) -> str:
        """The token with which this process acts as the server of a run."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        wanted = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        until = time.monotonic() + START_SECONDS
        with runtime_client(self.address, self.ca, self.secret, self._token) as client:
            while time.monotonic() < until:
                found = client.AcquireTask(wanted)
                if found.token and found.task.run_id == run:
                    return str(found.token)
                time.sleep(0.1)
        raise UndriftError("The SuperLink did not hand out the run that this server started.")


class _AddToken:
    """Adds the token that the guard of the SuperLink asks for to every request."""

    def __init__(self, token: str):
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[HEADER.decode()] = self._token
        return call_next(context)


def runtime_client(address: str, ca: bytes | None, secret: Path, token: str = "") -> Any:
    """A client of the service that hands out tasks, which is protected by the secret.

    A SuperLink's guard asks for the token as well; a SuperNode has none.
    """
    from flwr.supercore.auth import load_superexec_auth_secret
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    secret_auth = SuperExecAuthHttpInterceptor(
        master_secret=load_superexec_auth_secret(secret_file=str(secret)) or b"",
        protected_methods={"/flwr.proto.Runtime/AcquireTask"},
    )
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    return RuntimeHttpClient.from_server_address(
        address, ca is None, ca, interceptors=[version, secret_auth, _AddToken(token)]
    )


def _gives_up(error: Exception) -> bool:
    """Whether a failed request is not repeated; Flower's own rule would end the process."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        raise SuperLinkLost(f"status {status}: the SuperLink ended this run or lost its state")
    if any(word in str(error).lower() for word in ("certificate", "ssl", "tls")):
        return True
    return status is not None and status not in (502, 503, 504)
