"""The server's update under differential privacy: a fixed denominator, equal weights, and noise on the sum.

McMahan et al. 2018, arXiv 1710.06963, Algorithm 1, with clients of equal weight:

    w <- w + (sum over the cohort of (w_k - w) + N(0, sigma^2 I)) / (q K)

The replies' changes w_k - w were clipped by the clients. The denominator is the expected number of clients,
not the number that replied: else one client would change it, and with it what all the others weigh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rayfed_kd.errors import RunError
from rayfed_kd.models.vectors import weighted_sum
from rayfed_kd.protocol.mean_rules import Lateness


@dataclass(frozen=True)
class PrivateUpdate:
    """A `MeanRule` for replies that clients have clipped. Weights by samples and staleness do not apply.

    Attributes:
        expected: q K, the number of clients that a round expects.
        deviation: of the noise on each coordinate of the sum of vectors; 0: clients add the noise.
        row_deviation: the same for the sum of parts with a row per public sample, before it is multiplied by
            the root of the number of rows.
        stream: part's name -> its noise's random stream.
        variances: length of a vector -> where its running variances lie, [n] int64: they stay at least 0.
        sealed: whether a method may see the replies only through their means, because epsilon is that of
            these alone.
    """

    expected: float = 1.0
    deviation: float = 0.0
    row_deviation: float = 0.0
    stream: Callable[[str], torch.Generator] = field(kw_only=True)
    variances: Mapping[int, Tensor] = field(default_factory=dict)
    sealed: bool = False

    def applied(
        self,
        into: Tensor,
        vectors: Sequence[Tensor],
        counts: Sequence[float],
        late: Sequence[Lateness],
        parameters: int | None = None,
        part: str = "",
    ) -> Tensor:
        """The new vector, [P] float32, added in the given order in float64; without replies `into` and noise.

        Arguments as `MeanRule.applied` has them. `counts` and `parameters` are not used: clients weigh the
        same. None is late.

        Raises: RunError if `into` is not what went down to all: then not only clipped changes would be added.
        """
        around = into.cpu() if self.deviation else None
        for sent in (reply.sent() for reply in late if reply.sent is not None and self.sealed):
            # Where clients add the noise, a codec may change what goes down: the same for all is enough.
            around = sent if around is None else around
            if not torch.equal(sent, around):
                raise RunError(
                    f"privacy: the server averages {part!r} around another vector than it sent a client, and "
                    "no noise covers that; expected one for all, and Replies.aggregated(into=what went down)"
                )
        ones = [1.0] * len(vectors)
        total = weighted_sum(vectors, ones) if ones else torch.zeros_like(into, dtype=torch.float64)
        # Nothing is added where all came, so that the bits are those of a plain mean.
        if rest := self.expected - len(ones):
            total.add_(into.to(total), alpha=rest)
        if self.deviation:
            total.add_(normal(total, self.deviation, self.stream(part)))
        new = total.div_(self.expected).to(into.dtype)
        return at_least_zero(new, self.variances)

    def mean(self, tensors: Sequence[Tensor], part: str = "") -> Tensor:
        """The mean of a part with a row for each public sample, [N0, ...] float32.

        Raises: ValueError without tensors: the number of rows is not known then.
        """
        total = weighted_sum(tensors, [1.0] * len(tensors))
        if self.row_deviation:
            deviation = self.row_deviation * math.sqrt(total.shape[0])
            total.add_(normal(total, deviation, self.stream(part)))
        return total.div_(self.expected).to(torch.float32)


def at_least_zero(vector: Tensor, variances: Mapping[int, Tensor]) -> Tensor:
    """The vector, changed in place: its running variances, where they are known, are not below 0."""
    if (places := variances.get(vector.numel())) is not None:
        vector[places] = vector[places].clamp(min=0)
    return vector


def normal(like: Tensor, deviation: float, stream: torch.Generator) -> Tensor:
    """Independent normal numbers, float64, with the shape and the device of `like`.

    They are drawn on the CPU, so that every device gets the same.
    """
    drawn = torch.randn(like.shape, generator=stream, dtype=torch.float64)
    return drawn.mul_(deviation).to(like.device)
