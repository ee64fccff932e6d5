"""What a step logs, as tables get it."""

import torch

from rayfed_kd.protocol.context_facts import Log


def test_plain_numbers_are_logged_in_64_bits_and_a_logged_tensor_may_change_afterwards():
    log, step = Log(), torch.zeros((), dtype=torch.float64)
    for number in (0.1, 0.2, 1e300):
        log.add(step=step.add_(1), **{f"{number}": number})
    # float32, torch's type of a plain number, has no 0.1 of 64 bits, and ends at 3.4e38.
    assert log.totals() == {"step": (6.0, 3), "0.1": (0.1, 1), "0.2": (0.2, 1), "1e+300": (1e300, 1)}
