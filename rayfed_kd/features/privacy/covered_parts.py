"""Which of a method's parts `privacy` covers, and what it refuses before the first round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayfed_kd.errors import RecipeError
from rayfed_kd.features.codecs.loading import Codecs
from rayfed_kd.features.privacy.accountant import require_accountant
from rayfed_kd.protocol import Answers, Method, Simulated, Unaligned
from rayfed_kd.protocol.declaration import kinds, means_suffice
from rayfed_kd.protocol.message_codec import VECTORS
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.timing import sampling_rate
from rayfed_kd.timing import Devices

ROWS = ("logits", "features", "prototypes")


@dataclass(frozen=True)
class CoveredParts:
    """The names of a method's parts that go up.

    Attributes:
        vectors: models, of which the changes are clipped as one vector.
        rows: of which each row is clipped.
    """

    vectors: tuple[str, ...]
    rows: tuple[str, ...]


def covered_parts(method: Method[Any, Any], name: str) -> CoveredParts:
    """The parts that go up.

    Args:
        name: the method's, for messages.
    Raises: RecipeError naming a part that would say something of a client without noise.
    """
    vectors, rows, up = list[str](), list[str](), method.up
    for part, declared in up.items():
        if isinstance(declared, Simulated):
            raise _refused(name, part, "helps the simulation and has no noise")
        if isinstance(declared, Answers):
            raise RecipeError(
                f"privacy: the server of {name} asks its clients for answers, sample by sample, which no "
                "noise covers; expected privacy=null, or a method whose clients send once a round"
            )
        kind = kinds(up)[part]
        if kind in VECTORS:
            if kinds(method.down).get(part) != kind:
                raise _refused(name, part, "has no part of its name going down to be a change of")
            vectors.append(part)
        elif kind in ROWS:
            if method.public == "none" or isinstance(declared, Unaligned):
                raise _refused(name, part, f"is {kind}, and not of public samples")
            rows.append(part)
        else:
            raise _refused(name, part, f"is of the kind {kind}, which says exact facts of a client's data")
    if not vectors and not rows:
        raise RecipeError(f"privacy: clients of {name} send nothing that could be protected; expected null")
    return CoveredParts(tuple(vectors), tuple(rows))


def known_sizes(recipe: Recipe, sizes: list[int]) -> list[int]:
    """Every client's number of samples, as the server knows it: 1 under `privacy`, which nobody is told."""
    return sizes if recipe.privacy is None else [1] * len(sizes)


def _refused(method: str, part: str, why: str) -> RecipeError:
    return RecipeError(
        f"privacy: {method} sends {part!r}, which {why}; expected privacy=null, or a method that sends "
        "weights, or logits, features or prototypes on public samples"
    )


def check_privacy(recipe: Recipe, method: Method[Any, Any], devices: Devices | None, codecs: Codecs) -> None:
    """Refuse what the mechanism does not cover, or what no epsilon here describes.

    Args:
        codecs: by direction and kind.
    Raises: RecipeError
    """
    if recipe.privacy is None:
        return
    name = recipe.method.name
    parts = covered_parts(method, name)
    _check_accountable(recipe, devices)
    _check_noise(recipe, method, parts, codecs)
    _check_bounds(recipe, method, parts)
    if recipe.privacy.noise_multiplier:
        require_accountant()


def _check_accountable(recipe: Recipe, devices: Devices | None) -> None:
    if recipe.attack is not None:
        raise RecipeError(
            "attack: attackers know the honest clients' messages, which no epsilon describes; expected "
            "attack=null or privacy=null"
        )
    if recipe.schedule.name != "sync":
        raise RecipeError(
            f"schedule.name = {recipe.schedule.name!r}: who replies in time depends on the clients' data, so "
            "that epsilon is not known; expected sync with privacy"
        )
    if devices is not None and not devices.always_available:
        raise RecipeError(
            f"clock.name = {recipe.clock.name!r}: clients that are not always available are not sampled with "
            "the probability that epsilon is computed from; expected devices that are, with privacy"
        )


def _check_noise(recipe: Recipe, method: Method[Any, Any], parts: CoveredParts, codecs: Codecs) -> None:
    privacy, name = recipe.privacy, recipe.method.name
    assert privacy is not None
    if privacy.noise == "server":
        if not means_suffice(method.up):
            raise RecipeError(
                f"privacy.noise = 'server': {name} with these options uses single replies, and the noise "
                "would be on their mean alone; expected privacy.noise=client"
            )
        if lossy := [kind for kind, chain in codecs["up"].items() if not chain.lossless]:
            raise RecipeError(
                f"codec.up.{lossy[0]}: a reply may be larger than the clip when decoded, and the server's "
                "noise would not cover it; expected codecs without a loss, or privacy.noise=client"
            )
        if lossy := [kind for kind, c in codecs["down"].items() if kind in VECTORS and not c.lossless]:
            raise RecipeError(
                f"codec.down.{lossy[0]}: clients would change another vector than the server averages "
                "around, beyond the clip; expected codecs without a loss, or privacy.noise=client"
            )
        if recipe.sampling.poisson and (parts.rows or not method.asynchronous):
            raise RecipeError(
                f"sampling.poisson: rounds of {name} have several exchanges or rows of public samples, and "
                "an empty cohort has no mean to add noise to; expected sampling.poisson=false with privacy"
            )
        return
    if recipe.sampling.poisson:
        raise RecipeError(
            "sampling.poisson: with privacy.noise = 'client' a small cohort would add less noise than "
            "epsilon is computed from; expected privacy.noise=server, or sampling.poisson=false"
        )
    if recipe.faults.bad_replies == "drop":
        raise RecipeError(
            "faults.bad_replies = 'drop': a reply that is dropped takes its share of the noise with it; "
            "expected stop with privacy.noise = 'client'"
        )


def _check_bounds(recipe: Recipe, method: Method[Any, Any], parts: CoveredParts) -> None:
    privacy, name = recipe.privacy, recipe.method.name
    assert privacy is not None
    bounds = [("clip", privacy.clip, parts.vectors), ("row_clip", privacy.row_clip, parts.rows)]
    one_alone = None in (privacy.clip, privacy.row_clip) and not privacy.noise_multiplier
    for key, bound, covered in bounds:
        if covered and bound is None and privacy.noise_multiplier:
            raise RecipeError(
                f"privacy.{key} is missing: {name} sends {', '.join(covered)}, and noise is a multiple of "
                f"the clip; expected a number, as privacy.{key}=1.0"
            )
        # A study may give both, for methods of both kinds.
        if one_alone and bound is not None and not covered:
            others = ", ".join(parts.vectors or parts.rows)
            raise RecipeError(f"privacy.{key} = {bound:g} bounds nothing: {name} sends {others}")
    adaptive = privacy.adaptive
    if adaptive is None:
        return
    if not parts.vectors or not method.asynchronous:
        raise RecipeError(
            f"privacy.adaptive: the clip follows one exchange of weights a round, and {name} has "
            f"{'several exchanges' if parts.vectors else 'none'}; expected privacy.adaptive=null"
        )
    expected = sampling_rate(recipe) * recipe.partition.clients
    count = adaptive.count_noise or expected / 20
    if privacy.noise_multiplier >= 2 * count:
        raise RecipeError(
            f"privacy.adaptive.count_noise = {count:g}: expected more than half of "
            f"privacy.noise_multiplier = {privacy.noise_multiplier:g}, as the count takes its share"
        )
