"""The tables of docs/measured are those that `compare` wrote, and every claim has its verdict there."""

import json
import re
from pathlib import Path

import pytest
from hooks import hook
from paths import ROOT
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.comparison.studies import read_study
from rayfed_kd.comparison.study_changes import split_into_tables
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.comparison.writers.all_tables import read_table_line

measured = hook("measured")
CLAIM_STUDIES = sorted((ROOT / "configs/claims").glob("*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_a_block_becomes_the_studys_table(tmp_path):
    (tmp_path / "claims-x/alpha-1").mkdir(parents=True)
    sentence = "A caption of many words. " * 6
    (tmp_path / "claims-x/alpha-1/comparison.md").write_text(
        f"{sentence}\n\n| run | {'x' * 120} |\n| --- | --- |\n"
    )
    page = (
        "By hand.\n\n<!-- measured: claims-x/alpha-1 -->\nold\n<!-- end -->\n\n"
        "<!-- measured: claims-y -->\nkept\n<!-- end -->\nEnd.\n"
    )
    new = measured.with_tables(page, tmp_path)
    assert "old" not in new
    assert "kept" in new
    assert f"| run | {'x' * 120} |\n| --- | --- |" in new
    assert all(len(line) <= 100 for line in new.splitlines() if not line.startswith("|"))
    assert measured.with_tables(new, tmp_path) == new
    assert new.startswith("By hand.\n\n<!-- measured: claims-x/alpha-1 -->\n\nA caption")


def test_a_table_that_the_command_line_changed_is_left_out_and_told(tmp_path):
    recipe, study = tmp_path / "recipe.yaml", tmp_path / "study.yaml"
    recipe.write_text(json.dumps(THREE_CLIENTS))
    content = {"base": str(recipe), "runs": [{"label": "A"}], "folder": str(tmp_path / "x")}
    study.write_text(json.dumps(content))
    page = "<!-- measured: x -->\nkept\n<!-- end -->\n"
    rayfed_kd.compare(study, local=True, seeds=2)
    assert measured.with_tables(page, tmp_path) == page
    told = "was changed on the command line (seeds 1 and 2 for 1); its table stays as it is"
    assert measured.what_becomes_of(tmp_path / "x") == told
    rayfed_kd.compare(study, local=True)
    assert "| A (global) |" in measured.with_tables(page, tmp_path)
    assert measured.what_becomes_of(tmp_path / "x") == "read"
    assert measured.what_becomes_of(tmp_path / "y") == "is not there; its table stays as it is"


def test_wrapping_loses_no_word():
    text = "one two " * 40 + "\n\n| a | b |\n| --- | --- |"
    assert measured.wrapped(text).split() == text.split()


def test_verdicts_stand_before_the_rows():
    text = "Title.\n\n| run |\n| --- |\n\nA remark.\n\nClaims:\n\n| claim |\n| --- |\n\nPublished."
    wanted = "\nTitle.\n\n| claim |\n| --- |\n\n| run |\n| --- |\n\nA remark.\n\nPublished.\n\n"
    assert measured.wrapped(text) == wanted


def test_each_method_is_drawn_beside_the_baseline_once_its_rows_have_run(tmp_path):
    """FedProx has two rows, of which one has not run with each seed."""
    study, recipe = tmp_path / "study.yaml", tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(THREE_CLIENTS))
    rows = [
        {"label": "FedAvg"},
        {"label": "FedAvg, 2 epochs", "overrides": ["local.epochs=2"]},
        {"label": "FedProx", "overrides": ["method={name: fedprox, mu: 0.1}"]},
    ]
    content = {"base": str(recipe), "runs": rows, "folder": str(tmp_path / "leaderboard")}
    study.write_text(json.dumps(content))
    rayfed_kd.compare(study, local=True, only=["FedAvg", "FedAvg, 2 epochs"])
    (whole,) = select_studies([str(study)])
    assert measured.labels_by_method(whole) == {
        "fedavg": ["FedAvg", "FedAvg, 2 epochs"],
        "fedprox": ["FedProx"],
    }
    measured.draw_methods(str(study), tmp_path, tmp_path / "pictures")
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["fedavg.png"]


@pytest.mark.parametrize("path", CLAIM_STUDIES, ids=lambda path: path.stem)
def test_every_claim_has_a_verdict_on_the_page(path):
    page = measured.PAGES[0].read_text(encoding="utf8")
    blocks = {found["study"]: found["table"] for found in measured.BLOCK.finditer(page)}
    for table in split_into_tables(read_study(path)):
        block = blocks[Path(table.folder).relative_to("runs").as_posix()]
        rows = [read_table_line(line) for line in block.splitlines() if line.startswith("|")]
        verdicts = {row[0]: row[-1] for row in rows}
        for claim in table.claims:
            assert verdicts[claim.says].startswith(("shown", "not shown", "contradicted")), claim.says


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_page_waits_for_a_table_or_a_word(path):
    """Neither an empty block nor a placeholder, as `@TIME@`."""
    page = path.read_text(encoding="utf8")
    empty = [found["study"] for found in measured.BLOCK.finditer(page) if not found["table"].strip()]
    assert [*empty, *re.findall(r"@[A-Z]+@", page)] == []


@pytest.mark.parametrize("page", ["results", "leaderboard"])
def test_page_says_of_its_claims_together_what_its_tables_say(page):
    text = (ROOT / f"docs/measured/{page}.md").read_text()
    assert hook("together").sentence(text) in text
