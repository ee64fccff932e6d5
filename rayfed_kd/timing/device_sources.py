"""The clients' devices drawn from the run's seed, or read from a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pydantic import ConfigDict, Field

from rayfed_kd.errors import DataError, RecipeError, shortened
from rayfed_kd.recipe.seeds import numpy_stream
from rayfed_kd.recipe.strict import Strict
from rayfed_kd.recipe.validation import validate
from rayfed_kd.timing.devices import PERIOD, SPEEDS, Devices, Windows

# A pattern of windows is walked through: shorter windows, or a device that needs years, would never end.
LEAST_WINDOW_S, MOST_SECONDS = 1e-3, 1e9
LEAST_MBIT_S, MOST_MBIT_S = 1e-6, 1e30


class TraceRow(Strict):
    """A row of a trace: a device, and an interval in which it is available.

    A column of a CSV file with a word in it is read as text throughout: the numbers there are numbers, too.
    """

    model_config = ConfigDict(strict=False)
    client: int = Field(ge=0)
    seconds_per_sample: float = Field(ge=0, le=MOST_SECONDS)
    up_mbit_s: float = Field(ge=LEAST_MBIT_S, le=MOST_MBIT_S)
    down_mbit_s: float = Field(ge=LEAST_MBIT_S, le=MOST_MBIT_S)
    latency_s: float = Field(0.0, ge=0, le=MOST_SECONDS)
    from_s: float | None = Field(None, ge=0)
    until_s: float | None = Field(None, le=MOST_SECONDS)

    def contradictions(self) -> Iterator[str]:
        start, end = self.from_s, self.until_s
        always = start is None and end is None
        if not always and (start is None or end is None or end - start < LEAST_WINDOW_S):
            yield f"available from {start} until {end}; expected at least {LEAST_WINDOW_S:g} s, or both empty"


def draw_devices(medians: Devices, seed: int, compute_sigma: float, bandwidth_sigma: float) -> Devices:
    """Devices with log-normal speeds around the medians, always available; latencies stay as they are.

    Args:
        medians: of K clients.
        seed: the run's.
        compute_sigma: standard deviation of ln(seconds per sample); 0: all devices have the median.
        bandwidth_sigma: the same of the bandwidths, up and down drawn apart.
    """
    sigma = np.array([[compute_sigma], [bandwidth_sigma], [bandwidth_sigma]])
    stream = numpy_stream(seed, "devices")
    # Three draws a client whatever the sigmas are: bandwidths stay when compute_sigma changes.
    factors = np.exp(stream.standard_normal((3, len(medians))) * sigma)
    speeds = zip(SPEEDS, factors, strict=True)
    return replace(medians, **{name: getattr(medians, name) * factor for name, factor in speeds})


def read_trace(path: Path, period_s: float | None, clients: int) -> Devices:
    """Devices from a Parquet or CSV file.

    Columns: client (0 ... K - 1), seconds_per_sample, up_mbit_s, down_mbit_s; latency_s (else 0); from_s and
    until_s, one row per interval in which the client is available (else, or both empty: always). Without
    `period_s` it is that of the run that saved the table, or else the end of the last interval.

    Raises: DataError if it cannot be read; RecipeError naming what in it makes no sense.
    """
    rows: dict[int, list[TraceRow]] = {}
    table = _read(path)
    for number, cells in enumerate(table.to_pylist(), start=1):
        where = f"clock.file: {path}, row {number}"
        row = validate(TraceRow, cells, where)
        if row.client >= clients:
            raise RecipeError(
                f"{where}: client {row.client}; expected 0 to {clients - 1} (partition.clients)"
            )
        rows.setdefault(row.client, []).append(row)
    if absent := sorted(set(range(clients)) - set(rows)):
        numbers = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
        raise RecipeError(
            f"clock.file: {path} says nothing of client {numbers} ({len(absent)} of {clients} clients)"
        )
    for client, intervals in rows.items():
        for name in (*SPEEDS, "latency_s"):
            if len({getattr(row, name) for row in intervals}) > 1:
                raise RecipeError(f"clock.file: {path} has two values of {name} for client {client}")
    latest = max(row.until_s or 0.0 for intervals in rows.values() for row in intervals)
    period_s = period_s or float((table.schema.metadata or {}).get(PERIOD.encode(), latest))
    if latest > period_s:
        raise RecipeError(f"clock.period_s = {period_s:g}: {path} has an interval until {latest:g}")
    firsts = [rows[client][0] for client in range(clients)]
    speeds = {n: np.array([getattr(row, n) for row in firsts], float) for n in (*SPEEDS, "latency_s")}
    windows = tuple(_windows(rows[k], period_s, f"clock.file: {path}, client {k}") for k in range(clients))
    return Devices(**speeds, windows=windows)


def _read(path: Path) -> pa.Table:
    try:
        table = pa.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
        # With their names decoded, which Arrow leaves for later: they may be no UTF-8.
        return table.select(table.column_names)
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = shortened(" ".join(str(error).split()), 300)
        raise DataError(f"clock.file: {path} cannot be read: {reason}") from None


def _windows(rows: Sequence[TraceRow], period_s: float, where: str) -> Windows | None:
    pairs = sorted((row.from_s, row.until_s) for row in rows if row.from_s is not None and row.until_s)
    if not pairs:
        return None
    if len(pairs) < len(rows):
        raise RecipeError(f"{where} is available always and from {pairs[0][0]:g} to {pairs[0][1]:g}")
    for (_, end), (start, until) in pairwise(pairs):
        if start < end:
            raise RecipeError(f"{where}: until {end:g} and from {start:g} to {until:g} overlap")
    starts, ends = (np.array(side, float) for side in zip(*pairs, strict=True))
    return Windows(starts, ends, period_s)
