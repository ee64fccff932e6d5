"""Memory of a GPU: one copy of the data in a process, and hosts that do not fit are refused at the start."""

import gc
from dataclasses import replace

import pytest
import torch
from small_recipes import FOUR_CLIENTS, small_recipe

from rayfed_kd.cluster.engine import device as engine_device
from rayfed_kd.cluster.engine.device import check_room, least_memory, room_fault
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.simulation import Simulation
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

GIB = 2**30
NEEDED = {"the data": 3 * GIB, "the largest model with its gradients": GIB}


@pytest.fixture
def setting():
    recipe = {**FOUR_CLIENTS, "rounds": 1, "sampling": {"fraction": 1.0}}
    return prepare(small_recipe(recipe, "fedkf")).setting


def test_host_and_server_of_a_process_have_one_copy_of_the_data(setting):
    host = Host(setting)
    simulation = Simulation(setting, LocalEngine(host), None)
    assert host._data is simulation._data
    assert setting.device_data("cpu") is host._data
    assert setting.device_data("meta") is not host._data


def test_a_run_that_is_over_leaves_no_data_on_the_device(setting):
    setting.device_data("meta")
    gc.collect()
    assert not setting._device_data


@pytest.mark.parametrize(
    ("free", "share", "told"),
    [
        (10, 0.5, None),  # 5 GiB
        (10, 0.4, None),  # 4 GiB: just enough
        (
            10,
            0.25,
            "0.25 of H200 are 2,560 MiB, and the data (3,072 MiB) and the largest model with its gradients "
            "(1,024 MiB) alone need 4,096 MiB; expected 0.4 or more",
        ),
        (3, 1.0, "other processes left 3,072 of 10,240 MiB of H200, and the data (3,072 MiB) and"),
    ],
)
def test_a_host_that_does_not_fit_is_told_both_numbers(free, share, told):
    fault = room_fault(NEEDED, "H200", 10 * GIB, free * GIB, share)
    assert fault is None if told is None else told in fault


def test_what_no_share_holds_asks_for_another_gpu():
    fault = room_fault({"the data": 11 * GIB}, "H200", 10 * GIB, 10 * GIB, 1.0)
    assert fault.endswith("expected a GPU with more memory, or less data")


def test_what_a_host_needs_for_certain(setting):
    """Digits are images of 64 bytes with int64 labels; a model's vector and its gradients are float32."""
    needed = least_memory(setting)
    splits = [split for split in (setting.dataset.train, setting.dataset.test) if split is not None]
    samples = sum(len(split.labels) for split in splits)
    assert needed["the data"] == samples * (64 + 8)
    sizes = [setting.module_pool().initial_vector(name).numel() for name in setting.builders]
    assert needed["the largest model with its gradients"] == max(sizes) * 4 * 2


@pytest.fixture
def gpu_of(setting, monkeypatch):
    """A GPU with so many bytes, none of them taken, and the recipe's answer to where samples lie."""

    def asked(size, wanted="auto"):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (size, size))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "small")
        placement = setting.recipe.placement.model_copy(update={"gpu_data": wanted})
        recipe = setting.recipe.model_copy(update={"placement": placement})
        return check_room(replace(setting, recipe=recipe), torch.device("cuda", 0), 1.0)

    return asked


def test_samples_stay_in_memory_where_they_do_not_fit_on_the_gpu_or_the_recipe_says_so(setting, gpu_of):
    data, model = least_memory(setting).values()
    assert not gpu_of(data + model)
    assert gpu_of(data + model - 1)
    assert gpu_of(data + model, "batches")
    with pytest.raises(RecipeError, match=r"client\.num_gpus: 1 of small .* and the data .* and the largest"):
        gpu_of(data + model - 1, "whole")
    with pytest.raises(RecipeError, match=r"client\.num_gpus: 1 of small .* MiB, and the largest model"):
        gpu_of(model - 1)


def test_the_second_who_holds_the_data_is_not_asked_where_they_lie(setting):
    first = setting.device_data("meta")
    assert setting.device_data("meta", lambda: pytest.fail("asked")) is first


def test_a_gpu_is_asked_before_anything_lies_on_it(setting, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**21))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "small")
    with pytest.raises(RecipeError, match=r"client\.num_gpus: 0\.01 of small are 0 MiB, and the largest"):
        check_room(setting, torch.device("cuda", 0), 0.01)
    monkeypatch.setattr(engine_device, "least_memory", None)
    check_room(setting, torch.device("cpu"), 1.0)  # a CPU is not asked
