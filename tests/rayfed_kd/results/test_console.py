"""What a run prints without a terminal, word for word."""

import io
import re
import time
from pathlib import Path

import pytest

from rayfed_kd.results.console import RunConsole, format_bytes
from rayfed_kd.results.screen import Screen, fitting
from rayfed_kd.results.time_left import TimeLeft, clock_text

EVENT = {
    "round": 3,
    "rounds": 10,
    "round_s": 2.14,
    "losses": {"ce": 1.2, "kl": 0.33},
    "bytes_up": 1536,
    "bytes_down": 3 * 2**20,
    "cohort": 4,
    "metrics": {"aca": {"amp": 0.4124, "wlp": 0.1, "server_accuracy": None}},
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


def test_round_is_one_plain_line():
    stream = io.StringIO()
    console = RunConsole(stream)
    console.round(EVENT)
    assert stream.getvalue() == (
        "round 3/10  2.1 s  0:00:15 left  aca amp 0.412 wlp 0.100  ce 1.200  kl 0.330  "
        "up 1.5 KiB down 3.0 MiB\n"
    )


def test_round_without_evaluation_says_what_there_is():
    stream = io.StringIO()
    RunConsole(stream).round({**EVENT, "metrics": {}, "losses": {}})
    assert stream.getvalue() == "round 3/10  2.1 s  0:00:15 left  up 1.5 KiB down 3.0 MiB\n"


@pytest.mark.parametrize(
    "absent",
    [{"metrics": {"aca": {"amp": None}}}, {"metrics": None}, {"losses": {"ce": None}, "metrics": {}}],
)
def test_values_that_are_not_there_are_left_out(absent):
    stream = io.StringIO()
    RunConsole(stream).round({**EVENT, "losses": {}, **absent})
    assert stream.getvalue() == "round 3/10  2.1 s  0:00:15 left  up 1.5 KiB down 3.0 MiB\n"


def test_without_a_terminal_there_are_no_control_characters():
    stream = io.StringIO()
    console = RunConsole(stream)
    console.start("quickstart.yaml rounds=3")
    console.message("client 3 was lost, and runs again")
    console.round(EVENT)
    console.stop()
    first, second, *_ = stream.getvalue().splitlines()
    assert (first, second) == ("quickstart.yaml rounds=3", "client 3 was lost, and runs again")
    assert all(character.isprintable() or character == "\n" for character in stream.getvalue())


def test_live_display_keeps_the_last_evaluation(monkeypatch):
    for name, value in (("TERM", "xterm"), ("FORCE_COLOR", "1"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)  # rich takes the stream for a terminal of that width
    stream = io.StringIO()
    console = RunConsole(stream)
    console.start("quickstart.yaml")
    console.round(EVENT)
    console.round({**EVENT, "round": 4, "metrics": {}})
    console.message("still there")
    console.stop()
    lines = plain(stream.getvalue()).split("still there")
    assert "round 3/10  2.1 s  aca amp 0.412 wlp 0.100  ce 1.200  kl 0.330" in lines[0]
    assert re.search(r"round 4/10 [━╸╺]+ 0:00:1\d left aca amp 0.412 wlp 0.100  ce 1.200", lines[1])


def plain(text):
    """What a terminal shows, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture
def terminal(monkeypatch):
    """A stream that rich takes for a terminal of 80 columns."""
    for name, value in (("TERM", "xterm"), ("FORCE_COLOR", "1"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    return io.StringIO()


def test_live_line_fits_80_columns_and_begins_with_round_bar_and_time_left(terminal):
    console = RunConsole(terminal)
    console.start("quickstart.yaml")
    console.round({**EVENT, "losses": {"a_loss_with_a_long_name": 1.0, "another_one": 2.0}, "sim_s": 1e6})
    console.message("x")
    console.stop()
    lines = re.split(r"[\r\n]+", plain(terminal.getvalue()))
    assert max(map(len, lines)) <= 80
    live = [line.rstrip() for line in lines if "━" in line and not line.startswith("round 1 ")]
    assert live
    assert all(
        re.match(r"round 3/10 [━╸╺]{20} 0:00:1\d left aca amp 0.412 wlp 0.100$", line) for line in live
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


def test_file_says_first_what_runs_and_then_gets_a_line_for_each_phase():
    stream = io.StringIO()
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


def test_after_ctrl_c_a_terminal_and_a_file_show_that_the_run_stops(terminal, monkeypatch):
    monkeypatch.setattr(Screen, "quiet_s", 0.02)
    console = RunConsole(terminal)
    console.start("quickstart.yaml")
    console.round(EVENT)
    console.stopping()
    console._line.refresh()
    console.stop()
    assert re.search(r"\rstopping [━╸╺]{20} 0:00:00\s*$", plain(terminal.getvalue()))
    monkeypatch.delenv("FORCE_COLOR")
    stream = io.StringIO()
    console = RunConsole(stream)
    console.start("quickstart.yaml")
    console.stopping()
    wait_for(lambda: "stopping, for 0:00:00 so far\n" in stream.getvalue())
    console.stop()


def test_file_gets_a_line_a_minute_in_long_rounds(monkeypatch):
    monkeypatch.setattr(Screen, "quiet_s", 0.02)
    stream = io.StringIO()
    console = RunConsole(stream)
    console.start("long.yaml")
    wait_for(lambda: "round 1, for 0:00:00 so far\n" in stream.getvalue())
    console.round(EVENT)
    wait_for(lambda: "round 4/10, for 0:00:00 so far, about 0:00:15 left\n" in stream.getvalue())
    console.stop()
    lines = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == lines


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_time_left_is_the_mean_of_the_last_rounds_without_the_first():
    seconds = 0.0
    left = TimeLeft(lambda: seconds)
    assert left.seconds() is None
    left.note({"round": 1, "rounds": 5, "round_s": 30.0})
    assert left.seconds() == 120.0
    left.note({"round": 2, "rounds": 5, "round_s": 2.0})
    left.note({"round": 3, "rounds": 5, "round_s": 4.0})
    assert left.seconds() == 6.0
    seconds = 1.0
    assert left.seconds() == 5.0
    seconds = 100.0  # a round that takes longer than others
    assert left.seconds() == 3.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3725, "1:02:05"), (360000, "100:00:00")]
)
def test_seconds_are_told_as_a_clock_does(seconds, text):
    assert clock_text(seconds) == text


def test_facts_are_shown_whole_or_not_at_all():
    assert fitting(["aca amp 0.412", "ce 1.2"], 21) == "aca amp 0.412  ce 1.2"
    assert fitting(["aca amp 0.412", "ce 1.2"], 20) == "aca amp 0.412"
    assert fitting(["aca amp 0.412"], 3) == ""


def test_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    stream = io.StringIO()
    console = RunConsole(stream)
    console.start("quickstart.yaml")
    console.round(EVENT)
    assert "round 3/10  2.1 s  0:00:15 left  aca amp 0.412" in stream.getvalue()


def test_brackets_in_names_are_shown_as_they_are():
    stream = io.StringIO()
    console = RunConsole(stream)
    console.round({**EVENT, "metrics": {"a[bold]": {"amp": 0.5}}})
    values = dict.fromkeys(("amp", "fm", "wlp", "ua", "server_accuracy"))
    models = {"a[/b]": {"last": values, "best": values, "best_round": 1, "best_by": "amp"}}
    console.finish({**SUMMARY, "models": models}, Path("/runs/[red]"), 1.0)
    shown = ("a[bold] amp 0.500", "a[/b], best: round 1", "/runs/[red]\n")
    assert all(text in stream.getvalue() for text in shown)


def test_end_names_the_folder_and_the_command():
    stream = io.StringIO()
    RunConsole(stream).finish(SUMMARY, Path("/runs/a b"), 12.0)
    text = stream.getvalue()
    assert "50.00 %" in text
    assert "0.0100" in text
    assert "run folder   /runs/a b\n" in text
    assert "tensorboard --logdir_spec='a b:/runs/a b' --window_title='a b'\n" in text
    assert "report       rayfed-kd report '/runs/a b'\n" in text


def test_folder_that_tensorboard_would_split_is_not_named():
    stream = io.StringIO()
    RunConsole(stream).finish(SUMMARY, Path("/runs/a:b"), 12.0)
    assert "tensorboard --logdir /runs/a:b --" in stream.getvalue()


def test_end_names_the_best_round_and_the_clients_that_are_tested():
    stream = io.StringIO()
    RunConsole(stream).finish(SUMMARY, Path("/runs/a"), 12.0)
    text = stream.getvalue()
    assert "oca, best: round 7 " in text
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
