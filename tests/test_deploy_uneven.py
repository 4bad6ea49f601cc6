"""Deployments with sites that are fast, slow, absent or send what they should not."""

import time

import pytest
import torch

from deployments import SITE, InProcess, app
from test_deploy import ASYNCHRONOUS, Killed, assert_same, deployed, records, simulated
from undrift.deploy import loops
from undrift.deploy.server import serve
from undrift.deploy.state_files import StateFiles
from undrift.deploy.transport import Answer
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError


def asynchronous(folder, label):
    file = app(folder)
    table = f'\n[[method]]\nname = "{label}"\n{ASYNCHRONOUS[label]}\n'
    file.write_text(file.read_text().partition("\n[[method]]")[0] + table)
    return file


def kind(request):
    return decode(request, 10**9)[0]["kind"]


class Uneven(InProcess):
    """Site a answers four times before the others do once; the server dies after `answers`."""

    def __init__(self, *args, answers=10**9):
        super().__init__(*args)
        self.left = answers
        self._waiting = []
        self._in_a_row = 0

    def next(self, seconds):
        if self.left == 0:
            raise Killed
        self.left -= 1
        while (answer := super().next(0.001)) is not None:
            self._waiting.append(answer)
        if not self._waiting:
            return None
        fast = [each for each in self._waiting if self.asked[int(each.ticket)] == "a"]
        slow = [each for each in self._waiting if each not in fast]
        chosen = fast[0] if fast and (self._in_a_row < 4 or not slow) else slow[0]
        self._in_a_row = self._in_a_row + 1 if chosen in fast else 0
        self._waiting.remove(chosen)
        return chosen


def test_an_asynchronous_server_that_dies_at_any_moment_finds_the_states_it_goes_back_to(tmp_path):
    file = asynchronous(tmp_path / "app", "AsyncFedDR")
    setting = {"rounds": 4, "evaluation.every": 4}
    for moment in range(4, 21):
        out, state = tmp_path / f"out-{moment}", tmp_path / f"state-{moment}"
        with pytest.raises(Killed):
            deployed(file, out, Uneven(file, state, answers=moment), **setting)
        (outcome,) = deployed(file, out, Uneven(file, state), **setting)
        assert outcome.status == "finished"
        found = records(out, "AsyncFedDR")
        assert not any(record["rejected"] or record["lost"] for record in found), moment


def test_a_site_that_sends_nonsense_often_does_not_end_an_asynchronous_run(tmp_path):
    file = asynchronous(tmp_path / "app", "FedAsync")
    transport = Uneven(file, tmp_path / "state")

    def spoil(site, request, answer):
        return b"noise" if site == "a" and kind(request) == "work" else answer

    transport.spoil = spoil
    (outcome,) = deployed(file, tmp_path / "out", transport)
    assert outcome.status == "finished"
    found = records(tmp_path / "out", "FedAsync")
    assert {site for record in found for site, _ in record["rejected"]} == {"a"}
    assert sum(record["updates"] for record in found) > 0


def test_a_run_in_which_nothing_can_be_used_ends_with_a_reason(tmp_path):
    for number, file in enumerate(
        (app(tmp_path / "rounds"), asynchronous(tmp_path / "arrivals", "FedAsync"))
    ):
        transport = InProcess(file, tmp_path / f"state-{number}")
        transport.spoil = lambda site, request, answer: b"" if kind(request) == "work" else answer
        with pytest.raises(UndriftError, match="The last 10 rounds changed nothing"):
            deployed(file, tmp_path / f"out-{number}", transport, rounds=20)


def test_answers_that_wait_for_others_are_not_in_vain(tmp_path):
    file = asynchronous(tmp_path / "app", "FedBuff")
    file.write_text(file.read_text().replace("buffer = 2", "buffer = 25"))
    transport = InProcess(file, tmp_path / "state")
    transport.spoil = lambda site, request, answer: (
        b"" if site == "a" and kind(request) == "work" else answer
    )
    (outcome,) = deployed(file, tmp_path / "out", transport, rounds=13)
    assert outcome.status == "finished"
    assert sum(record["updates"] for record in records(tmp_path / "out", "FedBuff")) == 1


def test_a_late_site_is_left_alone_until_it_is_done_and_then_asked_again(tmp_path):
    file = app(tmp_path / "app", text='pace = {kind = "first", replies = 2}\n')
    worked, held = [], []

    class Slow(InProcess):
        """The first answer of site c arrives in round 3."""

        def send(self, site, request, seconds, max_bytes):
            ticket = super().send(site, request, seconds, max_bytes)
            if kind(request) == "work":
                worked.append(site)
                if worked == ["a", "b", "c"]:
                    others = [self._answers.get() for _ in "ab"]
                    held.append(self._answers.get())
                    for each in others:
                        self._answers.put(each)
                if len(worked) == 7:
                    self._answers.put(held.pop())
            return ticket

    began = time.monotonic()
    deployed(file, tmp_path / "out", Slow(file, tmp_path / "state"), rounds=4)
    assert time.monotonic() - began < 20  # nobody waits for c, also not to evaluate
    found = records(tmp_path / "out")[1:]
    assert ["".join(sorted(record["cohort"])) for record in found] == ["abc", "ab", "ab", "abc"]
    assert [record["lost"] for record in found] == [[["c", "late"]], [], [], [["c", "late"]]]
    assert not any(record["rejected"] for record in found)


def test_asynchronous_sites_that_all_leave_are_not_waited_for_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(loops, "ABSENCE_LIMIT_SECONDS", 1.0)
    monkeypatch.setattr(loops, "POLL_SECONDS", 0.05)
    file = asynchronous(tmp_path / "app", "FedAsync")
    transport = InProcess(file, tmp_path / "state")
    send = transport.send

    def leaving(site, request, seconds, max_bytes):
        if len(transport.asked) > 12:
            transport.away = {"a", "b", "c"}
        return send(site, request, seconds, max_bytes)

    transport.send = leaving
    with pytest.raises(UndriftError, match="All sites have been away"):
        deployed(file, tmp_path / "out", transport, rounds=9)


# Contents of answers


def test_what_a_model_says_of_data_stays_at_the_site(tmp_path, capfd):
    file = app(tmp_path / "app")
    (tmp_path / "app" / "site.py").write_text(
        SITE.replace("nn.Sequential(", "nn.Sequential(Quoting(), ")
        + """

class Quoting(nn.Module):
    def forward(self, x):
        if self.training and len(x) == 5:  # a batch of training
            raise ValueError(f"bad row {x[0].tolist()} of patient John Smith")
        return x
"""
    )
    transport = InProcess(file, tmp_path / "state")
    with pytest.raises(UndriftError, match=r"'a' failed with ValueError; see its log") as raised:
        deployed(file, tmp_path / "out", transport, rounds=1)
    answers = b"".join(answer for _, _, answer in transport.exchanged)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert "records.jsonl" in {path.name for path in files}
    written = b"".join(path.read_bytes() for path in files)
    text = (answers + written).decode(errors="replace") + str(raised.value)
    assert text.count("failed with ValueError") >= 3
    assert "Smith" not in text and "bad row" not in text
    assert "John Smith" in capfd.readouterr().err  # in its own log


def measured(change):
    def spoil(site, request, answer):
        if site != "b" or kind(request) != "evaluate":
            return answer
        values, _ = decode(answer, 10**9)
        change(values["metrics"])
        return encode(values, {})

    return spoil


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.update(test_accuracy=5.0), "'test_accuracy' must be in [0, 1]"),
        (lambda m: m.update(train_more=1.0), "its metrics differ from those of the other sites"),
        (lambda m: m.update(other_loss=1.0), "'other_loss' was not asked for"),
        (lambda m: m.update(test_loss="much"), "'test_loss' must be a number"),
        (lambda m: m.clear(), "it has no metrics"),
    ],
)
def test_bad_metrics_are_refused_and_named(tmp_path, change, why):
    file = app(tmp_path / "app")
    transport = InProcess(file, tmp_path / "state")
    transport.spoil = measured(change)
    deployed(file, tmp_path / "out", transport, rounds=1)
    for record in records(tmp_path / "out"):
        assert record["rejected"] == [["b", f"refused: evaluation, {why}"]]
        assert 0 <= record["metrics"]["test_accuracy"] <= 1
        assert not any("more" in name or "other" in name for name in record["metrics"])


def test_a_huge_loss_of_one_site_is_no_infinite_one_of_all(tmp_path):
    file = app(tmp_path / "app")
    transport = InProcess(file, tmp_path / "state")
    transport.spoil = measured(lambda m: m.update(test_loss=1e308))
    deployed(file, tmp_path / "out", transport, rounds=1)
    assert 1e307 < records(tmp_path / "out")[-1]["metrics"]["test_loss"] < 1e308


def test_a_server_whose_model_is_another_says_so_at_once(tmp_path):
    file, other = app(tmp_path / "app"), app(tmp_path / "other")
    site = tmp_path / "other" / "site.py"
    site.write_text(site.read_text().replace("6, 5", "6, 7").replace("5, 3", "7, 3"))
    with pytest.raises(UndriftError, match="model\\(\\) must be the same everywhere"):
        deployed(file, tmp_path / "out", InProcess(other, tmp_path / "state"))


def test_states_are_kept_from_the_committed_one_on(tmp_path):
    states = StateFiles(tmp_path)
    for version, base, oldest in ((3, 0, 0), (5, 3, 3), (8, 5, 3), (9, 8, 3), (12, 9, 9)):
        states.put("run", "a", version, base, {"h": torch.ones(2) * version}, oldest)
        kept = [v for v in range(20) if states.has("run", "a", v)]
        assert kept == {3: [3], 5: [3, 5], 8: [3, 5, 8], 9: [3, 5, 8, 9], 12: [9, 12]}[version]


def test_a_model_of_one_parameter_is_a_vector_too(tmp_path):
    file = app(tmp_path / "app", ["SCAFFOLD", "FedNova"])
    site = tmp_path / "app" / "site.py"
    net = "nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))"
    own = site.read_text()
    assert net in own
    scaled = "\n\nclass Scaled(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    scaled += "        self.scale = nn.Parameter(torch.ones(1))\n\n    def forward(self, x):\n"
    scaled += "        return self.scale * x[:, :3]\n"
    site.write_text(own.replace(net, "Scaled()") + scaled)
    deployed(file, tmp_path / "out", rounds=2)
    simulated(file, tmp_path / "sim", rounds=2)
    for label in ("SCAFFOLD", "FedNova"):
        assert not any(record["rejected"] for record in records(tmp_path / "out", label))
        assert_same(tmp_path / "sim", tmp_path / "out", label)


def test_the_trouble_of_a_site_that_is_waited_for_is_told(tmp_path):
    file, told = app(tmp_path / "app"), []
    transport = InProcess(file, tmp_path / "state")
    send = transport.send

    def troubled(site, request, seconds, max_bytes):
        if site == "b" and told[-1:] != [["b (its process died)"]]:
            transport.asked.append(site)
            ticket = str(len(transport.asked) - 1)
            transport._answers.put(Answer(ticket, failure="its process died"))
            return ticket
        return send(site, request, seconds, max_bytes)

    transport.send = troubled
    transport.configure(rounds=1)
    serve(Experiment.load(file, {"rounds": 1}), tmp_path / "out", transport, waiting=told.append)
    assert ["b (its process died)"] in told


def test_an_answer_that_is_refused_on_the_way_is_counted_as_such(tmp_path):
    file = app(tmp_path / "app")
    transport = InProcess(file, tmp_path / "state")
    next_one = transport.next

    def refusing(seconds):
        answer = next_one(seconds)
        if answer is not None and decode(answer.data, 10**9)[0].get("client") == "b":
            return Answer(answer.ticket, failure="refused: the answer is larger than 9 bytes")
        return answer

    transport.next = refusing
    deployed(file, tmp_path / "out", transport, rounds=1)
    last = records(tmp_path / "out")[-1]
    assert last["rejected"] == [["b", "refused: the answer is larger than 9 bytes"]]
    assert last["lost"] == []
