r"""What checkpoints cost: processor and real seconds and bytes a round, with one after every round.

    python tests/benchmarks/checkpoints.py [--rounds 12]
    python tests/benchmarks/checkpoints.py --clients 1000000 --rounds 20

FedAvg, FedAvg under FedBuff and FedKF on made images of MNIST's size, 20 clients, 4 at work, in this process.
With `--clients`: that many registered clients with five samples of 1x8x8 pixels each, 100 a round, an MLP;
`--seen` of them have a state before the first round, which `--seen 100000` makes up.
A round and its checkpoint are timed apart, as one follows the other, in the server's thread. The run is
recorded as a user's is, and what a checkpoint brings to disk of the tables counts. The first checkpoint of a
process writes everything, so it stands in the last column and not in the others, which are means. Bytes: of
all files of checkpoints.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch

from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.sections.safety import CheckpointRecipe
from rayfed_kd.results.recorder import RunRecorder

RECIPE: dict[str, Any] = {
    "model": {"name": "lenet5"},
    "data": {"name": "synthetic", "samples": 6000, "classes": 10, "shape": [1, 28, 28]},
    "partition": {"name": "iid", "clients": 20},
    "local": {"epochs": 1, "batch_size": 64},
    "sampling": {"count": 4},
    "evaluation": {"every": 1000, "samples": False},
    "clock": {"name": "lognormal"},
}
CASES: dict[str, dict[str, Any]] = {
    "FedAvg, sync": {"method": {"name": "fedavg"}},
    "FedAvg, fedbuff": {"method": {"name": "fedavg"}, "schedule": {"name": "fedbuff", "buffer": 4}},
    "FedKF, sync (generator width 32)": {"method": {"name": "fedkf", "generator": {"width": 32}}},
}
MANY: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": {"name": "fedavg"}},
    "FedAvg, fedasync": {"method": {"name": "fedavg"}, "schedule": {"name": "fedasync", "concurrency": 100}},
    "FedAvg with slots": {"method": {"name": "fedavg", "track_oca": True}},
    "FedPer": {"method": {"name": "fedper", "personal": ["F2"]}},
}
HEADER = """
| | a round, processor | checkpoint | share | a round, real | checkpoint | written | first checkpoint |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def many(clients: int) -> dict[str, Any]:
    """The recipe with that many clients."""
    return {
        **RECIPE,
        "model": {"name": "mlp", "hidden": 32},
        "data": {"name": "synthetic", "samples": 5 * clients, "classes": 10, "shape": [1, 8, 8]},
        "partition": {"name": "iid", "clients": clients},
        "local": {"epochs": 1, "batch_size": 5},
        "sampling": {"count": 100},
    }


def seconds() -> tuple[float, float]:
    """This thread's processor seconds, and real ones."""
    return time.thread_time(), time.perf_counter()


def sizes(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measured(recipe: dict[str, Any], rounds: int, seen: int) -> str:
    """A row of the table without its name."""
    setting = prepare({**recipe, "rounds": rounds + 1}).setting
    with TemporaryDirectory() as folder:
        recorder = RunRecorder(Path(folder), setting)
        checkpointer = Checkpointer(Path(folder), CheckpointRecipe(every=1), recorder.flush)
        keep = min(recipe["partition"]["clients"], 1000)
        simulation = Simulation(setting, LocalEngine(Host(setting, keep_states=keep)), recorder)
        server = simulation.begin().server
        times = []
        for index in range(1, rounds + 1):
            started = seconds()
            simulation.run_state.records.begin(index)
            server = simulation.round(index, server)
            between = seconds()
            if index == 1:
                see(simulation, seen)
            before = seconds()
            checkpointer.save(simulation.snapshot(index, server))
            ended = seconds()
            times.append([b - a for a, b in zip(started, between, strict=True)])
            times[-1] += [b - a for a, b in zip(before, ended, strict=True)]
        size = sizes(Path(folder) / "checkpoints")
        recorder.close("finished")
    first, later = times[0], times[1:]
    cpu, wall, save_cpu, save_wall = (statistics.mean(column) for column in zip(*later, strict=True))
    return (
        f"{cpu:.4f} s | {save_cpu:.4f} s | {save_cpu / cpu:.1%} | {wall:.4f} s | {save_wall:.4f} s | "
        f"{size / 2**20:.1f} MiB | {first[2]:.3f} s |"
    )


def see(simulation: Simulation, count: int) -> None:
    """Give clients that were not sampled yet a copy of a sampled one's record."""
    records = simulation.run_state.records
    known = dict(records)
    pattern = next(iter(known.values()))
    for client in range(count):
        if client not in known:
            state = None if pattern.state is None else Held(dict(pattern.state.resolve()))
            records.put(client, replace(pattern, state=state))


def main(arguments: Sequence[str]) -> None:
    """All cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--clients", type=int, help="registered clients; default: the small cases")
    parser.add_argument("--seen", type=int, default=0)
    parser.add_argument("--cases", nargs="+", help="default: all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = CASES if options.clients is None else MANY
    base = RECIPE if options.clients is None else many(options.clients)
    click.echo(HEADER, nl=False)
    for name in options.cases or cases:
        click.echo(f"| {name} | {measured({**base, **cases[name]}, options.rounds, options.seen)}")


if __name__ == "__main__":
    main(sys.argv[1:])
