"""Writes the tables of finished studies into the pages of docs/, so that nobody types them.

    python docs/hooks/measured.py RUNS

RUNS is the folder with the studies' folders, as `runs`. Each block of a page between
`<!-- measured: STUDY/TABLE -->` and `<!-- end -->` becomes what `compare` wrote to
RUNS/STUDY/TABLE/comparison.md. A block whose study is not there stays as it is, and so does one whose table
the command line had changed (`--seeds`, `--only`, KEY=VALUE). Sentences between blocks are written by hand.

Pictures of `PICTURES` are copied. If the leaderboard's study is there, each method's rows are drawn beside
its baseline's, as docs/images/methods/METHOD.png for the method's page.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from rayfed_kd.comparison.compare import compare_runs as compare
from rayfed_kd.comparison.controls import control_labels
from rayfed_kd.comparison.planning import PlannedRun, plan_runs
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.comparison.writers.parquet import CHANGED
from rayfed_kd.comparison.writers.pictures import curves_picture
from rayfed_kd.errors import RunError
from rayfed_kd.recipe.loading import load_recipe

DOCS = Path(__file__).parents[1]
PAGES = tuple(
    DOCS / f"{name}.md"
    for name in (
        "measured/results",
        "measured/leaderboard",
        "measured/asynchronous",
        "measured/tables",
        "guide/codecs",
        "guide/privacy",
    )
)
# A study's picture -> where a page has it.
PICTURES = {
    "bytes_mnist/against-bytes-amp.png": "bytes_mnist.png",
    "privacy-mnist/against-epsilon-amp.png": "privacy_mnist.png",
    "fedkf-table5-quick/alpha-0.1/curves-amp.png": "fedkf_table5_curves.png",
    "fedkf-table6-quick/alpha-0.1/curves-amp.png": "fedkf_table6_curves.png",
    "fedkf-table7-quick/alpha-0.1/curves-amp.png": "fedkf_table7_curves.png",
    "kdia-table2-quick/CIFAR-10-beta-0.5/curves-server_accuracy.png": "kdia_table2_curves.png",
    "dafkd-table1-quick/MNIST-alpha-0.1/curves-server_accuracy.png": "dafkd_table1_curves.png",
    "fedd2s-table2-quick/CIFAR-10-alpha-0.1/curves-ua.png": "fedd2s_table2_curves.png",
}
LEADERBOARD = "leaderboard"  # its study's name, and its folder below RUNS
BLOCK = re.compile(r"(<!-- measured: (?P<study>\S+) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL)
CLAIMS = "Claims:"  # the paragraph before the table of verdicts
WIDTH = 100  # a line of Markdown outside tables


def with_tables(page: str, runs: Path) -> str:
    """The page with the tables that are in `runs`.

    Args:
        page: Markdown with blocks.
        runs: the folder with the studies' folders.
    """

    def block(found: re.Match[str]) -> str:
        path = runs / found["study"] / "comparison.md"
        as_written = path.is_file() and not changes(path.parent)
        table = wrapped(path.read_text(encoding="utf8")) if as_written else found["table"]
        return f"{found[1]}{table}{found[4]}"

    return BLOCK.sub(block, page)


def changes(folder: Path) -> str:
    """What the command line changed of the study whose comparison is in a folder; "" if nothing."""
    path = folder / "comparison.parquet"
    metadata = (pq.read_schema(path).metadata or {}) if path.is_file() else {}
    return metadata.get(CHANGED.encode(), b"").decode("utf8")


def what_becomes_of(folder: Path) -> str:
    """What is done with the comparison in a folder, in words."""
    if not (folder / "comparison.md").is_file():
        return "is not there; its table stays as it is"
    changed = changes(folder)
    return f"was changed on the command line ({changed}); its table stays as it is" if changed else "read"


def wrapped(markdown: str) -> str:
    """The verdicts before the rows; sentences in lines of at most 100 characters, tables as they are."""
    title, *rest = re.split(r"\n\s*\n", markdown.strip())
    if CLAIMS in rest:
        place = rest.index(CLAIMS)
        rest = [rest[place + 1], *rest[:place], *rest[place + 2 :]]
    paragraphs = [
        paragraph if paragraph.startswith("|") else textwrap.fill(paragraph, WIDTH)
        for paragraph in (title, *rest)
    ]
    return "\n" + "\n\n".join(paragraphs) + "\n\n"


def labels_by_method(study: Study) -> Mapping[str, Sequence[str]]:
    """Method -> labels of the study's rows that run it."""
    labels = defaultdict[str, list[str]](list)
    for run in plan_runs(study.model_copy(update={"seeds": study.seeds[:1]})):
        # A comparison adds rows of the labels alone by itself, behind the methods' own.
        if run.label not in control_labels(study):
            labels[load_recipe(run.source, run.overrides).method.name].append(run.label)
    return labels


def draw_methods(study: str, runs: Path, to: Path) -> None:
    """Draw the headline by round, a picture for each method.

    Args:
        study: the study's file or name.
        runs: the folder with the study's folder; rows that have not run with every seed are left out.
        to: where METHOD.png goes.
    """
    (whole,) = select_studies([study], folder=str(runs / LEADERBOARD))
    baseline = whole.baseline or whole.labels[0]
    to.mkdir(parents=True, exist_ok=True)
    for method, labels in labels_by_method(whole).items():
        only = list(dict.fromkeys([*labels, baseline]))
        (table,) = select_studies([study], folder=str(runs / LEADERBOARD), only=only)
        if all(run.done for run in plan_runs(table)):
            comparison = compare(table, run=_refuse)
            # Few dots an inch: a page shows it this large, and there is one for each method.
            curves_picture(comparison, comparison.headline).savefig(
                to / f"{method}.png", dpi=80, format="png"
            )


def _refuse(missing: Sequence[PlannedRun]) -> None:
    raise RunError(f"{missing[0].name} has not run")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for path in PAGES:
        before = path.read_text(encoding="utf8")
        for block in BLOCK.finditer(before):
            sys.stdout.write(f"{path.name}: {block['study']} {what_becomes_of(folder / block['study'])}\n")
        path.write_text(with_tables(before, folder), encoding="utf8")
    for source, target in PICTURES.items():
        if (folder / source).is_file() and not changes((folder / source).parent):
            shutil.copyfile(folder / source, DOCS / "images" / target)
    if (folder / LEADERBOARD).is_dir():
        draw_methods(LEADERBOARD, folder, DOCS / "images/methods")
