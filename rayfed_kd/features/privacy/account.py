"""The server's side of `privacy`: the round's rule, the clip that follows the norms, and epsilon so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rayfed_kd.errors import RunError
from rayfed_kd.features.privacy.accountant import RELATIONS, Mechanism, accountant_name, require_accountant
from rayfed_kd.features.privacy.mechanism import Noise, variances_of
from rayfed_kd.features.privacy.private_update import PrivateUpdate
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol import Method, OneExchange, Replies, ServerContext
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.seeds import numpy_stream, torch_stream


@dataclass
class PrivacyAccount:
    """What a run has released so far, and the clip of its next round. A checkpoint holds `stored`.

    Attributes:
        recipe: its `privacy` is not null.
        central: whether an epsilon of the sums describes what the server uses; else single messages count.
        clip: S of the round; None: vectors are not clipped.
        rounds: n -> how many rounds had n releases.
        releases: client -> how many it took part in.
    """

    recipe: Recipe
    central: bool
    module_pool: ModulePool
    architectures: Iterable[str]
    clip: float | None = None
    rounds: dict[int, int] = field(default_factory=dict)
    releases: dict[int, int] = field(default_factory=dict)
    _of_round: dict[int, int] = field(default_factory=dict)
    _within: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        privacy = self.recipe.privacy
        assert privacy is not None
        if privacy.noise_multiplier:  # also where the server runs, before the first round
            require_accountant()
        self._privacy, self.clip = privacy, privacy.clip
        self._noise, self._mechanism = Noise.of(self.recipe), Mechanism.of(self.recipe)
        _, self._variances = variances_of(self.module_pool, self.architectures)

    @property
    def numbers(self) -> int:
        """Plain numbers that go down with each message, and up with each reply: the clip, and the count."""
        return 0 if self._privacy.adaptive is None else 1

    def rule(self, round_index: int, exchange: int = 0) -> PrivateUpdate:
        """How the replies of one of a round's exchanges, from 0, become the server's vector.

        Each exchange is a release with noise of its own: equal noise would go away in a difference of two.
        """
        if exchange and self._privacy.adaptive is not None:  # each client votes on the clip once
            raise RunError("privacy.adaptive: a second exchange in a round; expected one, or adaptive=null")
        seed, noise = self.recipe.seed, self._noise
        return PrivateUpdate(
            expected=noise.expected,
            deviation=noise.of_server(noise.multiplier * (self.clip or 0.0)),
            row_deviation=noise.of_server(noise.multiplier * (self._privacy.row_clip or 0.0)),
            stream=partial(_stream, seed, round_index, exchange),
            variances=self._variances,
            sealed=self.central,
        )

    def after_nobody(self, method: Method[Any, Any], server: Any, ctx: ServerContext) -> Any:
        """The server's state after a round whose cohort is empty by chance.

        The noise is added all the same: else an observer would see that nobody took part.
        """
        if self._noise.at_clients or not isinstance(method, OneExchange):
            return server
        return method.absorb(server, Replies([], self.rule(ctx.round)), ctx)

    def note(self, client: int, releases: int, within_clip: float | None) -> None:
        """Count a reply, also one that is dropped: it was released.

        Args:
            client: who replied.
            releases, within_clip: as `ClientPrivacy.outgoing` tells them.
        """
        self._of_round[client] = self._of_round.get(client, 0) + releases
        if self._noise.at_clients:  # no other epsilon is of single clients, and there may be millions
            self.releases[client] = self.releases.get(client, 0) + releases
        if within_clip is not None:
            self._within.append(within_clip)

    def end_round(self, round_index: int) -> dict[str, dict[str, Any]]:
        """Count the round, move the clip, and give the table `privacy`'s row of this round by its name."""
        # An empty cohort's round is released, too: its model has noise.
        releases = max(self._of_round.values(), default=1)
        if releases:
            self.rounds[releases] = self.rounds.get(releases, 0) + 1
        row = self._row(round_index)
        if self.clip is not None and self._privacy.adaptive is not None:
            self.clip = self._next_clip(round_index, self.clip)
        self._of_round, self._within = {}, []
        return {"privacy": row}

    def _next_clip(self, round_index: int, clip: float) -> float:
        """S exp(-eta (b - gamma)), b the noised share within the clip; Andrew et al. 2021, Algorithm 1."""
        adaptive, expected = self._privacy.adaptive, self._noise.expected
        assert adaptive is not None
        # 1/2 less each: one client then changes the sum by 1/2, whether it joins or not.
        total = math.fsum(vote - 0.5 for vote in self._within)
        if deviation := self._noise.of_server(self._noise.count):
            total += deviation * numpy_stream(self.recipe.seed, "privacy count", round_index).normal()
        share = total / expected + 0.5
        return clip * math.exp(-adaptive.rate * (share - adaptive.quantile))

    def _row(self, round_index: int) -> dict[str, Any]:
        privacy, noised = self._privacy, bool(self._privacy.noise_multiplier)
        local = None
        if self._noise.at_clients:
            most = max(self.releases.values(), default=0)
            local = self._mechanism.local_epsilon(most, self._noise.expected, privacy.delta)
        central = self._mechanism.epsilon(self.rounds, privacy.delta) if self.central else None
        return {
            "round": round_index,
            "epsilon": central,
            "local_epsilon": local,
            "delta": privacy.delta,
            "releases": sum(releases * count for releases, count in self.rounds.items()),
            "noise_multiplier": privacy.noise_multiplier,
            "clip": self.clip,
            "row_clip": privacy.row_clip,
            "unit": "client",
            "neighbours": RELATIONS[self._mechanism.cohort],
            "noise": privacy.noise,
            "sampling": self._mechanism.sampling,
            "accountant": accountant_name() if noised else "none: there is no noise",
        }

    @property
    def stored(self) -> dict[str, Any]:
        """All that a resumed run needs, as JSON holds it."""
        return {
            "clip": self.clip,
            "rounds": sorted(self.rounds.items()),
            "releases": sorted(self.releases.items()),
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Go on from what `stored` gave."""
        self.clip = stored["clip"]
        self.rounds, self.releases = dict(stored["rounds"]), dict(stored["releases"])


def _stream(seed: int, round_index: int, exchange: int, part: str) -> Any:
    # The first has no number, as the streams of a client's steps: most rounds have one exchange alone.
    further = (exchange,) if exchange else ()
    return torch_stream(seed, "privacy server noise", part, round_index, *further)
