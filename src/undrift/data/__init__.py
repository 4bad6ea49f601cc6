"""Federated data sets."""

from undrift.data.federated import FederatedData, Part
from undrift.data.synthetic import synthetic

__all__ = ["FederatedData", "Part", "synthetic"]
