"""Flower as the carrier of a deployment: SuperLink, SuperNodes and what they are told.

All that knows Flower's insides is here; its version is pinned by the extra `undrift[flower]`.
"""
