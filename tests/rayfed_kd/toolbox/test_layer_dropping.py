"""The dropping schedule, by the sequences of methods section 5 and FedPer+'s."""

import pytest
import torch

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.small_cnns import m1
from rayfed_kd.toolbox.layers import DroppingOptions, Layers, shared_layers


def sequence(duration, count, layers=6, lowest=3):
    return [shared_layers(z, layers, lowest, duration) for z in range(1, count + 1)]


@pytest.mark.parametrize(
    ("duration", "ends"), [(3, {6: 3, 5: 6, 4: 9}), (5, {6: 5, 5: 10, 4: 15}), (7, {6: 7, 5: 14, 4: 21})]
)
def test_worked_sequences_of_six_layers_down_to_three(duration, ends):
    """Z0 3: 6 for Z 1..3, 5 to 6, 4 to 9, 3 after; Z0 5: to 5, 10, 15; Z0 7: to 7, 14, 21."""
    expected = [next((layer for layer, end in ends.items() if z <= end), 3) for z in range(1, 61)]
    assert sequence(duration, 60) == expected


def test_floor_holds_where_the_formula_would_go_below():
    """Z0 3 without a floor is 0 at Z 19: 6 - floor(18 / 3)."""
    assert shared_layers(19, 6, 0, 3) == 0
    assert shared_layers(19, 6, 3, 3) == 3
    assert shared_layers(10_000, 6, 1, 3) == 1


def test_no_duration_never_drops():
    assert sequence(None, 50) == [6] * 50


@pytest.mark.parametrize(
    ("dropping", "lowest"),
    [
        (["F1", "F2", "F3"], 3),
        (["F2", "F3"], 4),
        (["C3", "F1", "F2", "F3"], 2),
        (["C2", "C3", "F1", "F2", "F3"], 1),
    ],
)
def test_dropping_sets_of_table_3(dropping, lowest):
    layers = Layers(FlatModule(m1((3, 32, 32), 10)))
    assert DroppingOptions(dropping=dropping).shared(1, layers) == 6
    assert DroppingOptions(dropping=dropping).shared(1000, layers) == lowest
    assert DroppingOptions(dropping=dropping, at_once=True).shared(1, layers) == lowest


def test_layer_that_does_not_exist_is_refused():
    torch.manual_seed(0)
    layers = Layers(FlatModule(m1((3, 32, 32), 10)))
    with pytest.raises(
        RecipeError, match=r"method.dropping: the model has no layer F4; it has C1, C2, C3, F1"
    ):
        DroppingOptions(dropping=["F3", "F4"]).shared(1, layers)
