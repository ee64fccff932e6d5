"""Distillation at a server: BatchNorm, and a rate that falls where the loss does not."""

import pytest
import torch
from torch import nn

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.distillation import Pace, normalising


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


def test_pace_is_torchs_plateau_scheduler():
    """Factor 0.2 and patience 2, as DaFKD's released code calls it."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=2)
    pace, rates, expected = Pace(0.2), [], []
    for loss in (3.0, 2.0, 2.0, 1.99999, 2.5, 2.4, 2.3, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        pace.note(loss)
        scheduler.step(loss)
        rates.append(pace.factor)
        expected.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx(expected)
    assert len(set(rates)) > 2
