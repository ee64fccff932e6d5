"""What a comparison and a search show of their runs under way."""

import io
import re
import time

import pytest

from rayfed_kd.results.screen import Screen
from rayfed_kd.results.study_console import StudyConsole, Work


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


def test_run_that_has_started_is_no_longer_prepared():
    stream = io.StringIO()
    console = StudyConsole("runs", stream)
    console.work.phase = "starting the runs"
    console.work.expect("A, seed 1", 1)
    console.work.start("A, seed 1")
    assert console.minute_text() == "0/1 runs; A, seed 1 0/1"
    console.stop()


def test_file_gets_a_line_a_minute_about_all_runs(monkeypatch):
    monkeypatch.setattr(Screen, "quiet_s", 0.02)
    stream = io.StringIO()
    console = StudyConsole("runs", stream)
    wait_for(lambda: "preparing; 0:00:00\n" in stream.getvalue())
    console.work.phase = "checking A"
    wait_for(lambda: "checking A; 0:00:00\n" in stream.getvalue())
    for seed in (1, 2):
        console.work.expect(f"A, seed {seed}", 10)
    console.work.round("A, seed 1", 1)
    console.work.round("A, seed 1", 2)
    line = re.compile(r"^0/2 runs; about 0:00:\d\d left; A, seed 1 2/10$", re.MULTILINE)
    wait_for(lambda: line.search(stream.getvalue()))
    console.stop()


def test_terminal_of_80_columns_gets_one_live_line(monkeypatch):
    for name, value in (("TERM", "xterm"), ("FORCE_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    console = StudyConsole("trials", stream)
    for number in range(30):
        console.work.expect(f"trial {number}", 10)
        console.work.round(f"trial {number}", 1)
    console.work.round("trial 3", 2)
    console.message("trial 7: starts")
    console._line.refresh()
    console.stop()
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()))
    assert max(map(len, lines)) <= 80
    assert "trial 7: starts" in lines
    assert any(
        re.match(r"0/30 trials [━╸╺]{20} 0:00:\d\d left trial 0 1/10  trial 1 1/10$", line.rstrip())
        for line in lines
    )


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
