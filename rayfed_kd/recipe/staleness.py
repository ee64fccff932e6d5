"""What a recipe may say about how much late replies weigh."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DEFAULTS: dict[str, dict[str, float]] = {
    "constant": {},
    "polynomial": {"a": 0.5},
    "hinge": {"a": 10.0, "b": 4.0},
    "threshold": {"b": 10.0},
    "exponential": {"a": 0.1},
}


class Staleness(BaseModel):
    """s(tau), 1 for a fresh reply (Xie et al. 2019, arXiv 1903.03934, section 5.2, for the first three).

    constant     1
    polynomial   (tau + 1)^-a
    hinge        1 up to tau = b, then 1 / (a (tau - b) + 1)
    threshold    1 up to tau = b, then 0
    exponential  exp(-a tau)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: Literal["constant", "polynomial", "hinge", "threshold", "exponential"] = "constant"
    a: float | None = Field(None, gt=0, description="how steeply the weight falls; null: the name's default")
    b: float | None = Field(None, ge=0, description="up to which staleness it is 1; null: the name's default")

    @model_validator(mode="after")
    def _only_its_own(self) -> Staleness:
        for name in ("a", "b"):
            if getattr(self, name) is not None and name not in DEFAULTS[self.name]:
                takes = " and ".join(DEFAULTS[self.name]) or "neither a nor b"
                raise ValueError(f"{name} = {getattr(self, name):g}: {self.name} takes {takes}")
        return self

    def weight(self, tau: int) -> float:
        """s(tau)."""
        a, b = (_chosen(getattr(self, name), DEFAULTS[self.name].get(name, 0.0)) for name in ("a", "b"))
        match self.name:
            case "polynomial":
                return float((tau + 1) ** -a)
            case "hinge":
                return 1.0 if tau <= b else 1 / (a * (tau - b) + 1)
            case "threshold":
                return 1.0 if tau <= b else 0.0
            case "exponential":
                return math.exp(-a * tau)
        return 1.0


def _chosen(given: float | None, default: float) -> float:
    return default if given is None else given
