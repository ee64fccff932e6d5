"""What several runs found, side by side: on the screen, as Markdown, LaTeX, Parquet, curves, TensorBoard."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table
from rich.text import Text

from rayfed_kd.comparison.agreement import PaperRows, Printed, rank_correlation
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.summary import METRICS, SMALLER_IS_BETTER
from rayfed_kd.results.tables import read_table

if TYPE_CHECKING:
    from rayfed_kd.comparison.planning import Planned
    from rayfed_kd.comparison.studies import Study

TITLES = {"amp": "AMP %", "fm": "FM", "wlp": "WLP %", "ua": "UA %", "server_accuracy": "official test %"}
STATISTICS = ("last", "best", "mean of last")
BAR = r"\|"  # within a cell of a Markdown table
HEADLINES = ("server_accuracy", "amp", "ua")


@dataclass(frozen=True)
class Curve:
    """One run's metric by evaluated round, with what it had cost until then."""

    rounds: list[int]
    values: list[float]
    bytes: list[int]
    sim_s: list[float | None]
    wall_s: list[float] = field(default_factory=list, compare=False)


Row = tuple[str, str]
Curves = Mapping[tuple[str, str, int, str], Curve]


@dataclass(frozen=True)
class Comparison:
    """Curves of every row, seed and metric, and the study that they belong to.

    Attributes:
        study: what was asked for.
        curves: (label, model, seed, metric) -> curve.
        notes: what a reader must know of the rows.
    """

    study: Study
    curves: Curves
    notes: Sequence[str] = ()

    @classmethod
    def read(cls, study: Study, planned: Sequence[Planned], notes: Sequence[str] = ()) -> Comparison:
        """From the runs' tables."""
        curves: dict[tuple[str, str, int, str], Curve] = {}
        for one in planned:
            rounds = read_table(one.folder / "tables", "rounds").to_pylist()
            sent, total = {}, 0
            for row in rounds:
                total += row["bytes_up"] + row["bytes_down"]
                sent[row["round"]] = (total, row["sim_s"], row["wall_s"])
            for row in read_table(one.folder / "tables", "metrics").to_pylist():
                for metric in METRICS:
                    if row[metric] is not None:
                        key = (one.label, row["model"], one.seed, metric)
                        curve = curves.setdefault(key, Curve([], [], [], [], []))
                        curve.rounds.append(row["round"])
                        curve.values.append(row[metric])
                        curve.bytes.append(sent[row["round"]][0])
                        curve.sim_s.append(sent[row["round"]][1])
                        curve.wall_s.append(sent[row["round"]][2])
        missing = set(study.models) - {model for _, model, _, _ in curves}
        unknown = [f"models: no row evaluates {', '.join(sorted(missing))}"] if missing else []
        return cls(study, curves, [*notes, *unknown])

    def rows(self) -> list[Row]:
        """(label, model) in the study's order; models as the study names them."""
        found = {(label, model) for label, model, _, _ in self.curves}
        wanted = list(self.study.models) or sorted({model for _, model in found})
        listed = [(run.label, m) for run in self.study.runs for m in wanted if (run.label, m) in found]
        # A row whose models the study does not name is shown with all of them.
        for run in self.study.runs:
            if not any(label == run.label for label, _ in listed):
                listed += sorted(row for row in found if row[0] == run.label)
        return listed

    def metrics(self) -> list[str]:
        """Those that there are."""
        return [metric for metric in METRICS if any(key[3] == metric for key in self.curves)]

    def headline(self) -> str:
        """The metric that best, targets and "mean of the last" are about.

        Raises: RecipeError if no row has the one that the study names.
        """
        wanted = self.study.headline
        if wanted is not None:
            if wanted not in self.metrics():
                raise RecipeError(f"headline: no row has {wanted}; there are {', '.join(self.metrics())}")
            return wanted
        return next(metric for metric in HEADLINES if metric in self.metrics())

    def values(self, row: Row, metric: str, statistic: str) -> list[float]:
        """One value per seed, in the study's order of seeds."""
        found = []
        for seed in self.study.seeds:
            curve = self.curves.get((*row, seed, metric))
            if curve is None:
                continue
            if statistic == "best":
                found.append(min(curve.values) if metric in SMALLER_IS_BETTER else max(curve.values))
            elif statistic == "last":
                found.append(curve.values[-1])
            else:
                found.append(statistics.fmean(curve.values[-self.study.last :]))
        return found

    def costs(self, row: Row) -> dict[str, list[float | None]]:
        """Rounds, bytes and simulated seconds to the target, one per seed; None where it was not reached."""
        found: dict[str, list[float | None]] = {"rounds": [], "bytes": [], "sim_s": []}
        for seed in self.study.seeds:
            curve, target = self.curves.get((*row, seed, self.headline())), self._target(seed)
            if curve is None or target is None:
                continue
            place = next((i for i, value in enumerate(curve.values) if value >= target), None)
            found["rounds"].append(None if place is None else curve.rounds[place])
            found["bytes"].append(None if place is None else curve.bytes[place])
            found["sim_s"].append(None if place is None else curve.sim_s[place])
        return found

    def changes(self, row: Row) -> list[float]:
        """Relative change of the row's accuracy against the row that it names, per seed; empty without one.

        The accuracy is the last one, of the first of `HEADLINES` that both have.
        """
        label, model = row
        other = next(run.against for run in self.study.runs if run.label == label)
        if other is None:
            return []
        for metric in HEADLINES:
            values, before = (self.values((of, model), metric, "last") for of in (label, other))
            if values and len(values) == len(before):
                return [value / was - 1 if was else np.nan for value, was in zip(values, before, strict=True)]
        return []

    def _target(self, seed: int) -> float | None:
        target = self.study.target
        if target is None or isinstance(target, float):
            return target
        best = [
            max(curve.values)
            for (label, _, s, metric), curve in self.curves.items()
            if (label, s, metric) == (target.run, seed, self.headline())
        ]
        return max(best, default=None)

    def header(self) -> list[str]:
        """The table's columns."""
        headline = TITLES[self.headline()]
        columns = ["run", *(TITLES[metric] for metric in self.metrics())]
        most = max(len(curve.values) for curve in self.curves.values())
        last = min(self.study.last, most)
        columns += [f"{headline}, best", f"{headline}, mean of last {last} evaluations"]
        if self._against():
            columns.append("relative change %")
        columns += [f"published {metric}" for metric in self._printed()]
        if self.study.target is not None:
            columns += ["rounds to target", "MiB to target"]
            if self._timed():
                columns.append("simulated s to target")
        return columns

    def cells(self) -> list[list[str]]:
        """One line per row: mean and sample deviation over seeds."""
        lines = []
        for row in self.rows():
            line = [self._name(row), *(_cell(self.values(row, m, "last"), m) for m in self.metrics())]
            headline = self.headline()
            line += [_cell(self.values(row, headline, s), headline) for s in STATISTICS[1:]]
            if self._against():
                line.append(_cell(self.changes(row), "change"))
            line += [_printed(*value[row]) if row in value else "" for value in self._printed().values()]
            if self.study.target is not None:
                costs = self.costs(row)
                line += [_cost(costs["rounds"], 1.0), _cost(costs["bytes"], 2.0**20)]
                if self._timed():
                    line.append(_cost(costs["sim_s"], 1.0))
            lines.append(line)
        return lines

    def published(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Per table named: its heading with the agreement of both orders, and (system, values as printed)."""
        for paper in self._papers():
            named = paper.named
            where = ", ".join(f"{key} {value}" for key, value in named.where.items())
            heading = f"Published, {named.paper} table {named.table}" + (f" ({where})" if where else "")
            if named.differs:
                heading += f"; here differs: {named.differs}"
            heading += self._agreement(paper)
            lines = [
                (
                    line["label"],
                    ", ".join(f"{m} {_printed(*value)}" for m, value in line["values"].items()),
                )
                for line in paper.lines
            ]
            yield heading, lines

    def _papers(self) -> list[PaperRows]:
        return [PaperRows(named, self.study) for named in self.study.published]

    def _printed(self) -> dict[str, dict[Row, Printed]]:
        """Printed metric -> our row -> what the paper has there; no metric without a row."""
        found: dict[str, dict[Row, Printed]] = {}
        for paper in self._papers():
            for row in self.rows():
                value = paper.value(*row)
                if value is not None and paper.metric is not None:
                    found.setdefault(paper.metric, {})[row] = value
        return found

    def _agreement(self, paper: PaperRows) -> str:
        """How far both orders agree, over rows that have a value in both; "" for less than three."""
        ours = paper.named.ours or self.headline()
        pairs = []
        for row in self.rows():
            printed, values = paper.value(*row), self.values(row, ours, paper.named.statistic)
            if values and printed is not None and printed[0] is not None:
                pairs.append((statistics.fmean(values), printed[0]))
        if len(pairs) < 3:
            return ""
        tau = rank_correlation(*zip(*pairs, strict=True))
        which = f"{paper.metric} against our {TITLES[ours]}, {paper.named.statistic}"
        return f"; rank correlation (Kendall's tau-b) of {which}, over {len(pairs)} rows: {tau:.2f}"

    def markdown(self) -> str:
        """The table, beneath it the remarks and the published rows."""
        lines = [self.caption(), ""]
        lines += [_markdown_line(self.header()), _markdown_line(["---"] * len(self.header()))]
        lines += [_markdown_line(line) for line in self.cells()]
        for remark in self.remarks():
            lines += ["", remark]
        for heading, rows in self.published():
            lines += ["", f"{heading}:", "", "| system | as printed |", "| --- | --- |"]
            lines += [_markdown_line(list(row)) for row in rows]
        return "\n".join(lines)

    def caption(self) -> str:
        """What the table shows."""
        seeds = len(self.study.seeds)
        over = f"mean ± sample deviation over {seeds} seeds" if seeds > 1 else "one seed"
        return f"{self.study.title or 'Comparison'}; last round, {over}."

    def remarks(self) -> list[str]:
        """Sentences to stand beneath the table: what a reader must know of its rows."""
        notes = list(self.notes)
        if self.study.target is not None and all(self._target(seed) is None for seed in self.study.seeds):
            notes.append(f"the target's run has no {TITLES[self.headline()]}, so there is no target")
        return [f"{note[0].upper()}{note[1:]}." for note in (*notes, *self._changed())]

    def _changed(self) -> list[str]:
        """What the relative change is of, and from which row to which."""
        rows: dict[str, list[str]] = {}
        for run in self.study.runs:
            if run.against is not None:
                rows.setdefault(run.against, []).append(run.label)
        told = ", ".join(f"{' and '.join(labels)} to {other}" for other, labels in rows.items())
        of = ", else ".join(TITLES[metric].removesuffix(" %") for metric in HEADLINES)
        return [f"relative change: of the last accuracy ({of}) of {told}"] if told else []

    def latex(self) -> str:
        """A table for booktabs: the published values beneath, what a reader must know as its last line."""
        width = len(self.header())
        told = [self.caption(), *self.remarks(), *(heading for heading, _ in self.published())]
        lines = [
            f"% {self.caption()}",
            *(f"% {remark}" for remark in self.remarks()),
            f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}",
            "\\toprule",
        ]
        lines += [_latex_line(self.header()), "\\midrule", *map(_latex_line, self.cells())]
        for heading, rows in self.published():
            lines += ["\\midrule", f"% {heading}"]
            span = f"\\multicolumn{{{width - 1}}}{{l}}"
            lines += [_latex_line([f"{label}, published", f"{span}{{{values}}}"]) for label, values in rows]
        note = f"\\multicolumn{{{width}}}{{p{{\\linewidth}}}}{{\\footnotesize {_latex(' '.join(told))}}} \\\\"
        return "\n".join([*lines, "\\bottomrule", note, "\\end{tabular}"])

    def rich(self) -> Table:
        """The table for the console."""
        table = Table(title=Text(self.study.title) if self.study.title else None)
        for place, column in enumerate(self.header()):
            table.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
        for line in self.cells():
            table.add_row(*line)
        return table

    def write(self, folder: Path) -> list[Path]:
        """comparison.md, .tex, .parquet, a picture of curves per metric, TensorBoard; gives the paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"comparison.{ending}" for ending in ("md", "tex", "parquet")]
        paths[0].write_text(self.markdown() + "\n", encoding="utf8")
        paths[1].write_text(self.latex() + "\n", encoding="utf8")
        pq.write_table(self._records(), paths[2])
        from rayfed_kd.results.figures import band_figure, save_figure, times_figure
        from rayfed_kd.results.tensorboard import RunWriter

        for metric in self.metrics():
            bands = {row: self._band(row, metric) for row in self.rows()}
            drawn = {
                f"{r[0]} ({self.study.models.get(r[1], r[1])})": b for r, b in bands.items() if len(b[0])
            }
            paths.append(folder / f"curves-{metric}.png")
            save_figure(band_figure(drawn, TITLES[metric], len(self.study.seeds)), paths[-1])
            for name, (rounds, mean, deviation) in drawn.items():
                writer = RunWriter(folder / "tensorboard" / name)
                series = {"mean": mean, "low": mean - deviation, "high": mean + deviation}
                for part, values in series.items():
                    writer.series(f"{metric}/{part}", rounds, values)
                writer.close()
        if self._timed():
            paths.append(folder / f"times-{self.headline()}.png")
            save_figure(times_figure(self._times(), TITLES[self.headline()]), paths[-1])
        return paths

    def _times(self) -> dict[str, list[dict[str, list[float]]]]:
        """Row -> per seed the headline's values, with rounds, simulated and real seconds."""
        found: dict[str, list[dict[str, list[float]]]] = {}
        for row in self.rows():
            for seed in self.study.seeds:
                curve = self.curves.get((*row, seed, self.headline()))
                if curve is not None:
                    sim_s = [float("nan") if second is None else second for second in curve.sim_s]
                    rounds = [float(index) for index in curve.rounds]
                    axes = {"round": rounds, "simulated s": sim_s, "real s": curve.wall_s}
                    found.setdefault(self._name(row), []).append({**axes, "value": curve.values})
        return found

    def _name(self, row: Row) -> str:
        return f"{row[0]} ({self.study.models.get(row[1], row[1])})"

    def _band(self, row: Row, metric: str) -> tuple[Any, Any, Any]:
        """Rounds that all seeds have, mean and sample deviation over seeds."""
        found = [self.curves[key] for s in self.study.seeds if (key := (*row, s, metric)) in self.curves]
        if not found:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        common = sorted(set.intersection(*(set(curve.rounds) for curve in found)))
        values = np.array([[c.values[c.rounds.index(r)] for r in common] for c in found])
        deviation = values.std(axis=0, ddof=1) if len(found) > 1 else np.zeros(len(common))
        return np.array(common), values.mean(axis=0), deviation

    def _records(self) -> pa.Table:
        """A row per run, model, metric and statistic: mean, deviation, and every seed's value."""
        records: list[dict[str, Any]] = []
        for row in self.rows():
            for metric in self.metrics():
                for statistic in STATISTICS:
                    records.append(_record(row, metric, statistic, self.values(row, metric, statistic)))
            if self._against():
                records.append(_record(row, "accuracy", "relative change", self.changes(row)))
            if self.study.target is not None:
                for name, values in self.costs(row).items():
                    reached = [value for value in values if value is not None]
                    complete = reached if len(reached) == len(values) else []
                    records.append(_record(row, name, "to target", complete))
        return pa.Table.from_pylist(records)

    def _against(self) -> bool:
        return any(run.against is not None for run in self.study.runs)

    def _timed(self) -> bool:
        return any(value is not None for curve in self.curves.values() for value in curve.sim_s)


def _record(row: Row, metric: str, statistic: str, values: Sequence[float]) -> dict[str, Any]:
    return {
        "run": row[0],
        "model": row[1],
        "metric": metric,
        "statistic": statistic,
        "mean": statistics.fmean(values) if values else None,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": [float(value) for value in values],
    }


def _cell(values: Sequence[float], metric: str) -> str:
    if not values:
        return ""
    scale, digits = (1, 4) if metric == "fm" else (100, 2)
    sign = "+" if metric == "change" else ""
    mean = f"{statistics.fmean(values) * scale:{sign}.{digits}f}"
    return mean + (f" ± {statistics.stdev(values) * scale:.{digits}f}" if len(values) > 1 else "")


def _cost(values: Sequence[float | None], unit: float) -> str:
    reached = [value / unit for value in values if value is not None]
    if not values:
        return ""
    if not reached:
        return "not reached"
    mean = f"{statistics.fmean(reached):,.1f}"
    return mean if len(reached) == len(values) else f"{mean} ({len(reached)} of {len(values)} seeds)"


def _printed(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "not given"
    return f"{mean:g}" + (f" ± {deviation:g}" if deviation is not None else "")


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    for plain in "%_&#":
        text = text.replace(plain, f"\\{plain}")
    return text.replace("±", r"$\pm$").replace("->", r"$\to$")
