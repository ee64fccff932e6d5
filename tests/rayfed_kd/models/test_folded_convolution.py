"""Upsampling and a 3x3 convolution as one transposed convolution: the same sums, in another order."""

import pytest
import torch
from torch import nn

from rayfed_kd.models.generators import FoldedConvolution, conditional_image, dafl_image, enlarging


def test_one_number_becomes_the_sums_of_the_taps_that_meet_its_copies():
    """A map of one number a is a 2x2 map of a under a padded kernel; by hand, with taps 1 to 9 in rows."""
    layer = FoldedConvolution(1, 1)
    layer.weight.data, layer.bias.data = torch.arange(1.0, 10.0).view(1, 1, 3, 3), torch.tensor([0.5])
    made = layer(torch.tensor([[[[2.0]]]]))
    # Top left: the taps below and right of the middle, 5 + 6 + 8 + 9; the other corners likewise.
    expected = [[2 * (5 + 6 + 8 + 9) + 0.5, 2 * (4 + 5 + 7 + 8) + 0.5], [2 * (2 + 3 + 5 + 6) + 0.5, 0]]
    expected[1][1] = 2 * (1 + 2 + 4 + 5) + 0.5
    assert made.squeeze().tolist() == expected


@pytest.mark.parametrize(("into", "out", "height", "across"), [(3, 5, 4, 7), (8, 2, 1, 2), (1, 1, 5, 3)])
def test_folded_form_and_its_gradients_are_those_of_upsampling_and_convolution(into, out, height, across):
    torch.manual_seed(0)
    plain = nn.Sequential(*enlarging(into, out, "plain")).double()
    folded = nn.Sequential(*enlarging(into, out, "folded")).double()
    assert folded.state_dict().keys() == plain.state_dict().keys()
    folded.load_state_dict(plain.state_dict())
    maps = torch.randn(2, into, height, across, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, out, 2 * height, 2 * across, dtype=torch.float64)
    results = []
    for form in (plain, folded):
        made = form(maps)
        gradients = torch.autograd.grad((made * weight).sum(), [maps, *form.parameters()])
        results.append([made, *gradients])
    for one, other in zip(*results, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [dafl_image, conditional_image])
def test_a_generator_has_the_form_that_its_option_names(build):
    forms = {
        form: sum(
            isinstance(part, FoldedConvolution) for part in build((1, 8, 8), 3, upsampling=form).modules()
        )
        for form in ("plain", "folded")
    }
    assert forms == {"plain": 0, "folded": 2}
