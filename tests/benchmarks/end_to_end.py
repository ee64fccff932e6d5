"""What a user waits for around the rounds, and what all processes hold: the command line, with recording.

    python tests/benchmarks/end_to_end.py                 # the quickstart, three rounds, three repetitions
    python tests/benchmarks/end_to_end.py --repetitions 5 --table

Each repetition runs, one after another, so that drift of the machine meets all: bare Ray (`ray.init` and
three actors that import torch, the least that any program of this design pays), the command on Ray, `import
torch` alone, and the command with --local. `--table` adds what each process holds at the peak. Memory is PSS:
pages that processes share are counted once. CPU is user and system time of all processes from start to end,
which other load on the machine changes little; the last tenth of a second of a process is not seen.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

BARE_RAY = """
import ray

@ray.remote(num_cpus=1)
class Actor:
    def ready(self):
        import torch
        return torch.__version__

ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
actors = [Actor.remote() for _ in range(3)]
ray.get([actor.ready.remote() for actor in actors])
print("round 1/1", flush=True)
"""
IMPORT_TORCH = "import torch; print('round 1/1', flush=True)"
ROUNDS = 3
LOOK_S = 0.1  # seconds between two looks at the processes' memory


@dataclass
class Timed:
    """One run of a command.

    Attributes:
        first_s: seconds from its start to its line about round 1.
        rounds_s: from that line to the last round's.
        end_s: from the last round's line to its end.
        peak_mib: most PSS of all its processes together.
        cpu_s: processor seconds of all its processes together.
        by_process: process -> PSS in MiB at that moment.
        each_s: seconds of each round after the first, from line to line.
    """

    first_s: float
    rounds_s: float
    end_s: float
    peak_mib: float = 0.0
    cpu_s: float = 0.0
    by_process: dict[str, float] = field(default_factory=dict)
    each_s: list[float] = field(default_factory=list)


def timed(command: Sequence[str], *, memory: bool = True) -> Timed:
    """Run a command to its end.

    Args:
        command: it prints a line that begins with `round N/` for each round.
        memory: whether to look at the memory of its processes, which costs a few percent of a core.
    """
    started, moments, peaks = time.perf_counter(), list[float](), list[tuple[float, dict[str, float]]]()
    cpu_s = dict[int, float]()  # by process
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, over, peaks, cpu_s))
        if memory:
            watcher.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("round "):
                moments.append(time.perf_counter())
        process.wait()
        ended = time.perf_counter()
        over.set()
        if memory:
            watcher.join()
    if process.returncode or not moments:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    peak, by_process = max(peaks, key=lambda one: one[0], default=(0.0, {}))
    seconds = moments[0] - started, moments[-1] - moments[0], ended - moments[-1]
    each_s = [later - earlier for earlier, later in pairwise(moments)]
    return Timed(*seconds, peak, sum(cpu_s.values()), by_process, each_s)


def _watch(
    pid: int, over: threading.Event, peaks: list[tuple[float, dict[str, float]]], cpu_s: dict[int, float]
) -> None:
    while not over.wait(LOOK_S):
        held = defaultdict[str, float](float)
        try:
            root = psutil.Process(pid)
            processes = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                times = process.cpu_times()
                cpu_s[process.pid] = times.user + times.system
                held[_name(process, process.pid == pid)] += process.memory_full_info().pss / 2**20
            except psutil.Error:  # it has just ended
                continue
        peaks.append((sum(held.values()), dict(held)))


def _name(process: psutil.Process, command: bool) -> str:
    if command:
        return "the command"
    line = process.cmdline()
    first = line[0] if line else process.name()
    if process.name() == "sh":  # in place of one of Ray's agents
        return "idle shell"
    if first.startswith(("ray::round", "ray::evaluation")):  # a client actor in a call
        return "ray::ClientActor"
    if first.startswith("ray::"):
        return first.partition(".")[0]
    return next((Path(word).stem for word in line if "/ray/" in word and not word.startswith("-")), first)


def commands(recipe: str, folder: Path) -> dict[str, list[str]]:
    """What is timed, by name."""
    ours = [sys.executable, "-m", "rayfed_kd", "run", recipe, f"rounds={ROUNDS}"]
    return {
        "bare Ray": [sys.executable, "-c", BARE_RAY],
        "on Ray": [*ours, f"results.folder={folder / 'ray'}"],
        "import torch": [sys.executable, "-c", IMPORT_TORCH],
        "--local": [*ours, "--local", f"results.folder={folder / 'local'}"],
    }


def main() -> None:
    """Parse the command line and print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart", help="a recipe's file or name")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="what each process holds")
    given = parser.parse_args()
    runs = defaultdict[str, list[Timed]](list)
    for repetition in range(given.repetitions):
        with TemporaryDirectory() as folder:
            for name, command in commands(given.recipe, Path(folder)).items():
                runs[name].append(timed(command))
                print(f"{repetition + 1} {name}: {_cells(runs[name][-1:])}", file=sys.stderr)  # noqa: T201
    lines = ["| | first round s | other rounds s | end s | peak MiB | CPU s |", "| --- |" + " ---: |" * 5]
    lines += [f"| {name} | {_cells(some)} |" for name, some in runs.items()]
    ratios = [
        ours.first_s / bare.first_s for ours, bare in zip(runs["on Ray"], runs["bare Ray"], strict=True)
    ]
    lines += ["", f"first round, on Ray over bare Ray: {_spread(ratios)}"]
    if given.table:
        for name in ("on Ray", "--local"):
            held = max(runs[name], key=lambda one: one.peak_mib).by_process
            parts = sorted(held.items(), key=lambda item: -item[1])
            lines += ["", f"{name}: " + ", ".join(f"{process} {mib:.0f}" for process, mib in parts)]
    sys.stdout.write("\n".join(lines) + "\n")


def _cells(some: Sequence[Timed]) -> str:
    columns = ("first_s", "rounds_s", "end_s", "peak_mib", "cpu_s")
    return " | ".join(_spread([getattr(one, column) for one in some]) for column in columns)


def _spread(values: Sequence[float]) -> str:
    """The median, and in brackets the least and the most."""
    digits = 0 if min(values) > 50 else 2
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
