"""The label rule of KDIA's clients, and pixels as the model sees them."""

from types import SimpleNamespace

import pytest
import torch
from small_recipes import THREE_CLIENTS

from rayfed_kd.data.batches import DeviceData
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.toolbox.generation import mean_cosines, pooled_labels, uniform_labels
from rayfed_kd.toolbox.losses import diversity_loss


def context(samples=0, batch_size=64, passes=1):
    streams = {}

    def stream(purpose):
        return streams.setdefault(purpose, torch.Generator().manual_seed(len(purpose)))

    # `local.last_batch: keep`: the last batch is what is left.
    return SimpleNamespace(
        classes=10,
        device="cpu",
        stream=stream,
        in_batches=lambda items: torch.split(items, batch_size),
        num_samples=samples,
        passes=passes,
        local=SimpleNamespace(batch_size=batch_size),
    )


def test_pool_of_a_large_client_is_the_same_labels_in_another_order_each_epoch():
    batches = list(pooled_labels(context(150, passes=3)))
    assert [len(batch) for batch in batches] == [64, 64, 22] * 3
    joined = torch.cat(batches).split(150)
    assert all(torch.equal(labels.sort().values, joined[0].sort().values) for labels in joined)
    assert not torch.equal(joined[0], joined[1])


def test_small_client_has_labels_of_its_own_in_every_epoch():
    """N_k 20 < B 64, E 5: 100 labels, twenty an epoch, none twice."""
    epochs = list(pooled_labels(context(20, passes=5)))
    assert [len(labels) for labels in epochs] == [20] * 5
    assert torch.equal(torch.cat(epochs), uniform_labels(100, context()))
    assert not torch.equal(epochs[0], epochs[1])


def test_labels_are_uniform():
    """64,000 draws of ten classes: each within five deviations, 5 sqrt(64000 .1 .9) = 380, of 6,400."""
    labels = torch.cat(list(pooled_labels(context(64_000))))
    counts = torch.bincount(labels, minlength=10)
    assert (counts - 6400).abs().max() < 380


def test_cosines_of_classes_by_hand():
    """Two clients' e1 and (e1 + e2) / sqrt(2) have the mean (1 + 1 / sqrt(2), 1 / sqrt(2)) / 2."""
    half = 0.5**0.5
    sums = [
        torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]]),
        torch.tensor([[half, half], [0.0] * 2, [0.0] * 2]),
    ]
    counts = [torch.tensor([1.0, 3.0, 0.0]), torch.tensor([1.0, 0.0, 0.0])]
    directions = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
    cosines = mean_cosines(sums, counts, directions)
    assert cosines[:2].tolist() == pytest.approx([(1 + half) / 2, 0.8])
    assert cosines[2].isnan()


def test_diversity_by_hand():
    """|e1 - e2| = 2, 4 in mean 3; |Z1 - Z2| = 1.5: 3 / (1.5 + 1e-5); an odd last row is left out."""
    noise = torch.tensor([[0.0, 0.0], [2.0, 4.0], [99.0, 99.0]])
    samples = torch.tensor([[1.0], [2.5], [7.0]])
    assert diversity_loss(noise, samples).item() == pytest.approx(3 / (1.5 + 1e-5), rel=1e-6)


@pytest.mark.parametrize("rows", [0, 1])
def test_diversity_needs_two_samples(rows):
    with pytest.raises(ValueError, match="2 or more"):
        diversity_loss(torch.zeros(rows, 3), torch.zeros(rows, 3))


def test_symmetric_pixels_lie_between_minus_one_and_one():
    data = DeviceData(prepare(THREE_CLIENTS, ["data.pixels=symmetric"]).setting.dataset)
    black_and_white = data.normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    torch.testing.assert_close(black_and_white, torch.tensor([[[[-1.0, 1.0]]]]))
    torch.testing.assert_close(data.pixels(black_and_white), torch.tensor([[[[0.0, 1.0]]]]))
