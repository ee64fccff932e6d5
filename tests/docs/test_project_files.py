"""The files that a repository's host reads: citation, workflow, issue templates."""

import re
import tomllib

import pytest
import yaml
from paths import ROOT

TEMPLATES = sorted(path for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.stem != "config")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
PUBLISHED = sorted(ROOT.glob("rayfed_kd/comparison/published/*.yaml"))


def test_citation_names_the_five_papers_by_their_titles():
    titles = [reference["title"] for reference in CITATION["references"]]
    papers = [yaml.safe_load(path.read_text())["paper"] for path in PUBLISHED]
    assert sorted(titles) == sorted(paper["title"] for paper in papers)
    for paper in papers:
        (reference,) = [r for r in CITATION["references"] if r["title"] == paper["title"]]
        assert reference["year"] == paper["year"]
        assert paper.get("arxiv", "") in reference["notes"]
        assert reference["authors"]


def test_citation_has_what_its_format_requires():
    assert {"cff-version", "message", "title", "authors"} <= set(CITATION)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert CITATION["license"] == project["license"]
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert CITATION["version"] == versions[0]  # the newest in the changelog


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert "bash .ci/run" in steps
    assert (ROOT / ".ci/run").is_file()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_ask_for_something(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert any(field["validations"]["required"] for field in fields if "validations" in field)
    assert all(field["attributes"]["label"] for field in fields)
