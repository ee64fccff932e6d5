"""What a run prints without a terminal, word for word."""

import io
from pathlib import Path

import pytest

from rayfed_kd.results.console import RunConsole, format_bytes

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
        "round 3/10  aca amp 0.412 wlp 0.100  ce 1.200  kl 0.330  up 1.5 KiB down 3.0 MiB  2.1 s\n"
    )


def test_round_without_evaluation_says_what_there_is():
    stream = io.StringIO()
    RunConsole(stream).round({**EVENT, "metrics": {}, "losses": {}})
    assert stream.getvalue() == "round 3/10  up 1.5 KiB down 3.0 MiB  2.1 s\n"


@pytest.mark.parametrize(
    "absent",
    [{"metrics": {"aca": {"amp": None}}}, {"metrics": None}, {"losses": {"ce": None}, "metrics": {}}],
)
def test_values_that_are_not_there_are_left_out(absent):
    stream = io.StringIO()
    RunConsole(stream).round({**EVENT, "losses": {}, **absent})
    assert stream.getvalue() == "round 3/10  up 1.5 KiB down 3.0 MiB  2.1 s\n"


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
    after = stream.getvalue().partition("still there")[2]
    assert "4/10" in after
    assert "aca amp 0.412" in after


def test_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    stream = io.StringIO()
    console = RunConsole(stream)
    console.start("quickstart.yaml")
    console.round(EVENT)
    assert "round 3/10  aca amp 0.412" in stream.getvalue()


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
    assert "tensorboard --logdir '/runs/a b/tensorboard'" in text


def test_end_names_the_best_round_and_the_clients_that_are_tested():
    stream = io.StringIO()
    RunConsole(stream).finish(SUMMARY, Path("/runs/a"), 12.0)
    text = stream.getvalue()
    assert "oca, best: round 7 " in text
    assert "best: all of one round, that of the largest official test\n" in text
    assert "9 of 10 clients have test samples\n" in text
    stream = io.StringIO()
    RunConsole(stream).finish({**SUMMARY, "tested_clients": 10}, Path("/runs/a"), 12.0)
    assert "test samples" not in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_bytes_are_told_in_binary_units(count, shown):
    assert format_bytes(count) == shown
