"""A search's folder: what is searched, and what became of every trial.

runs/tune-NAME/search.yaml    recipe, space, metric, search, scheduler: a resumed search must have the same
runs/tune-NAME/trials/00003/  a run's folder as any other, and trial.json: coefficients, status, round, error

A resumed search needs these files alone. A trial that is over reports again what stands in its tables. One
that was cut off goes on from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from rayfed_kd.errors import DataError, RecipeError, changes, naming, shortened
from rayfed_kd.experiment.judging import SearchMetric
from rayfed_kd.files.folders import locked_folder, writing
from rayfed_kd.files.whole import atomic_write, make_folder, read_json, remove_unfinished, write_json
from rayfed_kd.recipe.schema import EXECUTION
from rayfed_kd.recipe.yaml_documents import load_yaml, read_yaml_file, yaml_text
from rayfed_kd.results.schemas import CONFIG
from rayfed_kd.results.scores import with_scores
from rayfed_kd.results.tables import read_table
from rayfed_kd.tuning.space import Coefficients

SearchName = Literal["random", "optuna", "grid"]
SchedulerName = Literal["asha", "fifo"]
Status = Literal["running", "finished", "stopped", "failed"]

SEARCH_FILE, TRIAL_FILE = "search.yaml", "trial.json"
# Seconds to wait for a killed trial's process, which may still be writing its last table.
LOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class SearchSettings:
    """What a search is: two searches with the same settings give the same trials.

    Attributes:
        recipe: the resolved recipe that every trial starts from.
        space: the space file's entries.
        metric: METRIC/MODEL.
        search: how coefficients are proposed.
        scheduler: which trials are stopped early.
        inputs: `fingerprints` of the user's code, files and data.
    """

    recipe: Mapping[str, Any]
    space: Mapping[str, Any]
    metric: str
    search: SearchName
    scheduler: SchedulerName
    inputs: Mapping[str, Mapping[str, str]]

    @property
    def summary(self) -> str:
        """Search and scheduler, as `random search, asha`."""
        return f"{self.search} search, {self.scheduler}"

    def difference(self, other: SearchSettings) -> str:
        """What differs from another search's settings, but for where and how safely trials run.

        Args:
            other: settings as search.yaml has them.

        Returns: `KEY was OLD, is NEW` for every difference; empty if there is none.
        """
        # Through YAML and back, as the other's were: tuples become lists, for example.
        new = load_yaml(yaml_text(asdict(self)))
        return changes(_decisive(asdict(other)), _decisive(new))


def _decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by key, those of the recipe without where and how safely trials run, and all hashes."""
    keys = {f"recipe.{key}": value for key, value in settings["recipe"].items() if key not in EXECUTION}
    # A module of the user's may be called as a setting, so each name has its kind before it.
    hashes = {
        f"{kind}.{name}": text for kind, part in settings["inputs"].items() for name, text in part.items()
    }
    keys["recipe.placement.threads"] = settings["recipe"]["placement"]["threads"]  # it decides the last bits
    return {key: value for key, value in settings.items() if key not in ("recipe", "inputs")} | keys | hashes


@dataclass(frozen=True)
class TrialRecord:
    """What trial.json holds.

    Attributes:
        number: the trial's number, from 0.
        coefficients: recipe key -> value.
        status: running, finished, stopped (by the scheduler) or failed.
        round: the last round that counts; 0 before there is one.
        error: why it failed.
    """

    number: int
    coefficients: Coefficients
    status: Status = "running"
    round: int = 0
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether the trial is finished, stopped or failed."""
        return self.status != "running"


class SearchFolder:
    """A search's folder on disk.

    Args:
        path: the folder; `claimed` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def claimed(self, settings: SearchSettings, *, resume: bool) -> Iterator[None]:
        """Create or check the folder, and keep other processes out while the block runs.

        Failed trials of a resumed search become running ones, so that they are tried again.

        Args:
            settings: of the search that is to run.
            resume: go on with the search in the folder.

        Raises:
            RecipeError: the folder holds a search and `resume` is false, or holds none and it is true, or
                holds a search with other settings; another process works in it; it cannot be written.
        """
        file = self.path / SEARCH_FILE
        if resume and not file.is_file():
            raise RecipeError(
                f"--resume: {self.path} holds no search: there is no {SEARCH_FILE}. The same command without "
                "--resume begins one"
            )
        if file.is_file() and not resume:
            raise RecipeError(
                f"{self.path} holds a search already: --resume goes on, or give another --folder"
            )
        if resume:
            self.check(settings)
        with locked_folder(self.path, "--folder", "searching"):
            with writing(self.path, "--folder"):
                for folder in (self.path, self.path / "figures"):
                    remove_unfinished(folder)
                if not resume:
                    atomic_write(file, yaml_text(asdict(settings)))
                for record in self.records():
                    remove_unfinished(self.trial(record.number), TRIAL_FILE)
                    if record.status == "failed":
                        self.write_record(replace(record, status="running", error=None))
            try:
                yield
            except RecipeError:
                # Before the first trial, as for lack of room: the corrected command is to find no search.
                if not resume and not self.records():
                    file.unlink(missing_ok=True)
                raise

    def check(self, settings: SearchSettings) -> None:
        """Check that the folder holds this search.

        Raises: RecipeError if it holds another one.
        """
        if difference := settings.difference(self.settings()):
            raise RecipeError(f"{self.path} holds another search: {difference}. Give another --folder")

    def settings(self) -> SearchSettings:
        """The settings of the search in the folder.

        Raises:
            RecipeError: search.yaml is damaged, or another version of rayfed-kd wrote it, with other keys.
        """
        file, keys = self.path / SEARCH_FILE, [field.name for field in fields(SearchSettings)]
        with naming(file):
            content = read_yaml_file(file, "search")
            whole = isinstance(content, dict) and {*content} == {*keys}
            if not (whole and isinstance(content["recipe"], dict)):
                raise RecipeError(f"damaged, or of another version: expected the keys {', '.join(keys)}")
        return SearchSettings(**content)

    def trial(self, number: int) -> Path:
        """A trial's run folder, whether it exists or not."""
        return self.path / "trials" / f"{number:05d}"

    def wait_for_trial(self, number: int) -> None:
        """Wait until no process works in a trial's run folder: after a kill one may still be ending.

        Args:
            number: the trial's number.

        Raises:
            RecipeError: a process still works there after a minute.
        """
        with locked_folder(self.trial(number), "--folder", "running", LOCK_TIMEOUT_S):
            pass  # the run takes the lock itself

    def write_record(self, record: TrialRecord) -> None:
        """Write a trial's record, and create the trial's folder if needed."""
        folder = self.trial(record.number)
        make_folder(folder)
        write_json(folder / TRIAL_FILE, asdict(record))

    def record(self, number: int) -> TrialRecord | None:
        """A trial's record; None before the trial began.

        Raises:
            DataError: the file is damaged.
        """
        path = self.trial(number) / TRIAL_FILE
        content = read_json(path)
        if not content:
            return None
        try:
            return TypeAdapter(TrialRecord).validate_python(content)
        except ValidationError as error:
            raise DataError(f"{path} is damaged: {shortened(' '.join(str(error).split()), 300)}") from None

    def records(self) -> list[TrialRecord]:
        """The records of all trials that began, by number: trials begin in that order."""
        records: list[TrialRecord] = []
        while (record := self.record(len(records))) is not None:
            records.append(record)
        return records

    def values(self, number: int, metric: SearchMetric) -> list[tuple[int, float]]:
        """The evaluations in a trial's tables, as (round, value).

        Args:
            number: the trial's number.
            metric: the search's metric.
        """
        return [
            (row["round"], value)
            for row in with_scores({name: self._rows(number, name) for name in ("metrics", "scores")})
            if (value := metric.value({row["model"]: row})) is not None
        ]

    def seconds(self, record: TrialRecord) -> float:
        """A trial's real seconds in rounds, up to the last round that counts."""
        rows = self._rows(record.number, "rounds")
        return max((row["wall_s"] for row in rows if row["round"] <= record.round), default=0.0)

    def _rows(self, number: int, table: str) -> list[dict[str, Any]]:
        """A trial's rows; none if it failed before its run began."""
        folder = self.trial(number)
        if not (folder / CONFIG).is_file():
            return []
        return list(read_table(folder, table).to_pylist())
