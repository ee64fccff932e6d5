"""What a run, a comparison and a search print, word for word."""

import io
import re
import time
from pathlib import Path

import pytest
from waiting import wait_until

from rayfed_kd.results.console import RunConsole, StudyConsole, Work, format_bytes
from rayfed_kd.results.screen import Screen, clock_text, fitting, seconds_left

EVENT = {
    "round": 3,
    "rounds": 10,
    "round_s": 2.14,
    "wall_s": 6.3,
    "logged": {"ce": 1.2, "kl": 0.33},
    "bytes_up": 1536,
    "bytes_down": 3 * 2**20,
    "cohort": 4,
    "metrics": {"global": {"amp": 0.4124, "wlp": 0.1, "server_accuracy": None}},
}

VALUES = {"amp": 0.5, "fm": 0.01, "wlp": 0.25, "ua": None, "server_accuracy": 0.75}
SUMMARY = {
    "rounds": 10,
    "status": "finished",
    "wall_s": 8.0,
    "bytes": {"up": 1024, "down": 2048},
    "clients": 10,
    "tested_clients": 9,
    "models": {"oca": {"last": VALUES, "best": VALUES, "best_round": 7, "best_by": "server_accuracy"}},
}


@pytest.fixture
def stream():
    return io.StringIO()


def test_round_is_one_plain_line(stream):
    console = RunConsole(stream)
    console.round(EVENT)
    assert stream.getvalue() == (
        "round 3/10  2.1 s  0:00:15 left  global amp 0.412 wlp 0.100  ce 1.200  kl 0.330  "
        "up 1.5 KiB down 3.0 MiB\n"
    )


@pytest.mark.parametrize("metrics", [{}, None, {"global": {"amp": None}}])
@pytest.mark.parametrize("logged", [{}, {"ce": None}])
def test_values_that_are_not_there_are_left_out(metrics, logged, stream):
    RunConsole(stream).round({**EVENT, "metrics": metrics, "logged": logged})
    assert stream.getvalue() == "round 3/10  2.1 s  0:00:15 left  up 1.5 KiB down 3.0 MiB\n"


def test_without_a_terminal_there_are_no_control_characters(stream):
    console = RunConsole(stream)
    console.start("quickstart.yaml rounds=3")
    console.message("client 3 was lost, and runs again")
    console.round(EVENT)
    console.stop()
    first, second, *_ = stream.getvalue().splitlines()
    assert (first, second) == ("quickstart.yaml rounds=3", "client 3 was lost, and runs again")
    assert all(character.isprintable() or character == "\n" for character in stream.getvalue())


def test_live_display_keeps_the_last_evaluation(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    console = RunConsole(terminal)
    console.start("quickstart.yaml")
    console.round(EVENT)
    console.round({**EVENT, "round": 4, "metrics": {}})
    console.message("still there")
    console.stop()
    lines = plain(terminal.getvalue()).split("still there")
    assert "round 3/10  2.1 s  global amp 0.412 wlp 0.100  ce 1.200  kl 0.330" in lines[0]
    assert re.search(r"round 4/10 [━╸╺]+ 0:00:09 left global amp 0.412 wlp 0.100  ce 1.200", lines[1])


def plain(text):
    """What a terminal shows, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_live_line_fits_80_columns_and_begins_with_round_bar_and_time_left(terminal):
    console = RunConsole(terminal)
    console.start("quickstart.yaml")
    console.round({**EVENT, "logged": {"a_loss_with_a_long_name": 1.0, "another_one": 2.0}, "sim_s": 1e6})
    console.message("x")
    console.stop()
    lines = re.split(r"[\r\n]+", plain(terminal.getvalue()))
    assert max(map(len, lines)) <= 80
    live = [line.rstrip() for line in lines if "━" in line and not line.startswith("round 1 ")]
    assert live
    assert all(
        re.match(r"round 3/10 [━╸╺]{20} 0:00:1\d left global amp 0.412 wlp 0.100$", line) for line in live
    )


def test_before_the_first_round_it_says_what_it_waits_for(terminal):
    console = RunConsole(terminal)
    console.start("quickstart.yaml")
    for phase in ("decoding mnist 40 %", "starting Ray"):
        console.phase(phase)
        console._line.refresh()
    console.stop()
    assert re.search(
        r"decoding mnist 40 % [━╸╺]{20} 0:00:00.*starting Ray [━╸╺]{20} 0:00:00",
        plain(terminal.getvalue()),
        re.DOTALL,
    )


def test_file_says_first_what_runs_and_then_gets_a_line_for_each_phase(stream):
    console = RunConsole(stream)
    console.phase("decoding mnist")
    console.begin({"method": "fedkf", "data": "mnist, 60,000 samples"})
    for phase in ("sending data", "sending data 40 %", "sending data 80 %", "starting the actors", ""):
        console.phase(phase)
    console.round(EVENT)
    assert stream.getvalue().splitlines()[:-1] == [
        "method  fedkf",
        "data    mnist, 60,000 samples",
        "sending data",
        "starting the actors",
    ]


def test_after_ctrl_c_a_terminal_and_a_file_show_that_the_run_stops(terminal, stream, monkeypatch):
    monkeypatch.setattr(Screen, "quiet_s", 0.02)
    console = RunConsole(terminal)
    console.start("quickstart.yaml")
    console.round(EVENT)
    console.stopping()
    console._line.refresh()
    console.stop()
    assert re.search(r"\rstopping [━╸╺]{20} 0:00:00\s*$", plain(terminal.getvalue()))
    monkeypatch.delenv("FORCE_COLOR")
    console = RunConsole(stream)
    console.start("quickstart.yaml")
    console.stopping()
    wait_until(lambda: "stopping, for 0:00:00 so far\n" in stream.getvalue())
    console.stop()


def test_file_gets_a_line_a_minute_in_long_rounds(stream, monkeypatch):
    monkeypatch.setattr(Screen, "quiet_s", 0.02)
    console = RunConsole(stream)
    console.start("long.yaml")
    wait_until(lambda: "round 1; 0:00:00\n" in stream.getvalue())
    console.round(EVENT)
    wait_until(lambda: "round 3/10; about 0:00:15 left; global amp 0.412" in stream.getvalue())
    console.stop()
    lines = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == lines


@pytest.mark.parametrize(("since", "left"), [(0.0, 6.0), (1.0, 5.0), (100.0, 3.0)])
def test_time_left_goes_by_the_mean_of_all_rounds(since, left):
    """A round that takes longer than others counts as one of them."""
    assert seconds_left({"round": 3, "rounds": 5, "wall_s": 9.0}, since) == left


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3725, "1:02:05"), (360000, "100:00:00")]
)
def test_seconds_are_told_as_a_clock_does(seconds, text):
    assert clock_text(seconds) == text


def test_facts_are_shown_whole_or_not_at_all():
    assert fitting(["global amp 0.412", "ce 1.2"], 24) == "global amp 0.412  ce 1.2"
    assert fitting(["global amp 0.412", "ce 1.2"], 23) == "global amp 0.412"
    assert fitting(["global amp 0.412"], 3) == ""


def test_brackets_in_names_are_shown_as_they_are(stream):
    console = RunConsole(stream)
    console.round({**EVENT, "metrics": {"a[bold]": {"amp": 0.5}}})
    values = dict.fromkeys(("amp", "fm", "wlp", "ua", "server_accuracy"))
    models = {"a[/b]": {"last": values, "best": values, "best_round": 1, "best_by": "amp"}}
    console.finish({**SUMMARY, "models": models}, Path("/runs/[red]"), 1.0)
    shown = ("a[bold] amp 0.500", "a[/b], best round 1", "/runs/[red]\n")
    assert all(text in stream.getvalue() for text in shown)


def test_end_names_the_folder_and_the_command(stream, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda path: path == Path("/runs/a b/tensorboard"))
    RunConsole(stream).finish(SUMMARY, Path("/runs/a b"), 12.0)
    text = stream.getvalue()
    assert "50.00 %" in text
    assert "0.0100" in text
    assert "run folder   /runs/a b\n" in text
    assert "tensorboard --logdir '/runs/a b'\n" in text
    assert "report       rayfed-kd report '/runs/a b'\n" in text


def test_end_names_the_best_round_and_the_clients_that_are_tested(stream):
    RunConsole(stream).finish(SUMMARY, Path("/runs/a"), 12.0)
    text = stream.getvalue()
    assert "tensorboard" not in text  # `results.trackers` may be without it
    assert "oca, best round 7 " in text
    assert "best: all of one round, that of the largest official test\n" in text
    assert "9 of 10 clients have test samples\n" in text
    assert "oca: the average of all clients' latest models\n" in text
    stream = io.StringIO()
    RunConsole(stream).finish({**SUMMARY, "tested_clients": 10}, Path("/runs/a"), 12.0)
    assert "test samples" not in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_bytes_are_told_in_binary_units(count, shown):
    assert format_bytes(count) == shown


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
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain(terminal.getvalue()))]
    assert max(map(len, lines)) <= 80
    assert "trial 7: starts" in lines
    shown = re.compile(r"0/30 trials [━╸╺]{20} 0:00:\d\d left trial 0 1/10  trial 1 1/10")
    assert any(map(shown.fullmatch, lines))
