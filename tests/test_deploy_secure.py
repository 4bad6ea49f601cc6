"""Secure aggregation in a deployment: the sums of masked uploads, with sites in this process."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from deployments import InProcess, app
from undrift.deploy.orders import SECURE
from undrift.deploy.protocol import WORK
from undrift.deploy.secure.messages import StageOrder
from undrift.deploy.secure.site_rounds import SiteIdentity
from undrift.deploy.server import serve
from undrift.deploy.site import Site
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.experiment import Experiment
from undrift.report.recorded_runs import read_runs
from undrift.runs.experiment_runs import run_experiment
from undrift.utils.errors import UndriftError

pytest.importorskip("cryptography")
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SITES = ("a", "b", "c", "d", "e")
METHODS = ("FedAvg", "SCAFFOLD", "FedDyn", "FedDR", "FedNova")


class Identities:
    """Long-lived keys of the sites, which know each other's public keys."""

    def __init__(self, names):
        self.keys = {name: Ed25519PrivateKey.generate() for name in names}

    def of(self, name):
        return SiteIdentity(self.keys[name].sign, self.verify)

    def verify(self, site, content, signature):
        try:
            self.keys[site].public_key().verify(signature, content)
        except InvalidSignature:
            return f"not signed by {site}"
        return None


class SecureInProcess(InProcess):
    """Sites in this process that have keys.

    Sites in `gone[stage]` do not answer the requests of that stage; "work" is a stage here.
    """

    def __init__(self, file, state, names=SITES):
        super().__init__(file, state, names)
        self.identities = Identities(names)
        self.gone = {}

    def made(self, site):
        if site not in self._made:
            self._made[site] = Site(
                self.experiment,
                site,
                self.state / site,
                self.limits,
                identity=self.identities.of(site),
            )
        return self._made[site]

    def send(self, site, request, seconds, max_bytes):
        values, _ = decode(request, 10**9)
        stage = values.get("stage", values["kind"])
        if site in self.gone.get((stage, values.get("round")), ()):
            self.silent.add(site)
            try:
                return super().send(site, request, seconds, max_bytes)
            finally:
                self.silent.discard(site)
        return super().send(site, request, seconds, max_bytes)


def secure_app(folder, methods=("FedAvg",), privacy="secure = true\nthreshold = 3\n", text=""):
    file = app(folder, methods, text)
    settings = file.read_text().replace('sites = ["a", "b", "c"]', f"sites = {json.dumps(SITES)}")
    # Silent sites of this process are noticed at once; a pause of the machine must lose no answer.
    settings = settings.replace("timeout = 60", "timeout = 3600")
    file.write_text(settings + f"\n[privacy]\n{privacy}")
    code = (folder / "site.py").read_text()
    sizes = '{"a": 20, "b": 33, "c": 47, "d": 28, "e": 39}'
    (folder / "site.py").write_text(code.replace('{"a": 20, "b": 33, "c": 47}', sizes))
    return file


def models(folder):
    from safetensors.torch import load_file

    return {
        path.parent.parent.name: load_file(path) for path in sorted(folder.rglob("*.safetensors"))
    }


def furthest(one, two):
    return max(
        float((one[label][name] - two[label][name]).abs().max())
        for label in two
        for name in two[label]
    )


@pytest.fixture
def deployed(tmp_path):
    def run(methods=("FedAvg",), gone=None, **more):
        file = secure_app(tmp_path / "app", methods, **more)
        transport = SecureInProcess(file, tmp_path / "sites")
        transport.gone = gone or {}
        outcomes = serve(Experiment.load(file), tmp_path / "runs", transport)
        assert [each.status for each in outcomes] == ["finished"] * len(methods)
        return transport, tmp_path / "runs"

    return run


def test_sums_of_masked_uploads_give_the_results_of_a_simulation(deployed, tmp_path):
    transport, folder = deployed(METHODS)
    plain = Experiment.load(transport.file, {"privacy": "none"})
    run_experiment(plain, tmp_path / "simulated")
    assert furthest(models(folder), models(tmp_path / "simulated")) < 1e-6


def test_the_server_receives_no_vector_without_masks(deployed):
    """Every tensor that any site sent is of words that look random, and no upload is among them."""
    transport, _ = deployed(("FedAvg", "SCAFFOLD"))
    vectors = 0
    for _, request, answer in transport.exchanged:
        kind = decode(request, 10**9)[0]["kind"]
        _, tensors = decode(answer, 10**9)
        assert not tensors or kind == WORK
        for tensor in tensors.values():
            vectors += 1
            assert tensor.dtype == torch.int64
            bits = np.unpackbits(tensor.numpy().view(np.uint8))
            # 53 parameters: 3392 bits, of which half are ones, with a deviation of 29.
            assert abs(bits.sum() - len(bits) / 2) < 6 * np.sqrt(len(bits)) / 2
    assert vectors == 5 * 5 * (1 + 2)


@pytest.mark.parametrize("stage", ["advertise", "share", "work", "agree", "unmask"])
def test_two_of_five_sites_may_drop_out_at_every_stage(deployed, stage):
    gone = {(stage, 2): ("b", "d")}
    _, folder = deployed(("SCAFFOLD",), gone, text='objective = "clients"\n')
    (run,) = read_runs(folder)
    record = run.records[3]
    lost = {client for client, _ in record.lost}
    # Who falls silent after its masked upload arrived is in the sum nevertheless.
    assert lost == (set() if stage in ("agree", "unmask") else {"b", "d"})
    assert record.updates == 1
    assert all(not r.lost and not r.rejected for r in run.records if r.round != 3)


def test_a_round_below_the_threshold_comes_to_nothing(deployed):
    _, folder = deployed(gone={("unmask", 1): ("a", "b", "c"), ("share", 3): ("a", "b", "c")})
    (run,) = read_runs(folder)
    assert [record.updates for record in run.records] == [0, 1, 0, 1, 0, 1]
    assert "fewer than the threshold 3" in dict(run.records[2].lost)["d"]


def test_the_decoded_sum_is_that_of_the_survivors(deployed, tmp_path):
    gone = {("work", 1): ("b", "d")}
    transport, folder = deployed(("SCAFFOLD",), gone)
    plain = SecureInProcess(transport.file, tmp_path / "others")
    plain.configure(privacy="none")
    plain.gone = gone
    serve(Experiment.load(transport.file, {"privacy": "none"}), tmp_path / "plain", plain)
    for found in (folder, tmp_path / "plain"):
        (run,) = read_runs(found)
        assert {client for client, _ in run.records[2].lost} == {"b", "d"}
    assert furthest(models(folder), models(tmp_path / "plain")) < 1e-6


def asked(transport, site, stage, round=0, content=None, **changes):
    """A request of a stage as the server of an ended run would send it again."""
    orders = [
        decode(request, 10**9)[0]
        for name, request, _ in transport.exchanged
        if name == site and decode(request, 10**9)[0].get("stage") == stage
    ]
    values = next(values for values in orders if values["round"] == round)
    values = {**values, **changes}
    if content is not None:
        values["content"] = content
    return transport.made(site).answer(encode(values, {}))


def refusal(answer):
    values, tensors = decode(answer, 10**9)
    assert not tensors and set(values) == {"error"}
    return values["error"]


def test_sites_that_are_said_to_be_away_do_not_lower_the_threshold(tmp_path):
    """Of five sites three are there: fewer than the four that the default asks for."""
    file = secure_app(tmp_path / "app", privacy="secure = true\n")
    transport = SecureInProcess(file, tmp_path / "sites")
    honest = transport.send

    def leaving(site, request, seconds, max_bytes):
        if decode(request, 10**9)[0].get("round") == 1:
            transport.away = {"d", "e"}
        return honest(site, request, seconds, max_bytes)

    transport.send = leaving
    serve(Experiment.load(file), tmp_path / "runs", transport)
    (run,) = read_runs(tmp_path / "runs")
    assert [record.updates for record in run.records] == [0, 1, 0, 0, 0, 0]
    assert "must be from 2 to 3, not 4" in dict(run.records[3].lost)["a"]
    orders = [decode(request, 10**9)[0] for _, request, _ in transport.exchanged]
    assert not [each for each in orders if each["kind"] == WORK and each["round"] > 1]
    # A server that asks nevertheless is refused by the site itself.
    order = next(each for each in orders if each.get("stage") == "advertise")
    order = {**order, "round": 4, "available": ["a", "b", "c"]}
    assert "not 4" in refusal(transport.made("a").answer(encode(order, {})))


class TestRefusals:
    def test_a_round_is_never_unmasked_twice(self, deployed):
        transport, _ = deployed()
        for restarted in (False, True):
            if restarted:
                transport.restart("a")
            for attempt in (1, 2, 7):
                answer = asked(transport, "a", "advertise", attempt=attempt)
                assert "was unmasked before" in refusal(answer)
        log = (transport.state / "a" / "a" / "audit.jsonl").read_text().splitlines()
        assert sum("was unmasked before" in line for line in log) == 6

    def test_stages_of_no_attempt_are_refused(self, deployed):
        transport, _ = deployed()
        for stage in ("share", "agree", "unmask"):
            assert "no keys for this attempt" in refusal(asked(transport, "a", stage))
            assert "no keys for this attempt" in refusal(asked(transport, "a", stage, attempt=2))

    def test_work_without_masks_is_refused(self, deployed):
        transport, _ = deployed()
        for _, request, _ in transport.exchanged:
            values, tensors = decode(request, 10**9)
            if values["kind"] == WORK:
                break
        del values["sealed"]
        answer = transport.made("a").answer(encode({**values, "attempt": 2}, tensors))
        assert "masked uploads only" in refusal(answer) or "no keys" in refusal(answer)

    def test_a_site_without_keys_takes_no_part(self, tmp_path):
        file = secure_app(tmp_path / "app")
        site = Site(Experiment.load(file), "a", tmp_path / "state")
        terms = dict.fromkeys(SITES, (10.0, 0.2))
        from undrift.deploy.orders import RunTerms

        order = StageOrder(RunTerms("r", "FedAvg", 3, 1, 5, terms), 0, None, "advertise", {})
        assert "started without --certs" in refusal(site.answer(order.encoded()))

    def test_a_forged_key_is_refused_and_its_site_named(self, deployed, tmp_path):
        """The server puts a key of its own in the place of b's."""
        file = secure_app(tmp_path / "app")
        transport = SecureInProcess(file, tmp_path / "sites")
        honest = transport.send

        def forging(site, request, seconds, max_bytes):
            values, tensors = decode(request, 10**9)
            if values.get("stage") == "share" and values["round"] == 1:
                values["content"]["adverts"]["b"][0] = "11" * 32
                request = encode(values, tensors)
            return honest(site, request, seconds, max_bytes)

        transport.send = forging
        serve(Experiment.load(file), tmp_path / "runs", transport)
        (run,) = read_runs(tmp_path / "runs")
        assert [record.updates for record in run.records] == [0, 1, 0, 1, 1, 1]
        reasons = dict(run.records[2].rejected)
        assert "'b' are not its own" in reasons["a"]
        assert "were exchanged" in reasons["b"]

    @pytest.mark.parametrize(
        ("privacy", "more", "words"),
        [
            ("secure = true\nthreshold = 2\n", "", "from 3 to 5"),
            ("secure = true\nthreshold = 6\n", "", "from 3 to 5"),
            ("secure = true\n", "[robust]\nnorm_ratio = 5\n", "would bound: remove"),
            ("threshold = 3\nclip = 1.0\nnoise = 0\n", "", "needs secure = true"),
            ("secure = true\nrange = 0\n", "", "range"),
        ],
    )
    def test_settings(self, tmp_path, privacy, more, words):
        file = secure_app(tmp_path / "app", privacy=privacy + more)
        with pytest.raises(UndriftError, match=words):
            serve(Experiment.load(file), tmp_path / "runs", SecureInProcess(file, tmp_path / "s"))

    def test_asynchronous_methods(self, tmp_path):
        file = secure_app(tmp_path / "app", ("FedAsync",))
        with pytest.raises(UndriftError, match="is asynchronous"):
            serve(Experiment.load(file), tmp_path / "runs", SecureInProcess(file, tmp_path / "s"))

    def test_an_upload_outside_of_the_range_is_not_sent(self, tmp_path):
        file = secure_app(tmp_path / "app", privacy="secure = true\nrange = 1e-6\n")
        transport = SecureInProcess(file, tmp_path / "sites")
        with pytest.raises(UndriftError, match=r"raise 'range' in \[privacy\]"):
            serve(Experiment.load(file), tmp_path / "runs", transport)
        (run,) = read_runs(tmp_path / "runs")
        assert all(record.updates == 0 for record in run.records)
        refused = dict(run.records[1].rejected)
        assert refused.keys() == set(SITES)
        assert all("raise 'range' in [privacy]" in why for why in refused.values())
        works = [each for each in transport.exchanged if decode(each[1], 10**9)[0]["kind"] == WORK]
        assert works and all(not decode(answer, 10**9)[1] for _, _, answer in works)


PRIVATE = "secure = true\nthreshold = 3\nclip = 0.001\nnoise = 2.0\ndelta = 1e-5\n"


class TestWithDifferentialPrivacy:
    """Uploads are clipped to almost nothing, so that a round moves the model by its noise."""

    @pytest.mark.parametrize(
        ("more", "variance"),
        [
            ("", 1.0),
            ('noise_at = "sites"\n', 5 / 3),  # five sites, each with a third of the variance
        ],
    )
    def test_the_noise_in_the_sum(self, deployed, more, variance):
        transport, folder = deployed(
            privacy=PRIVATE + more + "\n[evaluation]\nevery = 5\n", text='objective = "clients"\n'
        )
        x = {key: [] for key in ("before", "after")}
        for site, request, _ in transport.exchanged:
            values, tensors = decode(request, 10**9)
            if site == "a" and values["kind"] == WORK:
                x["after"].append(tensors["down x"].double())
        moves = torch.cat([b - a for a, b in pairwise(x["after"])])
        # The mean of five uploads with weight 1/5: z·C/5, and C/5 at most from the uploads.
        ratio = float(moves.square().mean()) / ((2.0 * 0.001 / 5) ** 2 * variance)
        freedom = len(moves)
        # χ² with 212 degrees of freedom: five deviations are exceeded once in 1.7 million tests.
        assert abs(ratio - 1) < 5 * np.sqrt(2 / freedom) + 0.01
        (run,) = read_runs(folder)
        assert run.records[-1].privacy["epsilon"] > 0

    def test_each_site_adds_noise_of_its_own_before_the_masks(self, deployed, monkeypatch):
        from undrift.deploy.secure import sums

        seen = []
        encode_words = sums.FixedPoint.encode

        def watched(self, values):
            seen.append(values.copy())
            return encode_words(self, values)

        monkeypatch.setattr(sums.FixedPoint, "encode", watched)
        deployed(privacy=PRIVATE + 'noise_at = "sites"\n', text='objective = "clients"\n')
        noise = np.stack(seen)
        wanted = 2.0 * 0.001 / 5 / np.sqrt(3)
        assert noise.std() == pytest.approx(wanted, rel=0.1)
        correlation = np.corrcoef(noise)
        assert np.abs(correlation - np.eye(len(noise))).max() < 6 / np.sqrt(noise.shape[1])

    @pytest.mark.parametrize(
        ("privacy", "more", "words"),
        [
            ('clip = 1.0\nnoise = 1.0\nnoise_at = "sites"\n', "", "needs secure = true"),
            ('secure = true\nnoise_at = "sites"\n', "", "there is no noise"),
            (PRIVATE + 'noise_at = "sites"\ncolluding = 1\n', "", "colluding is 1"),
            (PRIVATE + "noise_at = 'nowhere'\n", "", "noise_at"),
            (PRIVATE, '[sampling]\nkind = "uniform"\ncohort = 4\n', "every site knows the cohort"),
        ],
    )
    def test_refusals(self, tmp_path, privacy, more, words):
        file = secure_app(tmp_path / "app", privacy=privacy + more)
        with pytest.raises(UndriftError, match=words):
            serve(Experiment.load(file), tmp_path / "runs", SecureInProcess(file, tmp_path / "s"))


def test_late_and_repeated_answers_change_nothing(deployed, tmp_path):
    """Every answer arrives twice, and one of another stage in between."""
    file = secure_app(tmp_path / "app", ("SCAFFOLD",))
    transport = SecureInProcess(file, tmp_path / "sites")
    honest = transport.next
    seen = []

    def twice(seconds):
        if seen and len(seen) % 2:
            seen.append(None)
            return seen[-2]
        found = honest(seconds)
        if found is not None:
            seen.append(found)
        return found

    transport.next = twice
    serve(Experiment.load(file), tmp_path / "runs", transport)
    plain = Experiment.load(file, {"privacy": "none"})
    run_experiment(plain, tmp_path / "simulated")
    assert furthest(models(tmp_path / "runs"), models(tmp_path / "simulated")) < 1e-6


def test_what_a_site_logs(deployed):
    transport, _ = deployed()
    lines = (transport.state / "a" / "a" / "audit.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    stages = [each["stage"] for each in told if each.get("kind") == SECURE]
    assert stages == ["advertise", "share", "agree", "unmask"] * 5
    work = [each for each in told if each.get("kind") == WORK]
    assert len(work) == 5 and all(each["masked"] for each in work)
