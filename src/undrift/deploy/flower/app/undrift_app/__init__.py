"""The apps that Flower starts where nobody else did."""

from undrift.deploy.flower.apps import client, server

__all__ = ["client", "server"]
