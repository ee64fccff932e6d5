"""What `local.compile` brings: processor time of clients' steps with and without it, and compiling's own.

    python tests/benchmarks/compile.py [--models lenet5 resnet8] [--rounds 6]

FedAvg on made images in this process, on one thread: two clients a round, whole batches alone. Both forms
take turns round by round, because machines drift: medians of rounds after the first, and the ratio of pairs.
Compiling is what the first compiled round of a process takes longer than its second, the C++ compiler's time
included: with an empty cache of programs, and with the one that the process before has filled.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parent))
from workloads import InOneProcess, Workload

SHAPES = {"mlp": (64,), "lenet5": (1, 28, 28)}
BATCH = 64
HEADER = """
| model | parameters | a step, eager | compiled | eager over compiled | compiling: empty cache, filled |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def work_of(model: str, batches: int) -> Workload:
    """Two clients of so many whole batches, both at work in each round."""
    shape = SHAPES.get(model, (3, 32, 32))
    return Workload("compile", 2, batches * BATCH, shape, 2, BATCH, model, 1)


def first_round(model: str, batches: int) -> None:
    """Prints what compiling takes in this process."""
    side = InOneProcess(replace(work_of(model, batches), compile=True))
    times = []
    for index in (1, 2):
        started = _with_children()
        side.round(index)
        times.append(_with_children() - started)
    sys.stdout.write(f"{times[0] - times[1]:.2f}\n")


def _with_children() -> float:
    """Processor seconds of this process and of those that it has ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(model: str, batches: int, rounds: int) -> str:
    """A row of the table."""
    with TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--first", model, "--batches", str(batches)]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        starts = [
            float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(2)
        ]
    work = work_of(model, batches)
    sides = {False: InOneProcess(work), True: InOneProcess(replace(work, compile=True))}
    times: dict[bool, list[float]] = {compiled: [] for compiled in sides}
    for index in range(1, rounds + 2):
        for compiled, side in sides.items():
            started = time.process_time()
            side.round(index)
            times[compiled].append((time.process_time() - started) / (2 * batches))
    eager, compiled = (times[form][1:] for form in (False, True))
    pairs = sorted(a / b for a, b in zip(eager, compiled, strict=True))
    far = sides[True].state.weights - sides[False].state.weights
    count = sides[False].state.weights.numel()
    assert far.norm() < 0.01 * sides[False].state.weights.norm(), "both forms must end near one another"
    return (
        f"| {model} | {count:,} | {1000 * statistics.median(eager):.2f} ms | "
        f"{1000 * statistics.median(compiled):.2f} ms | **{statistics.median(pairs):.2f}** "
        f"({pairs[0]:.2f} to {pairs[-1]:.2f}) | {starts[0]:.0f} s, {starts[1]:.0f} s |"
    )


def main() -> None:
    """The table, line by line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["mlp", "lenet5", "cnn2", "short_resnet", "resnet8"])
    parser.add_argument("--batches", type=int, default=4, help="a client's, in each round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--first", help=argparse.SUPPRESS)  # a model, in a process of its own
    asked = parser.parse_args()
    if asked.first:
        first_round(asked.first, asked.batches)
        return
    sys.stdout.write(HEADER)
    for model in asked.models:
        sys.stdout.write(measured(model, asked.batches, asked.rounds) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
