"""Real runs, killed with SIGKILL at random moments and resumed until they end, against undisturbed ones."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import cache

import numpy as np
import psutil
import yaml
from forked_commands import ForkedCommand
from ray_processes import CLIENTS, SERVER, actors
from safetensors.numpy import load_file
from small_recipes import DECIDED, FOUR_CLIENTS, assert_same_tables, small_recipe

import rayfed_kd
from rayfed_kd.algorithms import METHODS
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.results.tables import read_table

ENGINES = ("local", "ray")
BASE = {
    **FOUR_CLIENTS,
    "rounds": 40,
    "sampling": {"fraction": 0.5},
    "evaluation": {"samples": False},
    "checkpoint": {"every": 2},
    "clock": {"name": "lognormal"},
    "faults": {"max_retries": 20},  # all kills of a run may hit one step
}
SCHEDULES = {
    "sync": {"name": "sync"},
    "quorum": {"name": "quorum", "min_fraction": 0.5, "over_selection": 0.5},
    "next_round": {"name": "quorum", "min_fraction": 0.5, "late": "next_round"},
    "fedbuff": {"name": "fedbuff", "buffer": 2},
    "fedasync": {"name": "fedasync"},
}
IN_ROUNDS = ("sync", "quorum")  # for methods whose rounds have several exchanges
VICTIMS = {
    "local": ["command"],
    # Of twelve kills two cost a new start; after the others the same run goes on.
    "ray": [*["one client host"] * 6, *["all client hosts"] * 4, "server", "command"],
}
# A kill comes at most so long after the start, or after the last kill. On the local engine it is this part of
# the undisturbed run's time, so that a run is killed a dozen times before it ends; on Ray so many seconds.
LONGEST_PART, LONGEST_S = 1 / 3, 2.0
STARTS = 100


def cases():
    """METHOD:SCHEDULE, every method and every schedule at least once."""
    from rayfed_kd.protocol import OneExchange

    found, places = [], Counter()
    for name, location in METHODS.items():
        one = issubclass(load_object(location, ""), OneExchange)
        allowed = list(SCHEDULES) if one else IN_ROUNDS
        if name in ("centralized", "datafree"):  # one client, which nobody is late beside
            allowed = ["sync"]
        found.append(f"{name}:{allowed[places[one] % len(allowed)]}")
        places[one] += 1
    return found


def recipe_of(case):
    """A case's recipe."""
    method, schedule = case.split(":")
    return small_recipe({**BASE, "schedule": SCHEDULES[schedule]}, method)


@cache
def undisturbed(case, folder):
    """The same recipe on the local engine, without a kill; and the seconds that it took."""
    began = time.monotonic()
    result = rayfed_kd.run(recipe_of(case), [f"results.folder={folder / case.replace(':', '-')}"], local=True)
    return result, time.monotonic() - began


class KilledRun:
    """One run, killed and resumed until it is finished.

    Args:
        folder: the run's; its parent holds what is written beside it.
        case: METHOD:SCHEDULE.
        engine: local or ray.
        stream: numpy's generator that decides victims and moments.
        longest_s: seconds from a kill, or a start, to the next kill, at most.
    """

    def __init__(self, folder, case, engine, stream, longest_s):
        self.folder, self.engine, self.stream, self.longest_s = folder, engine, stream, longest_s
        self.path, self.errors = folder.with_suffix(".yaml"), folder.with_suffix(".txt")
        results = {"folder": str(folder)}
        self.path.write_text(yaml.safe_dump({**recipe_of(case), "results": results}))
        self.kills, self.damaged, self.resumes = Counter(), 0, -1
        self._restart = False

    def to_the_end(self, most):
        """Kills at most `most` times on the way.

        Raises: AssertionError if the run ends with an error, or never.
        """
        for _ in range(STARTS):
            self._start()
            while self.kills.total() < most and self.process.poll() is None:
                self._kill()
            self.process.wait(timeout=600)
            if self._finished():
                return
            said = self.errors.read_text()
            self._restart = "--restart" in said  # nothing to go on from: its message says what to do
            killed = self.process.returncode == -signal.SIGKILL or self.engine == "ray"
            assert killed or self._restart, f"it ended by itself: {said}"
            self._damage()
        raise AssertionError(f"{STARTS} starts were not enough; the last said: {self.errors.read_text()}")

    def _start(self):
        """The command: `run`, and `resume` once there is something to resume."""
        begun = (self.folder / "config.yaml").exists()
        words = ["resume", self.folder] if begun else ["run", self.path]
        words += ["--restart"] if self._restart else []
        self.resumes += 1
        if self.engine == "local":
            self.process = ForkedCommand([*words, "--local"], self.errors)
            return
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rayfed_kd", *map(str, words)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def _kill(self):
        """Wait for a random moment of a run that is going on, and kill something."""
        began = time.monotonic()
        while self.process.poll() is None and not self._under_way():
            time.sleep(0.05)
            assert time.monotonic() - began < 600, "it does not begin"
        victim = str(self.stream.choice(VICTIMS[self.engine]))
        deadline = time.monotonic() + float(self.stream.uniform(0.0, self.longest_s))
        while time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.02)
        pids = self._pids(victim)
        if victim == "one client host" and pids:
            pids = [int(self.stream.choice(pids))]
        if not pids or self._finished():
            return
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.kills[victim] += 1
        if victim in ("command", "server"):  # the next victim is of a start that got over this one
            self.process.wait(timeout=600)

    def _under_way(self):
        if self.engine == "local":
            return (self.folder / "config.yaml").exists()
        return bool(self._pids("one client host"))

    def _pids(self, victim):
        """This run's processes of a kind; none when it is over."""
        if self.process.poll() is not None:
            return []
        if victim == "command":
            return [self.process.pid]
        return actors(psutil.Process(self.process.pid), SERVER if victim == "server" else CLIENTS)

    def _damage(self):
        """Cut the newest checkpoint off, every third time."""
        files = sorted((self.folder / "checkpoints").glob("round-*.safetensors"))
        if len(files) > 1 and self.stream.random() < 1 / 3:
            content = files[-1].read_bytes()
            files[-1].write_bytes(content[: int(self.stream.integers(0, len(content)))])
            self.damaged += 1

    def _finished(self):
        path = self.folder / "summary.json"
        return path.is_file() and json.loads(path.read_text())["status"] == "finished"


def assert_same_files(folder, expected):
    """Tables and exported models, bit for bit."""
    assert_same_tables({name: read_table(folder / "tables", name) for name in DECIDED}, expected.tables)
    for model in expected.models:
        for source in (folder, expected.folder):
            rayfed_kd.export(source, model, source.parent / f"{source.name}-{model}")
        ours, theirs = (
            load_file(s.parent / f"{s.name}-{model}.safetensors") for s in (folder, expected.folder)
        )
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours), model


def kill_one_run(case, engine, seed, most, folder):
    """One run with up to `most` kills.

    Returns: kills by victim, checkpoints cut off, resumes and seconds; or the error under "wrong".
    """
    expected, seconds = undisturbed(case, folder)
    stream = np.random.default_rng([seed, *f"{case} {engine}".encode()])
    longest_s = seconds * LONGEST_PART if engine == "local" else LONGEST_S
    run = KilledRun(folder / f"{case.replace(':', '-')}-{engine}-{seed}", case, engine, stream, longest_s)
    began, wrong = time.monotonic(), None
    try:
        run.to_the_end(most)
        assert_same_files(run.folder, expected)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        wrong = str(error)[-2000:] or type(error).__name__
        if run.process.poll() is None:
            run.process.kill()
    return {
        "case": case,
        "engine": engine,
        "seed": seed,
        "kills": dict(run.kills),
        "checkpoints cut off": run.damaged,
        "resumes": run.resumes,
        "seconds": round(time.monotonic() - began, 1),
        "wrong": wrong,
    }
