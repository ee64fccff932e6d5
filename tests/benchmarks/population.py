r"""Memory and seconds per round against the number of registered clients, few of them a round, on Ray.

    python tests/benchmarks/population.py                     # 100, 1,000, 10,000 clients; FedAvg, FedKF
    python tests/benchmarks/population.py --clients 1000 1000000 --methods fedavg --cohort 100 \
        --evaluated 1000 --rounds 12

Every client has five samples of 1x8x8 made-up pixels, the model is an MLP, FedKF's generator is small: what
is measured is what a client costs that takes no part. Two client actors. Printed, never asserted.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import psutil

import rayfed_kd

HEADER = """
| method | clients | ready | a round, median | last, evaluated | server MiB | host MiB | all, PSS | KiB told |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
SAMPLES, HOSTS = 5, 2
METHODS = {
    "fedavg": {"name": "fedavg"},
    "fedkf": {"name": "fedkf", "generator": {"name": "dafl_image", "width": 4, "latent": 8}},
}


def recipe(method: str, clients: int, rounds: int, cohort: int, evaluated: int | None) -> dict[str, Any]:
    return {
        "method": METHODS[method],
        "model": {"name": "mlp", "hidden": 32},
        "data": {"name": "synthetic", "samples": SAMPLES * clients, "classes": 10, "shape": [1, 8, 8]},
        "partition": {"name": "iid", "clients": clients},
        "local": {"epochs": 1, "batch_size": SAMPLES},
        "rounds": rounds,
        "sampling": {"count": cohort},
        "evaluation": {"every": rounds, "samples": False, "clients": evaluated and min(evaluated, clients)},
        "checkpoint": {"every": None},
        "placement": {"clients_per_actor": -(-clients // HOSTS)},
    }


class Watch:
    """Memory of this run's processes after each round, and what the listener received."""

    def __init__(self) -> None:
        self.received = 0
        self.rss: dict[str, list[float]] = {"host": [], "server": [], "all": []}
        self.began = time.perf_counter()
        self.prepared_s = 0.0

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.received += len(pickle.dumps(dict(event)))
        if not self.prepared_s:
            self.prepared_s = time.perf_counter() - self.began - event["wall_s"]
        me = psutil.Process()
        self.rss["server"].append(me.memory_info().rss / 2**20)  # this process is the server, too
        self.rss["all"].append(0.0)
        for one in (me, *me.children(recursive=True)):
            try:
                self.rss["all"][-1] += one.memory_full_info().pss / 2**20
                if "ClientActor" in " ".join(one.cmdline()):
                    self.rss["host"].append(one.memory_info().rss / 2**20)
            except psutil.Error:  # it has just ended
                continue


def measure(method: str, clients: int, rounds: int, cohort: int, evaluated: int | None) -> None:
    watch = Watch()
    with TemporaryDirectory() as folder:
        wanted = recipe(method, clients, rounds, cohort, evaluated)
        result = rayfed_kd.run(wanted, [f"results.folder={folder}/run"], on_event=watch)
    walls = result.tables["rounds"]["wall_s"].to_pylist()
    seconds = [after - before for before, after in pairwise(walls[:-1])]  # last: evaluated
    most = {kind: max(values, default=0.0) for kind, values in watch.rss.items()}
    sys.stdout.write(
        f"| {method} | {clients:,} | {watch.prepared_s:.1f} s | {statistics.median(seconds) * 1000:.0f} ms | "
        f"{walls[-1] - walls[-2]:.2f} s | {most['server']:.0f} | {most['host']:.0f} | {most['all']:.0f} | "
        f"{watch.received / rounds / 1024:.1f} |\n"
    )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument(
        "--evaluated", type=int, help="evaluation.clients; default: all, after the last round"
    )
    options = parser.parse_args()
    sys.stdout.write(HEADER)
    for method in options.methods:
        for clients in options.clients:
            measure(method, clients, options.rounds, options.cohort, options.evaluated)


if __name__ == "__main__":
    main()
