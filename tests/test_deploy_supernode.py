"""A SuperNode survives a server killed in the middle of a request, and a port that is taken."""

import socket
from types import SimpleNamespace

import pytest

from undrift.deploy.flower.environment import configure_flower
from undrift.deploy.flower.processes import free_port

pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

import flwr.supernode.start_client_internal as internal  # noqa: E402
from flwr.app import Error, Message, RecordDict  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import get_object_tree  # noqa: E402
from flwr.supercore.object_store import ObjectStoreFactory  # noqa: E402
from flwr.supercore.run import RunNotRunningException  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from flwr.supernode.nodestate import NodeStateFactory  # noqa: E402

from undrift.deploy.flower import supernode  # noqa: E402
from undrift.deploy.flower.supernode_process import patch_ended_runs  # noqa: E402
from undrift.deploy.private_files import write_secret  # noqa: E402

RUN = 7


@pytest.fixture
def node(monkeypatch):
    """Flower's module as `patch_ended_runs` leaves it, with a state that knows a run."""
    for name in ("pull_objects", "_pull_and_store_message"):  # put back afterwards
        monkeypatch.setattr(internal, name, getattr(internal, name))
    patch_ended_runs(internal)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN, raising=False)
    stores = ObjectStoreFactory()
    state = NodeStateFactory(stores).state()
    state.set_node_id(1)
    known = SimpleNamespace(run_id=RUN, fab_hash="", primary_task_type="flwr-clientapp")
    monkeypatch.setattr(state, "get_run", lambda run: known)
    return SimpleNamespace(state=state, store=stores.store())


def request():
    message = Message(RecordDict(), 1, "query")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def received(node, message, pull_object):
    return internal._pull_and_store_message(
        state=node.state,
        object_store=node.store,
        node_config={},
        receive=lambda: None if message is None else (message, get_object_tree(message)),
        get_run=None,
        get_fab=None,
        pull_object=pull_object,
        confirm_message_received=lambda run, message: None,
        trusted_entities=None,
    )


def ended(run, number):
    raise RunNotRunningException


def test_a_request_whose_run_has_ended_is_dropped(node):
    message = request()
    assert received(node, message, ended) is None
    assert not node.state.get_messages_legacy(is_reply=False)
    assert message.metadata.message_id not in node.store  # who waits for it is told
    (task,) = node.state.get_tasks()
    assert "its run has ended" in task.status.details


def test_an_answer_is_sent_also_when_no_request_came(node):
    assert received(node, None, None) is None  # nothing to do
    answer = Message(Error(0, "late"), reply_to=request())
    answer.metadata.__dict__["_message_id"] = answer.object_id
    node.state.store_message(answer)
    assert received(node, None, None) is not None  # so that it goes on to send
    node.state.get_messages_legacy(is_reply=True)  # it was sent
    assert received(node, None, None) is None


def test_a_supernode_that_ended_is_started_again_at_another_port(tmp_path, monkeypatch):
    """Another process may have taken the free port: with it, the SuperNode would never start."""
    started = []

    def start(module, arguments, log, variables):
        started.append(int(arguments[arguments.index("--port") + 1]))
        return SimpleNamespace(poll=lambda: 1)  # it has ended

    ports = [50001, 50002]
    monkeypatch.setattr(supernode, "start", start)
    monkeypatch.setattr(supernode, "free_port", lambda besides: ports.pop(0))
    monkeypatch.setattr(supernode, "RESTART_SECONDS", 0.0)
    said = []
    node = supernode.SuperNode(None, "127.0.0.1:8000", tmp_path, say=said.append)
    write_secret(node._secret)
    for _ in range(2):
        node._keep_running()
        assert node._client._base_url.endswith(f":{node._port}")
    assert started == [50001, 50002]
    assert "is restarted" in said[0]


def test_a_sites_port_is_never_its_servers(monkeypatch):
    ports = [47987, 47987, 50000]

    class Fake(socket.socket):
        def getsockname(self):
            return "127.0.0.1", ports.pop(0)

    monkeypatch.setattr(socket, "socket", Fake)
    assert free_port(besides=47987) == 50000


@pytest.mark.parametrize(("sites", "seconds"), [(1, 0.5), (25, 0.5), (100, 2.0), (10_000, 3.0)])
def test_many_sites_ask_less_often(sites, seconds):
    assert supernode.sleep_seconds(sites) == seconds
