"""The registered clocks: when a reply is at the server, in simulated time.

It is known before the real work ends, so the order of replies repeats. What a clock is says
`rayfed_kd.protocol.clock`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import Clock, ClockFacts, ClockOptions, Devices
from rayfed_kd.setting.devices import draw_devices, read_trace


class NoClock(Clock):
    """No simulated time: all replies arrive at once, and are taken in client order."""

    simulated: ClassVar[bool] = False

    def arrival(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        return at


class RealClock(NoClock):
    """The server takes replies as they come on this cluster, for those who study it.

    Such a run does not repeat.
    """

    measured: ClassVar[bool] = True


class DeviceClock(Clock):
    """Time as the clients' devices make it. A subclass says in `make_devices` which they are.

    Args:
        facts: with one device per client.
    """

    def __init__(self, options: Any, facts: ClockFacts) -> None:
        super().__init__(options, facts)
        if facts.devices is None:
            raise RecipeError(f"clock.name: {type(self).__name__}.make_devices gave None; expected Devices")
        self._devices = facts.devices

    def arrival(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        """Download, work and upload, of which only seconds count in which the device is available."""
        return self._devices.done(client, at, self._devices.busy_s(client, bytes_down, samples, bytes_up))

    def earliest(self, client: int, at: float, bytes_down: int, least_samples: int) -> float:
        """Without the upload, whose size nobody knows yet."""
        return self._devices.done(client, at, self._devices.busy_s(client, bytes_down, least_samples, None))

    def available(self, clients: Sequence[int], at: float) -> Sequence[int]:
        """Those whose device is available."""
        if self._devices.always_available:
            return clients
        return [client for client in clients if self._devices.available_from(client, at) <= at]

    def next_available(self, clients: Sequence[int], at: float) -> float:
        """When the first of their devices is available."""
        return min((self._devices.available_from(client, at) for client in clients), default=math.inf)

    def least_seconds(self, client: int, samples: int) -> float:
        """Two messages of no bytes, and the work."""
        return self._devices.busy_s(client, 0, samples, 0)


class ConstantOptions(ClockOptions):
    """All devices alike."""

    seconds_per_sample: float = Field(0.002, ge=0, description="one training sample in one epoch")
    up_mbit_s: float = Field(10.0, gt=0, description="bandwidth up, 10^6 bits a second")
    down_mbit_s: float = Field(50.0, gt=0, description="bandwidth down, 10^6 bits a second")
    latency_s: float = Field(0.05, ge=0, description="of a message, each way, seconds")


class ConstantClock(DeviceClock):
    """All devices alike, always available."""

    options: ConstantOptions

    @classmethod
    def make_devices(cls, options: ConstantOptions, clients: int, seed: int) -> Devices:
        """One device per client, with the options' speeds."""
        return Devices.alike(
            clients,
            seconds_per_sample=options.seconds_per_sample,
            up_mbit_s=options.up_mbit_s,
            down_mbit_s=options.down_mbit_s,
            latency_s=options.latency_s,
        )


class LogNormalOptions(ConstantOptions):
    """Devices drawn once a run: the constants are medians, log-normal around them."""

    compute_sigma: float = Field(0.8, ge=0, description="standard deviation of ln(seconds per sample)")
    bandwidth_sigma: float = Field(0.8, ge=0, description="standard deviation of ln(bandwidth), up and down")


class LogNormalClock(DeviceClock):
    """Devices drawn from the run's seed, always available."""

    options: LogNormalOptions

    @classmethod
    def make_devices(cls, options: LogNormalOptions, clients: int, seed: int) -> Devices:
        """Speeds around those of the options."""
        medians = ConstantClock.make_devices(options, clients, seed)
        return draw_devices(medians, seed, options.compute_sigma, options.bandwidth_sigma)


class TraceOptions(ClockOptions):
    """Devices from a file, one row per client and interval of availability."""

    file: str = Field(description=".parquet or .csv: client, seconds_per_sample, up_mbit_s, down_mbit_s, ...")
    period_s: float | None = Field(
        None, gt=0, description="availability repeats after so many seconds; null: after the last interval"
    )


class TraceClock(DeviceClock):
    """Devices from a file."""

    options: TraceOptions

    @classmethod
    def make_devices(cls, options: TraceOptions, clients: int, seed: int) -> Devices:
        """Those of the file."""
        return read_trace(Path(options.file), options.period_s, clients)
