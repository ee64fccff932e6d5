"""What a search found: a table of trials, the best one as a recipe, and the files that keep both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.table import Table

from rayfed_kd.errors import RunError
from rayfed_kd.experiment.judging import SearchMetric
from rayfed_kd.files.whole import atomic_write, make_folder, write_parquet
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.yaml_documents import yaml_text
from rayfed_kd.results.charts.coefficients import CoefficientPanel, coefficients_figure
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.names import metric_scale, metric_text, metric_unit
from rayfed_kd.results.screen_table import screen_table, table_text
from rayfed_kd.tuning.search_folder import SEARCH_FILE, SearchFolder, Status
from rayfed_kd.tuning.space import Coefficients, Space, coefficient_overrides, coefficient_text, parse_space

if TYPE_CHECKING:
    from rayfed_kd.tuning.search_setup import Search


PICTURE = "figures/coefficients.png"


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        folder: the search's folder.
        rows: one per trial, by number.
        space: what was searched.
        metric: what was searched for.
        recipe: what every trial started from.
        summary: search and scheduler, as `random search, asha`.
        files: what `tune` has written, but for TensorBoard's files; empty if the search was only read.
    """

    folder: Path
    rows: Sequence[TrialResult]
    space: Space
    metric: SearchMetric
    recipe: Recipe
    summary: str
    files: Sequence[Path] = ()

    def __str__(self) -> str:
        return "\n".join([table_text(self.screen_table()), *self.failures(), f"folder: {self.folder}"])

    @property
    def best(self) -> TrialResult | None:
        """The trial with the largest value that did not fail; the first of equals; None without a value."""
        # Equal values rank by number, so that the best trial does not depend on which one ended first.
        return max(self._valid_rows(), key=lambda row: (row.best, -row.trial), default=None)

    def _valid_rows(self) -> list[TrialResult]:
        """The trials that have a value and did not fail."""
        return [row for row in self.rows if row.status != "failed" and row.best is not None]

    def panel(self, key: str) -> CoefficientPanel:
        """What a picture has of a recipe key: its axis, and by status the trials' best values as shown."""
        searched, points = self.space.distributions[key], dict[str, list[tuple[float, float]]]()
        for row in self.rows:
            if row.best is not None:
                place = searched.place(row.coefficients[key])
                point = place, metric_scale(self.metric.name) * row.best
                for name in (row.status, *(["best"] if row is self.best else [])):
                    points.setdefault(name, []).append(point)
        names = list(map(coefficient_text, searched.values))
        return CoefficientPanel(key, searched.kind, searched.values, names, points)

    def table(self) -> pa.Table:
        """A row per trial.

        Returns: columns trial, every coefficient by its recipe key, best, best_round, last, rounds, seconds,
            status, error; the schema's metadata has the metric. Values that are no plain numbers or texts
            stand as JSON.
        """
        columns: dict[str, pa.Array] = {"trial": pa.array([row.trial for row in self.rows], pa.int64())}
        for key in self.space.distributions:
            columns[key] = _coefficient_column([row.coefficients[key] for row in self.rows])
        types = {"best": pa.float64(), "best_round": pa.int64(), "last": pa.float64(), "rounds": pa.int64()}
        types |= {"seconds": pa.float64(), "status": pa.string(), "error": pa.string()}
        for name, column_type in types.items():
            columns[name] = pa.array([getattr(row, name) for row in self.rows], column_type)
        return pa.table(columns).replace_schema_metadata({"metric": str(self.metric)})

    def best_recipe(self) -> str | None:
        """The best trial as YAML that `run` takes, headed by a comment; None if no trial has a value."""
        best = self.best
        if best is None or best.best is None:
            return None
        # The searched recipe may name a folder: a run of best.yaml must not land there.
        overrides = [*coefficient_overrides(best.coefficients), "results.folder=null"]
        recipe = load_recipe(self.recipe.model_dump(), overrides)
        coefficients = ", ".join(f"{key} {coefficient_text(v)}" for key, v in best.coefficients.items())
        ties = [str(row.trial) for row in self._valid_rows() if row.best == best.best and row is not best]
        also = f"# The same value in trial {', '.join(ties)}: the lowest number counts.\n" if ties else ""
        # Of another method it would name a paper that is not run.
        same = recipe.method.name == self.recipe.method.name
        header = f"#\n{self.recipe.header}\n" if self.recipe.header and same else ""
        text, by = yaml_text(recipe.model_dump()), filter(None, (self.summary, self.space.source))
        return (
            f"# {self.metric} {self.metric.told(best.best)} in round {best.best_round}: the best of "
            f"{len(self.rows)} trials, trial {best.trial} ({', '.join(by)}).\n"
            f"{also}# {coefficients}\n{header}{text}"
        )

    def trial_texts(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Header and rows of a table of trials, the best first, failed ones last."""
        keys = [key.removeprefix("method.") for key in self.space.distributions]
        unit = " (%)" if metric_unit(self.metric.name) else ""
        ranked = sorted(
            self.rows, key=lambda r: (r.status == "failed", r.best is None, -(r.best or 0), r.trial)
        )
        header = ("trial", "status", *keys, f"best{unit}", "in round", f"last{unit}", "rounds", "s")
        rows = [
            (
                str(row.trial),
                row.status,
                *(coefficient_text(row.coefficients[key]) for key in self.space.distributions),
                metric_text(self.metric.name, row.best),
                "" if row.best_round is None else str(row.best_round),
                metric_text(self.metric.name, row.last),
                str(row.rounds),
                f"{row.seconds:.1f}",
            )
            for row in ranked
        ]
        return header, rows

    def screen_table(self) -> Table:
        """The table of trials for a terminal."""
        return screen_table(f"{self.metric}, {self.summary}", *self.trial_texts(), left=2)

    def failures(self) -> list[str]:
        """A line for every trial that failed, with its error."""
        return [f"trial {row.trial} failed: {row.error}" for row in self.rows if row.status == "failed"]


def result_of_search(search: Search) -> SearchResult:
    """Read what a search found, when its trials are over, and write it as `write_search_result`.

    Args:
        search: the search.

    Raises:
        RunError: no trial has a value; the message has the trials' errors.
    """
    rows = _trial_results(search.folder, search.metric)[: search.trials]
    summary = search.settings.summary
    result = SearchResult(search.folder.path, rows, search.space, search.metric, search.recipe, summary)
    if result.best is None:
        raise RunError("\n".join(["no trial ended with a value:", *result.failures()]))
    return replace(result, files=write_search_result(result))


def read_search_result(path: Path) -> SearchResult:
    """Read what the search in a folder found so far; trials that still run have the status `running`.

    Args:
        path: the search's folder.

    Raises:
        RecipeError: another version of rayfed-kd wrote the search.
    """
    folder = SearchFolder(path)
    settings = folder.settings()
    metric = SearchMetric(*settings.metric.split("/", 1))
    space = parse_space({"space": settings.space}, str(path / SEARCH_FILE))
    rows = _trial_results(folder, metric)
    return SearchResult(path, rows, space, metric, load_recipe(settings.recipe), settings.summary)


def _trial_results(folder: SearchFolder, metric: SearchMetric) -> list[TrialResult]:
    return [
        TrialResult(
            trial=record.number,
            coefficients=record.coefficients,
            # A stopped trial may have evaluated once more before it ended.
            values=[point for point in folder.values(record.number, metric) if point[0] <= record.round],
            rounds=record.round,
            seconds=folder.seconds(record),
            status=record.status,
            error=record.error,
        )
        for record in folder.records()
    ]


def write_search_result(result: SearchResult) -> list[Path]:
    """Write trials.parquet, best.yaml, a picture and TensorBoard's files into the search's folder.

    What an earlier call wrote is replaced.

    Args:
        result: what the search found; a trial has a value.

    Returns: the paths of all files but TensorBoard's.
    """
    folder = result.folder
    make_folder(folder)
    table, best = folder / "trials.parquet", folder / "best.yaml"
    write_parquet(table, result.table())
    recipe = result.best_recipe()
    assert recipe is not None  # a search without a value has ended with an error
    atomic_write(best, recipe)
    panels = [result.panel(key) for key in result.space.distributions]
    save_figure(coefficients_figure(panels, result.metric.title), folder / PICTURE)
    _write_tensorboard(result, folder / "tensorboard")
    return [table, best, folder / PICTURE]


def _write_tensorboard(result: SearchResult, folder: Path) -> None:
    """Write a run per trial with its curve, and its coefficients for HParams."""
    from rayfed_kd.results.trackers.tensorboard import event_writer, remove_event_files

    for earlier in folder.glob("*/"):
        remove_event_files(earlier)
    for row in result.rows:
        if row.best is None or row.last is None:
            continue
        writer = event_writer(folder / f"{row.trial:05d}")
        for index, value in row.values:
            writer.add_scalar(str(result.metric), value, index)
        values = {f"best/{result.metric}": row.best, f"last/{result.metric}": row.last, "rounds": row.rounds}
        coefficients = {key: _hparam(value) for key, value in row.coefficients.items()}
        # "." keeps the results in this run; by default they would become a run of their own.
        writer.add_hparams(coefficients, values, run_name=".")
        writer.close()


def _hparam(value: Any) -> bool | int | float | str:
    """A coefficient as TensorBoard's HParams takes it: anything but a plain value as JSON."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _coefficient_column(values: Sequence[Any]) -> pa.Array:
    """A column of numbers, truth values or texts as they are; of anything else, and mixtures, as JSON."""
    types = {type(value) for value in values}
    if types in ({bool}, {str}, {int}) or (types <= {int, float} and all(float(v) == v for v in values)):
        return pa.array(values)
    return pa.array([json.dumps(value) for value in values], pa.string())


@dataclass(frozen=True)
class TrialResult:
    """What one trial reached.

    Attributes:
        trial: the trial's number.
        coefficients: recipe key -> value.
        values: (round, value) of every evaluation that counts, an accuracy in [0, 1].
        rounds: the last round that counts.
        seconds: real seconds in rounds, until then.
        status: finished, stopped, failed, or running if the search has not ended.
        error: why it failed.
    """

    trial: int
    coefficients: Coefficients
    values: Sequence[tuple[int, float]]
    rounds: int
    seconds: float
    status: Status
    error: str | None = None

    @property
    def best(self) -> float | None:
        """The largest value; None without an evaluation."""
        return max((value for _, value in self.values), default=None)

    @property
    def best_round(self) -> int | None:
        """The first round that reached the largest value; None without an evaluation."""
        return max(self.values, key=lambda point: point[1], default=(None, None))[0]

    @property
    def last(self) -> float | None:
        """The last value; None without an evaluation."""
        return self.values[-1][1] if self.values else None
