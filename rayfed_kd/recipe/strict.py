"""The base of a recipe's sections: every key is known, and of the type that it says."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Keys that are not declared are refused, and so are NaN and infinity; nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
