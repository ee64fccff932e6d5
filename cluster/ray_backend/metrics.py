"""A run's figures for Ray's dashboard and Prometheus: rounds, calls in flight, bytes.

Ray serves them on every machine's metrics port as ray_rayfed_kd_..., with the run's name as a tag; its
dashboard's Prometheus and Grafana take them from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge

RUN = "run"


class Meters:
    """The meters of one run, in the server's process.

    Args:
        run: the run's name, the tag of all its meters.
    """

    def __init__(self, run: str) -> None:
        tags = {RUN: run}
        self._rounds = Counter("rayfed_kd_rounds", "Rounds that ended.", (RUN,))
        self._bytes = Counter("rayfed_kd_bytes", "Bytes of messages, by direction.", (RUN, "direction"))
        self._in_flight = Gauge("rayfed_kd_calls_in_flight", "Calls that client actors have.", (RUN,))
        for meter in (self._rounds, self._bytes, self._in_flight):
            meter.set_default_tags(tags)

    def round(self, event: Mapping[str, Any]) -> None:
        """Count a round that ended.

        Args:
            event: the round's event, with `bytes_up` and `bytes_down`.
        """
        self._rounds.inc()
        for direction in ("up", "down"):
            if event[f"bytes_{direction}"]:  # a counter takes no zero
                self._bytes.inc(event[f"bytes_{direction}"], {"direction": direction})

    def in_flight(self, calls: int) -> None:
        """Show how many calls the client actors have now."""
        self._in_flight.set(calls)
