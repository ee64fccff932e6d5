"""`doctor` on GPUs: what would fail, from made-up facts, and how this machine's are gathered."""

import os
from dataclasses import replace

import pytest
import torch

from rayfed_kd.cli.doctor import _torch_lines
from rayfed_kd.cli.gpus import (
    Gpu,
    GpuFacts,
    driver_fault,
    gathered,
    gpu_faults,
    gpu_lines,
    has_kernels,
    newest_cuda,
    read_gpus,
)

H200 = Gpu(0, "NVIDIA H200", (9, 0), 143771, 4)
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120")
GOOD = GpuFacts("2.11.0+cu130", "13.0", ARCHITECTURES, 1, "580.159.03", (H200,))
SMI = """\
0, NVIDIA H200, 580.159.03, 9.0, 143771, 4, Default
1, Tesla T4, 580.159.03, 7.5, 15360, 9000, Exclusive_Process
"""


def faults(**changes):
    return list(gpu_faults(replace(GOOD, **changes)))


def test_a_machine_on_which_all_is_well_has_no_fault():
    assert faults() == []
    assert list(gpu_lines(GOOD)) == [
        "GPU 0         NVIDIA H200, capability 9.0, 143,771 MiB, of which 4 are taken; driver 580.159.03"
    ]


def test_a_machine_without_gpus_has_neither_lines_nor_faults():
    assert list(gpu_lines(GpuFacts("2.13.0+cpu", None))) == []
    assert list(gpu_lines(GpuFacts("2.13.0+cu130", "13.0", ARCHITECTURES))) == []


def test_a_build_of_torch_without_cuda_beside_a_gpu():
    (fault,) = faults(torch="2.13.0+cpu", cuda=None, architectures=(), available=0)
    assert "torch 2.13.0+cpu is a build without CUDA" in fault
    assert "CUDA 13 or older" in fault


@pytest.mark.parametrize(
    ("driver", "cuda", "told"),
    [
        ("580.65.06", "13.0", None),
        ("580.65.05", "13.0", "expected 580.65.06 or newer, or a torch for CUDA 12"),
        ("575.57.08", "13.2", "driver 575.57.08 is too old for torch's CUDA 13.2"),
        ("525.60.13", "12.9", None),
        ("470.256.02", "12.6", "expected 525.60.13 or newer, or a torch for CUDA 11"),
        ("390.157", "11.8", "expected 450.80.02 or newer"),
        ("580.65.06", "99.0", None),  # a CUDA of which nothing is known here
    ],
)
def test_a_driver_is_held_against_torchs_cuda(driver, cuda, told):
    """The least drivers are those of NVIDIA's page on minor version compatibility."""
    fault = driver_fault(driver, cuda)
    assert fault is None if told is None else told in fault
    assert faults(driver=driver, cuda=cuda, available=0 if told else 1) == ([fault] if fault else [])


def test_the_newest_cuda_of_a_driver():
    assert [newest_cuda(driver) for driver in ("600.1", "550.54.14", "460.32.03", "390.157", "")] == [
        13,
        12,
        11,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80"], True),  # of the same major version, and later
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80"], False),
        ((9, 0), ["compute_80"], True),
        ((7, 0), ["sm_75", "compute_75"], False),
        ((9, 0), ["sm_90a"], True),
        ((9, 1), ["sm_90a"], False),
        ((12, 0), ["sm_90", "sm_120"], True),
        ((9, 0), [], False),
        ((9, 0), ["gfx942", "sm_"], False),
    ],
)
def test_kernels_run_on_a_capability(capability, architectures, runs):
    assert has_kernels(capability, architectures) is runs


def test_a_gpu_for_which_torch_has_no_kernels():
    (fault,) = faults(gpus=(replace(H200, name="Tesla V100", capability=(7, 0)),))
    assert (
        "GPU 0 (Tesla V100) has capability 7.0, and torch 2.11.0+cu130 has kernels for sm_75, sm_80" in fault
    )


def test_memory_that_others_hold():
    (fault,) = faults(gpus=(replace(H200, total_mib=24000, used_mib=18000),))
    assert "other processes hold 18,000 of 24,000 MiB" in fault
    assert "should stay below 0.25" in fault
    assert faults(gpus=(replace(H200, total_mib=24000, used_mib=2400),)) == []  # a tenth


def test_gpus_that_are_hidden_from_torch():
    (fault,) = faults(available=0, visible="")
    assert "CUDA_VISIBLE_DEVICES is '', and torch sees 0 of 1 GPUs" in fault
    assert faults(visible="0") == []
    (fault,) = faults(available=0, architectures=())
    assert "torch sees no GPU, though the driver lists some" in fault


def test_compute_modes_in_which_hosts_cannot_share_a_gpu():
    (fault,) = faults(gpus=(replace(H200, compute_mode="Exclusive_Process"),))
    assert "one process at a time" in fault
    (fault,) = faults(gpus=(replace(H200, compute_mode="Prohibited"),))
    assert "no process may use it" in fault


def test_a_driver_that_does_not_answer():
    (fault,) = faults(gpus=(), driver="", smi_fault="No devices were found")
    assert fault.startswith("nvidia-smi fails: No devices were found.")


def test_a_gpu_without_tf32_and_bf16_is_told():
    (line,) = gpu_lines(replace(GOOD, gpus=(replace(H200, capability=(7, 5)),)))
    assert line.endswith("; local.precision: fp32 alone")


def test_nvidia_smis_answer_is_read():
    driver, gpus = read_gpus(SMI)
    assert driver == "580.159.03"
    assert gpus == [H200, Gpu(1, "Tesla T4", (7, 5), 15360, 9000, "Exclusive_Process")]
    with pytest.raises(ValueError, match="could not convert"):
        read_gpus("0, NVIDIA H200, 580.159.03, 9.0, [N/A], 4, Default\n")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f"printf '{SMI}'", "GPU 1         Tesla T4, capability 7.5, 15,360 MiB, of which 9,000 are taken"),
        ("echo 'No devices were found'; exit 6", "GPU fault     nvidia-smi fails: No devices were found."),
        (
            "echo 'something else'",
            "GPU fault     nvidia-smi fails: an answer in another form: something else",
        ),
    ],
)
def test_doctor_asks_the_driver_and_torch(script, told, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert any(line.startswith(told) for line in _torch_lines())


def test_this_machines_facts_are_gathered(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = gathered({"CUDA_VISIBLE_DEVICES": "2"})
    assert (facts.torch, facts.cuda, facts.visible) == (torch.__version__, torch.version.cuda, "2")
    assert (facts.driver, list(facts.gpus), facts.smi_fault) == ("", [], "")


def test_doctor_says_whether_models_can_be_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (line,) = (line for line in _torch_lines() if line.startswith("compiler"))
    assert line.startswith("compiler      no local.compile: torch.compile needs a compiler, and /nowhere/g++")
