"""README is short, and its links, commands, extras and targets exist; its method runs in test_extend.py."""

import re
import shutil
import subprocess
import tomllib

import pytest
from pages import PAGES, README, run_quickstart
from paths import ROOT

from rayfed_kd.cli.main import commands


def test_readme_is_read_in_three_minutes():
    assert len(README.splitlines()) <= 150


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


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ({"python3.11": 127, "python3.12": 1, "python3": 0}, "\npython3 -m venv .venv\n"),
        ({"python3": 1}, "rayfed-kd needs Python 3.11 or newer, and none was found; name one: make PYTHON="),
    ],
)
def test_make_takes_the_first_python_that_runs_and_is_new_enough(codes, told, tmp_path):
    for name, code in codes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    make = [shutil.which("make"), "-n", "-f", ROOT / "Makefile", "install", f"VENV={tmp_path}/.venv"]
    done = subprocess.run(
        make, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert told.replace(".venv", f"{tmp_path}/.venv") in done.stdout


def test_make_targets_that_are_told_exist():
    makefile = (ROOT / "Makefile").read_text()
    told = set(re.findall(r"(?:`| {4})make (?:[A-Z_]+=\S* )*([\w-]+)", "\n".join([README, *PAGES.values()])))
    assert {"quickstart", "test", "slow", "docs"} <= told
    assert [target for target in told if f"\n{target}:" not in makefile] == []


def test_scripts_that_are_told_are_there_with_the_options_that_are_told():
    texts = re.sub(r"\\\n\s+", " ", "\n".join([README, *PAGES.values()]))
    told = re.findall(r"\bpython[\d.]* ((?:tests|docs|benchmarks)/\S+\.py)([^`#\n]*)", texts)
    assert len(told) > 20
    for script, words in told:
        source = (ROOT / script).read_text()
        assert [word for word in re.findall(r"--[\w-]+", words) if f'"{word}"' not in source] == [], script


def masked(line):
    """A printed line without what differs from machine to machine: numbers, and with them widths."""
    return re.sub(r"[─━ ]+", " ", re.sub(r"\d[\d.,:-]*", "0", line))


@pytest.mark.slow
def test_quickstart_prints_the_lines_that_are_shown(tmp_path):
    done = run_quickstart(tmp_path, "--local")
    printed = set(map(masked, (done.stdout + done.stderr).splitlines()))
    for text in (README, PAGES["getting-started.md"]):
        (shown,) = re.findall(r"^```\n((?:round|method) .*?)^```$", text, re.DOTALL | re.MULTILINE)
        lines = [line for line in shown.splitlines() if "..." not in line]
        on_ray = ("engine", "processes", "starting the actors")
        assert [line for line in lines if masked(line) not in printed and not line.startswith(on_ray)] == []
