"""Groups: formed by client order, the same everywhere, decided once, refused where they cannot be."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml
from runs import Silent, run_in_process
from small_recipes import assert_same_run, small_recipe

import rayfed_kd
from cluster.engine.calls import Held, StepCall
from cluster.engine.host import Host
from cluster.engine.local import LocalEngine
from cluster.ray_backend.handles import RowHandle, Rows
from cluster.server.grouping import FILE, Grouping
from cluster.server.simulation import Simulation
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts, shared_vectors

RECIPE = {
    "model": {"name": "mlp", "hidden": 16},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6},
    "local": {"epochs": 2, "batch_size": 16, "vectorise": 3},
    "rounds": 3,
    "sampling": {"count": 5},
    "evaluation": {"samples": False},
}


OWN_LOOP = """
from algorithms.fedavg import FedAvg
from rayfed_kd.protocol import Reply
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer


class OwnLoop(FedAvg):
    def client_update(self, client, message, ctx):
        student = ctx.model(message["student"])
        optimizer = Optimizer(ctx.local.optimizer, student)
        for images, labels in ctx.epoch(0):
            optimizer.minimise(cross_entropy(student(images), labels))
        return None, Reply(student=student.vector(), samples=ctx.num_samples)
"""


@pytest.fixture
def own_loop(tmp_path, monkeypatch):
    """A method whose step goes over its batches itself."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_loop_of_grouping.py").write_text(OWN_LOOP)
    return "own_loop_of_grouping:OwnLoop"


def recipe(method="fedavg", **local):
    return small_recipe({**RECIPE, "local": {**RECIPE["local"], **local}}, method)


def calls(clients):
    return [StepCall("client_update", DispatchFacts(c, 1, 1), Held({}), {}, None, -1) for c in clients]


def test_groups_are_even_in_client_order_and_of_one_architecture():
    one = prepare(recipe()).setting
    grouping = Grouping(one, LocalEngine(Host(one)))
    assert grouping.groups(calls(range(3))) == [[0, 1, 2]]
    assert grouping.groups(calls(range(5))) == [[0, 1], [2, 3, 4]]  # not three and two left over
    assert grouping.groups(calls([4])) == [[0]]
    models = [{"name": "mlp", "hidden": 16}, {"name": "mlp", "hidden": 8}]
    two = prepare({**recipe("fedmd"), "client_models": {"models": models}}).setting
    names = [two.architectures.of_client(client) for client in range(4)]
    assert [name == "model" for name in names] == [True, False, True, False]
    assert Grouping(two, LocalEngine(Host(two))).groups(calls(range(4))) == [[0, 2], [1, 3]]


# Stateless, with slots, with states, several exchanges.
@pytest.mark.parametrize("method", ["fedavg", "fedavg with slots", "pfedsd", "fedmd"])
def test_any_placement_gives_the_local_engines_bits(method, hosts):
    asked = with_slots_or_not(method)
    expected = run_in_process(asked)
    for share in (6, 2):
        assert_same_run(hosts.run(asked, f"placement.clients_per_actor={share}"), expected)
    alone = run_in_process(asked, "local.vectorise=off")
    rows = zip(alone.tables["rounds"]["losses"], expected.tables["rounds"]["losses"], strict=True)
    assert all(dict(a.as_py()) == pytest.approx(dict(b.as_py()), abs=1e-4) for a, b in rows)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedavg with slots", "pfedsd", "fedmd"])
def test_a_whole_run_on_ray_gives_the_local_engines_bits(method, shared_ray, tmp_path):
    asked = with_slots_or_not(method)
    expected = rayfed_kd.run(asked, [f"results.folder={tmp_path}/local"], local=True)
    placed = [f"results.folder={tmp_path}/ray", "placement.clients_per_actor=2"]
    assert_same_run(rayfed_kd.run(asked, placed), expected)


def with_slots_or_not(method):
    name, _, slots = method.partition(" ")
    return small_recipe(RECIPE, name, **({"track_oca": True} if slots else {}))


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


def test_a_resumed_run_groups_alike_and_gives_the_same_bits(tmp_path):
    asked = {**recipe(vectorise="auto"), "rounds": 4, "checkpoint": {"every": 2}}
    first = [f"results.folder={tmp_path}/whole"]
    whole = rayfed_kd.run(asked, first, local=True)
    decided = yaml.safe_load((tmp_path / "whole" / FILE).read_text())
    assert set(decided) == {"client_update"}
    assert decided["client_update"]["together"] in (1, 5)
    # The other decision than was measured, so that following it shows.
    other = {1: 5, 5: 1}[decided["client_update"]["together"]]
    half = tmp_path / "half"
    rayfed_kd.run({**asked, "rounds": 2}, [f"results.folder={half}"], local=True)
    decided["client_update"]["together"] = other
    (half / FILE).write_text(yaml.safe_dump(decided))
    shutil.copytree(half, tmp_path / "again")
    lines = []
    resumed = [
        rayfed_kd.resume(tmp_path / name, ["rounds=4"], local=True, tell=lines.append)
        for name in ("half", "again")
    ]
    assert_same_run(resumed[0], resumed[1])
    assert yaml.safe_load((half / FILE).read_text())["client_update"]["together"] == other
    assert not [line for line in lines if "ms" in line]  # nothing was measured again
    assert resumed[0].tables["rounds"].num_rows == whole.tables["rounds"].num_rows


class Timed(LocalEngine):
    """An engine whose clock says what a test wants: seconds a client, alone and together."""

    def __init__(self, host, alone_s, together_s, hosts=1):
        super().__init__(host)
        self._seconds, self._hosts, self.asked, self.now = (alone_s, together_s), hosts, [], 0.0

    @property
    def hosts(self):
        return self._hosts

    def clock(self):
        return self.now

    def submit(self, calls):
        self.asked.append(list(calls))
        self.now += self._seconds[len(calls) > 1] * len(calls)
        return super().submit(calls)


def first_calls(one, count):
    vector = one.module_pool().initial_vector("model").numpy()
    asked = calls(range(count))
    return [replace(call, message=Held({"student": vector})) for call in asked]


@pytest.mark.parametrize(("together_s", "expected"), [(0.2, [[0, 1, 2], [3, 4, 5]]), (0.95, None)])
def test_auto_takes_what_is_faster_by_a_tenth_and_says_so(together_s, expected, tmp_path):
    one = prepare(recipe(vectorise="auto")).setting
    engine, lines = Timed(Host(one), 1.0, together_s, hosts=2), []
    grouping = Grouping(one, engine, tmp_path, lines.append, engine.clock)
    asked = first_calls(one, 6)
    assert grouping.groups(asked) == (expected or [[place] for place in range(6)])
    assert [len(group) for group in engine.asked] == [3, 3, *6 * [1], 3, 3]
    assert all(call.observing for group in engine.asked for call in group)
    assert f"{1000 * together_s:.2f} ms a client in groups of 3, 1000.00 ms alone" in lines[0]
    grouping.groups(asked)
    assert len(engine.asked) == 10  # decided once
    again = Grouping(one, other := Timed(Host(one), 1.0, 5.0), tmp_path)
    assert again.groups(asked) == (expected or [[place] for place in range(6)])
    assert other.asked == []


class Warming(Timed):
    """Its first groups take long, as modules are built and caches filled."""

    def submit(self, calls):
        groups_so_far = sum(len(asked) > 1 for asked in self.asked)
        self._seconds = (self._seconds[0], 0.02 if groups_so_far > 2 else 0.04)
        return super().submit(calls)


def test_auto_is_not_misled_by_what_takes_long_at_first():
    one = prepare(recipe(vectorise="auto")).setting
    engine, lines = Warming(Host(one), 0.03, 0.02), []
    grouping = Grouping(one, engine, None, lines.append, engine.clock)
    assert grouping.groups(first_calls(one, 6)) == [[0, 1, 2, 3, 4, 5]]
    assert "20.00 ms a client in groups of 6, 30.00 ms alone" in lines[0]


def test_auto_leaves_a_method_with_a_loop_of_its_own_alone(own_loop, tmp_path):
    lines = []
    asked = {**recipe(vectorise="auto"), "method": {"name": own_loop}, "rounds": 1}
    rayfed_kd.run(asked, [f"results.folder={tmp_path}/run"], local=True, tell=lines.append)
    assert [line for line in lines if "in a loop of its own" in line]


def test_a_number_with_a_method_that_cannot_be_batched_says_so_once(own_loop, tmp_path):
    lines = []
    asked = {**recipe(), "method": {"name": own_loop}}
    rayfed_kd.run(asked, [f"results.folder={tmp_path}/run"], local=True, tell=lines.append)
    assert lines == [
        "local.vectorise: 0 of 5 steps of this round ran together",
        "local.vectorise: clients train one by one in spite of it: "
        "its step goes over batches in a loop of its own",
    ]


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
        ({"placement": {"clients_per_actor": 1}}, "a client's own actor"),
        (
            {"placement": {"overrides": [{"clients": [0], "num_cpus": 2.0}]}},
            "hosts of their own",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused_or_given_up_aloud(changed, reason):
    refusal = rf"local\.vectorise = 3: .*{reason}.*; expected off, by_shape or auto"
    with pytest.raises(RecipeError, match=refusal):
        prepare({**recipe(), **changed})
    one = prepare({**recipe(vectorise="auto"), **changed}).setting
    lines = []
    grouping = Grouping(one, LocalEngine(Host(one)), None, lines.append)
    assert grouping.groups(calls(range(4))) == [[0], [1], [2], [3]]
    assert len(lines) == 1
    assert reason in lines[0]


TINY = {
    **RECIPE,
    "data": {"name": "digits", "fraction": 0.1},
    "partition": {"name": "iid", "clients": 6},
    "local": {"epochs": 2, "batch_size": 16},
}


def grouping_of(asked, method="fedavg"):
    one = prepare(small_recipe(asked, method)).setting
    lines = []
    return Grouping(one, LocalEngine(Host(one)), None, lines.append), lines


def test_tiny_clients_form_groups_of_25_unless_the_recipe_says_otherwise():
    grouping, lines = grouping_of({**TINY, "partition": {"name": "iid", "clients": 60}})
    assert [len(places) for places in grouping.groups(calls(range(60)))] == [20, 20, 20]
    assert grouping.groups(calls([3])) == [[0]]
    grouping, _ = grouping_of({**TINY, "local": {**TINY["local"], "vectorise": "off"}})
    assert grouping.groups(calls(range(3))) == [[0], [1], [2]]
    assert lines == []


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"name": "lenet5"}},
        # 16 rows through 64 x 1,024 and 1,024 x 10 weights: 1.2 million products, 2^20 are 1.05 million.
        {"model": {"name": "mlp", "hidden": 1024}},
        {"local": {"epochs": 33, "batch_size": 1000}},  # 33 steps
        {"local": {"epochs": 0, "batch_size": 16}},
        {"partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6}},
        {"schedule": {"name": "fedbuff", "buffer": 2}, "clock": {"name": "lognormal"}},
        {"placement": {"clients_per_actor": 1}},
        {"local": {"epochs": 2, "batch_size": 16, "compile": True}},
    ],
)
def test_others_train_one_by_one_and_nothing_is_said(changed):
    grouping, lines = grouping_of({**TINY, **changed})
    assert grouping.groups(calls(range(4))) == [[0], [1], [2], [3]]
    assert lines == []


def test_a_method_with_a_network_that_is_not_tiny_trains_one_by_one():
    grouping, _ = grouping_of({**TINY, "data": {"name": "synthetic", "shape": [1, 28, 28]}}, "fedkf")
    assert grouping.groups(calls(range(3))) == [[0], [1], [2]]


def test_groups_by_shape_end_where_the_method_cannot_be_batched(own_loop, tmp_path):
    asked = {**TINY, "method": {"name": own_loop}, "sampling": {"count": 5}, "evaluation": {"samples": False}}
    one = prepare(asked).setting
    seen, lines = [], []

    class Counting(LocalEngine):
        def submit(self, calls):
            seen.append(len(calls))
            return super().submit(calls)

    engine = Counting(Host(one))
    simulation = Simulation(one, engine, Silent(), grouping=Grouping(one, engine, None, lines.append))
    simulation.run()
    assert [size for size in seen if size > 1] == [5]  # the first round's; later ones are one by one
    assert lines == []
    alone = run_in_process(asked, "local.vectorise=off")
    for name, vector in shared_vectors(simulation.models).items():
        assert np.array_equal(vector, alone.models[name])


def test_groups_by_shape_have_the_bits_of_groups_of_25():
    by_shape, numbered, alone = (
        run_in_process(TINY | {"method": {"name": "fedavg"}}, f"local.vectorise={how}")
        for how in ("by_shape", "25", "off")
    )
    assert_same_run(by_shape, numbered)
    grouped, single = (
        [dict(row.as_py())["ce"] for row in one.tables["rounds"]["losses"]] for one in (by_shape, alone)
    )
    assert grouped == pytest.approx(single, abs=1e-4)
    assert grouped != single  # by rounding; else there was no group
