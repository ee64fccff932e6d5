"""Runs small recipes on the CPU and on a second device (tests/helpers/second_device.py), one JSON line each.

    python tests/helpers/second_device_runs.py                 # every method, and what else a run may have
    python tests/helpers/second_device_runs.py fedavg fedkf

A line has the case's name, and `fault`: empty if models and metrics have the CPU's bits. `copies` counts what
was copied in a run, by direction and by the place that asked for it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from runs import Outcome
from second_device import COPIES, NAME, install
from small_recipes import FOUR_CLIENTS, small_recipe

from algorithms import METHODS
from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import shared_vectors
from rayfed_kd.protocol.state_packing import pack, unpack
from rayfed_kd.setting.setting import Setting

# An ensemble of `torch.func.vmap`, which the device does not know.
BATCHED = ("fedftg",)
EVERY_CLIENT = {"rounds": 2, "sampling": {"fraction": 1.0}}
CHANGES: dict[str, dict[str, Any]] = {
    "attack": {"attack": {"name": "paf", "fraction": 0.5}},
    "buffered": {
        "schedule": {"name": "fedbuff", "concurrency": 2, "buffer": 2},
        "clock": {"name": "lognormal"},
    },
    "codecs": {
        "codec": {"up": {"weights": ["difference", {"name": "top_k", "share": 0.1, "feedback": True}]}}
    },
    "adam": {"local": {"epochs": 2, "batch_size": 16, "optimizer": {"name": "adam", "lr": 0.01}}},
    "scores": {"evaluation": {"metrics": ["macro_f1"]}},
}


def cases() -> dict[str, dict[str, Any]]:
    """Name -> recipe: every method, and FedAvg with what else a recipe may have."""
    methods = {
        name: small_recipe(FOUR_CLIENTS, name) | EVERY_CLIENT for name in METHODS if name not in BATCHED
    }
    others = {name: methods["fedavg"] | changes for name, changes in CHANGES.items()}
    return methods | others


def run(recipe: dict[str, Any], device: str) -> Outcome:
    """Two rounds; the server's state is packed and unpacked between them, as by a checkpoint."""
    setting: Setting = prepare(recipe).setting
    outcome = Outcome(clients=setting.recipe.partition.clients)
    engine = LocalEngine(Host(setting, device=device, keep_states=setting.recipe.partition.clients))
    simulation = Simulation(setting, engine, outcome, device)
    start = simulation.begin()
    server = start.server
    for index in range(1, setting.recipe.rounds + 1):
        simulation.run_state.records.begin(index)
        packed = pack(simulation.round(index, server))
        server = unpack(packed, device, keep_cpu=True, publish=engine.publish)
    simulation._settled()
    outcome.models = {name: vector.cpu() for name, vector in shared_vectors(simulation.models).items()}
    return outcome


def fault(recipe: dict[str, Any]) -> str:
    """What is wrong with a recipe on the second device; empty: nothing."""
    there = run(recipe, NAME)
    copies = list(COPIES)
    here = run(recipe, "cpu")
    COPIES[:] = copies
    for name, vector in here.models.items():
        if not torch.equal(vector, there.models[name]):
            return f"model {name} has other bits"
    tables = [outcome.tables["metrics"].drop_columns(["sim_s"]) for outcome in (here, there)]
    return "" if tables[0].equals(tables[1]) else "the table metrics has other numbers"


def main(names: list[str]) -> None:
    """Try the cases and print their lines."""
    torch.set_num_threads(1)
    install()
    for name, recipe in cases().items():
        if names and name not in names:
            continue
        COPIES.clear()
        try:
            wrong = fault(recipe)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        copies = Counter(f"{copy.to} {copy.place}" for copy in COPIES)
        sys.stdout.write(json.dumps({"name": name, "fault": wrong, "copies": copies}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
