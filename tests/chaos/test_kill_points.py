"""Kills at every file operation; tests/tools/kill_points.py says which they are and what must be equal."""

import subprocess
import sys

import pytest
from paths import ROOT


def killed(*words):
    """The harness' lines; in a process of its own, as it forks."""
    tool = [sys.executable, str(ROOT / "tests/tools/kill_points.py"), *words]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kills_at_a_few_file_operations_end_as_the_undisturbed_run():
    assert "5 of " in killed("run", "--sample", "5")


@pytest.mark.slow
def test_kills_at_every_file_operation_end_as_the_undisturbed_run():
    lines = killed().splitlines()
    assert len(lines) == 5
    sys.stdout.write("\n".join(["", *lines, ""]))
    assert not [line for line in lines if "wrong" in line]
