"""Deployments: the same methods across real sites, with Flower as the transport.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""
