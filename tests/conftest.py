"""What holds for every test: nothing is read from or written to the user's cache.

And what several tests of how an engine is chosen ask for.
"""

import os

# Torch's threads wait asleep. Spinning, those of several tests at once, or of the processes that
# they start, take the processors from each other: what takes a second then takes thirty.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # it is read when torch is imported

import pytest

from undrift.engines import TunedEngine, strategy_cache


@pytest.fixture(autouse=True, scope="session")
def cache_of_its_own(tmp_path_factory):
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture
def forgotten(tmp_path, monkeypatch):
    """An empty cache of strategies; gives the folder in which choices will be stored."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(strategy_cache, "_known", {})
    return tmp_path / "cache" / "undrift" / "strategies"


@pytest.fixture
def rigged(monkeypatch):
    """Lets strategies win whose names begin in a given way; gives the list of timed ones."""

    def rig(*winners):
        timed = []

        def seconds(self, engine, method, assignments, states):
            timed.append(engine.strategy)
            return 0.1 if engine.strategy.startswith(winners) else 1.0

        monkeypatch.setattr(TunedEngine, "_seconds", seconds)
        return timed

    return rig


@pytest.fixture
def no_timing(monkeypatch):
    """Fails the test if a strategy is timed."""

    def forbid():
        def seconds(*_):
            raise AssertionError("A strategy was timed.")

        monkeypatch.setattr(TunedEngine, "_seconds", seconds)

    return forbid
