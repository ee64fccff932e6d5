"""A comparison in TensorBoard: a folder per row with its mean curves and their deviation."""

from __future__ import annotations

from pathlib import Path

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.writers.bands import Band, bands_by_name
from rayfed_kd.files import folder_name
from rayfed_kd.results.tensorboard import RunWriter, remove_event_files


def write_tensorboard(comparison: Comparison, folder: Path) -> None:
    """Write every row's mean, and mean less and plus one deviation, by round.

    What an earlier comparison wrote there is replaced: TensorBoard would show both, one over the other.

    Args:
        comparison: what is written.
        folder: gets a folder per row, named after the row.
    """
    bands: dict[str, dict[str, Band]] = {}  # row's name -> metric -> band
    for metric in comparison.metrics:
        for name, band in bands_by_name(comparison, metric).items():
            bands.setdefault(name, {})[metric] = band
    for earlier in folder.glob("*/"):
        remove_event_files(earlier)
    for name, bands_by_metric in bands.items():
        # A label may hold anything: `../x` must not name a folder outside of this one.
        writer = RunWriter(folder / folder_name(name))
        for metric, band in bands_by_metric.items():
            low, high = band.mean - band.deviation, band.mean + band.deviation
            for part, values in {"mean": band.mean, "low": low, "high": high}.items():
                writer.series(f"{metric}/{part}", band.rounds.tolist(), values.tolist())
        writer.close()
