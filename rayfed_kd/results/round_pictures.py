"""A run's TensorBoard and pictures: what its recorder lets another thread write, round by round."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_kd.files import written_aside
from rayfed_kd.recipe.yaml_documents import yaml_text
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.score_names import with_scores
from rayfed_kd.results.tables import RowsByRound, read_table
from rayfed_kd.results.tensorboard import RunWriter, remove_event_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rayfed_kd.protocol import Samples, Shown
    from rayfed_kd.setting.setting import Setting

SHOWN_SAMPLES = 64  # of those that a method generated
REAL_PER_CLASS = 200  # images that a real class mean is of

_ROUND_PICTURE = re.compile(r"(.+)-(\d{6,})\.png")  # as `draw_shown` and `_draw_samples` name it

Array = np.ndarray[Any, Any]


class RoundPictures:
    """Writes TensorBoard's file and the pictures of one run, from one thread.

    Args:
        folder: the run's folder.
        setting: what runs.
        after_round: the last round that a resumed run keeps; None: it is a new run.
    """

    def __init__(self, folder: Path, setting: Setting, after_round: int | None) -> None:
        self._folder, self._setting, self._after_round = folder, setting, after_round
        self._real_means: Array | None = None
        # Opened by what is first written: its imports would hold up the first round.
        self._writer: RunWriter | None = None

    def flush(self) -> None:
        """Bring what TensorBoard has so far to disk."""
        if self._writer is not None:
            self._writer.flush()

    def _open(self) -> RunWriter:
        """The writer, with what stands before the first round; opened when it is first asked for."""
        if self._writer is not None:
            return self._writer
        from rayfed_kd.results.charts.partition import bubble_figure

        folder, resumed = self._folder / "tensorboard", self._after_round is not None
        if resumed:
            remove_event_files(folder)
        self._writer = RunWriter(folder, anew=resumed)
        self._writer.text("config", f"```yaml\n{yaml_text(self._setting.recipe.model_dump())}```")
        labels = np.asarray(self._setting.dataset.train.labels)
        counts = self._setting.partition.counts(labels, self._setting.dataset.classes)
        figure = bubble_figure(counts, self._setting.dataset.class_names, "Samples that clients hold")
        self._save_picture("partition", figure, 0, "partition")
        if self._after_round:
            self._restore(self._after_round)
        return self._writer

    def _restore(self, until_round: int) -> None:
        """Write earlier rounds to TensorBoard again, from tables and pictures.

        After a kill the event files lack what was still queued and hold rounds that run again. TensorBoard's
        own way to hide rounds counts simulated seconds as rounds, too, and would hide too many.
        """
        rounds_of = {name: RowsByRound(read_table(self._folder / "tables", name)) for name in SCHEMAS}
        for round_index in range(1, until_round + 1):
            tables = {name: rows.of(round_index) for name, rows in rounds_of.items()}
            self.write_scalars(round_index, tables)
        for path in sorted((self._folder / "figures").glob("*.png")):
            match = _ROUND_PICTURE.fullmatch(path.name)
            if match and int(match[2]) <= until_round:
                self._open().image(match[1], path, int(match[2]))

    def write_scalars(self, round_index: int, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Write a round's rows of the tables to TensorBoard."""
        row = {**next(iter(tables.get("privacy", [])), {}), **tables["rounds"][0]}
        metrics, hosts = with_scores(tables), tables.get("hosts", [])
        writer = self._open()
        writer.round(round_index, row, metrics, dict(row["losses"]), row["sim_s"], hosts)
        for model, accuracies in _accuracies_by_model(tables.get("clients", [])).items():
            writer.histogram(f"client_accuracy/{model}", accuracies, round_index)

    def draw_shown(self, round_index: int, name: str, shown: Shown) -> None:
        """Draw what a method shows after a round under this name."""
        from rayfed_kd.protocol import ClassValues, Samples

        if isinstance(shown, Samples):
            self._draw_samples(round_index, shown)
            return
        if not any(map(len, shown.values.values())):
            return  # no picture of nothing
        from rayfed_kd.results.charts.bars import class_values_figure, distribution_figure

        values = {series: value.numpy() for series, value in shown.values.items()}
        names = self._setting.dataset.class_names
        if isinstance(shown, ClassValues):
            figure = class_values_figure(values, names, shown.quantity, round_index)
        else:
            figure = distribution_figure(values, shown.quantity, round_index)
        file = f"{name}-{round_index:06d}"
        self._save_picture(name, figure, round_index, file)
        rows = [
            (series, place, float(v)) for series, value in values.items() for place, v in enumerate(value)
        ]
        columns = dict(zip(("series", "index", "value"), zip(*rows, strict=True), strict=True))
        with written_aside(self._folder / "figures" / f"{file}.parquet") as aside:
            pq.write_table(pa.table(columns), aside)

    def _draw_samples(self, round_index: int, samples: Samples) -> None:
        from rayfed_kd.results.charts.images import class_means_figure, sample_grid_figure

        names = self._setting.dataset.class_names
        images, labels = samples.images.numpy(), samples.labels.numpy()
        grid = sample_grid_figure(images[:SHOWN_SAMPLES], labels[:SHOWN_SAMPLES], names)
        means, counts = _class_means(images, labels, len(names))
        classes = class_means_figure(self._real_class_means(), means, names, counts)
        for tag, figure in (("samples", grid), ("class_means", classes)):
            self._save_picture(tag, figure, round_index, f"{tag}-{round_index:06d}")

    def _save_picture(self, tag: str, figure: Figure, round_index: int, name: str) -> None:
        """Save a figure as a file and in TensorBoard; it is drawn once."""
        from rayfed_kd.results.charts.figure import save_figure

        path = self._folder / "figures" / f"{name}.png"
        save_figure(figure, path)
        self._open().image(tag, path, round_index)

    def _real_class_means(self) -> Array:
        if self._real_means is None:
            train = self._setting.dataset.train
            labels = np.asarray(train.labels)
            classes = len(self._setting.dataset.class_names)
            chosen = np.concatenate([np.flatnonzero(labels == c)[:REAL_PER_CLASS] for c in range(classes)])
            images = np.asarray(train.images[np.sort(chosen)], dtype=np.float32) / 255
            self._real_means, _ = _class_means(images, labels[np.sort(chosen)], classes)
        return self._real_means

    def draw_last(self) -> None:
        """Draw the pictures of all rounds, and close TensorBoard's file."""
        from rayfed_kd.results.charts.bars import accuracy_histogram_figure
        from rayfed_kd.results.charts.lines import curves_figure, logged_figure

        rounds = read_table(self._folder / "tables", "rounds").to_pylist()
        last = rounds[-1]["round"]
        logged = {row["round"]: dict(row["losses"]) for row in rounds}
        if any(logged.values()):
            self._save_picture("logged", logged_figure(logged), last, "logged")
        curves = curves_figure(read_table(self._folder / "tables", "metrics"))
        if curves is not None:
            self._save_picture("curves", curves, last, "curves")
        clients = read_table(self._folder / "tables", "clients")
        if clients.num_rows:
            figure = accuracy_histogram_figure(clients)
            self._save_picture("client_accuracies", figure, last, "client-accuracies")
        self._open().close()


def _accuracies_by_model(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    accuracies: dict[str, list[float]] = {}
    for row in rows:
        accuracies.setdefault(row["model"], []).append(row["accuracy"])
    return accuracies


def _class_means(images: Array, labels: Array, classes: int) -> tuple[Array, Array]:
    """Mean image per class, [classes, c, h, w], NaN where a class has none; and how many it has."""
    means = np.full((classes, *images.shape[1:]), np.nan, dtype=np.float32)
    counts = np.bincount(labels, minlength=classes)
    for label in np.flatnonzero(counts):
        means[label] = images[labels == label].mean(axis=0)
    return means, counts
