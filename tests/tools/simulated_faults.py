"""Runs small recipes on a simulated cluster under faults that seeds draw; each must end as if undisturbed.

    python tests/tools/simulated_faults.py --seeds 10000
    python tests/tools/simulated_faults.py --case fedkf:fedbuff --first 17 --seeds 1

Seed n is a run of case n modulo their number, or of the one named by `--case`. A run that ends otherwise
prints what was wrong, and the command that repeats it. tests/helpers/disturbed_runs.py says what can happen,
tests/helpers/simulated_runs.py what the cases are. The exit code is 1 if any run ended otherwise.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--case", help="METHOD:SCHEDULE; default: all in turn")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from simulated_runs import CASES

    seeds = range(given.first, given.first + given.seeds)
    by_case: dict[str, list[int]] = {}
    for seed in seeds:
        by_case.setdefault(given.case or CASES[seed % len(CASES)], []).append(seed)
    began, story, failures = time.monotonic(), Counter[str](), 0
    for case, happened, failed in map(_tried, by_case.items()):
        story += happened
        failures += len(failed)
        for line in failed:
            sys.stdout.write(line)
        sys.stdout.write(f"{case}: {happened['runs']} equal, {len(failed)} not\n")
        sys.stdout.flush()
    figures = ", ".join(f"{count:,} {name}" for name, count in sorted(story.items()))
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{len(seeds):,} seeds, {len(by_case)} cases, {seconds:.0f} s: {failures} not equal\n{figures}\n"
    )
    return 1 if failures else 0


def _tried(work: tuple[str, Sequence[int]]) -> tuple[str, Counter[str], list[str]]:
    """A case with its seeds: what happened in the runs that ended as they should, and the failures' lines."""
    import torch
    from disturbed_runs import run_disturbed
    from simulated_runs import Case

    torch.set_num_threads(1)
    case, story, failed = Case(work[0]), Counter[str](), []
    for seed in work[1]:
        try:
            story += run_disturbed(case, seed)
        except Exception as error:  # whatever it is, the seed must be named and the next one tried
            reason = str(error) or "raised"
            failed.append(f"{type(error).__name__}: {reason}\n    {repeating(case.name, seed)}\n")
    return case.name, story, failed


def repeating(case: str, seed: int) -> str:
    """The command that runs a seed again."""
    return f"python tests/tools/simulated_faults.py --case {case} --first {seed} --seeds 1"


if __name__ == "__main__":
    sys.exit(main())
