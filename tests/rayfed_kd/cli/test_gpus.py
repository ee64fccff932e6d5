"""`doctor` on GPUs: what the driver's tool and torch say is passed on, on a line each."""

import os
from itertools import islice

import pytest
import torch

from rayfed_kd.cli.doctor import gpu_facts, report

H200 = "0, NVIDIA H200, 9.0, 143771, 4, Default, 580.159.03"
T4 = "1, Tesla T4, 7.5, 15360, 9000, Exclusive_Process, 580.159.03"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts a shell script in the place of nvidia-smi."""

    def answers(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return answers


def seen_by_torch(monkeypatch, count, init=lambda: None):
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: None)


def test_each_gpu_has_a_line_that_says_what_a_run_cannot_do_on_it(driver, monkeypatch):
    driver(f"echo '{H200}'; echo '{T4}'")
    seen_by_torch(monkeypatch, 2)
    assert dict(gpu_facts()) == {
        "GPU 0": "NVIDIA H200, capability 9.0, 143771 MiB, of which 4 are taken; driver 580.159.03",
        "GPU 1": "Tesla T4, capability 7.5, 15360 MiB, of which 9000 are taken; driver 580.159.03; "
        "local.precision: fp32 alone; compute mode Exclusive_Process: a server and hosts cannot share it",
    }


def test_a_machine_without_gpus_has_no_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(gpu_facts()) == []


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'No devices were found'; exit 6", "nvidia-smi fails: No devices were found"),
        ("echo 'something else'", "nvidia-smi fails: something else"),
    ],
)
def test_what_the_driver_complains_of_is_told(script, told, driver):
    driver(script)
    assert list(gpu_facts()) == [("GPU fault", told)]
    assert ("GPU fault", told) in list(islice(report(None), 5))


@pytest.mark.parametrize("error", [RuntimeError("driver too old (version 11040)"), AssertionError("no")])
def test_what_torch_complains_of_is_told(error, driver, monkeypatch):
    def init():
        raise error

    driver(f"echo '{H200}'")
    seen_by_torch(monkeypatch, 0, init)
    assert list(gpu_facts())[1:] == [("GPU fault", f"torch {torch.__version__}: {error}")]


def test_a_warning_of_torch_is_told(driver, monkeypatch):
    """So torch tells of a GPU for which it has no kernels."""
    import warnings

    driver(f"echo '{H200}'")
    seen_by_torch(monkeypatch, 1, lambda: warnings.warn("H200 is not compatible", stacklevel=1))
    assert list(gpu_facts())[1:] == [("GPU fault", f"torch {torch.__version__}: H200 is not compatible")]


def test_gpus_that_are_hidden_from_torch_are_told(driver, monkeypatch):
    driver(f"echo '{H200}'; echo '{T4}'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen_by_torch(monkeypatch, 1)
    assert list(gpu_facts())[2:] == [("GPU fault", "torch sees 1 of 2 GPUs: CUDA_VISIBLE_DEVICES is '0'")]
