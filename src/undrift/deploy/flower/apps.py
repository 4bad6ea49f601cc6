"""The ServerApp and the ClientApp, for runs started with Flower's own commands.

`undrift deploy server` and `undrift deploy site` do not need them: they keep one process for all
requests, where Flower starts these apps anew for each.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from undrift.deploy.flower.messages import answer_message, payload
from undrift.deploy.flower.transport import FlowerTransport
from undrift.deploy.policy.limits import Limits
from undrift.deploy.private_files import written_privately
from undrift.deploy.server import serve
from undrift.deploy.signing.server import SignedTransport
from undrift.deploy.signing.site import SignedSite
from undrift.deploy.site import Site
from undrift.experiments.experiment import Experiment

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message: Message, context: Context) -> Message:
    """Answer a request as the site that the node-config names: experiment, site, state."""
    config = context.node_config
    with written_privately():
        site = _site(str(config["experiment"]), str(config["site"]), str(config["state"]))
        return answer_message(site.answer(payload(message)), message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run-config names: experiment, out."""
    config = context.run_config
    with written_privately(), FlowerTransport(grid) as transport:
        experiment = Experiment.load(Path(str(config["experiment"])))
        serve(experiment, Path(str(config["out"])), SignedTransport(transport))


@cache
def _site(experiment: str, name: str, state: str) -> SignedSite:
    file = Path(experiment)
    site = Site(Experiment.load(file), name, Path(state), Limits.beside(file))
    return SignedSite(site)
