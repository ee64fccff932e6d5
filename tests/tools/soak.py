"""Runs one recipe on Ray again and again, for minutes or hours, and looks on: does it ever stand still?

    python tests/tools/soak.py --minutes 60 --quiet 5 --set schedule='{name: fedbuff, buffer: 2}'

The recipe is a small FedKF; `--set` changes it, as on the command line of `rayfed-kd run`. If no round ends
for `--quiet` minutes, every process of the run writes down where it is: the stacks of all its threads, its
asyncio tasks, and of the server's engine which jobs wait, which hosts are built and what each has to do. The
files lie in FOLDER/stacks. The exit code is then 1; it is 0 if all runs ended.

One line in FOLDER/soak.jsonl for each run: rounds, seconds, the longest pause between two rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rayfed_kd.algorithms.fedkf import FedKF

FOLDER = "RAYFED_KD_SOAK_FOLDER"
WRITTEN_S = 20.0  # until every process has written down where it is
RECIPE: dict[str, Any] = {
    "method": {"name": "soak:WatchedFedKF", "generator": {"width": 8, "latent": 8}},
    "model": {"name": "mlp", "hidden": 16},
    "data": {"name": "digits", "fraction": 0.5},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 8},
    "local": {"epochs": 1, "batch_size": 32},
    "rounds": 300,
    "sampling": {"fraction": 0.5},
    "schedule": {"name": "fedbuff", "buffer": 2},
    "clock": {"name": "lognormal"},
    "evaluation": {"samples": False},
    "checkpoint": {"every": 50},
    "faults": {"step_timeout_s": None},  # what hangs shall hang on, to be looked at
}


class WatchedFedKF(FedKF):
    """FedKF, whose module every process of the run imports: so each of them can say where it is."""


def watch_process(folder: Path) -> None:
    """Lets this process write down where it is: after SIGUSR1, and when FOLDER/now appears."""
    folder.mkdir(parents=True, exist_ok=True)
    stacks = (folder / f"threads-{os.getpid()}.txt").open("w")
    # Without Python's help, for a process that is stuck in C and holds the interpreter's lock.
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    threading.Thread(target=_write_when_asked, args=(folder,), daemon=True, name="soak").start()


def _write_when_asked(folder: Path) -> None:
    while not (folder / "now").exists():
        time.sleep(2)
    with (folder / f"objects-{os.getpid()}.txt").open("w") as file:
        for found in gc.get_objects():
            with suppress(Exception):  # objects change while they are looked at
                if isinstance(found, asyncio.Task) and not found.done():
                    found.print_stack(file=file)
                elif type(found).__name__ in ("RayEngine", "ClientHosts", "EventQueue", "Simulation"):
                    print(f"{type(found).__name__}: {vars(found)}", file=file)
                file.flush()


if FOLDER in os.environ and __name__ != "__main__":
    watch_process(Path(os.environ[FOLDER]) / "stacks")


class Watch:
    """Notices when no round ends for too long, and lets every process write down where it is.

    Args:
        folder: of the soak.
        quiet_s: seconds without an event that are too many.
    """

    def __init__(self, folder: Path, quiet_s: float) -> None:
        self._folder, self._quiet_s = folder, quiet_s
        self._last, self.longest_s, self.rounds = time.monotonic(), 0.0, 0
        self.stood_still = False
        threading.Thread(target=self._look, daemon=True).start()

    def event(self, event: Any) -> None:
        """A round has ended."""
        now = time.monotonic()
        self.longest_s, self._last = max(self.longest_s, now - self._last), now
        self.rounds += 1

    def begin(self) -> None:
        """A run begins, with the start of its processes."""
        self._last, self.longest_s, self.rounds = time.monotonic(), 0.0, 0

    def _look(self) -> None:
        while time.monotonic() - self._last < self._quiet_s:
            time.sleep(1)
        self.stood_still = True
        (self._folder / "stacks" / "now").touch()
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with suppress(psutil.Error, OSError):
                if (self._folder / "stacks" / f"threads-{process.pid}.txt").exists():
                    process.send_signal(signal.SIGUSR1)
        time.sleep(WRITTEN_S)
        sys.stderr.write(f"no round ended for {self._quiet_s:.0f} s; see {self._folder / 'stacks'}\n")
        signal.raise_signal(signal.SIGINT)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--quiet", type=float, default=5, help="minutes without a round that are too many")
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="soak-"))).resolve()
    os.environ[FOLDER] = str(folder)
    os.chdir(Path(__file__).parent)  # where every process finds this module
    watch_process(folder / "stacks")
    import rayfed_kd

    watch, end = Watch(folder, 60 * given.quiet), time.monotonic() + 60 * given.minutes
    number = 0
    while time.monotonic() < end:
        number += 1
        watch.begin()
        began = time.monotonic()
        try:
            seed, results = f"seed={number}", f"results.folder={folder / f'run-{number}'}"
            rayfed_kd.run(RECIPE, [*given.set, seed, results], on_event=watch.event)
        except KeyboardInterrupt:
            if not watch.stood_still:
                raise
        figures = {
            "run": number,
            "rounds": watch.rounds,
            "seconds": round(time.monotonic() - began, 1),
            "longest_pause_s": round(watch.longest_s, 1),
            "stood_still": watch.stood_still,
        }
        with (folder / "soak.jsonl").open("a") as file:
            file.write(json.dumps(figures) + "\n")
        sys.stdout.write(f"{figures}\n")
        sys.stdout.flush()
        if watch.stood_still:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
