"""Means by class, and what the server makes of several clients': by hand, and classes that have none."""

import pytest
import torch

from rayfed_kd.toolbox.by_class.means import PerClass, class_means, pooled, spread


def per_class(classes, values, counts):
    values = torch.tensor(values, dtype=torch.float32)
    return PerClass(torch.tensor(classes, dtype=torch.int32), values, torch.tensor(counts))


def test_means_by_class_over_batches_by_hand():
    first = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([3, 1])
    result = class_means([first, (torch.tensor([[5.0, 4.0]]), torch.tensor([3]))], 4)
    assert result.classes.tolist() == [1, 3]
    assert result.classes.dtype == torch.int32
    assert result.values.tolist() == [[3, 0], [3, 3]]
    assert result.counts.tolist() == [1, 2]


def test_means_are_of_all_samples_alike_and_not_means_of_batches():
    batches = ([[0.0], [0.0], [0.0]], [[4.0]])
    means = class_means(((torch.tensor(one), torch.zeros(len(one), dtype=torch.int64)) for one in batches), 1)
    assert means.values.item() == 1


def test_means_of_nothing_are_refused():
    with pytest.raises(ValueError, match="means of nothing"):
        class_means([], 3)


@pytest.mark.parametrize(
    ("pooling", "expected"), [("count", [1.5, 1.0]), ("uniform", [2.0, 2.0]), ("literal", [0.75, 0.5])]
)
def test_two_clients_prototypes_of_a_class_by_hand(pooling, expected):
    """Counts 30 and 10, p (1, 0) and (3, 4)."""
    clients = [per_class([2], [[1, 0]], [30.0]), per_class([2], [[3, 4]], [10.0])]
    result = pooled(clients, 5, pooling)
    assert (result.classes.tolist(), result.values.tolist(), result.counts.tolist()) == (
        [2],
        [expected],
        [40],
    )


def test_class_of_one_client_keeps_its_vector_and_a_class_of_nobody_has_none():
    clients = [per_class([0, 2], [[1, 1], [0, 0]], [1.0, 9.0]), per_class([2], [[4, 8]], [3.0])]
    result = pooled(clients, 4, "count")
    assert result.classes.tolist() == [0, 2]
    assert result.values.tolist() == [[1, 1], [1, 2]]


def test_spread_tells_a_vector_of_zeros_from_no_vector():
    rows, present = spread(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([[0.0], [7.0]]), 4)
    assert present.tolist() == [False, True, True, False]
    assert rows[present].tolist() == [[0], [7]]
