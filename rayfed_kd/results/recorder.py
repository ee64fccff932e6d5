"""Write a run's results as it goes: tables, log and summary; pictures and trackers in the background.

There is one recorder per run, in the server's process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.files.whole import write_json
from rayfed_kd.results.round_pictures import RoundPictures
from rayfed_kd.results.scores import with_scores
from rayfed_kd.results.stopping import StopRule
from rayfed_kd.results.summary import is_finished, summarise
from rayfed_kd.results.tables import RowsByRound, TableWriter, read_table, read_tables
from rayfed_kd.results.telling import Event
from rayfed_kd.results.trackers.tracking import Trackers

if TYPE_CHECKING:
    from rayfed_kd.recipe.schema import Recipe
    from rayfed_kd.setting.setting import Setting

SYNC_S = 1.0  # so often the tables are flushed to disk


class RunRecorder:
    """Records one run.

    Args:
        folder: the run's folder, locked by this process.
        setting: what runs.
        on_event: called with each round's event after its tables can be read.
        after_round: the last round that a resumed run keeps; rows of later ones are dropped.
        tell: called with each line that the user should read.

    Attributes:
        events: the events of all rounds that this process recorded.
        listeners_error: what `on_event` raised, which is no fault of the folder's; None: nothing.
    """

    def __init__(
        self,
        folder: Path,
        setting: Setting,
        on_event: Callable[[Event], None] | None = None,
        after_round: int | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._folder, self._setting, self._on_event, self._tell = folder, setting, on_event, tell
        self._asked, self._synced = "", time.monotonic()
        self._stop_rule = None if setting.recipe.stop is None else StopRule(setting.recipe.stop)
        self.events: list[Event] = []
        self.listeners_error: OSError | None = None
        self._tables = TableWriter(folder / "tables", after_round)
        self._log = _file_logger(folder / "log.txt")
        self._last_wall_s, self._after_round = 0.0, after_round
        if after_round is None:
            for note in setting.notes:
                self._log.info("note: %s", note)
        else:
            self._warn(f"resumed after round {after_round}")
            # wall_s goes on over a resumption: a round's own seconds are counted from the last that stays.
            rounds = read_table(folder / "tables", "rounds")["wall_s"].to_pylist()
            self._last_wall_s = rounds[-1] if rounds else 0.0
            if self._stop_rule is not None:
                kept = RowsByRound(folder)
                for round_index in range(1, len(rounds) + 1):
                    self._stop_rule.take(kept.of(round_index))
        self._pictures = RoundPictures(folder, setting)
        self._trackers = Trackers(folder, setting.recipe, self._warn)
        # Pictures take longer than tables: a thread of their own, one, so that they stay in order.
        self._artist = ThreadPoolExecutor(1, "artist")
        self._pending: list[Any] = []

    def record(self, record: Any) -> None:
        """Record a round: its tables at once, pictures and trackers in the background.

        Args:
            record: the round's record, with `round`, `tables` (as `SCHEMAS`) and `shown` (what a method
                shows, by name).
        """
        self._tables.write(record.round, record.tables)
        if self._stop_rule is not None:
            self._stop_rule.take(record.tables)
        event = self._event(record)
        if not self.events:
            self._in_background(self._pictures.draw_partition)
        self.events.append(event)
        self._log.info("%s", event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except StopIteration:
                self.ask_to_end(record.round)
            except OSError as error:
                self.listeners_error = error
                raise
        for name, content in record.shown.items():
            self._in_background(self._pictures.draw_shown, record.round, name, content)
        self._in_background(self._trackers.round, record.round, record.tables)
        if time.monotonic() - self._synced >= SYNC_S:
            self._synced = time.monotonic()
            self._in_background(self._tables.sync)

    def flush(self, until_round: int) -> dict[str, int]:
        """Wait until all tables and pictures so far are on disk.

        A checkpoint comes after it: a run that is resumed from there repeats no earlier round, so it could
        not draw a missing picture.

        Args:
            until_round: the checkpoint's; a later round that was interrupted may have rows already.
        Returns: table -> how many rows it has of rounds up to that one.
        """
        wait(self._pending)
        self._tables.sync()
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
        summary = write_end(self._folder, self._setting.recipe, status, self._trackers, self.why_ended())
        self._log.info("%s", status)
        for handler in self._log.handlers:
            handler.close()
        for picture in self._pending:
            picture.result()  # raises: a fault in a picture must not pass unseen, nor cost the tables
        return summary

    def why_ended(self) -> str:
        """Why the run ends with its next round that is evaluated; empty: it goes on."""
        return (self._stop_rule.why if self._stop_rule is not None else "") or self._asked

    def ask_to_end(self, round_index: int) -> None:
        """Note that `on_event` raised StopIteration in a round; may be called from another thread."""
        self._asked = self._asked or f"on_event raised StopIteration in round {round_index}"

    def _warn(self, line: str) -> None:
        self._log.warning("%s", line)
        self._tell(line)

    def _in_background(self, work: Callable[..., None], *arguments: Any) -> None:
        # Done work without an error is forgotten: a long run draws thousands of times.
        self._pending = [task for task in self._pending if not task.done() or task.exception()]
        self._pending.append(self._artist.submit(work, *arguments))

    def _event(self, record: Any) -> Event:
        row = record.tables["rounds"][0]
        wall_s = row["wall_s"]
        event: Event = {
            "run": self._folder.name,
            "round": record.round,
            "rounds": self._setting.recipe.rounds,
            "wall_s": wall_s,
            "sim_s": row["sim_s"],
            "round_s": wall_s - self._last_wall_s,
            "logged": row["logged"],
            "bytes_up": row["bytes_up"],
            "bytes_down": row["bytes_down"],
            "cohort": row["cohort"],
            "bad_replies": row.get("bad_replies"),
            "metrics": {row["model"]: row for row in with_scores(record.tables)},
        }
        for spent in record.tables.get("privacy", []):
            event["epsilon"], event["local_epsilon"] = spent["epsilon"], spent["local_epsilon"]
        self._last_wall_s = wall_s
        return event


def write_end(folder: Path, recipe: Recipe, status: str, trackers: Trackers, why: str = "") -> dict[str, Any]:
    """End a run's trackers, and write its summary.json.

    Args:
        folder: the run's, whose tables are written.
        recipe: the run's.
        status: finished, interrupted or failed.
        why: what ended a finished run before its last round; empty: nothing.

    Returns: the summary.
    """
    summary = summarise(read_tables(folder), status, recipe.partition.clients, recipe.evaluation.clients)
    if why and is_finished(summary) and summary["rounds"] < recipe.rounds:
        summary["stopped"] = why
    trackers.end(summary)  # first: a run that has its summary is not gone on with
    write_json(folder / "summary.json", summary)
    return summary


def _file_logger(path: Path) -> logging.Logger:
    # Not registered globally: several runs may share a process.
    logger = logging.Logger(str(path), logging.INFO)
    handler = logging.FileHandler(path, encoding="utf8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger
