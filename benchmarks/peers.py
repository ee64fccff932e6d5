"""The same FedAvg in a bare loop, Flower, pfl-research and rayfed-kd, in turns.

    python3.11 benchmarks/peers.py setup                   # once: an environment for each, 2 GB in all
    python3.11 benchmarks/peers.py run --repetitions 2     # the tables; a quarter of an hour
    python3.11 benchmarks/peers.py run --workloads tiny --only rayfed-kd pfl

All have the same data, split, order of batches, first weights and modules of plain torch, two processes that
train, and one torch thread in each (`--local`: one process); that they end at the same model is checked.
rayfed-kd runs as a user runs it, from the command line with all that it records; the others are scripts that
print rounds and record nothing. The bare loop uses rayfed-kd's environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENVIRONMENTS = HERE / "environments"
PACKAGES = {"rayfed-kd": None, "flower": "flwr[simulation]", "pfl": "pfl"}
VERSIONS = ("rayfed-kd", "flwr", "pfl", "ray", "torch", "numpy")
TOLERANCE = 0.01  # of final losses and accuracies: sums of another order grow apart from round to round

if TYPE_CHECKING:
    from end_to_end import Timed

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "PYTHONPATH": str(HERE),  # Ray's processes and pfl's import `job` and `peer_models`
    "PYTHONWARNINGS": "ignore",
}


def python_of(name: str) -> str:
    """The interpreter of an environment."""
    return str(ENVIRONMENTS / name / "bin/python")


def setup(names: Sequence[str]) -> None:
    """Make the environments, torch first and of the tested version: a newer one brings gigabytes."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    torch = next(line for line in pins if line.startswith("torch=="))
    for name in names:
        folder, package = ENVIRONMENTS / name, PACKAGES[name]
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [python_of(name), "-m", "pip", "install", "--quiet"]
        if package is None:
            tested = ["-c", str(ROOT / "constraints.txt")]
            subprocess.run([*install, *tested, "torch"], check=True)
            subprocess.run([*install, *tested, "-e", str(ROOT)], check=True)
        else:
            subprocess.run([*install, torch], check=True)
            subprocess.run([*install, torch, package], check=True)
        sys.stdout.write(f"{name}: {versions(name)}\n")


def versions(name: str) -> str:
    """What matters of an environment's packages."""
    command = [python_of(name), "-I", "-m", "pip", "list", "--format", "json"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True)
    installed = {package["name"]: package["version"] for package in json.loads(listed.stdout)}
    return ", ".join(f"{package} {installed[package]}" for package in VERSIONS if package in installed)


def commands(folder: Path, run: Path, workload: str) -> dict[str, list[str]]:
    """What is timed, by name.

    Args:
        folder: of the workload.
        run: where rayfed-kd's run folders go.
        workload: `round` or `tiny`; clients trained one by one are timed in the second, too.
    """
    ours = [python_of("rayfed-kd"), "-m", "rayfed_kd", "run", str(folder / "recipe.yaml")]
    torchrun = [python_of("pfl"), "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    timed = {
        "bare": [python_of("rayfed-kd"), str(HERE / "bare.py"), str(folder)],
        "flower": [python_of("flower"), str(HERE / "flower_app.py"), str(folder)],
        "pfl": [*torchrun, str(HERE / "pfl_app.py"), str(folder)],
        "rayfed-kd": [*ours, f"results.folder={run / 'rayfed-kd'}"],
        "rayfed-kd --local": [*ours, "--local", f"results.folder={run / 'rayfed-kd --local'}"],
    }
    if workload == "tiny":
        alone = "rayfed-kd local.vectorise=off"
        timed[alone] = [*ours, "local.vectorise=off", f"results.folder={run / alone}"]
    return timed


def figures(name: str, folder: Path, run: Path) -> dict[str, float]:
    """The last model's loss and accuracy on the test samples."""
    if not name.startswith("rayfed-kd"):
        left: dict[str, float] = json.loads((folder / f"{name}.json").read_text())
        return left
    return figures_of_run(run / name)


def figures_of_run(folder: Path) -> dict[str, float]:
    """The same of a run folder of rayfed-kd."""
    import pyarrow.parquet as pq

    last = pq.read_table(folder / "tables/metrics").to_pylist()[-1]
    return {"loss": last["server_loss"], "accuracy": last["server_accuracy"]}


def disagreements(ends: dict[str, dict[str, float]]) -> list[str]:
    """Which figures are further from the bare loop's than the tolerance."""
    return [
        f"{name}: {key} {value:.4f}, bare {ends['bare'][key]:.4f}"
        for name, end in ends.items()
        for key, value in end.items()
        if not abs(value - ends["bare"][key]) <= TOLERANCE
    ]


def median_round(one: Timed) -> float:
    """Seconds of a round, without the first and the last, in which the model is evaluated."""
    return statistics.median(one.each_s[:-1])


def table(runs: dict[str, list[Timed]], ends: dict[str, dict[str, float]]) -> list[str]:
    """Lines of Markdown; medians over repetitions, least and most in brackets."""
    columns = ("", "ratio", "a round s", "first round s", "end s", "peak MiB", "CPU s", "loss", "accuracy")
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]
    bare = [median_round(one) for one in runs["bare"]]
    for name, some in runs.items():
        rounds = [median_round(one) for one in some]
        cells = [
            spread([one / other for one, other in zip(rounds, bare, strict=True)], 2),
            spread(rounds, 3),
            spread([one.first_s for one in some], 1),
            spread([one.end_s for one in some], 2),
            spread([one.peak_mib for one in some], 0),
            spread([one.cpu_s for one in some], 0),
            f"{ends[name]['loss']:.4f}",
            f"{ends[name]['accuracy']:.3f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def spread(values: Sequence[float], digits: int) -> str:
    """The median, and in brackets the least and the most."""
    middle, least, most = (f"{v:.{digits}f}" for v in (statistics.median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def run(given: Any) -> None:
    """Time the commands in turns and print the tables. In rayfed-kd's environment."""
    sys.path[:0] = [str(ROOT / "tests/benchmarks"), str(ROOT)]
    os.environ.update(ENVIRONMENT)
    os.chdir(HERE)  # `peer_models` is importable from here
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["RAYFED_KD_CACHE"] = str(folder / "cache")
        from end_to_end import timed
        from job_files import WORKLOADS

        for name in given.workloads:
            make, rounds = WORKLOADS[name]
            work = make(folder, given.rounds or rounds)
            work.write()
            runs = defaultdict[str, list["Timed"]](list)
            ends: dict[str, dict[str, float]] = {}
            for repetition in range(given.repetitions):
                results = folder / f"{name}-{repetition}"
                for side, command in commands(work.folder, results, name).items():
                    if side != "bare" and side.split()[0] not in given.only:
                        continue
                    runs[side].append(timed(command))
                    ends[side] = figures(side, work.folder, results)
                    one = runs[side][-1]
                    sys.stderr.write(
                        f"{name} {repetition + 1} {side}: first {one.first_s:.1f} s, then "
                        f"{median_round(one):.3f} s a round, end {one.end_s:.2f} s, {one.peak_mib:.0f} MiB\n"
                    )
                if far := disagreements(ends):
                    raise SystemExit("final models differ by more than rounding: " + "; ".join(far))
            sys.stdout.write(
                f"\n{name}: {work.clients} clients x {work.samples} samples, {work.rounds} rounds, "
            )
            sys.stdout.write(f"in turns, repetitions: {given.repetitions}\n\n")
            sys.stdout.write("\n".join(table(runs, ends)) + "\n")
            sys.stdout.flush()
    sys.stdout.write("\n" + "\n".join(f"{name}: {versions(name)}" for name in given.only) + "\n")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    first = parts.add_parser("setup", help="make the environments")
    second = parts.add_parser("run", help="measure")
    for part in (first, second):
        part.add_argument("--only", nargs="+", choices=PACKAGES, default=list(PACKAGES), metavar="NAME")
    second.add_argument("--repetitions", type=int, default=2)
    second.add_argument("--workloads", nargs="+", choices=("round", "tiny"), default=["round", "tiny"])
    second.add_argument("--rounds", type=int, help="fewer or more rounds; at least 3")
    given = parser.parse_args()
    if given.part == "setup":
        setup(given.only)
        return
    if given.rounds is not None and given.rounds < 3:
        parser.error("--rounds: expected at least 3; the first and the last round are not counted")
    for name in {*given.only, "rayfed-kd"}:
        if not Path(python_of(name)).exists():
            parser.error(f"no environment {name}: run `{Path(sys.argv[0])} setup` first")
    if Path(sys.prefix) != ENVIRONMENTS / "rayfed-kd":
        python = python_of("rayfed-kd")
        os.execv(python, [python, str(HERE / "peers.py"), *sys.argv[1:]])
    run(given)


if __name__ == "__main__":
    main()
