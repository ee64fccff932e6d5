"""A run's folder as it begins and goes on: there is a run in it, or none, at every moment."""

import json
from contextlib import suppress

import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.experiment.resumability import check_unused
from rayfed_kd.results import folder as run_folders
from rayfed_kd.results.folder import DESCRIPTION, write_description

DEVICES = {"clock": {"name": "lognormal"}}


class KilledError(Exception):
    """Stands for a kill: nothing after it happens."""


def begin(folder, *, resume=False, **changes):
    ready = prepare({**THREE_CLIENTS, **changes, "results": {"folder": str(folder)}})
    if not resume:
        check_unused(folder)
    write_description(folder, ready.recipe, ready.setting, "local", resume=resume)


def killed_before_the_recipe(monkeypatch, folder):
    """What a run with devices leaves if the process dies before it writes config.yaml."""
    write = run_folders.atomic_write

    def written(path, content):
        if path.name == "config.yaml":
            raise KilledError
        write(path, content)

    with monkeypatch.context() as patch, suppress(KilledError):
        patch.setattr(run_folders, "atomic_write", written)
        begin(folder, **DEVICES)
        pytest.fail("config.yaml was written")


def test_the_recipe_comes_last(tmp_path, monkeypatch):
    """A folder with config.yaml has all that `resume` needs."""
    killed_before_the_recipe(monkeypatch, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*DESCRIPTION}


def test_files_of_another_recipe_whose_start_was_killed_go(tmp_path, monkeypatch):
    killed_before_the_recipe(monkeypatch, tmp_path)
    begin(tmp_path)
    assert not (tmp_path / "devices.parquet").exists()


def test_resume_writes_what_is_missing_and_leaves_the_rest(tmp_path):
    begin(tmp_path, **DEVICES)
    facts = {"packages": {}, "command": ["as it was begun"]}
    (tmp_path / "environment.json").write_text(json.dumps(facts))
    for name in ("options.yaml", "partition.parquet", "classes.parquet", "devices.parquet"):
        (tmp_path / name).unlink()
    begin(tmp_path, resume=True, **DEVICES, rounds=7)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", *DESCRIPTION}
    assert json.loads((tmp_path / "environment.json").read_text()) == facts
    assert "rounds: 7" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("name", ["tables", "checkpoints"])
def test_folder_with_parts_of_a_run_and_no_recipe_is_refused(name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(RecipeError, match=f"has {name}, which a run writes, but no config.yaml"):
        begin(tmp_path)


@pytest.mark.parametrize("name", ["summary.json", *DESCRIPTION])
def test_files_called_as_a_runs_are_not_overwritten(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(RecipeError, match=f"has {name}, which a run writes, but no config.yaml"):
        begin(tmp_path)
    assert (tmp_path / name).read_text() == "{}"


def test_folder_that_holds_a_run_names_the_command_that_goes_on(tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    begin(folder)
    with pytest.raises(RecipeError, match=r"`rayfed-kd resume '.*/my run' --local` goes on with it"):
        begin(folder)


def test_interrupted_start_names_resume_though_there_is_no_checkpoint(tmp_path, monkeypatch):
    from rayfed_kd.cluster.engine.host import Host

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Host, "answer", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"`rayfed-kd resume .*/run --local --restart` begins again"):
        rayfed_kd.run(THREE_CLIENTS, [f"results.folder={tmp_path / 'run'}"], local=True)
