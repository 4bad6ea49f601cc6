"""A site's SuperNode: runs it as a process, and answers the requests that it receives.

`undrift.deploy.flower.supernode_process` is what runs in that process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from undrift.deploy.flower import heartbeats
from undrift.deploy.flower.environment import environment, poll_objects_often
from undrift.deploy.flower.processes import free_port, last_lines, log_lines, start, stop
from undrift.deploy.flower.superlink import runtime_client
from undrift.deploy.private_files import write_secret
from undrift.deploy.signing.site import Answering
from undrift.utils.errors import first_line

POLL_SECONDS = 0.25
"""How often the site asks its SuperNode for a request."""
MIN_SLEEP_SECONDS, MAX_SLEEP_SECONDS = 0.5, 3.0
"""The limits of the time that the SuperNode sleeps before it asks for a request again; Flower's own
is three seconds."""
MAX_POLLS_PER_SECOND = 50
"""How often all sites together ask the SuperLink, unless they sleep for the longest time already;
it answers fewer than 200 requests a second."""
RESTART_SECONDS = 5.0
"""How long after its last start a SuperNode that ended is started again."""
UNREACHABLE_SECONDS = 5.0
"""How long after its start a SuperNode may fail to connect before the site reports it."""
CAUSES = {
    "ismatch, certificate is not valid": "the server's certificate is not valid for the name or "
    "address that this site uses",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate was not signed by this site's CA",
    "[SSL": "the server does not use TLS, or not correctly",
    "code: 2004": "the server does not know this site's key, or still counts its previous "
    "connection",
    "401 Unauthorized": "the server does not know this site's key",
}
"""What the log of a SuperNode that ended contains, and what that means."""

Say = Callable[[str], None]


def sleep_seconds(sites: int) -> float:
    """How long the SuperNodes of a deployment with this number of sites sleep at most."""
    return min(max(MIN_SLEEP_SECONDS, sites / MAX_POLLS_PER_SECOND), MAX_SLEEP_SECONDS)


class SuperNode:
    """The connection of a site to its server's SuperLink.

    The SuperNode's process is restarted whenever it ends: a SuperLink that was away for a while
    forgets its nodes, and after a crash it refuses the same key for a minute. It is also restarted
    when a request could not be fetched or answered, since it would wait for the answer for ever.

    Parameters
    ----------
    site
        answers the requests
    superlink
        the server's address, HOST:PORT
    folder
        for the files of the SuperNode
    certs
        the site's folder of the certificates; None for no encryption
    say
        is told what happens, in sentences
    sites
        the number of sites of the deployment: many ask the server less often
    """

    def __init__(
        self,
        site: Answering,
        superlink: str,
        folder: Path,
        certs: Path | None = None,
        say: Say = lambda sentence: None,
        sites: int = 1,
    ):
        self.site = site
        self._sites = sites
        self._superlink = superlink
        self._folder = folder
        self._certs = certs
        self._say = say
        self._port = 0
        self._client: Any = None
        """connected to the SuperNode's process"""
        self._log = folder / "supernode.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._started = float("-inf")
        self._log_start = 0
        """the size of the log, in bytes, when the process was started"""
        self._log_checked = 0
        """the size of the log, in bytes, when it was last checked"""
        self._reported_unreachable = False

    def serve(self, stopped: Callable[[], bool]) -> None:
        """Answer the server's requests until `stopped` returns True."""
        poll_objects_often()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._certs is None:
            write_secret(self._secret)
        try:
            while not stopped():
                self._keep_running()
                if not self._answer_next():
                    time.sleep(POLL_SECONDS)
        finally:
            self._disconnect()
            if self._process is not None:
                stop([self._process])

    def kill(self) -> None:
        """End the SuperNode's process at once, from any thread."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a group of its own

    @property
    def _secret(self) -> Path:
        return (self._folder if self._certs is None else self._certs) / "secret"

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()

    def _keep_running(self) -> None:
        """Start the SuperNode if it does not run, with another port each time.

        Another process may have taken the previous port in the meantime; then the SuperNode would
        end again and again.
        """
        if self._process is not None and self._process.poll() is None:
            self._report_unreachable()
            return
        if time.monotonic() - self._started < RESTART_SECONDS:
            return
        if self._process is not None:
            self._say(f"The SuperNode ended ({self._cause()}) and is restarted.")
        # On one machine, the server may be about to listen on its own port.
        self._port = free_port(besides=int(self._superlink.rpartition(":")[2]))
        self._disconnect()
        self._client = runtime_client(f"127.0.0.1:{self._port}", None, self._secret)
        arguments = [str(sleep_seconds(self._sites)), "--superlink", self._superlink]
        arguments += ["--host", "127.0.0.1", "--port", str(self._port), "--isolation", "process"]
        arguments += ["--superexec-auth-secret-file", str(self._secret)]
        if self._certs is None:
            arguments.append("--insecure")
        else:
            arguments += ["--root-certificates", str(self._certs / "ca.crt")]
            arguments += ["--auth-supernode-private-key", str(self._certs / "key")]
        variables = environment(self._folder / "home")
        self._log_start = self._log_checked = self._log_bytes()
        module = "undrift.deploy.flower.supernode_process"
        self._process = start(module, arguments, self._log, variables)
        self._started = time.monotonic()

    def _cause(self) -> str:
        """Why the SuperNode ended, from its log."""
        text = " ".join(log_lines(self._log, self._log_start))
        for sign, cause in CAUSES.items():
            if sign in text:
                return cause
        return last_lines(self._log, since=self._log_start) or "it gave no reason"

    def _report_unreachable(self) -> None:
        """Report once that the server cannot be reached; the SuperNode retries without a limit."""
        size = self._log_bytes()
        if size == self._log_checked or time.monotonic() - self._started < UNREACHABLE_SECONDS:
            return
        self._log_checked = size
        if "Connection attempt failed" not in last_lines(self._log, 1, self._log_start):
            return
        host, _, port = self._superlink.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 2).close()
            self._reported_unreachable = False
        except OSError as error:
            if not self._reported_unreachable:
                self._say(
                    f"The server cannot be reached at {self._superlink} "
                    f"({error.strerror or error}); this site keeps trying."
                )
            self._reported_unreachable = True

    def _log_bytes(self) -> int:
        return self._log.stat().st_size if self._log.is_file() else 0

    def _answer_next(self) -> bool:
        """Answer the next request; False if there is none."""
        import httpx
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        try:
            wanted = AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
            found = self._client.AcquireTask(wanted)
        except httpx.HTTPError:
            time.sleep(POLL_SECONDS)  # the SuperNode is starting, or has ended
            return False
        if not found.token:
            return False
        try:
            self._answer(found.token)
        except Exception as error:  # no failure may end the site: it must answer the next request
            self._say(f"A request could not be answered: {first_line(error)}.")
            if self._process is not None:
                stop([self._process])
        return True

    def _answer(self, token: str) -> None:
        """Fetch a request, have the site answer it, and send the answer.

        The code that Flower delivers with a request is ignored: none of it is executed.
        """
        from flwr.common.constant import SubStatus
        from flwr.supercore.interceptors import (
            RuntimeTokenHttpInterceptor,
            RuntimeVersionHttpInterceptor,
        )
        from flwr.supercore.runtime import RuntimeHttpClient
        from flwr.supernode.runtime.run_clientapp import (
            pull_task_input,
            push_message,
            push_task_output,
        )

        from undrift.deploy.flower.messages import answer_message, payload

        client = RuntimeHttpClient.from_server_address(
            f"127.0.0.1:{self._port}",
            True,
            None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
                RuntimeTokenHttpInterceptor(token),
            ],
        )
        try:
            with heartbeats.heartbeats(client):
                message, context, _, _ = pull_task_input(client)
                answer = answer_message(self.site.answer(payload(message)), message)
                push_message(client, answer, context)
            # After the last heartbeat, so that none is sent for a finished task.
            push_task_output(client, context, SubStatus.COMPLETED, "")
        finally:
            client.close()
