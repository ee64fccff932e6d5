"""Attacks against the numbers worked by hand."""

import math

import pytest
import torch

from rayfed_kd.setting.attacks import Honest, lie, lie_z, ofom, paf
from rayfed_kd.toolbox.robust import coordinate_median, krum_scores, multi_krum, trimmed_mean

B = torch.tensor([[1.0, 2.0], [1.2, 1.8], [0.8, 2.1], [1.1, 2.3]], dtype=torch.float64)


def of(payloads):
    return Honest.of(payloads, range(len(payloads)))


HONEST = of(B)


def near(values):
    return pytest.approx(values, abs=2e-6)


def test_statistics_of_the_honest_are_population_ones():
    assert HONEST.mean.tolist() == pytest.approx([1.025, 2.05], abs=1e-12)
    assert HONEST.deviation.tolist() == pytest.approx([0.1479019946, 0.1802775638], abs=1e-10)
    assert HONEST.count == 4


def test_paf_is_far_from_the_honest_mean():
    assert paf(HONEST, 10).tolist() == near([11.025, 12.05])
    assert torch.cat([B, paf(HONEST, 10)[None]]).mean(0).tolist() == near([3.025, 4.05])


@pytest.mark.parametrize(
    ("z", "expected"),
    [
        (1.5, [1.2468529919, 2.3204163457]),
        (-1.5, [0.8031470081, 1.7795836543]),
        (0.3360381404, [1.0747007112, 2.1105801373]),
    ],
)
def test_lie_lies_z_deviations_from_the_mean(z, expected):
    assert lie(HONEST, z).tolist() == near(expected)


def test_ofom_sends_one_far_and_one_mean():
    first, second = ofom(HONEST, 10)
    assert first.tolist() == near([11.025, 12.05])
    assert second.tolist() == near([3.025, 4.05])
    six = torch.cat([B, first[None], second[None]])
    assert six.mean(0).tolist() == near([3.025, 4.05])
    assert coordinate_median(six).tolist() == near([1.15, 2.2])
    assert trimmed_mean(six, 1 / 6).tolist() == near([1.58125, 2.6125])
    assert trimmed_mean(six, 2 / 6).tolist() == near([1.15, 2.2])
    assert multi_krum(six, 1, 1).tolist() == near([1, 2])
    scores = [0.23, 0.59, 0.43, 0.49, 523.07125, 23.464375]
    assert krum_scores(six, 1).tolist() == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("payload"), [lambda h: paf(h, 0), lambda h: lie(h, 0), lambda h: ofom(h, 0)[0], lambda h: ofom(h, 0)[1]]
)
def test_an_attack_of_strength_zero_leaves_the_plain_mean_as_it_was(payload):
    with_attacker = torch.cat([B, payload(HONEST)[None]])
    assert with_attacker.mean(0).tolist() == near([1.025, 2.05])


@pytest.mark.parametrize(
    ("honest", "corrupt", "form", "expected"),
    [
        (38, 12, "baruch", 0.3360381404),
        (15, 1, "baruch", -0.0836517339),
        (15, 1, "fedgems", 0.0836517339),
        (16, 1, "fedgems", 0.0),
        (7, 1, "baruch", -0.1800123698),
        (7, 1, "fedgems", 0.1800123698),
        (50, 12, "fedgems", 0.5828415073),
    ],
)
def test_z_from_either_formula(honest, corrupt, form, expected):
    assert lie_z(honest, corrupt, form) == pytest.approx(expected, abs=1e-9)


def test_z_without_a_bound_is_infinite():
    """All clients but one corrupt: n = 3, f = 2: s = 0, share (3 - 2 - 0) / (3 - 2) = 1."""
    assert lie_z(1, 2, "baruch") == math.inf


def test_an_attack_on_some_rows_is_those_rows_of_an_attack_on_all():
    payloads = torch.rand(5, 8, 3, generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([6, 1])
    whole, part = of(payloads), of(payloads[:, rows])
    assert torch.equal(lie(whole, 1.5)[rows], lie(part, 1.5))
    assert torch.equal(ofom(whole, 10)[1][rows], ofom(part, 10)[1])


def test_payloads_are_float32():
    assert {t.dtype for t in (paf(HONEST, 1), lie(HONEST, 1), *ofom(HONEST, 1))} == {torch.float32}
