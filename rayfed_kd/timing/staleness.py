"""Staleness rules: how much a late reply weighs. Each rule is one class; its fields are its options."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.registry import Registry, in_modules
from rayfed_kd.recipe.strict import Named, Strict
from rayfed_kd.recipe.validation import validate

RULES = "constant:Constant polynomial:Polynomial hinge:Hinge threshold:Threshold exponential:Exponential"
STALENESS_RULES = Registry(in_modules("rayfed_kd.timing", staleness=RULES), "rayfed_kd.timing:StalenessRule")
PATH = "schedule.staleness"


class StalenessRule(Strict, ABC):
    """The weight of a reply by its staleness, s(tau). The fields of a subclass are its options in a recipe.

    The staleness tau of a reply is the number of server updates between the message that it answers and
    its use. A recipe names a rule under `schedule.staleness`.
    """

    @abstractmethod
    def weight(self, tau: int) -> float:
        """s(tau): what the reply's aggregation weight is multiplied by.

        Args:
            tau: 0 for a fresh reply, at most `rounds` - 1.

        Returns: a finite number of at least 0; 1 for a fresh reply, by custom.
        """


class Constant(StalenessRule):
    """s(tau) = 1: a late reply weighs as much as a fresh one."""

    def weight(self, tau: int) -> float:
        return 1.0


class Polynomial(StalenessRule):
    """s(tau) = (tau + 1)^-a (Xie et al. 2019, arXiv 1903.03934, section 5.2)."""

    a: float = Field(0.5, gt=0, description="how steeply the weight falls")

    def weight(self, tau: int) -> float:
        return float((tau + 1) ** -self.a)


class Hinge(StalenessRule):
    """s(tau) = 1 up to tau = b, then 1 / (a (tau - b) + 1) (Xie et al. 2019, section 5.2)."""

    a: float = Field(10.0, gt=0, description="how steeply the weight falls")
    b: float = Field(4.0, ge=0, description="up to which staleness the weight is 1")

    def weight(self, tau: int) -> float:
        return 1.0 if tau <= self.b else 1 / (self.a * (tau - self.b) + 1)


class Threshold(StalenessRule):
    """s(tau) = 1 up to tau = b, then 0."""

    b: float = Field(10.0, ge=0, description="up to which staleness the weight is 1")

    def weight(self, tau: int) -> float:
        return 1.0 if tau <= self.b else 0.0


class Exponential(StalenessRule):
    """s(tau) = exp(-a tau)."""

    a: float = Field(0.1, gt=0, description="how steeply the weight falls")

    def weight(self, tau: int) -> float:
        return math.exp(-self.a * tau)


class _NamedRule(Named):
    name: str = Field("constant", description="a registered staleness rule or package.module:Object")


def read_staleness(raw: Any) -> Any:
    """The staleness rule that a recipe's `schedule.staleness` describes; a rule stays as it is.

    Raises: RecipeError if the name is unknown, the object is no staleness rule, or an option is bad.
    """
    if isinstance(raw, StalenessRule):
        return raw
    named = validate(_NamedRule, raw, PATH)
    return STALENESS_RULES.bound(named, PATH).options


def check_weights(rule: StalenessRule, rounds: int) -> None:
    """Refuse a rule that gives a reply a weight which no mean can have.

    Args:
        rounds: of the run; every staleness that a reply of it can have is tried.

    Raises: RecipeError naming the staleness and the weight.
    """
    for tau in range(rounds):
        weight = rule.weight(tau)
        if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
            raise RecipeError(
                f"{PATH}: {type(rule).__name__} weighs a reply of staleness {tau} by {weight!r}; expected a "
                "finite number of at least 0"
            )


# What a field of a schedule's options is annotated with, so that a recipe's mapping becomes the rule.
Staleness = Annotated[StalenessRule, BeforeValidator(read_staleness)]
