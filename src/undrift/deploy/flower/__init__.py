"""Flower as the transport of a deployment: SuperLink, SuperNodes and their processes.

Only this package depends on Flower's internals; the extra `undrift[flower]` pins its version.
"""
