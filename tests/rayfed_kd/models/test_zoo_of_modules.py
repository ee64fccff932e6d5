"""Modules as people bring them: FedAvg gives what plain torch gives, or one line says why not.

A report of a module that is trained wrongly adds a row.
"""

import inspect
import random
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import zoo_modules
from runs import run_in_process
from torch.nn import functional as F

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import Reply
from rayfed_kd.recipe.seeds import global_stream
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions

CLIENTS, ROUNDS, SEED, RATE = 3, 3, 5, 0.1
RECIPE = {
    "method": {"name": "fedavg"},
    "data": {"name": "digits", "fraction": 0.1},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": CLIENTS, "min_size": 17},
    "local": {"epochs": 1, "batch_size": 16, "vectorise": "off", "optimizer": {"name": "sgd", "lr": RATE}},
    "sampling": {"fraction": 1.0},
    "rounds": ROUNDS,
    "seed": SEED,
}
REFUSED = {
    "BatchNormWithoutMomentum": r"norm is a BatchNorm1d with momentum=None",
    "PlainList": r"scales\[0\] takes a gradient and is none of the module's parameters",
    "PlainListOfModules": r"layers\[0\].*takes a gradient and is none of the module's parameters",
    "Bfloat16": r"inner.weight is torch.bfloat16; models are float32 only",
    "Float64": r"inner.weight is torch.float64; models are float32 only",
    "ComplexWeight": r"turn is torch.complex64; models are float32 only",
    "lazy": r"1.weight has no shape before the first batch",
    "scripted": r"it is a scripted module",
    "on_meta": r"1.weight is on torch's meta device",
    "Auxiliary": r"gives tuple of 16 samples while it trains; expected logits \(16, 10\) alone",
    "SoftmaxedInTraining": r"gives probabilities of 16 samples while it trains; expected logits",
    "SoftmaxedInEval": r"gives probabilities of 2 samples of 1x8x8; expected logits",
    "FailsInTraining": r"cannot be trained on samples of 1x8x8: RuntimeError: not while training",
    "ReentrantCheckpoint": r"cannot be trained .* use_reentrant=True, torch.utils.checkpoint is incompatible",
    "NoGradient": r"cannot be trained on samples of 1x8x8: RuntimeError: .*does not require grad",
    "AllFrozen": r"has no parameter that takes a gradient",
    "Counter": r"training changes batches with every batch",
    "CounterOfLargeBatches": r"training changes batches with every batch",
    "DrawsForLargeBatches": r"draws from Python's or NumPy's global generator",
    "IntegerCounter": r"training changes the buffer batches, torch.int64",
    "Float64Statistics": r"training changes the buffer norm.running_mean, torch.float64",
    "HiddenMeter": r"training changes meter.total with every batch",
    "OwnGenerator": r"training changes draws with every batch",
    "NumpyDraws": r"draws from Python's or NumPy's global generator",
    "PythonDraws": r"draws from Python's or NumPy's global generator",
    "NumpyBuilt": r"mask is built with other values each time",
    "HiddenState": r"depends on state beside its parameters and buffers",
    "FirstBatchDecides": r"depends on known, scale beside its parameters and buffers",
    "Memory": r"training changes seen.* with every batch",
    "NewWeight": r"training replaces the parameter head.weight, or its memory",
    "NewParameter": r"training replaces the parameter head.bias, or its memory",
    "StepsByItself": r"replaces or removes gradients, as a hook may",
    "MadeInForward": r"head is made or removed while it computes",
    "NoneBuffer": r"mean is made or removed while it computes",
    "GrowingBuffer": r"training changes the buffer bank, torch.float32 of shape",
    "SameMemory": r"one and other are different tensors in the same memory",
    "Thaws": r"training switches requires_grad of inner.weight",
    "FrozenInTraining": r"training switches requires_grad of inner.weight",
    "ChangesItsInput": r"changes its inputs in place",
    "OwnParameters": r"its parameters\(\) leaves out inner.weight",
    "OwnForward": r"is a Classifier that computes something else than",
    "wrong_size": r"has features of 64; feature_size is 7",
    "OwnClassify": r"is a Classifier that computes something else than",
}


def builders():
    """Every module of the zoo by name."""
    return {
        name: found
        for name, found in vars(zoo_modules).items()
        if getattr(found, "__module__", "") == zoo_modules.__name__
        and (
            inspect.isfunction(found)
            or (isinstance(found, type) and "shape" in inspect.signature(found).parameters)
        )
    }


TRAINED = sorted(set(builders()) - set(REFUSED) - {"Net", "WithBuffer"})


class Batches(Averaging[None]):
    """Trains nothing, and notes what each client would train on, and where torch's generator stands."""

    options: AveragingOptions
    noted: ClassVar = {}

    def client_update(self, client, message, ctx):
        draws = torch.get_rng_state()
        batches = [(batch.images.clone(), batch.labels.clone()) for batch in ctx.epoch(0)]
        self.noted[ctx.round, ctx.client] = draws, batches
        return None, Reply(student=message["student"].clone(), samples=ctx.num_samples)


@pytest.fixture(scope="module")
def batches():
    """(round, client) -> the generator's state before its first batch, and its batches."""
    Batches.noted.clear()
    run_in_process({**RECIPE, "method": {"name": f"{__name__}:Batches"}, "model": {"name": "mlp"}})
    return dict(Batches.noted)


def plain_fedavg(module, batches):
    """FedAvg in plain torch: SGD, and averages of all that a state holds as floats, by samples."""
    whole = {k: v.clone() for k, v in tensors(module).items()}
    for round_index in range(1, ROUNDS + 1):
        found, counts = [], []
        for client in range(CLIENTS):
            draws, own = batches[round_index, client]
            put(module, whole)
            module.train()
            optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=RATE)
            torch.set_rng_state(draws)
            for images, labels in own:
                optimizer.zero_grad()
                F.cross_entropy(module(images), labels).backward()
                optimizer.step()
            found.append({k: v.clone() for k, v in tensors(module).items()})
            counts.append(sum(len(labels) for _, labels in own))
        whole = {
            name: sum(n * one[name].double() for n, one in zip(counts, found, strict=True))
            .div(sum(counts))
            .float()
            for name in whole
            if whole[name].dtype == torch.float32
        }
        assert all(
            torch.equal(one[name], found[0][name])
            for one in found
            for name in set(one) - set(whole)
            if "num_batches" not in name
        )
    return whole


def tensors(module):
    return {k: v.detach() for k, v in [*module.named_parameters(), *module.named_buffers()]}


def put(module, values):
    with torch.no_grad():
        for name, tensor in tensors(module).items():
            if name in values:
                tensor.copy_(values[name])


def recipe(name, **sections):
    return {**RECIPE, "model": {"name": f"zoo_modules:{name}"}, **sections}


@pytest.mark.parametrize("name", TRAINED)
def test_fedavg_of_the_module_is_what_plain_torch_gives(name, batches):
    with global_stream(SEED, "initial", "model"):
        plain = builders()[name]((1, 8, 8), 10)
    expected = plain_fedavg(plain, batches)
    asked = recipe(name)
    pool = prepare(asked).setting.module_pool()
    vector = torch.from_numpy(run_in_process(asked).models["global"])
    found = tensors(pool.lend("model", vector).module)
    assert set(expected) == {k for k, v in found.items() if v.dtype == torch.float32}
    for tensor, value in expected.items():
        assert torch.allclose(found[tensor], value, rtol=0, atol=1e-6), tensor  # minus infinity, too


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_an_actor_for_each_client_and_a_resumed_run_give_the_bits_of_one_process(
    name, hosts, monkeypatch, tmp_path
):
    """Where a module may train in a group, it does; others train one by one."""
    monkeypatch.chdir(Path(zoo_modules.__file__).parent)  # from where hosts import the modules
    asked = recipe(name, checkpoint={"every": 1})
    asked["local"] = {**asked["local"], "vectorise": 2}
    whole = rayfed_kd.run(asked, [f"results.folder={tmp_path}/whole"], local=True)
    on_ray = hosts.run(asked, "placement.clients_per_actor=1")
    assert np.array_equal(on_ray.models["global"], whole.models["global"])
    rayfed_kd.run(asked, [f"results.folder={tmp_path}/half", "rounds=1"], local=True)
    resumed = rayfed_kd.resume(tmp_path / "half", [f"rounds={ROUNDS}"], local=True)
    assert np.array_equal(resumed.models["global"], whole.models["global"])


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_cannot_be_had_is_one_line_before_the_first_round(name):
    with pytest.raises(RecipeError, match=REFUSED[name]) as told:
        prepare(recipe(name))
    assert told.value.path == "model.name"
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["ScaledInTraining", "NormedHead", "HookedHead", "KeywordHead"])
def test_a_last_layer_that_gives_something_else_by_itself_gives_no_features(name):
    """MOON trained the layer's own output in place of the scaled one, and on a norm of two steps."""
    with pytest.raises(RecipeError, match=rf"a {name} has no features: its output is not that of"):
        prepare(recipe(name, method={"name": "moon"}))


def test_what_another_thread_draws_during_the_trial_is_not_the_modules(monkeypatch):
    """Ray's thread does while it starts, and a run was refused."""
    drawn = []

    def between(self, hidden):
        drawn.append(1 if drawn else random.random())
        return hidden

    monkeypatch.setattr(zoo_modules.PythonDraws, "between", between)
    prepare(recipe("PythonDraws"))
    assert len(drawn) > 1


@pytest.mark.parametrize(("decay", "told"), [(0.0, False), (0.01, True)])
def test_what_weight_decay_alone_moves_is_told(decay, told):
    local = {**RECIPE["local"], "optimizer": {"name": "sgd", "lr": RATE, "weight_decay": decay}}
    notes = prepare(recipe("Unused", local=local)).setting.notes
    assert any(note.startswith("no gradient reaches spare.weight, spare.bias,") for note in notes) is told
