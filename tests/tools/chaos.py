"""Kills real runs with SIGKILL at random moments until each was killed three times, and prints a table.

    python tests/tools/chaos.py --log chaos.jsonl                 # every case, without Ray and then on Ray
    python tests/tools/chaos.py --log chaos.jsonl --engine ray    # on Ray alone, as beside another process
    python tests/tools/chaos.py --log chaos.jsonl --only dkdr     # a method's, schedule's, codec's cases
    python tests/tools/chaos.py --table --log chaos.jsonl

The cases follow from what is registered (`cases` of tests/helpers/killed_runs.py). Each run is killed up to
`--each` times, resumed until it is finished, and its tables and models are held against those of the
undisturbed run, bit for bit. A run that ended before its third kill is followed by another of the same case.

Without Ray runs are counted: every method, schedule, codec and privacy setting is in three cases. On Ray
kills are counted: each of them is in one case, whose runs are killed three times in all.

Where torch is imported already commands are forked, and on Ray workers, too. A command on Ray connects to one
that this tool starts and ends; every tenth case has a Ray and processes of its own, as users have. Most kills
on Ray hit client hosts, which a run gets over without a new start. After each run on the Ray that stays no
actor may be left.

A line of the log is one run with all its kills. With the same log the command goes on where it was ended. The
exit code is 1 if any run ended otherwise; its folder is then kept.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

PRIVATE = 10  # every tenth case on Ray has private ones
KINDS = ("method", "schedule", "codec", "privacy")
COLUMNS = {
    ("local", "command"): "without Ray: command",
    **{("ray", name): name for name in ("one client host", "all client hosts", "server", "command")},
}
Runs = Sequence[dict[str, Any]]


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=4, help="most kills of one run")
    parser.add_argument("--engine", choices=["local", "ray"], help="default: one after the other")
    parser.add_argument("--only", nargs="+", default=[], help="cases with one of these names, as dkdr")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the table of the log")
    given = parser.parse_args()
    if not given.table:
        for engine in [given.engine] if given.engine else ["local", "ray"]:
            kill_all(given.log, engine, given.each, given.only)
    runs = read(given.log)
    sys.stdout.write(table(runs))
    return int(any(run["wrong"] for run in runs))


def kill_all(log: Path, engine: str, most: int, only: Sequence[str] = ()) -> None:
    """Kill each case's run, but for those of the log, which gets a line for each run."""
    from forked_workers import LastingRay
    from killed_runs import LEAST, cases, kill_one_run

    folder, done = Path(tempfile.mkdtemp(prefix="chaos-")), read(log)
    ray = LastingRay(folder) if engine == "ray" else None
    for number, case in enumerate(cases(engine), 1):
        if only and not set(only) & set(case.split(":")):
            continue
        before = [run for run in done if (run["case"], run["engine"]) == (case, engine)]
        address = None if ray is None or number % PRIVATE == 0 else ray.address
        while kills(before) < LEAST and all(run["wrong"] is None for run in before):
            run = kill_one_run(case, engine, len(before), most, folder, address)
            before.append(run)
            with log.open("a", encoding="utf8") as file:
                file.write(json.dumps(run) + "\n")
        if all(run["wrong"] is None for run in before):
            for left in folder.glob(f"{case.replace(':', '-')}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    if ray is not None:
        ray.end()


def read(log: Path) -> list[dict[str, Any]]:
    """The runs of a log."""
    return [json.loads(line) for line in log.read_text(encoding="utf8").splitlines()] if log.exists() else []


def kills(runs: Runs) -> int:
    """How many kills there were."""
    return sum(sum(run["kills"].values()) for run in runs)


def table(runs: Runs) -> str:
    """Markdown: a row for each method, schedule, codec and privacy setting, and their sum."""
    lines = ["| | runs | " + " | ".join(COLUMNS.values()) + " | checkpoints cut off | resumes | all equal |"]
    lines.append("| --- |" + " ---: |" * (len(COLUMNS) + 3) + " --- |")
    rows: dict[str, list[dict[str, Any]]] = {}
    for place, kind in enumerate(KINDS):
        for run in runs:
            if (name := run["case"].split(":")[place]) != "none":
                rows.setdefault(f"{kind} {name}", []).append(run)
    for title, some in [*rows.items(), (f"**{kills(runs)} kills**", list(runs))]:
        killed: Counter[tuple[str, str]] = Counter()
        for run in some:
            killed.update({(run["engine"], victim): count for victim, count in run["kills"].items()})
        cells = [len(some), *(killed[column] for column in COLUMNS)]
        cells += [sum(run[key] for run in some) for key in ("checkpoints cut off", "resumes")]
        equal = "yes" if all(run["wrong"] is None for run in some) else "NO"
        lines.append(f"| {title} | " + " | ".join(map(str, cells)) + f" | {equal} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
