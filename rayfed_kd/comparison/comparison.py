"""The numbers of a comparison: what each row reached, what that cost, and how it stands to the paper.

`Comparison` computes and never formats. `table_text` makes cells and sentences of it, `writers` files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rayfed_kd.comparison.curves import MIB, AxisName, Curve, CurveKey, RunTotals
from rayfed_kd.comparison.differences import Difference, JudgedClaim, Row, paired_difference
from rayfed_kd.comparison.published import PaperRows, PrintedValue, rank_correlation
from rayfed_kd.comparison.studies import Claim, RowModel, Study
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.names import unlike_models
from rayfed_kd.results.summary import HEADLINES, METRICS, most_common_headline

STATISTICS = ("last", "best", "mean of last")
TARGET_COSTS = ("rounds", "bytes_up", "bytes_down", "bytes", "sim_s")
# Two rows agree or disagree in their order only by chance; three are the least that says something.
FEWEST_RANKED_ROWS = 3


@dataclass(frozen=True)
class Comparison:
    """The numbers of one study's runs.

    Attributes:
        study: the study.
        curves: one per row, evaluated model, seed and metric; keys as `CurveKey`.
        totals: (label, seed) -> what the run cost in all.
        notes: sentences that a reader of the table needs, without the final stop.
    """

    study: Study
    curves: Mapping[CurveKey, Curve]
    totals: Mapping[tuple[str, int], RunTotals]
    notes: Sequence[str] = ()

    @property
    def all_notes(self) -> list[str]:
        """`notes`, and those on models that the study names and no row evaluates."""
        evaluated, unknown = {key[1] for key in self.curves}, []
        for key, named in (("models", self.study.models), ("baselines", self.study.baselines)):
            if missing := set(named) - evaluated:
                unknown.append(f"{key}: no row evaluates {', '.join(sorted(missing))}")
        # All models are tested on the same images in the official test.
        unlike = [] if self.headline == "server_accuracy" else unlike_models(model for _, model in self.rows)
        return [*self.notes, *unknown, *unlike]

    @cached_property
    def rows(self) -> list[Row]:
        """(label, model) of every row, in the study's order.

        The models are those that the study names, in its order. A row that has none of them is shown with
        all its models, as is every row of a study that names none; they are in the order of `curves`, which
        is that in which the row's method names them.
        """
        models_by_label: dict[str, list[str]] = {}
        for label, model in dict.fromkeys((key[0], key[1]) for key in self.curves):
            models_by_label.setdefault(label, []).append(model)
        rows = list[Row]()
        for label in self.study.labels:
            models = models_by_label.get(label, [])
            rows += [(label, model) for model in [m for m in self.study.models if m in models] or models]
        return rows

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that any row has: in the order of `METRICS`, then those that recipes name."""
        named = dict.fromkeys(key[3] for key in self.curves)
        return sorted(named, key=lambda name: METRICS.index(name) if name in METRICS else len(METRICS))

    @cached_property
    def headline(self) -> str:
        """The metric that `best`, `mean of last` and the target are about.

        Without a name it is that of `HEADLINES` which most rows have.

        Raises:
            RecipeError: no row has the metric that the study names.
        """
        named = self.study.headline
        if named is not None:
            if named not in self.metrics:
                raise RecipeError(f"headline: no row has {named}; there are {', '.join(self.metrics)}")
            return named
        return most_common_headline([m for row in self.rows for m in HEADLINES if self.seed_curves(row, m)])

    def seed_curves(self, row: Row, metric: str) -> dict[int, Curve]:
        """The row's curves of a metric by seed, in the study's order; no entry for a seed that has none."""
        keys = {seed: CurveKey(*row, seed, metric) for seed in self.study.seeds}
        return {seed: self.curves[key] for seed, key in keys.items() if key in self.curves}

    def values(self, row: Row, metric: str, statistic: str) -> list[float]:
        """One value per seed, in the study's order of seeds.

        Args:
            row: (label, model).
            metric: the metric's column.
            statistic: `last`, `best`, or `mean of last`. Best is of one round for all metrics, that in which
                the row's headline is best. The mean is over the study's number of last evaluations.

        Returns: accuracies in [0, 1], FM as it is; fewer values than seeds where a run has none.
        """
        return list(self.values_by_seed(row, metric, statistic).values())

    def values_by_seed(self, row: Row, metric: str, statistic: str) -> dict[int, float]:
        """As `values`, by seed; `mean of all` evaluations is a statistic, too."""
        curves = self.seed_curves(row, metric)
        if statistic == "best":
            best_rounds = self._best_rounds(row)
            return {
                seed: curve.values[curve.rounds.index(best_rounds[seed])]
                for seed, curve in curves.items()
                if best_rounds.get(seed) in curve.rounds
            }
        averaged = {"last": 1, "mean of last": self.study.last, "mean of all": 0}[statistic]
        values_of_seed = {seed: curve.last(averaged) for seed, curve in curves.items()}
        return {seed: statistics.fmean(values) for seed, values in values_of_seed.items() if values}

    def _best_rounds(self, row: Row) -> dict[int, int]:
        """Seed -> the first round in which the row's headline is best: one round for all its metrics.

        A row that lacks the comparison's headline is judged by the first of `HEADLINES` that it has.
        """
        for metric in (self.headline, *HEADLINES):
            if curves := self.seed_curves(row, metric):
                return {
                    s: c.rounds[c.values.index(c.better(c.values))] for s, c in curves.items() if c.values
                }
        return {}

    @property
    def baseline_label(self) -> str:
        """The row that others' differences are to, unless `baselines` names another for their model."""
        return self.study.baseline or self.study.labels[0]

    def baseline(self, row: Row) -> Row | None:
        """The row that this one's difference is to, and of its models the same one, else the first.

        Returns: None for the baseline's own rows, and where the baseline lacks the headline.
        """
        own = next(run.against for run in self.study.runs if run.label == row[0])
        label = own or self.study.baselines.get(row[1], self.baseline_label)
        models = [m for name, m in self.rows if name == label and self.seed_curves((label, m), self.headline)]
        if row[0] == label or not models:
            return None
        return label, row[1] if row[1] in models else models[0]

    def difference(self, row: Row) -> Difference | None:
        """The row's headline, mean of the last evaluations, less its baseline's, seed by seed.

        Returns: None where there is no baseline, or fewer than two seeds have both.
        """
        baseline = self.baseline(row)
        if baseline is None:
            return None
        alike, rows = self.alike(row, baseline, self.headline), (row, baseline)
        return paired_difference(*(alike.values_by_seed(r, self.headline, "mean of last") for r in rows))

    def alike(self, row: Row, other: Row, metric: str, *, other_lengths: bool = False) -> Comparison:
        """This comparison with these rows' curves of a metric, and of headlines, where both have values.

        A row that is evaluated more often than another would have its mean over other rounds. Runs that have
        other numbers of rounds keep their own evaluations, but with `other_lengths`.
        """
        cut = dict[CurveKey, Curve]()
        for name in {metric, self.headline, *HEADLINES}:
            ours, theirs = self.seed_curves(row, name), self.seed_curves(other, name)
            for seed in ours.keys() & theirs.keys():
                cut[CurveKey(*row, seed, name)] = ours[seed].beside(theirs[seed], other_lengths)
                cut[CurveKey(*other, seed, name)] = theirs[seed].beside(ours[seed], other_lengths)
        if all(curve is self.curves[key] for key, curve in cut.items()):
            return self
        return replace(self, curves={**self.curves, **cut})

    def judged_claims(self) -> list[JudgedClaim]:
        """The study's claims with their verdicts, in its order."""
        return [self._judged(claim) for claim in self.study.claims]

    def _judged(self, claim: Claim) -> JudgedClaim:
        metric = claim.metric or self.headline
        higher, lower = (self._row_of(side) for side in (claim.higher, claim.lower))
        # The longer of two runs would have a higher mean of all, as its last evaluations are its best.
        alike = self.alike(higher, lower, metric, other_lengths=claim.statistic == "mean of all")
        ours, theirs = (alike._claimed_values(row, metric, claim.statistic) for row in (higher, lower))
        cut = metric != "bytes" and alike is not self
        return JudgedClaim(claim, higher, lower, metric, paired_difference(ours, theirs), cut)

    def _row_of(self, named: RowModel) -> Row:
        models = (model for label, model in self.rows if label == named.run)
        return named.run, named.model or next(models, "")

    def _claimed_values(self, row: Row, metric: str, statistic: str) -> dict[int, float]:
        if metric != "bytes":
            return self.values_by_seed(row, metric, statistic)
        # Bytes only grow, so there is nothing to take a mean of: all that the whole run sent.
        return {seed: totals.cost.bytes / MIB for seed, totals in self.seed_totals(row[0]).items()}

    def seed_totals(self, label: str) -> dict[int, RunTotals]:
        """What the row's runs cost in all, by seed, in the study's order."""
        keys = {seed: (label, seed) for seed in self.study.seeds}
        return {seed: self.totals[key] for seed, key in keys.items() if key in self.totals}

    def costs(self, row: Row) -> dict[str, list[float | None]]:
        """What the row needed to reach the study's target, by kind and seed.

        Args:
            row: (label, model).

        Returns: lists under `rounds`, `bytes_up`, `bytes_down`, `bytes` and `sim_s`, one value per seed that
            has a curve and a target; None where the target was not reached, or there is no clock.
        """
        costs: dict[str, list[float | None]] = {name: [] for name in TARGET_COSTS}
        for seed, curve in self.seed_curves(row, self.headline).items():
            target = self.target(seed)
            if target is None:
                continue
            reached = (i for i, value in enumerate(curve.values) if curve.better((value, target)) == value)
            place = next(reached, None)
            for name in TARGET_COSTS:
                cost = None
                if place is not None:
                    cost = curve.rounds[place] if name == "rounds" else getattr(curve.costs[place], name)
                costs[name].append(cost)
        return costs

    def target(self, seed: int) -> float | None:
        """The headline's value to reach with this seed; None if the study names none or its row has none."""
        target = self.study.target
        if target is None or isinstance(target, float):
            return target
        rows = [row for row in self.rows if row[0] == target.run]
        curves = [curve for row in rows if (curve := self.seed_curves(row, self.headline).get(seed))]
        return curves[0].better(value for curve in curves for value in curve.values) if curves else None

    @cached_property
    def papers(self) -> list[PaperRows]:
        """The printed tables that the study names."""
        return [PaperRows(published, self.study) for published in self.study.published]

    def printed_values(self) -> dict[str, dict[Row, PrintedValue]]:
        """Printed metric -> our row -> what the paper has there; no metric that no row has.

        Where several papers print a metric of this name, the paper's name stands behind it. A row that two
        tables of one paper print has both values.
        """
        values: dict[str, dict[Row, PrintedValue]] = {}
        for paper in self.papers:
            others = {other.published.paper for other in self.papers if other.metric == paper.metric}
            name = f"{paper.metric} ({paper.published.paper})" if len(others) > 1 else paper.metric
            for row in self.rows:
                value = paper.value(*row)
                if value is not None and name is not None:
                    again = values.get(name, {}).get(row, value) != value
                    values.setdefault(f"{name}, {paper.title}" if again else name, {})[row] = value
        return values

    def agreement(self, paper: PaperRows) -> tuple[int, float] | None:
        """How far our order of rows agrees with the paper's.

        Returns: how many rows both have, and Kendall's tau-b of them, in [-1, 1], NaN if one order ties all
            rows; None for fewer than three rows.
        """
        metric, pairs = paper.published.ours or self.headline, []
        for row in self.rows:
            printed, values = paper.value(*row), self.values(row, metric, paper.published.statistic)
            if values and printed is not None and printed[0] is not None:
                pairs.append((statistics.fmean(values), printed[0]))
        if len(pairs) < FEWEST_RANKED_ROWS:
            return None
        return len(pairs), rank_correlation(*zip(*pairs, strict=True))

    def has_cost(self, axis: AxisName) -> bool:
        """Whether any run has a finite cost of this kind, so that there is something to draw over it."""
        costs = (cost.along(axis) for curve in self.curves.values() for cost in curve.costs)
        return any(cost is not None and 0 < cost < math.inf for cost in costs)

    def privacy(self, label: str) -> list[Mapping[str, Any]]:
        """What the row's runs spent of privacy, as the last rows of their tables; empty without `privacy`."""
        return [run.privacy for run in self.seed_totals(label).values() if run.privacy is not None]
