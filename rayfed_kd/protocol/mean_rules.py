"""How replies become one tensor where that is not their plain mean: late ones, noise, sums of the hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rayfed_kd.errors import RunError


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
        ...

    def applied(
        self,
        into: Tensor,
        vectors: Sequence[Tensor],
        counts: Sequence[float],
        late: Sequence[Lateness],
        parameters: int | None = None,
        part: str = "",
    ) -> Tensor:
        """The new vector, [P] float32, added in the given order in float64.

        Args:
            into: [P], the server's vector now.
            vectors: the w_i, each [P]; may be a lazy sequence, only one is held at a time.
            counts: the n_i.
            late: how late each is.
            parameters: how many of the first elements are parameters, the rest buffers; None: as in the
                method's architecture of the same length.
            part: the name of what is averaged; a rule that draws noise takes its stream by it.
        """
        ...

    def mean(self, tensors: Sequence[Tensor], part: str = "") -> Tensor:
        """The mean of a part that is no vector of the server's, float32, added in float64."""
        ...


class NamedParts(Mapping[str, Tensor]):
    """Parts whose names are known without a look at any part."""

    _names: Sequence[str]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's own would fetch it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class SealedParts(NamedParts):
    """Parts of which only the names are seen: the server's noise is on their mean, or hosts sum them."""

    def __init__(self, names: Mapping[str, Tensor], *, summed: bool) -> None:
        self._names, self._summed = tuple(names), summed

    def __getitem__(self, name: str) -> Tensor:
        if self._summed:
            raise RunError(
                f"local.sum_replies: the method reads a reply's {name!r} by itself, and hosts send sums of "
                "them, as it declares it Averaged; expected Replies.aggregated and Replies.mean, or "
                "local.sum_replies=off"
            )
        raise RunError(
            f"privacy.noise = 'server': the method reads a reply's {name!r} by itself, without noise, though "
            "it declares it Averaged; expected Replies.aggregated and Replies.mean, or privacy.noise=client"
        )
