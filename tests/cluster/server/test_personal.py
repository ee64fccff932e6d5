"""Evaluation of clients' own models and of shared models of other architectures."""

import numpy as np
import pytest
import torch
from runs import run_in_process, simulation_of
from safetensors.torch import load_file
from small_recipes import MADE_UP, assert_resumed_is_whole

import rayfed_kd
from rayfed_kd.cluster.engine.calls import PersonalCall
from rayfed_kd.cluster.server.evaluating.evaluation import Evaluator
from rayfed_kd.data.batches import DeviceData
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.protocol.state_unpacking import unpack

OWN = '''
import torch
from rayfed_kd.algorithms.standalone import StandAlone
from rayfed_kd.protocol import PERSONAL, Architecture, Evaluated, OneExchange


class Own(StandAlone):
    """Every client trains a model of its own, from an initial vector that it draws."""

    def architectures(self):
        return {"wide": Architecture("classifier", "mlp", {"hidden": 16})}

    def init_server(self, ctx):
        return ctx.initial_vector("wide")

    def init_client(self, ctx):
        vector = ctx.initial_vector()
        return vector + 0.1 * torch.randn(vector.shape, generator=ctx.stream("start"))

    def absorb(self, server, replies, ctx):
        return server

    def evaluated(self, server):
        return {"server": Evaluated(server, "wide"), "personal": PERSONAL}


class Missing(Own):
    personal = OneExchange.personal
'''
RECIPE = {
    **MADE_UP,
    "method": {"name": "own_models:Own"},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5},
    "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1}},
    "rounds": 4,
    "sampling": {"count": 2},
}
DECIDED = ["metrics", "clients", "messages"]


@pytest.fixture(autouse=True)
def own_models(own_module):
    own_module("own_models", OWN)


def simulated(*overrides, before=lambda simulation: None):
    """A run in this process: its simulation, and the tables of each round."""
    simulation = simulation_of(RECIPE, *overrides)
    before(simulation)
    simulation.run()
    return simulation, [record.tables for record in simulation.recorder]


def own_vector(simulation, client):
    """A client's own model, from what the server remembers of it."""
    record = simulation.run_state.records[client]
    if record.state is not None:
        return unpack(record.state.resolve()["state"], "cpu")
    from rayfed_kd.recipe.seeds import torch_stream

    initial = simulation.setting.module_pool().initial_vector("model")
    drawn = torch.randn(initial.shape, generator=torch_stream(1, "start", client, 1))
    return initial + 0.1 * drawn


def right(simulation, vector, images, labels, architecture="model"):
    module = simulation.setting.module_pool().lend(architecture, vector).freeze()
    normalised = DeviceData(simulation.setting.dataset).normalise(torch.from_numpy(np.array(images)))
    return int((module(normalised).argmax(dim=1).numpy() == np.array(labels)).sum())


def personal(rows):
    return {row["client"]: row for row in rows if row["model"] == "personal"}


def test_every_clients_model_is_held_against_its_own_test_part():
    simulation, tables = simulated("rounds=1")
    setting = simulation.setting
    assert len(simulation.run_state.records) == 2  # three clients were never dispatched
    rows = personal(tables[0]["clients"])
    assert sorted(rows) == [0, 1, 2, 3, 4]
    train = setting.dataset.train
    for client, part in enumerate(setting.partition.test):
        expected = right(simulation, own_vector(simulation, client), train.images[part], train.labels[part])
        assert (rows[client]["samples"], rows[client]["correct"]) == (len(part), expected)
        assert rows[client]["accuracy"] == expected / len(part)


def test_metrics_are_those_of_the_rows():
    _, tables = simulated("rounds=2")
    found = next(row for row in tables[1]["metrics"] if row["model"] == "personal")
    rows = list(personal(tables[1]["clients"]).values())
    accuracies = [row["accuracy"] for row in rows]
    assert found["ua"] == pytest.approx(sum(accuracies) / 5)
    assert found["wlp"] == min(accuracies)
    assert found["amp"] == pytest.approx(
        sum(row["correct"] for row in rows) / sum(row["samples"] for row in rows)
    )
    assert found["server_accuracy"] is None


def test_official_test_set_is_every_clients():
    simulation, tables = simulated("rounds=1", "partition.test=official")
    rows, test = personal(tables[0]["clients"]), simulation.setting.dataset.test
    correct = [
        right(simulation, own_vector(simulation, client), test.images, test.labels) for client in range(5)
    ]
    assert [row["samples"] for row in rows.values()] == 5 * [len(test.labels)]
    assert [row["correct"] for row in rows.values()] == correct
    found = next(row for row in tables[0]["metrics"] if row["model"] == "personal")
    assert found["server_accuracy"] == pytest.approx(sum(correct) / 5 / len(test.labels))


def test_shared_model_of_another_architecture_is_evaluated_as_such():
    simulation, tables = simulated("rounds=1")
    test = simulation.setting.dataset.test
    wide = simulation.models["server"].vector
    assert wide.numel() == 64 * 16 + 16 + 16 * 3 + 3
    row = next(row for row in tables[0]["metrics"] if row["model"] == "server")
    expected = right(simulation, wide, test.images, test.labels, "wide") / len(test.labels)
    assert row["server_accuracy"] == expected


def test_only_what_changed_is_evaluated_again_with_the_same_result():
    asked = []

    def count(simulation):
        engine, ask = simulation.engine, simulation.engine.evaluate

        def evaluate(call):
            asked.extend([call.client] if isinstance(call, PersonalCall) else [])
            return ask(call)

        engine.evaluate = evaluate

    def forget(simulation):
        count(simulation)
        simulation.evaluator.start = lambda *evaluated: new_evaluator(simulation).start(*evaluated)

    def new_evaluator(simulation):
        return Evaluator(simulation.setting, simulation.engine)

    simulation, cached = simulated(before=count)
    cohorts = [simulation.run_state.schedule.sample(range(5), 2, r) for r in (1, 2, 3, 4)]
    assert asked == [0, 1, 2, 3, 4, *(client for cohort in cohorts[1:] for client in sorted(cohort))]
    asked.clear()
    _, afresh = simulated(before=forget)
    assert asked == [0, 1, 2, 3, 4] * 4
    assert [t["clients"] for t in cached] == [t["clients"] for t in afresh]


def test_evaluation_changes_no_state():
    often, _ = simulated("evaluation.every=1")
    once, _ = simulated("evaluation.every=4")
    for client, record in often.run_state.records.items():
        assert torch.equal(own_vector(often, client), own_vector(once, client))
        assert record.version == once.run_state.records[client].version


def test_any_placement_gives_the_local_engines_rows(hosts):
    expected = run_in_process(RECIPE)
    for actors in (3, 2):
        result = hosts.run(RECIPE, f"placement.clients_per_actor={actors}")
        assert all(result.tables[name].equals(expected.tables[name]) for name in DECIDED)
        assert np.array_equal(result.models["server"], expected.models["server"])
        assert set(result.models) == {"server"}


def test_resumed_run_evaluates_the_same(tmp_path):
    assert_resumed_is_whole(RECIPE, tmp_path, 2, 4)


def test_a_clients_model_is_exported_by_its_number(tmp_path):
    folder = tmp_path / "run"
    rayfed_kd.run(RECIPE, [f"results.folder={folder}"], local=True)
    simulation, _ = simulated()
    for client in range(5):
        written = load_file(rayfed_kd.export(folder, "personal", tmp_path / "m", client)[0])
        module = simulation.setting.module_pool().lend("model", own_vector(simulation, client)).module
        assert all(torch.equal(written[name], value) for name, value in module.state_dict().items())
    with pytest.raises(
        RecipeError, match="client None: personal is each client's own model; expected a client, 0 to 4"
    ):
        rayfed_kd.export(folder, "personal", tmp_path / "m")
    with pytest.raises(RecipeError, match=r"client 5: personal is .* expected a client, 0 to 4"):
        rayfed_kd.export(folder, "personal", tmp_path / "m", 5)
    with pytest.raises(RecipeError, match="client 1: server is one model for all; expected no client"):
        rayfed_kd.export(folder, "server", tmp_path / "m", 1)
    assert len(load_file(rayfed_kd.export(folder, "server", tmp_path / "m")[0])) == 4


def test_method_with_models_of_its_clients_must_define_personal():
    with pytest.raises(RunError, match=r"Missing must define personal\(\)"):
        simulated("method.name=own_models:Missing")
