"""`local.compile`: clients' whole batches through torch.compile; the same bits on every placement."""

from contextlib import nullcontext

import pytest
import torch
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe
from torch import nn

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.engines import InProcess
from rayfed_kd.experiment.header import describe_run
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models import flat_module
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.mlp import mlp
from rayfed_kd.protocol import ClientContext
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.recipe.seeds import global_stream
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

SCORES = {"samples": False, "metrics": ["negative_log_likelihood"]}
BASE = {**FOUR_CLIENTS, "rounds": 2, "sampling": {"fraction": 1.0}, "evaluation": SCORES}
COMPILE = "local.compile=true"
BATCH = 8


@pytest.fixture
def passes(monkeypatch):
    """What would be compiled, [(function, size of the batch)]; it runs eagerly."""
    seen = []

    def noted(function, device):
        def run(*inputs):
            seen.append((function, len(inputs[-1])))
            return function(*inputs)

        return run

    monkeypatch.setattr(flat_module, "compiled", noted)
    return seen


def test_only_training_passes_on_whole_batches_are_compiled(passes):
    flat = FlatModule(mlp((4,), 3)).train()
    whole, part = torch.zeros(BATCH, 4), torch.zeros(BATCH - 1, 4)
    flat(whole)
    assert passes == []  # a module is compiled where its borrower asks for it
    flat.compiled_batch = BATCH
    flat(part)
    flat.predict(whole)
    with torch.no_grad():
        flat(whole)
    torch.func.vmap(flat)(torch.zeros(BATCH, 1, 4))
    flat.freeze()
    flat(whole)
    assert passes == []
    flat.train()
    flat.classify(flat.features(whole))
    flat(whole)
    assert [size for _, size in passes] == [BATCH] * 3
    assert passes[-1][0] is flat.module


def test_a_module_that_is_lent_again_is_no_longer_compiled():
    setting = prepare(small_recipe(BASE, "fedavg")).setting
    pool = setting.module_pool()
    start = pool.initial_vector("model")
    first = pool.lend("model", start, compiled_batch=BATCH)
    assert first.compiled_batch == BATCH
    pool.take_back()
    again = pool.lend("model", start)
    assert (again is first, again.compiled_batch) == (True, None)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedkf"])
def test_clients_students_are_compiled_and_nothing_else(method, passes, monkeypatch):
    frozen = []
    original = ClientContext.frozen_model

    def noted(*given):
        model = original(*given)
        frozen.append(model.compiled_batch)
        return model

    monkeypatch.setattr(ClientContext, "frozen_model", noted)
    recipe = small_recipe(BASE, method)
    assert_same_run(run_in_process(recipe, COMPILE), run_in_process(recipe))
    assert {size for _, size in passes} == {FOUR_CLIENTS["local"]["batch_size"]}
    assert set(frozen) <= {None}


def test_an_evaluation_of_a_clients_own_model_compiles_nothing(passes):
    run_in_process(small_recipe(BASE, "fedper"), COMPILE, "local.epochs=0")
    assert passes == []


@pytest.fixture
def without_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")


def test_a_machine_without_a_compiler_is_refused_before_the_first_round(without_compiler):
    prepared = prepare(small_recipe(BASE, "fedavg"), [COMPILE])
    for begin in (lambda: Host(prepared.setting), lambda: InProcess().layout(prepared)):
        with pytest.raises(RecipeError, match=r"local\.compile: torch\.compile needs a compiler"):
            begin()


def test_without_the_key_no_compiler_is_looked_for(without_compiler):
    prepared = prepare(small_recipe(BASE, "fedavg"))
    Host(prepared.setting)
    assert InProcess().layout(prepared) == "server and clients in this process"


def test_the_header_says_what_is_compiled():
    facts = describe_run(prepare(small_recipe(BASE, "fedavg"), [COMPILE]), "local", "here")
    assert facts["compile"].startswith("clients' training on batches of 32; each host compiles")
    assert "compile" not in describe_run(prepare(small_recipe(BASE, "fedavg")), "local", "here")


# From here on it is really compiled.


def _trained(module, compiled_batch):
    """The vector after a few steps: three whole batches and a partial one a round."""
    torch.manual_seed(3)
    images, labels = torch.randn(4 * BATCH - 3, 1, 12, 12), torch.randint(0, 3, (4 * BATCH - 3,))
    flat = FlatModule(module).train()
    flat.compiled_batch = compiled_batch
    optimizer = Optimizer(OptimizerRecipe(name="sgd", lr=0.05, momentum=0.5), flat)
    with global_stream(1, "test", device="cpu"):
        for some, their in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            optimizer.minimise(cross_entropy(flat(some), their))
    return flat.vector()


def _small_network(dropout):
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * 36, 3),
    )


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_compiled_steps_are_eager_ones_up_to_rounding_and_the_same_twice(dropout):
    """With dropout, too: they draw what eager steps draw. Running statistics and counters are included."""
    eager = _trained(_small_network(dropout), None)
    one, other = (_trained(_small_network(dropout), BATCH) for _ in range(2))
    assert one.equal(other)
    torch.testing.assert_close(one, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_compiled_runs_have_the_same_bits_on_every_placement_and_twice(hosts):
    recipe = small_recipe(BASE, "fedkf")
    expected, eager = run_in_process(recipe, COMPILE), run_in_process(recipe)
    assert_same_run(run_in_process(recipe, COMPILE), expected)
    assert_same_run(hosts.run(recipe, COMPILE, "placement.clients_per_actor=2"), expected)
    for name, vector in expected.models.items():
        torch.testing.assert_close(
            torch.as_tensor(vector), torch.as_tensor(eager.models[name]), rtol=1e-3, atol=1e-5
        )
    one, other = (
        torch.cat([torch.as_tensor(v) for v in outcome.models.values()]) for outcome in (expected, eager)
    )
    assert not one.equal(other)


@pytest.mark.slow
def test_what_batchnorm_is_told_for_a_while_holds_in_compiled_passes():
    eager, fast = (FlatModule(_small_network(0.0)).train() for _ in range(2))
    fast.compiled_batch = BATCH
    ways = (
        FlatModule.keeping_statistics,
        FlatModule.using_running_statistics,
        FlatModule.using_batch_statistics,
    )
    for index, way in enumerate((nullcontext, ways[0], nullcontext, ways[1], ways[2], ways[0], nullcontext)):
        torch.manual_seed(index)
        images = torch.randn(BATCH, 1, 12, 12)
        for flat in (eager, fast):
            flat.zero_gradients()
            with way(flat):
                flat(images).square().sum().backward()
        torch.testing.assert_close(fast.gradients, eager.gradients, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(fast.vector(), eager.vector(), rtol=1e-5, atol=1e-6)
