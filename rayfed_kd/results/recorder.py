"""Write a run's results as it goes: tables, log, TensorBoard, pictures, summary.

There is one recorder per run, in the server's process.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_kd.files import write_json, written_aside
from rayfed_kd.recipe.yaml_documents import yaml_text
from rayfed_kd.results.schemas import EPSILONS, SCHEMAS, with_scores
from rayfed_kd.results.summary import summarise
from rayfed_kd.results.tables import RowsByRound, TableWriter, read_table
from rayfed_kd.results.tensorboard import RunWriter, remove_event_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rayfed_kd.protocol import Samples, Shown
    from rayfed_kd.setting.setting import Setting

SHOWN_SAMPLES = 64  # of those that a method generated
SYNC_S = 1.0  # so often the tables are flushed to disk
REAL_PER_CLASS = 200  # images that a real class mean is of

_ROUND_PICTURE = re.compile(r"(.+)-(\d{6,})\.png")  # as `_draw_shown` and `_draw_samples` name it

Event = Mapping[str, Any]
Array = np.ndarray[Any, Any]


class RunRecorder:
    """Records one run.

    Args:
        folder: the run's folder, locked by this process.
        setting: what runs.
        on_event: called with each round's event after its tables can be read.
        after_round: the last round that a resumed run keeps; rows of later ones are dropped.

    Attributes:
        events: the events of all rounds that this process recorded.
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
        self._tables = TableWriter(folder / "tables", after_round)
        self._synced = time.monotonic()
        self._log = _file_logger(folder / "log.txt")
        self._last_wall_s, self._after_round = 0.0, after_round
        if after_round is None:
            for note in setting.dataset.notes:
                self._log.info("note: %s", note)
        else:
            self._log.info("resumed after round %s", after_round)
            # wall_s goes on over a resumption: a round's own seconds are counted from the last that stays.
            rounds = read_table(folder / "tables", "rounds")["wall_s"].to_pylist()
            self._last_wall_s = rounds[-1] if rounds else 0.0
        self._real_means: Array | None = None
        # Pictures take longer than tables: a thread of their own, one, so that they stay in order.
        self._artist = ThreadPoolExecutor(1, "artist")
        self._pending: list[Any] = []
        self._writer: RunWriter | None = None
        self._drawing = False  # whether the artist was told to open TensorBoard

    def record(self, record: Any) -> None:
        """Record a round: its tables at once, pictures and TensorBoard in the background.

        Args:
            record: the round's record, with `round`, `tables` (as `SCHEMAS`) and `shown` (what a method
                shows, by name).
        """
        self._tables.write(record.round, record.tables)
        event = self._event(record)
        self.events.append(event)
        self._log.info("%s", event)
        if self._on_event is not None:
            self._on_event(event)
        self._begin_drawing()  # not earlier: its imports would hold up the first round
        self._in_background(self._write_scalars, record.round, record.tables)
        for name, shown in record.shown.items():
            self._in_background(self._draw_shown, record.round, name, shown)
        if time.monotonic() - self._synced >= SYNC_S:
            self._synced = time.monotonic()
            self._in_background(self._tables.sync)

    def flush(self, until_round: int) -> dict[str, int]:
        """Wait until all tables, pictures and TensorBoard's rows so far are on disk.

        A checkpoint comes after it: a run that is resumed from there repeats no earlier round, so it could
        not draw a missing picture.

        Args:
            until_round: the checkpoint's; a later round that was interrupted may have rows already.
        Returns: table -> how many rows it has of rounds up to that one.
        """
        wait(self._pending)
        self._tables.sync()
        if self._writer is not None:
            self._writer.flush()
        return self._tables.row_counts(until_round)

    def close(self, status: str) -> dict[str, Any]:
        """Write the last pictures and summary.json.

        Args:
            status: finished, interrupted or failed.

        Returns: the summary.
        """
        if self.events or self._after_round:
            self._begin_drawing()
            self._in_background(self._draw_last_pictures)
        self._artist.shutdown(wait=True)
        self._tables.close()
        tables = {name: read_table(self._folder / "tables", name) for name in SCHEMAS}
        recipe = self._setting.recipe
        summary = summarise(tables, status, recipe.partition.clients, recipe.evaluation.clients)
        write_json(self._folder / "summary.json", summary)
        self._log.info("%s", status)
        for handler in list(self._log.handlers):
            handler.close()
            self._log.removeHandler(handler)
        for picture in self._pending:
            picture.result()  # raises: a fault in a picture must not pass unseen, nor cost the tables
        return summary

    def _in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        # Done work without an error is forgotten: a long run draws thousands of times.
        self._pending = [one for one in self._pending if not one.done() or one.exception()]
        self._pending.append(self._artist.submit(work, *arguments))

    def _begin_drawing(self) -> None:
        if not self._drawing:
            self._in_background(self._open_tensorboard)
        self._drawing = True

    def _open_tensorboard(self) -> None:
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
            self._restore_tensorboard(self._after_round)

    def _restore_tensorboard(self, until_round: int) -> None:
        """Write earlier rounds to TensorBoard again, from tables and pictures.

        After a kill the event files lack what was still queued and hold rounds that run again. TensorBoard's
        own way to hide rounds counts simulated seconds as rounds, too, and would hide too many.
        """
        assert self._writer is not None
        rounds_of = {name: RowsByRound(read_table(self._folder / "tables", name)) for name in SCHEMAS}
        for round_index in range(1, until_round + 1):
            tables = {name: rows.of(round_index) for name, rows in rounds_of.items()}
            self._write_scalars(round_index, tables)
        for path in sorted((self._folder / "figures").glob("*.png")):
            match = _ROUND_PICTURE.fullmatch(path.name)
            if match and int(match[2]) <= until_round:
                self._writer.image(match[1], path, int(match[2]))

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
            "bad_replies": row.get("bad_replies"),
            "metrics": {row["model"]: row for row in with_scores(record.tables)},
        } | {name: row[name] for row in record.tables.get("privacy", []) for name in EPSILONS}
        self._last_wall_s = wall_s
        return event

    def _write_scalars(self, round_index: int, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        assert self._writer is not None
        row = {**next(iter(tables.get("privacy", [])), {}), **tables["rounds"][0]}
        metrics, hosts = with_scores(tables), tables.get("hosts", [])
        self._writer.round(round_index, row, metrics, dict(row["losses"]), row["sim_s"], hosts)
        for model, accuracies in _accuracies_by_model(tables.get("clients", [])).items():
            self._writer.histogram(f"client_accuracy/{model}", accuracies, round_index)

    def _draw_shown(self, round_index: int, name: str, shown: Shown) -> None:
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

        assert self._writer is not None
        path = self._folder / "figures" / f"{name}.png"
        save_figure(figure, path)
        self._writer.image(tag, path, round_index)

    def _real_class_means(self) -> Array:
        if self._real_means is None:
            train = self._setting.dataset.train
            labels = np.asarray(train.labels)
            classes = len(self._setting.dataset.class_names)
            chosen = np.concatenate([np.flatnonzero(labels == c)[:REAL_PER_CLASS] for c in range(classes)])
            images = np.asarray(train.images[np.sort(chosen)], dtype=np.float32) / 255
            self._real_means, _ = _class_means(images, labels[np.sort(chosen)], classes)
        return self._real_means

    def _draw_last_pictures(self) -> None:
        from rayfed_kd.results.charts.bars import accuracy_histogram_figure
        from rayfed_kd.results.charts.lines import curves_figure, logged_figure

        assert self._writer is not None
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
        self._writer.close()


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


def _file_logger(path: Path) -> logging.Logger:
    # Not registered globally: several runs may share a process.
    logger = logging.Logger(str(path), logging.INFO)
    handler = logging.FileHandler(path, encoding="utf8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger
