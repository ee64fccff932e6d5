"""What a method declares of its parts: of which kind each is, and how the server reads those of replies.

    down = {"student": "weights"}
    up = {"student": Averaged("weights", by="samples"), "label_counts": "counts"}

A kind alone says that the server reads each reply's part by itself, and that element i of the part means the
same at every client. The classes below say what differs from that. Privacy, sums at the hosts and attacks go
by these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

VectorKind = Literal["weights", "generator", "discriminator"]
Kind = Literal[VectorKind, "logits", "features", "prototypes", "images", "labels", "ids", "counts", "scalars"]
KINDS: tuple[str, ...] = get_args(Kind)
UNIFORM = "uniform"  # no number of a reply, so that the option `weighting` can stand as `by`


@dataclass(frozen=True)
class Part:
    """What the classes below have in common: the part's kind."""

    kind: Kind

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Averaged(Part):
    """A part that the server uses only through `Replies.aggregated` and `Replies.mean`.

    If all parts are, `privacy.noise: server` can have its noise on their means, and `local.sum_replies` lets
    hosts sum them. The server reading one by itself ends such a run.

    Attributes:
        by: the number of a reply that weighs its part in the mean; "uniform": all count the same.
    """

    by: str = UNIFORM


class Unaligned(Part):
    """A part whose element i means something else at each client: it is of its own samples, classes or model.

    Such parts have no mean over clients, from which an attack could start.
    """


class Answers(Part):
    """Rows that the server asks for by their ids, with `Cohort.questions`; `privacy` cannot cover them."""


class Exact(Part):
    """A part that both sides add to copies that they keep, which stay equal only if it arrives as it is.

    Codecs with a loss are refused for it.
    """


class Simulated(Part):
    """A part that helps the simulation and would not travel in a real deployment; counted apart."""

    def __str__(self) -> str:
        return f"{self.kind}, simulation only"


Declaration = Mapping[str, Kind | Part]


def kinds(declared: Declaration) -> dict[str, Kind]:
    """Part -> kind, without those that only help the simulation."""
    return {
        name: part.kind if isinstance(part, Part) else part
        for name, part in declared.items()
        if not isinstance(part, Simulated)
    }


def means_suffice(up: Declaration) -> bool:
    """Whether the server uses means alone, as sums at hosts, noise at the server and secure sums need."""
    return bool(up) and all(isinstance(part, Averaged) for part in up.values())
