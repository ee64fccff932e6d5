"""Augmentation: seeded, shape-preserving, and really what its name says."""

import pytest
import torch

from rayfed_kd.data.augment import (
    AUGMENTATIONS,
    augment,
    check_augmentation,
    random_crop,
    random_flip,
    random_rotation,
)
from rayfed_kd.data.batches import normalise
from rayfed_kd.errors import RecipeError


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(batch=6):
    return torch.randint(0, 256, (batch, 3, 12, 10), dtype=torch.uint8, generator=stream(9))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_same_stream_gives_the_same_pictures(name):
    first, second = augment(pictures(), name, stream()), augment(pictures(), name, stream())
    assert torch.equal(first, second)
    assert (first.shape, first.dtype) == (pictures().shape, torch.uint8)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_nothing_is_drawn_from_the_global_generator(name):
    before = torch.get_rng_state()
    augment(pictures(), name, stream())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_crop_is_a_window_of_the_padded_picture(mode):
    images = pictures(20)
    padded = torch.nn.functional.pad(images.float(), (4, 4, 4, 4), mode=mode).to(torch.uint8)
    for crop, whole in zip(random_crop(images, stream(), mode), padded, strict=True):
        windows = (whole[:, y : y + 12, x : x + 10] for y in range(9) for x in range(9))
        assert any(torch.equal(crop, window) for window in windows)


def test_every_place_of_the_window_is_drawn():
    """One pixel in the middle of a 9x9 picture moves to each of the 81 places."""
    images = torch.zeros(2000, 1, 9, 9, dtype=torch.uint8)
    images[:, 0, 4, 4] = 1
    assert torch.all(random_crop(images, stream()).sum(dim=(0, 1)) > 0)


def test_rotation_stays_within_fifteen_degrees():
    """A line through the middle of 33x33: 14 columns off, |row - 16| <= 14 tan 15 + 0.5 / cos 15 = 4.3."""
    images = torch.zeros(200, 1, 33, 33, dtype=torch.uint8)
    images[:, 0, 16] = 1
    rows = random_rotation(images, stream())[:, 0, :, 2].nonzero()
    assert (rows[:, 1].min().item(), rows[:, 1].max().item()) == (12, 20)
    assert len(rows[:, 0].unique()) == 200


def test_rotation_of_wide_pictures_shears_nothing():
    """The same turn of the picture inside a square."""
    square = torch.zeros(50, 1, 33, 33, dtype=torch.uint8)
    wide = torch.randint(0, 256, (50, 1, 9, 33), dtype=torch.uint8, generator=stream(3))
    square[:, :, 12:21] = wide
    alike = random_rotation(square, stream())[:, :, 12:21] == random_rotation(wide, stream())
    assert alike.float().mean() > 0.99


def test_rotation_moves_floats_as_it_moves_pixels():
    turned = random_rotation(pictures() / 255, stream())
    assert torch.equal((turned * 255).round().to(torch.uint8), random_rotation(pictures(), stream()))


def test_half_of_the_pictures_are_mirrored():
    """1,000 flips: 500 with deviation 15.8."""
    images = torch.zeros(1000, 1, 1, 2, dtype=torch.uint8)
    images[..., 0] = 1
    flipped = (random_flip(images, stream())[:, 0, 0, 1] == 1).sum().item()
    assert abs(flipped - 500) < 80


def test_normalised_pixels_by_hand():
    """(51 / 255 - 0.1) / 0.5 = 0.2."""
    image = torch.full((1, 1, 1, 1), 51, dtype=torch.uint8)
    assert normalise(image, torch.tensor([0.1]), torch.tensor([0.5])).item() == pytest.approx(0.2)


def test_features_are_not_normalised():
    features = torch.randn(3, 5)
    assert normalise(features, torch.zeros(5), torch.ones(5)) is features


@pytest.mark.parametrize(
    ("name", "shape"), [("crop_flip", (6,)), ("reflect_crop_flip", (3, 4, 8)), ("crop_flip_rotate", (3, 4))]
)
def test_augmentation_that_samples_cannot_take_is_refused(name, shape):
    with pytest.raises(RecipeError, match=f"data.augment: {name}"):
        check_augmentation(name, shape)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_smallest_picture_takes_every_augmentation(name):
    check_augmentation(name, (1, 5, 5))
    assert augment(pictures()[:, :, :5, :5], name, stream()).shape == (6, 3, 5, 5)
