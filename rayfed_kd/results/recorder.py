"""Writes a run down as it goes: tables, TensorBoard, pictures, summary. One writer, in the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rayfed_kd.files import write_json
from rayfed_kd.results.summary import summarise
from rayfed_kd.results.tables import SCHEMAS, TableWriter, read_table
from rayfed_kd.results.tensorboard import RunWriter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rayfed_kd.protocol import Samples, Shown
    from rayfed_kd.setting.setting import Setting

SHOWN_SAMPLES = 64
REAL_PER_CLASS = 200

Event = Mapping[str, Any]
Array = np.ndarray[Any, Any]


class RunRecorder:
    """The results of one run.

    Args:
        folder: the run's folder.
        setting: what runs.
        on_event: called with each round's event, also kept in `events`.
        after_round: a resumed run's last round; what lies there of later ones goes.
    """

    def __init__(
        self,
        folder: Path,
        setting: Setting,
        on_event: Callable[[Event], None] | None = None,
        after_round: int | None = None,
    ) -> None:
        self._folder, self._setting, self._on_event = folder, setting, on_event
        self.events: list[dict[str, Any]] = []
        self._tables = TableWriter(folder / "tables")
        self._log = _file_logger(folder / "log.txt")
        self._last_wall_s, self._after_round = 0.0, after_round
        if after_round is not None:
            self._tables.truncate(after_round)
            self._log.info("resumed after round %s", after_round)
            rounds = read_table(folder / "tables", "rounds")["wall_s"].to_pylist()
            self._last_wall_s = rounds[-1] if rounds else 0.0
        self._real: Array | None = None
        # Pictures take longer than tables: a thread of their own, one, so that they stay in order.
        self._artist = ThreadPoolExecutor(1, "artist")
        self._pending: list[Any] = []
        self._writer: RunWriter | None = None

    def record(self, record: Any) -> None:
        """One round: its tables at once, pictures and TensorBoard in the background."""
        self._tables.write(record.round, record.tables)
        event = self._event(record)
        self.events.append(event)
        self._log.info("%s", event)
        if self._on_event is not None:
            self._on_event(event)
        if len(self.events) == 1:  # not earlier: its imports would hold up the first round
            self._draw(self._open_tensorboard)
        self._draw(self._scalars, record)
        for name, shown in record.shown.items():
            self._draw(self._shown, record.round, name, shown)

    def close(self, status: str) -> dict[str, Any]:
        """Last pictures and summary.json; gives the summary."""
        self._draw(self._last_pictures)
        self._artist.shutdown(wait=True)
        self._tables.close()
        tables = {name: read_table(self._folder / "tables", name) for name in SCHEMAS}
        summary = summarise(tables, status)
        write_json(self._folder / "summary.json", summary)
        self._log.info("%s", status)
        for handler in list(self._log.handlers):
            handler.close()
            self._log.removeHandler(handler)
        for drawn in self._pending:
            drawn.result()  # a fault in a picture must not pass unseen, nor cost the tables
        return summary

    def _draw(self, work: Callable[..., None], *arguments: Any) -> None:
        self._pending = [drawn for drawn in self._pending if not drawn.done() or drawn.exception()]
        self._pending.append(self._artist.submit(work, *arguments))

    def _open_tensorboard(self) -> None:
        from rayfed_kd.results.partition_figures import bubble_figure

        self._writer = RunWriter(self._folder / "tensorboard", self._after_round)
        self._writer.text(
            "config", f"```yaml\n{yaml.safe_dump(self._setting.recipe.model_dump(), sort_keys=False)}```"
        )
        labels = np.asarray(self._setting.dataset.train.labels)
        counts = self._setting.partition.counts(labels, self._setting.dataset.classes)
        figure = bubble_figure(counts, self._setting.dataset.class_names, "Samples that clients hold")
        self._show("partition", figure, 0, "partition")

    def _event(self, record: Any) -> dict[str, Any]:
        row = record.tables["rounds"][0]
        wall_s = row["wall_s"]
        event = {
            "round": record.round,
            "rounds": self._setting.recipe.rounds,
            "wall_s": wall_s,
            "sim_s": row["sim_s"],
            "round_s": wall_s - self._last_wall_s,
            "losses": row["losses"],
            "bytes_up": row["bytes_up"],
            "bytes_down": row["bytes_down"],
            "cohort": row["cohort"],
            "metrics": {m["model"]: m for m in record.tables.get("metrics", [])},
        }
        self._last_wall_s = wall_s
        return event

    def _scalars(self, record: Any) -> None:
        assert self._writer is not None
        row = record.tables["rounds"][0]
        metrics, hosts = (record.tables.get(name, []) for name in ("metrics", "hosts"))
        self._writer.round(record.round, row, metrics, row["losses"], row["sim_s"], hosts)
        for model, accuracies in _by_model(record.tables.get("clients", [])).items():
            self._writer.histogram(f"client_accuracy/{model}", accuracies, record.round)

    def _shown(self, round_index: int, name: str, shown: Shown) -> None:
        from rayfed_kd.protocol import ClassValues, Samples

        if isinstance(shown, Samples):
            self._samples(round_index, shown)
            return
        from rayfed_kd.results.figures import class_values_figure, distribution_figure

        values = {series: value.numpy() for series, value in shown.values.items()}
        names = self._setting.dataset.class_names
        if isinstance(shown, ClassValues):
            figure = class_values_figure(values, names, shown.quantity, round_index)
        else:
            figure = distribution_figure(values, shown.quantity, round_index)
        file = f"{name}-{round_index:06d}"
        self._show(name, figure, round_index, file)
        rows = [
            (series, place, float(v)) for series, value in values.items() for place, v in enumerate(value)
        ]
        columns = dict(zip(("series", "index", "value"), zip(*rows, strict=True), strict=True))
        pq.write_table(pa.table(columns), self._folder / "figures" / f"{file}.parquet")

    def _samples(self, round_index: int, samples: Samples) -> None:
        from rayfed_kd.results.figures import class_means_figure, sample_grid_figure

        names = self._setting.dataset.class_names
        images, labels = samples.images.numpy(), samples.labels.numpy()
        grid = sample_grid_figure(images[:SHOWN_SAMPLES], labels[:SHOWN_SAMPLES], names)
        means, counts = _class_means(images, labels, len(names))
        classes = class_means_figure(self._real_means(), means, names, counts)
        for tag, figure in (("samples", grid), ("class_means", classes)):
            self._show(tag, figure, round_index, f"{tag}-{round_index:06d}")

    def _show(self, tag: str, figure: Figure, round_index: int, name: str) -> None:
        """A picture as a file and in TensorBoard, drawn once."""
        from rayfed_kd.results.figures import save_figure

        assert self._writer is not None
        path = self._folder / "figures" / f"{name}.png"
        save_figure(figure, path)
        self._writer.image(tag, path, round_index)

    def _real_means(self) -> Array:
        if self._real is None:
            train = self._setting.dataset.train
            labels = np.asarray(train.labels)
            classes = len(self._setting.dataset.class_names)
            chosen = np.concatenate([np.flatnonzero(labels == c)[:REAL_PER_CLASS] for c in range(classes)])
            images = np.asarray(train.images[np.sort(chosen)], dtype=np.float32) / 255
            self._real, _ = _class_means(images, labels[np.sort(chosen)], classes)
        return self._real

    def _last_pictures(self) -> None:
        if self._writer is None:  # no round was finished
            return
        from rayfed_kd.results.figures import accuracy_histogram_figure, curves_figure, logged_figure

        last = self.events[-1]["round"]
        rounds = read_table(self._folder / "tables", "rounds").to_pylist()
        logged = {row["round"]: dict(row["losses"]) for row in rounds}
        if any(logged.values()):
            self._show("logged", logged_figure(logged), last, "logged")

        metrics = read_table(self._folder / "tables", "metrics")
        if metrics.num_rows:
            self._show("curves", curves_figure(metrics), last, "curves")
        clients = read_table(self._folder / "tables", "clients")
        if clients.num_rows:
            self._show("client_accuracies", accuracy_histogram_figure(clients), last, "client-accuracies")
        self._writer.close()


def _by_model(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["model"], []).append(row["accuracy"])
    return found


def _class_means(images: Array, labels: Array, classes: int) -> tuple[Array, Array]:
    """Mean image per class, [classes, c, h, w], NaN where a class has none; and how many it has."""
    means = np.full((classes, *images.shape[1:]), np.nan, dtype=np.float32)
    counts = np.bincount(labels, minlength=classes)
    for label in np.flatnonzero(counts):
        means[label] = images[labels == label].mean(axis=0)
    return means, counts


def _file_logger(path: Path) -> logging.Logger:
    logger = logging.Logger(str(path), logging.INFO)  # not registered: one run, one logger
    handler = logging.FileHandler(path, encoding="utf8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger
