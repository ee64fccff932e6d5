"""Kills real runs with SIGKILL at random moments until so many kills were made, and prints a table.

    python tests/tools/chaos.py --kills 1000 --log chaos.jsonl
    python tests/tools/chaos.py --table --log chaos.jsonl

Every method runs under one schedule, all five schedules appear, on both engines: first every method on the
local engine, then every method on Ray, then from the beginning. Each run is killed up to `--each` times,
resumed until it is finished, and its tables and models are held against those of the undisturbed run, bit for
bit. On the local engine the commands are forked where torch is imported already; on Ray most kills hit client
hosts, which a run gets over without a new start.

A line of the log is one run with all its kills, a dozen perhaps; `--table` counts the kills. With the same
log the command goes on where it was ended. The exit code is 1 if any run ended otherwise; its folder is then
kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

TARGETS = ("one client host", "all client hosts", "server", "command")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--each", type=int, default=12, help="most kills of one run")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print the table of the log")
    given = parser.parse_args()
    runs = read(given.log)
    if not given.table:
        from killed_runs import ENGINES, cases, kill_one_run

        every = [(case, engine) for engine in ENGINES for case in cases()]
        folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        while kills(runs) < given.kills:
            times = Counter((run["case"], run["engine"]) for run in runs)
            case, engine = min(every, key=lambda pair: times[pair])
            run = kill_one_run(case, engine, times[case, engine], given.each, folder)
            runs.append(run)
            with given.log.open("a", encoding="utf8") as file:
                file.write(json.dumps(run) + "\n")
            if run["wrong"] is None:
                for left in folder.glob(f"{case.replace(':', '-')}-{engine}-*"):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
    sys.stdout.write(table(runs))
    return int(any(run["wrong"] for run in runs))


def read(log: Path) -> list[dict[str, Any]]:
    """The runs of a log."""
    return [json.loads(line) for line in log.read_text(encoding="utf8").splitlines()] if log.exists() else []


def kills(runs: Sequence[dict[str, Any]]) -> int:
    """How many kills there were."""
    return sum(sum(run["kills"].values()) for run in runs)


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row for each method with its schedule, and their sum."""
    lines = [
        "| method, schedule | runs | "
        + " | ".join(TARGETS)
        + " | checkpoints cut off | resumes | all equal |"
    ]
    lines.append("| --- |" + " ---: |" * (len(TARGETS) + 3) + " --- |")
    by_case: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_case.setdefault(run["case"].replace(":", ", "), []).append(run)
    for name, some in [*by_case.items(), (f"**{kills(runs)} kills**", list(runs))]:
        killed = sum((Counter(run["kills"]) for run in some), Counter[str]())
        cells = [len(some), *(killed[target] for target in TARGETS)]
        cells += [sum(run[key] for run in some) for key in ("checkpoints cut off", "resumes")]
        equal = "yes" if all(run["wrong"] is None for run in some) else "NO"
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + f" | {equal} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
