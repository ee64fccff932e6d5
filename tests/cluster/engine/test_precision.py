"""`local.precision`: clients' steps in bf16 or tf32, all else in fp32; the same bits everywhere."""

from contextlib import nullcontext
from functools import wraps

import pytest
import torch
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, assert_resumed_is_whole, assert_same_run, small_recipe

from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd.algorithms.fedgkt import FedGKT
from rayfed_kd.cluster.engine import host as host_module
from rayfed_kd.cluster.engine.device import check_precision, tf32_products
from rayfed_kd.cluster.engine.evaluating import ModelEvaluation
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

# A float64 sum, whose bits tell more than accuracies.
SCORES = {"samples": False, "metrics": ["negative_log_likelihood"]}
BASE = {**FOUR_CLIENTS, "rounds": 2, "sampling": {"fraction": 1.0}, "evaluation": SCORES}
BF16 = "local.precision=bf16"
METHODS = ("fedavg", "fedkf", "fedd2s", "fedgems")


def recipe_of(method):
    return small_recipe(BASE, method)


def vectors(outcome):
    return torch.cat([torch.as_tensor(vector) for vector in outcome.models.values()])


@pytest.mark.parametrize("method", METHODS)
def test_fp32_is_what_a_recipe_without_the_key_computes(method):
    recipe = recipe_of(method)
    assert_same_run(run_in_process(recipe, "local.precision=fp32"), run_in_process(recipe))


@pytest.mark.parametrize("method", METHODS)
def test_bf16_gives_the_same_bits_on_every_placement(method, hosts):
    recipe = recipe_of(method)
    expected = run_in_process(recipe, BF16)
    assert_same_run(hosts.run(recipe, BF16, "placement.clients_per_actor=2"), expected)
    assert not expected.tables["scores"].equals(run_in_process(recipe).tables["scores"])


def test_bf16_resumed_gives_the_bits_of_the_undisturbed_run(tmp_path):
    recipe = recipe_of("fedkf")
    bf16 = {**recipe, "local": {**recipe["local"], "precision": "bf16"}}
    assert_resumed_is_whole(bf16, tmp_path, 1, 2)


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_evaluations_compute_in_fp32(method):
    """At a rate that is 0 in float32 nothing is learnt; what is left is evaluation, of own models, too."""
    recipe, idle = recipe_of(method), "local.optimizer.lr=1e-300"
    rounded, exact = (run_in_process(recipe, idle, *more) for more in ([BF16], []))
    for name in ("metrics", "scores"):
        assert rounded.tables[name].equals(exact.tables[name])


def test_first_layers_of_clients_are_evaluated_in_fp32(monkeypatch):
    lent = {"training": set(), "evaluation": set()}

    def watched(name, where, models):
        original = getattr(FedGKT, name)

        @wraps(original)
        def function(*arguments):
            lent[where] |= {model.autocast for model in models(*arguments)}
            return original(*arguments)

        monkeypatch.setattr(FedGKT, name, function)

    watched("composed", "evaluation", lambda method, parts, numbers: parts)
    watched(
        "train", "training", lambda *arguments: [arguments[3].frozen_model(arguments[3].initial_vector())]
    )
    run_in_process(recipe_of("fedgkt"), BF16)
    assert lent == {"training": {torch.bfloat16}, "evaluation": {None}}


def test_a_group_in_bf16_ends_as_near_to_clients_alone_as_rounding_brings_them():
    recipe = recipe_of("fedavg")
    exact, alone = vectors(run_in_process(recipe)), vectors(run_in_process(recipe, BF16))
    group = vectors(run_in_process(recipe, BF16, "local.vectorise=4"))
    assert not group.equal(exact)
    assert (group - exact).norm() < 2 * (alone - exact).norm()
    assert (group - alone).norm() < 2 * (alone - exact).norm()


def test_tf32_holds_within_clients_steps_alone(monkeypatch):
    def allowed():
        return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    seen = {"client": set(), "server": set(), "evaluation": set()}

    def watched(owner, name, where):
        original = getattr(owner, name)

        @wraps(original)
        def function(*arguments, **options):
            seen[where].add(allowed())
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, function)

    watched(FedAvg, "client_update", "client")
    watched(FedAvg, "absorb", "server")
    watched(ModelEvaluation, "tested", "evaluation")
    monkeypatch.setattr(host_module, "check_precision", lambda precision, device: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    recipe = recipe_of("fedavg") | {"placement": {"client": {"num_gpus": 1}}}
    for more in ([], ["local.vectorise=4"]):
        run_in_process(recipe, "local.precision=tf32", *more)
    assert seen == {"client": {(True, True)}, "server": {(False, False)}, "evaluation": {(False, False)}}
    with pytest.raises(ZeroDivisionError), tf32_products():
        raise ZeroDivisionError
    assert allowed() == (False, False)


@pytest.mark.parametrize(
    ("precision", "capability", "told"),
    [
        ("fp32", None, None),
        ("bf16", None, None),
        ("tf32", None, "clients compute on the CPU; expected fp32 or bf16"),
        ("fp32", (7, 0), None),
        ("tf32", (7, 5), "tf32 needs a GPU of capability 8.0 or more, and T4 has 7.5; expected fp32"),
        ("bf16", (7, 0), "bf16 needs a GPU of capability 8.0 or more, and T4 has 7.0; expected fp32"),
        ("tf32", (8, 0), None),
        ("bf16", (9, 0), None),
    ],
)
def test_what_a_device_cannot_compute_in_is_refused(precision, capability, told, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cpu" if capability is None else "cuda")
    with pytest.raises(RecipeError, match=f"^local.precision: .*{told}") if told else nullcontext():
        check_precision(precision, device)


def test_a_host_on_the_cpu_refuses_tf32():
    recipe = recipe_of("fedavg") | {"placement": {"client": {"num_gpus": 1}}}
    setting = prepare(recipe, ["local.precision=tf32"]).setting
    with pytest.raises(RecipeError, match=r"local\.precision: tf32 is arithmetic of NVIDIA GPUs"):
        Host(setting)
