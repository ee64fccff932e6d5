"""Partition schemes that follow what the data say of their samples: whose they are, where they are from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from rayfed_kd.data.client_parts import ClientParts
from rayfed_kd.data.schemes import Pool
from rayfed_kd.errors import RecipeError, nearest, shortened, shown
from rayfed_kd.recipe.roles import partition_scheme

Array = np.ndarray[Any, Any]
WRITER = "writer"  # what `by_column` calls the data's own clients


class Division(NamedTuple):
    """What a scheme returns that also says what clients test on: an index array per client, each.

    The simulator splits off no test parts then.
    """

    train: Sequence[Array]
    test: Sequence[Array]


@partition_scheme
def natural(pool: Pool, clients: int, stream: np.random.Generator) -> ClientParts:
    """By the data's own clients, as FEMNIST's writers; a random choice of them if fewer are asked for."""
    if pool.writers is None:
        raise RecipeError("partition.name = 'natural': this data names no writers; a client_column does")
    writers = np.unique(pool.writers)
    if clients > len(writers):
        raise RecipeError(f"partition.clients = {clients}: expected at most the data's own {len(writers)}")
    chosen = np.sort(stream.choice(writers, clients, replace=False))
    samples = np.flatnonzero(np.isin(pool.writers, chosen))
    return ClientParts.owned(np.searchsorted(chosen, pool.writers[samples]), samples, clients)


@partition_scheme
def from_source(pool: Pool, clients: int, stream: np.random.Generator) -> Division:
    """The division that the data come with: each client's own training and test samples, as `pfllib` has.

    Raises: RecipeError if the data come without one, or with another number of clients.
    """
    if pool.writers is None or pool.held_out is None:
        raise RecipeError(
            "partition.name = 'from_source': this data comes without clients' training and test parts; "
            "pfllib has them"
        )
    known = int(pool.writers.max()) + 1
    if clients != known:
        raise RecipeError(
            f"partition.clients = {clients}: the data come divided among {known} clients; expected {known}"
        )
    samples = np.arange(len(pool.writers))
    trained, tested = (
        ClientParts.owned(pool.writers[chosen], samples[chosen], clients)
        for chosen in (~pool.held_out, pool.held_out)
    )
    return Division(trained, tested)


@partition_scheme
def by_column(
    pool: Pool,
    clients: int,
    stream: np.random.Generator,
    *,
    column: Annotated[str, Field(description="a column of the data, or writer: the data's own clients")],
) -> Sequence[Array]:
    """Feature skew: samples of one value of a column, as a site, a year or a writer, stay together.

    With more values than clients, a client gets whole values: the largest first, each to the client with the
    fewest samples so far. With more clients than values, each value's samples are dealt in equal shares to
    clients of its own: one at first, and each client more goes to the value whose clients then have the most
    samples. Ties and deals are drawn.

    Raises: RecipeError if there is no such column.
    """
    values = np.unique(_values(pool, column), return_inverse=True)[1]
    sizes = np.bincount(values)
    if len(sizes) >= clients:
        owner = _dealt_values(sizes, clients, stream)[values]
        return ClientParts.owned(owner, np.arange(len(owner)), clients)
    order, shares = stream.permutation(len(sizes)), np.ones(len(sizes), np.int64)
    for _ in range(clients - len(sizes)):
        # Never beyond a value's samples, as there are no more clients than samples.
        shares[order[np.argmax((sizes / shares)[order])]] += 1
    members = (stream.permutation(np.flatnonzero(values == value)) for value in range(len(sizes)))
    return [np.sort(part) for parts in map(np.array_split, members, shares) for part in parts]


def _values(pool: Pool, column: str) -> Array:
    known = dict(pool.columns)
    if pool.writers is not None:
        known.setdefault(WRITER, pool.writers)
    if column not in known:
        listed = shortened(", ".join(known), 300) or "none"
        raise RecipeError(
            f"this data has no column {shown(column)} for a partition; there are: {listed}.",
            path="partition.column",
            hint=nearest(column, known),
        )
    return known[column]


def _dealt_values(sizes: Array, clients: int, stream: np.random.Generator) -> Array:
    """Each value's client, [values]: the largest first, to the client with the fewest samples."""
    owner = np.empty(len(sizes), dtype=np.int64)
    loads, ties = np.zeros(clients, dtype=np.int64), stream.random((2, len(sizes)))
    for place, value in enumerate(np.lexsort((ties[0], -sizes))):
        least = np.flatnonzero(loads == loads.min())
        owner[value] = least[int(ties[1][place] * len(least))]
        loads[owner[value]] += sizes[value]
    return owner
