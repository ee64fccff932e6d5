"""The run in TensorBoard, by round and, where a clock runs, by simulated second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SHOWN = {
    "bytes_up": "bytes/up",
    "bytes_down": "bytes/down",
    "cohort": "round/cohort",
    "dropped": "round/dropped",
    "staleness": "round/staleness",
    "dispatch_s": "time/dispatch_s",
    "client_s": "time/client_s",
    "server_s": "time/server_s",
    "evaluate_s": "time/evaluate_s",
    "wall_s": "time/wall_s",
}

FEW_HOSTS = 16


class RunWriter:
    """The one writer of a run's event file.

    Args:
        folder: for `tensorboard --logdir`.
    """

    def __init__(self, folder: Path, after_round: int | None = None) -> None:
        # Torch takes two seconds to load, this on top of it a quarter: not before it is needed.
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(
            str(folder), flush_secs=5, purge_step=None if after_round is None else after_round + 1
        )

    def round(
        self,
        round_index: int,
        row: Mapping[str, Any],
        metrics: Sequence[Mapping[str, Any]],
        losses: Mapping[str, float],
        sim_s: float | None,
        hosts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Scalars of a round: times, bytes, losses, metrics, hosts; a value that is None is left out.

        Args:
            row: the round's row of the table `rounds`.
            metrics: its rows of the table `metrics`, one a model.
            losses: mean by name.
            sim_s: simulated seconds since the start, None without a clock; a step is a whole second.
            hosts: its rows of the table `hosts`: of many, only the extremes are shown.
        """
        scalars = {tag: row.get(column) for column, tag in SHOWN.items()}
        scalars |= {f"loss/{name}": value for name, value in losses.items()}
        scalars |= _host_scalars(hosts)
        for metric in metrics:
            values = {k: v for k, v in metric.items() if k not in ("round", "model")}
            scalars |= {f"{name}/{metric['model']}": value for name, value in values.items()}
        for tag, value in scalars.items():
            if value is None:
                continue
            self._writer.add_scalar(tag, value, round_index)
            if sim_s is not None:
                self._writer.add_scalar(f"sim/{tag}", value, round(sim_s))

    def histogram(self, tag: str, values: Sequence[float], round_index: int) -> None:
        """A histogram, of client accuracies for example."""
        self._writer.add_histogram(tag, np.asarray(values), round_index)

    def image(self, tag: str, path: Path, round_index: int) -> None:
        """A picture that was saved as PNG."""
        from PIL import Image

        with Image.open(path) as picture:
            self._writer.add_image(tag, np.asarray(picture.convert("RGB")), round_index, dataformats="HWC")

    def text(self, tag: str, markdown: str) -> None:
        """A text, as the configuration."""
        self._writer.add_text(tag, markdown)

    def series(self, tag: str, steps: Sequence[int], values: Sequence[float]) -> None:
        """A whole curve."""
        for step, value in zip(steps, values, strict=True):
            self._writer.add_scalar(tag, float(value), int(step))

    def hparams(
        self, coefficients: Mapping[str, bool | int | float | str], found: Mapping[str, float]
    ) -> None:
        """A trial of a search: its coefficients and what it found, for TensorBoard's HParams."""
        self._writer.add_hparams(dict(coefficients), dict(found), run_name=".")

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()


def _host_scalars(hosts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Each host's memory and busy seconds, so that idle and leaking ones are seen; of many, the extremes."""
    found: dict[str, float] = {}
    for column in ("rss_mb", "gpu_mb", "busy_s"):
        values = {row["host"]: float(row[column]) for row in hosts}
        if not values:
            continue
        found |= {f"hosts/{column}/least": min(values.values()), f"hosts/{column}/most": max(values.values())}
        if len(values) <= FEW_HOSTS:
            found |= {f"hosts/{column}/{host}": value for host, value in values.items()}
    return found
