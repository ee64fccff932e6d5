"""How replies become one tensor where that is not their plain mean: late ones, noise, sums of the hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Lateness:
    """How late a reply is.

    Attributes:
        tau: server updates since the message that it answers.
        sent: gives the vector that came with that message, [P].
    """

    tau: int = 0
    sent: Callable[[], Tensor] | None = None


class MeanRule(Protocol):
    """How replies become one tensor where that is not their plain mean: late ones, or those with noise."""

    @property
    def sealed(self) -> bool:
        """Whether a method sees the replies through `applied` and `mean` only."""

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
            into: [P], the server's vector now.
            vectors: the w_i, each [P]; may be a lazy sequence, only one is held at a time.
            counts: the n_i.
            late: how late each is.
            parameters: how many of the first elements are parameters, the rest buffers; None: as in the
                method's architecture of the same length.
            part: the name of what is averaged; a rule that draws noise takes its stream by it.
        """

    def mean(self, tensors: Sequence[Tensor], part: str = "") -> Tensor:
        """The mean of a part that is no vector of the server's, float32, added in float64."""
