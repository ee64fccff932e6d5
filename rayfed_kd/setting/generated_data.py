"""Whether data are such as a method's generators make."""

from __future__ import annotations

import numpy as np

from rayfed_kd.data.dataset import Dataset
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.sample_shapes import is_image, samples_called

ROUNDING = 1e-6  # of float32 pixels that were scaled


def check_generated(method: str, generates: str, dataset: Dataset) -> None:
    """Refuse data that are no images, and images whose numbers lie elsewhere than those of generated ones.

    Args:
        method: its name in the recipe.
        generates: what it makes: `images`, or `feature maps of images`.
        dataset: with the mean and deviation that a run uses.
    Raises: RecipeError
    """
    if not is_image(dataset.shape):
        raise RecipeError(
            f"{method} generates {generates}; this data set has {samples_called(dataset.shape)}",
            path="method.name",
        )
    images = dataset.train.images
    if generates != "images" or images.dtype == np.uint8:
        return
    # Generators make [0, 1], which is normalised as pixels are; floats of a data set are used as they are.
    bounds = [(edge - dataset.mean[0]) / dataset.std[0] for edge in (0, 1)]
    least, most = float(images.min()), float(images.max())
    # Floats in [0, 1] lie within [-1, 1], too, and are none of its images.
    if not (bounds[0] - ROUNDING <= least and most <= bounds[1] + ROUNDING) or least >= 0 > bounds[0]:
        raise RecipeError(
            f"{method} generates images in [{bounds[0]:g}, {bounds[1]:g}]; those of this data set are "
            f"floats from {least:.4g} to {most:.4g}. Expected pixels as uint8, floats in [0, 1], or floats "
            "in [-1, 1] with data.pixels=symmetric",
            path="method.name",
        )
