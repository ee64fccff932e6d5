"""Mean curves over seeds, by round and by what they cost."""

import pytest

from rayfed_kd.comparison.curves import Cost, Curve
from rayfed_kd.comparison.writers.pictures import lines_over_cost, mean_line
from rayfed_kd.results.charts.lines import Line


def seconds(*values):
    return [Cost(0, 0, sim_s=value) for value in values]


SEEDS = [
    Curve([1, 2, 3], [0.1, 0.2, 0.07], seconds(1.0, 2.0, 9.0)),
    Curve([1, 2], [0.14, 0.26], seconds(3.0, 6.0)),
]


def test_seeds_of_a_row_have_one_line_their_mean_with_a_band():
    """The third round is in one seed alone; the sample deviations are those of (10, 14) and (20, 26)."""
    line = mean_line(3, SEEDS, 100)
    assert (line.look, line.x, line.y) == (3, [1, 2], pytest.approx([12.0, 23.0]))
    assert line.deviation == pytest.approx([8**0.5, 18**0.5])
    assert mean_line(0, [Curve([1], [5.0], seconds(None))], 1) == Line(0, [1], [5.0])


def test_mean_of_seeds_over_costs_by_hand():
    line = mean_line(2, SEEDS, 100, "sim_s")
    assert (line.look, line.x, line.y) == (2, [2.0, 4.0], pytest.approx([12.0, 23.0]))
    assert line.deviation == pytest.approx([8**0.5, 18**0.5])


@pytest.mark.parametrize("cost", [None, 0.0, float("inf")])
def test_round_without_a_finite_cost_has_no_point(cost):
    other = Curve([1, 2], [0.3, 0.3], seconds(cost, 4.0))
    assert mean_line(0, [SEEDS[1], other], 1, "sim_s").x == [5.0]


def test_series_without_a_cost_is_dotted_from_end_to_end_at_its_mean_last_value():
    flat = [Curve([1], [value], seconds(None)) for value in (0.2, 0.4)]
    line = lines_over_cost({"A": SEEDS, "B": flat}, {"A": 0, "B": 1}, 100, "sim_s")[1]
    assert (line.look, line.dotted, line.label) == (1, True, "B, no clock")
    assert (line.x, line.y) == ([2.0, 4.0], pytest.approx([30.0, 30.0]))
