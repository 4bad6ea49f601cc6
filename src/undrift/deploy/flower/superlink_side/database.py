"""Has a SuperLink use its SQLite database without losing requests or answers to locks.

Flower lets every request use the database at the same time, in several transactions each, and
answers with the status 500 when a lock is not free within five seconds. Then a site drops the
answer that it was sending, and a request that was already marked as delivered is never seen again.
Here one request at a time uses the database, in one transaction that takes effect as a whole or not
at all. If another process holds a lock for long, the request is answered with the status 503, after
which sites and server repeat it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

LOCKED = ("database is locked", "database table is locked")
"""What SQLite says about a lock that was not free in time."""
SITE_HANDLERS = (
    "pull_messages",
    "push_messages",
    "get_run",
    "get_fab",
    "push_object",
    "pull_object",
    "confirm_message_received",
)
"""Flower's handlers of the sites' requests that become one transaction each."""
SERVER_HANDLERS = (
    "push_messages",
    "pull_messages",
    "push_object",
    "pull_object",
    "confirm_message_received",
    "get_nodes",
)
"""Likewise of the server's requests."""


def use_one_at_a_time() -> None:
    """Have Flower's states begin a transaction that may write, and one at a time.

    Call it before Flower opens its database.
    """
    from flwr.supercore import sql_mixin

    create_engine = sql_mixin.create_engine

    def create(*arguments: Any, **options: Any) -> Any:
        engine = create_engine(*arguments, **options)
        _begin_at_once(engine)
        return engine

    sql_mixin.create_engine = create
    sql_mixin.SqlMixin.session = _one_at_a_time(  # type: ignore[method-assign,assignment]
        sql_mixin.SqlMixin.session, sql_mixin._current_sessions
    )


def _begin_at_once(engine: Any) -> None:
    """Begin each transaction with the lock that a write needs, rather than with the first write.

    A transaction that has read can fail to get that lock however long it waits. And Python's module
    would not begin one for a statement that starts with WITH: its changes could not be undone.
    """
    from sqlalchemy import event

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _one_at_a_time(session: Callable[[Any], Any], active: Any) -> Callable[[Any], Any]:
    """Flower's context manager of a transaction, with a lock around the outermost one."""
    from sqlalchemy.exc import OperationalError

    # SQLite's own lock is polled, by everyone and in no order: some waited for longer than allowed.
    turn = threading.Lock()

    @contextmanager
    def one_session(self: Any) -> Iterator[Any]:
        sessions = active.get()
        if sessions is not None and self._session_scope in sessions:
            with session(self) as inner:
                yield inner
            return
        try:
            with turn, session(self) as outermost:
                yield outermost
        except OperationalError as error:
            if not any(words in str(error) for words in LOCKED):
                raise
            raise _try_again(error) from error

    return one_session


def _try_again(error: Exception) -> Exception:
    """What Flower answers with the status 503."""
    from flwr.supercore.error import ApiErrorCode, FlowerError

    return FlowerError(ApiErrorCode.LINKSTATE_NOT_INITIALIZED, str(error))


def answer_in_one_transaction(handlers: Any, names: Sequence[str]) -> None:
    """Have each of Flower's handlers take effect as a whole or not at all.

    So a request may be repeated after a failure. Fewer transactions also cost less.
    """
    for name in names:
        setattr(handlers, name, _in_one_transaction(getattr(handlers, name)))


def _in_one_transaction(handler: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(handler)
    def handle(request: Any, state: Any, *more: Any, **options: Any) -> Any:
        with state.session():
            return handler(request, state, *more, **options)

    return handle
