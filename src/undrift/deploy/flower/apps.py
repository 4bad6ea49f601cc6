"""The ServerApp and the ClientApp, for those who start runs by Flower's own means.

`undrift deploy server` and `undrift deploy site` do without: they are these apps, started once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from undrift.deploy.flower.letters import opened, reply
from undrift.deploy.flower.post import FlowerPost
from undrift.deploy.server import serve
from undrift.deploy.site import Site
from undrift.experiments.experiment import Experiment

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message: Message, context: Context) -> Message:
    """Answer as the site of this node, which its node-config names: experiment, site, state."""
    own = context.node_config
    site = _site(str(own["experiment"]), str(own["site"]), str(own["state"]))
    return reply(site.answer(opened(message)), message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run-config with the sites that are there: experiment, out."""
    own = context.run_config
    with FlowerPost(grid) as post:
        serve(Experiment.load(Path(str(own["experiment"]))), Path(str(own["out"])), post)


@cache
def _site(experiment: str, name: str, state: str) -> Site:
    return Site(Experiment.load(Path(experiment)), name, Path(state))
