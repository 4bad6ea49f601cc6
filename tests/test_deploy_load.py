"""The benchmark with many scripted sites: no answer is lost, also if the database is locked."""

import sqlite3
import threading
import time

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from benchmarks.load import measure, row

from undrift.deploy.flower.environment import configure_flower

LOCKED_SECONDS = 6.0
"""Longer than SQLite waits for a lock in Flower."""


def hold_lock(database):
    """Lock a database for writing in the background, for as long as `LOCKED_SECONDS`."""
    other = sqlite3.connect(database, isolation_level=None, check_same_thread=False, timeout=30)
    other.execute("BEGIN IMMEDIATE")

    def release():
        time.sleep(LOCKED_SECONDS)
        other.execute("ROLLBACK")
        other.close()

    threading.Thread(target=release).start()


@pytest.mark.deploy
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower uses it
def test_scripted_sites_answer_a_real_superlink():
    configure_flower()
    # Every request of the measured round first meets a locked database: none may be lost to it.
    found = measure(sites=4, size=1_000_000, rounds=1, poll=0.2, before_round=hold_lock)
    assert found.rounds[0] > LOCKED_SECONDS - 1
    assert found.lost == 0
    assert len(found.latencies) == 4 and len(found.rounds) == 1
    assert max(found.latencies) <= found.rounds[0]
    assert found.superlink_bytes > 0 and found.superlink_cpu[0] > 0
    assert row(4, 1_000_000, found).startswith("| 4 | 1 MB | ")
