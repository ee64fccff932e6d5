"""Where a round's seconds go, for FedAvg and the five methods: phases, and what a client's step is made of.

    python tests/benchmarks/phases.py                    # one process
    python tests/benchmarks/phases.py --ray              # two hosts on Ray: what waits for what
    python tests/benchmarks/phases.py --device cuda      # the same on a GPU

Random images, a few rounds, one torch thread; medians after the first round. Printed, never asserted. Client
steps are split by torch's profiler: kernels by what they do, and the wall time that no kernel has: Python,
autograd's bookkeeping, dispatch. Under the profiler everything is slower; read its part as shares.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import rayfed_kd
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare

ROUNDS = 4
SGD = {"name": "sgd", "lr": 0.01, "momentum": 0.9}
GREY, COLOUR = [1, 28, 28], [3, 32, 32]


def recipe(method: dict[str, Any], model: str, shape: list[int], **local: Any) -> dict[str, Any]:
    """Ten clients with 300 images each; four take part in a round."""
    return {
        "method": method,
        "model": {"name": model},
        "data": {"name": "synthetic", "samples": 3000, "shape": shape, "test_samples": 2000, "signal": 0.5},
        "partition": {"name": "iid", "clients": 10, "test": "official"},
        "local": {"epochs": 2, "batch_size": 64, "optimizer": SGD, **local},
        "rounds": ROUNDS,
        "sampling": {"count": 4},
        "evaluation": {"samples": False},
    }


WORK = {
    "FedAvg, 2.2 M parameters": recipe({"name": "fedavg"}, "cnn2", COLOUR),
    "FedAvg, LeNet-5": recipe({"name": "fedavg"}, "lenet5", GREY),
    "FedKF, LeNet-5, width 32": recipe(
        {"name": "fedkf", "generator": {"name": "dafl_image", "width": 32}}, "lenet5", GREY
    ),
    "KDIA, 100 server steps": recipe(
        {"name": "kdia", "generator": {"epochs": 1, "batches": 100}}, "simple_cnn", COLOUR
    ),
    "DaFKD, LeNet-5, width 16": recipe(
        {"name": "dafkd", "generator": {"width": 16}, "distill_lr": 0.001},
        "lenet5",
        GREY,
        batch_size=32,
        optimizer={"name": "adam", "lr": 0.001},
    ),
    "FedD2S, m2": recipe({"name": "fedd2s"}, "m2", GREY),
    "FedGEMS, ResNet-11, server ResNet-20": {
        **recipe(
            {"name": "fedgems", "server": {"name": "bottleneck_resnet", "blocks": [2, 2, 2]}},
            "bottleneck_resnet",
            GREY,
        ),
        "partition": {"name": "iid", "clients": 10, "test": "official", "public": {"fraction": 0.5}},
    },
}
KINDS = {
    "convolutions, products": ("conv", "mm", "linear", "mkldnn", "gemm", "addmv"),
    "optimiser": ("fused_sgd", "fused_adam", "_foreach"),
    "moving data": (
        "copy",
        "clone",
        "index",
        "cat",
        "stack",
        "contiguous",
        "empty",
        "zero_",
        "fill_",
        "select",
    ),
}
PHASES = ("client_s", "server_s", "dispatch_s", "evaluate_s")


class Silent:
    """Nobody writes anything down."""

    def record(self, record: Any) -> None:
        """Forgets it."""

    def close(self, status: str) -> dict[str, Any]:
        """Nothing."""
        return {}


def phases(
    asked: dict[str, Any], *, local: bool, overrides: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Median seconds of a round by phase, of a recipe with overrides."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {**(overrides or {}), "results.folder": f"{folder}/run"}
        tables = rayfed_kd.run(asked, changes, local=local).tables
    rows = tables["rounds"].to_pylist()
    found = {phase: statistics.median(row[phase] for row in rows[1:]) for phase in PHASES}
    walls = [b["wall_s"] - a["wall_s"] for a, b in pairwise(rows)]
    busy: dict[int, float] = {}
    for row in tables["hosts"].to_pylist():
        if row["round"] > 1:
            busy[row["host"]] = busy.get(row["host"], 0.0) + row["busy_s"]
    hosts = sum(busy.values()) / max(1, len(busy)) / sum(walls)
    return {"round": statistics.median(walls), **found, "busy": hosts}


def shares(asked: dict[str, Any], device: str) -> dict[str, float]:
    """Shares of a round's client and server steps in one process, by kind of kernel; the rest is Python."""
    setting = prepare(asked).setting
    run = Simulation(setting, LocalEngine(Host(setting, device=device)), Silent(), device)
    state = run.round(1, run.begin().server)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    with profile(activities=activities) as seen, torch.profiler.record_function("the whole round"):
        run.round(2, state)
    found = dict.fromkeys((*KINDS, "elementwise and losses"), 0.0)
    events = seen.key_averages()
    whole = next(event.cpu_time_total for event in events if event.key == "the whole round")
    for event in events:
        if not event.key.startswith("aten::"):
            continue
        kind = next((k for k, words in KINDS.items() if any(w in event.key for w in words)), None)
        found[kind or "elementwise and losses"] += event.self_cpu_time_total / whole
    return {**found, "Python, autograd, dispatch": 1 - sum(found.values())}


def main() -> None:
    """Parses the command line and prints two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ray", action="store_true", help="two hosts on Ray instead of one process")
    parser.add_argument("--device", default="cpu", help="for the shares: cpu or cuda")
    asked = parser.parse_args()
    lines = ["| | a round | clients | server | dispatch | evaluation | hosts busy |"]
    for name, work in WORK.items():
        placed = {**work, "placement": {"clients_per_actor": 5}}
        seconds = phases(placed if asked.ray else work, local=not asked.ray)
        busy = f"{100 * seconds.pop('busy'):.0f} %"
        lines.append(
            f"| {name} | " + " | ".join(f"{value:.3f} s" for value in seconds.values()) + f" | {busy} |"
        )
    if not asked.ray:
        found = {name: shares(work, asked.device) for name, work in WORK.items()}
        lines += ["", "| | " + " | ".join(next(iter(found.values()))) + " |"]
        for name, parts in found.items():
            lines.append(f"| {name} | " + " | ".join(f"{100 * part:.0f} %" for part in parts.values()) + " |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
