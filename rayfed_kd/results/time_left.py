"""Estimates of the time that work still takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def seconds_left(event: Mapping[str, Any], since_s: float = 0.0) -> float:
    """Estimated seconds until a run ends, by the mean of its rounds so far.

    Args:
        event: the last round's.
        since_s: seconds since then. They count as one round at most: this one may be longer than others.
    """
    mean: float = event["wall_s"] / event["round"]
    rounds: int = event["rounds"] - event["round"]
    return max(0.0, mean * rounds - min(since_s, mean))


def clock_text(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 3725 is `1:02:05`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def left_text(seconds: float | None) -> str:
    """An estimate, as `0:01:20 left`; empty for None."""
    return "" if seconds is None else f"{clock_text(seconds)} left"
