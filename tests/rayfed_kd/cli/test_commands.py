"""The commands' help, and what an interrupted command says."""

import click
import pytest
from click.testing import CliRunner

from rayfed_kd.cli.interruption import report_interruption, resumed_by
from rayfed_kd.cli.main import commands


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
    }
    assert set(commands.commands) == names


@pytest.mark.parametrize(
    ("details", "terminated", "message", "code"),
    [
        ((), False, "interrupted: finished work is kept\n", 130),
        (("`resume x`",), False, "interrupted: finished work is kept; `resume x` goes on\n", 130),
        ((), True, "interrupted: finished work is kept\n", 143),
    ],
)
def test_interruption_says_how_to_go_on(details, terminated, message, code, capsys):
    assert report_interruption(details, terminated=terminated) == code
    assert capsys.readouterr().err == message


def test_interruption_within_a_comparison_names_the_comparison_and_not_its_run():
    with (
        pytest.raises(KeyboardInterrupt, match="the same compare command again"),
        resumed_by("the same compare command again"),
    ):
        raise KeyboardInterrupt("rayfed-kd resume runs/x/A-seed1.running")
