"""triFreqs: what a client's latest model weighs in KDIA's teacher. All in float64.

Ma et al. 2025, section 5.2, eq. 5 to 9. Direct form, over all N clients:

    F^intv_k = exp(-(t - t_k)) / sum     t_k: the round of its last participation, -1 before the first
    F^part_k = n_k / sum n               n_k: how often it took part
    F^num_k  = N_k / sum N               N_k: its samples
    F_k      = a mean of the three, or one of them, normalised to sum 1

Running form: under the geometric mean F_k is proportional to (exp(t_k) n_k N_k)^(1/3), which changes
only when client k takes part. So are the single frequencies. Under the arithmetic and the harmonic mean
every client's weight changes every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from rayfed_kd.protocol import PartRef
from rayfed_kd.toolbox.slots import Slots

Array = np.ndarray[Any, np.dtype[np.float64]]
Mean = Literal["geometric", "arithmetic", "harmonic", "interval", "participation", "samples"]

# How fast a running weight shrinks with each round that its client sits out: F^intv by the factor exp(-1),
# the geometric mean of three by its third root. The other two frequencies do not fall with time. Arithmetic
# and harmonic means have no such factor: all slots are added afresh.
DECAYS = {"geometric": math.exp(-1 / 3), "interval": math.exp(-1), "participation": 1.0, "samples": 1.0}


class Frequencies(NamedTuple):
    """F^intv, F^part, F^num; [N] float64 each, each of sum 1."""

    interval: Array
    participation: Array
    samples: Array


def frequencies(last: Array, counts: Array, sizes: Array, now: int) -> Frequencies:
    """The three frequencies after round `now`'s cohort has been counted.

    Args:
        last: [N] t_k, -1 for a client that has not taken part.
        counts: [N] n_k, not all zero.
        sizes: [N] N_k.
        now: t, from 0.
    """
    # Relative to the newest: exp(-(t - t_k)) of everybody underflows together after 745 rounds otherwise.
    recent = np.exp(last - np.maximum(last.max(), now))
    return Frequencies(recent / recent.sum(), counts / counts.sum(), sizes / sizes.sum())


def participations(
    last: Mapping[int, int], counts: Mapping[int, int], sizes: Sequence[int]
) -> tuple[Array, Array, Array]:
    """t_k, n_k and N_k of all clients, [N] each, from those of the clients seen and everybody's samples."""
    rounds, times = np.full(len(sizes), -1.0), np.zeros(len(sizes))
    for client, now in last.items():
        rounds[client], times[client] = now, counts[client]
    return rounds, times, np.asarray(sizes, dtype=np.float64)


def combined(three: Frequencies, mean: Mean) -> Array:
    """F, [N], of sum 1."""
    stacked = np.stack(three)
    if mean == "arithmetic":
        raw = stacked.mean(axis=0)
    elif mean == "harmonic":
        with np.errstate(divide="ignore"):  # a frequency of 0 makes the mean 0, as in the limit
            raw = 3.0 / (1.0 / stacked).sum(axis=0)
    elif mean == "geometric":
        # Roots first: the product of three small frequencies may underflow.
        raw = np.cbrt(stacked).prod(axis=0)
    else:
        raw = getattr(three, mean)
    weights: Array = raw / raw.sum()
    return weights


def running_weight(mean: Mean, count: int, size: float) -> float:
    """What a client that has just taken part weighs, before it shrinks by `DECAYS[mean]` a round."""
    if mean == "geometric":
        return math.cbrt(count * size)
    return {"interval": 1.0, "participation": float(count), "samples": size}[mean]


def unseen_weight(mean: Mean, unseen: int, unseen_samples: float, now: int) -> float:
    """What all clients that have not taken part weigh together, beside the running weights."""
    return {
        "geometric": 0.0,
        "participation": 0.0,
        # exp(-(t - t_k)) with t_k = -1.
        "interval": unseen * math.exp(-1.0 - now),
        "samples": unseen_samples,
    }[mean]


def participated(
    slots: Slots,
    models: Mapping[int, tuple[PartRef, float]],
    counts: Mapping[int, int],
    mean: Mean,
    before: Mapping[int, int],
    now: int,
) -> Slots:
    """Everybody's latest model after round `now`; its weight is the running one where the mean has one.

    Args:
        slots: before the round.
        models: client -> its new model and its samples.
        counts: client -> n_k, this round included.
        mean: of the three frequencies.
        before: client -> t_k before the round.
        now: t, from 0.
    """
    if mean not in DECAYS:
        # Any weight: `weighted_model` adds these slots afresh with their own.
        return slots.replaced({client: (model, 1.0) for client, (model, _) in models.items()})
    newest = max(before.values(), default=now)
    updates = {
        client: (model, running_weight(mean, counts[client], samples))
        for client, (model, samples) in models.items()
    }
    # Weights are relative to the newest t_k; the factor that all have in common cancels in the mean.
    return slots.scaled(DECAYS[mean] ** (now - newest)).replaced(updates)


def weighted_model(
    slots: Slots,
    three: Frequencies,
    mean: Mean,
    last: Mapping[int, int],
    sizes: Sequence[int],
    initial: Tensor,
    *,
    now: int,
) -> Tensor:
    """sum_k F_k theta_k over all clients, [P] (KDIA eq. 10): running where F_k allows it.

    Args:
        slots: from `participated`.
        three: after this round.
        mean: of the three frequencies.
        last: client -> t_k of the clients seen.
        sizes: N_k of all clients.
        initial: [P], what a client not seen yet counts as.
        now: t, from 0.
    """
    if mean in DECAYS:
        rest_samples = sum(sizes) - sum(sizes[client] for client in last)
        return slots.mean(initial, unseen_weight(mean, len(sizes) - len(last), rest_samples, now))
    weights = combined(three, mean)
    weighed = slots.reweighted({client: float(weights[client]) for client in last})
    # F sums to 1. With everybody seen the rest is rounding, and must not bring theta_g^0 in.
    return weighed.mean(initial, 1.0 - weighed.weight if len(last) < len(sizes) else 0.0)
