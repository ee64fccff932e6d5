"""Whether data and recipe are such as a method needs: images to generate, public samples, replies to sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel

from rayfed_kd.data.dataset import Dataset
from rayfed_kd.errors import RecipeError
from rayfed_kd.features.codecs.loading import Codecs
from rayfed_kd.protocol import Method, Wrapping
from rayfed_kd.protocol.declaration import means_suffice
from rayfed_kd.recipe.sample_shapes import is_image, samples_called
from rayfed_kd.recipe.schema import Recipe

# What options' names end with -> how much later than the round or update that they say something begins.
FIRST = {"from_round": 0, "warmup_rounds": 1, "blend_after": 2}
ROUNDING = 1e-6  # of float32 pixels that were scaled


def check_generated(method: str, generates: str, dataset: Dataset) -> None:
    """Refuse data that are no images, and images whose numbers lie elsewhere than those of generated ones.

    Args:
        method: its name in the recipe.
        generates: what it makes, as `Method.generates` says.
        dataset: with the mean and deviation that a run uses.
    Raises: RecipeError
    """
    if not is_image(dataset.shape):
        raise RecipeError(
            f"{method} generates {generates}; this data set has {samples_called(dataset.shape)}; expected "
            "another method, as method={name: fedavg}",
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


def never_begun(options: BaseModel, rounds: int) -> str:
    """A note on what options begin after the run's last round; empty if there is nothing.

    Args:
        options: a method's.
        rounds: of the run.
    """
    late = [
        f"method.{name} = {value}: the run has {rounds} rounds, and what begins then never does"
        for name, value in options
        for end, later in FIRST.items()
        if name.endswith(end) and value is not None and value + later > rounds
    ]
    return "; ".join(late)


def check_public(recipe: Recipe, method: Method[Any, Any]) -> None:
    """Refuse a recipe without public samples, or without their labels, where the method needs them.

    Raises: RecipeError
    """
    needs, public, name = method.public, recipe.partition.public, recipe.method.name
    if needs == "none":
        return
    if public is None:
        kind = "labelled public" if needs == "labels" else "public"
        raise RecipeError(
            f"partition.public is missing: {name} needs {kind} samples, as partition.public={{fraction: 0.5}}"
        )
    if needs == "labels" and not public.labels:
        raise RecipeError(
            f"partition.public.labels = false: {name} needs the labels of public samples with these options; "
            f"expected true, or options with which it does not: `rayfed-kd methods {name}` lists them"
        )


def check_epochs(recipe: Recipe, method: Method[Any, Any]) -> None:
    """Refuse parts of an epoch, and steps, where the method divides local training by epochs.

    Raises: RecipeError
    """
    local, name = recipe.local, recipe.method.name
    if method.whole_epochs and not isinstance(local.epochs, int):
        raise RecipeError(
            f"local.{local.length}: {name} with these options divides local training by whole epochs; "
            "expected local.epochs as a whole number, and local.steps=null"
        )


def check_sampling(recipe: Recipe, method: Method[Any, Any]) -> None:
    """Refuse rounds without a client where the method does something of its own around another's rounds.

    Raises: RecipeError
    """
    if recipe.sampling.poisson and isinstance(method, Wrapping):
        nothing = f"a round may have no client, and {recipe.method.name} then does nothing of its own"
        raise RecipeError(nothing, "sampling.poisson")


def check_label_options(recipe: Recipe, method: Method[Any, Any], classes: int) -> None:
    """Refuse label smoothing and class weights that the method's loss on labels would not have.

    Raises: RecipeError
    """
    local, name = recipe.local, recipe.method.name
    if local.label_smoothing == 0 and local.class_weights is None:
        return
    key = "label_smoothing" if local.label_smoothing else "class_weights"
    if not method.label_options:
        raise RecipeError(
            f"{name} does not say by `label_options` that its clients' loss on labels has it; expected none",
            f"local.{key}",
        )
    weights = local.class_weights
    if isinstance(weights, list) and len(weights) != classes:
        raise RecipeError(f"{weights}: expected {classes} numbers, one for each class", "local.class_weights")


def check_summed_replies(recipe: Recipe, method: Method[Any, Any], codecs: Codecs) -> None:
    """Refuse sums at the hosts where the method or the recipe needs single replies.

    Args:
        codecs: by direction and kind.
    Raises: RecipeError
    """
    size = recipe.local.sum_replies
    if size == "off":
        return
    reason = _of_recipe(recipe, codecs)
    if not means_suffice(method.up):
        reason = (
            f"{recipe.method.name} with these options uses single replies, and hosts would send sums; "
            "expected off, or a method that declares all parts of its replies as Averaged"
        )
    if reason:
        raise RecipeError(f"local.sum_replies = {size}: {reason}")


def _of_recipe(recipe: Recipe, codecs: Codecs) -> str | None:
    schedule, placement = recipe.schedule.name, recipe.placement
    lossy = next((kind for kind, chain in codecs["up"].items() if not chain.lossless), None)
    reasons = {
        f"schedule.name = {schedule!r} may drop a reply or take it later, which its group's sum would still "
        "hold; expected off, or schedule.name=sync": schedule != "sync",
        "attack replaces single replies at the server; expected off, or attack=null": recipe.attack
        is not None,
        "privacy weighs replies and adds its noise at the server; expected off, or privacy=null": (
            recipe.privacy is not None
        ),
        "faults.bad_replies = 'drop' leaves out single replies, which their group's sum would still hold; "
        "expected off, or faults.bad_replies=stop": recipe.faults.bad_replies == "drop",
        f"codec.up.{lossy}: the server would average what was decoded, and hosts sum what was not encoded; "
        "expected off, or codecs without a loss": lossy is not None,
        "placement.clients_per_actor = 1: a client's own actor runs nobody else; expected off, or more "
        "clients per actor": placement.clients_per_actor == 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
