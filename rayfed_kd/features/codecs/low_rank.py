"""Matrices as products of thin ones. A weight is the matrix [outputs, rest]; vectors in it go as they are.

What goes on to the next codec is one vector: for each tensor its left factor [rank, outputs] and its right
one [rank, rest], or all of its numbers where those are not fewer. The next codec is told where each lies. It
needs that: a left factor's columns have length 1, a right one's have the length of the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.models.vectors import Layout, PlacedTensor
from rayfed_kd.protocol import Array, Codec, CodecError, Coded, Kind, TravellingPart, to_array, to_tensor
from rayfed_kd.protocol.message_codec import VECTORS, floats
from rayfed_kd.toolbox.low_rank import needed_rank


class _LowRank(Codec):
    def _matrices(self, part: TravellingPart) -> Iterator[tuple[slice, int, int]]:
        """Where each tensor lies, and its rows and columns as a matrix; a vector has one column."""
        if part.layout is not None:
            places = [(tensor.shape, start, stop) for tensor, start, stop in part.layout.placed()]
        elif len(part.shape) > 1:
            places = [(part.shape, 0, part.size)]
        else:
            raise CodecError(
                "it needs matrices, and this vector is neither an architecture's nor some first or last "
                "layers of the model"
            )
        for shape, start, stop in places:
            rows = shape[0] if len(shape) > 1 else stop - start
            yield slice(start, stop), rows, (stop - start) // rows

    def _ranks(self, side: Mapping[str, Array], part: TravellingPart) -> list[int]:
        """Of each tensor; -1: all of its numbers are sent."""
        raise NotImplementedError

    def layout_behind(self, side: Mapping[str, Array], part: TravellingPart) -> Layout:
        tensors = list[PlacedTensor]()
        for (_, rows, columns), rank in zip(self._matrices(part), self._ranks(side, part), strict=True):
            dense = (rows, columns) if columns > 1 else (rows,)
            shapes = [dense] if rank < 0 else [(rank, rows), (rank, columns)]
            tensors += [PlacedTensor(part.name, shape, "parameter") for shape in shapes]
        return Layout(tuple(tensors))

    def decode(self, coded: Coded, part: TravellingPart) -> Array:
        array, start = np.empty(part.size, np.float32), 0
        ranks = self._ranks(coded.side, part)
        for (place, rows, columns), rank in zip(self._matrices(part), ranks, strict=True):
            stop = start + (rows * columns if rank < 0 else rank * (rows + columns))
            piece, start = coded.array[start:stop], stop
            array[place] = piece if rank < 0 else _product(piece, rows, columns, rank).ravel()
        return array.reshape(part.shape)


def _joined(pieces: Sequence[Array]) -> Array:
    return np.concatenate([piece.ravel() for piece in pieces])


def _product(piece: Array, rows: int, columns: int, rank: int) -> Array:
    """The sum of the columns' outer products, in a fixed order: server and client must get the same bits."""
    left, right = piece[: rank * rows].reshape(rank, rows), piece[rank * rows :].reshape(rank, columns)
    matrix = np.zeros((rows, columns), np.float32)
    for column, row in zip(left, right, strict=True):
        matrix += np.outer(column, row)
    return matrix


def _matrix(numbers: Array, rows: int, columns: int) -> Tensor:
    # Copied into torch's own memory: its kernels choose their code by alignment, which could change bits.
    return to_tensor(numbers.reshape(rows, columns))


class PowerSgd(_LowRank):
    """One step of the power method from the right matrix of the client's last time.

    Vogels et al. 2019, arXiv 1905.13727, average each factor over the workers, in two exchanges; here each
    client has its own two. It is biased: use it on a difference, with `feedback: true`.
    """

    remembers = True

    def __init__(
        self, *, rank: Annotated[int, Field(ge=1, description="columns of both factors, r")]
    ) -> None:
        self.rank = rank

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        numbers, pieces, rights = floats(array).ravel(), list[Array](), list[Array]()
        ranks = self._ranks({}, part)
        start, stream = self._start(part, ranks), part.random()
        for (place, rows, columns), rank in zip(self._matrices(part), ranks, strict=True):
            if rank < 0:
                pieces.append(numbers[place])
                continue
            guess, start = start[: columns * rank].reshape(columns, rank), start[columns * rank :]
            # A column of zeros would stay one for ever, as after an update of zeros.
            fresh = stream.standard_normal((columns, rank), np.float32)
            guess = np.where(guess.any(axis=0), guess, fresh)
            matrix = _matrix(numbers[place], rows, columns)
            left, _ = torch.linalg.qr(matrix @ to_tensor(guess))
            rights.append(to_array(matrix.T @ left))
            pieces += [to_array(left).T, rights[-1].T]
        warm = _joined(rights) if rights else np.empty(0, np.float32)
        return Coded(_joined(pieces), memory={"right": warm})

    def _ranks(self, side: Mapping[str, Array], part: TravellingPart) -> list[int]:
        sizes = [(rows, columns) for _, rows, columns in self._matrices(part)]
        return [self.rank if self.rank * (rows + columns) < rows * columns else -1 for rows, columns in sizes]

    def _start(self, part: TravellingPart, ranks: Sequence[int]) -> Array:
        """All right matrices of the last time; zeros, which are drawn anew, where the model was another."""
        sizes = zip(self._matrices(part), ranks, strict=True)
        length = sum(columns * rank for (_, _, columns), rank in sizes if rank > 0)
        warm = part.memory.get("right")
        return warm if warm is not None and warm.size == length else np.zeros(length, np.float32)

    def refuses(self, kind: Kind) -> str | None:
        if kind in VECTORS:
            return None
        return f"it goes on from a client's last {kind}, which were of other samples"


class Svd(_LowRank):
    """The largest singular values that hold a share `energy` of the sum of their squares, as FedKD has it.

    The squared error of a matrix is at most 1 - energy of its squares.
    """

    def __init__(
        self, *, energy: Annotated[float, Field(gt=0, le=1, description="share of the squares, T")]
    ) -> None:
        self.energy = energy

    def encode(self, array: Array, part: TravellingPart) -> Coded:
        numbers, pieces, ranks = floats(array).ravel(), list[Array](), list[int]()
        for place, rows, columns in self._matrices(part):
            rank, factors = self._factors(numbers[place], rows, columns)
            ranks.append(rank)
            pieces += factors
        return Coded(_joined(pieces), {"ranks": np.array(ranks, np.int32)})

    def _factors(self, numbers: Array, rows: int, columns: int) -> tuple[int, list[Array]]:
        """A matrix's rank and what is sent of it; -1 and all of it if that is not more."""
        if rows + columns < rows * columns:
            # In float64: the rank should not depend on rounding.
            matrix = _matrix(numbers, rows, columns).to(torch.float64)
            left, values, right = torch.linalg.svd(matrix, full_matrices=False)
            rank = needed_rank(values, self.energy)
            if rank * (rows + columns) < rows * columns:
                # The singular values are in the right matrix, so that they take no bytes of their own.
                factors = left[:, :rank].T, right[:rank] * values[:rank, None]
                return rank, [to_array(factor.to(torch.float32)) for factor in factors]
        return -1, [numbers]

    def _ranks(self, side: Mapping[str, Array], part: TravellingPart) -> list[int]:
        return list(side["ranks"].tolist())
