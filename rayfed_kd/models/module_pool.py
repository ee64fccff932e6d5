"""The modules of one process: built once per architecture, lent to a step, taken back after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from rayfed_kd.models.flat_module import FlatModule, build_flat, initial_vector
from rayfed_kd.models.vectors import check_vector

Builders = Mapping[str, Callable[[], nn.Module]]


class ModulePool:
    """Lends flat modules by architecture name.

    Args:
        builders: architecture name -> what makes the module ("model" is the recipe's model).
        seed: the run's seed, for initial vectors.
        device: where modules live.
    """

    def __init__(self, builders: Builders, seed: int, device: torch.device | str = "cpu") -> None:
        self._builders, self._seed = builders, seed
        self.device = torch.device(device)
        self._idle: dict[str, list[FlatModule]] = {name: [] for name in builders}
        self._lent: list[tuple[str, FlatModule]] = []
        self._initial: dict[str, Tensor] = {}

    def lend(self, name: str, vector: Tensor, autocast: torch.dtype | None = None) -> FlatModule:
        """A module of this architecture that holds `vector`, until `take_back`.

        Args:
            name: of the architecture.
            vector: [num_elements] float32.
            autocast: what it computes in, as `FlatModule.autocast` says.
        Raises: KeyError if no architecture has that name; MisuseError if the vector is none of it.
        """
        if name not in self._builders:
            raise KeyError(f"no architecture {name!r}; there are {sorted(self._builders)}")
        idle = self._idle[name]
        # Any of them: `load` replaces its whole content, and a context sets its mode.
        module = idle.pop() if idle else self._build(name)
        check_vector(vector, module.num_elements, name, f"a model of {name!r} was asked for with")
        module.load(vector, anew=True)
        module.autocast = autocast
        self._lent.append((name, module))
        return module

    def take_back(self) -> None:
        """Ends all loans: a step is over."""
        for name, module in self._lent:
            self._idle[name].append(module)
        self._lent.clear()

    def initial_vector(self, name: str) -> Tensor:
        """The architecture's initial vector under the run's seed, on the module pool's device."""
        if name not in self._initial:
            self._initial[name] = initial_vector(self._builders[name], self._seed, name).to(self.device)
        return self._initial[name].clone()

    @cached_property
    def lengths(self) -> Mapping[str, int]:
        """Architecture name -> how many numbers its vector has."""
        return {name: self.initial_vector(name).numel() for name in self._builders}

    def own_initial_vector(self, name: str, *owner: str | int) -> Tensor:
        """The architecture's initial vector of one owner alone, as a client; not kept."""
        return initial_vector(self._builders[name], self._seed, name, *owner).to(self.device)

    def _build(self, name: str) -> FlatModule:
        # What stays beside the vector, as a random projection that is fixed, must be alike in all processes,
        # and under all names of an architecture: a vector of one is one of the others.
        build = self._builders[name]
        first = next(other for other, builder in self._builders.items() if builder is build)
        return build_flat(build, self.device, self._seed, first)
