"""A dishonest server gets nothing from a site but the answers of honest rounds."""

import json
import time
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands import called
from deployments import InProcess, app
from guide import DOCS, blocks
from test_deploy import assert_same, deployed, records, simulated
from undrift.deploy.orders import parse_evaluation_order, parse_work_order
from undrift.deploy.policy.approval import asking
from undrift.deploy.policy.ledger import HOUR_SECONDS
from undrift.deploy.policy.limits import Limits
from undrift.deploy.server import serve
from undrift.deploy.site import Site
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError

METHODS = ("FedAvg", "SCAFFOLD")
ONLY_HONEST = Limits(max_runs=1, max_attempts=0)
"""Of one run, each round once: nothing but the honest rounds is left to ask for."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The transport of an honest run of three rounds."""
    folder = tmp_path_factory.mktemp("honest")
    file = app(folder / "app", METHODS)
    transport = InProcess(file, folder / "state")
    transport.limits = ONLY_HONEST
    deployed(file, folder / "out", transport, rounds=3)
    return transport


def asked(transport, kind, site="a"):
    """The honest requests of a kind to a site, with their answers."""
    found = [(request, answer) for name, request, answer in transport.exchanged if name == site]
    return [each for each in found if decode(each[0], 10**9)[0]["kind"] == kind]


def first_order(transport, label="FedAvg"):
    """The first order to train by a method that was sent to site a."""
    orders = [parse_work_order(*decode(request, 10**9)) for request, _ in asked(transport, "work")]
    return next(order for order in orders if order.terms.label == label)


def fresh_site(transport, folder, limits=None, name="a", **more):
    return Site(transport.experiment, name, folder, limits, **more)


def of(order, x=None, **changes):
    """An order with another model or with other terms."""
    terms = {name: changes.pop(name) for name in list(changes) if hasattr(order.terms, name)}
    if x is not None and hasattr(order, "download"):
        changes["download"] = order.download.replace(x=x)
    elif x is not None:
        changes["x"] = x
    return replace(order, terms=replace(order.terms, **terms), **changes)


def ask(site, order):
    """The decoded answer of a site to an order."""
    values, tensors = decode(site.answer(order.encoded()), 10**9)
    return values, tensors


def refusal(site, order):
    """The sentence with which a site refuses an order, which also stands in its audit log."""
    values, tensors = ask(site, order)
    assert not tensors and values.keys() == {"error"}, values
    line = json.loads(site.audit.path.read_text().splitlines()[-1])
    assert (line["decision"], line["reason"]) == ("refused", values["error"][:300])
    return values["error"]


# The server may send anything


def paths(value, path=()):
    """The paths of all values in nested tables and lists."""
    yield path
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else inner:
        yield from paths(each, (*path, key))


ODD = st.one_of(
    st.integers(-2, 12),
    st.sampled_from([10**15, 2**53, 2**63 - 1, -(10**15), 1e308, 0.5, True, None, "", "FedAvg"]),
    st.sampled_from(["SCAFFOLD", "a", "b", "work", "evaluate", "server", "cohort", [], ["a"], {}]),
    st.text(max_size=5),
)
NAMES = st.sampled_from(
    ["steps", "key", "scale", "budget", "work", "client", "draws", "x", "parts"]
)


def spoil(draw, values, tensors):
    """Change one thing of a request."""
    kind = draw(
        st.sampled_from(["set", "set", "set", "drop", "add", "zero", "move", "later", "tensor"])
    )
    if kind == "add" or not values:
        values[draw(NAMES)] = deepcopy(draw(ODD))
    elif kind in ("set", "drop"):
        path = draw(st.sampled_from([path for path in paths(values) if path]))
        place = values
        for key in path[:-1]:
            place = place[key]
        if kind == "set":
            place[path[-1]] = deepcopy(draw(ODD))
        else:
            del place[path[-1]]
    elif kind == "later" and isinstance(values.get("attempt"), int):
        values["attempt"] += draw(st.integers(1, 3))
    elif tensors:
        name = draw(st.sampled_from(sorted(tensors)))
        if kind == "zero":
            tensors[name] = torch.zeros_like(tensors[name])
        elif kind == "move":
            tensors[name] = tensors[name] + draw(st.floats(-1, 1).filter(bool))
        else:
            tensors[draw(NAMES)] = tensors.pop(name)


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[*HealthCheck])
def test_no_request_gets_an_answer_that_differs_from_those_of_honest_rounds(honest, data):
    site = honest.made("a")
    exchanged = [(request, answer) for name, request, answer in honest.exchanged if name == "a"]
    answers = {answer for _, answer in exchanged}
    for _ in range(data.draw(st.integers(1, 4))):
        values, tensors = decode(data.draw(st.sampled_from(exchanged))[0], 10**9)
        for _ in range(data.draw(st.integers(0, 3))):
            spoil(data.draw, values, tensors)
        before = site.audit.counts()
        answer = site.answer(encode(values, tensors))
        after = site.audit.counts()
        assert sum(after.values()) == sum(before.values()) + 1
        found, more = decode(answer, 10**9)
        if answer not in answers:
            assert found.keys() == {"error"} and not more
            refused = [
                sum(n for k, n in c.items() if k.endswith(" refused")) for c in (before, after)
            ]
            assert refused[1] == refused[0] + 1


@given(data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[*HealthCheck])
def test_no_new_run_has_another_amount_of_work_than_an_honest_one(honest, tmp_path_factory, data):
    """With a new run the server may announce any roster: it changes neither steps nor batches."""
    site = fresh_site(honest, tmp_path_factory.mktemp("site"), Limits(max_runs=1000))
    works = [
        each for each in asked(honest, "work") if decode(each[0], 10**9)[0]["label"] == "FedAvg"
    ]
    for number in range(data.draw(st.integers(1, 3))):
        request, honest_answer = data.draw(st.sampled_from(works))
        values, tensors = decode(request, 10**9)
        place = values["run"], values["round"]
        values["run"] = f"run {number}"
        sizes = data.draw(st.tuples(st.integers(1, 11), st.integers(1, 60), st.floats(0.1, 60)))
        values["roster"] |= {
            name: [size, data.draw(st.floats(1e-9, 1))]
            for name, size in zip("abc", sizes, strict=True)
            if data.draw(st.booleans())
        }
        if data.draw(st.sampled_from([True, True, False])):  # the weights have the sum one
            total = sum(row[1] for row in values["roster"].values())
            for row in values["roster"].values():
                row[1] /= total
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
            spoil(data.draw, values, {})
        found, sent = decode(site.answer(encode(values, tensors)), 10**9)
        if "error" not in found and values["kind"] == "work":
            wanted, vectors = decode(honest_answer, 10**9)
            assert found["steps"] == wanted["steps"]
            assert found["evaluations"] == wanted["evaluations"]
            if place[1] == values["round"] and values["label"] == "FedAvg":
                assert all(torch.equal(sent[name], value) for name, value in vectors.items())


def test_an_honest_request_is_answered_again_with_the_same_bytes(honest):
    for kind in ("work", "evaluate"):
        request, answer = asked(honest, kind)[-1]
        assert honest.made("a").answer(request) == answer


def test_one_step_of_a_zero_model_with_chosen_keys_is_refused(honest, tmp_path):
    """The orders that once gave all samples of a site: the site takes none of these numbers."""
    site = fresh_site(honest, tmp_path)
    order = first_order(honest)
    values, tensors = decode(of(order, x=torch.zeros_like(order.download.x)).encoded(), 10**9)
    for key in range(259):
        work = {"steps": 1, "key": key, "rate": 1.0}
        answer = site.answer(encode({**values, "work": work, "budget": None}, tensors))
        assert "a site does not take from its server" in decode(answer, 10**9)[0]["error"]
    assert site.audit.counts() == {"work refused": 259}
    # With the fields of an honest order, the zero model gets one answer, of an honest number of
    # steps; the order of the batches is not the server's choice.
    site = fresh_site(honest, tmp_path / "other")
    first, _ = ask(site, of(order, x=torch.zeros_like(order.download.x)))
    assert first["steps"] == 2
    for number in range(20):
        x = torch.full_like(order.download.x, number + 1.0)
        assert "already" in refusal(site, of(order, x=x))


def test_a_site_answers_no_more_than_the_experiment_and_its_limits_allow(honest, tmp_path):
    limits = Limits(max_runs=2, max_attempts=2, max_repeats=3)
    site = fresh_site(honest, tmp_path, limits)
    order = first_order(honest)
    answered = []
    tried = [(f"run {k}", n, t) for n in range(1, 6) for t in range(5) for k in range(4)]
    for number, (run, attempt, round) in enumerate(each for each in tried for _ in "12"):
        changes = {"run": run, "attempt": attempt, "round": round, "turn": round}
        values, _ = ask(site, of(order, x=order.download.x + number, **changes))
        if "error" not in values:
            answered.append((run, round))
            assert values["steps"] == 2
    assert {run for run, _ in answered} == {"run 0", "run 1"}
    for run in ("run 0", "run 1"):
        rounds = [round for each, round in answered if each == run]
        assert rounds == [0, 1, 2, 0, 1, 2]  # three of the experiment, and max_repeats


def test_what_was_answered_is_remembered_by_the_next_process(honest, tmp_path):
    order = first_order(honest)
    other = of(order, x=order.download.x + 1)
    assert "error" not in ask(fresh_site(honest, tmp_path), order)[0]
    assert "already" in refusal(fresh_site(honest, tmp_path), other)
    evaluation = parse_evaluation_order(*decode(asked(honest, "evaluate")[0][0], 10**9))
    assert "error" not in ask(fresh_site(honest, tmp_path), evaluation)[0]
    assert "already" in refusal(fresh_site(honest, tmp_path), of(evaluation, x=evaluation.x + 1))


def test_an_order_counts_as_answered_before_its_work_begins(honest, tmp_path, monkeypatch):
    """A site that is killed while it works must not be asked with another model."""
    order = first_order(honest)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Site, "_reply", killed)
        with pytest.raises(KeyboardInterrupt):
            fresh_site(honest, tmp_path).answer(order.encoded())
    site = fresh_site(honest, tmp_path)
    assert "already" in refusal(site, of(order, x=order.download.x + 1))
    assert "error" not in ask(site, order)[0]


def test_an_order_is_answered_again_only_from_the_same_state(honest, tmp_path):
    """The state that work starts from decides the answer, as the model does."""
    site, first = fresh_site(honest, tmp_path), first_order(honest, "SCAFFOLD")
    second = of(first, round=1, turn=1, base=1)
    assert "error" not in ask(site, first)[0]
    answer = site.answer(second.encoded())
    assert site.answer(second.encoded()) == answer
    assert "already" in refusal(site, replace(second, base=0))
    # A later attempt goes back and replaces version 1; the order that started from it is another.
    assert "error" not in ask(site, of(first, attempt=2, x=first.download.x + 1))[0]
    assert "already" in refusal(site, second)
    assert "error" not in ask(site, of(second, attempt=2))[0]


# Agreement on the run


def test_a_run_of_another_experiment_is_refused(honest, tmp_path):
    site, order = fresh_site(honest, tmp_path), first_order(honest)
    more = refusal(site, of(order, rounds=200))
    assert "set rounds = 200 in the site's own experiment file and restart the site" in more
    assert "no method 'FedNova'" in refusal(site, of(order, label="FedNova"))
    assert "without the seed 4" in refusal(site, of(order, seed=4))
    assert "there is no round 4" in refusal(site, of(order, round=3, turn=3))
    assert "turn of a synchronous round" in refusal(site, of(order, turn=7))
    assert "other sites" in refusal(site, of(order, run="other", roster={"a": (10, 1.0)}))
    assert "not in the experiment" in refusal(site, of(order, available=("a", "z")))
    assert "no work" in refusal(site, of(order, available=("b", "c")))
    assert "not finite" in refusal(site, of(order, x=order.download.x * torch.nan))
    download = order.download.replace(more=order.download.x)
    assert "was not asked for" in refusal(site, replace(order, download=download))


def test_the_roster_is_fixed_for_a_run_and_the_own_weight_is_logged(honest, tmp_path):
    order = first_order(honest)
    roster = dict(order.terms.roster)
    assert roster["a"][0] == 10
    site = fresh_site(honest, tmp_path)
    for other in (11, 9, 1):  # the number of steps depends on it
        more = {**roster, "a": (other, roster["a"][1])}
        assert f"has 10 training samples, but the server's roster says {other}" in refusal(
            site, of(order, roster=more)
        )
    assert "a whole number above 0" in refusal(
        site, of(order, roster={**roster, "b": (0.5, roster["b"][1])})
    )
    assert "weights with the sum 1.1" in refusal(
        site, of(order, roster={**roster, "a": (10, roster["a"][1] + 0.1)})
    )
    small = {"a": (10, 1e-4), "b": (23, 0.5), "c": (37, 0.4999)}
    assert "by 1/(N·q) = 3333, above the limit 1000 (max_scale" in refusal(
        site, of(order, roster=small)
    )
    assert lines(site)[0]["kind"] != "run"  # a refused roster counts as no run
    capped = {"a": (10, 0.1), "b": (23, 0.4), "c": (37, 0.5)}
    assert "error" not in ask(site, of(order, roster=capped))[0]
    run = next(line for line in lines(site) if line["kind"] == "run")
    assert run["samples"] == {"own": 10, "roster": 10}
    assert run["weight"]["roster"] == 0.1
    later = of(order, round=1, turn=1, x=order.download.x + 1)
    assert "another roster" in refusal(site, later)
    assert "error" not in ask(site, of(later, roster=capped))[0]


def lines(site):
    return [json.loads(line) for line in site.audit.path.read_text().splitlines()]


def test_evaluations_are_those_of_the_experiment(honest, tmp_path):
    site = fresh_site(honest, tmp_path, ONLY_HONEST)
    order = parse_evaluation_order(*decode(asked(honest, "evaluate")[0][0], 10**9))
    assert (order.round, order.model) == (0, "server")
    assert "does not evaluate the model 'cohort'" in refusal(site, of(order, model="cohort"))
    assert "evaluates nothing after round 4" in refusal(site, of(order, round=4))
    values, _ = ask(site, order)
    assert values["metrics"].keys() >= {"train_loss", "test_accuracy"}
    last = lines(site)[-1]
    assert last["sent"]["metrics"] == values["metrics"] and last["round"] == 0
    for number in range(5):
        assert "already" in refusal(site, of(order, x=order.x + number + 1))
        assert "max_attempts" in refusal(site, of(order, x=order.x + number + 1, attempt=2))
    rarely = honest.experiment.with_settings({"evaluation.every": 2})
    sparse = Site(rarely, "a", tmp_path / "rarely")
    assert "evaluates nothing after round 1" in refusal(sparse, of(order, round=1))


def test_launches_of_asynchronous_training_follow_the_rounds(tmp_path):
    file = app(tmp_path / "app", ["FedAsync"])
    transport = InProcess(file, tmp_path / "state")
    (outcome,) = deployed(file, tmp_path / "out", transport, rounds=3)
    assert outcome.status == "finished"
    order = first_order(transport, "FedAsync")
    site = fresh_site(transport, tmp_path / "fresh", Limits(max_attempts=0))
    assert "does not belong to round 1" in refusal(site, of(order, turn=6))
    assert "does not belong to round 2" in refusal(site, of(order, round=1, turn=2))
    answered = [
        turn
        for turn in range(20)
        for round in range(3)
        if "error" not in ask(site, of(order, round=round, turn=turn, x=order.download.x + turn))[0]
    ]
    assert len(answered) == len(set(answered)) <= 9 + 3
    assert "already" in refusal(site, of(order, turn=0, x=order.download.x - 1))
    # A resumed server has launches done again with another model, as often as the site allows.
    again = of(order, turn=0, x=order.download.x - 1, attempt=2)
    assert "max_attempts" in refusal(site, again)
    lenient = fresh_site(transport, tmp_path / "fresh", Limits(max_attempts=1, max_repeats=1))
    assert "error" not in ask(lenient, again)[0]
    assert "max_repeats" in refusal(lenient, of(again, turn=1))


# The site's own limits


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"min_batch": 6}, "5 samples in a batch, below the limit 6 (min_batch"),
        ({"min_samples": 11}, "10 different samples, below the limit 11 (min_samples"),
        ({"max_steps": 1}, "2 steps, above the limit 1 (max_steps"),
        ({"methods": ["SCAFFOLD"]}, "does not take part in 'FedAvg': see methods"),
    ],
)
def test_a_site_refuses_what_its_limits_exclude(honest, tmp_path, limit, sentence):
    site = fresh_site(honest, tmp_path, Limits(**limit))
    assert sentence in refusal(site, first_order(honest))


def test_orders_are_counted_by_run_and_by_hour(honest, tmp_path):
    order = first_order(honest)
    for number, limits in enumerate((Limits(max_orders_per_run=2), Limits(max_orders_per_hour=2))):
        for round in (0, 1):
            site = fresh_site(honest, tmp_path / str(number), limits)  # also by a new process
            assert "error" not in ask(site, of(order, round=round, turn=round))[0]
        assert "has had 2 orders" in refusal(site, of(order, round=2, turn=2))


def test_a_clock_that_is_set_changes_no_count_of_orders(honest, tmp_path, monkeypatch):
    """Neither ahead, which would let a server ask again, nor back, which would silence the site."""
    order, real = first_order(honest), time.time
    site = fresh_site(honest, tmp_path, Limits(max_orders_per_hour=2))
    for round, offset in ((0, 0), (1, -(10**6))):
        monkeypatch.setattr("undrift.deploy.policy.ledger.time.time", lambda by=offset: real() + by)
        assert "error" not in ask(site, of(order, round=round, turn=round))[0]
    monkeypatch.setattr("undrift.deploy.policy.ledger.time.time", lambda: real() + 10**6)
    assert "has had 2 orders within an hour" in refusal(site, of(order, round=2, turn=2))
    steady = time.monotonic
    monkeypatch.setattr(
        "undrift.deploy.policy.ledger.time.monotonic", lambda: steady() + HOUR_SECONDS
    )
    assert "error" not in ask(site, of(order, round=2, turn=2))[0]


def test_endless_work_is_refused_before_it_begins(tmp_path):
    file = app(tmp_path / "app")
    text = file.read_text().replace("epochs = 1", f"steps = {10**15}")
    file.write_text(text)
    transport = InProcess(file, tmp_path / "state")
    said = r"'a', 'b', 'c': .* above the limit 1000000 \(max_steps"
    with pytest.raises(UndriftError, match=said):
        deployed(file, tmp_path / "out", transport, rounds=1)


def test_work_that_takes_too_long_is_ended(tmp_path):
    file = app(tmp_path / "app")
    site = tmp_path / "app" / "site.py"
    slow = "import time\n\n\nclass Slow(nn.Module):\n    def forward(self, x):\n"
    slow += "        time.sleep(0.05 if self.training else 0)\n        return x\n"
    site.write_text(site.read_text().replace("nn.Sequential(", "nn.Sequential(Slow(), ") + slow)
    file.write_text(file.read_text().replace("epochs = 1", "steps = 100000"))
    transport = InProcess(file, tmp_path / "state")
    transport.limits = Limits(max_seconds=0.3)
    said = r"'b' ended the work: it took longer than 0.3 s, its limit max_seconds"
    with pytest.raises(UndriftError, match=said):
        deployed(file, tmp_path / "out", transport, rounds=1)
    last = [line for line in lines(transport.made("b")) if line["kind"] == "work"][-1]
    assert last["decision"] == "failed" and "max_seconds" in last["reason"]


def test_steps_cut_by_a_deadline_are_the_same_when_the_order_is_repeated(tmp_path, monkeypatch):
    file = app(tmp_path / "app", text='pace = {kind = "deadline", seconds = 5}\n')
    transport = InProcess(file, tmp_path / "state")
    monkeypatch.setattr("undrift.deploy.site.COMPUTING_SHARE", 1e-9)
    deployed(file, tmp_path / "out", transport, rounds=1)
    request, answer = asked(transport, "work", "c")[0]
    assert decode(answer, 10**9)[0]["steps"] == 1
    monkeypatch.setattr("undrift.deploy.site.COMPUTING_SHARE", 0.7)
    transport.restart("c")
    assert transport.made("c").answer(request) == answer


def test_a_secret_of_the_site_decides_the_order_of_its_batches(honest, tmp_path):
    order = first_order(honest)
    plain = ask(fresh_site(honest, tmp_path / "plain"), order)[1]["up moved"]
    found = []
    for number, secret in enumerate((b"1" * 16, b"2" * 16, b"1" * 16)):
        (tmp_path / "secret").write_bytes(secret)
        limits = Limits(secret=str(tmp_path / "secret"))
        site = fresh_site(honest, tmp_path / str(number), limits)
        values, tensors = ask(site, order)
        assert values["steps"] == 2
        found.append(tensors["up moved"])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[0], plain)


def test_the_file_of_limits_is_checked_as_a_whole(tmp_path, honest):
    file = tmp_path / "site.toml"
    for text, sentence in {
        "min_samples = 0": "min_samples is 0, but must be a whole number of at least 1",
        "max_seconds = -1": "max_seconds is -1, but must be above 0",
        "max_step = 5": "did you mean 'max_steps'",
        'secret = "nothing"': "cannot be read",
        'methods = "FedAvg"': "methods is 'FedAvg', but must be a list of labels",
        "=": "is not TOML",
    }.items():
        file.write_text(text)
        with pytest.raises(UndriftError, match=r"site\.toml|nothing") as error:
            Limits.beside(tmp_path / "experiment.toml")
        assert sentence in str(error.value)
    file.write_text('methods = ["FedNova"]\nmax_runs = 3\n')
    with pytest.raises(UndriftError, match=r"One of methods in site\.toml is 'FedNova'"):
        fresh_site(honest, tmp_path / "state", Limits.load(file))
    Limits.load(file).write(tmp_path / "copy.toml")
    assert Limits.load(tmp_path / "copy.toml") == Limits.load(file)


def test_a_request_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    site = Site(Experiment.load(app(tmp_path / "app")), "a", tmp_path / "state")
    request = encode({"kind": "identify"}, {"x": torch.zeros(100)})
    monkeypatch.setattr("undrift.deploy.site.MAX_REQUEST_BYTES", len(request) - 1)
    assert "the limit is" in decode(site.answer(request), 10**6)[0]["error"]


def test_the_guide_shows_every_limit_with_its_default(tmp_path):
    (block,) = [each for each in blocks(DOCS / "deploy.md") if each.file == "site.toml"]
    (tmp_path / "batches.key").write_bytes(b"0123456789abcdef")
    (tmp_path / "site.toml").write_text(block.code)
    shown = Limits.load(tmp_path / "site.toml")
    assert shown.model_fields_set == set(Limits.model_fields)
    for line in block.code.splitlines():
        name = line.partition(" = ")[0]
        if "default " in line:
            assert float(line.rpartition("default ")[2].rstrip(")")) == getattr(Limits(), name)


# Files


def test_a_line_cut_by_a_crash_is_dropped_and_other_damage_is_named(honest, tmp_path):
    order = first_order(honest)
    assert "error" not in ask(fresh_site(honest, tmp_path), order)[0]
    ledger = tmp_path / "a" / "ledger.jsonl"
    whole = ledger.read_bytes()
    first = whole.index(b"\n") + 1
    ledger.write_bytes(whole[:-5])  # killed while the line was written: the order was not begun
    other = of(order, x=order.download.x + 1)
    assert "error" not in ask(fresh_site(honest, tmp_path), other)[0]
    assert "already" in refusal(fresh_site(honest, tmp_path), order)
    changed = whole.replace(b'"approved":true', b'"approved":false')  # a line as the site writes it
    assert changed != whole
    for damaged in (whole[:20] + b"#" + whole[21:], changed):
        ledger.write_bytes(damaged)
        with pytest.raises(UndriftError, match="is damaged at line 1"):
            fresh_site(honest, tmp_path)
    assert first < len(whole)


def test_a_flood_of_refused_requests_is_counted_and_fills_no_disk(honest, tmp_path):
    site, order = fresh_site(honest, tmp_path), first_order(honest)
    for number in range(600):
        site.answer(encode({"kind": "work", "run": "x" * 10000 * (number % 2)}, {}))
    assert site.audit.counts() == {"work refused": 600}
    assert site.audit.path.stat().st_size < 200_000
    assert "error" not in ask(site, order)[0]
    done = lines(site)[-1]
    assert done["decision"] == "done"  # accepted orders always have a line
    assert sum(line.get("unwritten_before", 0) for line in lines(site)) == 400
    assert fresh_site(honest, tmp_path).audit.counts()["work refused"] == 600


def test_the_audit_log_says_what_was_computed_and_sent_but_not_the_values(honest):
    work = [line for line in lines(honest.made("b")) if line["kind"] == "work"]
    done = [line for line in work if line["decision"] == "done"]
    assert [(line["method"], line["round"]) for line in done] == [
        (label, round) for label in METHODS for round in (1, 2, 3)
    ]
    last = done[-1]
    assert last["computed"].keys() == {"steps", "gradients", "seconds"}
    assert last["sent"]["tensors"]["c_change"].keys() == {"shape", "type", "bytes", "norm"}
    answer = asked(honest, "work", "b")[-1][1]
    assert last["sent"]["bytes"] == len(answer)
    moved = decode(answer, 10**9)[1]["up moved"]
    assert last["sent"]["tensors"]["moved"]["norm"] == pytest.approx(float(moved.double().norm()))
    assert "[0." not in json.dumps(last["sent"]["tensors"])


# People


def test_a_person_is_asked_once_per_run_and_the_answer_is_kept(honest, tmp_path):
    order, shown, answers = first_order(honest), [], ["yes", "no"]

    def site():
        ask_person = asking(honest.experiment, "a", shown.append, lambda question: answers.pop(0))
        return fresh_site(honest, tmp_path, approve=ask_person)

    assert "error" not in ask(site(), order)[0]
    assert "error" not in ask(site(), of(order, round=1, turn=1))[0]
    text = "\n".join(shown)
    assert "rounds: 3" in text and "sends moved (all parameters)" in text and "train_" not in text
    other = of(order, run="another run\x1b[2J\r\nseen by nobody")
    assert "a person there declined it" in refusal(site(), other)
    assert "a person there declined it" in refusal(site(), other)
    assert not answers
    assert "run another run seen by nobody:" in "\n".join(shown)


def test_a_dry_run_shows_what_the_first_round_sends(honest, tmp_path):
    file = honest.file
    (file.parent / "site.toml").write_text("max_runs = 7\n")
    shown = called("deploy", "site", str(file.parent), "--site", "a", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "up moved: 53 float32, 212 bytes, norm" in shown.stdout
    assert "Nothing was sent." in shown.stdout and "test_accuracy" in shown.stdout
    sent = decode((tmp_path / "dry-run-a" / "FedAvg.safetensors").read_bytes(), 10**9)
    values, tensors = decode(asked(honest, "work")[0][1], 10**9)
    for name in ("client", "version", "steps", "evaluations", "numbers"):
        assert sent[0][name] == values[name]
    assert sent[1].keys() == tensors.keys()
    assert all(torch.equal(sent[1][name], value) for name, value in tensors.items())
    as_json = called(
        "deploy", "site", str(file.parent), "--site", "a", "--dry-run", "--json", cwd=tmp_path
    )
    first = json.loads(as_json.stdout)[0]
    assert first["tensors"]["up moved"] == pytest.approx(tensors["up moved"].tolist())
    (file.parent / "site.toml").unlink()


def test_sites_derive_what_depends_on_the_cohort(tmp_path):
    """Cohorts, slow clients and the smallest number of steps are drawn by the sites themselves."""
    text = (
        'sampling = {kind = "uniform", cohort = 2}\nlimit = {share = 0.5}\nobjective = "clients"\n'
    )
    file = app(tmp_path / "app", ["FedAvg", "FedAvgMin"], text=text)
    file.write_text(file.read_text().replace("epochs = 1", "epochs = 3"))
    simulated(file, tmp_path / "simulated")
    deployed(file, tmp_path / "deployed")
    for label in ("FedAvg", "FedAvgMin"):
        assert_same(tmp_path / "simulated", tmp_path / "deployed", label)
        assert not any(record["rejected"] for record in records(tmp_path / "deployed", label))


def test_a_site_with_other_settings_than_its_server_says_which(tmp_path):
    file, other = app(tmp_path / "app"), app(tmp_path / "other")
    for text, sentence in {
        "rounds = 9\n": "rounds is 9 here and 5 at the server",
        'objective = "clients"\n': "objective is 'clients' here and 'samples' at the server",
        "sampling = {cohort = 2}\n": "sampling.cohort is 2 here and not set at the server",
        "evaluation = {every = 2}\n": "evaluation.every is 2 here and not set at the server",
    }.items():
        plain = file.read_text()
        base = plain.replace("rounds = 5\n", "") if text.startswith("rounds") else plain
        other.write_text(text + base)
        transport = InProcess(other, tmp_path / "state")
        with pytest.raises(UndriftError, match=sentence):
            serve(Experiment.load(file), tmp_path / f"out-{len(text)}", transport)
