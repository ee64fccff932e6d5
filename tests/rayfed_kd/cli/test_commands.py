"""The commands' help, and what an interrupted command says."""

import signal
import subprocess
import sys
import threading
from importlib.metadata import version
from unittest.mock import patch

import click
import pytest
from click.testing import CliRunner
from command_line import run_command

from rayfed_kd.cli.interruption import IN_A_RUN, Interruptions
from rayfed_kd.cli.main import commands, program
from rayfed_kd.cluster.ray_backend.session import LEFT_STARTING
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.engines import OnRay
from rayfed_kd.experiment.resumability import RUNS_UNDER_WAY, resuming_command


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_every_command_and_option_says_what_it_does(name):
    command = commands.commands[name]
    assert command.help
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert not [option.name for option in options if not option.help]


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_summary_of_a_command_is_a_whole_sentence(name):
    """It stands in the list of commands; click cuts a longer one off with dots."""
    summary = commands.commands[name].get_short_help_str(limit=100)
    assert summary
    assert not summary.endswith("...")


def test_commands_are_those_of_all_modules():
    shown = CliRunner().invoke(commands, ["--help"])
    assert shown.exit_code == 0
    names = {
        "run",
        "resume",
        "export",
        "partition",
        "compare",
        "tune",
        "report",
        "recipes",
        "methods",
        "models",
        "doctor",
        "data",
    }
    assert set(commands.commands) == names
    said = CliRunner().invoke(commands, ["--version"]).output
    assert said == f"rayfed-kd {version('rayfed-kd')}\n"


def test_recipe_key_written_as_an_option_is_answered_with_its_form():
    done = run_command("run", "quickstart", "--rounds", "3")
    assert done.returncode == 2
    assert "No such option '--rounds'.\nKeys of a recipe are written as rounds=VALUE." in done.stderr
    assert "VALUE" not in run_command("report", "--rounds", "3").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("run", "quickstart"),
        ("partition", "quickstart"),
        ("compare", "fedkf_quickstart"),
        ("tune", "quickstart"),
    ],
)
def test_key_that_stands_twice_is_refused_with_both(words):
    """The later one would win, and the other be lost without a word."""
    done = CliRunner().invoke(commands, [*words, "rounds=1", "seed=1", "rounds=2"])
    assert isinstance(done.exception, RecipeError)
    said = "rounds stands twice on the command line, as rounds=1 and as rounds=2; expected it once"
    assert str(done.exception) == said  # and a section behind one of its keys:
    done = CliRunner().invoke(commands, [*words, "local.epochs=3", "local={epochs: 2}"])
    assert "local.epochs stands twice on the command line" in str(done.exception)


@pytest.mark.parametrize(
    ("details", "terminated", "message", "code"),
    [
        ((), False, "interrupted: nothing was begun\n", 130),
        (
            ("`resume x` goes on after round 3",),
            False,
            "interrupted: `resume x` goes on after round 3\n",
            130,
        ),
        ((), True, "interrupted: nothing was begun\n", 143),
    ],
)
def test_interruption_says_how_to_go_on(details, terminated, message, code, capsys):
    interruptions = Interruptions()
    interruptions.terminated = terminated
    assert interruptions.end(details) == code
    assert capsys.readouterr().err == message


@pytest.fixture
def pressed(monkeypatch, capfd):
    """Presses Ctrl-C; gives what is answered. Leaving the process at once is an exception here."""

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr("sys.stderr", sys.__stderr__)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    interruptions = Interruptions()
    with interruptions.handled():

        def press():
            with pytest.raises((KeyboardInterrupt, SystemExit)) as raised:
                signal.raise_signal(signal.SIGINT)
            return raised.type, capfd.readouterr().err

        press.resumed_by, press.calling = interruptions.resumed_by, interruptions.calling
        yield press
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_answered_at_once_and_the_second_one_names_the_last_checkpoint(pressed, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in (
        "round-000010.json",
        "round-000020.json",
        "round-000030.safetensors",
    ):  # the last is not whole
        (tmp_path / "checkpoints" / name).touch()
    with patch.dict(RUNS_UNDER_WAY, {tmp_path: ()}):
        assert pressed() == (KeyboardInterrupt, f"{IN_A_RUN}\n")
        told = f"left at once: `rayfed-kd resume {tmp_path}` goes on after round 20\n"
        assert pressed() == (SystemExit, told)
    assert RUNS_UNDER_WAY == {}


def test_command_that_goes_on_with_a_clusters_run_names_its_address(tmp_path):
    with patch.dict(RUNS_UNDER_WAY, {tmp_path: OnRay(address="head:6379").resume_options}):
        assert resuming_command(tmp_path) == f"`rayfed-kd resume {tmp_path} --address head:6379`"
    assert resuming_command(tmp_path) == f"`rayfed-kd resume {tmp_path}`"


@pytest.mark.parametrize(
    ("given", "environment", "told"),
    [
        (None, None, "starting Ray"),
        ("head:6379", None, "connecting to the Ray at head:6379"),
        (None, "far:6379", "connecting to the Ray at far:6379"),
    ],
)
def test_a_run_says_which_ray_it_waits_for(given, environment, told, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    assert OnRay(address=given).awaited == told


def test_second_ctrl_c_before_any_checkpoint_says_that_the_run_begins_again(pressed, tmp_path):
    with patch.dict(RUNS_UNDER_WAY, {tmp_path: ()}):
        pressed()
        told = (
            f"no checkpoint is there yet; `rayfed-kd resume {tmp_path} --restart` begins again at round 1\n"
        )
        assert pressed() == (SystemExit, f"left at once: {told}")


def test_ctrl_c_before_a_run_writes_no_checkpoint(pressed):
    assert pressed() == (KeyboardInterrupt, "stopping; press Ctrl-C again to leave at once\n")
    assert pressed() == (SystemExit, "left at once: nothing was begun\n")


def test_first_ctrl_c_lets_the_live_line_say_so(pressed):
    calls = []
    with pressed.calling(lambda: calls.append("stopping")):
        pressed()
    assert calls == ["stopping"]


def test_second_ctrl_c_in_a_comparison_names_the_comparison(pressed, tmp_path):
    with (
        pressed.resumed_by("the same compare command again"),
        patch.dict(RUNS_UNDER_WAY, {tmp_path / "A-seed1.running": ()}),
    ):
        pressed()
        assert pressed() == (SystemExit, "left at once: the same compare command again goes on\n")


def test_interruption_within_a_comparison_names_the_comparison_and_not_its_run():
    with (
        pytest.raises(KeyboardInterrupt, match="the same compare command again"),
        Interruptions().resumed_by("the same compare command again"),
    ):
        raise KeyboardInterrupt("rayfed-kd resume runs/x/A-seed1.running")


@pytest.mark.parametrize(("terminated", "code"), [(False, 130), (True, 143)])
def test_interrupted_command_does_not_wait_for_a_ray_that_is_starting(terminated, code, monkeypatch, capsys):
    monkeypatch.setattr("rayfed_kd.cli.interruption.RAY_STARTS_S", 0.01)
    left, started = [], threading.Event()
    monkeypatch.setattr("os._exit", left.append)
    starting = threading.Thread(target=started.wait, name=LEFT_STARTING)
    starting.start()
    interruptions = Interruptions()
    interruptions.terminated = terminated
    try:
        interruptions.end(())
    finally:
        started.set()
        starting.join()
    assert left == [code]
    interruptions.end(())  # none is starting any more: the process ends in good order
    assert left == [code]


@pytest.mark.parametrize(("words", "code"), [(["methods"], 0), (["no-such-command"], 2)])
def test_program_ends_with_its_code_its_output_and_what_was_registered_for_the_end(words, code):
    """It ends at once, without Python's own end."""
    run = "import atexit, sys\nfrom rayfed_kd.cli.main import program\natexit.register(print, 'the end')\n"
    run += f"sys.argv = ['rayfed-kd', *{words}]\nprogram()\nprint('not reached')"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.splitlines()[-1] == "the end"
    assert ("fedavg" in done.stdout) == (code == 0)


def test_program_whose_output_cannot_be_written_says_so_by_its_code(monkeypatch):
    class Full:
        def flush(self):
            raise OSError("no space left")

    left = []
    monkeypatch.setattr("rayfed_kd.cli.main.main", lambda: sys.exit(0))
    monkeypatch.setattr("rayfed_kd.cli.main.atexit._run_exitfuncs", lambda: None)
    monkeypatch.setattr("rayfed_kd.cli.main.os._exit", left.append)
    monkeypatch.setattr(sys, "stdout", Full())
    program()
    assert left == [120]


@pytest.mark.parametrize("command", ["run", "resume"])
def test_local_and_address_contradict_each_other(command, tmp_path):
    (tmp_path / "config.yaml").write_text("method: {name: fedavg}\n")
    given = str(tmp_path / "config.yaml" if command == "run" else tmp_path)
    refused = CliRunner().invoke(commands, [command, given, "--local", "--address", "localhost:1"])
    assert isinstance(refused.exception, RecipeError)
    assert "--address localhost:1: a run with --local uses no Ray" in str(refused.exception)
