"""A run in TensorBoard, by round and, where a clock runs, by simulated second."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rayfed_kd.files.whole import flush_folder, make_folder
from rayfed_kd.recipe.yaml_documents import yaml_text
from rayfed_kd.results.trackers.tracker import TrackedRound, TrackedRun, Tracker

COLOURS_AND_ALPHA = 4  # channels of the pictures, in TensorBoard's numbers

_before = threading.excepthook


def _told_by_the_next_call(failed: threading.ExceptHookArgs) -> None:
    """Drop the stack trace of TensorBoard's thread, as of a full disk: its next call raises the error."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        _before(failed)


threading.excepthook = _told_by_the_next_call


class TensorBoard(Tracker):
    """Event files in the run's folder, by round and, where a clock runs, by simulated second."""

    def start(self, run: TrackedRun) -> None:
        """Note where to write. After a kill the files lack rounds and hold some that run again: all anew."""
        self._folder, self._config = run.folder / "tensorboard", run.config

    def round(self, told: TrackedRound) -> None:
        """Write a round's scalars, histograms and pictures; simulated seconds are whole ones there."""
        if told.round == 0:  # not before: its imports would hold up the first round
            resumed = self._folder.exists()
            remove_event_files(self._folder)
            self._writer = event_writer(self._folder, anew=resumed)
            self._writer.add_text("config", f"```yaml\n{yaml_text(self._config)}```")
        sim_s = told.scalars.get("time/sim_s")
        for tag, value in told.scalars.items():
            self._writer.add_scalar(tag, value, told.round)
            if sim_s is not None:
                self._writer.add_scalar(f"sim/{tag}", value, round(sim_s))
        for tag, values in told.histograms.items():
            self._writer.add_histogram(tag, np.asarray(values), told.round)
        for tag, path in told.images.items():
            self._add_picture(tag, path, told.round)

    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Write the pictures of all rounds, and bring the file to disk: nobody writes it again."""
        for path in files:
            if path.suffix == ".png":
                self._add_picture(path.stem, path, summary["rounds"])
        self._writer.close()
        flush_folder(self._folder)

    def _add_picture(self, tag: str, path: Path, step: int) -> None:
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:  # for its size; the file goes on as it is
            width, height = picture.size
        # `add_image` takes pixels, and would compress them once more: a third of a picture's time.
        image = Summary.Image(
            height=height, width=width, colorspace=COLOURS_AND_ALPHA, encoded_image_string=path.read_bytes()
        )
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)


def event_writer(folder: Path, *, anew: bool = False) -> Any:
    """A SummaryWriter, to be closed by the caller.

    Args:
        folder: for `tensorboard --logdir`; made if it is not there.
        anew: a TensorBoard that has read the folder forgets what earlier writers wrote.
    """
    # Torch takes two seconds to load, this on top of it a quarter: not before it is needed.
    from torch.utils.tensorboard import SummaryWriter

    make_folder(folder)
    # A TensorBoard that is open keeps what it has read of files that are gone; purge_step drops it.
    # Five seconds in place of torch's 120, so that the page follows a run.
    return SummaryWriter(str(folder), flush_secs=5, purge_step=0 if anew else None)


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
