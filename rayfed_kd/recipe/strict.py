"""Bases of what is read from files: every key is known, and nothing changes afterwards."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Keys that are not declared are refused, and so are NaN and infinity; nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Closed(BaseModel):
    """Keys that are not declared are refused, and nothing changes afterwards; values may be converted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Named(BaseModel):
    """A registered thing and its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field(description="a registered name or package.module:Object")

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are not the frame's."""
        return dict(self.model_extra or {})
