"""The clocks that simulate devices: the second at which a reply arrives at the server.

Simulated time does not depend on how long the real work takes, so the order of replies repeats.
`rayfed_kd.timing.clock` defines the interface.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.strict import PathText
from rayfed_kd.timing.clock import Clock, ClockFacts, ClockOptions
from rayfed_kd.timing.device_sources import LEAST_MBIT_S, MOST_MBIT_S, MOST_SECONDS, draw_devices, read_trace
from rayfed_kd.timing.devices import SPEEDS, Devices

MOST_SIGMA = 20.0  # of a logarithm: e^20 is half a billion; beyond it speeds overflow


class DeviceClock(Clock):
    """Simulated time from the clients' devices. A subclass makes the devices in `make_devices`.

    Args:
        options: the clock's checked options.
        facts: of the run, with one device per client.
    Raises: RecipeError if `make_devices` gave None.
    """

    def __init__(self, options: Any, facts: ClockFacts) -> None:
        super().__init__(options, facts)
        if facts.devices is None:
            raise RecipeError(f"clock.name: {type(self).__name__}.make_devices gave None; expected Devices")
        self._devices = facts.devices

    def arrival(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        """The second after download, work and upload; they proceed only while the device is available."""
        return self._devices.done(client, at, self._devices.busy_s(client, bytes_down, samples, bytes_up))

    def earliest(self, client: int, at: float, bytes_down: int, least_samples: int) -> float:
        """The second after download and work. The upload's size is unknown until the step ends."""
        return self._devices.done(client, at, self._devices.busy_s(client, bytes_down, least_samples, None))

    def available(self, clients: Sequence[int], at: float) -> Sequence[int]:
        """Those of `clients` whose device is available at second `at`, in their order."""
        if self._devices.always_available:  # spares a pass over all clients, perhaps millions
            return clients
        return [client for client in clients if self._devices.available_from(client, at) <= at]

    def next_available(self, clients: Sequence[int], at: float) -> float:
        """The first second from `at` on at which one of the devices is available; infinite: none ever is."""
        return min((self._devices.available_from(client, at) for client in clients), default=math.inf)

    def least_seconds(self, client: int, samples: int) -> float:
        """Simulated seconds of the work and of two messages of zero bytes."""
        return self._devices.busy_s(client, 0, samples, 0)


class ConstantOptions(ClockOptions):
    """All devices alike."""

    seconds_per_sample: float = Field(
        0.002, ge=0, le=MOST_SECONDS, description="one training sample in one epoch"
    )
    up_mbit_s: float = Field(
        10.0, ge=LEAST_MBIT_S, le=MOST_MBIT_S, description="bandwidth up, 10^6 bits a second"
    )
    down_mbit_s: float = Field(
        50.0, ge=LEAST_MBIT_S, le=MOST_MBIT_S, description="bandwidth down, 10^6 bits a second"
    )
    latency_s: float = Field(0.05, ge=0, le=MOST_SECONDS, description="of a message, each way, seconds")


class ConstantClock(DeviceClock):
    """All devices alike, always available."""

    options: ConstantOptions

    @classmethod
    def make_devices(cls, options: ConstantOptions, clients: int, seed: int) -> Devices:
        """One device per client, with the options' speeds."""
        speeds = {name: np.full(clients, getattr(options, name)) for name in (*SPEEDS, "latency_s")}
        return Devices(**speeds, windows=(None,) * clients)


class LogNormalOptions(ConstantOptions):
    """Devices drawn once a run: the constants are medians, log-normal around them."""

    compute_sigma: float = Field(
        0.8, ge=0, le=MOST_SIGMA, description="standard deviation of ln(seconds per sample)"
    )
    bandwidth_sigma: float = Field(
        0.8, ge=0, le=MOST_SIGMA, description="standard deviation of ln(bandwidth), up and down"
    )


class LogNormalClock(DeviceClock):
    """Devices drawn from the run's seed, always available."""

    options: LogNormalOptions

    @classmethod
    def make_devices(cls, options: LogNormalOptions, clients: int, seed: int) -> Devices:
        """One device per client, its speeds drawn around the options' medians."""
        medians = ConstantClock.make_devices(options, clients, seed)
        return draw_devices(medians, seed, options.compute_sigma, options.bandwidth_sigma)


class TraceOptions(ClockOptions):
    """Devices from a file, one row per client and interval of availability."""

    file: PathText = Field(
        description=".parquet or .csv: client, seconds_per_sample, up_mbit_s, down_mbit_s, ..."
    )
    period_s: float | None = Field(
        None,
        gt=0,
        le=MOST_SECONDS,
        description="seconds after which availability repeats; null: as in the run that wrote `file`, else "
        "after the last interval",
    )


class TraceClock(DeviceClock):
    """Devices from a file."""

    options: TraceOptions

    @classmethod
    def make_devices(cls, options: TraceOptions, clients: int, seed: int) -> Devices:
        """One device per client, read from the trace file."""
        return read_trace(Path(options.file), options.period_s, clients)
