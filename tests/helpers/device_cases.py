"""Small recipes of every method and of what else a run may have, and two rounds of one on any device."""

from __future__ import annotations

from typing import Any

from runs import Outcome
from small_recipes import FOUR_CLIENTS, small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cluster.engine.host import make_host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import shared_vectors
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.protocol.state_unpacking import unpack
from rayfed_kd.setting.setting import Setting

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
    "streamed": {"placement": {"gpu_data": "batches"}},
    "scores": {"evaluation": {"metrics": ["macro_f1"]}},
}


def cases() -> dict[str, dict[str, Any]]:
    """Name -> recipe: every method, and FedAvg with what else a recipe may have."""
    methods = {name: small_recipe(FOUR_CLIENTS, name) | EVERY_CLIENT for name in METHODS}
    others = {name: methods["fedavg"] | changes for name, changes in CHANGES.items()}
    streamed = {"streamed public": methods["fedgems"] | CHANGES["streamed"]}
    return methods | others | streamed


def run(recipe: dict[str, Any], device: str) -> Outcome:
    """Two rounds; the server's state is packed and unpacked between them, as by a checkpoint."""
    setting: Setting = prepare(recipe).setting
    outcome = Outcome(clients=setting.recipe.partition.clients)
    engine = LocalEngine(make_host(setting, device=device, keep_states=setting.recipe.partition.clients))
    simulation = Simulation(setting, engine, outcome, device)
    start = simulation.begin()
    server = start.server
    for index in range(1, setting.recipe.rounds + 1):
        simulation.run_state.records.begin(index)
        packed = pack(simulation.round(index, server))
        server = unpack(packed, device, keep_cpu=True, publish=engine.publish)
    simulation.writer.wait()
    outcome.models = {name: vector.cpu() for name, vector in shared_vectors(simulation.models).items()}
    return outcome
