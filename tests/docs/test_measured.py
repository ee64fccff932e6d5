"""The tables of docs/results.md are those that `compare` wrote, and every claim has its verdict there."""

from pathlib import Path

import pytest
from hooks import hook
from paths import ROOT

from rayfed_kd.comparison.studies import read_study
from rayfed_kd.comparison.study_tables import split_into_tables
from rayfed_kd.comparison.writers.markdown import read_table_line

measured = hook("measured")
CLAIM_STUDIES = sorted((ROOT / "configs/claims").glob("*.yaml"))


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


def test_wrapping_loses_no_word():
    text = "one two " * 40 + "\n\n| a | b |\n| --- | --- |"
    assert measured.wrapped(text).split() == text.split()


def test_verdicts_stand_before_the_rows():
    text = "Title.\n\n| run |\n| --- |\n\nA remark.\n\nClaims:\n\n| claim |\n| --- |\n\nPublished."
    wanted = "\nTitle.\n\n| claim |\n| --- |\n\n| run |\n| --- |\n\nA remark.\n\nPublished.\n\n"
    assert measured.wrapped(text) == wanted


@pytest.mark.parametrize("path", CLAIM_STUDIES, ids=lambda path: path.stem)
def test_every_claim_has_a_verdict_on_the_page(path):
    page = measured.PAGE.read_text(encoding="utf8")
    blocks = {found["study"]: found["table"] for found in measured.BLOCK.finditer(page)}
    for table in split_into_tables(read_study(path)):
        block = blocks[Path(table.folder).relative_to("runs").as_posix()]
        rows = [read_table_line(line) for line in block.splitlines() if line.startswith("|")]
        verdicts = {row[0]: row[-1] for row in rows}
        for claim in table.claims:
            assert verdicts[claim.says].startswith(("shown", "not shown", "contradicted")), claim.says
