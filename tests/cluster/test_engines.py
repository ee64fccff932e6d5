"""One result everywhere: torch.equal, not allclose."""

import numpy as np
import pytest
import ray

import rayfed_kd
from cluster.placement import Node, plan_hosts
from rayfed_kd.config import load_recipe

RECIPE = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 4},
    "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5}},
    "rounds": 3,
    "sampling": {"fraction": 0.75},
}
METHODS = {
    "fedavg": {"name": "fedavg", "track_oca": True},
    "fedkf": {"name": "fedkf", "generator": {"name": "dafl_image", "width": 4, "latent": 8}},
    "dafkd, local protocol": {
        "name": "dafkd",
        "generator": {"width": 4, "latent": 8},
        "distill_batches": 2,
        "protocol": "local",
    },
    "kdia": {"name": "kdia", "generator": {"width": 8, "epochs": 1, "batches": 2}},
    "fedd2s": {"name": "fedd2s", "z0": 1},
    "fedgems": {"name": "fedgems", "server": {"name": "resnet8", "width": 4}, "server_batch_size": 64},
}
PUBLIC = {
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 4, "public": {"fraction": 0.5}},
    "client_models": {"models": [{"name": "lenet5"}, {"name": "mlp", "hidden": 8}]},
}
OTHERS = {
    "dafkd": {"name": "dafkd", "generator": {"width": 4, "latent": 8}, "distill_batches": 2},
    "fedper": {"name": "fedper"},
    "fedper_plus": {"name": "fedper_plus", "z0": 1},
    "fedrep_plus": {"name": "fedrep_plus", "z0": 1, "head_epochs": 1},
    "pfedsd": {"name": "pfedsd"},
    "fedmd": {"name": "fedmd", "public_samples": 50},
    "feddf": {"name": "feddf", "epochs": 1},
    "cronus": {"name": "cronus", "public_samples": 50},
    "dsfl": {"name": "dsfl", "public_samples": 50},
    "fedgem": {"name": "fedgem", "server": {"name": "resnet8", "width": 4}},
    "fedprox": {"name": "fedprox"},
    "fedavgm": {"name": "fedavgm"},
    "moon": {"name": "moon"},
    "fedgkd": {"name": "fedgkd"},
    "feddisco": {"name": "feddisco"},
    "qffl": {"name": "qffl"},
    "fedcog": {"name": "fedcog", "images": 20, "steps": 3},
    "fedftg": {"name": "fedftg", "generator": {"width": 4, "latent": 8}, "iterations": 1, "batch_size": 8},
    "fedgen": {"name": "fedgen", "generator": {"hidden": 16, "latent": 4, "steps": 5, "batch_size": 8}},
    "fedgkt": {"name": "fedgkt", "server": {"name": "mlp"}, "server_epochs": 1},
    "fedict": {"name": "fedict", "cut": "F1", "server": {"name": "dense"}, "lka": "balance"},
}
CHANGES = {
    "kdia": {
        "model": {"name": "simple_cnn"},
        "data": {"name": "synthetic", "samples": 100, "classes": 3, "shape": [1, 32, 32]},
    },
    "feddf": {"partition": PUBLIC["partition"]},
    "fedmd": PUBLIC,
    "cronus": PUBLIC,
    "dsfl": PUBLIC,
    "fedgem": PUBLIC,
    "fedgems": PUBLIC,
}
PERSONAL = ("fedd2s", "fedper", "fedper_plus", "fedrep_plus", "fedmd")
MODELS = {
    "fedavg": {"aca", "oca"},
    "fedkf": {"aca", "oca"},
    "kdia": {"student", "teacher"},
    "fedgem": {"server"},
    "fedgems": {"server"},
    **{name: set() for name in PERSONAL},
}
DECIDED = ["rounds", "metrics", "clients", "messages"]
TIMES = ["wall_s", "dispatch_s", "client_s", "server_s", "evaluate_s"]


@pytest.fixture(scope="module")
def small_ray():
    """A private Ray with six logical cores: actors are counted, not measured."""
    ray.init(address="local", num_cpus=6, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def run(method, folder, *overrides, local=False):
    recipe = {**RECIPE, "method": {**METHODS, **OTHERS}[method], **CHANGES.get(method, {})}
    return rayfed_kd.run(recipe, [f"results.folder={folder}", *overrides], local=local)


def assert_same(result, expected):
    for name, vector in expected.models.items():
        assert np.array_equal(result.models[name], vector), name
    for name in DECIDED:
        table, wanted = result.tables[name], expected.tables[name]
        if name == "rounds":
            table, wanted = table.drop(TIMES), wanted.drop(TIMES)
        assert table.equals(wanted), name


@pytest.mark.parametrize("method", METHODS)
def test_any_placement_gives_the_local_engines_bits(method, small_ray, tmp_path):
    expected = run(method, tmp_path / "local", local=True)
    assert set(expected.models) == MODELS.get(method, {"global"})
    for clients_per_actor in (4, 2, 1):
        result = run(
            method, tmp_path / f"{clients_per_actor}", f"placement.clients_per_actor={clients_per_actor}"
        )
        assert_same(result, expected)
        # A pinned client that took part shows as a host of its own.
        assert len(set(result.tables["hosts"]["host"].to_pylist())) <= -(-4 // clients_per_actor)


@pytest.mark.parametrize("method", OTHERS)
def test_two_hosts_give_the_local_engines_bits(method, small_ray, tmp_path):
    """The other methods, once each: four clients on two hosts, so that states travel."""
    expected = run(method, tmp_path / "local", "rounds=2", local=True)
    result = run(method, tmp_path / "ray", "rounds=2", "placement.clients_per_actor=2")
    assert_same(result, expected)


def test_placements_of_the_first_test_use_one_two_and_four_hosts():
    recipe = load_recipe({**RECIPE, "method": METHODS["fedavg"]})
    node = [Node(6, 0, 24 * 2**30)]
    hosts = [
        plan_hosts(load_recipe(recipe.model_dump(), [f"placement.clients_per_actor={n}"]), node).num_hosts
        for n in (4, 2, 1)
    ]
    assert hosts == [1, 2, 4]


def test_bug_in_a_method_shows_its_own_traceback(small_ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_on_ray.py").write_text(
        "from algorithms.fedavg import FedAvg\n\n\n"
        "class Broken(FedAvg):\n"
        "    def client_update(self, client, message, ctx):\n"
        "        raise ValueError('seventeen')\n"
    )
    recipe = {**RECIPE, "method": {"name": "broken_on_ray:Broken"}}
    with pytest.raises(Exception, match=r"round 1, client \d, client_update failed") as caught:
        rayfed_kd.run(recipe, [f"results.folder={tmp_path / 'run'}"])
    assert "ValueError: seventeen" in str(caught.value)
    assert "broken_on_ray.py" in str(caught.value)


def test_nothing_large_passes_through_the_driver(small_ray, tmp_path):
    """What the driver receives while a run goes are events: numbers by name."""
    events = []
    recipe = {**RECIPE, "method": METHODS["fedavg"], "results": {"folder": str(tmp_path / "run")}}
    rayfed_kd.run(recipe, on_event=events.append)
    assert [event["round"] for event in events] == [1, 2, 3]
    assert all(len(str(event)) < 5000 for event in events)
