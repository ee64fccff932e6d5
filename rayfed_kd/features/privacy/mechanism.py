"""Differential privacy of a run: what its clients clip, how much noise who adds, and what is refused.

Client level: one client's data, all of it, is what an observer learns little about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rayfed_kd.features.privacy.covered_parts import CoveredParts, covered_parts
from rayfed_kd.features.privacy.private_update import at_least_zero, normal
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol import Array, DispatchFacts, Method, RunError, to_array
from rayfed_kd.protocol.wire import OutgoingReply
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.on_the_way import PrivacyRecipe
from rayfed_kd.recipe.seeds import torch_stream
from rayfed_kd.recipe.timing import sampling_rate

SENSITIVITY_OF_A_COUNT = 0.5  # of the sum of b - 1/2, where b is 0 or 1


@dataclass(frozen=True)
class Noise:
    """Deviations of a round's noise, on the sum over its clients.

    Attributes:
        expected: m = q K, the clients that a round expects.
        multiplier: z of the sum of vectors and rows: a little more than the recipe's where a count is
            released as well.
        count: deviation of the noise on the number of updates within the clip; 0 without `adaptive`.
        at_clients: whether clients add it, each a share of 1/m of its variance.
    """

    expected: float
    multiplier: float
    count: float
    at_clients: bool

    @classmethod
    def of(cls, recipe: Recipe) -> Noise:
        """Of a recipe whose `privacy` is not null.

        With adaptive clipping, a round's two releases together have the recipe's multiplier z:
        z_D = (z^-2 - (2 sigma_b)^-2)^(-1/2), Andrew et al. 2021, arXiv 1905.03871, section 3.1.
        """
        privacy = recipe.privacy
        assert privacy is not None
        expected = sampling_rate(recipe) * recipe.partition.clients
        # q K of the fraction 0.07 of 100 is 7.000000000000001 in floats; a fixed cohort is a whole number.
        expected = float(round(expected)) if abs(expected - round(expected)) < 1e-9 else expected
        z, count = privacy.noise_multiplier, 0.0
        if privacy.adaptive is not None and z:
            count = privacy.adaptive.count_noise or expected / 20
            z = (z**-2 - (SENSITIVITY_OF_A_COUNT / count) ** 2) ** -0.5
        return cls(expected, z, count, privacy.noise == "client")

    def of_client(self, deviation: float) -> float:
        """What each client adds of a noise with this deviation on the sum; 0 where the server adds it."""
        return deviation / math.sqrt(self.expected) if self.at_clients else 0.0

    def of_server(self, deviation: float) -> float:
        """What the server adds of it; 0 where clients do."""
        return 0.0 if self.at_clients else deviation


class ClientPrivacy:
    """What a client does to its reply before it is encoded.

    Args:
        recipe: its `privacy` is not null.
        method: whose replies they are.
        module_pool: of all architectures.
        architectures: their names.
    """

    def __init__(
        self, recipe: Recipe, method: Method[Any, Any], module_pool: ModulePool, architectures: Iterable[str]
    ) -> None:
        assert recipe.privacy is not None
        self._recipe: PrivacyRecipe = recipe.privacy
        self._seed, self._noise = recipe.seed, Noise.of(recipe)
        self._parts: CoveredParts = covered_parts(method, recipe.method.name)
        self._lengths, self._variances = variances_of(module_pool, architectures)

    def outgoing(
        self,
        reply: OutgoingReply,
        message: Mapping[str, Tensor],
        facts: DispatchFacts,
        notes: Mapping[str, float],
    ) -> OutgoingReply:
        """A reply, clipped and with its client's noise, as it is to leave.

        It tells the server `releases`, the Gaussian mechanisms that it takes part in: one for all its vectors
        together, and one for each part with rows. With `adaptive` it tells `within_clip` as well: 1 if its
        vectors' change lies within the clip, else 0, with a client's noise.

        The server tells it `clip`, S of this round; without it no vector is clipped.

        Args:
            reply: as the step made it.
            message: the decoded parts that it answers.
            facts: of the step; they name random streams.
            notes: what the server tells with the call, by name.
        Raises: RunError if it holds what cannot be protected.
        """
        parts, clip, scope = reply.parts, notes.get("clip"), facts.scope
        number = next((name for name in reply.metadata if name != "samples"), None)
        if number is not None:
            raise RunError(
                f"privacy: the reply's number {number!r} would travel without noise; expected no number but "
                "`samples`, which is sent as 1"
            )
        vectors = sorted(set(parts) & set(self._parts.vectors))
        changed, within = self._clipped_vectors({n: parts[n] for n in vectors}, message, scope, clip)
        rows = sorted(set(parts) & set(self._parts.rows))
        changed |= {name: self._clipped_rows(name, parts[name], scope) for name in rows}
        spent: dict[str, float] = {"releases": bool(vectors) + len(rows)}
        if within is not None:
            spent["within_clip"] = within
        return OutgoingReply({**parts, **changed}, dict.fromkeys(reply.metadata, 1), spent)

    def _clipped_vectors(
        self,
        parts: Mapping[str, Array],
        message: Mapping[str, Tensor],
        scope: tuple[int, ...],
        clip: float | None,
    ) -> tuple[dict[str, Array], float | None]:
        if not parts:
            return {}, None
        if clip is None and self._recipe.clip is not None:
            raise RunError("privacy: the call of this step brought no clip; without it nothing is protected")
        # In float64 on the CPU, in memory that torch allocated: the same bits on every host.
        vectors = {name: torch.from_numpy(part).double() for name, part in parts.items()}
        references = {name: self._reference(name, part, message) for name, part in vectors.items()}
        changes = {name: part - references[name] for name, part in vectors.items()}
        norm = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
        within = clip is None or norm <= clip
        clipped: dict[str, Array] = {}
        for name, change in changes.items():
            # A change within the clip is sent as it is: reference + change would round.
            new = vectors[name].clone()
            if not within:
                assert clip is not None
                new = references[name] + change * (clip / norm)
            if deviation := self._noise.of_client(self._noise.multiplier * (clip or 0.0)):
                new = new + normal(new, deviation, self._stream("noise", name, scope))
            clipped[name] = to_array(at_least_zero(new, self._variances).to(torch.float32))
        if self._recipe.adaptive is None:
            return clipped, None
        vote = torch.tensor(float(within), dtype=torch.float64)
        if deviation := self._noise.of_client(self._noise.count):
            vote += normal(vote, deviation, self._stream("count", "", scope))
        return clipped, float(vote)

    def _reference(self, name: str, part: Tensor, message: Mapping[str, Tensor]) -> Tensor:
        sent = message[name].double().cpu() if name in message else None
        if sent is None or sent.shape != part.shape:
            raise RunError(
                f"privacy: the reply's {name!r} is not as long as that of the message, so its change cannot "
                "be clipped; expected a message with a part of that name and length"
            )
        if self._variances and part.numel() not in self._lengths:
            raise RunError(
                f"privacy: the reply's {name!r} is a stretch of a model with buffers, of which it is not "
                "known where running variances lie; expected a model without BatchNorm"
            )
        return sent

    def _clipped_rows(self, name: str, part: Array, scope: tuple[int, ...]) -> Array:
        rows = torch.from_numpy(part).double()
        if rows.dim() == 0 or part.dtype.kind != "f":
            raise RunError(
                f"privacy: the reply's {name!r} is {part.dtype} {list(part.shape)}; expected floats, a row "
                "for each public sample"
            )
        bound = self._recipe.row_clip
        if bound is not None:
            norms = rows.flatten(1).norm(dim=1) if rows.dim() > 1 else rows.abs()
            scales = torch.where(norms > bound, bound / norms, 1.0)
            rows = rows * scales.view(-1, *[1] * (rows.dim() - 1))
        total = self._noise.multiplier * (bound or 0.0) * math.sqrt(len(rows))
        if deviation := self._noise.of_client(total):
            rows = rows + normal(rows, deviation, self._stream("noise", name, scope))
        return to_array(rows.to(torch.float32))

    def _stream(self, purpose: str, part: str, scope: tuple[int, ...]) -> torch.Generator:
        return torch_stream(self._seed, f"privacy {purpose}", part, *scope)


def variances_of(
    module_pool: ModulePool, architectures: Iterable[str]
) -> tuple[frozenset[int], dict[int, Tensor]]:
    """Lengths of all models' vectors; and length -> places of running variances, [n] int64, if any.

    Raises: RunError if models of one length have them at different places.
    """
    places = dict[int, Tensor]()
    for name in architectures:
        layout = module_pool.lend(name, module_pool.initial_vector(name)).layout
        variances = list[int]()
        for tensor, start, stop in layout.placed():
            if tensor.name.rpartition(".")[2] == "running_var":
                variances += range(start, stop)
        indices = torch.tensor(variances, dtype=torch.int64)
        if not torch.equal(indices, places.setdefault(layout.size, indices)):
            raise RunError(f"privacy: two models of {layout.size} numbers have their buffers elsewhere")
    module_pool.take_back()
    return frozenset(places), {length: indices for length, indices in places.items() if len(indices)}
