"""A deployment in one process, for tests: a transport whose sites answer at once."""

import queue
from pathlib import Path

from undrift.deploy.site import Site
from undrift.deploy.transport import Answer, Transport
from undrift.experiments.experiment import Experiment

SITE = """
import torch
from torch import nn


def model():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def data(site):
    number = {"a": 20, "b": 33, "c": 47}[site]
    g = torch.Generator().manual_seed(number)
    x = torch.randn(number, 6, generator=g) + number / 30
    y = torch.randint(3, (number,), generator=g)
    return {"train": (x[10:], y[10:]), "test": (x[:10], y[:10])}
"""

EXPERIMENT = """
rounds = 5
seeds = [3]

[data]
source = "site.py:data"
sites = ["a", "b", "c"]

[model]
name = "site.py:model"

[local]
lr = 0.1
batch_size = 5
epochs = 1

[engine]
name = "serial"

[deploy]
timeout = 60
"""

METHODS = {
    "FedAvg": "",
    "SCAFFOLD": "",
    "FedNova": "",
    "FedDyn": "alpha = 0.5",
    "FedDR": "eta = 0.5",
    "FedLGA": "cap = true",
}


def app(folder, methods=("FedAvg",), text=""):
    """Write an app, and return its experiment file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.py").write_text(SITE)
    tables = "".join(
        f'\n[[method]]\nname = "{name}"\n{METHODS.get(name, "")}\n' for name in methods
    )
    (folder / "experiment.toml").write_text(text + EXPERIMENT + tables)
    return folder / "experiment.toml"


class InProcess(Transport):
    """Sites in this process.

    Sites in `away` are not connected, those in `silent` never answer, and `spoil` changes answers.
    """

    def __init__(self, file: Path, state: Path, names=("a", "b", "c")):
        self.file = file
        self.experiment = Experiment.load(file)
        self.state = state
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.spoil = lambda site, request, answer: answer
        self.asked: list[str] = []
        self.limits = None
        self.exchanged: list[tuple[str, bytes, bytes]] = []
        """every site asked, with the request and its answer"""
        self._made: dict[str, Site] = {}
        self._names = names
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._forgotten: set[str] = set()

    def configure(self, **settings):
        """Change settings in the sites' experiment files, and restart the sites."""
        self.experiment = Experiment.load(self.file, settings)
        self._made.clear()

    def restart(self, site):
        """Replace a site by a new one, as if its process had died: only its files are left."""
        self._made.pop(site, None)

    def made(self, site):
        """The site of this name."""
        if site not in self._made:
            self._made[site] = Site(self.experiment, site, self.state / site, self.limits)
        return self._made[site]

    def sites(self):
        return [name for name in self._names if name not in self.away]

    def send(self, site, request, seconds, max_bytes):
        ticket = f"{len(self.asked)}"
        self.asked.append(site)
        if site in self.away:
            self._answers.put(Answer(ticket, failure="away"))
        elif site not in self.silent:
            answer = self.made(site).answer(request)
            self.exchanged.append((site, request, answer))
            self._answers.put(Answer(ticket, self.spoil(site, request, answer)))
        return ticket

    def next(self, seconds):
        try:
            answer = self._answers.get(timeout=min(seconds, 0.3))
        except queue.Empty:
            return None
        return answer if answer.ticket not in self._forgotten else self.next(seconds)

    def forget(self, ticket):
        self._forgotten.add(ticket)
