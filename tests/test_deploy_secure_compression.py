"""Smaller masked uploads: words of few bits, and the same random coordinates at every site."""

import json

import numpy as np
import pytest
import torch

import undrift as ud
from deployments import SITE
from looping import synchronous
from test_deploy_secure import (
    SITES,
    SecureInProcess,
    furthest,
    models,
    refusal,
    secure_app,
)
from undrift.core.problem import Client, Keep, Upload
from undrift.core.uploads import Senders
from undrift.deploy.protocol import WORK
from undrift.deploy.server import serve
from undrift.deploy.wire_format import decode
from undrift.experiments.experiment import Experiment
from undrift.privacy.secure.fixed_point import FixedPoint
from undrift.privacy.secure.rounding import ROUNDED, RoundToWords, with_rounding
from undrift.report.recorded_runs import read_runs
from undrift.runs.experiment_runs import run_experiment
from undrift.utils.errors import UndriftError

METHODS = ("FedAvg", "SCAFFOLD", "FedDyn", "FedDR")
RANGE = 4.0
PARAMETERS = 53
QUADRATICS = ud.theory.random_quadratics(clients=5, dimension=12, seed=1)
RANDOM = 'up = {name = "random-k", ratio = 0.2, shared = true}'


def secure_text(word_bits, more=""):
    return f"secure = true\nthreshold = 3\nword_bits = {word_bits}\nrange = {RANGE}\n{more}"


def run(tmp_path, methods=METHODS, word_bits=64, up=None, rounds=5, privacy="", text=""):
    """A secure deployment in this process: its transport and its run folder."""
    compression = "" if up is None else f"\n[compression]\n{up}\n"
    file = secure_app(
        tmp_path / "app", methods, secure_text(word_bits, privacy) + compression, text
    )
    file.write_text(file.read_text().replace("rounds = 5", f"rounds = {rounds}"))
    transport = SecureInProcess(file, tmp_path / "sites")
    outcomes = serve(Experiment.load(file), tmp_path / "runs", transport)
    assert [each.status for each in outcomes] == ["finished"] * len(methods)
    return transport, tmp_path / "runs"


def simulated(transport, folder):
    plain = Experiment.load(transport.file, {"privacy": "none"})
    run_experiment(plain, folder)
    return models(folder)


@pytest.mark.parametrize("word_bits", [16, 24, 32, 64])
def test_short_words_change_a_round_by_no_more_than_the_stated_error(tmp_path, word_bits):
    """One round: the models of the deployment and the simulation differ by the rounded sums only.

    Averaging adds a sum with the factor 1; FedDyn divides it by 5 and takes it twice, as the mean
    of the moves and in h; FedDR adds it once.
    """
    transport, folder = run(tmp_path, word_bits=word_bits, rounds=1)
    error = FixedPoint.finest(5, RANGE, word_bits).error
    plain, found = simulated(transport, tmp_path / "simulated"), models(folder)
    rounding = 1e-6  # of single precision, also in the order of the sums
    for label in METHODS:
        apart = furthest({label: found[label]}, {label: plain[label]})
        assert apart <= error + rounding, label
        if word_bits == 16:
            assert apart > error / 50, label  # the bound is not far from what happens


@pytest.mark.parametrize("word_bits", [16, 24, 32, 64])
def test_masked_uploads_have_as_many_bytes_as_their_words(tmp_path, word_bits):
    transport, folder = run(tmp_path, ("FedAvg", "SCAFFOLD"), word_bits, rounds=2)
    for label, sums in (("FedAvg", 1), ("SCAFFOLD", 2)):
        (found,) = (each for each in read_runs(folder) if each.label == label)
        expected = len(SITES) * sums * PARAMETERS * word_bits // 8
        assert all(sum(record.bytes_up.values()) == expected for record in found.records[1:])
    sent = [tensors for tensors in answered(transport) if len(tensors) == 1]
    assert len(sent) == 2 * 5  # FedAvg's
    for tensors in sent:
        (tensor,) = tensors.values()
        assert tensor.numel() * tensor.element_size() == PARAMETERS * word_bits // 8
        bits = np.unpackbits(tensor.numpy().view(np.uint8))
        assert abs(bits.sum() - len(bits) / 2) < 6 * np.sqrt(len(bits)) / 2


def answered(transport):
    """The tensors of the answers to work orders."""
    for _, request, answer in transport.exchanged:
        if decode(request, 10**9)[0]["kind"] == WORK:
            yield decode(answer, 10**9)[1]


def test_random_coordinates_of_masked_uploads_give_the_results_of_a_simulation(tmp_path):
    transport, folder = run(tmp_path, up=RANDOM, rounds=3)
    assert furthest(models(folder), simulated(transport, tmp_path / "simulated")) < 1e-6
    k = ud.compression.RandomK(0.2).kept(PARAMETERS)
    assert k == 11
    assert {tensor.numel() for tensors in answered(transport) for tensor in tensors.values()} == {k}
    (first, *_) = read_runs(folder)
    assert sum(first.records[1].bytes_up.values()) == 5 * k * 8


def test_random_coordinates_in_short_words(tmp_path):
    transport, folder = run(tmp_path, word_bits=16, up=RANDOM, rounds=1)
    error = FixedPoint.finest(5, RANGE, 16).error
    assert furthest(models(folder), simulated(transport, tmp_path / "simulated")) <= error + 1e-6
    sizes = {t.numel() * t.element_size() for each in answered(transport) for t in each.values()}
    assert sizes == {22}


@pytest.mark.parametrize("up", ['up = {name = "top-k", ratio = 0.1}', 'up = "sign"', 'up = "qsgd"',
                                'up = {name = "random-k", ratio = 0.1}'])  # fmt: skip
def test_other_compressors_are_refused_with_what_is_allowed(tmp_path, up):
    with pytest.raises(UndriftError, match=r"'random-k', ratio = 0.1, shared = true.*word_bits"):
        run(tmp_path, ("FedAvg",), up=up)


def test_an_upload_that_does_not_fit_is_refused_and_never_wraps_around(tmp_path):
    text = secure_text(16).replace(f"range = {RANGE}", "range = 1e-4")
    file = secure_app(tmp_path / "app", ("FedAvg",), text)
    transport = SecureInProcess(file, tmp_path / "sites")
    with pytest.raises(UndriftError, match=r"No site takes part .* raise 'range' in \[privacy\]"):
        serve(Experiment.load(file), tmp_path / "runs", transport)
    (found,) = read_runs(tmp_path / "runs")
    assert all(record.updates == 0 for record in found.records)
    refused = dict(found.records[1].rejected)
    assert refused.keys() == set(SITES)
    assert all("raise 'range' in [privacy]" in why for why in refused.values())
    for _, request, answer in transport.exchanged:
        if decode(request, 10**9)[0]["kind"] == WORK:
            assert "range of ±0.0001" in refusal(answer)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secure = true\nword_bits = 16\n", "set range"),
        ("secure = true\nword_bits = 20\nrange = 1\n", "one of 16, 24, 32, 64"),
        ("secure = true\nword_bits = 16\nrange = 1e4\n", "words of 16 bits"),
        ("word_bits = 16\nclip = 1.0\nnoise = 1\n", "secure = true"),
        (
            'secure = true\nword_bits = 32\nrange = 1\nclip = 1.0\nnoise = 1\nnoise_at = "sites"\n',
            "would round the sites' noise",
        ),
    ],
)
def test_settings_that_are_refused(tmp_path, text, said):
    file = secure_app(tmp_path / "app", privacy=text)
    with pytest.raises(UndriftError, match=said):
        serve(Experiment.load(file), tmp_path / "runs", SecureInProcess(file, tmp_path / "s"))


CODING = FixedPoint.finest(5, 1.0, 16)
CLIENT = Client(id="a", samples=10.0, q=0.3, scale=1 / 1.5)


def senders():
    return Senders(0, [], client=CLIENT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clipped", [False, True])
def test_what_a_client_advances_by_is_what_the_masks_hide(dtype, clipped):
    """Encoding the rounded upload changes nothing of it, and rounding a clipped one shrinks it."""
    (transform,) = with_rounding((), ud.SCAFFOLD(), CODING, feedback=True, clipped=clipped)
    g = torch.Generator().manual_seed(0)
    whole = {
        name: torch.rand(500, generator=g, dtype=dtype) * 2 - 1 for name in ("moved", "c_change")
    }
    sent, keep = transform.update(Upload(**whole), Keep(), senders())
    assert not dict(keep.items())
    unit = 2.0**-CODING.bits
    for name, vector in whole.items():
        found = getattr(sent, name)
        weighted = 0.3 * found.double().numpy()
        decoded = CODING.decode(CODING.encode(weighted))
        assert np.abs(decoded - weighted).max() <= 1e-7 * 0.3
        away = 0.3 * (found.double() - vector.double()).abs().max()
        assert away <= unit * (1 if clipped else 0.5) * (1 + 1e-4)
        if clipped:
            assert np.abs(decoded).max() > 0
            assert (np.abs(decoded) <= 0.3 * vector.double().abs().numpy()).all()


def test_a_client_without_state_keeps_what_rounding_left_out():
    """Ten uploads of a constant far below half a unit: their sum arrives, up to one unit."""
    first, last = with_rounding((), ud.FedAvg(), CODING, feedback=True, clipped=False)
    unit = 2.0**-CODING.bits / 0.3
    mine, total = Keep(**{ROUNDED + "moved": torch.zeros(3, dtype=torch.float64)}), 0
    small = torch.tensor([0.1, -0.27, 0.0], dtype=torch.float64) * unit
    for _ in range(10):
        upload, _ = first.update(Upload(moved=small), mine, senders())
        upload, mine = last.update(upload, mine, senders())
        total = total + upload.moved
    assert (total - 10 * small).abs().max() <= 0.5 * unit * (1 + 1e-9)
    without = with_rounding((), ud.FedAvg(), CODING, feedback=False, clipped=False)
    assert [type(each) for each in without] == [RoundToWords]
    assert not without[0].update(Upload(moved=small), Keep(), senders())[0].moved.any()


def quadratic_run(method, local, rounds, feedback=True, clipped=False):
    """A simulated run whose uploads are rounded to words of 16 bits, and the error of its sums."""
    coding = FixedPoint.finest(len(QUADRATICS.ids), 100.0, 16)
    rounding = with_rounding((), method, coding, feedback=feedback, clipped=clipped)
    loop = synchronous(
        method, QUADRATICS, local, ud.All(), rounds,
        objective="clients", evaluation=ud.Evaluation(every=10**6), transforms=rounding,
    )  # fmt: skip
    for _ in loop.rounds():
        pass
    return loop, coding.error


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(
    "method", [ud.SCAFFOLD(), ud.FedDyn(alpha=0.5), ud.FedDR(eta=0.5)], ids=lambda m: m.name
)
def test_rounded_methods_with_state_end_within_a_few_units_of_the_optimum(method, clipped):
    local = ud.GD(lr=0.1, steps=5) if method.name == "SCAFFOLD" else ud.Exact()
    loop, error = quadratic_run(method, local, 400, clipped=clipped)
    optimum = QUADRATICS.optimum(QUADRATICS.weights("clients"))
    assert float((loop.server.x - optimum).abs().max()) < 5 * error


def test_residuals_lower_the_error_of_rounding():
    decaying = ud.GD(lr=ud.Exponential(0.15, 0.994), steps=1)
    optimum = QUADRATICS.optimum(QUADRATICS.weights("clients"))
    found = {}
    for feedback in (True, False):
        loop, error = quadratic_run(ud.DistributedSGD(), decaying, 800, feedback)
        found[feedback] = float((loop.server.x - optimum).abs().max()) / error
    assert found[True] < 1 and found[False] > 5


def test_the_states_of_rounded_clients_stay_those_of_the_server():
    """c = Σ q_k c_k after every number of rounds: c_k advances by what the words had."""
    loop, error = quadratic_run(ud.SCAFFOLD(), ud.GD(lr=0.1, steps=5), 50)
    mean = sum(loop.states.get(id).c for id in QUADRATICS.ids) / len(QUADRATICS.ids)
    assert float((loop.server.c - mean).abs().max()) < 1e-9 < error


def test_sites_say_what_they_sent(tmp_path):
    transport, _ = run(tmp_path, ("FedAvg",), 16, up=RANDOM, rounds=1)
    lines = (transport.state / "a" / "a" / "audit.jsonl").read_text().splitlines()
    (work,) = (each for each in map(json.loads, lines) if each.get("kind") == WORK)
    assert work["masked"]
    assert {*work["sent"]["tensors"]} == {"moved values"}


def test_one_hundred_thousand_parameters_take_two_bytes_each(tmp_path):
    sizes = {}
    large = SITE.replace("nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)",
                         "nn.Linear(6, 9000), nn.Linear(9000, 3)")  # fmt: skip
    for word_bits in (16, 64):
        folder = tmp_path / str(word_bits)
        file = secure_app(folder / "app", ("FedAvg",), secure_text(word_bits))
        code = large.replace('{"a": 20, "b": 33, "c": 47}',
                             '{"a": 20, "b": 33, "c": 47, "d": 28, "e": 39}')  # fmt: skip
        (folder / "app" / "site.py").write_text(code)
        file.write_text(file.read_text().replace("rounds = 5", "rounds = 1"))
        transport = SecureInProcess(file, folder / "sites")
        serve(Experiment.load(file), folder / "runs", transport)
        (sizes[word_bits], *_) = (
            len(answer)
            for _, request, answer in transport.exchanged
            if decode(request, 10**9)[0]["kind"] == WORK
        )
    assert 90_003 * 2 < sizes[16] < 90_003 * 2 + 1500
    assert sizes[16] < 0.26 * sizes[64]
