"""README is short, and its links, commands, extras and targets exist; its method runs in test_extend.py."""

import re
import tomllib

from pages import PAGES, README
from paths import ROOT

from rayfed_kd.cli.main import commands


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
