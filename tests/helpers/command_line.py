"""The command line in the test's own process: another would first import torch, for two seconds."""

import io
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from rayfed_kd.cli.main import main


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run_command(*words, folder="."):
    """`rayfed-kd WORDS` from a folder."""
    stdout, stderr, handler = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGTERM)
    argv = patch.object(sys, "argv", ["rayfed-kd", *map(str, words)])
    try:
        with argv, chdir(folder), redirect_stdout(stdout), redirect_stderr(stderr):
            main()
    except SystemExit as ended:
        return Ended(ended.code, stdout.getvalue(), stderr.getvalue())
    finally:
        signal.signal(signal.SIGTERM, handler)


def loaded_after(code, *packages):
    """Which of the packages a new process has loaded after some code."""
    code += f"\nimport sys\nprint(*(name for name in {packages} if name in sys.modules))"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()
