"""Clients with architectures of their own: who has which, where it holds, and what is refused."""

import numpy as np
import pytest
import torch
from contexts import client_context
from runs import run_in_process
from safetensors.torch import load_file
from small_recipes import MADE_UP

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts
from rayfed_kd.recipe.loading import load_recipe

OWN = '''
import torch
from rayfed_kd.algorithms.standalone import StandAlone
from rayfed_kd.protocol import PERSONAL, Reply


class Own(StandAlone):
    """Every client trains a model of its own architecture."""

    up = {"size": "counts"}

    def init_server(self, ctx):
        return ctx.initial_vector()

    def init_client(self, ctx):
        return ctx.own_initial_vector()

    def client_update(self, client, message, ctx):
        vector, _ = super().client_update(client, message, ctx)
        return vector, Reply(size=torch.tensor(float(len(vector))))

    def absorb(self, server, replies, ctx):
        for reply in replies:
            ctx.log(**{f"size_{reply.client}": reply["size"]})
        return server

    def evaluated(self, server):
        return {"server": server, "personal": PERSONAL}
'''
RECIPE = {
    **MADE_UP,
    "method": {"name": "own_architectures:Own"},
    "client_models": {"models": [{"name": "mlp", "hidden": 4}, {"name": "mlp", "hidden": 8}]},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5},
    "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1}},
}


def size(hidden):
    """64 inputs and 3 classes."""
    return 64 * hidden + hidden + 3 * hidden + 3


@pytest.fixture(autouse=True)
def own_method(own_module):
    own_module("own_architectures", OWN)


def context(setting, client):
    return client_context(setting, DispatchFacts(client, 1, 1))


def run(folder, *overrides, local=True):
    return rayfed_kd.run(RECIPE, [f"results.folder={folder}", *overrides], local=local)


def sizes(result):
    losses = dict(result.tables["rounds"].to_pylist()[-1]["logged"])
    return [losses[f"size_{client}"] for client in range(5)]


def test_models_are_dealt_in_turn_or_as_listed(tmp_path):
    assert sizes(run(tmp_path / "a")) == [size(4), size(8), size(4), size(8), size(4)]
    listed = run(tmp_path / "b", "client_models.assign=[1, 1, 0, 0, 1]")
    assert sizes(listed) == [size(8), size(8), size(4), size(4), size(8)]


def test_everybody_has_the_recipes_model_without_a_list(tmp_path):
    assert sizes(run(tmp_path / "a", "client_models=null")) == [size(8)] * 5


def test_servers_model_is_the_recipes(tmp_path):
    changed = run(tmp_path / "a", "model.hidden=16")
    assert len(changed.models["server"]) == size(16)
    assert sizes(changed)[0] == size(4)


def test_a_list_of_the_recipes_own_model_changes_no_bit(tmp_path):
    """The initial vector is a function of seed and architecture, not of where the recipe names it."""
    plain = run(tmp_path / "a", "client_models=null")
    listed = run(tmp_path / "b", "client_models={models: [{name: mlp, hidden: 8}]}")
    for name in ("metrics", "clients"):
        assert plain.tables[name].equals(listed.tables[name])


def test_equal_architectures_start_equal_and_others_do_not():
    setting = prepare(RECIPE).setting
    vectors = [context(setting, client).initial_vector() for client in range(3)]
    assert torch.equal(vectors[0], vectors[2])
    assert [len(v) for v in vectors] == [size(4), size(8), size(4)]
    assert torch.equal(vectors[1], setting.module_pool().initial_vector("model"))


def test_own_initial_vectors_are_each_clients_alone_and_the_same_on_every_host():
    setting = prepare(RECIPE).setting
    vectors = [context(setting, client).own_initial_vector() for client in (0, 2, 4)]
    assert len({v.numpy().tobytes() for v in vectors}) == 3
    assert torch.equal(context(setting, 2).own_initial_vector(), vectors[1])
    assert not torch.equal(vectors[0], context(setting, 0).initial_vector())
    spread = [float(v[: 64 * 4].std()) for v in vectors]
    assert np.allclose(spread, float(context(setting, 0).initial_vector()[: 64 * 4].std()), rtol=0.2)


def test_export_gives_a_clients_own_architecture(tmp_path):
    run(tmp_path / "a")
    paths = [rayfed_kd.export(tmp_path / "a", "personal", tmp_path / str(k), client=k) for k in (0, 1)]
    states = [load_file(path[0]) for path in paths]
    assert [sum(v.numel() for v in state.values()) for state in states] == [size(4), size(8)]
    # The recipe beside says whose they are, and of what kind; it is still a recipe.
    text = paths[1][1].read_text()
    assert text.startswith(
        "# weights: personal, client 1, round 2\n# architecture:\n#   kind: classifier\n#   name: mlp\n"
        "#   options:\n#     hidden: 8\n"
    )
    assert load_recipe(paths[1][1]).model_dump() == load_recipe(tmp_path / "a" / "config.yaml").model_dump()


def test_ray_gives_the_local_engines_bits(hosts):
    expected = run_in_process(RECIPE)
    found = hosts.run(RECIPE, "placement.clients_per_actor=1", "placement.client.num_cpus=0.1")
    assert np.array_equal(found.models["server"], expected.models["server"])
    for name in ("metrics", "clients"):
        assert found.tables[name].equals(expected.tables[name])
    assert len(set(found.tables["hosts"]["host"].to_pylist())) >= 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("method.name=fedavg", r"client_models: fedavg combines its clients' weights and needs one"),
        ("partition.clients=1", r"client_models\.models: 2 for 1 clients"),
        ("client_models.assign=[0, 1]", r"client_models\.assign: 2 entries for 5 clients"),
        ("client_models.models=[{name: mpl}]", r"client_models\.models\.0\.name.*Did you mean mlp"),
        (
            "client_models.models=[{name: mlp, hiden: 4}]",
            r"client_models\.models\.0\.hiden is no option of mlp",
        ),
    ],
)
def test_a_list_that_does_not_fit_is_refused_before_the_first_round(change, message):
    with pytest.raises(RecipeError, match=message):
        prepare(RECIPE, [change])


def test_model_that_does_not_fit_the_data_is_named_by_its_place():
    models = "client_models.models=[{name: mlp, hidden: 4}, {name: resnet8}]"
    with pytest.raises(RecipeError, match=r"client_models\.models\.1\.name: resnet8 takes images"):
        prepare(RECIPE, [models, "data.shape=[7]"])
