"""The sections `codec`, `privacy` and `attack`: what becomes of messages and replies on their way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rayfed_kd.recipe.strict import ByName, Strict


class StageRecipe(ByName):
    """One codec of a chain: a name, or a name with its options."""

    feedback: bool = Field(
        False, description="whether what receivers did not get is added to the next time's"
    )


def _chain(written: Any) -> Any:
    return written if isinstance(written, list) else [written]


ChainRecipe = Annotated[list[StageRecipe], BeforeValidator(_chain), Field(min_length=1)]


class CodecRecipe(Strict):
    """How parts travel: for each direction and kind a codec, or a list of codecs one after another."""

    up: dict[str, ChainRecipe] = Field({}, description="kind of part -> codecs of replies")
    down: dict[str, ChainRecipe] = Field({}, description="kind of part -> codecs of messages")
    buffers: Literal["exact", "coded"] = Field(
        "exact", description="whether codecs with a loss leave BatchNorm's statistics as they are"
    )

    @property
    def chains(self) -> dict[str, list[StageRecipe]]:
        """Where in the recipe a chain stands, as `codec.up.weights` -> its codecs."""
        directions = {"up": self.up, "down": self.down}
        return {
            f"codec.{way}.{kind}": chain for way, kinds in directions.items() for kind, chain in kinds.items()
        }


# Beyond it and its inverse, epsilon and float32 noise are no numbers any more.
LEAST = 1e-6
Bound = Annotated[float, Field(ge=LEAST, le=1 / LEAST)]


class AdaptiveClipRecipe(Strict):
    """A clipping bound that follows a quantile of the updates' norms: Andrew et al. 2021, arXiv 1905.03871.

    `privacy.clip` is the bound of the first round.
    """

    quantile: float = Field(0.5, ge=0, le=1, description="share of updates that lie within the bound, gamma")
    rate: float = Field(0.2, ge=0, le=10, description="step of the bound's logarithm, eta")
    count_noise: Bound | None = Field(
        None,
        description="deviation of the noise on the number of updates within the bound; null: m / 20, of the "
        "m clients that a round expects",
    )


class PrivacyRecipe(Strict):
    """What clients send is clipped, and Gaussian noise is added: McMahan et al. 2018, arXiv 1710.06963."""

    noise_multiplier: float = Field(
        ge=0,
        le=1 / LEAST,
        description="deviation of the sum's noise over the clip of a client, z; 0: epsilon is inf",
    )
    clip: Bound | None = Field(
        None,
        description="largest L2 norm of a client's change of all its weights together, S; null: not clipped",
    )
    row_clip: Bound | None = Field(
        None, description="largest L2 norm of a row of logits, features or prototypes, c; null: not clipped"
    )
    noise: Literal["server", "client"] = Field(
        "server", description="who adds the noise: a trusted server to the sum, or each client a share of it"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta at which epsilon is given")
    adaptive: AdaptiveClipRecipe | None = Field(
        None, description="the clip follows the norms' quantile; null: it stays"
    )

    def contradictions(self) -> Iterator[str]:
        if 0 < self.noise_multiplier < LEAST:
            yield f"noise_multiplier is {self.noise_multiplier:g}; expected 0, or at least {LEAST:g}"

        if self.adaptive is not None and self.clip is None:
            yield "adaptive needs clip, the bound of the first round, as clip: 0.1"


class AttackRecipe(Strict):
    """Clients that lie about what they send: their parts are replaced when an exchange's replies are in."""

    name: Literal["paf", "lie", "ofom"]
    clients: list[Annotated[int, Field(ge=0)]] | None = Field(None, description="the attackers' ids")
    fraction: float | None = Field(None, ge=0, lt=1, description="share of the clients, drawn once")
    scale: float = Field(10.0, description="how far theta' lies, in every coordinate (paf, ofom)")
    theta: Literal["constant", "random"] = Field(
        "constant",
        description="theta': `scale` itself, or times normal numbers drawn once; softmax sees no constant",
    )
    z: float | Literal["baruch", "fedgems"] = Field(
        1.5, description="deviations from the mean (lie), or the formula that gives them"
    )
    parts: list[str] | None = Field(None, min_length=1, description="what is poisoned; null: weights, logits")

    def contradictions(self) -> Iterator[str]:
        if self.clients is not None and self.fraction is not None:
            yield "give at most one of clients and fraction"
        if self.name != "lie" and self.z != 1.5:
            yield f"z belongs to lie, not to {self.name}"
        if self.name == "lie" and (self.scale, self.theta) != (10.0, "constant"):
            yield "scale and theta belong to paf and ofom, not to lie"

    def count(self, clients: int) -> int:
        """How many attackers; where nothing is said, as FedGEMS has them: two for ofom, else one."""
        if self.clients is not None:
            return len(self.clients)
        if self.fraction is not None:
            return round(self.fraction * clients)
        return 2 if self.name == "ofom" else 1

    def fault(self, clients: int) -> str | None:
        """Why this cannot be among so many clients; None if it can."""
        named, count = self.clients or [], self.count(clients)
        wrong = sorted({client for client in named if client >= clients or named.count(client) > 1})
        if wrong:
            return f"clients: {wrong[0]}: expected each of 0 to {clients - 1} at most once"
        if self.fraction and not count:
            return f"fraction: {self.fraction:g} of {clients} clients is none; expected a larger one, or 0"
        if count >= clients:
            return f"clients: {count} attackers for {clients} clients; expected an honest one at least"
        if self.name == "ofom" and count not in (0, 2):
            return f"clients: ofom has two attackers, one far and one mean; these are {count}"
        return None
