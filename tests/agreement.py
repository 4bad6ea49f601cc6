"""Compares two runs of the same method: models, states, buffers and records."""

import pytest
import torch


def assert_same(one, other, tolerance=1e-10):
    """Assert that two runs agree; each is a loop and its records."""
    (a, records), (b, others) = one, other
    assert torch.allclose(a.server.x, b.server.x, atol=tolerance, rtol=0)
    assert set(a.states.seen()) == set(b.states.seen())
    for client in a.states.seen():
        for name, value in a.states.get(client).items():
            theirs = getattr(b.states.get(client), name)
            assert value.shape == theirs.shape
            assert torch.allclose(value, theirs, atol=tolerance, rtol=0), name
    assert a.buffers.keys() == b.buffers.keys()
    for name, value in a.buffers.items():
        assert torch.allclose(value.double(), b.buffers[name].double(), atol=tolerance, rtol=0)
    counted = ("cohort", "rejected", "bytes_up", "bytes_down", "steps", "gradients", "partial")
    for ours, theirs in zip(records, others, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-9)
        assert ours.diagnostics == pytest.approx(theirs.diagnostics, abs=1e-8)
        for field in counted:
            assert getattr(ours, field) == getattr(theirs, field), field
