"""What one dishonest site can do to a run: be rejected, named and expelled, and nothing else."""

import json
import math
import random
from contextlib import nullcontext, suppress

import pytest
import torch

from commands import called
from deployments import InProcess, app
from test_deploy import assert_same, deployed, model, records
from undrift.core.losses import objective_weights
from undrift.core.uploads.norm_bounds import NormBound
from undrift.deploy.guards.claims import counted_samples, largest_count
from undrift.deploy.guards.expulsions import expel
from undrift.deploy.protocol import OVERHEAD_BYTES
from undrift.deploy.server import serve
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.experiment import Experiment
from undrift.experiments.tables import DeployTable
from undrift.report import write_report
from undrift.runs.driver import SilentObserver
from undrift.utils.errors import UndriftError
from undrift.utils.plain_text import plain_text

ONE = "sampling = {cohort = 1}\n"
HUGE = 2**53 - 1


def dishonest(file, state, kind, change, sites=("b",)):
    """A transport in which `change` edits the values and tensors of some sites' answers."""
    transport = InProcess(file, state)

    def spoil(site, request, answer):
        asked = decode(request, 10**9)[0]
        if asked["kind"] != kind or site not in sites:
            return answer
        values, tensors = decode(answer, 10**9)
        change(values, tensors)
        return encode(values, tensors)

    transport.spoil = spoil
    return transport


def rejected(out, label="FedAvg"):
    """Every rejected reply as (round, site, reason)."""
    return [(r["round"], *each) for r in records(out, label) for each in r["rejected"]]


def claims(**numbers):
    return lambda values, tensors: values["samples"].update(numbers)


# A reply that says that it failed


@pytest.mark.parametrize("label", ["FedAvg", "FedBuff"])
def test_a_site_that_says_its_training_failed_does_not_end_the_run(tmp_path, label):
    file = app(tmp_path / "app", [label], text=ONE)
    failing = dishonest(
        file, tmp_path / "s", "work", lambda v, t: (v.update(wrong="No."), t.clear())
    )
    (outcome,) = deployed(file, tmp_path / "out", failing, rounds=12 if label == "FedAvg" else 25)
    assert outcome.status == "finished"
    found = rejected(tmp_path / "out", label)
    assert found and all(each[1:] == ("b", "its training failed: No.") for each in found)
    last = records(tmp_path / "out", label)
    assert sum(record["updates"] for record in last) > 0
    assert last[-1]["metrics"]["train_loss"] < last[0]["metrics"]["train_loss"]


@pytest.mark.parametrize("label", ["FedAvg", "FedBuff"])
def test_a_run_has_diverged_only_if_the_training_of_most_sites_fails(tmp_path, label):
    file = app(tmp_path / "app", [label])

    def fail(values, tensors):
        values["wrong"] = "moved is not finite (NaN or Inf)"
        tensors.clear()

    everyone = dishonest(file, tmp_path / "s", "work", fail, ("a", "b", "c"))
    (outcome,) = deployed(file, tmp_path / "out", everyone, rounds=30)
    assert outcome.status == "diverged" and "moved is not finite" in outcome.reason
    alone = dishonest(file, tmp_path / "t", "work", fail)
    alone.away = {"a", "c"}
    describe = InProcess(file, tmp_path / "t")
    other = tmp_path / "other"
    deployed(file, other, describe, rounds=1)
    for each in (alone, describe):
        each.configure(rounds=30)
    with pytest.raises(UndriftError, match="undrift resume continues from round"):
        # Not "diverged": the run is resumed when the others are back.
        serve(Experiment.load(file, {"rounds": 30}), other, _known(alone, describe), extend=True)
    status = json.loads((other / label / "seed-3" / "run.json").read_text())["status"]
    assert status != "diverged"
    (outcome,) = serve(Experiment.load(file, {"rounds": 30}), other, describe, extend=True)
    assert outcome.status == "finished"


def _known(transport, before):
    """The transport, whose sites seem to be there until the run has begun again."""
    away, transport.away = transport.away, set()
    send = transport.send

    def leave(*arguments):
        transport.away = away
        return send(*arguments)

    transport.send = leave
    return transport


# Claims


def test_a_claim_far_beyond_the_others_is_refused_before_the_run(tmp_path):
    file = app(tmp_path / "app")
    for part in ("train", "test"):
        lying = dishonest(file, tmp_path / "s", "describe", claims(**{part: HUGE}))
        with pytest.raises(UndriftError, match=rf"site 'b' claims {HUGE} {part} samples, .*median"):
            deployed(file, tmp_path / "out", lying)
    assert not (tmp_path / "out" / "deployment.json").exists()


@pytest.mark.parametrize(
    ("setting", "share"),
    [("max_weight = 0.5", 0.5), ("max_samples = 40", 40 / 87), ("samples = {b = 13}", 13 / 60)],
)
def test_the_operator_caps_or_fixes_what_a_site_counts(tmp_path, setting, share):
    file = app(tmp_path / "app")
    file.write_text(file.read_text().replace("timeout = 60", f"timeout = 60\n{setting}"))
    told = []

    class Told(SilentObserver):
        def note(self, text, values):
            told.append((text, values))

    # As many steps as its own data give: the claim is about the weight.
    lying = dishonest(file, tmp_path / "s", "describe", claims(train=HUGE))
    experiment = Experiment.load(file, {"rounds": 2, "local.steps": 4, "local.epochs": "none"})
    lying.experiment = experiment
    lying.made("b")._gate._samples = HUGE  # it is the site that lies, not the network
    serve(experiment, tmp_path / "out", lying, Told())
    kept = json.loads((tmp_path / "out" / "deployment.json").read_text())
    assert kept["samples"]["b"]["train"] == HUGE
    counted = {site: own["train"] for site, own in kept["counted"].items()}
    weight = counted["b"] / sum(counted.values())
    assert weight == pytest.approx(share, abs=0.01) and counted["a"] == 10
    ((text, values),) = [each for each in told if each[1]["site"] == "b"]
    assert f"claims {HUGE:,} train (counted as {counted['b']:,})" in text
    assert values["capped"] and values["weight"] == pytest.approx(weight)
    # The run is that of an honest site with as many samples as counted.
    file = app(tmp_path / "honest")
    honest = dishonest(file, tmp_path / "h", "describe", claims(train=counted["b"]))
    experiment = Experiment.load(file, {"rounds": 2, "local.steps": 4, "local.epochs": "none"})
    honest.experiment = experiment
    honest.made("b")._gate._samples = counted["b"]
    serve(experiment, tmp_path / "same", honest)
    assert_same(tmp_path / "same", tmp_path / "out", "FedAvg", tolerance=0)
    mine, same = records(tmp_path / "out")[-1]["metrics"], records(tmp_path / "same")[-1]["metrics"]
    assert mine == pytest.approx(same)


def test_buffers_and_metrics_count_capped_samples(tmp_path):
    file = app(tmp_path / "app")
    site = tmp_path / "app" / "site.py"
    site.write_text(site.read_text().replace("nn.Tanh()", "nn.BatchNorm1d(5)"))
    file.write_text(file.read_text().replace("timeout = 60", "timeout = 60\nmax_samples = 20"))
    lying = dishonest(file, tmp_path / "s", "describe", claims(train=10**15, test=10**15), ("b",))
    steps = {"rounds": 1, "local.steps": 4, "local.epochs": "none"}
    lying.experiment = Experiment.load(file, steps)
    spoil = lying.spoil

    def lie(name, request, answer):
        if decode(request, 10**9)[0]["kind"] != "evaluate" or name != "b":
            return spoil(name, request, answer)
        values, _ = decode(answer, 10**9)
        values["metrics"]["test_accuracy"] = 1.0
        return encode(values, {})

    lying.spoil = lie
    lying.made("b")._gate._samples = 10**15
    serve(lying.experiment, tmp_path / "out", lying)
    honest = dishonest(file, tmp_path / "h", "describe", claims(train=20, test=20))
    honest.experiment = lying.experiment
    honest.made("b")._gate._samples = 20
    serve(lying.experiment, tmp_path / "same", honest)
    assert "1.running_mean" in model(tmp_path / "same", "FedAvg")
    assert_same(tmp_path / "same", tmp_path / "out", "FedAvg", tolerance=0)
    found = records(tmp_path / "out")[-1]["metrics"]
    assert found["test_accuracy"] < 0.99  # 20 of 40 test samples, not 1e15 of 1e15 + 20


def test_shares_are_capped_exactly_also_if_several_sites_exceed_them():
    draw = random.Random(1)
    for _ in range(300):
        numbers = [draw.choice([1, 5, 40, 10**6, HUGE]) for _ in range(draw.randint(2, 9))]
        share = draw.uniform(1 / len(numbers), 1)
        most = largest_count(numbers, share)
        capped = [min(number, most) for number in numbers]
        assert max(capped) <= share * sum(capped) * (1 + 1e-9)
        if most < max(numbers):  # and no larger cap would do
            larger = [min(number, most + 1) for number in numbers]
            assert max(larger) > share * sum(larger) * (1 - 1e-6) or most >= 10**14
    assert largest_count([10, 20, 30], 1) >= 30
    with pytest.raises(UndriftError, match=r"max_weight is 0\.2"):
        largest_count([1, 1, 1], 0.2)


def test_honest_numbers_are_counted_as_they_are():
    samples = {"a": {"train": 10, "test": 3}, "b": {"train": 9999, "test": 900}}
    assert counted_samples(samples, DeployTable()) == samples
    with pytest.raises(UndriftError, match=r"A site in deploy\.samples"):
        counted_samples(samples, DeployTable(samples={"c": 3}))
    weights = objective_weights(torch.tensor([10, 9999]), "samples")
    assert weights.tolist() == [10 / 10009, 9999 / 10009]


# Targets


@pytest.mark.parametrize(
    ("target", "metrics"),
    [
        ("test_accuracy = 0.95", {"test_accuracy": 1.0}),
        ("test_loss = 0.01", {"test_loss": -1e300}),
        ("objective = 0.01", {"train_loss": -1e300}),
    ],
)
def test_one_site_alone_cannot_reach_a_target(tmp_path, target, metrics):
    file = app(tmp_path / "app", text=f"target = {{{target}}}\n")
    file.write_text(file.read_text().replace("timeout = 60", "timeout = 60\nmax_weight = 1"))
    lying = dishonest(file, tmp_path / "s", "describe", claims(test=HUGE))
    spoil = lying.spoil

    def lie(site, request, answer):
        values, tensors = decode(spoil(site, request, answer), 10**9)
        if site == "b" and "metrics" in values:
            values["metrics"].update(metrics)
        return encode(values, tensors)

    lying.spoil = lie
    (outcome,) = deployed(file, tmp_path / "out", lying, rounds=2)
    assert (outcome.status, outcome.reason) == ("finished", None)


def test_targets_that_the_sites_reach_end_the_run(tmp_path):
    for number, target in enumerate(("test_accuracy = 0.01", "objective = 5", "train_loss = 5")):
        file = app(tmp_path / f"app{number}", text=f"target = {{{target}}}\n")
        (outcome,) = deployed(file, tmp_path / f"out{number}")
        assert outcome.status == "stopped" and len(records(tmp_path / f"out{number}")) == 1


def test_metrics_that_nobody_can_compute_end_nothing(tmp_path):
    file = app(tmp_path / "app", text="target = {test_accuracy = 0.9}\n")

    def undefined(values, tensors):
        values["metrics"] = dict.fromkeys(values["metrics"])

    blind = dishonest(file, tmp_path / "s", "evaluate", undefined, ("a", "b", "c"))
    (outcome,) = deployed(file, tmp_path / "out", blind, rounds=2)
    assert outcome.status == "finished"
    assert math.isnan(float(records(tmp_path / "out")[-1]["metrics"]["train_loss"]))
    site = tmp_path / "app" / "site.py"  # and a model whose loss is infinite
    site.write_text(site.read_text().replace("x = torch.randn", "x = 1e37 * torch.randn"))
    deployed(file, tmp_path / "infinite", rounds=1)


# Norms


@pytest.mark.parametrize("label", ["FedAvg", "SCAFFOLD", "FedDR", "FedPD", "FedAsync", "FedLGA"])
@pytest.mark.parametrize("cohort", [1, 3])
def test_a_huge_update_is_rejected_and_named(tmp_path, label, cohort):
    if label == "FedPD" and cohort == 1:
        pytest.skip("it needs every site")
    text = 'objective = "clients"\n' + (ONE if cohort == 1 else "")
    file = app(tmp_path / "app", [label], text=text)

    def blow_up(values, tensors):
        for name, value in tensors.items():
            if name.startswith("up ") and not name.startswith("up @"):
                value.fill_(3e38)

    wild = dishonest(file, tmp_path / "s", "work", blow_up)
    (outcome,) = deployed(file, tmp_path / "out", wild, rounds=6)
    assert outcome.status == "finished"
    found = rejected(tmp_path / "out", label)
    assert found and {site for _, site, _ in found} == {"b"}
    assert all(why.startswith("norm bound: ") and "has norm " in why for _, _, why in found)
    weights = torch.cat([value.flatten() for value in model(tmp_path / "out", label).values()])
    assert weights.abs().max() < 100
    if label != "FedPD":  # which changes nothing without everyone
        assert any(record["updates"] for record in records(tmp_path / "out", label))


def test_an_upload_may_have_the_bytes_of_its_tensors_and_little_more(tmp_path):
    """The transport is told the limit, and the server keeps it also if the transport does not."""
    file = app(tmp_path / "app", ["SCAFFOLD"], text="evaluation = {every = 100}\n")

    def pad(values, tensors):
        tensors["more"] = torch.zeros(OVERHEAD_BYTES, dtype=torch.uint8)

    transport = dishonest(file, tmp_path / "state", "work", pad)
    honest, allowed = transport.send, []

    def send(site, request, seconds, max_bytes):
        if decode(request, 10**9)[0]["kind"] == "work":
            allowed.append(max_bytes)
        return honest(site, request, seconds, max_bytes)

    transport.send = send
    deployed(file, tmp_path / "out", transport)
    # Two vectors of 53 parameters in single precision, after the last round with the move for its
    # diagnostics; the names of tensors are in the rest.
    assert set(allowed) == {vectors * 53 * 4 + OVERHEAD_BYTES for vectors in (2, 3)}
    found = rejected(tmp_path / "out", "SCAFFOLD")
    assert len(found) == 5
    assert {site for _, site, _ in found} == {"b"}
    assert all("but the limit is 1" in why for _, _, why in found), found


@pytest.mark.parametrize("number", [1e300, 1e12])
def test_an_update_that_overflows_in_the_fold_is_not_used(tmp_path, number):
    # FedNova multiplies by the mean of a number that sites upload.
    file = app(tmp_path / "app", ["FedNova"], text=ONE)

    def overflow(values, tensors):
        values["numbers"]["progress"] = number

    wild = dishonest(file, tmp_path / "s", "work", overflow, ("a", "b"))
    (outcome,) = deployed(file, tmp_path / "out", wild, rounds=8)
    assert outcome.status == "finished"
    found = rejected(tmp_path / "out", "FedNova")
    assert found and {site for _, site, _ in found} <= {"a", "b"}
    assert any(why.startswith("the update was not used: the server's") for _, _, why in found)
    assert all(v.abs().max() < 100 for v in model(tmp_path / "out", "FedNova").values())


def test_a_negative_variance_is_refused_and_named(tmp_path):
    """It is of usual size, but its square root is not a number."""
    file = app(tmp_path / "app")
    site = tmp_path / "app" / "site.py"
    site.write_text(site.read_text().replace("nn.Tanh()", "nn.BatchNorm1d(5)"))

    def below_zero(values, tensors):
        tensors["buffers 1.running_var"].fill_(-0.5)

    wild = dishonest(file, tmp_path / "s", "work", below_zero)
    (outcome,) = deployed(file, tmp_path / "out", wild, rounds=3)
    assert outcome.status == "finished"
    assert {(site, why) for _, site, why in rejected(tmp_path / "out")} == {
        ("b", "refused: the variance '1.running_var' is negative")
    }
    assert (model(tmp_path / "out", "FedAvg")["1.running_var"] > 0).all()
    assert math.isfinite(records(tmp_path / "out")[-1]["metrics"]["test_loss"])


@pytest.mark.parametrize(
    ("text", "deployed", "simulated"),
    [
        ("", NormBound(10.0, 10), None),
        ("robust = {norm_window = 4}\n", NormBound(10.0, 4), NormBound(10.0, 4)),
        ("robust = {norm_ratio = 3}\n", NormBound(3.0, 10), NormBound(3.0, 10)),
        ('robust = {statistic = "median"}\n', NormBound(10.0, 10), None),
    ],
)
def test_deployments_bound_norms_by_ten_times_the_median_unless_the_file_says_otherwise(
    tmp_path, text, deployed, simulated
):
    experiment = Experiment.load(app(tmp_path, text=text))
    assert experiment.norm_bound(deployed=True) == deployed
    assert experiment.norm_bound(deployed=False) == simulated
    assert NormBound() == NormBound(10.0, 10)


def test_the_bound_can_be_turned_off_or_changed(tmp_path):
    file = app(tmp_path / "app", text="robust = {norm_ratio = 0}\n")
    wild = dishonest(file, tmp_path / "s", "work", lambda v, t: t["up moved"].fill_(1e6))
    deployed(file, tmp_path / "out", wild, rounds=1)
    assert not rejected(tmp_path / "out")
    assert all(value.abs().max() > 1e5 for value in model(tmp_path / "out", "FedAvg").values())
    assert Experiment.load(file).norm_bound(deployed=True) is None
    other = Experiment.load(file, {"robust.norm_ratio": 3, "robust.norm_window": 5})
    assert (other.norm_bound().ratio, other.norm_bound().window) == (3, 5)
    with pytest.raises(UndriftError, match=r"robust.norm_ratio is 0.5, but must be at least 1"):
        Experiment.load(file, {"robust.norm_ratio": 0.5})


# Expulsion


def expelling(file, state, out, when, **options):
    """A transport during whose round `when` the operator expels site b."""
    transport = InProcess(file, state, **options)
    transport.revoked = []
    transport.revoke = transport.revoked.append
    send = transport.send

    def sending(site, request, seconds, max_bytes):
        if decode(request, 10**9)[0].get("version") == when and site == "c":
            expel(out, "b")
        return send(site, request, seconds, max_bytes)

    transport.send = sending
    return transport


@pytest.mark.parametrize("label", ["FedAvg", "SCAFFOLD", "FedBuff"])
def test_a_site_is_expelled_during_a_run_and_stays_so(tmp_path, label):
    file, out = app(tmp_path / "app", [label]), tmp_path / "out"
    # Asynchronous work is numbered by launches, of which there are three in a round.
    transport = expelling(file, tmp_path / "s", out, when=6 if label == "FedBuff" else 3)
    (outcome,) = deployed(file, out, transport, rounds=6)
    assert outcome.status == "finished" and transport.revoked == ["b"]
    found = records(out, label)
    took_part = ["b" in r["cohort"] and not any("b" in each for each in r["lost"]) for r in found]
    assert took_part[1] and not any(took_part[4:])
    assert found[1]["expelled"] == [] and found[-1]["expelled"] == ["b"]
    asked = len([site for site in transport.asked if site == "b"])
    again = InProcess(file, tmp_path / "s")
    again.configure(rounds=9)
    serve(Experiment.load(file, {"rounds": 9}), out, again, extend=True)
    assert "b" not in again.asked and asked
    assert [r["expelled"] for r in records(out, label)][-3:] == [["b"]] * 3
    assert expel(out, "b", undo=True) and not expel(out, "b", undo=True)
    back = InProcess(file, tmp_path / "s")
    back.configure(rounds=12)
    serve(Experiment.load(file, {"rounds": 12}), out, back, extend=True)
    assert "b" in back.asked and records(out, label)[-1]["expelled"] == []


def test_the_answer_of_a_site_expelled_meanwhile_is_not_used(tmp_path):
    file, out = app(tmp_path / "app"), tmp_path / "out"
    deployed(file, out, expelling(file, tmp_path / "s", out, when=2), rounds=3)
    assert records(out)[2]["lost"] == [["b", "expelled"]]


def test_a_round_does_not_wait_for_a_site_that_is_expelled(tmp_path, monkeypatch):
    monkeypatch.setattr("undrift.deploy.remote.EXPULSION_SECONDS", 0.3)
    file, out = app(tmp_path / "app"), tmp_path / "out"
    transport = expelling(file, tmp_path / "s", out, when=2)
    send = transport.send

    def hanging(site, request, seconds, max_bytes):
        transport.silent = {"b"} if decode(request, 10**9)[0].get("version") == 2 else set()
        return send(site, request, seconds, max_bytes)

    transport.send = hanging
    deployed(file, out, transport, rounds=2)
    assert records(out)[2]["lost"] == [["b", "expelled"]]


def test_a_method_that_needs_every_site_says_so_when_one_is_expelled(tmp_path):
    file, out = app(tmp_path / "app", ["FedPD"], text='objective = "clients"\n'), tmp_path / "out"
    with pytest.raises(UndriftError, match="'b' is expelled, but FedPD needs every site in round"):
        deployed(file, out, expelling(file, tmp_path / "s", out, when=2))
    expel(out, "b", undo=True)
    (outcome,) = deployed(file, out, InProcess(file, tmp_path / "s"))
    assert outcome.status == "finished"


def test_only_known_sites_of_a_run_are_expelled(tmp_path):
    file = app(tmp_path / "app")
    with pytest.raises(UndriftError, match="is not the folder of a deployment"):
        expel(tmp_path / "nothing", "b")
    deployed(file, tmp_path / "out", rounds=1)
    with pytest.raises(UndriftError, match="The site is 'd', but must be one of 'a', 'b', 'c'"):
        expel(tmp_path / "out", "d")
    for site in "abc":
        expel(tmp_path / "out", site)
    with pytest.raises(UndriftError, match="All sites are expelled"):
        serve(
            Experiment.load(file, {"rounds": 2}),
            tmp_path / "out",
            InProcess(file, tmp_path / "s"),
            extend=True,
        )


# Whatever a site says

JUNK = [None, True, -1, 0, 2**63, HUGE, 1e308, -1e308, "x", "\x1b[31mred\x1b]0;t\x07", [], {}]
JUNK += [[1] * 5000, {"a": {"b": 1}}, ["w"] * 3, "a" * 5000, [["deep"]], "\u202eevil", "\x9b1m"]


@pytest.mark.parametrize("kind", ["describe", "evaluate", "work"])
def test_any_description_or_answer_gives_a_sentence_or_a_record(tmp_path, kind):
    draw = random.Random(kind)
    file = app(tmp_path / "app")

    def garble(values, tensors):
        for _ in range(draw.randint(1, 3)):
            inner = [v for v in values.values() if isinstance(v, dict) and v]
            place = draw.choice([values, *inner])
            name = draw.choice([*place, "error", "more"])
            if draw.random() < 0.2:
                place.pop(name, None)
            else:
                place[name] = draw.choice(JUNK)

    for number in range(25):
        out = tmp_path / f"out{number}"
        # Sites with a new state: a site takes part in 20 runs at most.
        garbling = dishonest(file, tmp_path / f"s{number}", kind, garble)
        said = []
        with suppress(UndriftError) if kind == "describe" else nullcontext():
            try:
                deployed(file, out, garbling, rounds=1)
                said = [why for _, _, why in rejected(out)]
            except UndriftError as error:
                said = [str(error)]
                raise
            finally:
                assert all(why.isprintable() and len(why) < 1500 for why in said)


def test_a_description_without_its_buffers_is_refused_in_a_sentence(tmp_path):
    file = app(tmp_path / "app")
    forgetful = dishonest(file, tmp_path / "s", "describe", lambda v, t: v.pop("moving"))
    with pytest.raises(UndriftError, match="'b' did not send the size and the buffers"):
        deployed(file, tmp_path / "out", forgetful)


@pytest.mark.parametrize("kind", ["describe", "evaluate", "work"])
def test_escape_sequences_of_a_site_reach_nobody(tmp_path, kind):
    file = app(tmp_path / "app")

    def paint(values, tensors):
        values["error"] = "\x1b]0;title\x07\x1b[31mred\x1b[0m\r\nand \x9b2Jmore\u202e"
        tensors.clear()

    painting = dishonest(file, tmp_path / "s", kind, paint)
    try:
        deployed(file, tmp_path / "out", painting, rounds=1)
        said = rejected(tmp_path / "out")[-1][-1]
    except UndriftError as error:
        said = str(error)
    assert said.endswith("red and more")


def test_plain_text_is_on_one_line_and_short():
    assert plain_text("a\tb\n\x00c") == "a b c"
    assert plain_text("\x1b[1;31mx\x1b(B\x1b[K") == "x"
    assert plain_text("é ü 漢") == "é ü 漢"
    assert plain_text({"a": 1}) == "{'a': 1}"
    assert len(plain_text("x" * 10**6)) == 300


# The report and the command


def test_the_report_shows_claims_rejections_and_expulsions(tmp_path):
    file, out = app(tmp_path / "app"), tmp_path / "out"
    file.write_text(file.read_text().replace("timeout = 60", "timeout = 60\nmax_samples = 30"))
    wild = dishonest(file, tmp_path / "s", "work", lambda v, t: t["up moved"].fill_(3e38))
    deployed(file, out, wild, rounds=2)
    done = called("deploy", "expel", str(out), "b", cwd=tmp_path)
    assert done.returncode == 0 and "The site 'b' is expelled." in done.stdout
    page = write_report(out, tmp_path / "report.html").read_text()
    section = page.partition('<section id="sites">')[2].partition("</section>")[0]
    assert "37 → <b>30</b>" in section and "round 2: norm bound: moved has norm" in section
    assert "expelled 20" in section
    done = called("deploy", "expel", str(out), "b", "--undo", cwd=tmp_path)
    assert done.returncode == 0 and "may take part again" in done.stdout
    for damaged in ({"samples": []}, {"samples": {"a": 3, "<b>": {"train": "x"}}, "counted": 7}):
        (out / "deployment.json").write_text(json.dumps(damaged))
        assert "<b></td>" not in write_report(out, tmp_path / "report.html").read_text()


def test_a_run_from_before_claims_were_counted_is_resumed(tmp_path):
    file, out = app(tmp_path / "app"), tmp_path / "out"
    deployed(file, out, InProcess(file, tmp_path / "s"), rounds=2)
    path = out / "deployment.json"
    known = json.loads(path.read_text())
    del known["counted"]
    path.write_text(json.dumps(known))
    again = InProcess(file, tmp_path / "s")
    again.configure(rounds=4)
    serve(Experiment.load(file, {"rounds": 4}), out, again, extend=True)
    deployed(file, tmp_path / "whole", InProcess(file, tmp_path / "t"), rounds=4)
    assert_same(tmp_path / "whole", out, "FedAvg", tolerance=0)
