"""What a comparison and a search show of their runs under way."""

import re

import pytest

from rayfed_kd.results.console import StudyConsole, Work


def test_time_left_goes_by_all_rounds_of_all_runs():
    now = 0.0
    work = Work(lambda: now)
    for name in ("A", "B", "C"):
        work.expect(name, 10)
    assert work.seconds_left() is None
    work.round("A", 1)  # before it runs were started, which is no measure of a round
    now = 4.0
    work.round("A", 2)
    work.round("B", 6)  # it goes on after round 5
    assert work.running() == ["A 2/10", "B 6/10"]
    now = 8.0
    work.round("A", 3)
    assert work.seconds_left() == pytest.approx((7 + 4 + 10) * 8.0 / 2)
    work.end("B")  # stopped early: no more is expected of it
    assert work.seconds_left() == pytest.approx((7 + 10) * 8.0 / 2)
    assert work.counts() == (1, 3)
    assert work.share() == pytest.approx((3 + 10) / 30)
    assert work.running() == ["A 3/10"]


def test_runs_of_one_round_are_measured_as_a_whole():
    """Two of six take 7 seconds, so the four others take 14; the one under way is shown from its start on."""
    now = 3.0
    work = Work(lambda: now)
    for name in "ABCDEF":
        work.expect(name, 1)
    work.start("A")
    assert (work.seconds_left(), work.running()) == (None, ["A 0/1"])
    now = 6.0
    work.round("A", 1)
    work.end("A")
    work.start("B")
    now = 10.0
    work.round("B", 1)
    work.end("B")
    work.start("C")
    assert work.seconds_left() == pytest.approx(14.0)
    assert (work.running(), work.counts()) == (["C 0/1"], (2, 6))


def test_terminal_of_80_columns_gets_one_live_line(terminal):
    console = StudyConsole("trials", terminal)
    for number in range(30):
        console.work.expect(f"trial {number}", 10)
        console.work.round(f"trial {number}", 1)
    console.work.round("trial 3", 2)
    console.message("trial 7: starts")
    console._line.refresh()
    console.stop()
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()))
    assert max(map(len, lines)) <= 80
    assert "trial 7: starts" in lines
    assert any(
        re.match(r"0/30 trials [━╸╺]{20} 0:00:\d\d left trial 0 1/10  trial 1 1/10$", line.rstrip())
        for line in lines
    )
