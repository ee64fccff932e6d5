"""Partition schemes: which client holds which samples. All seeded, disjoint, and finished for any input.

Every scheme is a function (pool, clients, stream, *, options...) that returns one ascending index array per
client; a scheme of your own has the same form. `schemes_of_source` has those that follow what the data say of
their samples. A constraint that cannot be met is an error with both numbers,
never an endless redraw. Proportions are drawn through log-gammas: numpy's own Dirichlet gives NaN at very
small alpha.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rayfed_kd.data.client_parts import ClientParts
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.roles import partition_scheme

Array = np.ndarray[Any, Any]
Alpha = Annotated[float, Field(gt=0, lt=float("inf"), description="Dirichlet concentration")]
MinSize = Annotated[int, Field(ge=0, description="samples that every client gets at least")]
REDRAWS = 100  # enough for any split that is likely; after them samples are moved instead
SMALLEST_ALPHA = 1e-300  # below it log(U) / alpha overflows; the draws are one-hot long before


@dataclass(frozen=True)
class Pool:
    """What is split.

    Attributes:
        labels: [n] int64.
        classes: C.
        writers: [n] int64, the natural client of each sample, or None.
        columns: name -> [n] int64, what else is known of each sample: a number for each distinct value.
        held_out: [n] bool, which samples their writer keeps for its own test, if the data come divided.
    """

    labels: Array
    classes: int
    writers: Array | None = None
    columns: Mapping[str, Array] = field(default_factory=dict)
    held_out: Array | None = None


def proportions(alpha: float, size: tuple[int, int], stream: np.random.Generator) -> Array:
    """Draw rows ~ Dir(alpha, ..., alpha), for any alpha > 0.

    Args:
        alpha: concentration; small values give rows that are almost one-hot.
        size: (rows, parts).
        stream: decides.
    Returns: [rows, parts] float64; each row sums to 1.

    log Gamma(a) = log Gamma(a + 1) + log(U) / a keeps what underflows as a plain gamma draw.
    """
    uniform = 1.0 - stream.random(size)  # in (0, 1]: its logarithm is finite
    logs = np.log(stream.standard_gamma(alpha + 1.0, size)) + np.log(uniform) / max(alpha, SMALLEST_ALPHA)
    # Relative to the largest: at small alpha the exponentials of all logarithms alone would be 0.
    shifted = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


@partition_scheme
def iid(pool: Pool, clients: int, stream: np.random.Generator) -> ClientParts:
    """Shuffle all samples and deal equal shares: the first clients have one more if they do not divide."""
    least, more = divmod(len(pool.labels), clients)
    sizes = np.repeat([least + 1, least], [more, clients - more])  # the first ones have one more
    return ClientParts.sized(stream.permutation(len(pool.labels)), sizes)


@partition_scheme
def dirichlet(
    pool: Pool,
    clients: int,
    stream: np.random.Generator,
    *,
    alpha: Alpha,
    min_size: MinSize = 1,
    balance: Annotated[bool, Field(description="MOON's cap: no more to a client that has n / K")] = False,
) -> list[Array]:
    """Per class, proportions over clients ~ Dir(alpha) (Hsu et al. 2019; Yurochkin et al. 2019).

    `min_size` is met by moving samples from the largest clients, never by redrawing for ever.
    """
    owner = np.empty(len(pool.labels), dtype=np.int64)
    # With the cap a split is redrawn while a client has too little; without it samples are moved at once.
    for _ in range(REDRAWS if balance else 1):
        sizes = np.zeros(clients, dtype=np.int64)
        for label in range(pool.classes):
            members = stream.permutation(np.flatnonzero(pool.labels == label))
            share = proportions(alpha, (1, clients), stream)[0]
            if balance:
                share = _capped(share, sizes, len(pool.labels) / clients)
            counts = apportioned(share, len(members))
            owner[members] = np.repeat(np.arange(clients), counts)
            sizes += counts
        if sizes.min() >= min_size:
            break
    return mended(_parts(owner, clients), min_size)


@partition_scheme
def dirichlet_client(pool: Pool, clients: int, stream: np.random.Generator, *, alpha: Alpha) -> list[Array]:
    """Equal sizes n // K; each client's label vector ~ Dir(alpha), drawn without replacement (FedD2S).

    A class that is used up is left out and the rest scaled up; n - K (n // K) samples stay unused. Who takes
    samples late gets what others left, so the order in which clients take theirs is drawn, too. The paper
    gives the vectors alone.
    """
    left = [stream.permutation(np.flatnonzero(pool.labels == label)) for label in range(pool.classes)]
    remaining = np.array([len(members) for members in left])
    size = len(pool.labels) // clients
    wishes = proportions(alpha, (clients, pool.classes), stream)
    parts = [np.empty(0, dtype=np.int64)] * clients
    for client in stream.permutation(clients):
        wish, taken = wishes[client], np.zeros(pool.classes, dtype=np.int64)
        while (missing := size - taken.sum()) > 0:
            room = remaining - taken
            share = np.where(room > 0, wish, 0.0)
            # All of the wished classes are empty: the rest comes from what is there.
            share = share / share.sum() if share.sum() > 0 else (room > 0) / np.count_nonzero(room)
            taken += np.minimum(apportioned(share, int(missing)), room)
        chosen = [left[c][remaining[c] - taken[c] : remaining[c]] for c in range(pool.classes)]
        remaining -= taken
        parts[client] = np.sort(np.concatenate(chosen))
    return parts


@partition_scheme
def dirichlet_fedkf(
    pool: Pool, clients: int, stream: np.random.Generator, *, alpha: Alpha, min_size: MinSize = 1
) -> list[Array]:
    """The scheme of FedKF's released code: in each group of at most C clients everyone leads in some class.

    Clients fill groups of C; the last may be smaller, and then who is in it is drawn. A class is split
    between groups by their sizes; within a group the proportions ~ Dir(alpha) are redrawn until the largest
    goes to a client that has not led since the cycle began; after 100 draws the largest share changes places
    with such a client's. Samples left over by rounding follow the cumulative shares; the released code gives
    them to a random client.
    """
    owner = np.empty(len(pool.labels), dtype=np.int64)
    # In a smaller group clients' mixes are another; that must not be the lot of the last clients.
    uneven = clients > pool.classes and clients % pool.classes
    order = stream.permutation(clients) if uneven else np.arange(clients)
    groups = np.split(order, range(pool.classes, clients, pool.classes))
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    led: list[set[int]] = [set() for _ in groups]
    for label in range(pool.classes):
        members = stream.permutation(np.flatnonzero(pool.labels == label))
        ends = np.cumsum(apportioned(sizes / sizes.sum(), len(members)))[:-1]
        for index, part in enumerate(np.split(members, ends)):
            share = _new_leader(alpha, len(groups[index]), led[index], stream)
            owner[part] = np.repeat(groups[index], apportioned(share, len(part)))
    return mended(_parts(owner, clients), min_size)


@partition_scheme
def classes(
    pool: Pool,
    clients: int,
    stream: np.random.Generator,
    *,
    classes_per_client: Annotated[int, Field(ge=1, description="c, classes that a client sees")] = 2,
) -> list[Array]:
    """Pathological: every client sees c classes; a class is shared equally by those that see it.

    Clients in turn take the c classes that the fewest have so far, ties at random: the classes' numbers of
    clients differ by one at most. Where they differ, the turns' order is drawn.

    Raises: RecipeError if a class would be nobody's, or a client cannot get a sample of each of its classes.
    """
    if classes_per_client > pool.classes:
        raise RecipeError(
            f"partition.classes_per_client = {classes_per_client}: the data has {pool.classes} classes"
        )
    if clients * classes_per_client < pool.classes:
        raise RecipeError(
            f"partition.classes_per_client = {classes_per_client}: {clients} clients see at most "
            f"{clients * classes_per_client} of {pool.classes} classes, so samples would be nobody's"
        )
    seen = np.zeros((clients, pool.classes), dtype=bool)
    holding = np.zeros(pool.classes, dtype=np.int64)
    for client, ties in enumerate(stream.random((clients, pool.classes))):
        # lexsort's last key counts first: how many hold the class, then the drawn ties.
        seen[client, np.lexsort((ties, holding))[:classes_per_client]] = True
        holding += seen[client]
    if clients * classes_per_client % pool.classes:
        # The last to choose take the classes that more clients share, and have fewer samples.
        seen = seen[stream.permutation(clients)]
    owner = np.empty(len(pool.labels), dtype=np.int64)
    for label in range(pool.classes):
        members = stream.permutation(np.flatnonzero(pool.labels == label))
        holders = stream.permutation(np.flatnonzero(seen[:, label]))
        if len(members) < len(holders):
            raise RecipeError(
                f"partition.clients = {clients}: class {label} has {len(members)} samples "
                f"for {len(holders)} clients that should see it"
            )
        owner[members] = holders[np.arange(len(members)) % len(holders)]
    return _parts(owner, clients)


@partition_scheme
def quantity(
    pool: Pool, clients: int, stream: np.random.Generator, *, alpha: Alpha, min_size: MinSize = 1
) -> list[Array]:
    """Draw the clients' sizes ~ Dir(alpha); labels are iid. `min_size` as in `dirichlet`."""
    order = stream.permutation(len(pool.labels))
    counts = apportioned(proportions(alpha, (1, clients), stream)[0], len(order))
    parts = [np.sort(part) for part in np.split(order, np.cumsum(counts)[:-1])]
    return mended(parts, min_size)


def apportioned(share: Array, total: int) -> Array:
    """Split a number into whole parts by shares. Cumulative sums are rounded, so nothing is lost.

    Args:
        share: [parts] float64 of sum 1.
        total: what is split.
    Returns: [parts] int64 of sum `total`.
    """
    ends = np.round(np.cumsum(share) * total).astype(np.int64)
    # The shares' sum may be a bit off 1, so the last end is set, and none lies beyond it.
    ends[-1] = total
    return np.asarray(np.diff(np.minimum(ends, total), prepend=0))


def _capped(share: Array, sizes: Array, cap: float) -> Array:
    open_share = np.where(sizes < cap, share, 0.0)
    if open_share.sum() > 0:
        return np.asarray(open_share / open_share.sum())
    below = (sizes < cap).astype(np.float64)
    return np.asarray(below / below.sum()) if below.any() else share


def _new_leader(alpha: float, size: int, led: set[int], stream: np.random.Generator) -> Array:
    """Proportions whose largest belongs to a client that has not led in this cycle; notes it."""
    if len(led) == size:
        led.clear()
    for share in proportions(alpha, (REDRAWS, size), stream):
        leader = int(share.argmax())
        if leader not in led:
            led.add(leader)
            return np.asarray(share)
    # `share` and `leader` are those of the last draw.
    heir = min(set(range(size)) - led)
    share[[leader, heir]] = share[[heir, leader]]
    led.add(heir)
    return np.asarray(share)


def _parts(owner: Array, clients: int) -> list[Array]:
    """Ascending samples per client, from each sample's owner."""
    return list(ClientParts.owned(owner, np.arange(len(owner)), clients))


def mended(parts: list[Array], min_size: int) -> list[Array]:
    """Every client has `min_size`: the largest ones give their last samples, lowest client first."""
    import heapq

    total = sum(len(part) for part in parts)
    if total < min_size * len(parts):
        raise RecipeError(
            f"partition.min_size = {min_size}: {len(parts)} clients would need {min_size * len(parts)} "
            f"samples, there are {total}"
        )
    needy = [client for client, part in enumerate(parts) if len(part) < min_size]
    largest = [(-len(part), client) for client, part in enumerate(parts) if len(part) > min_size]
    heapq.heapify(largest)
    for client in needy:
        pieces = [parts[client]]
        for _ in range(min_size - len(parts[client])):
            size, giver = heapq.heappop(largest)
            pieces.append(parts[giver][-1:])
            parts[giver] = parts[giver][:-1]
            # Sizes are negative, because heapq gives the smallest first.
            if -size - 1 > min_size:
                heapq.heappush(largest, (size + 1, giver))
        parts[client] = np.sort(np.concatenate(pieces))
    return parts
