"""Where a vector's tensors lie in a GPU's memory."""

import torch

from rayfed_kd.models.spacing import Spacing


def test_each_tensor_begins_at_a_multiple_of_64_numbers():
    """3, 64 and 65 numbers begin at 0, 64 and 128; the last ends at 193."""
    spacing = Spacing((3, 64, 65))
    assert [place.start for place in spacing.stored] == [0, 64, 128]
    vector = torch.arange(1.0, 133.0)
    memory = spacing.spread(vector)
    assert len(memory) == 193 and memory.sum() == vector.sum() and memory[3:64].eq(0).all()
    assert spacing.gathered(memory).equal(vector)
    place, part = spacing.within(slice(3, 132), 132)
    assert place == slice(64, 193) and part.gathered(memory[place]).equal(vector[3:])
