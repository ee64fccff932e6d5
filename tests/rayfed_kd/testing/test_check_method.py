"""`check_method`: a method that keeps the contract passes; of another it says which rule it breaks, where."""

import random
import re

import broken_methods
import numpy as np
import pytest
import torch
from command_line import loaded_after

from rayfed_kd.algorithms.feddf import FedDF
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.testing import RULES, ContractError, check_method

TINY = {"model": {"name": "mlp", "hidden": 4}, "data": {"name": "digits", "fraction": 0.1}}
BROKEN = {
    "ChangesState": ("client state", "round 1, client 0, client_update"),
    "ChangesMessage": ("message", "round 1, client 0, client_update"),
    "ReturnsOneBuffer": ("own tensors", "round 2, client 0, client_update"),
    "DrawsGlobally": ("global random", "round 1, client 0, client_update"),
    "DrawsAtServer": ("global random", "the server's part"),
    "DrawsFromTorchAtServer": ("global random", "the server's part"),
    "SendsUndeclared": ("declared", "the run"),
    "KeepsASet": ("storable", "round 1, client 0, init_client"),
    "ServerKeepsASet": ("storable", "the server's state"),
    "CountsCalls": ("replay", "round 1, client 3, client_update"),
    "RemembersOutsideItsState": ("complete state", "round 1, client 3, client_update"),
    "DependsOnOrder": ("order", "a run whose clients go last first"),
    "ChangesServerState": ("server state", "round 1"),
    "SetsAClassAttribute": ("frozen", "the run"),
    "SetsAnAttributeInAStep": ("frozen", "round 1, client 0, client_update"),
    "SetsAnAttributeAtTheServer": ("frozen", "round 1, server of broken_methods:SetsAnAttributeAtTheServer"),
    "CountsRoundsOutsideItsState": ("checkpoint", "the round after it"),
    "SaysThatNothingIsKept": ("client_keeps", "its steps"),
    "EvaluatesAnotherModel": ("evaluates", "the run"),
}


def test_a_method_that_keeps_the_contract_passes_as_a_class_and_by_its_location(capsys):
    check_method(broken_methods.Keeping, TINY)
    check_method("broken_methods:Keeping", TINY)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[1]
    begin, *rules = re.split(r": |, |; ", lines[1].partition(", mlp)")[2])
    assert lines[1].startswith("broken_methods:Keeping keeps the contract (4 clients, 2 rounds, digits, mlp)")
    seen = set(RULES) - {"engines"}
    assert begin == ""
    assert rules[: len(seen)] == [rule for rule in RULES if rule in seen]
    assert rules[len(seen) :] == ["not checked", "engines (ray=True does)"]


class ReadsLabels(FedDF):
    """Says that it needs samples alone."""

    def absorb(self, server, replies, ctx):
        ctx.public.labels(torch.arange(2))
        return super().absorb(server, replies, ctx)


def test_labels_that_a_method_does_not_ask_for_are_not_there():
    with pytest.raises(RunError, match="public labels are not known"):
        check_method(ReadsLabels, TINY)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told_with_its_place(name):
    with pytest.raises(ContractError) as caught:
        check_method(getattr(broken_methods, name), TINY)
    assert (caught.value.rule, caught.value.where) == BROKEN[name]
    assert str(caught.value).startswith(f"{RULES[caught.value.rule]} Broken in {caught.value.where}: ")


def test_every_rule_is_broken_by_a_method_above_or_by_an_engine():
    assert {rule for rule, _ in BROKEN.values()} == set(RULES) - {"engines"}


@pytest.mark.slow
def test_a_run_on_ray_gives_the_bits_of_a_run_in_one_process(shared_ray):
    check_method("fedkf", options={"generator": {"width": 4, "latent": 8}}, ray=True)


def test_bad_options_are_a_bad_recipe():
    with pytest.raises(RecipeError, match="mu is no option of"):
        check_method(broken_methods.Keeping, TINY, {"mu": 1})


def test_the_callers_generators_and_threads_come_back():
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    threads = torch.get_num_threads()
    with pytest.raises(ContractError):
        check_method(broken_methods.DrawsGlobally, TINY)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]
    assert torch.get_num_threads() == threads


def test_importing_it_loads_no_ray_and_the_package_does_not_load_it():
    assert loaded_after("import rayfed_kd.testing", "ray") == []
    assert loaded_after("import rayfed_kd", "torch", "rayfed_kd.testing") == []


def test_what_a_models_dropout_draws_is_not_blamed_on_the_method():
    check_method("fedavg", recipe={"model": {"name": "zoo_modules:Dropout"}})
