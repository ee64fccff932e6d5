"""Runs without files: the rounds alone, without pictures, TensorBoard and tables on disk.

They take a tenth of the time of `rayfed_kd.run`, which is for tests of what a run leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import torch

from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Reply, shared_vectors
from rayfed_kd.protocol.state_unpacking import unpack
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.summary import summarise


class Silent:
    """Writes nothing down."""

    def record(self, record):
        pass


class Rounds(list):
    """The records of all rounds."""

    def record(self, record):
        self.append(record)


@dataclass
class Outcome:
    """What a run left, in the form of `rayfed_kd.Result`: also the recorder of a simulation."""

    rows: dict = field(default_factory=dict)
    models: dict = field(default_factory=dict)
    told: list = field(default_factory=list)
    after_round: Callable = lambda record: None
    clients: int = 0

    def record(self, record):
        self.after_round(record)
        for name, rows in record.tables.items():
            self.rows.setdefault(name, []).extend(rows)

    @property
    def tables(self):
        """As a run's folder has them."""
        return {
            name: pa.Table.from_pylist(self.rows.get(name, []), schema) for name, schema in SCHEMAS.items()
        }

    @property
    def summary(self):
        return summarise(self.tables, "finished", self.clients)


def run_setting(setting, engine, after_round=lambda record: None):
    """A setting's rounds on an engine, with the threads that its recipe gives."""
    outcome = Outcome(after_round=after_round, clients=setting.recipe.partition.clients)
    simulation = Simulation(setting, engine, outcome)
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.recipe.placement.threads)
    try:
        simulation.run()
    finally:
        torch.set_num_threads(threads)
    models = shared_vectors(simulation.models)
    outcome.models = {name: vector.numpy() for name, vector in models.items()}
    return outcome


def run_in_process(recipe, *overrides):
    """The run without files: on one host of this process that keeps all clients' states."""
    setting = prepare(recipe, overrides).setting
    return run_setting(setting, LocalEngine(Host(setting, keep_states=setting.recipe.partition.clients)))


def simulation_of(recipe, *overrides, method=None):
    """A run in this process that has not begun; `servers` gets the server's state after each round.

    Args:
        method: runs in the place of the recipe's.
    """
    torch.set_num_threads(1)
    setting = prepare(recipe, overrides).setting
    if method is not None:
        setting = replace(setting, method=method)
    engine = LocalEngine(Host(setting, keep_states=setting.recipe.partition.clients))
    simulation = Simulation(setting, engine, Rounds())
    simulation.servers, one_round = [], simulation.round
    simulation.round = lambda *words: simulation.servers.append(one_round(*words)) or simulation.servers[-1]
    return simulation


def ended(recipe, *overrides):
    """The same after its last round."""
    simulation = simulation_of(recipe, *overrides)
    simulation.run()
    return simulation


def batches_counted(simulation):
    """Of each step that the simulation will ask for: over how many batches it logs `ce`."""
    counted, submit = [], simulation.engine.submit

    def watched(calls, summed_sizes=()):
        futures = submit(calls, summed_sizes)
        counted.extend(future.result().facts.logged.get("ce", (0, 0))[1] for future in futures)
        return futures

    simulation.engine.submit = watched
    return counted


def states_of(simulation):
    """client -> its state, of those that took part and have one."""
    records = sorted(simulation.run_state.records.items())
    return {client: unpack(record.state.resolve()["state"]) for client, record in records if record.state}


def reply_of(client, samples=None, **parts):
    """A reply as the server has it; parts are arrays or values, float32."""
    arrays = {name: np.asarray(values, dtype=np.float32) for name, values in parts.items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    made = Reply(**tensors, **({} if samples is None else {"samples": samples}))
    made.client, made.handle = client, Held(arrays)
    return made
