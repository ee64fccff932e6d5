"""What a context is made of: facts of a dispatch and of a round, and what a step logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.errors import MisuseError, kind_of
from rayfed_kd.recipe.sections.local_training import LocalRecipe


@dataclass
class Log:
    """Means of what a step logs, kept on its device until the step is over."""

    sums: dict[str, Tensor | float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, **values: Tensor | float) -> None:
        """Adds one batch's values, scalars each.

        Raises: MisuseError naming a value that is none.
        """
        for name, value in values.items():
            known = isinstance(value, Tensor | int | float)
            tensor = torch.as_tensor(value, dtype=torch.float64) if known else None
            if tensor is None or tensor.numel() != 1:
                kind = kind_of(value) if tensor is None else f"the shape {list(tensor.shape)}"
                raise MisuseError(f"ctx.log({name}=...) is given {kind}; expected a tensor of one number")
            # No `float()` here: the host would wait for the device after every batch. The sum is always new
            # memory: the step may change its tensor afterwards.
            self.sums[name] = self.sums.get(name, 0.0) + tensor.detach()
            self.counts[name] = self.counts.get(name, 0) + 1

    def add_sums(self, sums: Mapping[str, tuple[float, int]]) -> None:
        """Adds many batches' at once: name -> (sum, count)."""
        for name, (value, count) in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + count

    def totals(self) -> dict[str, tuple[float, int]]:
        """name -> (sum, count)."""
        return {name: (float(value), self.counts[name]) for name, value in self.sums.items()}


@dataclass(frozen=True)
class ClientData:
    """A client's share: indices [n] int64 of training samples, augmentation, local settings.

    `model`: the module pool's name of the client's architecture.
    """

    indices: np.ndarray[tuple[int], np.dtype[np.int64]]
    augment: str
    local: LocalRecipe
    model: str = "model"


@dataclass(frozen=True)
class DispatchFacts:
    """Who is dispatched when.

    Attributes:
        client: its id.
        round: the server's round, from 1.
        participation: how often the client was sampled so far, this time included.
        exchange: which of the steps that it is sent for this participation, from 0.
    """

    client: int
    round: int
    participation: int
    exchange: int = 0

    @property
    def scope(self) -> tuple[int, ...]:
        """What a step's random streams are derived from, beside the seed and their purpose."""
        first = (self.client, self.participation)
        return (*first, self.exchange) if self.exchange else first


@dataclass(frozen=True)
class ServerFacts:
    """What the server knows in a round.

    Attributes:
        round: from 1; 0 before the first.
        rounds: how many the recipe has.
        sizes: [K] training samples of every client.
        local: the recipe's settings of local training.
        models: [K] the module pool's names of the clients' architectures.
    """

    round: int
    rounds: int
    sizes: Sequence[int]
    local: LocalRecipe
    models: Sequence[str]
