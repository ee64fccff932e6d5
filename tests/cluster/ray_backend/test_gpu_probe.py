"""A host's share of a GPU, measured before a run: the GPU's memory is a stand-in."""

import textwrap
from types import SimpleNamespace

import pytest
import ray
import torch
from small_recipes import THREE_CLIENTS, small_recipe

import rayfed_kd
from cluster.engine import gpu_use
from cluster.engine.calls import Held
from cluster.engine.gpu_use import HostMemory
from cluster.ray_backend import gpu_probe
from cluster.ray_backend.gpu_probe import measured, measured_on_gpu, share_of
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe

ASKED = {"placement": {"gpu_share": "measured", "client": {"num_gpus": 1}}}


@pytest.mark.parametrize(
    ("needed", "most", "share"),
    [
        (1000.0, 1.0, 0.06),  # 1,100 of 20,000 MiB are 5.5 hundredths
        (10_000.0, 1.0, 0.55),
        (19_500.0, 1.0, 1.0),  # no more than there is
        (10_000.0, 0.5, 0.5),
        (1000.0, 2.0, 0.06),
    ],
)
def test_share_is_what_a_host_took_and_a_tenth_at_most_what_the_recipe_has(needed, most, share):
    assert share_of(HostMemory(needed, 20_000.0), most) == share


@pytest.mark.parametrize(("needed", "most"), [(10_500.0, 0.5), (20_001.0, 4.0)])
def test_host_that_takes_more_is_refused_with_both_numbers(needed, most):
    with pytest.raises(RecipeError, match=f"a host takes {needed:,.0f} of .* and .*num_gpus is {most:g}"):
        share_of(HostMemory(needed, 20_000.0), most)


@pytest.fixture
def runs(monkeypatch):
    """The measured runs: a simulation and its summary each."""
    seen, assemble = [], gpu_probe.assemble

    def watched(setting, *given):
        one = assemble(setting, *given)
        return SimpleNamespace(run=lambda: seen.append((one.simulation, one.run())))

    monkeypatch.setattr(gpu_probe, "assemble", watched)
    return seen


@pytest.mark.parametrize(
    ("method", "epochs"),
    [({"name": "fedavg"}, 1), ({"name": "fedrep", "personal": ["F2"], "head_epochs": 2}, 3)],
)
def test_what_is_measured_are_two_rounds_of_an_epoch_or_of_as_many_as_the_method_needs(method, epochs, runs):
    recipe = {**THREE_CLIENTS, "rounds": 9, "local": {"epochs": 3}, "method": method}
    assert measured(rayfed_kd.prepare(recipe).blueprint, torch.device("cpu")) is None
    [(simulation, summary)] = runs
    assert summary["rounds"] == 2
    assert simulation.setting.recipe.local.epochs == epochs


def test_state_of_a_client_leaves_the_device_as_on_ray(runs):
    measured(rayfed_kd.prepare(small_recipe(THREE_CLIENTS, "fedkf")).blueprint, torch.device("cpu"))
    [(simulation, _)] = runs
    states = [record.state for record in simulation.run_state.records.values()]
    assert len(states) == 3
    assert all(isinstance(state, Held) and "state" in state.resolve() for state in states)


def test_gpus_that_are_only_counted_have_no_memory(monkeypatch):
    monkeypatch.setattr(gpu_probe, "assigned_device", lambda *given: torch.device("cpu"))
    with pytest.raises(RecipeError, match="only counted here, and have no memory; expected given"):
        measured_on_gpu(rayfed_kd.prepare(THREE_CLIENTS).blueprint, 1.0)


def test_host_that_runs_out_of_memory_is_refused(monkeypatch):
    def out_of_memory(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(gpu_probe, "assigned_device", lambda *given: torch.device("cpu"))
    monkeypatch.setattr(gpu_probe, "measured", out_of_memory)
    with pytest.raises(RecipeError, match=r"more than 0.5 of a GPU \(CUDA out of memory. Tried to .* GiB.\)"):
        measured_on_gpu(rayfed_kd.prepare(THREE_CLIENTS).blueprint, 0.5)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"gpu_share": "measured"}, "client.num_gpus is 0; expected client.num_gpus=1"),
        (
            {**ASKED["placement"], "overrides": [{"clients": [1], "num_gpus": 0.5}]},
            "one share is measured for all clients",
        ),
    ],
)
def test_there_must_be_something_to_measure(placement, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe({**THREE_CLIENTS, "placement": placement})


def test_in_one_process_nothing_is_shared_and_nothing_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYFED_KD_LOGICAL_GPUS", "1")
    result = rayfed_kd.run({**THREE_CLIENTS, **ASKED}, local=True, results={"folder": str(tmp_path / "run")})
    assert result.summary["status"] == "finished"


def test_search_says_that_it_needs_a_number(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("space:\n  local.optimizer.lr: {choice: [0.05]}\n")
    with pytest.raises(RecipeError, match="a search places its trials before they run"):
        rayfed_kd.tune({**THREE_CLIENTS, **ASKED}, space, search="grid", folder=tmp_path / "search")


@pytest.mark.slow
def test_run_on_ray_has_as_many_hosts_as_were_measured_to_fit(no_ray, tmp_path, monkeypatch):
    """550 of 2,000 MiB are 28 hundredths, so three hosts share the GPU; the bits are those of one process."""
    own = tmp_path / "own_measured.py"
    own.write_text(
        textwrap.dedent("""
            from algorithms.fedavg import FedAvg
            from cluster.ray_backend import gpu_probe
            from cluster.engine.gpu_use import HostMemory

            gpu_probe.host_memory = lambda held, missing: HostMemory(500.0, 2000.0)


            class Measured(FedAvg):
                pass
            """)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYFED_KD_LOGICAL_GPUS", "1")
    recipe = {**THREE_CLIENTS, "method": {"name": "own_measured:Measured"}, **ASKED}
    recipe["placement"] = {**ASKED["placement"], "client": {"num_cpus": 0.2, "num_gpus": 1}}
    recipe["local"] = {**recipe["local"], "vectorise": "off"}  # one by one: a group has one host
    told = []
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        folder = {"folder": str(tmp_path / "run")}
        result = rayfed_kd.run(recipe, tell=told.append, results=folder)
        with pytest.raises(RecipeError, match="only counted here"):
            rayfed_kd.run(
                {**recipe, "method": {"name": "fedavg"}}, results={"folder": str(tmp_path / "other")}
            )
    finally:
        ray.shutdown()
    assert any("placement.client.num_gpus is 0.28, with a tenth to spare" in line for line in told)
    assert {row["host"] for row in result.table("hosts").to_pylist()} == {0, 1, 2}
    kept = load_recipe(str(tmp_path / "run" / "config.yaml")).placement
    assert (kept.gpu_share, kept.client.num_gpus) == ("given", 0.28)
    alone = rayfed_kd.run(recipe, local=True, results={"folder": str(tmp_path / "local")})
    assert all((result.models[name] == vector).all() for name, vector in alone.models.items())
    assert gpu_use.host_memory(1.0, 1.0) is None  # this process saw no stand-in
