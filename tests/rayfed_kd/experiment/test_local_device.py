"""The local engine: on a GPU if the recipe's placement names one, and without Ray."""

import subprocess
import sys

import pytest
import torch
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.cluster.engine import device as engine_device
from rayfed_kd.errors import RecipeError

RECIPE = {**THREE_CLIENTS, "rounds": 1}
WITHOUT_RAY = """
import sys
sys.modules["ray"] = None  # importing it is an error
from rayfed_kd.cli.main import main
sys.argv[:1] = ["rayfed-kd", "run", "quickstart", "--local", "rounds=1", "evaluation.samples=false"]
main()
"""


def settings():
    """How torch computes in this process."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    deterministic = torch.are_deterministic_algorithms_enabled()
    return cudnn.allow_tf32, products.allow_tf32, cudnn.benchmark, deterministic


@pytest.mark.parametrize("whose", ["client", "server"])
def test_a_gpu_that_torch_does_not_see_is_refused_before_there_is_a_folder(whose, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder, share = tmp_path / "run", {f"placement.{whose}.num_gpus": 0.5}
    with pytest.raises(RecipeError, match=rf"placement\.{whose}\.num_gpus = 0\.5: torch sees no GPU"):
        rayfed_kd.run(RECIPE, {**share, "results.folder": str(folder)}, local=True)
    assert not folder.exists()


def test_gpus_that_are_only_counted_compute_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYFED_KD_LOGICAL_GPUS", "1")
    monkeypatch.setattr(engine_device, "gpu", None)  # not called
    overrides = {"placement.client.num_gpus": 1, "results.folder": str(tmp_path / "run")}
    assert rayfed_kd.run(RECIPE, overrides, local=True).summary["status"] == "finished"


def test_clients_and_server_compute_where_the_placement_says(tmp_path, monkeypatch):
    asked = []

    def gpu(deterministic):
        asked.append(deterministic)
        return torch.device("cpu")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(engine_device, "gpu", gpu)
    rayfed_kd.run(RECIPE, {"results.folder": str(tmp_path / "none")}, local=True)
    assert asked == []
    both = {"placement.client.num_gpus": 0.5, "placement.server.num_gpus": 0.5, "deterministic": False}
    rayfed_kd.run(RECIPE, {**both, "results.folder": str(tmp_path / "both")}, local=True)
    assert asked == [False, False]


def test_a_gpu_computes_in_fp32_with_kernels_that_repeat_and_afterwards_as_before(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = settings()
    with pytest.raises(ZeroDivisionError), engine_device.settings_kept():
        assert engine_device.gpu(deterministic=True) == torch.device("cuda", 0)
        assert settings() == (False, False, False, True)
        raise ZeroDivisionError
    assert settings() == before
    with engine_device.settings_kept():
        engine_device.gpu(deterministic=False)
        assert settings() == (False, False, before[2], before[3])
    assert settings() == before


WITHOUT_COMPILER = """
import sys
import rayfed_kd
rayfed_kd.run("quickstart", ["rounds=1", sys.argv[1]], local=True)
sys.exit("torch._inductor" in sys.modules or "torch._dynamo" in sys.modules)
"""


def test_a_run_on_a_cpu_does_not_load_torchs_compiler(tmp_path):
    """It takes one to two seconds, which a command waited for after its last round."""
    words = [sys.executable, "-c", WITHOUT_COMPILER, f"results.folder={tmp_path / 'run'}"]
    assert subprocess.run(words, capture_output=True, check=False, cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_local_run_imports_no_ray(tmp_path):
    words = [sys.executable, "-c", WITHOUT_RAY, f"results.folder={tmp_path / 'run'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "engine     local, " in done.stdout
