"""Model poisoning: what attackers send instead of their replies, from the honest replies of the exchange.

Pure functions of the honest payloads' mean and deviation, which the attackers are taken to know. They act on
every coordinate alone, so an attack on some rows of a payload is those rows of an attack on all of it.
Cheng et al. 2021 (FedGEMS), Appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import torch
from torch import Tensor

from rayfed_kd.errors import RecipeError, RunError, nearest
from rayfed_kd.protocol import Declaration, Method, Unaligned
from rayfed_kd.protocol.declaration import kinds
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.on_the_way import AttackRecipe
from rayfed_kd.recipe.seeds import numpy_stream
from rayfed_kd.timing import Schedule
from rayfed_kd.timing.reading import replies_of


@dataclass(frozen=True)
class Honest:
    """The attackers' knowledge: statistics of the honest payloads.

    Attributes:
        mean: of the honest payloads, per coordinate, float64.
        deviation: their population deviation, float64.
        count: how many.
    """

    mean: Tensor
    deviation: Tensor
    count: int

    @classmethod
    def of(cls, sent: Sequence[Tensor], places: Sequence[int]) -> Honest:
        """From the payloads at some places, of one shape, added in this order; one is held at a time."""
        mean = torch.zeros(sent[places[0]].shape, dtype=torch.float64)
        for place in places:
            mean += sent[place].to(mean)
        mean /= len(places)
        # A second pass, around the mean: the mean of squares less the squared mean would cancel
        # where clients agree.
        squares = torch.zeros_like(mean)
        for place in places:
            squares += (sent[place].to(mean) - mean).square()
        return cls(mean, (squares / len(places)).sqrt(), len(places))


def paf(honest: Honest, theta: Tensor | float) -> Tensor:
    """Naive poisoning: the honest mean, far away: mu + theta' (FedGEMS eq. 7; Chang et al. 2019).

    Eq. 7 prints a sum over n that it divides by (1 - eps) n; the honest alone are meant.

    Args:
        theta: a number for every coordinate, or one each along the last dimension.
    """
    return (honest.mean + theta).to(torch.float32)


def lie(honest: Honest, z: float) -> Tensor:
    """A little is enough: mu + z sigma (FedGEMS eq. 10; Baruch et al. 2019, arXiv 1902.06156).

    Baruch's own code goes the other way: give it a negative z.
    """
    return (honest.mean + z * honest.deviation).to(torch.float32)


def ofom(honest: Honest, theta: Tensor | float) -> tuple[Tensor, Tensor]:
    """One far, one mean: mu + theta', and the mean of it and the honest (FedGEMS eq. 11; Chang et al.)."""
    far = honest.mean + theta
    return far.to(torch.float32), (honest.mean + (far - honest.mean) / (honest.count + 1)).to(torch.float32)


def lie_z(honest: int, corrupt: int, form: Literal["baruch", "fedgems"]) -> float:
    """The largest z that hides among the honest: Phi(z) is the share that must be farther out.

    Args:
        honest, corrupt: how many of either.
        form: "baruch": n all clients, s = floor(n / 2 + 1) - f, (n - f - s) / (n - f); "fedgems": eq. 8 and
            9 with n the honest alone, (n - s) / n. With one attacker of 16 these give -0.084 and 0.084:
            hardly an attack.
    Returns: z; minus or plus infinity where the share is 0 or less, or 1 or more.
    """
    n = honest + corrupt if form == "baruch" else honest
    supporters = math.floor(n / 2 + 1) - corrupt
    share = (n - corrupt - supporters) / (n - corrupt) if form == "baruch" else (n - supporters) / n
    if not 0 < share < 1:
        return math.copysign(math.inf, share - 0.5)
    return NormalDist().inv_cdf(share)


def attackers(attack: AttackRecipe, clients: int, seed: int) -> tuple[int, ...]:
    """Ids of a run's attackers: the recipe's list, in its order, or drawn from a stream of their own."""
    if attack.clients is not None:
        return tuple(attack.clients)
    stream = numpy_stream(seed, "attackers")
    return tuple(sorted(stream.choice(clients, attack.count(clients), replace=False).tolist()))


def attacked_parts(attack: AttackRecipe, up: Declaration, method: str) -> tuple[str, ...]:
    """The parts of replies that are replaced.

    Raises: RecipeError if the method sends no such part, or none at all that can be.
    """
    aligned = {name: kind for name, kind in kinds(up).items() if not isinstance(up[name], Unaligned)}
    possible = tuple(name for name, kind in aligned.items() if kind in ("weights", "logits"))
    if not possible:
        raise RecipeError(
            f"attack: {method} sends neither weights nor logits that mean the same at every client, so that "
            "there is no mean over clients to start from; expected no attack"
        )
    unknown = next((name for name in attack.parts or () if name not in possible), None)
    if unknown is not None:
        raise RecipeError(
            f"attack.parts = {unknown!r}: {method} sends {', '.join(possible)} of weights or logits",
            hint=nearest(unknown, possible),
        )
    return possible if attack.parts is None else tuple(attack.parts)


def poisoned(
    attack: AttackRecipe, liars: Sequence[int], clients: Sequence[int], sent: Sequence[Tensor], seed: int
) -> dict[int, Tensor]:
    """The payloads that attackers send in place of their honest ones.

    If an exchange has no honest client, the attackers' own honest payloads serve as the honest ones.

    Args:
        attack: which, and how strong.
        liars: all of the run; of ofom's two the first goes far.
        clients: who sent each part, ascending; one whose replies came twice, twice.
        sent: their parts, all of one shape; fetched one at a time.
        seed: the run's.
    Returns: attacker -> what it sends in place of each of its own.
    """
    lying = [client for client in liars if client in clients]
    if not lying:
        return {}
    places = range(len(clients))
    known = [place for place in places if clients[place] not in lying] or places
    honest = Honest.of(sent, known)
    if attack.name == "lie":
        corrupt = sum(client in lying for client in clients)
        return dict.fromkeys(lying, lie(honest, strength(attack, honest.count, corrupt)))
    theta: Tensor | float = attack.scale
    if attack.theta == "random":  # numbers along the last dimension, the same in all rounds
        size = honest.mean.shape[-1]
        theta = torch.from_numpy(attack.scale * numpy_stream(seed, "theta'", size).standard_normal(size))
    if attack.name == "paf":
        return dict.fromkeys(lying, paf(honest, theta))
    # By the run's list, so that the same attacker goes far whoever else is in the cohort.
    return {client: ofom(honest, theta)[liars.index(client)] for client in lying}


def strength(attack: AttackRecipe, honest: int, corrupt: int) -> float:
    """z of lie, as given or by its formula.

    Raises: RunError if the formula gives no number for so many.
    """
    if not isinstance(attack.z, str):
        return attack.z
    z = lie_z(honest, corrupt, attack.z)
    if math.isinf(z):
        raise RunError(
            f"attack.z = {attack.z!r}: no finite z for {honest} honest and {corrupt} corrupt clients; "
            "expected fewer attackers, or a number"
        )
    return z


def check_attack(recipe: Recipe, method: Method[Any, Any], schedule: Schedule, *, any_number: bool) -> None:
    """Refuse an attack that a method's replies, so many clients, or updates of one reply do not allow.

    Args:
        any_number: whether rounds may have any number of replies.
    Raises: RecipeError
    """
    attack, clients = recipe.attack, recipe.partition.clients
    if attack is None:
        return
    asked = replies_of(schedule, recipe.rounds, past_deadline=True)
    if asked == 1:
        raise RecipeError(
            f"attack: under schedule.name = {recipe.schedule.name!r} with this sampling an update may take "
            "one reply, and attackers start from the mean of others; expected updates of two replies or more"
        )
    attacked_parts(attack, method.up, recipe.method.name)
    count = attack.count(clients)
    if attack.name == "lie" and count:
        try:
            # Of a round that draws some of all clients, any may be attackers.
            asked = 2 if any_number else asked
            for corrupt in range(1 if asked < clients else count, min(count, asked - 1) + 1):
                strength(attack, asked - corrupt, corrupt)
        except RunError as error:
            raise RecipeError(str(error)) from None
