r"""What the server fetches, holds and computes against the cohort's size, with and without sums at the hosts.

    python tests/benchmarks/cohort.py                               # cohorts of 10 and 100, 2.2 M and 11 M
    python tests/benchmarks/cohort.py --cohorts 10 100 1000 --hidden 2800

FedAvg on Ray, two client actors, an MLP on made-up images of MNIST's size; a client does one step on eight
samples, so that what is measured is what a reply costs. All clients take part. `local.sum_replies` makes
`--sums` sums a round, however large the cohort. Printed, never asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import psutil

import rayfed_kd
from rayfed_kd.cluster.ray_backend.handles import RayHandle
from rayfed_kd.protocol import Array

HEADER = """
| parameters | cohort | sum_replies | a round | server's part | share | fetched a round | server | all, PSS |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
SAMPLES, HOSTS, MIB = 8, 2, 2**20


def recipe(hidden: int, cohort: int, sums: int | str, rounds: int) -> dict[str, Any]:
    return {
        "method": {"name": "fedavg"},
        "model": {"name": "mlp", "hidden": hidden},
        "data": {"name": "synthetic", "samples": SAMPLES * cohort, "classes": 10, "shape": [1, 28, 28]},
        "partition": {"name": "iid", "clients": cohort},
        "local": {"epochs": 1, "batch_size": SAMPLES, "sum_replies": sums},
        "rounds": rounds,
        "sampling": {"count": cohort},
        "evaluation": {"every": rounds, "samples": False, "clients": 1},
        "checkpoint": {"every": None},
        "placement": {"clients_per_actor": -(-cohort // HOSTS)},
    }


class Watch:
    """Most memory while a run goes on, and what its server fetched, in MiB. The server is this process."""

    def __init__(self) -> None:
        self.fetched = self.server = self.everything = 0.0
        self._ended = threading.Event()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at all processes twice a second, and count what handles in Ray's store give."""
        resolve = RayHandle.resolve

        def counted(handle: RayHandle) -> Mapping[str, Array]:
            arrays = resolve(handle)
            self.fetched += sum(one.nbytes for one in arrays.values()) / MIB
            return arrays

        thread = threading.Thread(target=self._look)
        thread.start()
        RayHandle.resolve = counted  # type: ignore[method-assign]
        try:
            yield
        finally:
            RayHandle.resolve = resolve  # type: ignore[method-assign]
            self._ended.set()
            thread.join()

    def _look(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(0.5):
            self.server = max(self.server, me.memory_full_info().uss / MIB)
            total = 0.0
            for one in (me, *me.children(recursive=True)):
                try:
                    total += one.memory_full_info().pss / MIB
                except psutil.Error:  # it has just ended
                    continue
            self.everything = max(self.everything, total)


def measure(hidden: int, cohort: int, sums: int | str, rounds: int) -> None:
    watch, asked = Watch(), recipe(hidden, cohort, sums, rounds)
    with TemporaryDirectory() as folder, watch.looking():
        result = rayfed_kd.run(asked, [f"results.folder={folder}/run"])
    table = result.tables["rounds"]
    walls, server_s = table["wall_s"].to_pylist(), table["server_s"].to_pylist()
    # The first round starts hosts, the last is evaluated.
    seconds = statistics.median(after - before for before, after in pairwise(walls[:-1]))
    own = statistics.median(server_s[1:-1])
    parameters = result.models["global"].size
    sys.stdout.write(
        f"| {parameters:,} | {cohort:,} | {sums} | {seconds:.2f} s | {own:.2f} s | "
        f"{100 * own / seconds:.0f} % | {watch.fetched / rounds:.0f} MiB | {watch.server:.0f} MiB | "
        f"{watch.everything:.0f} MiB |\n"
    )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--hidden", type=int, nargs="+", default=[2_800, 14_000], help="795 parameters each")
    parser.add_argument("--sums", type=int, default=4, help="sums a round")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    sys.stdout.write(HEADER)
    for hidden in options.hidden:
        for cohort in options.cohorts:
            for sums in ("off", max(2, -(-cohort // options.sums))):
                measure(hidden, cohort, sums, options.rounds)


if __name__ == "__main__":
    main()
