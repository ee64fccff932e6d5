"""The intervals of a page follow from the runs in docs/measured/raw.parquet, by another formula."""

import pyarrow.parquet as pq
import pytest
from hooks import hook
from paths import ROOT

raw = hook("raw")


def test_a_pages_intervals_follow_from_its_runs():
    page = (ROOT / "docs/measured/leaderboard.md").read_text("utf8")
    lines = list(raw.recomputed(page, pq.read_table(raw.FILE)))
    # Of the leaderboard 9 claims and 61 rows, of the public labels 15, of the four models 5 and 29, of one
    # exchange 4 and 10.
    assert len(lines) == 133
    for what, printed, again in lines:
        assert printed == again, what


def test_interval_is_student_ts():
    """Of 1, 2, 3, 4, 5: mean 3, deviation 1.5811, t with four degrees of freedom 2.7764: 3 -+ 1.9632."""
    assert raw.interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3.0, 1.0368, 4.9632), abs=1e-4)


def test_runs_are_whole_and_the_file_is_small():
    runs = pq.read_table(raw.FILE)
    assert raw.FILE.stat().st_size < 3_000_000
    count = runs.group_by(["study", "run", "model", "seed"]).aggregate([("round", "count")])
    once = [study.startswith("one-shot") for study in count["study"].to_pylist()]
    assert set(zip(once, count["round_count"].to_pylist(), strict=True)) == {(False, 10), (True, 1)}
    assert {len(str(commit)) for commit in runs["commit"].to_pylist()} == {7}
