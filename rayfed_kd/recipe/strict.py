"""Bases of what is read from files, where every key is known and nothing changes afterwards; its limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rayfed_kd.files.folders import path_fault

# More than any data set, machine or person has: beyond them a number is a slip, and would take all memory.
MOST = 1_000_000_000
MOST_CLIENTS = MOST_ROUNDS = 10_000_000
Count = Annotated[int, Field(ge=1, le=MOST)]


def _possible_path(text: str) -> str:
    if fault := path_fault(text):
        raise ValueError(fault)
    return text


PathText = Annotated[str, AfterValidator(_possible_path)]


class Strict(BaseModel):
    """Keys that are not declared are refused, and so are NaN and infinity; nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def contradictions(self) -> Iterator[str]:
        """What its keys say against one another, in words; the first one is told."""
        return iter(())

    @model_validator(mode="after")
    def _without_contradiction(self) -> Self:
        for message in self.contradictions():
            raise ValueError(message)
        return self


class Closed(BaseModel):
    """Keys that are not declared are refused, and nothing changes afterwards; values may be converted.

    Class attributes:
        called: what messages call the whole.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    called: ClassVar[str] = "a recipe"


class Named(BaseModel):
    """A registered thing and its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(description="a registered name or package.module:Object")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are not the frame's."""
        return dict(self.model_extra or {})


class ByName(Named):
    """A registered thing that a recipe may also write as its name alone."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, written: Any) -> Any:
        return {"name": written} if isinstance(written, str) else written
