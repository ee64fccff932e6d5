"""Write a run's results as it goes: tables, log and summary; TensorBoard and pictures in the background.

There is one recorder per run, in the server's process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.files import write_json
from rayfed_kd.results.round_pictures import RoundPictures
from rayfed_kd.results.schemas import EPSILONS, SCHEMAS
from rayfed_kd.results.score_names import with_scores
from rayfed_kd.results.stopping import StopRule
from rayfed_kd.results.summary import is_finished, summarise
from rayfed_kd.results.tables import RowsByRound, TableWriter, read_table

if TYPE_CHECKING:
    from rayfed_kd.setting.setting import Setting

SYNC_S = 1.0  # so often the tables are flushed to disk
Event = Mapping[str, Any]


class RunRecorder:
    """Records one run.

    Args:
        folder: the run's folder, locked by this process.
        setting: what runs.
        on_event: called with each round's event after its tables can be read.
        after_round: the last round that a resumed run keeps; rows of later ones are dropped.
        stop_rules: they take every round, also those that a resumed run keeps.

    Attributes:
        events: the events of all rounds that this process recorded.
    """

    def __init__(
        self,
        folder: Path,
        setting: Setting,
        on_event: Callable[[Event], None] | None = None,
        after_round: int | None = None,
        stop_rules: Sequence[StopRule] = (),
    ) -> None:
        self._folder, self._setting, self._on_event = folder, setting, on_event
        self._stop_rules = stop_rules
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
            self._take_again(len(rounds))
        self._pictures = RoundPictures(folder, setting, after_round)
        # Pictures take longer than tables: a thread of their own, one, so that they stay in order.
        self._artist = ThreadPoolExecutor(1, "artist")
        self._pending: list[Any] = []

    def record(self, record: Any) -> None:
        """Record a round: its tables at once, pictures and TensorBoard in the background.

        Args:
            record: the round's record, with `round`, `tables` (as `SCHEMAS`) and `shown` (what a method
                shows, by name).
        """
        self._tables.write(record.round, record.tables)
        for rule in self._stop_rules:
            rule.take(record.tables)
        event = self._event(record)
        self.events.append(event)
        self._log.info("%s", event)
        if self._on_event is not None:
            self._on_event(event)
        self._in_background(self._pictures.write_scalars, record.round, record.tables)
        for name, shown in record.shown.items():
            self._in_background(self._pictures.draw_shown, record.round, name, shown)
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
        self._pictures.flush()
        return self._tables.row_counts(until_round)

    def close(self, status: str) -> dict[str, Any]:
        """Write the last pictures and summary.json.

        Args:
            status: finished, interrupted or failed.

        Returns: the summary.
        """
        if self.events or self._after_round:
            self._in_background(self._pictures.draw_last)
        self._artist.shutdown(wait=True)
        self._tables.close()
        tables = {name: read_table(self._folder / "tables", name) for name in SCHEMAS}
        recipe = self._setting.recipe
        summary = summarise(tables, status, recipe.partition.clients, recipe.evaluation.clients)
        for rule in self._stop_rules:
            if rule.why and is_finished(summary):
                summary["stopped"] = rule.why
        write_json(self._folder / "summary.json", summary)
        self._log.info("%s", status)
        for handler in list(self._log.handlers):
            handler.close()
            self._log.removeHandler(handler)
        for picture in self._pending:
            picture.result()  # raises: a fault in a picture must not pass unseen, nor cost the tables
        return summary

    def _take_again(self, rounds: int) -> None:
        """Give stop rules the rounds that a resumed run keeps."""
        if self._stop_rules:
            kept = {name: RowsByRound(read_table(self._folder / "tables", name)) for name in SCHEMAS}
            for round_index in range(1, rounds + 1):
                for rule in self._stop_rules:
                    rule.take({name: rows.of(round_index) for name, rows in kept.items()})

    def _in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        # Done work without an error is forgotten: a long run draws thousands of times.
        self._pending = [one for one in self._pending if not one.done() or one.exception()]
        self._pending.append(self._artist.submit(work, *arguments))

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


def _file_logger(path: Path) -> logging.Logger:
    # Not registered globally: several runs may share a process.
    logger = logging.Logger(str(path), logging.INFO)
    handler = logging.FileHandler(path, encoding="utf8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger
