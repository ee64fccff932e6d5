"""Distillation at a server: BatchNorm."""

import pytest
import torch
from torch import nn

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.distillation import normalising


@pytest.mark.parametrize(
    ("mode", "batch_of_its_own", "follows"),
    [("keep", True, False), ("update", True, True), ("eval", False, False)],
)
def test_modes_of_batchnorm(mode, batch_of_its_own, follows):
    flat = FlatModule(nn.BatchNorm1d(2))
    flat.train()
    before = flat.vector()
    with normalising(flat, mode):
        shown = flat(5 + torch.randn(64, 2))
    assert (shown.mean().abs() < 0.01) == batch_of_its_own
    assert (not torch.equal(flat.vector(), before)) == follows
