"""GPUs that are only counted, so that a placement can be tried on a machine without one. No torch here."""

from __future__ import annotations

import os

from rayfed_kd.errors import RecipeError, shown

LOGICAL_GPUS = "RAYFED_KD_LOGICAL_GPUS"


def logical_gpus() -> int:
    """How many GPUs each machine is said to have while everything computes on the CPU; 0: GPUs are real.

    Raises: RecipeError if the variable holds no whole number.
    """
    text = os.environ.get(LOGICAL_GPUS) or "0"
    if not text.isdecimal():
        raise RecipeError(
            f"{LOGICAL_GPUS} = {shown(text)} in the environment: expected how many GPUs a machine is said to "
            "have, as 1"
        )
    return int(text)


def is_logical() -> bool:
    """Whether GPUs are only counted and everything computes on the CPU."""
    return logical_gpus() > 0
