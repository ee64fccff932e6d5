"""Bases of what is read from files: every key is known, and nothing changes afterwards."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Keys that are not declared are refused, and so are NaN and infinity; nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Closed(BaseModel):
    """Keys that are not declared are refused, and nothing changes afterwards; values may be converted."""

    model_config = ConfigDict(extra="forbid", frozen=True)
