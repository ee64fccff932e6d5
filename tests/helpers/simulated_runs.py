"""Runs of small recipes on a simulated cluster under faults that a seed draws, against the undisturbed run.

What is under test: the server's loop, its checkpoints, Ray's engine with its scheduling and second tries,
the packing of calls, and the hosts with the states that they keep. What is simulated: Ray, time, the disk's
fsync, and the writer's thread. A client's step is remembered by its content (step, who, when, state,
message), as steps are pure: a second run of the same recipe computes nothing that the first has computed.
"""

import hashlib
import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from small_recipes import TIMES, small_recipe
from whole_checkpoints import whole

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.recipe.timing import SCHEDULES as REGISTERED

MEMORY = Path("/dev/shm")
CLIENTS = 6
RECIPE = {
    "model": {"name": "mlp", "hidden": 4},
    "data": {"name": "synthetic", "samples": 120, "test_samples": 10, "classes": 3, "shape": [1, 8, 8]},
    "partition": {"name": "iid", "clients": CLIENTS},
    "local": {"epochs": 1, "batch_size": 10},
    "rounds": 6,
    "sampling": {"fraction": 0.5},
    "clock": {"name": "lognormal"},
    "evaluation": {"samples": False, "every": 2, "metrics": ["negative_log_likelihood"]},
    "checkpoint": {"every": 2, "keep": 2},
}
SCHEDULES = {
    "sync": {"schedule": {"name": "sync"}},
    "grouped": {"schedule": {"name": "sync"}, "local": {**RECIPE["local"], "vectorise": 2}},
    "quorum": {"schedule": {"name": "quorum", "min_fraction": 0.6, "over_selection": 0.4}},
    "deadline": {"schedule": {"name": "quorum", "min_fraction": 0.6, "deadline_s": 2.0}},
    "next_round": {"schedule": {"name": "quorum", "min_fraction": 0.6, "late": "next_round"}},
    "buffered": {"schedule": {"name": "buffered", "buffer": 2}},
    "fedbuff": {"schedule": {"name": "fedbuff", "buffer": 2, "concurrency": 4}},
    "fedasync": {"schedule": {"name": "fedasync", "max_staleness": 4}, "rounds": 12},
}
NAMED = {case["schedule"]["name"] for case in SCHEDULES.values()}
SCHEDULES |= {name: {"schedule": {"name": name}} for name in REGISTERED if name not in NAMED}
# Those with one exchange a round, which go with every schedule.
METHODS = ("fedkf", "fedavg", "moon", "qffl", "fedgkd", "feddf", "fedgen", "standalone", "pfedsd")
# Their rounds have several exchanges, so they have rounds.
IN_ROUNDS = ("dsfl", "fedmd", "dafkd", "fedgem")
ROUNDS = ("sync", "grouped", "quorum", "deadline")
# Codecs of both kinds of memory, which is client state, and of random rounding.
CODED = {
    "codec": {
        "up": {
            "weights": [
                "difference",
                {"name": "powersgd", "rank": 1, "feedback": True},
                {"name": "uniform", "bits": 6},
            ]
        },
        "down": {"weights": {"name": "uniform", "bits": 12}},
    }
}
# Every method and every schedule in few cases, then all the others.
FEW = (
    *(f"{method}:{schedule}" for method, schedule in zip(METHODS, [*SCHEDULES][::-1] * 2, strict=False)),
    "dsfl:sync",
    "fedmd:quorum",
    "dafkd:deadline",
    "fedavg:next_round:coded",
)
CASES = (
    *FEW,
    *(
        name
        for method in (*METHODS, *IN_ROUNDS)
        for schedule in (ROUNDS if method in IN_ROUNDS else SCHEDULES)
        if (name := f"{method}:{schedule}") not in FEW
    ),
    *(name for schedule in SCHEDULES if (name := f"fedavg:{schedule}:coded") not in FEW),
)


@dataclass
class Rows:
    """A recorder in memory, which outlives the server as files do."""

    by_round: dict = field(default_factory=dict)
    listeners_error: OSError | None = None

    def record(self, record):
        assert record.round not in self.by_round, f"round {record.round} was recorded twice"
        tables = {name: [_plain(row) for row in rows] for name, rows in record.tables.items()}
        tables.pop("hosts", None)  # who computed what is the engine's own
        self.by_round[record.round] = tables

    def close(self, status):
        return {"status": status}

    def go_back(self, after_round):
        assert set(range(1, after_round + 1)) <= set(self.by_round), "a checkpoint is ahead of the tables"
        self.by_round = {number: rows for number, rows in self.by_round.items() if number <= after_round}


def _plain(row):
    return {name: value for name, value in row.items() if name not in TIMES}


class Memory:
    """What steps gave, by their content.

    Args:
        method: whose steps are remembered.
    """

    def __init__(self, method):
        self._method, self._known = method, {}

    def __getattr__(self, name):
        found = getattr(self._method, name)
        return found if name in ("up", "down", "personal", "completed", "init_client") else self._step(found)

    def _step(self, step):
        def remembered(state, message, ctx):
            if ctx.group_runner is not None:
                return step(state, message, ctx)
            who = (step.__name__, ctx.client, ctx.round, ctx.participation, ctx._scope)
            content = _digest(pack((state, dict(message.parts), dict(message.metadata))))
            if (who, content) not in self._known:
                state, reply = step(state, message, ctx)
                log = (dict(ctx._log.sums), dict(ctx._log.counts), ctx.samples_drawn)
                self._known[who, content] = (state, reply, log)
            state, reply, (sums, counts, samples) = self._known[who, content]
            ctx._log.sums, ctx._log.counts, ctx.samples_drawn = dict(sums), dict(counts), samples
            return state, reply

        return remembered


class RememberingHost(Host):
    """A host whose steps are remembered; groups, which wait for one another in their steps, are not."""

    def __init__(self, setting, remembering, *rest):
        super().__init__(setting, *rest)
        self._setting = remembering

    def step(self, call):
        """Says that some clients' steps are longer than others': how busy the machine is decides nothing."""
        facts, parts, state = super().step(call)
        return replace(facts, seconds=0.001 * (1 + call.facts.client % 3)), parts, state


def _digest(packed):
    content = hashlib.blake2b(json.dumps(packed.structure).encode())
    for array in packed.arrays:
        content.update(repr((array.shape, array.dtype)).encode())
        content.update(np.ascontiguousarray(array))
    return content.digest()


class Case:
    """One recipe, and how its undisturbed run ends.

    Args:
        name: METHOD:SCHEDULE, or METHOD:SCHEDULE:coded.
    """

    def __init__(self, name):
        method, schedule, *coded = name.split(":")
        self.name = name
        recipe = small_recipe({**RECIPE, **SCHEDULES[schedule], **(CODED if coded else {})}, method)
        setting = prepare(recipe).setting
        self._memory = Memory(setting.method)
        self.settings = {False: setting, True: _durable(setting)}
        self._remembering = replace(setting, method=self._memory)
        with scratch() as folder:
            rows, checkpointer = Rows(), Checkpointer(Path(folder), setting.recipe.checkpoint)
            engine = LocalEngine(self.host(0, CLIENTS))
            Simulation(setting, engine, rows, "cpu", checkpointer).run()
            self.rows, self.end = rows.by_round, ending(Path(folder))

    def host(self, number, keep_states):
        return RememberingHost(self.settings[False], self._remembering, number, "cpu", keep_states)


def scratch():
    """A folder for a run, in memory where that can be: the fsync is simulated anyway."""
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


def _durable(setting):
    faults = setting.recipe.faults.model_copy(update={"durable": True})
    return replace(setting, recipe=setting.recipe.model_copy(update={"faults": faults}))


def ending(folder):
    """The run's whole state after its last round, but for measured seconds: structure and arrays."""
    path = max((folder / "checkpoints").glob("round-*.safetensors"))
    tree, arrays = whole(path)
    del tree["wall_s"]
    return tree, arrays


def assert_equal_end(case, rows, folder):
    """Bit for bit: every row of every round, and the last checkpoint."""
    for number, tables in case.rows.items():
        assert rows.by_round.get(number) == tables, f"the rows of round {number} differ"
    assert rows.by_round.keys() == case.rows.keys(), "rounds are missing, or too many"
    tree, arrays = ending(folder)
    wanted_tree, wanted = case.end
    assert tree == wanted_tree, "the last checkpoint's structure differs"
    assert arrays.keys() == wanted.keys()
    for name, array in wanted.items():
        assert np.array_equal(arrays[name], array, equal_nan=True), f"array {name} of the end differs"
