"""Writes a page's block anew from docs/measured/raw.parquet, where the folders of its runs are gone.

    python docs/hooks/raw_block.py CONFIG STUDY/TABLE [SEED ...]

CONFIG is the study's file; without seeds all of the study's are taken. It is for studies whose runs come from
several machines: `raw.py RUNS STUDY/TABLE COMMIT` adds what each has made. The file knows bytes on the wire
alone, so a study with codecs, privacy or a clock is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import measured
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import raw

from rayfed_kd.comparison.checking import check_study
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.controls import uncontrolled
from rayfed_kd.comparison.curves import Curve, CurveKey, RunTotals, curves_of, totals_of
from rayfed_kd.comparison.planning import PlannedRun
from rayfed_kd.comparison.row_notes import row_notes, with_stop_as_target
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.comparison.writers.all_tables import render_markdown


def tables_of(plan: PlannedRun, runs: pa.Table) -> Mapping[str, pa.Table]:
    """A run's tables as far as a comparison reads them.

    Args:
        plan: the run.
        runs: the study's rows of raw.parquet.
    """
    label = plan.folder.name.rsplit("-seed", 1)[0]
    own = runs.filter(pc.and_(pc.equal(runs["run"], label), pc.equal(runs["seed"], plan.seed)))
    if not len(own):
        sys.exit(f"{raw.FILE} has no run {plan.name}")
    own = own.sort_by("round")
    first = own["model"][0].as_py()
    rounds = own.filter(pc.equal(own["model"], first)).to_pylist()
    sums = {"up": 0, "down": 0}
    for row in rounds:  # the file has sums since the first round, a run's own table those of each round
        for direction, before in sums.items():
            sums[direction] = row[f"bytes_{direction}"]
            row[f"bytes_{direction}"] -= before
        row["sim_s"] = None
    messages = [
        {"kind": "all", "direction": direction, "raw_bytes": size} for direction, size in sums.items()
    ]
    empty = pa.table({})
    return {
        "rounds": pa.Table.from_pylist(rounds),
        "metrics": own,
        "messages": pa.Table.from_pylist(messages),
        "privacy": empty,
        "scores": empty,
    }


def block(study: Study, runs: pa.Table) -> str:
    """The comparison's Markdown, as `compare` writes it for the same runs.

    Args:
        study: one table's.
        runs: its rows of raw.parquet.
    """
    planned, recipes = check_study(study)
    study = with_stop_as_target(study, recipes)
    if any(recipe.codec.chains or recipe.privacy or recipe.clock.name != "none" for recipe in recipes):
        sys.exit(f"{study.source}: raw.parquet does not have all that this study prints")
    by_label = {plan.label: recipe for plan, recipe in zip(planned, recipes, strict=True)}
    curves, totals = dict[CurveKey, Curve](), dict[tuple[str, int], RunTotals]()
    for plan in planned:
        tables = tables_of(plan, runs)
        totals[plan.label, plan.seed] = totals_of(tables)
        for (model, metric), curve in curves_of(tables).items():
            curves[CurveKey(plan.label, model, plan.seed, metric)] = curve
    notes = [*row_notes(study, by_label), *uncontrolled(by_label)]
    return render_markdown(Comparison(study, curves, totals, notes)) + "\n"


def rendered(config: str, name: str, seeds: Sequence[int]) -> str:
    """The block as it stands in its page.

    Args:
        config: the study's file.
        name: STUDY/TABLE.
        seeds: those to take; empty: the study's.
    """
    whole = pq.read_table(raw.FILE)
    runs = whole.filter(pc.equal(whole["study"], name))
    studies = select_studies([config], seeds=seeds or None)
    (study,) = (study for study in studies if Path(study.folder).name == name.partition("/")[2])
    return measured.wrapped(block(study, runs))


def main(config: str, name: str, seeds: Sequence[int]) -> None:
    """Write the block into its page."""
    text = rendered(config, name, seeds)
    for page in measured.PAGES:
        before = page.read_text("utf8")
        after = measured.BLOCK.sub(
            lambda found: f"{found[1]}{text}{found[4]}" if found["study"] == name else found[0], before
        )
        if name in before:
            page.write_text(after, "utf8")
            sys.stdout.write(f"{page.name}: {name} {'has changed' if after != before else 'is as it was'}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(seed) for seed in sys.argv[3:]])
