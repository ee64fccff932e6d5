"""Own code or data that were edited: neither a comparison nor `resume` mixes their results silently."""

import importlib
import re
import sys

import numpy as np
import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.cluster.ray_backend.machines import look
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.results.folder import changed_inputs

METHOD = "from rayfed_kd.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"


@pytest.fixture
def mine(own_module, tmp_path):
    """The file of a method, `STEM:Mine`, in the current folder; a module of this test alone."""
    return tmp_path / f"{own_module(f'mine_{tmp_path.name}', METHOD)}.py"


def recipe_of(file):
    return THREE_CLIENTS | {"method": {"name": f"{file.stem}:Mine"}, "rounds": 1}


def test_comparison_refuses_finished_runs_of_other_code_and_names_file_and_folder(mine):
    def compare():
        return rayfed_kd.compare({"A": recipe_of(mine)}, local=True, folder="runs")

    compare()
    compare()
    mine.write_text(METHOD + "\n# edited\n")
    with pytest.raises(RecipeError, match=f"A, seed 1: runs/A-seed1 was made with another {mine.name}"):
        compare()
    mine.write_text(METHOD)
    compare()


def test_comparison_refuses_finished_runs_of_other_data(tmp_path, own_cache):
    def compare(classes, seeds):
        np.savez(tmp_path / "a.npz", x_train=np.zeros((60, 4)), y_train=np.arange(60) % classes)
        data = {"name": "npz", "folder": str(tmp_path), "file": "a.npz"}
        rows = {"A": {**THREE_CLIENTS, "data": data, "rounds": 1}}
        rayfed_kd.compare(rows, local=True, folder=tmp_path / "runs", seeds=seeds)

    compare(3, [1])
    with pytest.raises(RecipeError, match=r"A, seed 1: .*/A-seed1 was made with other data"):
        compare(2, [1, 2])
    compare(3, [1, 2])


def test_a_new_process_finds_the_code_that_it_is_asked_about(mine, monkeypatch):
    """A command's own folder is not on the import path before it puts it there."""
    folder = rayfed_kd.run(recipe_of(mine), {"results.folder": "run"}, local=True).folder
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(mine.parent))])
    monkeypatch.delitem(sys.modules, mine.stem)
    mine.write_text(METHOD + "\n# edited\n")
    told = f"was begun with another {mine.name}, or none that is found from this folder: the bits may differ"
    with pytest.raises(RecipeError, match=told):
        rayfed_kd.resume(folder, rounds=2, local=True)
    mine.rename(mine.with_suffix(".txt"))
    assert changed_inputs(folder) == [f"another {mine.stem}.py, or none that is found from this folder"]


def test_run_without_a_checkpoint_begins_again_with_mended_code(mine):
    """Nothing of the old code's would go on, so `--restart`, which the failed run offers, is enough."""
    mine.write_text(
        METHOD.replace(
            "    pass",
            "    def absorb(self, server, replies, ctx):\n        if ctx.rounds == 2:\n"
            "            raise ValueError\n        return super().absorb(server, replies, ctx)",
        )
    )
    with pytest.raises(RunError, match="--local --restart` begins again at round 1"):
        rayfed_kd.run({**recipe_of(mine), "rounds": 2}, {"results.folder": "run"}, local=True)
    mine.write_text(METHOD)
    with pytest.raises(RecipeError, match=f"was begun with another {mine.name}"):
        rayfed_kd.resume("run", rounds=3, local=True)
    with pytest.raises(RecipeError, match=f"'{mine.stem}' has changed since it was imported"):
        rayfed_kd.run(recipe_of(mine), local=True)
    importlib.reload(sys.modules[mine.stem])
    assert rayfed_kd.resume("run", rounds=3, local=True, restart=True).summary["rounds"] == 3


def test_a_process_that_finds_another_copy_builds_nothing(mine, tmp_path):
    """As on a machine whose copy is older, or where a folder before this one has a module of its name."""
    blueprint = prepare(recipe_of(mine)).blueprint
    mine.write_text(METHOD + "\n# another copy\n")
    told = rf"machine .*: {mine.stem} [0-9a-f]+ there, [0-9a-f]+ here; a module of your own is the same file"
    with pytest.raises(RunError, match=told):
        blueprint.build()
    assert re.search(told, look(blueprint, str(tmp_path)).fault)


def test_recipe_without_own_code_says_so(tmp_path):
    done = rayfed_kd.run(THREE_CLIENTS, {"results.folder": str(tmp_path / "run")}, rounds=1, local=True)
    assert changed_inputs(done.folder) == []


def test_a_named_file_that_is_another_now_is_told(tmp_path):
    (weights := tmp_path / "w.pt").write_text("others than those whose hash was noted")
    (tmp_path / "environment.json").write_text(f'{{"files": {{"{weights}": "0123456789abcdef"}}}}')
    assert changed_inputs(tmp_path) == [f"another {weights}"]


def test_installed_package_is_not_imported_to_tell_that_it_is_nobodys_own(mine, tmp_path, monkeypatch):
    """An import may fail, as torchvision's beside another torch, which `import_torchvision` mends first."""
    (package := tmp_path / "site-packages/broken_package").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(package.parent)
    mine.write_text(f"try:\n    import broken_package.part\nexcept RuntimeError:\n    pass\n{METHOD}")
    assert list(prepare(recipe_of(mine)).blueprint.own_code) == [mine.stem]


def test_what_a_method_changes_of_its_state_to_evaluate_it_is_no_work_of_a_round(mine):
    body = (
        "def evaluated(self, server):\n        return {'global': super().evaluated(server)['global'].mul_(2)}"
    )
    mine.write_text(METHOD.replace("pass", body))
    runs = [rayfed_kd.run(recipe_of(mine), [f"evaluation.every={n}"], rounds=3, local=True) for n in (1, 3)]
    assert np.array_equal(*(run.models["global"] for run in runs))
