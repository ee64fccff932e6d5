"""README's own method runs as it stands there; its commands exist; recipe keys and methods are documented."""

import os
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from paths import ROOT

import rayfed_kd
from algorithms import METHODS
from rayfed_kd.cli.listing import public_data, schedules
from rayfed_kd.cli.main import commands
from rayfed_kd.comparison.studies import Quick, Study, StudyRun, StudyTable
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.comparison.study_tables import quick_version, split_into_tables
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.schema import Recipe

README = (ROOT / "README.md").read_text(encoding="utf8")
METHOD = next(b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class FedProx" in b)
SHORT = ["data.fraction=0.2", "rounds=1", "local.epochs=1"]


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rayfed_kd", "run", str(ROOT / "configs/quickstart.yaml"), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_fedprox.py").write_text(METHOD)
    return tmp_path


# An own method's module reaches actors in test_engines.py, and the command a Ray in test_running.py.
@pytest.mark.parametrize(
    "words",
    [pytest.param(["--local"], id="local"), pytest.param([], id="ray", marks=pytest.mark.slow)],
)
def test_own_method_runs_from_the_folder_of_the_command(words, folder):
    done = run(folder, "method={name: my_fedprox:FedProx, mu: 1.0}", *SHORT, *words)
    assert done.returncode == 0, done.stderr
    assert "global" in done.stdout


def test_own_method_keeps_the_contract(folder, monkeypatch):
    monkeypatch.chdir(folder)
    check = next(b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "check_method(" in b)
    exec(check, {})


def test_own_methods_wrong_option_gets_the_printed_answer(folder):
    done = run(folder, "method={name: my_fedprox:FedProx, mi: 1.0}", "--local")
    assert done.returncode == 2
    answer = done.stderr.replace(str(ROOT) + "/", "").strip()
    assert answer in README


def test_own_method_with_mu_zero_is_fedavg_bit_for_bit(folder, monkeypatch):
    monkeypatch.chdir(folder)
    vectors = []
    for index, method in enumerate(("{name: my_fedprox:FedProx, mu: 0.0}", "{name: fedavg}")):
        changes = [f"method={method}", f"results.folder={folder / str(index)}", *SHORT]
        result = rayfed_kd.run(ROOT / "configs/quickstart.yaml", changes, local=True)
        vectors.append(next(iter(result.models.values())))
    assert np.array_equal(*vectors)


def test_the_study_file_is_planned_in_the_order_that_is_told(tmp_path):
    shown = next(b for b in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if b.startswith("title:"))
    file = tmp_path / "mine.yaml"
    file.write_text(shown)
    small = select_studies([str(file)], quick=True)
    assert [study.folder for study in small] == ["runs/two-methods-quick/alpha-0.1"]
    assert "5 rounds" in small[0].title
    told = "the study's overrides, `quick`'s, the table's, the row's own, `quick`'s for that row"
    assert f"{told}, the table's for it" in " ".join(README.split())
    words = ("study", "quick", "table", "row", "quick row", "table row")
    named = {word: [f"results.folder={word}"] for word in words}
    study = Study(
        folder="f",
        base=str(ROOT / "configs/quickstart.yaml"),
        overrides=named["study"],
        runs=[StudyRun(label="a", overrides=named["row"])],
        tables={"t": StudyTable(overrides=named["table"], runs={"a": named["table row"]})},
        quick=Quick(title="q", overrides=named["quick"], runs={"a": named["quick row"]}),
    )
    (one,) = split_into_tables(quick_version(study))
    order = [*one.overrides, *one.runs[0].overrides]
    assert order == [change for word in words for change in named[word]]


def test_tables_are_read_as_it_is_told(tmp_path):
    shown = next(b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "group_by" in b)
    folder = tmp_path / "run"
    rayfed_kd.run(ROOT / "configs/quickstart.yaml", [*SHORT, f"results.folder={folder}"], local=True)
    found = {}
    exec(shown.replace("runs/NAME", str(folder)), found)
    assert found["messages"].num_rows and found["clients"].num_rows


def test_every_command_of_readme_exists():
    named = set(re.findall(r"^ {4}rayfed-kd (\w+)", README, re.MULTILINE))
    assert named == set(commands.commands)


def test_every_method_and_recipe_key_is_documented():
    for name in METHODS:
        assert f"`{name}`" in README
    shown = README.split("## The recipe")[1].split("```")[1]
    left_out = {"deterministic"}  # told further down
    assert {key for key in Recipe.model_fields if f"\n{key}:" not in shown} == left_out


def test_table_of_methods_says_what_the_methods_say():
    """A row of several names says it once if it is the same for all."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|.*\| ([^|]+) \| ([^|]+) \|$", README, re.MULTILINE)
    rows = [row for row in rows if set(re.findall(r"\w+", row[0])) <= set(METHODS)]
    assert sorted(name for names, _, _ in rows for name in re.findall(r"\w+", names)) == sorted(METHODS)
    for names, *cells in rows:
        listed = {name: load_object(METHODS[name], "") for name in re.findall(r"\w+", names)}
        for cell, fact in zip(cells, (public_data, schedules), strict=True):
            facts = {name: fact(method) for name, method in listed.items()}
            each = "; ".join(f"{name} {text}" for name, text in facts.items())
            expected = next(iter(facts.values())) if len(set(facts.values())) == 1 else each
            assert cell.replace("`", "") == expected, f"README's row of {names}"


def test_extras_that_are_told_to_install_exist_and_are_told_as_a_clone_installs_them():
    texts = [README, *(path.read_text() for path in ROOT.glob("rayfed_kd/**/*.py"))]
    texts += [path.read_text() for path in ROOT.glob("docs/**/*.md")]
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


def test_make_targets_of_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:`| {4})make (?:CONSTRAINTS= )?(\w+)", README)):
        assert f"\n{target}:" in makefile
