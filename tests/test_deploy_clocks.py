"""A clock that jumps ends neither a SuperLink nor a run."""

import datetime
import os
from functools import partial
from types import SimpleNamespace

import pytest

from undrift.deploy.flower.environment import configure_flower

pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

from importlib import import_module  # noqa: E402

from flwr.supercore import date  # noqa: E402
from flwr.superlink.config_loader import (  # noqa: E402
    get_federation_manager,
    get_objectstore_linkstate_factories,
)

from undrift.deploy.flower import clocks, superlink_process  # noqa: E402
from undrift.deploy.flower.clocks import LifeSign  # noqa: E402
from undrift.deploy.flower.messages import answer_message, payload, request_message  # noqa: E402

JUMP_SECONDS = 900.0


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def jump(monkeypatch):
    """Sets the machine's clock, as Flower sees it, ahead by some seconds."""

    def set_ahead(seconds):
        class Jumped(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.datetime.now(tz) + datetime.timedelta(seconds=seconds)

        monkeypatch.setattr(
            date, "datetime", SimpleNamespace(datetime=Jumped, UTC=datetime.UTC), raising=True
        )

    return set_ahead


@pytest.fixture
def steady(monkeypatch):
    """Gives Flower's modules the steady clock until the end of the test."""

    def use(*groups):
        for name in dict.fromkeys(name for group in groups for name in group):
            module = import_module(name)
            monkeypatch.setattr(module, "now", module.now)
            clocks.use_steady_clock([name], clocks.current_offset())

    return use


# The life sign of the server


def test_a_life_sign_is_timed_by_a_clock_that_only_runs(tmp_path):
    file, clock = tmp_path / "alive", Clock()
    file.touch()
    sign = LifeSign(file, clock)
    assert sign.silent_seconds() == 0
    clock.seconds += 800
    assert sign.silent_seconds() == 800
    for jump in (900, -900):  # the time of the file follows the clock of the machine
        time_ns = file.stat().st_mtime_ns + jump * 10**9
        os.utime(file, ns=(time_ns, time_ns))
        assert sign.silent_seconds() == 0
        clock.seconds += 10
        assert sign.silent_seconds() == 10
    file.unlink()
    assert sign.silent_seconds() == float("inf")


def watched(tmp_path, monkeypatch, checks, at_each):
    """How many checks a SuperLink makes before it ends itself; at most `checks`."""
    file, clock = tmp_path / "alive", Clock()
    file.touch()
    ended = []

    class Enough(Exception):
        pass

    def sleep(seconds):
        ended.append(None)
        if len(ended) >= checks:
            raise Enough
        at_each(file, clock)

    monkeypatch.setattr(superlink_process, "LifeSign", partial(LifeSign, clock=clock))
    killed = []
    monkeypatch.setattr(superlink_process.os, "kill", lambda *_: killed.append(len(ended)))
    now = superlink_process.time.time
    shifted = SimpleNamespace(sleep=sleep, time=lambda: now() + JUMP_SECONDS + 60)
    monkeypatch.setattr(superlink_process, "time", shifted)
    try:
        superlink_process._end_without_server(file)
    except Enough:
        return None
    return killed[0]


def test_a_clock_that_jumps_a_quarter_of_an_hour_ends_no_superlink(tmp_path, monkeypatch):
    def server_lives(file, clock):
        clock.seconds += 1.0
        # Its time stays behind, as when the clock has just been set ahead.
        time_ns = file.stat().st_mtime_ns + 10**9
        os.utime(file, ns=(time_ns, time_ns))

    assert watched(tmp_path, monkeypatch, 2000, server_lives) is None


def test_a_superlink_without_a_server_ends_after_a_quarter_of_an_hour(tmp_path, monkeypatch):
    def silence(file, clock):
        clock.seconds += 1.0

    checks = watched(tmp_path, monkeypatch, 2000, silence)
    assert checks == superlink_process.ORPHAN_SECONDS + 1


def test_a_superlink_whose_folder_was_removed_ends_at_once(tmp_path, monkeypatch):
    assert watched(tmp_path, monkeypatch, 10, lambda file, clock: file.unlink()) == 1


# Flower's own time-outs


@pytest.mark.filterwarnings("ignore:No path_separator found")  # Flower's use of alembic
def test_a_jump_expires_no_task_of_a_superlink(tmp_path, jump, steady):
    steady(clocks.SUPERLINK_MODULES)
    _, states = get_objectstore_linkstate_factories(
        str(tmp_path / "superlink.db"), get_federation_manager()
    )
    state = states.state()
    run = state.create_run("", "", "", {}, "@none/default", None, "", "flwr-serverapp")
    (task,) = state.get_tasks(run_ids=[run])
    token = state.claim_task(task.task_id)
    assert token and state.activate_task(task.task_id)
    jump(JUMP_SECONDS)
    assert state.get_task_by_token(token) is not None
    assert state.acknowledge_task_heartbeat(task.task_id)


def test_every_module_of_the_lists_has_the_clock_that_is_replaced(jump, steady):
    every = clocks.SUPERLINK_MODULES, clocks.SUPERNODE_MODULES, clocks.SERVER_MODULES
    names = [name for group in every for name in group]
    for name in names:
        assert import_module(name).now is date.now, name
    steady(*every)
    jump(JUMP_SECONDS)
    for name in names:
        ahead = import_module(name).now() - datetime.datetime.now(datetime.UTC)
        assert abs(ahead.total_seconds()) < 60, name


def test_all_processes_of_a_machine_share_the_clock(monkeypatch):
    monkeypatch.setenv(clocks.OFFSET, repr(123.5))
    assert clocks.given_offset() == 123.5
    monkeypatch.delenv(clocks.OFFSET)
    assert abs(clocks.given_offset() - clocks.current_offset()) < 1


def test_an_answer_does_not_depend_on_the_clock_of_its_site(monkeypatch, jump):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(import_module("flwr.supercore.task_identity").TaskIdentity, name, 7)
    request = request_message(b"?", 1, 60.0, 100)
    jump(JUMP_SECONDS)
    answer = answer_message(b"!", request)
    assert payload(answer) == b"!"
    assert answer.metadata.ttl == request.metadata.ttl
    assert answer.metadata.created_at == request.metadata.created_at


def test_a_sites_clock_may_be_a_quarter_of_an_hour_off(monkeypatch):
    from flwr.superlink.routers.fleet import node_auth

    monkeypatch.setattr(node_auth, "SYSTEM_TIME_TOLERANCE", node_auth.SYSTEM_TIME_TOLERANCE)
    clocks.widen_clock_tolerance()
    assert node_auth.SYSTEM_TIME_TOLERANCE > JUMP_SECONDS
