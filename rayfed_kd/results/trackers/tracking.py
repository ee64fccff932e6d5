"""Tells a run's trackers of its rounds, each once. No result depends on them: their faults become lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rayfed_kd.errors import RunError
from rayfed_kd.files.whole import read_json
from rayfed_kd.recipe.registry import Registry, blame, blaming, in_modules
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.results.schemas import CONFIG, EPSILONS, GPU_COLUMNS, UNFINISHED
from rayfed_kd.results.scores import Tables, with_scores
from rayfed_kd.results.tables import RowsByRound
from rayfed_kd.results.trackers.tracker import TrackedRound, TrackedRun, Tracker

HERE = "rayfed_kd.results.trackers"
TRACKERS = Registry(
    in_modules(HERE, tensorboard="tensorboard:TensorBoard", wandb="wandb:WandB"), f"{HERE}.tracker:Tracker"
)
FEW_HOSTS = 16  # more hosts than this would fill TensorBoard's page with curves
ENDS = {"least": min, "most": max}


def make_trackers(recipe: Recipe) -> list[Tracker]:
    """The recipe's trackers with their options, in its order; none has started.

    Raises: RecipeError if a name is unknown, it is no tracker, an option is bad, or a package is missing.
    """
    trackers = []
    for place, named in enumerate(recipe.results.trackers):
        bound = TRACKERS.bound(named, f"results.trackers.{place}")
        with blaming(f"results.trackers.{place}.name: {named.name}"):
            trackers.append(bound.found(**bound.arguments))
    return trackers


class Trackers:
    """Starts a run's trackers, and tells them of its rounds; one that fails is told the rest at the end.

    Args:
        folder: the run's.
        recipe: the run's.
        say: called with a line when a tracker fails.

    Raises: RunError if one cannot start.
    """

    def __init__(self, folder: Path, recipe: Recipe, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._last_round: dict[Tracker, int] = {}  # that it was told of
        # Not tried again before the end: each try might wait for a network, and a checkpoint for that.
        self._failed: set[Tracker] = set()
        run_id = read_json(folder / "environment.json").get("id", "")
        name = folder.name.removesuffix(UNFINISHED)
        run = TrackedRun(folder, recipe.model_dump(mode="json"), run_id, name, recipe.results.group)
        for tracker in make_trackers(recipe):
            try:
                last_round = tracker.start(deepcopy(run))
            except Exception as error:
                failed = f"results.trackers: {type(tracker).__name__} cannot start"
                raise RunError(f"{failed}: {blame(error)}") from error
            self._last_round[tracker] = -1 if last_round is None else last_round

    def round(self, round_index: int, tables: Tables) -> None:
        """Tell of a round, whose tables and pictures are written.

        Args:
            round_index: the round, from 1.
            tables: its rows, as `SCHEMAS` has them.
        """
        for tracker in self._last_round:
            if tracker in self._failed:
                continue
            try:
                self._tell(tracker, round_index, tables)
            except Exception as error:
                self._failed.add(tracker)
                self._blame(tracker, error, "is told the rest at the end")

    def end(self, summary: Mapping[str, Any]) -> None:
        """Tell what was not told, from the tables, and that the run ends; only summary.json is missing."""
        pictures = [f"figures/{name}.png" for name in ("curves", "logged", "client-accuracies")]
        paths = [self._folder / name for name in (CONFIG, "environment.json", *pictures)]
        paths += sorted(self._folder.glob("tables/*/[!.]*.parquet"))
        for tracker in self._last_round:
            try:
                self._tell(tracker, summary["rounds"])
                tracker.end(deepcopy(summary), [path for path in paths if path.exists()])
            except Exception as error:
                self._blame(tracker, error, "misses what came later")

    def _tell(self, tracker: Tracker, until: int, tables: Tables | None = None) -> None:
        """Tell of all rounds up to this one that were not told; `tables` has its rows alone."""
        first = self._last_round[tracker] + 1
        written = RowsByRound(self._folder) if first < until or tables is None else None
        for round_index in range(first, until + 1):
            rows = written.of(round_index) if written else tables
            tracker.round(self._tracked(round_index, rows or {}))
            self._last_round[tracker] = round_index

    def _tracked(self, round_index: int, tables: Tables) -> TrackedRound:
        """What trackers are told of a round, by its rows and the files that were drawn in it."""
        accuracies: dict[str, list[float]] = {}
        for client in tables.get("clients", ()):
            accuracies.setdefault(f"client_accuracy/{client['model']}", []).append(client["accuracy"])
        images, numbers = (self._drawn(round_index, kind) for kind in ("png", "parquet"))
        return TrackedRound(round_index, round_scalars(tables), accuracies, images, numbers)

    def _drawn(self, round_index: int, kind: str) -> dict[str, Path]:
        # No hidden ones: a run that was killed as it drew leaves an unfinished picture.
        names, suffix = ("[!.]*", f"-{round_index:06d}") if round_index else ("partition", "")
        files = sorted(self._folder.glob(f"figures/{names}{suffix}.{kind}"))
        return {path.stem.removesuffix(suffix): path for path in files}

    def _blame(self, tracker: Tracker, error: Exception, way: str) -> None:
        when = f"after round {max(self._last_round[tracker], 0)}"
        self._say(f"results.trackers: {type(tracker).__name__} failed {when}, and {way}: {blame(error)}")


def round_scalars(tables: Tables) -> dict[str, float]:
    """A round's scalars, by the names under which trackers show them; values that are None are left out.

    They are times, bytes, what was logged, metrics, privacy, and what hosts measured.

    Args:
        tables: the round's rows, as `SCHEMAS` has them; of more than 16 hosts only the extremes are shown.
    """
    scalars = dict[str, float | None]()
    for row in tables.get("rounds", ()):
        scalars |= {_tag(name): value for name, value in row.items() if name not in ("round", "logged")}
        scalars |= {f"logged/{name}": value for name, value in dict(row["logged"] or {}).items()}
    for row in tables.get("privacy", ()):
        scalars |= {f"privacy/{name}": row[name] for name in (*EPSILONS, "clip")}
    for row in with_scores(tables):
        values = {name: value for name, value in row.items() if name not in ("round", "sim_s", "model")}
        scalars |= {f"{name}/{row['model']}": value for name, value in values.items()}
    scalars |= _host_scalars(tables.get("hosts", ()))
    return {tag: value for tag, value in scalars.items() if value is not None}


def _tag(column: str) -> str:
    """The name of a column of the table `rounds`, as time/wall_s, bytes/up and round/cohort."""
    if column.startswith("bytes_"):
        return column.replace("_", "/")
    return f"{'time' if column.endswith('_s') else 'round'}/{column}"


def _host_scalars(hosts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the hosts measured: it shows idle hosts and GPUs, and leaks. Of many, only the extremes."""
    scalars: dict[str, float] = {}
    for column in ("rss_mb", "gpu_mb", "busy_s", *GPU_COLUMNS):
        # A column that a host cannot measure is null: it has no curve rather than one of zeros.
        values = {row["host"]: float(row[column]) for row in hosts if row.get(column) is not None}
        if values:
            scalars |= {f"hosts/{column}/{end}": of(values.values()) for end, of in ENDS.items()}
        if len(values) <= FEW_HOSTS:
            scalars |= {f"hosts/{column}/{host}": value for host, value in values.items()}
    return scalars
