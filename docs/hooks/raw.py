"""docs/measured/raw.parquet: the runs behind pages, an evaluated round of a model a row.

    python docs/hooks/raw.py RUNS STUDY/TABLE COMMIT     # adds a table's runs; a row's seed is replaced
    python docs/hooks/raw.py                             # recomputes the intervals of the pages

RUNS is the folder with the studies' folders; COMMIT is that of the code which ran them. The second form reads
no run and none of the code that computed the tables. It prints each difference and claim of a page's block
whose runs are in the file, and what searches found. Where the runs say something else, it prints that, too,
and ends with an error.

Columns: `study` is STUDY/TABLE, of a row's search STUDY/TABLE/search/ROW. `run` is the row as its folder is
named (`FedPer-` is FedPer+), or a trial's coefficients as JSON. Metrics are fractions of 1. `bytes_up`,
`bytes_down` and `wall_s` are sums since the run's start.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import mpmath
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_kd.files.folders import file_name
from rayfed_kd.tuning.space import coefficient_text

DOCS = Path(__file__).parents[1]
FILE = DOCS / "measured/raw.parquet"
PAGES = tuple(
    DOCS / f"{name}.md"
    for name in (
        *(f"measured/{page}" for page in ("results", "leaderboard", "asynchronous", "tables")),
        "guide/codecs",
    )
)
KEYS = ("study", "run", "seed")
METRICS = ("amp", "fm", "wlp", "ua", "server_accuracy")
COLUMNS = {"AMP %": "amp", "UA %": "ua", "official test %": "server_accuracy"}
# What FedGEMS' and KDIA's tables call models -> what the file does.
MODELS = {"clients": "personal", "S": "student", "T": "teacher", "OCA": "oca"}
BLOCK = re.compile(r"<!-- measured: (?P<study>\S+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
NUMBERS = re.compile(r"([-+][\d.]+) \[([-+][\d.]+), ([-+][\d.]+)\]")
METRIC = r"(?P<metric>[^|]+?), (?:last evaluation|mean of last (?P<last>\d+) evaluations)"
COMPARED = re.compile(METRIC + r": (?P<first>.+) less (?P<second>.+)")
FOUND = re.compile(
    r"(?P<row>\w[^.]*?) has (?P<coefficients>\S.*?): the best of (?P<valued>\d+)(?: of \d+)? "
    r"configurations, (?P<value>[\d.]+) % (?P<metric>\w+)/(?P<model>\w+) with seeds? (?P<seeds>[\d, and]+)\."
)


class Compared(NamedTuple):
    """Two rows of a page, of which it prints the difference."""

    metric: str
    last: int
    first: str
    second: str
    printed: str


def finished(folder: Path, study: str) -> Iterator[tuple[Path, str, str, int]]:
    """The folder, study, run and seed of each finished run in a table's folder, and of each trial."""
    for run in sorted(folder.glob("*-seed*")):
        label, seed = run.name.rsplit("-seed", 1)
        if seed.isdigit() and (run / "summary.json").is_file():  # not of one that failed
            yield run, study, label, int(seed)
    for trial in sorted(folder.glob("search/*/trials/*")):
        told = json.loads((trial / "trial.json").read_text("utf8"))
        seed = told["coefficients"].pop("seed")
        if told["status"] == "finished":
            yield trial, f"{study}/search/{trial.parents[1].name}", json.dumps(told["coefficients"]), seed


def runs_of(folder: Path, table: str, commit: str) -> Iterator[pa.Table]:
    """A row for each evaluated round and model of each finished run in a table's folder."""
    from rayfed_kd.results.tables.reading import read_table

    for run, study, label, seed in finished(folder, table):
        rounds = read_table(run / "tables", "rounds").to_pydict()
        places = {index: place for place, index in enumerate(rounds["round"])}
        metrics = read_table(run / "tables", "metrics").select(["model", "round", *METRICS])
        ends = [places[index] + 1 for index in metrics["round"].to_pylist()]
        for place, (name, value) in enumerate((("study", study), ("run", label), ("seed", seed))):
            metrics = metrics.add_column(place, name, pa.array([value] * len(metrics)))
        for name in ("bytes_up", "bytes_down"):
            metrics = metrics.append_column(name, pa.array([sum(rounds[name][:end]) for end in ends]))
        # Seconds since the run's start, unlike a round's bytes.
        metrics = metrics.append_column("wall_s", pa.array([rounds["wall_s"][end - 1] for end in ends]))
        yield metrics.append_column("commit", pa.array([commit] * len(metrics)))


def compared(page: str) -> Iterator[tuple[str, Compared]]:
    """The study of a block, and each difference that stands there."""
    for block in BLOCK.finditer(page):
        column = re.search(rf"Difference: {METRIC}, less", " ".join(block["table"].split()))
        baseline, place = "", 0
        for line in block["table"].splitlines():
            cells = [cell.strip() for cell in line.strip()[1:-1].split("|")]
            for index, cell in enumerate(cells):
                if named := re.match(r"difference to (.+?) \[95 %", cell):
                    baseline, place = named[1], index
            if len(cells) == 4 and (found := COMPARED.fullmatch(cells[1])):
                words = found.groupdict()
                names = (words["first"], words["second"])
                yield block["study"], Compared(words["metric"], int(words["last"] or 1), *names, cells[2])
            elif column and baseline and len(cells) > place and NUMBERS.match(cells[place]):
                other = re.search(r"\] to (.+?\))", cells[place])
                second = other[1] if other else baseline
                yield block["study"], Compared(column[1], int(column[2] or 1), cells[0], second, cells[place])


def values(runs: pa.Table, row: str, metric: str, last: int) -> dict[int, float]:
    """Seed -> the mean of a row's last evaluations, a fraction of 1. A row is `LABEL (model)`."""
    label, model = re.fullmatch(r"(.+) \((\w+)\)", row).groups()
    own = runs.filter(pc.equal(runs["run"], file_name(label)))
    curves = curves_of(own, MODELS.get(model, model), COLUMNS[metric])
    return {seed: statistics.fmean(curve[-last:]) for seed, curve in curves.items()}


def curves_of(runs: pa.Table, model: str, column: str) -> dict[int, list[float | None]]:
    """Seed -> a run's metric, evaluation by evaluation."""
    curves: dict[int, list[float | None]] = {}
    own = runs.filter(pc.equal(runs["model"], model)).sort_by("round")
    for seed, value in zip(own["seed"].to_pylist(), own[column].to_pylist(), strict=True):
        curves.setdefault(seed, []).append(value)
    return curves


def interval(differences: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval by Student's t, whose distribution is integrated from its density."""
    n, mean = len(differences), statistics.fmean(differences)

    def density(t: mpmath.mpf) -> mpmath.mpf:
        scale = mpmath.gamma(n / 2) / (mpmath.sqrt((n - 1) * mpmath.pi) * mpmath.gamma((n - 1) / 2))
        return scale * (1 + t * t / (n - 1)) ** (-n / 2)

    t = mpmath.findroot(lambda end: mpmath.quad(density, [0, end]) - 0.475, 2.5)
    half = float(t) * statistics.stdev(differences) / n**0.5
    return mean, mean - half, mean + half


def recomputed(page: str, runs: pa.Table) -> Iterator[tuple[str, str, str]]:
    """What is compared, what the page prints and what the runs give, of blocks whose runs are there."""
    studies = set(runs["study"].to_pylist())
    for study, said in compared(page):
        if study not in studies:
            continue
        own = runs.filter(pc.equal(runs["study"], study))
        ours, theirs = (values(own, row, said.metric, said.last) for row in (said.first, said.second))
        # In percent at the end, as the pages have it: at a tie the last digit depends on it.
        found = interval([value - theirs[seed] for seed, value in ours.items()])
        mean, low, high = (100 * value for value in found)
        text = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
        yield f"{said.first} less {said.second}", NUMBERS.match(said.printed)[0], text


def search_means(trials: pa.Table, said: re.Match[str], last: int) -> dict[str, float]:
    """Coefficients -> the mean over seeds of the trials' last evaluations; without those that diverged."""
    seeds, means = [int(seed) for seed in re.findall(r"\d+", said["seeds"])], {}
    for coefficients in sorted(set(trials["run"].to_pylist())):
        own = trials.filter(pc.equal(trials["run"], coefficients))
        curves = curves_of(own, said["model"], said["metric"])
        known = {
            seed: [value for value in curve if value is not None and math.isfinite(value)]
            for seed, curve in curves.items()
            if curve[-1] is not None and math.isfinite(curve[-1])
        }
        if sorted(known) == seeds:
            means[coefficients] = statistics.fmean(
                statistics.fmean(curve[-last:]) for curve in known.values()
            )
    return means


def found_again(page: str, runs: pa.Table) -> Iterator[tuple[str, str, str]]:
    """What a page says that searches found, and what their trials say, of searches that are in the file."""
    for block in BLOCK.finditer(page):
        text = " ".join(block["table"].replace("\\", "").split())
        last = re.search(r"mean of last (\d+) evaluations", text)
        for said in FOUND.finditer(text):
            own = runs.filter(pc.equal(runs["study"], f"{block['study']}/search/{file_name(said['row'])}"))
            if len(own) == 0:
                continue
            means = search_means(own, said, int(last[1]))
            best = max(means, key=means.__getitem__)
            told = ", ".join(f"{key} {coefficient_text(value)}" for key, value in json.loads(best).items())
            again = f"{told}: {len(means)}, {100 * means[best]:.2f} %"
            printed = f"{said['coefficients']}: {said['valued']}, {said['value']} %"
            yield f"{said['row']} by {said['metric']}/{said['model']}", printed, again


if __name__ == "__main__":
    if len(sys.argv) > 1:
        runs_folder, study, commit = sys.argv[1:]
        added = pa.concat_tables(runs_of(Path(runs_folder) / study, study, commit))
        kept = []
        if FILE.is_file():
            before = pq.read_table(FILE)
            # Runs of other seeds may come from another machine.
            ours = {*zip(*(added[name].to_pylist() for name in KEYS), strict=True)}
            keys = zip(*(before[name].to_pylist() for name in KEYS), strict=True)
            kept = [before.filter(pa.array([key not in ours for key in keys]))]
        pq.write_table(pa.concat_tables([*kept, added]), FILE, compression="zstd")
        sys.stdout.write(f"{len(added)} rows of {study} in {FILE}\n")
    else:
        every, count, wrong = pq.read_table(FILE), 0, 0
        for page in PAGES:
            text = page.read_text("utf8")
            for what, printed, again in (*recomputed(text, every), *found_again(text, every)):
                count, wrong = count + 1, wrong + (printed != again)
                said = "" if printed == again else f"; WRONG, from the runs {again}"
                sys.stdout.write(f"{page.name}: {what}: {printed}{said}\n")
        if wrong:
            sys.exit(f"{wrong} of {count} numbers of the pages are not those of their runs")
        sys.stdout.write(f"all {count} numbers of the pages are those of their runs\n")
