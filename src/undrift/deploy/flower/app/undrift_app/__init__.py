"""The app that `flwr run` starts: it imports undrift's apps, which are installed everywhere."""

from undrift.deploy.flower.apps import client, server

__all__ = ["client", "server"]
