"""Compressed downloads in deployments: sites form the server's vectors from changes."""

import pytest
import torch

from deployments import InProcess, app
from test_deploy import assert_same, deployed, records, simulated
from test_deploy_compression import LARGE
from test_deploy_privacy import Killed
from undrift.deploy.downloads.memory import DownloadMemory, LacksVector
from undrift.deploy.loops import DeployedSynchronous
from undrift.deploy.orders import WORK, RunTerms, VectorChanges, WorkOrder
from undrift.deploy.protocol import LACKS
from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.utils.errors import UndriftError

DOWNS = {
    "top-k": '{name = "top-k", ratio = 0.1}',
    "random-k": '{name = "random-k", ratio = 0.2}',
    "qsgd": '{name = "qsgd", bits = 3, bucket = 16}',
    "sign": '"sign"',
}
LABELS = ("FedAvg", "SCAFFOLD", "FedDR")
TEXT = 'compression = {down = {name = "top-k", ratio = 0.1}}\n'


def orders(transport, label=None):
    """The work orders: site, values and tensors, in the order in which they were sent."""
    for site, request, _ in transport.exchanged:
        values, tensors = decode(request, len(request))
        if values["kind"] == WORK and label in (None, values["label"]):
            yield site, values, tensors


def bytes_of(tensors):
    return sum(each.nbytes for each in tensors.values())


@pytest.mark.parametrize("name", DOWNS)
def test_a_deployment_with_compressed_downloads_computes_what_the_simulation_computes(
    tmp_path, name
):
    """Two of three sites take part in a round, so that sites miss rounds."""
    text = f"compression = {{down = {DOWNS[name]}}}\nsampling = {{kind = 'uniform', cohort = 2}}\n"
    text += "evaluation = {every = 100}\n"
    file = app(tmp_path / "app", LABELS, text=text)
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 8"))
    simulated(file, tmp_path / "simulated")
    transport = InProcess(file, tmp_path / "state")
    outcomes = deployed(file, tmp_path / "deployed", transport)
    assert [(each.status, each.reason) for each in outcomes] == [("finished", None)] * len(LABELS)
    for label in LABELS:
        assert_same(tmp_path / "simulated", tmp_path / "deployed", label)
        here, there = records(tmp_path / "simulated", label), records(tmp_path / "deployed", label)
        for mine, other in zip(here, there, strict=True):
            for field in ("cohort", "steps", "bytes_up", "bytes_down", "rejected"):
                assert mine[field] == other[field], field
        # The records count what was really in the orders, but for numbers in the header.
        sent = sum(bytes_of(tensors) for *_, tensors in orders(transport, label))
        vectors = [
            size
            for record in there
            for name, size in record["bytes_down"].items()
            if name in ("x", "c", "x_tilde", "z")
        ]
        assert sum(vectors) == sent
        changed = [values for _, values, _ in orders(transport, label) if "changes" in values]
        assert changed
        missed = [len(e["rounds"]) for v in changed for e in v["changes"].values()]
        assert max(missed) > 1  # a site that missed rounds got all changes that it lacked


def test_both_directions_of_a_large_model_are_small(tmp_path):
    top = '{name = "top-k", ratio = 0.01}'
    text = f"compression = {{up = {top}, down = {top}}}\nevaluation = {{every = 100}}\n"
    file = app(tmp_path / "app", text=text)
    (tmp_path / "app" / "site.py").write_text(LARGE)
    transport = InProcess(file, tmp_path / "state")
    deployed(file, tmp_path / "out", transport)
    sizes = {}
    for _, request, answer in transport.exchanged:
        values, _ = decode(request, len(request))
        if values["kind"] == WORK:
            sizes.setdefault(values["round"], []).append((len(request), len(answer)))
    whole = 4 * 90_003
    assert all(down > whole for down, _ in sizes[0])  # nobody has a model yet
    for round in range(1, 5):
        for down, up in sizes[round]:
            assert down < 0.03 * whole and up < 0.03 * whole


def test_a_site_that_was_restarted_gets_the_whole_model_in_the_same_round(tmp_path):
    file = app(tmp_path / "app", ("SCAFFOLD",), text=TEXT + "evaluation = {every = 100}\n")
    simulated(file, tmp_path / "simulated")
    transport = InProcess(file, tmp_path / "state")
    honest = transport.send

    def restarting(site, request, seconds, max_bytes):
        values, _ = decode(request, len(request))
        if values["kind"] == WORK and site == "b" and values["round"] == 3:
            transport.restart("b")
        return honest(site, request, seconds, max_bytes)

    transport.send = restarting
    deployed(file, tmp_path / "deployed", transport)
    assert_same(tmp_path / "simulated", tmp_path / "deployed", "SCAFFOLD")
    made = records(tmp_path / "deployed", "SCAFFOLD")
    assert not any(each["rejected"] or each["lost"] for each in made)
    asked = [(site, "changes" in values, bytes_of(tensors))
             for site, values, tensors in orders(transport) if values["round"] == 3]  # fmt: skip
    assert [each[:2] for each in asked] == [
        ("a", True), ("b", True), ("c", True), ("b", False),
    ]  # fmt: skip
    found = made[4]["bytes_down"]
    assert found["x"] + found["c"] == sum(size for *_, size in asked)


def test_a_site_cannot_make_the_server_send_a_model_for_ever(tmp_path):
    file = app(tmp_path / "app", text=TEXT + "evaluation = {every = 100}\n")
    transport = InProcess(file, tmp_path / "state")

    def lying(site, request, answer):
        values, _ = decode(request, len(request))
        if site != "b" or values["kind"] != WORK:
            return answer
        return encode({"error": "The site has nothing.", LACKS: True}, {})

    transport.spoil = lying
    deployed(file, tmp_path / "out", transport)
    assert all(len([1 for site, values, _ in orders(transport) if site == "b"
                    and values["round"] == round]) <= 2 for round in range(5))  # fmt: skip
    for record in records(tmp_path / "out")[1:]:
        ((site, why),) = record["rejected"]
        assert site == "b" and "has nothing" in why


@pytest.mark.parametrize("part", ["values", "result", "rounds"])
def test_changes_that_give_another_vector_are_refused(tmp_path, part):
    """Whatever happens on the way, no site works with a vector that is not the server's."""
    file = app(tmp_path / "app", text=TEXT + "evaluation = {every = 100}\n")
    transport = InProcess(file, tmp_path / "state")
    honest = transport.send

    def changing(site, request, seconds, max_bytes):
        values, tensors = decode(request, len(request))
        if site == "b" and "changes" in values:
            if part == "values":
                tensors["change 0 x values"][0] += 1
            elif part == "result":
                values["changes"]["x"]["result"] = "0" * 64
            else:
                values["changes"]["x"]["rounds"] = [values["round"] + 1]
            request = encode(values, tensors)
        return honest(site, request, seconds, max_bytes)

    transport.send = changing
    deployed(file, tmp_path / "out", transport)
    said = "earlier rounds" if part == "rounds" else "another vector than the server's"
    found = records(tmp_path / "out")
    for round in (2, 4):
        ((site, why),) = found[round]["rejected"]
        assert site == "b" and said in why
    # Next time the site lacks what the server believes it has, and gets the whole vector.
    assert not found[3]["rejected"] and not found[5]["rejected"]


@pytest.mark.parametrize("moment", ["before the commit", "between rounds"])
def test_a_killed_server_resumes_with_the_same_model(tmp_path, moment, monkeypatch):
    file = app(tmp_path / "app", ("SCAFFOLD",), text=TEXT)
    simulated(file, tmp_path / "simulated")
    transport = InProcess(file, tmp_path / "state")
    name = "_advance_clock" if moment == "before the commit" else "_wait_for_sites"
    original = getattr(DeployedSynchronous, name)

    def die(self, *given, **named):
        if self.round == 3:
            raise Killed
        return original(self, *given, **named)

    monkeypatch.setattr(DeployedSynchronous, name, die)
    with pytest.raises(Killed):
        deployed(file, tmp_path / "deployed", transport)
    monkeypatch.undo()
    before = len(transport.exchanged)
    deployed(file, tmp_path / "deployed", transport)
    assert_same(tmp_path / "simulated", tmp_path / "deployed", "SCAFFOLD")
    resumed = [
        values
        for _, request, _ in transport.exchanged[before:]
        if (values := decode(request, len(request))[0])["kind"] == WORK
    ]
    first = min(values["round"] for values in resumed)
    # The history of changes went with the server: whole vectors once, then changes again.
    assert all(("changes" in values) == (values["round"] > first) for values in resumed)


@pytest.mark.parametrize(
    ("method", "said"), [("FedDyn", "downloads_may_lag"), ("FedAsync", "is asynchronous")]
)
def test_where_downloads_cannot_be_compressed(tmp_path, method, said):
    file = app(tmp_path / "app", (method,), text=TEXT)
    with pytest.raises(UndriftError, match=said):
        deployed(file, tmp_path / "out")


class TestMemory:
    """What a site makes of orders that no honest server sends."""

    def order(self, changes=None, x=None, run="r"):
        from undrift.core.problem import Download

        terms = RunTerms(run, "FedAvg", 0, 1, 5, {"a": (1.0, 1.0)})
        down = Download() if x is None else Download(x=x)
        return WorkOrder(terms, 3, 3, 0, 0, None, down, {}, changes=changes or {})

    def test_an_unknown_base_is_asked_for(self):
        from undrift.compression import TopK

        memory, x = DownloadMemory(), torch.ones(4)
        changes = {"x": VectorChanges("0" * 64, "0" * 64, (), ())}
        with pytest.raises(LacksVector):
            memory.with_vectors(self.order(changes), TopK(0.5), 0, x)
        with pytest.raises(InvalidMessage, match="does not compress downloads"):
            memory.with_vectors(self.order(changes), None, 0, x)

    def test_another_run_does_not_share_vectors(self):
        from undrift.compression import TopK
        from undrift.deploy.state_files import checksum

        memory, x = DownloadMemory(), torch.ones(4)
        memory.with_vectors(self.order(x=x), TopK(0.5), 0, x)
        known = checksum({"x": x})
        changes = {"x": VectorChanges(known, known, (), ())}
        same = memory.with_vectors(self.order(changes), TopK(0.5), 0, x)
        assert torch.equal(same.download.x, x) and not same.changes
        with pytest.raises(LacksVector):
            memory.with_vectors(self.order(changes, run="other"), TopK(0.5), 0, x)

    @pytest.mark.parametrize(
        ("parts", "said"),
        [
            ({"values": torch.ones(2)}, "is missing"),
            ({"values": torch.ones(3), "indices": torch.zeros(1, dtype=torch.uint8)}, "shape"),
            (
                {"values": torch.ones(2), "indices": torch.zeros(1, dtype=torch.uint8)},
                "must increase",
            ),
        ],
    )
    def test_a_malformed_change_is_refused(self, parts, said):
        from undrift.compression import TopK
        from undrift.deploy.state_files import checksum

        memory, x = DownloadMemory(), torch.ones(6)
        memory.with_vectors(self.order(x=x), TopK(0.3), 0, x)
        changes = {"x": VectorChanges(checksum({"x": x}), "0" * 64, (2,), (parts,))}
        with pytest.raises(InvalidMessage, match=said):
            memory.with_vectors(self.order(changes), TopK(0.3), 0, x)
