"""Cache slots: running sums against hand-worked rounds and against adding afresh."""

import numpy as np
import pytest
import torch

from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.protocol import PartRef
from rayfed_kd.toolbox.slots import Slots


def ref(*values: float) -> PartRef:
    return PartRef(Held({"student": np.array(values, dtype=np.float32)}), "student")


def test_hand_worked_two_rounds_of_oca():
    """Sizes 10, 20, 30, w0 = 0. Round 1, clients 1, 2 give 1, 4; round 2, clients 2, 3 give 7, 10.

    initial: (10 + 80) / 60 = 1.5, then (10 + 140 + 300) / 60 = 7.5; ignore: 90 / 30 = 3, then 7.5.
    """
    first = Slots.empty(1).replaced({0: (ref(1), 10), 1: (ref(4), 20)})
    assert first.mean(torch.zeros(1), 60 - first.weight).item() == 1.5
    assert first.mean().item() == 3.0
    second = first.replaced({1: (ref(7), 20), 2: (ref(10), 30)})
    assert second.mean(torch.zeros(1), 60 - second.weight).item() == 7.5
    assert second.mean().item() == 7.5


def test_unseen_clients_count_as_initial_model():
    """(10 * 1 + 50 * 6) / 60 = 31 / 6."""
    slots = Slots.empty(1).replaced({0: (ref(1), 10)})
    assert slots.mean(torch.tensor([6.0]), 50).item() == pytest.approx(31 / 6)


def test_replacing_leaves_the_old_slots_as_they_were():
    first = Slots.empty(1).replaced({0: (ref(1), 10)})
    first.replaced({0: (ref(5), 10)})
    assert first.mean().item() == 1.0


def test_running_sum_agrees_with_adding_afresh_after_thousands():
    stream = np.random.default_rng(3)
    slots = Slots.empty(4)
    for _ in range(3000):
        updates = {
            int(k): (ref(*stream.normal(size=4)), float(stream.integers(1, 100)))
            for k in stream.choice(20, 3, replace=False)
        }
        slots = slots.replaced(updates)
    afresh = slots.reweighted(slots.weights)
    assert torch.allclose(slots.total, afresh.total, rtol=1e-6, atol=1e-9)
    assert slots.weight == afresh.weight


def test_mean_of_nobody_is_refused():
    with pytest.raises(ValueError, match="no client has a slot"):
        Slots.empty(2).mean()
