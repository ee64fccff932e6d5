"""Every method's client steps in a group of clients give what they give alone, up to rounding."""

import numpy as np
import pytest
import torch
from runs import Silent
from small_recipes import small_recipe

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cluster.engine.batching.group_training import group_steps
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.registry import load_object

# One client alone, no training at clients, or logits that a loop of its own keeps.
ONE_CLIENT = ("centralized", "datafree", "fedpft", "fedcache")
CLOSE = 2e-4
RECIPE = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 4},
    "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5}},
    "rounds": 2,
    "sampling": {"fraction": 1.0},
}


def exchanges(name):
    """The setting, and the calls of each exchange of two rounds."""
    torch.set_num_threads(1)
    setting = prepare(small_recipe(RECIPE, name)).setting
    run, calls = Simulation(setting, LocalEngine(Host(setting)), Silent()), {}
    submit = run.engine.submit

    def noted(asked, summed_sizes=()):
        for call in asked:
            calls.setdefault((call.step, call.facts.round, call.facts.exchange), []).append(call)
        return submit(asked, summed_sizes)

    run.engine.submit = noted
    run.run()
    return setting, calls


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ONE_CLIENT])
def test_a_groups_steps_are_the_clients_own_up_to_rounding(name):
    setting, calls = exchanges(name)
    trained = 0
    for asked in calls.values():
        if len(asked) < 2:
            continue
        host = Host(setting, keep_states=0)
        alone = [host.step(call) for call in asked]
        for own, grouped in zip(alone, group_steps(host, asked), strict=True):
            facts, parts, state = own
            trained += facts.samples > 0
            assert grouped[0].samples == facts.samples
            assert_close(grouped[1], parts)
            assert_close(leaves(grouped[2].state), leaves(state.state))
            assert grouped[0].logged.keys() == facts.logged.keys()
            for logged, (total, count) in facts.logged.items():
                assert grouped[0].logged[logged][1] == count
                # A share of right answers moves by one sample's where a logit is all but 0.
                slack = 0.2 * count if logged.endswith("_right") else 1e-3 * count
                assert grouped[0].logged[logged][0] == pytest.approx(total, abs=slack, rel=1e-3)
    assert trained > 0


def assert_close(found, expected):
    """Arrays alike but for rounding.

    Adam makes a whole step out of a gradient that is zero but for rounding, as that of a bias before
    BatchNorm is. So few elements may be off by some steps of Adam.
    """
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape
        if array.size:
            apart = np.abs(found[name].astype(np.float64) - array)
            assert np.quantile(apart, 0.9) < CLOSE, name
            assert apart.max() < 0.05, name


def leaves(tree, prefix=""):
    """All tensors in a state, by path."""
    if isinstance(tree, torch.Tensor):
        return {prefix: tree.numpy()}
    if hasattr(tree, "__dataclass_fields__"):
        tree = {name: getattr(tree, name) for name in tree.__dataclass_fields__}
    if isinstance(tree, (list, tuple)):
        tree = dict(enumerate(tree))
    if not hasattr(tree, "items"):
        return {}
    return {key: leaf for name, own in tree.items() for key, leaf in leaves(own, f"{prefix}/{name}").items()}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_itself_what_of_it_batches(name):
    """Its own class does, as it is not inherited."""
    kind = load_object(METHODS[name], "")
    assert bool(kind.group_training) == (name not in ONE_CLIENT)
    assert not type("Derived", (kind,), {}).group_training


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ONE_CLIENT])
def test_every_methods_own_networks_are_of_parts_that_batch(name):
    asked = {**RECIPE, "local": {**RECIPE["local"], "vectorise": 2}}
    assert prepare(small_recipe(asked, name)).setting.groups.size == 2
