"""Label counts: shares by hand, labels drawn and split, both forms of the class weights."""

import pytest
import torch

from rayfed_kd.toolbox.by_class.means import (
    class_shares,
    drawn_labels,
    proportional_labels,
    weighted_by_class,
)


class Streams:
    device = torch.device("cpu")

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def stream(self, purpose):
        return self.generator


def test_shares_of_two_clients_by_hand():
    """Counts (30, 10) and (10, 50): .75 and .25 of class 0, 1/6 and 5/6 of class 1."""
    shares = class_shares(torch.tensor([[30.0, 10.0], [10.0, 50.0]]))
    torch.testing.assert_close(shares, torch.tensor([[0.75, 1 / 6], [0.25, 5 / 6]]))


def test_class_that_nobody_has_is_nobodys():
    shares = class_shares(torch.tensor([[3.0, 0.0], [1.0, 0.0]]))
    assert shares[:, 1].tolist() == [0.0, 0.0]


def test_drawn_labels_follow_the_counts_and_leave_absent_classes_out():
    """Counts 0, 300, 0, 100: about three of class 1 for each of class 3, none of another."""
    labels = drawn_labels(torch.tensor([0.0, 300.0, 0.0, 100.0]), 4000, Streams())
    found = torch.bincount(labels, minlength=4).tolist()
    assert found[0] == found[2] == 0
    assert found[1] == pytest.approx(3000, abs=120)  # more than four standard deviations (27)


def test_ten_labels_of_p_four_and_six_tenths_split_four_and_six():
    assert proportional_labels(torch.tensor([40.0, 60.0]), 10).tolist() == [0] * 4 + [1] * 6


def test_split_gives_every_label_and_none_to_absent_classes():
    """Counts 1, 0, 2 of ten: ends 10/3 and 10 round down to 3 and 10."""
    assert torch.bincount(proportional_labels(torch.tensor([1.0, 0.0, 2.0]), 10)).tolist() == [3, 0, 7]


LOSSES = torch.tensor([[0.2, 1.0], [0.5, 2.0]])
WEIGHTS = torch.tensor([[0.75, 0.1], [0.25, 0.9]])


def test_weights_per_sample_by_hand():
    """(.75 x .2 + .1 x 1) / 2 + (.25 x .5 + .9 x 2) / 2 = 0.125 + 0.9625."""
    assert weighted_by_class(LOSSES, WEIGHTS).item() == pytest.approx(1.0875)


def test_cancelled_weights_by_hand():
    """mean CE x mean a: .6 x .425 + 1.25 x .575."""
    assert weighted_by_class(LOSSES, WEIGHTS, "cancelled").item() == pytest.approx(0.97375)
