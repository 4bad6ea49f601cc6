"""Compressed uploads and robust statistics in deployments: fewer bytes, the same results."""

import json

import pytest

from deployments import SITE, InProcess, app
from test_deploy import assert_same, deployed, records, simulated
from undrift.deploy.orders import WORK
from undrift.deploy.wire_format import decode, encode
from undrift.utils.errors import UndriftError

SMALL_LAYERS = "nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)"
LARGE = SITE.replace(SMALL_LAYERS, "nn.Linear(6, 9000), nn.Linear(9000, 3)")
UPS = {
    "top-k": '{name = "top-k", ratio = 0.1}',
    "random-k": '{name = "random-k", ratio = 0.2}',
    "qsgd": '{name = "qsgd", bits = 3, bucket = 16}',
    "sign": '"sign"',
}


def work_answers(transport):
    """The answers to work orders, in bytes, by site."""
    found = {}
    for site, request, answer in transport.exchanged:
        if decode(request, len(request))[0]["kind"] == WORK:
            found.setdefault(site, []).append(answer)
    return found


@pytest.mark.parametrize("name", UPS)
def test_a_compressed_deployment_computes_what_the_simulation_computes(tmp_path, name):
    labels = ["FedAvg", "SCAFFOLD", "FedDyn"]
    text = f"compression = {{up = {UPS[name]}}}\nevaluation = {{every = 1}}\n"
    file = app(tmp_path / "app", labels, text=text)
    simulated(file, tmp_path / "simulated")
    deployed(file, tmp_path / "deployed")
    for label in labels:
        assert_same(tmp_path / "simulated", tmp_path / "deployed", label)
        here, there = records(tmp_path / "simulated", label), records(tmp_path / "deployed", label)
        for mine, other in zip(here, there, strict=True):
            for field in ("cohort", "steps", "bytes_up", "bytes_down", "rejected"):
                assert mine[field] == other[field], field
            # The drift would need a whole vector of every site.
            wanted = {n: v for n, v in mine["diagnostics"].items() if n != "drift"}
            assert other["diagnostics"] == pytest.approx(wanted, rel=1e-5)
        assert {"moved", "step", "tau_eff"} <= there[1]["diagnostics"].keys()


def test_clipped_and_compressed_uploads_are_encoded(tmp_path):
    text = f"compression = {{up = {UPS['qsgd']}}}\nprivacy = {{noise = 0, clip = 0.01}}\n"
    text += 'objective = "clients"\n'
    file = app(tmp_path / "app", ["FedAvg"], text=text)
    simulated(file, tmp_path / "simulated")
    deployed(file, tmp_path / "deployed")
    assert_same(tmp_path / "simulated", tmp_path / "deployed", "FedAvg", tolerance=0)


def test_top_one_percent_sends_less_than_three_percent_of_the_bytes(tmp_path):
    sizes = {}
    for name, text in {
        "plain": "",
        "top": 'compression = {up = {name = "top-k", ratio = 0.01}}\n',
    }.items():
        file = app(tmp_path / name, text=text + "evaluation = {every = 100}\n")
        (tmp_path / name / "site.py").write_text(LARGE)
        transport = InProcess(file, tmp_path / f"state-{name}")
        deployed(file, tmp_path / f"out-{name}", transport)
        sizes[name] = [len(each) for own in work_answers(transport).values() for each in own]
        counted = records(tmp_path / f"out-{name}")[1]["bytes_up"]["moved"] / 3
        assert counted < sizes[name][0] < counted + 1500  # the rest is the header
    assert max(sizes["top"]) < 0.03 * min(sizes["plain"])
    logged = [
        json.loads(line)
        for line in (tmp_path / "state-top" / "a" / "a" / "audit.jsonl").read_text().splitlines()
    ]
    sent = [each["sent"] for each in logged if each.get("kind") == WORK]
    assert {*sent[0]["tensors"]} == {"moved values", "moved indices"}
    assert sent[0]["bytes"] == sizes["top"][0]


@pytest.mark.parametrize(
    ("part", "said"),
    [("indices", "must increase and be below"), ("values", "not finite"), (None, "is missing")],
)
def test_a_bad_encoding_is_refused_in_a_sentence(tmp_path, part, said):
    file = app(tmp_path / "app", text=f"compression = {{up = {UPS['top-k']}}}\n")
    transport = InProcess(file, tmp_path / "state")

    def spoil(site, request, answer):
        values, tensors = decode(answer, len(answer))
        if site != "b" or "coded moved values" not in tensors:
            return answer
        if part is None:
            del tensors["coded moved indices"]
        else:
            found = tensors[f"coded moved {part}"]
            found.fill_(255 if part == "indices" else float("nan"))
            if part == "indices":  # the bits behind the last index stay 0
                found[-1] = 0
        return encode(values, tensors)

    transport.spoil = spoil
    deployed(file, tmp_path / "out", transport)
    for record in records(tmp_path / "out")[1:]:
        ((site, why),) = record["rejected"]
        assert site == "b"
        assert said in why


@pytest.mark.parametrize("statistic", ["median", "geometric-median"])
def test_a_robust_deployment_computes_what_the_simulation_computes(tmp_path, statistic):
    text = f'robust = {{statistic = "{statistic}", norm_ratio = 10}}\nevaluation = {{every = 1}}\n'
    file = app(tmp_path / "app", ["FedAvg", "FedProx"], text=text)
    simulated(file, tmp_path / "simulated")
    deployed(file, tmp_path / "deployed")
    for label in ("FedAvg", "FedProx"):
        assert_same(tmp_path / "simulated", tmp_path / "deployed", label)


def test_attacks_are_refused(tmp_path):
    file = app(tmp_path / "app", text='attack = {name = "sign-flip"}\n')
    with pytest.raises(UndriftError, match="An attack is an experiment of simulations"):
        deployed(file, tmp_path / "out")
