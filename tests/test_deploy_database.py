"""A SuperLink whose database is locked: nothing is lost, and what failed can be repeated."""

import sqlite3
import threading
from types import SimpleNamespace

import pytest

from undrift.deploy.flower.environment import configure_flower

pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

from flwr.supercore import sql_mixin  # noqa: E402
from flwr.supercore.error import FlowerError  # noqa: E402
from flwr.supercore.error.catalog import API_ERROR_MAP  # noqa: E402
from sqlalchemy import text  # noqa: E402

from undrift.deploy.flower.superlink_side import database  # noqa: E402

CLAIM = (
    "WITH next AS (SELECT id FROM message WHERE given = 0 LIMIT 1) "
    "UPDATE message SET given = 1 WHERE id IN (SELECT id FROM next) RETURNING id"
)
"""How Flower marks a request as delivered."""


class State(sql_mixin.SqlMixin):
    """One of Flower's states, with a table of messages."""

    def initialize(self):
        self._engine = sql_mixin.create_engine(
            self.database_url, connect_args={"check_same_thread": False}
        )
        pragmas = sql_mixin._set_sqlite_pragmas
        sql_mixin.event.listen(self._engine, "connect", pragmas)
        self._session_factory = sql_mixin.sessionmaker(bind=self._engine)
        with self.session() as session:
            session.execute(text("CREATE TABLE message (id TEXT, given INT)"))
            session.execute(text("CREATE TABLE traffic (bytes INT)"))
            session.execute(text("INSERT INTO message VALUES ('order', 0)"))


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A state as in a SuperLink, which waits for a lock for a moment only."""
    monkeypatch.setattr(sql_mixin, "create_engine", sql_mixin.create_engine)
    monkeypatch.setattr(sql_mixin.SqlMixin, "session", sql_mixin.SqlMixin.session)
    pragmas = [("busy_timeout", "20"), *sql_mixin.SQLITE_PRAGMAS[1:]]
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", pragmas)
    database.use_one_at_a_time()
    found = State(str(tmp_path / "superlink.db"))
    found.initialize()
    yield found
    found._engine.dispose()


@pytest.fixture
def lock(state, tmp_path):
    """Another process's connection to the database."""
    other = sqlite3.connect(tmp_path / "superlink.db", isolation_level=None)
    yield SimpleNamespace(
        take=lambda: other.execute("BEGIN IMMEDIATE"), release=lambda: other.execute("ROLLBACK")
    )
    other.close()


def claim(request, state):
    """A handler that marks a message as delivered, and then counts its bytes."""
    with state.session() as session:
        found = session.scalars(text(CLAIM)).all()
    request.between()
    with state.session() as session:
        session.execute(text("INSERT INTO traffic VALUES (100)"))
    return found


def request(between=lambda: None):
    return SimpleNamespace(between=between)


def handlers():
    found = SimpleNamespace(claim=claim)
    database.answer_in_one_transaction(found, ["claim"])
    return found


def test_a_locked_database_is_answered_so_that_the_request_is_repeated(state, lock):
    """Flower's status 500 had a site drop the answer that it was sending."""
    lock.take()
    with pytest.raises(FlowerError, match="database is locked") as caught:
        handlers().claim(request(), state)
    assert API_ERROR_MAP[caught.value.code].http_status_code == 503
    lock.release()
    assert handlers().claim(request(), state) == ["order"]


def test_a_request_that_fails_halfway_has_no_effect(state):
    """Otherwise a message stays marked as delivered that nobody has received."""

    def fails():
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        handlers().claim(request(fails), state)
    assert handlers().claim(request(), state) == ["order"]
    assert handlers().claim(request(), state) == []


def read(request, state):
    """A handler that reads, and then writes."""
    with state.session() as session:
        found = session.scalars(text("SELECT id FROM message")).all()
    request.between()
    with state.session() as session:
        session.execute(text("UPDATE message SET given = 1"))
    return found


@pytest.mark.parametrize("handler", [claim, read])
def test_no_lock_can_come_between_the_parts_of_a_request(state, lock, handler):
    refused = []

    def tries():
        try:
            lock.take()
        except sqlite3.OperationalError as error:
            refused.append(str(error))

    found = SimpleNamespace(handler=handler)
    database.answer_in_one_transaction(found, ["handler"])
    assert found.handler(request(tries), state) == ["order"]
    assert refused == ["database is locked"]


def test_requests_wait_for_each_other_however_long_that_takes(state):
    """SQLite's own lock would have been given up after 20 ms here."""
    inside, go_on = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert go_on.wait(60)

    found = []
    first = threading.Thread(target=lambda: found.append(handlers().claim(request(slow), state)))
    second = threading.Thread(target=lambda: found.append(handlers().claim(request(), state)))
    first.start()
    assert inside.wait(60)
    second.start()
    second.join(0.2)  # ten times as long as SQLite waits
    assert second.is_alive()
    go_on.set()
    first.join(60)
    second.join(60)
    assert found == [["order"], []]


def test_other_faults_of_the_database_are_not_hidden(state):
    from sqlalchemy.exc import OperationalError

    with pytest.raises(OperationalError, match="no such table"), state.session() as session:
        session.execute(text("SELECT * FROM absent"))
