"""Groups: decided before round 1 by the recipe alone, formed by client order, the same everywhere."""

import re

import pytest
import yaml
from runs import run_in_process
from small_recipes import SIX_CLIENTS, assert_resumed_is_whole, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.cluster.engine.calls import Held, StepCall
from rayfed_kd.cluster.ray_backend.handles import RowHandle, Rows
from rayfed_kd.cluster.server.run_state import jobs
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts

RECIPE = {**SIX_CLIENTS, "local": {"epochs": 2, "batch_size": 16, "vectorise": 3}}


OWN = """
from torch import nn

from rayfed_kd.algorithms.fedavg import FedAvg
from rayfed_kd import model_builder


class Derived(FedAvg):
    summary = "does something else perhaps"


class Declared(FedAvg):
    group_training = "all local training"


class DropoutMlp(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        size = shape[0] * shape[1] * shape[2]
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.Dropout(), nn.Linear(8, classes))

    def forward(self, images):
        return self.net(images)


@model_builder
def dropout(shape, classes):
    return DropoutMlp(shape, classes).net
"""


@pytest.fixture
def own(own_module):
    """The module in which somebody has methods and models of their own."""
    return own_module("own_of_grouping", OWN)


def recipe(method="fedavg", **local):
    return small_recipe({**RECIPE, "local": {**RECIPE["local"], **local}}, method)


def calls(clients):
    return [StepCall("client_update", DispatchFacts(c, 1, 1), Held({}), {}, None, -1) for c in clients]


def groups(asked, setting):
    return [places for places, _ in jobs(calls(asked), setting)]


def test_groups_are_even_in_client_order_and_of_one_architecture():
    one = prepare(recipe()).setting
    assert groups(range(3), one) == [[0, 1, 2]]
    assert groups(range(5), one) == [[0, 1], [2, 3, 4]]  # not three and two left over
    assert groups([4], one) == [[0]]
    models = [{"name": "mlp", "hidden": 16}, {"name": "mlp", "hidden": 8}]
    two = prepare({**recipe("fedmd"), "client_models": {"models": models}}).setting
    names = [two.architectures.of_client(client) for client in range(4)]
    assert [name == "model" for name in names] == [True, False, True, False]
    assert groups(range(4), two) == [[0, 2], [1, 3]]


# Stateless, with slots, with states, several exchanges.
@pytest.mark.parametrize("method", ["fedavg", "fedavg with slots", "pfedsd", "fedmd"])
def test_any_placement_gives_the_local_engines_bits(method, hosts):
    name, _, slots = method.partition(" ")
    asked = small_recipe(RECIPE, name, **({"track_oca": True} if slots else {}))
    expected = run_in_process(asked)
    for share in (6, 2, 1):
        assert_same_run(hosts.run(asked, f"placement.clients_per_actor={share}"), expected)
    alone = run_in_process(asked, "local.vectorise=off")
    rows = zip(alone.tables["rounds"]["logged"], expected.tables["rounds"]["logged"], strict=True)
    assert all(dict(a.as_py()) == pytest.approx(dict(b.as_py()), abs=1e-4) for a, b in rows)


def test_what_slots_and_states_keep_holds_no_other_clients_arrays(shared_ray):
    class Counted:
        fetched = 0

        def resolve(self):
            self.fetched += 1
            return [{"student": b"a"}, {"student": b"b"}]

    rows = Rows(counted := Counted())
    handles = [RowHandle(rows, place) for place in (0, 1)]
    assert [handle.resolve()["student"] for handle in handles] == [b"a", b"b"]
    assert counted.fetched == 1
    kept = handles[1].own()
    assert kept.resolve() == {"student": b"b"}
    assert handles[1].own() is kept


TINY = {
    **RECIPE,
    "method": {"name": "fedavg"},
    "data": {"name": "digits", "fraction": 0.1},
    "partition": {"name": "iid", "clients": 6},
    "local": {"epochs": 2, "batch_size": 16},
}


def size_of(asked):
    return prepare(asked).setting.groups.size


def test_tiny_clients_form_groups_of_25_unless_the_recipe_says_otherwise():
    one = prepare({**TINY, "partition": {"name": "iid", "clients": 60}}).setting
    assert [len(places) for places in groups(range(60), one)] == [20, 20, 20]
    assert groups([3], one) == [[0]]
    off = prepare({**TINY, "local": {**TINY["local"], "vectorise": "off"}}).setting
    assert groups(range(3), off) == [[0], [1], [2]]


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"name": "lenet5"}},
        # 16 rows through 64 x 1,024 and 1,024 x 10 weights: 1.2 million products, 2^20 are 1.05 million.
        {"model": {"name": "mlp", "hidden": 1024}},
        {"local": {"epochs": 33, "batch_size": 1000}},  # 33 steps
        {"partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6}},
        {"schedule": {"name": "fedbuff", "buffer": 2}, "clock": {"name": "lognormal"}},
        {"method": {"name": "own_of_grouping:Derived"}},
        {"model": {"name": "own_of_grouping:dropout"}},
        {"model": {"name": "own_of_grouping:DropoutMlp"}},
        # A second network, which is not tiny.
        {"data": {"name": "synthetic", "shape": [1, 28, 28]}, **small_recipe({}, "fedkf")},
    ],
)
def test_others_train_one_by_one(changed, own):
    assert size_of({**TINY, **changed}) == 1


@pytest.mark.parametrize("placement", [{"clients_per_actor": 1}, {"clients_per_actor": 3}])
def test_placement_decides_nothing(placement):
    assert size_of({**TINY, "placement": placement}) == 25
    assert size_of({**recipe(), "placement": placement}) == 3


def test_a_method_of_somebodys_own_trains_in_groups_if_its_class_says_so(own):
    assert size_of({**TINY, "method": {"name": f"{own}:Declared"}}) == 25
    inside = {"name": "ccvr", "method": {"name": f"{own}:Derived"}}
    assert size_of({**TINY, "method": inside}) == 1
    assert size_of({**TINY, "method": {"name": "ccvr", "method": {"name": f"{own}:Declared"}}}) == 25


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"schedule": {"name": "fedbuff", "buffer": 2}, "clock": {"name": "lognormal"}}, "one at a time"),
        (
            {
                "schedule": {"name": "quorum", "min_fraction": 0.5, "late": "next_round"},
                "clock": {"name": "lognormal"},
            },
            "keeps late replies",
        ),
    ],
)
def test_a_number_is_refused_where_the_schedule_has_no_groups(changed, reason):
    refusal = rf"local\.vectorise = 3: .*{reason}.*; expected off, or by_shape, which is off then"
    with pytest.raises(RecipeError, match=refusal):
        prepare({**recipe(), **changed})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"method": {"name": "own_of_grouping:Derived"}}, "Derived does not say by `group_training`"),
        ({"model": {"name": "own_of_grouping:dropout"}}, "in 'model', 2 is a torch.*Dropout, which is not"),
        ({"model": {"name": "own_of_grouping:DropoutMlp"}}, "in 'model', the model itself is a own_of_.*Mlp"),
    ],
)
def test_a_number_is_told_and_off_where_method_or_model_has_no_groups(changed, reason, own):
    setting = prepare({**recipe(), **changed}).setting
    assert setting.groups.size == 1
    assert re.search(rf"local\.vectorise = 3: clients train one by one: .*{reason}", setting.notes[-1])


@pytest.mark.parametrize(("model", "decided"), [("mlp", 25), ("own_of_grouping:dropout", "off")])
def test_a_run_writes_the_decision_down_and_is_resumed_by_it(model, decided, own, tmp_path):
    asked = {**TINY, "model": {"name": model}, "checkpoint": {"every": 1}}
    for result in assert_resumed_is_whole(asked, tmp_path, 2, 4):
        config = yaml.safe_load((result.folder / "config.yaml").read_text())
        assert config["local"]["vectorise"] == decided


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "own_of_grouping:dropout"])
def test_an_actor_for_each_client_gives_the_bits_of_one_process(model, own, shared_ray, tmp_path):
    asked = {**TINY, "model": {"name": model}}
    expected = rayfed_kd.run(asked, [f"results.folder={tmp_path}/local"], local=True)
    for share in ("auto", 1, 4):
        shares = "placement={client: {num_cpus: 0.25}, server: {num_cpus: 0.25}}"
        placed = [shares, f"placement.clients_per_actor={share}", f"results.folder={tmp_path}/{share}"]
        assert_same_run(rayfed_kd.run(asked, placed), expected)


def test_groups_by_shape_have_the_bits_of_groups_of_25():
    by_shape, numbered, alone = (
        run_in_process(TINY, f"local.vectorise={how}") for how in ("by_shape", "25", "off")
    )
    assert_same_run(by_shape, numbered)
    grouped, single = (
        [dict(row.as_py())["ce"] for row in one.tables["rounds"]["logged"]] for one in (by_shape, alone)
    )
    assert grouped == pytest.approx(single, abs=1e-4)
