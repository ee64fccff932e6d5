"""A run in TensorBoard, by round and, where a clock runs, by simulated second.

`RunWriter` also writes the trials of searches.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.files import flush_folder, make_folder
from rayfed_kd.results.schemas import GPU_COLUMNS

SHOWN = {
    "bytes_up": "bytes/up",
    "bytes_down": "bytes/down",
    "cohort": "round/cohort",
    "dropped": "round/dropped",
    "bad_replies": "round/bad_replies",
    "staleness": "round/staleness",
    "dispatch_s": "time/dispatch_s",
    "client_s": "time/client_s",
    "server_s": "time/server_s",
    "evaluate_s": "time/evaluate_s",
    "wall_s": "time/wall_s",
}
SHOWN_OF_PRIVACY = {
    "epsilon": "privacy/epsilon",
    "local_epsilon": "privacy/local_epsilon",
    "clip": "privacy/clip",
}

COLOURS_AND_ALPHA = 4  # channels of the pictures, in TensorBoard's numbers
FEW_HOSTS = 16  # more hosts than this would fill TensorBoard's page with curves


_before = threading.excepthook


def _told_by_the_next_call(failed: threading.ExceptHookArgs) -> None:
    """Drop the stack trace of TensorBoard's thread, as of a full disk: its next call raises the error."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        _before(failed)


threading.excepthook = _told_by_the_next_call


class RunWriter:
    """The one writer of a run's event file.

    Args:
        folder: for `tensorboard --logdir`; made if it is not there.
        anew: a TensorBoard that has read the folder forgets what earlier writers wrote.
    """

    def __init__(self, folder: Path, *, anew: bool = False) -> None:
        # Torch takes two seconds to load, this on top of it a quarter: not before it is needed.
        from torch.utils.tensorboard import SummaryWriter

        # A TensorBoard that is open keeps what it has read of files that are gone; purge_step drops it.
        # Five seconds in place of torch's 120, so that the page follows a run.
        self._folder = folder
        make_folder(folder)
        self._writer: Any = SummaryWriter(str(folder), flush_secs=5, purge_step=0 if anew else None)

    def round(
        self,
        round_index: int,
        row: Mapping[str, Any],
        metrics: Sequence[Mapping[str, Any]],
        losses: Mapping[str, float],
        sim_s: float | None,
        hosts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write a round's scalars: times, bytes, losses, metrics, hosts. Values that are None are left out.

        Args:
            round_index: the round, from 1.
            row: the round's row of the table `rounds`, with that of `privacy` where there is one.
            metrics: its rows of the table `metrics`, one per model.
            losses: name -> mean over the round.
            sim_s: simulated seconds since the start, None without a clock; TensorBoard's step is a whole
                second.
            hosts: its rows of the table `hosts`; of more than 16 only the extremes are shown.
        """
        scalars = {tag: row.get(column) for column, tag in (SHOWN | SHOWN_OF_PRIVACY).items()}
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
        """Write a histogram.

        Args:
            tag: its name, as client_accuracy/oca.
            values: any number of values.
            round_index: the round, from 1.
        """
        self._writer.add_histogram(tag, np.asarray(values), round_index)

    def image(self, tag: str, path: Path, round_index: int) -> None:
        """Write a picture that was saved as PNG.

        Args:
            tag: its name.
            path: the PNG file.
            round_index: the round; 0 for what is there before the first.
        """
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:  # for its size; the file goes on as it is
            width, height = picture.size
        # `add_image` takes pixels, and would compress them once more: a third of a picture's time.
        image = Summary.Image(
            height=height, width=width, colorspace=COLOURS_AND_ALPHA, encoded_image_string=path.read_bytes()
        )
        self._writer.file_writer.add_summary(
            Summary(value=[Summary.Value(tag=tag, image=image)]), round_index
        )

    def text(self, tag: str, markdown: str) -> None:
        """Write a text in Markdown, as the configuration, under a tag."""
        self._writer.add_text(tag, markdown)

    def series(self, tag: str, steps: Sequence[int], values: Sequence[float]) -> None:
        """Write a whole curve.

        Args:
            tag: its name.
            steps: rounds or seconds, ascending.
            values: equally many.
        """
        for step, value in zip(steps, values, strict=True):
            self._writer.add_scalar(tag, float(value), int(step))

    def hparams(
        self, coefficients: Mapping[str, bool | int | float | str], results: Mapping[str, float]
    ) -> None:
        """Write a trial of a search for TensorBoard's HParams.

        Args:
            coefficients: recipe key -> value.
            results: name -> what the trial reached.
        """
        # "." keeps the results in this run; by default they would become a run of their own.
        self._writer.add_hparams(dict(coefficients), dict(results), run_name=".")

    def flush(self) -> None:
        """Write what is still buffered."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is still buffered, close the file and bring it to disk: nobody writes it again."""
        self._writer.close()
        flush_folder(self._folder)


def _host_scalars(hosts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the hosts measured: it shows idle hosts and GPUs, and leaks. Of many, only the extremes."""
    scalars: dict[str, float] = {}
    for column in ("rss_mb", "gpu_mb", "busy_s", *GPU_COLUMNS):
        # A column that a host cannot measure is null: it has no curve rather than one of zeros.
        values = {row["host"]: float(row[column]) for row in hosts if row.get(column) is not None}
        if not values:
            continue
        least, most = min(values.values()), max(values.values())
        scalars |= {f"hosts/{column}/least": least, f"hosts/{column}/most": most}
        if len(values) <= FEW_HOSTS:
            scalars |= {f"hosts/{column}/{host}": value for host, value in values.items()}
    return scalars


def remove_event_files(folder: Path) -> None:
    """Remove what writers left in a folder, so that a new writer does not add to it.

    TensorBoard shows all event files of a folder as one run. Other files, and subfolders, are left alone.

    Args:
        folder: a writer's folder; it is removed, too, if nothing else is in it.
    """
    if not folder.exists():
        return
    for path in folder.glob("events.out.tfevents.*"):
        path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
