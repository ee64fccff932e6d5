"""A wheel that is built from the tree works in an environment of its own, away from the clone."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from crowded_folder import COMMANDS, OWN, crowd
from paths import ROOT

ON_RAY = ("run", "quickstart", OWN, "rounds=1", "results.folder=on_ray")
SOURCES = ("rayfed_kd", "algorithms", "cluster", "configs", "pyproject.toml", "README.md", "LICENSE")


def command(*words, folder):
    """Runs a command without this process's PYTHONPATH; gives what it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_commands_work_in_a_crowd(folder, *program):
    crowd(folder)
    for words in (*COMMANDS, ON_RAY):
        command(*program, *words, folder=folder)
    assert '"finished"' in (folder / "on_ray/summary.json").read_text()


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the wheel; it sees this one's packages, but not its rayfed-kd."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # .ci/run makes one as a release does, through its archive of sources.
    wheel = os.environ.get("RAYFED_KD_WHEEL") or built(folder, pip)
    command(sys.executable, "-m", "venv", "--without-pip", folder / "env", folder=folder)
    python = folder / "env/bin/python"
    command(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, folder=folder)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(command(python, "-c", asked, folder=folder).strip())
    # A line of a .pth file is a folder. The .pth files in it, as that of an editable install, are not read.
    (packages / "present.pth").write_text(sysconfig.get_path("purelib"))
    return python


def built(folder, pip):
    """A wheel of the tree."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:  # building in the tree would leave build/ there
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, source)
    command(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source, folder=folder)
    shutil.rmtree(source)
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_quickstart_runs_by_its_name_from_another_folder(python, tmp_path):
    rayfed_kd = python.with_name("rayfed-kd")
    installed = command(python, "-c", "import rayfed_kd; print(rayfed_kd.__file__)", folder=tmp_path)
    assert installed.startswith(str(python.parents[1]))
    assert "  quickstart " in command(rayfed_kd, "recipes", folder=tmp_path)
    command(rayfed_kd, "run", "quickstart", "rounds=1", "results.folder=first", "--local", folder=tmp_path)
    assert (tmp_path / "first/summary.json").is_file()


@pytest.mark.slow
def test_wheel_has_every_recipe(python, tmp_path):
    """A symbolic link in the tree, files in the wheel."""
    told = "from rayfed_kd.recipe.shipped import FOLDER, shipped_files as files; print(FOLDER)"
    folder, names = command(
        python, "-c", f"{told}; print(*files('recipe', 'study', 'space'))", folder=tmp_path
    ).splitlines()
    assert folder.startswith(str(python.parents[1]))
    in_the_tree = [str(path.relative_to(ROOT / "configs")) for path in ROOT.glob("configs/**/*.yaml")]
    assert names.split() == sorted(name.removesuffix(".yaml") for name in in_the_tree)


@pytest.mark.slow
def test_commands_of_a_wheel_work_among_a_users_packages_of_our_folders_names(python, tmp_path):
    assert_commands_work_in_a_crowd(tmp_path, python.with_name("rayfed-kd"))


@pytest.mark.slow
def test_a_search_runs_from_a_wheel(python, tmp_path):
    words = ("tune", "quickstart", "--space", "tune/quickstart", "--samples", "1", "rounds=1")
    command(python.with_name("rayfed-kd"), *words, "--folder", "search", folder=tmp_path)
    assert (tmp_path / "search/best.yaml").is_file()


@pytest.mark.slow
def test_commands_of_a_clone_work_among_a_users_packages_of_our_folders_names(tmp_path):
    assert_commands_work_in_a_crowd(tmp_path, sys.executable, "-m", "rayfed_kd")
