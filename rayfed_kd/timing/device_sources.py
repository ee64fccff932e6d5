"""The clients' devices drawn from the run's seed, or read from a trace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rayfed_kd.errors import DataError, RecipeError, shortened, shown
from rayfed_kd.recipe.seeds import numpy_stream
from rayfed_kd.timing.devices import COLUMNS, SPEEDS, Devices, Windows

# A pattern of windows is walked through: shorter windows, or a device that needs years, would never end.
LEAST_WINDOW_S, MOST_SECONDS = 1e-3, 1e9
LEAST_MBIT_S, MOST_MBIT_S = 1e-6, 1e30
MOST_DIGITS = 100


def draw_devices(medians: Devices, seed: int, compute_sigma: float, bandwidth_sigma: float) -> Devices:
    """Devices with log-normal speeds around the medians, always available; latencies stay as they are.

    Args:
        medians: of K clients.
        seed: the run's.
        compute_sigma: standard deviation of ln(seconds per sample); 0: all devices have the median.
        bandwidth_sigma: the same of the bandwidths, up and down drawn apart.
    """
    stream, sigma = (
        numpy_stream(seed, "devices"),
        np.array([[compute_sigma], [bandwidth_sigma], [bandwidth_sigma]]),
    )
    # Three draws a client whatever the sigmas are: bandwidths stay when compute_sigma changes.
    factors = np.exp(stream.standard_normal((3, len(medians))) * sigma)
    return Devices(
        medians.seconds_per_sample * factors[0],
        medians.up_mbit_s * factors[1],
        medians.down_mbit_s * factors[2],
        medians.latency_s,
        medians.windows,
    )


def read_trace(path: Path, period_s: float | None, clients: int) -> Devices:
    """Devices from a Parquet or CSV file.

    Columns: client (0 ... K - 1), seconds_per_sample, up_mbit_s, down_mbit_s; latency_s (else 0); from_s and
    until_s, one row per interval in which the client is available (else, or both empty: always).

    Raises: DataError if it cannot be read; RecipeError naming what in it makes no sense.
    """
    table = _read(path)
    missing = [name for name in ("client", *SPEEDS) if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in COLUMNS]
    if missing or unknown:
        what = f"has no column {missing[0]}" if missing else f"has an unknown column {unknown[0]}"
        if "period_s" in unknown:
            what += " (clock.period_s stands in the recipe)"
        raise RecipeError(f"clock.file: {path} {what}; expected {', '.join(COLUMNS)}")
    rows: dict[int, list[dict[str, Any]]] = {}
    for number, given in enumerate(table.to_pylist(), start=1):
        read = {name: _as_number(value) for name, value in given.items()}
        row = {"latency_s": 0.0, "from_s": None, "until_s": None, **read}
        _check_row(row, f"clock.file: {path}, row {number}", clients)
        rows.setdefault(row["client"], []).append(row)
    absent = sorted(set(range(clients)) - set(rows))
    if absent:
        shown = ", ".join(map(str, absent[:5])) + (", ..." if len(absent) > 5 else "")
        raise RecipeError(
            f"clock.file: {path} says nothing of client {shown} ({len(absent)} of {clients} clients)"
        )
    for client, intervals in rows.items():
        for name in (*SPEEDS, "latency_s"):
            if len({row[name] for row in intervals}) > 1:
                raise RecipeError(f"clock.file: {path} has two values of {name} for client {client}")
    latest = max(
        (row["until_s"] for intervals in rows.values() for row in intervals if row["until_s"]), default=0.0
    )
    period_s = period_s or latest
    if latest > period_s:
        raise RecipeError(f"clock.period_s = {period_s:g}: {path} has an interval until {latest:g}")
    speeds = {n: np.array([rows[k][0][n] for k in range(clients)], float) for n in (*SPEEDS, "latency_s")}
    windows = tuple(_windows(rows[k], period_s, f"clock.file: {path}, client {k}") for k in range(clients))
    return Devices(**speeds, windows=windows)


def _read(path: Path) -> pa.Table:
    try:
        table = pa.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
        # With their names decoded, which Arrow leaves for later: they may be no UTF-8.
        return table.rename_columns(list(table.column_names))
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = shortened(" ".join(str(error).split()), 300)
        raise DataError(f"clock.file: {path} cannot be read: {reason}") from None


def _check_row(row: dict[str, Any], where: str, clients: int) -> None:
    client = row["client"]
    if not isinstance(client, int) or not 0 <= client < clients:
        raise RecipeError(f"{where}: client {shown(client)}; expected 0 to {clients - 1} (partition.clients)")
    for name in SPEEDS:
        value, free = row[name], name == "seconds_per_sample"
        if not _number(value) or value < 0 or (value == 0 and not free):
            bound = "of at least" if free else "above"
            raise RecipeError(f"{where}: {name} {shown(value)}; expected a number {bound} 0")
        least, most = (0.0, MOST_SECONDS) if free else (LEAST_MBIT_S, MOST_MBIT_S)
        if not least <= value <= most:
            raise RecipeError(f"{where}: {name} {value:g}; expected {least:g} to {most:g}")
    latency_s = row["latency_s"]
    if not _number(latency_s) or not 0 <= latency_s <= MOST_SECONDS:
        raise RecipeError(f"{where}: latency_s {shown(latency_s)}; expected a number of at least 0")
    start, end = row["from_s"], row["until_s"]
    if start is None and end is None:
        return
    if not _number(start) or not _number(end) or not 0 <= start < end:
        raise RecipeError(
            f"{where}: available from {shown(start)} until {shown(end)}; expected 0 <= from < until"
        )
    if end - start < LEAST_WINDOW_S or end > MOST_SECONDS:
        raise RecipeError(
            f"{where}: available from {start:g} until {end:g}; expected at least {LEAST_WINDOW_S:g} s, and "
            f"an end within {MOST_SECONDS:g} s"
        )


def _as_number(value: Any) -> Any:
    """A column with a word in it is read as text throughout: its numbers are numbers, and the word stays."""
    if not isinstance(value, str) or len(value) > MOST_DIGITS:
        return value
    try:
        return int(value) if value.strip().isdigit() else float(value)
    except ValueError:
        return value


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _windows(rows: list[dict[str, Any]], period_s: float, where: str) -> Windows | None:
    pairs = sorted((row["from_s"], row["until_s"]) for row in rows if row["from_s"] is not None)
    if not pairs:
        return None
    if len(pairs) < len(rows):
        raise RecipeError(f"{where} is available always and from {pairs[0][0]:g} to {pairs[0][1]:g}")
    for (_, end), (start, until) in pairwise(pairs):
        if start < end:
            raise RecipeError(f"{where}: until {end:g} and from {start:g} to {until:g} overlap")
    starts, ends = (np.array(side, float) for side in zip(*pairs, strict=True))
    return Windows(starts, ends, period_s)
