"""What a search found: a table of trials, the best one as a recipe, pictures, TensorBoard with HParams."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rich.table import Table
from rich.text import Text

from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.tuning.figures import coefficients_figure, parallel_figure
from rayfed_kd.tuning.folder import SEARCH, Metric, SearchFolder
from rayfed_kd.tuning.spaces import Space, overrides_of, shown, space_of
from rayfed_kd.tuning.trial_rows import TrialRow, _plain, trial_rows


def read_search(path: Path) -> Found:
    """What the search in a folder has found so far; trials that still run have the status `running`.

    Raises: RecipeError if this version cannot read it.
    """
    folder = SearchFolder(path)
    asked = folder.asked()
    name, model = asked.metric.split("/", 1)
    metric = Metric(name, model)
    rows = trial_rows(folder, len(folder.records()), metric)
    space = space_of({"space": asked.space}, str(path / SEARCH))
    return Found(path, rows, space, metric, load_recipe(asked.recipe), asked.how)


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        folder: the search's.
        rows: one a trial, by number.
        space: what was searched.
        metric: what for.
        recipe: what every trial started from.
        how: "random search, asha" and the like.
    """

    folder: Path
    rows: Sequence[TrialRow]
    space: Space
    metric: Metric
    recipe: Recipe
    how: str

    @property
    def best(self) -> TrialRow | None:
        """The trial with the largest value that did not fail; the first of equals."""
        return max(self._counting(), key=lambda row: (row.best, -row.trial), default=None)

    def _counting(self) -> list[TrialRow]:
        """The trials with a value that did not fail."""
        return [row for row in self.rows if row.status != "failed" and row.best is not None]

    def ranked(self) -> list[TrialRow]:
        """All trials, the best first, failed ones last."""
        return sorted(self.rows, key=lambda row: (row.status == "failed", -(row.best or 0.0), row.trial))

    def table(self) -> pa.Table:
        """A row a trial: number, coefficients, best, best_round, last, rounds, seconds, status, error."""
        columns: dict[str, pa.Array] = {"trial": pa.array([row.trial for row in self.rows], pa.int64())}
        for key in self.space.keys:
            columns[key] = _column([row.coefficients[key] for row in self.rows])
        kinds = {"best": pa.float64(), "best_round": pa.int64(), "last": pa.float64(), "rounds": pa.int64()}
        kinds |= {"seconds": pa.float64(), "status": pa.string(), "error": pa.string()}
        for name, kind in kinds.items():
            columns[name] = pa.array([getattr(row, name) for row in self.rows], kind)
        return pa.table(columns).replace_schema_metadata({"metric": str(self.metric)})

    def best_recipe(self) -> str | None:
        """The best trial as a recipe that `run` takes; None if no trial has a value."""
        best = self.best
        if best is None or best.best is None:
            return None
        recipe = load_recipe(
            self.recipe.model_dump(), [*overrides_of(best.coefficients), "results.folder=null"]
        )
        said = ", ".join(f"{key} {shown(value)}" for key, value in best.coefficients.items())
        text = yaml.safe_dump(recipe.model_dump(), sort_keys=False, allow_unicode=True)
        return (
            f"# {self.metric} {100 * best.best:.2f} % in round {best.best_round}: the best of "
            f"{len(self.rows)} trials, trial {best.trial} ({self.how}, {self.space.source}).\n"
            f"{self._equals(best)}# {said}\n{self._header()}{text}"
        )

    def _equals(self, best: TrialRow) -> str:
        """A comment on the trials that reached the same value; empty if none did."""
        equal = [str(row.trial) for row in self._counting() if row.best == best.best and row is not best]
        return f"# The same value, and not the first to have it: trial {', '.join(equal)}.\n" if equal else ""

    def _header(self) -> str:
        """The comment above the recipe that was searched from."""
        return f"#\n{self.recipe.header}\n" if self.recipe.header else ""

    def rich(self) -> Table:
        """The table for the console, the best first, failed trials last."""
        table = Table(title=f"{self.metric}, {self.how}")
        keys = [key.removeprefix("method.") for key in self.space.keys]
        for place, name in enumerate(("trial", *keys, "best %", "last %", "rounds", "s", "status")):
            table.add_column(
                name, justify="right" if place else "left", overflow="fold", no_wrap=name == "status"
            )
        for row in self.ranked():
            values = [shown(row.coefficients[key]) for key in self.space.keys]
            values += [_percent(row.best), _percent(row.last), str(row.rounds)]
            table.add_row(str(row.trial), *map(Text, values), f"{row.seconds:.1f}", row.status)
        return table

    def failures(self) -> list[str]:
        """A line for every trial that failed."""
        return [f"trial {row.trial} failed: {row.error}" for row in self.rows if row.status == "failed"]

    def write(self) -> list[Path]:
        """trials.parquet, best.yaml, pictures, TensorBoard; gives the paths of the files."""
        folder = self.folder
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "trials.parquet"]
        pq.write_table(self.table(), paths[0])
        text, best = self.best_recipe(), folder / "best.yaml"
        best.unlink(missing_ok=True)
        if text is not None:
            best.write_text(text, encoding="utf8")
            paths.append(best)
            paths += self._pictures(folder / "figures")
        self._tensorboard(folder / "tensorboard")
        return paths

    def _pictures(self, folder: Path) -> list[Path]:
        from rayfed_kd.results.figures import save_figure

        rows = [row for row in self.rows if row.best is not None]
        figures = {
            "coefficients": coefficients_figure(rows, self.space, self.metric, self.best),
            "parallel": parallel_figure(rows, self.space, self.metric, self.best),
        }
        for name, figure in figures.items():
            save_figure(figure, folder / f"{name}.png")
        return [folder / f"{name}.png" for name in figures]

    def _tensorboard(self, folder: Path) -> None:
        from rayfed_kd.results.tensorboard import RunWriter

        shutil.rmtree(folder, ignore_errors=True)
        for row in self.rows:
            if row.best is None or row.last is None:
                continue
            writer = RunWriter(folder / f"{row.trial:05d}")
            writer.series(str(self.metric), *zip(*row.values, strict=True))
            found = {f"best/{self.metric}": row.best, f"last/{self.metric}": row.last, "rounds": row.rounds}
            writer.hparams({key: _plain(value) for key, value in row.coefficients.items()}, found)
            writer.close()


def _column(values: Sequence[Any]) -> pa.Array:
    """Numbers, truth values and texts as they are; anything else, and mixtures, as JSON."""
    kinds = {type(value) for value in values}
    if kinds in ({bool}, {str}, {int}, {float}):
        return pa.array(values)
    if kinds == {int, float}:
        return pa.array([float(value) for value in values])
    return pa.array([json.dumps(value) for value in values], pa.string())


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
