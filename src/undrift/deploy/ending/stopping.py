"""Ends a site within a few seconds of a signal, whatever it is doing.

A thread waits for signals, since the main thread may be inside a long operation of torch, the
user's code that reads data, or a call to a server that is gone. If not even the thread can run, the
process of `watchdog` kills the site. Ending the process at any moment is safe: files of
states are written whole, and an order is on disk before its work begins.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

GRACE_SECONDS = 2.0
"""How long a site may go on after the signal before it is ended; it must end within 5 seconds."""
WATCHDOG = Path(__file__).with_name("watchdog.py")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Signals of a site: the first Ctrl-C waits for the current request, the second and SIGTERM
    end the site within `GRACE_SECONDS`.

    Use it as a context in the main thread, around everything that the site does.

    Parameters
    ----------
    name
        the name of the site, for the sentences
    """

    def __init__(self, name: str):
        self.name = name
        self.doing: Callable[[], str | None] = lambda: "its start"
        """what the site is doing, in words; None if it waits for requests"""
        self.last_acts: list[Callable[[str, str | None], None]] = []
        """called with the signal's name and what is left undone, before the process is ended"""
        self._ended = threading.Event()
        self._finished = threading.Event()
        self._former: dict[int, Any] = {}
        self._former_fd = -1

    def stopped(self) -> bool:
        """Whether the site should take no further request."""
        return self._ended.is_set()

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # Python's own handlers run between two instructions of the main thread only. The file
        # descriptor is written to at once, so that the thread learns of the signal.
        self._former_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            self._former[number] = signal.signal(number, lambda *_: None)
        self._forwarded = self._start_watchdog()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finished.set()
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._write)  # ends the watchdog, and then the thread
        self._thread.join()
        self._watchdog.wait()
        os.close(self._forwarded)
        os.close(self._read)

    def _start_watchdog(self) -> int:
        """Start the process that is told of signals first; returns the pipe that it writes to."""
        forwarded, forward = os.pipe()
        arguments = [str(os.getpid()), self.name, str(self._read), str(forward)]
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCHDOG), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._read, forward),
            start_new_session=True,
        )
        os.close(forward)
        return forwarded

    def _signals(self) -> Iterator[int]:
        """The signals that arrive: from the watchdog, or directly if somebody ended it."""
        for pipe in (self._forwarded, self._read):
            while number := os.read(pipe, 1):
                yield number[0]

    def _watch(self) -> None:
        for number in self._signals():
            if number == signal.SIGINT and not self._ended.is_set():
                doing = self.doing()
                self._ended.set()
                if doing is not None:
                    _say(f"Site {self.name!r} stops after {doing}; Ctrl-C again stops it at once.")
                continue
            if number in SIGNALS:
                self._ended.set()
                if not self._finished.wait(GRACE_SECONDS):
                    self._end(signal.Signals(number))

    def _end(self, number: signal.Signals) -> None:
        undone = self.doing()
        if undone is None:
            _say(f"Site {self.name!r} is stopped; no request was left undone.")
        else:
            _say(
                f"Site {self.name!r} is stopped by {number.name}: {undone} is left undone, and "
                f"nothing of it was sent."
            )
        for act in self.last_acts:
            with suppress(Exception):
                act(number.name, undone)
        # Without clean-up, which could wait for the main thread.
        os._exit(0 if undone is None else 128 + number)


def _say(sentence: str) -> None:
    """Write to the standard error output without the locks that the main thread may hold."""
    with suppress(OSError):
        os.write(
            2 if sys.stderr is sys.__stderr__ else sys.stderr.fileno(), f"{sentence}\n".encode()
        )
