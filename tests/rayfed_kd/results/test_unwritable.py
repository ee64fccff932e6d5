"""A run folder that takes no more: a message, and what was written before is there."""

import pytest
from command_line import run_command
from memory_limit import full_disk
from paths import ROOT

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.tables import read_table

SMALL = ["rounds=3", "data.fraction=0.3", "local.epochs=1", "evaluation.samples=false"]


def run_words(folder, *changes):
    recipe = str(ROOT / "configs/quickstart.yaml")
    return ["run", recipe, "--local", f"results.folder={folder}", *SMALL, *changes]


def test_disk_that_fills_up_in_mid_run_ends_it_with_what_there_is(tmp_path):
    """Tables of three rounds are small; the checkpoint, with every client's model, is not."""
    with full_disk(300_000):
        done = run_command(*run_words(tmp_path / "run", "checkpoint.every=2"))
    assert done.returncode == 1
    message = "the run's folder cannot be written"
    assert message in done.stderr
    assert "File too large" in done.stderr
    assert f"`rayfed-kd resume {tmp_path / 'run'} --local --restart` begins again at round 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert read_table(tmp_path / "run" / "tables", "rounds")["round"].to_pylist() == [1, 2]
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_disk_that_is_full_before_the_first_round_is_a_bad_folder(tmp_path):
    with full_disk(100):
        done = run_command(*run_words(tmp_path / "run"))
    assert done.returncode == 2
    assert "results.folder:" in done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_full_disk_on_resuming_leaves_the_recipe_as_it_was(tmp_path):
    """config.yaml is all that says what the run is: half of it would end the run for good."""
    folder = rayfed_kd.run(
        ROOT / "configs/quickstart.yaml",
        [f"results.folder={tmp_path / 'run'}", *SMALL, "rounds=1", "data.fraction=0.1"],
        local=True,
    ).folder
    config = (folder / "config.yaml").read_text()
    with full_disk(100):
        done = run_command("resume", str(folder), "--local", "rounds=2")
    assert done.returncode == 2
    assert "results.folder:" in done.stderr
    assert (folder / "config.yaml").read_text() == config
    assert not list(folder.glob(".part-*"))


@pytest.mark.parametrize("place", ["file/below", "/proc/nothing/here"])
def test_folder_that_cannot_be_made_is_refused(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"results.folder: .* cannot be written \(.*\)"):
        rayfed_kd.run(ROOT / "configs/quickstart.yaml", [f"results.folder={tmp_path / place}"], local=True)


def test_folder_in_rays_copy_of_the_project_is_refused(tmp_path, monkeypatch):
    """There a job runs that was submitted with --working-dir: what is left there goes with it."""
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0123"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    for changes in ([], ["results.folder=runs/here"]):
        with pytest.raises(RecipeError, match=r"results.folder: .*/runs/.* lies in Ray.s copy of"):
            rayfed_kd.run(ROOT / "configs/quickstart.yaml", ["data.fraction=0.1", *changes], local=True)
    assert list(copy.iterdir()) == []
