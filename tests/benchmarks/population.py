"""Memory and seconds per round against the number of registered clients, 20 of them a round, on Ray.

    python tests/benchmarks/population.py                     # 100, 1,000, 10,000 clients; FedAvg, FedKF
    python tests/benchmarks/population.py --clients 100000 --methods fedavg

Every client has five samples of 1x8x8 made-up pixels, the model is an MLP, FedKF's generator is small: what
is measured is what a client costs that takes no part. Two client actors. Printed, never asserted.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
from collections.abc import Mapping
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import psutil

import rayfed_kd

HEADER = """
| method | clients | a round, median | first round | server MiB | host MiB | KiB a round to the listener |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
COHORT, SAMPLES, HOSTS = 20, 5, 2
METHODS = {
    "fedavg": {"name": "fedavg"},
    "fedkf": {"name": "fedkf", "generator": {"name": "dafl_image", "width": 4, "latent": 8}},
}


def recipe(method: str, clients: int, rounds: int) -> dict[str, Any]:
    return {
        "method": METHODS[method],
        "model": {"name": "mlp", "hidden": 32},
        "data": {"name": "synthetic", "samples": SAMPLES * clients, "classes": 10, "shape": [1, 8, 8]},
        "partition": {"name": "iid", "clients": clients},
        "local": {"epochs": 1, "batch_size": SAMPLES},
        "rounds": rounds,
        "sampling": {"count": COHORT},
        "evaluation": {"every": rounds, "samples": False},
        "checkpoint": {"every": None},
        "placement": {"clients_per_actor": -(-clients // HOSTS)},
    }


class Watch:
    """Memory of this run's processes after each round, and what the listener received."""

    def __init__(self) -> None:
        self.received = 0
        self.rss: dict[str, list[float]] = {"host": [], "server": []}

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.received += len(pickle.dumps(dict(event)))
        me = psutil.Process()
        self.rss["server"].append(me.memory_info().rss / 2**20)  # this process is the server, too
        for child in me.children(recursive=True):
            if "ClientActor" in " ".join(child.cmdline()):
                self.rss["host"].append(child.memory_info().rss / 2**20)


def measure(method: str, clients: int, rounds: int) -> None:
    watch = Watch()
    with TemporaryDirectory() as folder:
        result = rayfed_kd.run(
            recipe(method, clients, rounds), [f"results.folder={folder}/run"], on_event=watch
        )
    walls = result.tables["rounds"]["wall_s"].to_pylist()
    seconds = [after - before for before, after in pairwise(walls[:-1])]  # last: evaluated
    most = {kind: max(values, default=0.0) for kind, values in watch.rss.items()}
    sys.stdout.write(
        f"| {method} | {clients:,} | {statistics.median(seconds) * 1000:.0f} ms | {walls[0]:.2f} s | "
        f"{most['server']:.0f} | {most['host']:.0f} | "
        f"{watch.received / rounds / 1024:.1f} |\n"
    )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    sys.stdout.write(HEADER)
    for method in options.methods:
        for clients in options.clients:
            measure(method, clients, options.rounds)


if __name__ == "__main__":
    main()
