"""The intervals of a page follow from the runs in docs/measured/raw.parquet, by another formula."""

import pyarrow.parquet as pq
import pytest
from hooks import hook

raw = hook("raw")
RUNS = pq.read_table(raw.FILE)


# Of the leaderboard 9 claims and 61 rows, after each same search 10 and 18 and the finds of 14 searches; of
# the public labels 15, of the four models 5 and 29, of one exchange 4 and 10. Of FedD2S' Table 2 8 and 13 at
# each of two rates, of FedGEMS' 5 and 21, of KDIA 5 and 3; of DaFKD as released 2 and 2; of bytes 10 and 27.
COUNTS = {"measured/results": 4, "measured/leaderboard": 259, "measured/tables": 76, "guide/codecs": 37}


@pytest.mark.parametrize(("page", "count"), COUNTS.items())
def test_a_pages_intervals_follow_from_its_runs(page, count):
    text = (raw.DOCS / f"{page}.md").read_text("utf8")
    lines = [*raw.recomputed(text, RUNS), *raw.found_again(text, RUNS)]
    assert (len(lines), [line for line in lines if line[1] != line[2]]) == (count, [])


def test_a_block_written_from_the_runs_is_its_pages():
    """That of one exchange was written by `compare`, from the folders of its runs."""
    rates = (f"fedd2s-cifar10-whole/Adam-{rate}" for rate in (0.001, 0.01))
    pages = "".join(page.read_text("utf8") for page in raw.PAGES)
    blocks = dict.fromkeys(rates, "fedd2s_cifar10") | {"one-shot/LeNet-5": "one_shot"}
    blocks["kdia-cifar10-whole/beta-5.0"] = "kdia_cifar10_whole"
    for name, config in blocks.items():
        assert hook("raw_block").rendered(f"configs/compare/{config}.yaml", name, []) in pages


def test_interval_is_student_ts():
    """Of 1, 2, 3, 4, 5: mean 3, deviation 1.5811, t with four degrees of freedom 2.7764: 3 -+ 1.9632."""
    assert raw.interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3.0, 1.0368, 4.9632), abs=1e-4)


def test_runs_are_whole_and_the_file_is_small():
    assert raw.FILE.stat().st_size < 3_000_000
    count = RUNS.group_by(["study", "run", "model", "seed"]).aggregate([("round", "count")])
    rounds = {"one-shot": 1, "fedd2s-cifar10": 100, "fedd2s-cifar10-whole": 100, "dafkd-released-quick": 30}
    rounds["kdia-cifar10-whole"] = 200
    for row in count.to_pylist():
        study, run = row["study"].partition("/")[0], row["run"]
        # Of FedGEMS' Table 2 FedGKT is evaluated once, and others have five rounds.
        few = study == "fedgems-table2-quick" and run.startswith(("Stand-Alone", "Centralized", "FedGKT"))
        assert row["round_count"] == ((1 if run == "FedGKT" else 5) if few else rounds.get(study, 10))
    assert {len(str(commit)) for commit in RUNS["commit"].to_pylist()} == {7}
