"""README's method runs as it stands there; its figures, commands and targets exist; it is short."""

import re
import tomllib

import numpy as np
import pytest
from pages import PAGES, README, code_blocks, run_quickstart
from paths import ROOT

import rayfed_kd
from rayfed_kd.cli.main import commands

METHOD = next(block for block in code_blocks(README, "python") if "class DistilFromGlobal" in block)
SHORT = ["data.fraction=0.2", "rounds=1", "local.epochs=1"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_kd.py").write_text(METHOD)
    return tmp_path


# An own method's module reaches actors in test_engines.py, and the command a Ray in test_running.py.
@pytest.mark.parametrize(
    "words",
    [pytest.param(["--local"], id="local"), pytest.param([], id="ray", marks=pytest.mark.slow)],
)
def test_own_method_runs_from_the_folder_of_the_command(words, folder):
    done = run_quickstart(folder, "method={name: my_kd:DistilFromGlobal, coefficient: 1.0}", *SHORT, *words)
    assert done.returncode == 0, done.stderr
    assert "global" in done.stdout


def test_own_method_keeps_the_contract(folder, monkeypatch):
    monkeypatch.chdir(folder)
    check = next(block for block in code_blocks(README, "python") if "check_method(" in block)
    exec(check, {})


def test_own_method_with_coefficient_zero_is_fedavg_bit_for_bit(folder, monkeypatch):
    monkeypatch.chdir(folder)
    vectors = []
    for index, method in enumerate(("{name: my_kd:DistilFromGlobal, coefficient: 0.0}", "{name: fedavg}")):
        changes = [f"method={method}", f"results.folder={folder / str(index)}", *SHORT]
        result = rayfed_kd.run(ROOT / "configs/quickstart.yaml", changes, local=True)
        vectors.append(next(iter(result.models.values())))
    assert np.array_equal(*vectors)


def test_readme_is_read_in_three_minutes():
    assert len(README.splitlines()) <= 150


def test_links_of_readme_lead_to_files():
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README) if not link.startswith("https:")]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_is_documented_and_no_other():
    for text in (PAGES["reference/commands.md"], "\n".join([README, *PAGES.values()])):
        named = set(re.findall(r"^ {4}rayfed-kd (\w+)", text, re.MULTILINE))
        assert named == set(commands.commands)


def test_extras_that_are_told_to_install_exist_and_are_told_as_a_clone_installs_them():
    texts = [README, *(path.read_text() for path in ROOT.glob("rayfed_kd/**/*.py")), *PAGES.values()]
    told = {
        extra
        for text in texts
        for found in re.findall(r"'\.\[([\w,]+)\]'", text)
        for extra in found.split(",")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"tune", "svhn", "cluster"} <= told <= set(project["optional-dependencies"])
    assert not [text for text in texts if f"{project['name']}[" in text]  # it is on no registry
    assert "pip install -c constraints.txt" in README


def test_make_targets_that_are_told_exist():
    makefile = (ROOT / "Makefile").read_text()
    told = set(re.findall(r"(?:`| {4})make (?:CONSTRAINTS= )?([\w-]+)", "\n".join([README, *PAGES.values()])))
    assert {"quickstart", "test", "slow", "docs"} <= told
    assert [target for target in told if f"\n{target}:" not in makefile] == []
