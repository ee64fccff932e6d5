"""A search's folder: what was asked, and what became of every trial.

runs/tune-NAME/search.yaml    recipe, space, metric, search, scheduler: a search that goes on is the same one
runs/tune-NAME/trials/00003/  a run's folder as any other, and trial.json: coefficients, status, round, error

These files are all that a search which goes on needs: a trial that is over hands in again from its tables
what it reported, one that was cut off goes on from its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from filelock import FileLock, Timeout

from rayfed_kd.errors import RecipeError, nearest
from rayfed_kd.files import locked_folder, unwritable, write_json
from rayfed_kd.recipe.loading import load_yaml
from rayfed_kd.recipe.schema import EXECUTION
from rayfed_kd.results.tables import read_table
from rayfed_kd.tuning.spaces import Coefficients

SearchName = Literal["random", "optuna", "grid"]
SchedulerName = Literal["asha", "fifo"]
Status = Literal["running", "finished", "stopped", "failed"]

SEARCH = "search.yaml"
FREE_S = 60.0


@dataclass(frozen=True)
class Metric:
    """What is searched for: a metric of one of the evaluated models, the larger the better."""

    name: str
    model: str

    def __str__(self) -> str:
        return f"{self.name}/{self.model}"

    def value(self, rows: Mapping[str, Mapping[str, Any]]) -> float | None:
        """Out of an evaluation's rows by model; None if it has none."""
        found: float | None = rows[self.model][self.name] if self.model in rows else None
        return found


def chosen_metric(asked: str | None, evaluated: Mapping[str, Sequence[str]]) -> Metric:
    """The metric that `asked` names; the recipe's headline where it says nothing.

    Args:
        asked: METRIC or METRIC/MODEL; without a model it is the last one that a method lists, as fedkf's oca
            and kdia's teacher.
        evaluated: model -> its metrics, the headline first.
    Raises: RecipeError
    """
    last = list(evaluated)[-1]
    name, _, model = (asked or "").partition("/")
    model = model or last
    if model not in evaluated:
        there = ", ".join(evaluated)
        raise RecipeError(f"metric {asked!r}: this recipe evaluates {there}.", hint=nearest(model, evaluated))
    name = name or evaluated[model][0]
    if name not in evaluated[model]:
        there = ", ".join(f"{one}/{model}" for one in evaluated[model])
        raise RecipeError(f"metric {asked!r}: {model} has {there}.", hint=nearest(name, evaluated[model]))
    return Metric(name, model)


@dataclass(frozen=True)
class Asked:
    """What a search is. Two searches that are equal in this give the same trials.

    Attributes:
        recipe: the resolved recipe that every trial starts from.
        space: as its file has it.
        metric: METRIC/MODEL.
        search, scheduler: who proposes, and who stops early.
    """

    recipe: Mapping[str, Any]
    space: Mapping[str, Any]
    metric: str
    search: SearchName
    scheduler: SchedulerName

    @property
    def how(self) -> str:
        """Who proposed and who stopped, in words."""
        return f"{self.search} search, {self.scheduler}"

    def difference(self, other: Mapping[str, Any]) -> str | None:
        """What is not the same in another one; None if all that matters is."""
        ours, theirs = (_by_key(asked) for asked in (_plain(asdict(self)), other))
        ignored = [f"recipe.{key}" for key in EXECUTION]
        changed = [key for key in ours if key not in ignored and ours[key] != theirs.get(key)]
        return "; ".join(f"{key} was {theirs.get(key)}, is {ours[key]}" for key in changed) or None


def _by_key(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked, the recipe's sections each for itself."""
    rest = {key: value for key, value in asked.items() if key != "recipe"}
    return rest | {f"recipe.{key}": value for key, value in asked.get("recipe", {}).items()}


def _plain(value: Any) -> Any:
    """As it reads back from YAML."""
    return load_yaml(yaml.safe_dump(value))


@dataclass(frozen=True)
class Record:
    """A trial.

    Attributes:
        number: from 0.
        coefficients: recipe key -> value.
        status: running, finished, stopped (by the scheduler) or failed.
        round: the last one that counts; 0 before there is one.
        error: why it failed.
    """

    number: int
    coefficients: Coefficients
    status: Status = "running"
    round: int = 0
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether it is finished, stopped or failed."""
        return self.status != "running"


class SearchFolder:
    """A search's folder.

    Args:
        path: made by `claimed`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def claimed(self, asked: Asked, *, resume: bool) -> Iterator[None]:
        """Makes or checks the folder, and keeps other processes out. Failed trials are to be tried again.

        Raises: RecipeError if there is a search and none is to go on, or the other way round, or another one.
        """
        file = self.path / SEARCH
        if resume and not file.is_file():
            raise RecipeError(f"--resume: {self.path} holds no search: there is no {SEARCH}")
        if file.is_file() and not resume:
            raise RecipeError(
                f"{self.path} holds a search already: --resume goes on, or give another --folder"
            )
        if resume:
            difference = asked.difference(load_yaml(file.read_text(encoding="utf8")))
            if difference:
                raise RecipeError(f"{self.path} holds another search: {difference}. Give another --folder")
        with locked_folder(self.path, "--folder", "searching"):
            try:
                if not resume:
                    file.write_text(yaml.safe_dump(asdict(asked), sort_keys=False), encoding="utf8")
                for record in self.records():
                    if record.status == "failed":
                        self.write(replace(record, status="running", error=None))
            except OSError as error:
                raise unwritable(self.path, "--folder", error) from None
            yield

    def asked(self) -> Asked:
        """What the search in the folder is.

        Raises: RecipeError if this version cannot read it.
        """
        file = self.path / SEARCH
        raw = load_yaml(file.read_text(encoding="utf8"))
        try:
            return Asked(**raw)
        except TypeError:
            raise RecipeError(f"{file}: no search that this version of rayfed-kd wrote") from None

    def trial(self, number: int) -> Path:
        """A trial's run folder."""
        return self.path / "trials" / f"{number:05d}"

    def free(self, number: int) -> None:
        """Waits until no process works in a trial's run folder: after a kill one may still be ending.

        Raises: RecipeError
        """
        lock = FileLock(self.trial(number) / ".lock")
        try:
            lock.acquire(timeout=FREE_S)
        except Timeout:
            raise RecipeError(f"another process is running in {self.trial(number)}") from None
        lock.release()

    def write(self, record: Record) -> None:
        """A trial's record, aside and renamed."""
        folder = self.trial(record.number)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "trial.json", asdict(record))

    def record(self, number: int) -> Record | None:
        """A trial's record; None before it began."""
        path = self.trial(number) / "trial.json"
        return Record(**json.loads(path.read_text(encoding="utf8"))) if path.is_file() else None

    def records(self) -> list[Record]:
        """Of all trials that began, by number: they begin in that order."""
        found: list[Record] = []
        while (record := self.record(len(found))) is not None:
            found.append(record)
        return found

    def values(self, number: int, metric: Metric) -> list[tuple[int, float]]:
        """(round, value) of every evaluation in a trial's tables."""
        rows = read_table(self.trial(number) / "tables", "metrics").to_pylist()
        return [
            (row["round"], row[metric.name])
            for row in rows
            if row["model"] == metric.model and row[metric.name] is not None
        ]

    def seconds(self, record: Record) -> float:
        """A trial's seconds in rounds, up to the last one that counts."""
        rows = read_table(self.trial(record.number) / "tables", "rounds").to_pylist()
        return max((row["wall_s"] for row in rows if row["round"] <= record.round), default=0.0)
