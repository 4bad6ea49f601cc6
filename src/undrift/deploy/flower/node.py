"""A site's process: a SuperNode beside it, and the work that it asks for."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from undrift.deploy.flower.session import runtime_client, write_secret
from undrift.deploy.flower.surroundings import (
    environment,
    free_port,
    last_lines,
    look_often,
    said,
    start,
    stop,
)
from undrift.deploy.site import Site
from undrift.utils.errors import first_line

POLL = 0.25
"""Seconds between two looks for something to do."""
IDLE = 0.5
"""The most seconds that a SuperNode sleeps."""
AGAIN = 5.0
"""Seconds after which a SuperNode that ended is started again."""
PATIENCE = 5.0
"""Seconds after which it is said that the server cannot be reached."""
CAUSES = {
    "ismatch, certificate is not valid": "the server's certificate is not for the name or address "
    "by which it is called here",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of this site's CA",
    "[SSL": "the server does not answer with TLS as it should",
    "code: 2004": "the server does not know this site's key, or has not noticed yet that the "
    "connection before this one has ended",
    "401 Unauthorized": "the server does not know this site's key",
}
"""What a SuperNode says before it ends, and what it means."""

Say = Callable[[str], None]


class Node:
    """A site that is connected to a SuperLink.

    Its SuperNode is started again whenever it ends: a SuperLink that was away for a while forgets
    its nodes, and after a crash it refuses the same key for a minute. It is also started again when
    a request could not be taken from it or answered, since it would wait for the answer for ever.

    Parameters
    ----------
    site
        who answers
    superlink
        the server's address
    folder
        where the SuperNode keeps its own things
    certs
        the site's folder of the certificates; without them nothing is encrypted
    say
        told of what happens
    """

    def __init__(
        self,
        site: Site,
        superlink: str,
        folder: Path,
        certs: Path | None = None,
        say: Say = lambda sentence: None,
    ):
        self.site = site
        self._superlink = superlink
        self._folder = folder
        self._certs = certs
        self._say = say
        self._port = 0
        self._client: Any = None
        """of the SuperNode, once it was started"""
        self._log = folder / "supernode.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._started = float("-inf")
        self._since = 0
        """where what the SuperNode says begins in its log"""
        self._looked = 0
        """how long the log was at the last look"""
        self._unreached = False
        """whether it was said that the server cannot be reached"""

    def serve(self, stopped: Callable[[], bool]) -> None:
        """Do what the server asks for, until told to stop."""
        look_often()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._certs is None:
            write_secret(self._secret)
        try:
            while not stopped():
                self._see_to_node()
                if not self._one():
                    time.sleep(POLL)
        finally:
            self._hang_up()
            if self._process is not None:
                stop([self._process])

    @property
    def _secret(self) -> Path:
        return (self._folder if self._certs is None else self._certs) / "secret"

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()

    def _see_to_node(self) -> None:
        """Start the SuperNode, or start it again, each time at another port.

        Somebody else may have taken one since it was found free: the server itself, on one machine,
        which is about to listen at its own.
        """
        if self._process is not None and self._process.poll() is None:
            self._see_to_server()
            return
        if time.monotonic() - self._started < AGAIN:
            return
        if self._process is not None:
            self._say(f"The SuperNode ended ({self._why()}): it is started again.")
        self._port = free_port(besides=int(self._superlink.rpartition(":")[2]))
        self._hang_up()
        self._client = runtime_client(f"127.0.0.1:{self._port}", None, self._secret)
        arguments = [str(IDLE), "--superlink", self._superlink]
        arguments += ["--host", "127.0.0.1", "--port", str(self._port), "--isolation", "process"]
        arguments += ["--superexec-auth-secret-file", str(self._secret)]
        if self._certs is None:
            arguments.append("--insecure")
        else:
            arguments += ["--root-certificates", str(self._certs / "ca.crt")]
            arguments += ["--auth-supernode-private-key", str(self._certs / "key")]
        around = environment(self._folder / "home")
        self._since = self._looked = self._length()
        self._process = start("undrift.deploy.flower.supernode", arguments, self._log, around)
        self._started = time.monotonic()

    def _why(self) -> str:
        """Why the SuperNode ended."""
        words = " ".join(said(self._log, self._since))
        for sign, cause in CAUSES.items():
            if sign in words:
                return cause
        return last_lines(self._log, since=self._since) or "without a word"

    def _see_to_server(self) -> None:
        """Say once that the server cannot be reached, which a SuperNode tries for ever."""
        length = self._length()
        if length == self._looked or time.monotonic() - self._started < PATIENCE:
            return
        self._looked = length
        if "Connection attempt failed" not in last_lines(self._log, 1, self._since):
            return
        host, _, port = self._superlink.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 2).close()
            self._unreached = False
        except OSError as error:
            if not self._unreached:
                self._say(
                    f"The server cannot be reached at {self._superlink} "
                    f"({error.strerror or error}): it is tried again and again."
                )
            self._unreached = True

    def _length(self) -> int:
        return self._log.stat().st_size if self._log.is_file() else 0

    def _one(self) -> bool:
        """Answer a request, if there is one."""
        import httpx
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        try:
            wanted = AcquireTaskRequest(supported_task_types=["flwr-clientapp"])
            found = self._client.AcquireTask(wanted)
        except httpx.HTTPError:
            time.sleep(POLL)  # the SuperNode is not there yet, or no longer
            return False
        if not found.token:
            return False
        try:
            self._answer(found.token)
        except Exception as error:  # whatever it is, the site must be there for the next request
            self._say(f"A request was not answered: {first_line(error)}.")
            if self._process is not None:
                stop([self._process])
        return True

    def _answer(self, token: str) -> None:
        """Pull a request, have the site answer it, and push the answer.

        Flower's own code that comes with a request is left alone: nothing of it is run.
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

        from undrift.deploy.flower.beating import beating
        from undrift.deploy.flower.letters import opened, reply

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
            with beating(client):
                message, context, _, _ = pull_task_input(client)
                push_message(client, reply(self.site.answer(opened(message)), message), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        finally:
            client.close()
