"""The benchmark of a group of clients: its parts are still there, and nearly the whole."""

import subprocess
import sys

import pytest
from paths import ROOT


@pytest.mark.slow
def test_parts_are_nearly_all_of_a_group():
    command = [sys.executable, ROOT / "tests/benchmarks/group.py", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    # With one round each median is that round's number.
    parts = {line[:38].strip(): float(line[38:].split()[0]) for line in done.stdout.splitlines()}
    whole = parts.pop("a group")
    parts.pop("the server's part")
    # What is not counted is what joins the parts.
    assert 0.8 * whole < sum(parts.values()) <= whole + 0.05
    assert min(parts.values()) >= 0
