"""What a network costs a round: three Ray nodes on this machine, joined by shaped links. Needs root, Linux.

    python tests/benchmarks/cluster_floor.py                       # unshaped, 1 Gbit/s, 100 Mbit/s
    python tests/benchmarks/cluster_floor.py --rounds 12 --links unshaped 100mbit --sizes 2.2

A head and two workers are network namespaces; veth pairs join them to a bridge in a fourth, and `tc` with a
token bucket shapes both directions of each pair. `rayfed-kd run --address` runs on the head, with the server
there, and the two client hosts either there (`head`), or one on each worker (`spread`), where FedAvg runs
once more with `local.sum_replies` of half of the clients (`sums`). The runs take turns. The network is
shaped; the cores are shared by all nodes, so that `spread` cannot train faster here than `head`: what it
takes longer is what a network costs. All that is started lives in the namespaces, and is ended by its
process id, also after a failure.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
from shaped_cluster import MIB, NODES, Cluster, Network

CLIENTS, SAMPLES, FEATURES, CLASSES = 8, 100, 64, 10
PLACES = ("head", "spread", "sums")


@dataclass
class Seen:
    """One run.

    Attributes:
        round_s: median seconds of a round, without the first.
        waited_s: of these the server's waiting for clients' replies, median.
        crossed: veth -> bytes a round (out of its node, into it).
        counted: bytes a round that the run's own table counts (up, down).
    """

    round_s: float
    waited_s: float
    crossed: dict[str, tuple[float, float]]
    counted: tuple[float, float]


def recipe(work: str, place: str, rounds: int, folder: Path) -> dict[str, Any]:
    """A run: FedAvg of `work` million parameters, or `fedgems`.

    Args:
        work: millions of parameters, or `fedgems`.
        place: one of PLACES.
        rounds: how many.
        folder: of the run.
    """
    hidden = 1000
    more: dict[str, Any] = {"method": {"name": "fedavg"}}
    public = {}
    if work == "fedgems":
        more = {"method": {"name": "fedgems", "server": {"name": "mlp", "hidden": 4000}}}
        public = {"public": {"fraction": 0.5, "labels": True}}
    else:
        # Of the perceptron's weights: FEATURES and CLASSES for each hidden unit, and its bias.
        hidden = round(float(work) * 1e6 / (FEATURES + CLASSES + 1))
    twice = 2 if public else 1  # clients keep SAMPLES each
    return {
        **more,
        "model": {"name": "mlp", "hidden": hidden},
        "data": {
            "name": "synthetic",
            "samples": twice * CLIENTS * SAMPLES,
            "test_samples": 10,
            "shape": [FEATURES],
        },
        "partition": {"name": "iid", "clients": CLIENTS, "test": "official", **public},
        "local": {
            "epochs": 1,
            "batch_size": 50,
            "optimizer": {"name": "sgd", "lr": 0.01},
            "sum_replies": CLIENTS // 2 if place == "sums" else "off",
        },
        "rounds": rounds,
        "sampling": {"count": CLIENTS},
        "evaluation": {"every": rounds, "samples": False},
        "checkpoint": {"every": rounds},
        "placement": {
            "clients_per_actor": CLIENTS // 2,
            "client": {"label_selector": {"role": "head" if place == "head" else "worker"}},
            "server": {"label_selector": {"role": "head"}},
        },
        "results": {"folder": str(folder)},
    }


def measure(cluster: Cluster, network: Network, told: dict[str, Any]) -> Seen:
    """Run a recipe on the head, and look at the links whenever a round has ended.

    Raises: RuntimeError with the run's own words if it fails.
    """
    folder = Path(told["results"]["folder"])
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(told))
    words = [sys.executable, "-m", "rayfed_kd", "run", str(file), "--address", cluster.address]
    counters, printed = [], []
    log = folder.with_suffix(".log")
    with cluster.start("head", words, log) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if line.startswith("round "):
                counters.append(network.counters())
    if process.returncode or len(counters) < told["rounds"]:
        raise RuntimeError("the run failed:\n" + "".join(printed)[-2000:] + log.read_text()[-2000:])
    return seen(counters, _rows(folder))


def _rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(folder / "tables/rounds").to_pylist()
    return sorted(rows, key=lambda row: int(row["round"]))


def seen(counters: Sequence[dict[str, tuple[int, int]]], rows: Sequence[dict[str, Any]]) -> Seen:
    """Figures of a run.

    Args:
        counters: of the links, after each round.
        rows: of the table `rounds`. The last round counts for nothing: the model is evaluated in it.
    """
    # The line of a round may come while the next one is under way: over many rounds that evens out.
    between = len(counters) - 2
    crossed = {
        node: (
            (counters[-2][node][0] - counters[0][node][0]) / between,
            (counters[-2][node][1] - counters[0][node][1]) / between,
        )
        for node in counters[0]
    }
    middle = rows[1:-1]
    seconds = [b["wall_s"] - a["wall_s"] for a, b in zip(rows[:-2], middle, strict=True)]
    waited = [row["client_s"] for row in middle]
    counted = (
        statistics.mean(row["bytes_up"] for row in middle),
        statistics.mean(row["bytes_down"] for row in middle),
    )
    return Seen(statistics.median(seconds), statistics.median(waited), crossed, counted)


def table(runs: dict[tuple[str, str, str], list[Seen]]) -> list[str]:
    """Lines of Markdown, a row for each (workload, place, link); medians over repetitions."""
    columns = ("model", "hosts", "link", "a round s", "over unshaped", "server waits s")
    columns += (*(f"{node} out / in MiB" for node in NODES), "counted up / down MiB")
    lines = [f"| {' | '.join(columns)} |", "| --- | --- | --- |" + " ---: |" * (len(columns) - 3)]
    for (work, place, link), some in runs.items():
        seconds = median(some)
        first = runs.get((work, place, "unshaped"))
        name = "FedGEMS" if work == "fedgems" else f"FedAvg, {work} M"
        cells = [name, place, link, f"{seconds:.2f}"]
        cells.append("" if first is None else f"{seconds / median(first):.2f}")
        cells.append(f"{statistics.median(one.waited_s for one in some):.2f}")
        cells += [
            _both([one.crossed[node][0] for one in some], [one.crossed[node][1] for one in some])
            for node in NODES
        ]
        cells.append(_both([one.counted[0] for one in some], [one.counted[1] for one in some]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _both(out: list[float], into: list[float]) -> str:
    return f"{statistics.median(out) / MIB:.2f} / {statistics.median(into) / MIB:.2f}"


def median(some: Sequence[Seen]) -> float:
    """Seconds of a round over repetitions."""
    return statistics.median(one.round_s for one in some)


def what_pays(runs: dict[tuple[str, str, str], list[Seen]]) -> list[str]:
    """For each workload and link from how much training a round a second node pays.

    Half of the training on a node of its own saves half of its seconds, and costs what `spread` or `sums`
    take longer than `head`.
    """
    lines = []
    for (work, place, link), some in runs.items():
        here = runs.get((work, "head", link))
        if place == "head" or here is None:
            continue
        more = median(some) - median(here)
        name = "FedGEMS" if work == "fedgems" else f"FedAvg, {work} M"
        pays = (
            f"twice the cores pay from {2 * more:.1f} s of training a round on the head's cores"
            if more > 0
            else "no cost above the noise: more cores pay at once"
        )
        lines.append(f"- {name}, {link}: {place} takes {more:+.2f} s a round; {pays}")
    return lines


def main() -> None:
    """Parse the command line, build the cluster, print the tables, and take everything away."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="of each run; at least 3")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument(
        "--links", nargs="+", default=["unshaped", "1gbit", "100mbit"], help="as tc has rates"
    )
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES), help="of client hosts")
    parser.add_argument("--sizes", nargs="+", default=["0.1", "2.2", "8.8"], help="millions of parameters")
    parser.add_argument("--without-fedgems", action="store_true")
    given = parser.parse_args()
    if given.rounds < 3:
        parser.error("--rounds: expected at least 3; the first and the last round are not counted")
    if not all(math.isfinite(float(size)) and float(size) > 0 for size in given.sizes):
        parser.error("--sizes: expected positive numbers, millions of parameters")
    if os.geteuid():
        parser.error("network namespaces need root: run it as root")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        parser.error(f"{', '.join(missing)} not found: expected the package iproute2")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    works = [*given.sizes, *([] if given.without_fedgems else ["fedgems"])]
    runs: dict[tuple[str, str, str], list[Seen]] = {
        (work, place, link): []
        for work in works
        for place in given.places
        if (work, place) != ("fedgems", "sums")  # its server needs each client's logits
        for link in given.links
    }
    temporary = Path(tempfile.mkdtemp(prefix="rkd"))
    try:
        with Network() as network:
            cluster = Cluster(network, temporary)
            for repetition in range(given.repetitions):
                for number, ((work, place, link), some) in enumerate(runs.items()):
                    network.shape(link)
                    folder = temporary / f"run-{repetition}-{number}"
                    some.append(measure(cluster, network, recipe(work, place, given.rounds, folder)))
                    sys.stderr.write(f"{work} {place} {link}: {some[-1]}\n")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sys.stdout.write("\n".join([*table(runs), "", *what_pays(runs)]) + "\n")


if __name__ == "__main__":
    main()
