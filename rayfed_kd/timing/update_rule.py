"""How replies, fresh or late, become the server's new vector.

A reply's staleness tau is the number of server updates between the message that it answers and its use.
How much a reply weighs by its staleness is a rule of its own: `rayfed_kd.timing.staleness`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from rayfed_kd.models.vectors import weighted_mean, weighted_sum
from rayfed_kd.protocol import Lateness
from rayfed_kd.timing.staleness import Constant, StalenessRule

Normalisation = Literal["none", "count", "weight_sum", "samples"]


@dataclass(frozen=True)
class UpdateRule:
    """How an update's replies become the new vector.

        w <- (1 - eta A) w + eta sum_i a_i c_i,    A = sum_i a_i
        a_i = s(tau_i) n_i / sum_j n_j     samples (n_i: what the method weighs its clients by)
              s(tau_i) / number of replies count
              s(tau_i) / sum_j s(tau_j)    weight_sum
              s(tau_i)                     none
        c_i = w_i, or with `difference` w + (w_i - w_sent_i), what the client changed added to today's w

    Buffers always count as w_i, and beyond eta A = 1 as their mean alone: differences, and steps beyond the
    replies, would make BatchNorm's running variance negative.

    With fresh replies, `samples` and eta = 1 this is the weighted mean of a synchronous round, in its bits.

    Attributes:
        staleness: s.
        normalisation, difference: as above.
        server_lr: eta.
        borders: length of a vector -> how many of its first elements are parameters; others have no buffers.
    """

    staleness: StalenessRule = field(default_factory=Constant)
    normalisation: Normalisation = "samples"
    difference: bool = True
    server_lr: float = 1.0
    borders: Mapping[int, int] = field(default_factory=dict)
    sealed: ClassVar[bool] = False  # a method may look at each reply

    def applied(
        self,
        into: Tensor,
        vectors: Sequence[Tensor],
        counts: Sequence[float],
        late: Sequence[Lateness],
        parameters: int | None = None,
        part: str = "",
    ) -> Tensor:
        """The new vector, [P] of `into`'s type, added in the given order in float64.

        Args:
            into: [P], w.
            vectors: the w_i, each [P]; may be a lazy sequence, only one is held at a time.
            counts: the n_i.
            late: how late each is.
            parameters: how many of the first elements are parameters; None: as `borders` says.
            part: the name of what is averaged; a rule that draws noise takes its stream by it.
        Raises: ValueError if there is no reply, or there are not as many of each.
        """
        shares = [self.staleness.weight(delay.tau) for delay in late]
        divisors = {"samples": float(sum(counts)), "count": float(len(late)), "weight_sum": sum(shares)}
        divisor = {**divisors, "none": 1.0}[self.normalisation]
        if self.normalisation == "samples":
            shares = [share * count for share, count in zip(shares, counts, strict=True)]
        shares = [self.server_lr * share for share in shares]
        if divisor == 0:  # `weight_sum` of replies that all weigh nothing
            return into.clone()
        length = into.numel()
        border = self.borders.get(length, length) if parameters is None else parameters
        candidates = _Candidates(into, vectors, late, border) if self.difference else vectors
        total = weighted_sum(candidates, shares)
        rest = divisor - sum(shares)  # exactly zero where the rule is a mean
        mixed = slice(None)
        if rest < 0:
            total[border:] *= divisor / sum(shares)
            mixed = slice(border)
        if rest:
            total[mixed].add_(into[mixed].to(total), alpha=rest)
        # Divided once, at the end, as `weighted_mean` does: fresh replies give the same bits.
        return total.div_(divisor).to(into.dtype)

    def mean(self, tensors: Sequence[Tensor], part: str = "") -> Tensor:
        """The plain mean of a part that is no vector of the server's, float32, added in float64.

        Args:
            tensors: of one shape; one is held at a time.
            part: as in `applied`.
        Raises: ValueError if there is none.
        """
        return weighted_mean(tensors, [1.0] * len(tensors))


class _Candidates(Sequence[Tensor]):
    """The c_i of `difference`, one at a time; a fresh reply's is its own vector, to the bit."""

    def __init__(
        self, into: Tensor, vectors: Sequence[Tensor], late: Sequence[Lateness], border: int
    ) -> None:
        self._into, self._vectors, self._late, self._border = into, vectors, late, border

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, index: Any) -> Any:
        vector, late = self._vectors[index], self._late[index]
        if late.tau == 0 or late.sent is None:
            return vector
        moved = vector.to(self._into).double()
        span = slice(self._border)
        moved[span] += self._into[span].double() - late.sent()[span].to(self._into).double()
        return moved
