"""The recipe's section `privacy`: client-level differential privacy by the Gaussian mechanism."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rayfed_kd.recipe.strict import Strict

# Beyond it and its inverse, epsilon and float32 noise are no numbers any more.
LEAST = 1e-6


class AdaptiveClipRecipe(Strict):
    """A clipping bound that follows a quantile of the updates' norms: Andrew et al. 2021, arXiv 1905.03871.

    `privacy.clip` is the bound of the first round.
    """

    quantile: float = Field(0.5, ge=0, le=1, description="share of updates that lie within the bound, gamma")
    rate: float = Field(0.2, ge=0, le=10, description="step of the bound's logarithm, eta")
    count_noise: float | None = Field(
        None,
        ge=LEAST,
        le=1 / LEAST,
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
    clip: float | None = Field(
        None,
        ge=LEAST,
        le=1 / LEAST,
        description="largest L2 norm of a client's change of all its weights together, S; null: not clipped",
    )
    row_clip: float | None = Field(
        None,
        ge=LEAST,
        le=1 / LEAST,
        description="largest L2 norm of a row of logits, features or prototypes, c; null: not clipped",
    )
    noise: Literal["server", "client"] = Field(
        "server", description="who adds the noise: a trusted server to the sum, or each client a share of it"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta at which epsilon is given")
    adaptive: AdaptiveClipRecipe | None = Field(
        None, description="the clip follows the norms' quantile; null: it stays"
    )

    @model_validator(mode="after")
    def _has_an_epsilon(self) -> PrivacyRecipe:
        if 0 < self.noise_multiplier < LEAST:
            raise ValueError(
                f"noise_multiplier is {self.noise_multiplier:g}; expected 0, or at least {LEAST:g}"
            )
        return self

    @model_validator(mode="after")
    def _adapts_a_clip(self) -> PrivacyRecipe:
        if self.adaptive is not None and self.clip is None:
            raise ValueError("adaptive needs clip, the bound of the first round, as clip: 0.1")
        return self
