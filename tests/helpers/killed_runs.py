"""Real runs, killed with SIGKILL at random moments and resumed until they end, against undisturbed ones."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import psutil
import yaml
from forked_commands import ForkedCommand
from hooks import hook
from ray_processes import CLIENTS, SERVER, actors
from small_recipes import DECIDED, FOUR_CLIENTS, assert_same_tables, small_recipe

import rayfed_kd
from rayfed_kd.algorithms import METHODS
from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.errors import RayfedError, RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.features.codecs.loading import CODECS
from rayfed_kd.protocol import shared_vectors
from rayfed_kd.recipe.timing import SCHEDULES
from rayfed_kd.results.schemas import CONFIG
from rayfed_kd.results.tables import read_table

KINDS = ("method", "schedule", "codec", "privacy")
NONE = "none"  # no codec, no privacy
LEAST = 3  # cases of every method, schedule, codec and privacy setting
BASE = {
    **FOUR_CLIENTS,
    "rounds": 12,
    "sampling": {"fraction": 0.5},
    "evaluation": {"samples": False},
    "checkpoint": {"every": 2},
    "clock": {"name": "lognormal"},
    "faults": {"max_retries": 20},  # all kills of a run may hit one step
}
reference = hook("reference")
# Name -> what it changes in a recipe. Every registered thing and every key has an example, as a test says.
SETTINGS = {
    "schedule": {
        **{name: reference.example_of("schedule", name) for name in SCHEDULES},
        "next_round": "schedule={name: quorum, late: next_round}",
    },
    # The example's noise, of whole vectors on few levels, ends in no number.
    "codec": {
        **{name: reference.example_of("codec", name) for name in CODECS},
        "qsgd": "codec.up={weights: [difference, {name: qsgd, levels: 127}]}",
    },
    "privacy": {
        key[8:].replace(".", "_"): line  # no dot: it becomes a part of files' names
        for key, line in reference.EXAMPLES["keys"].items()
        if key.startswith("privacy.")
    },
}
VICTIMS = {
    "local": ["command"],
    # Of twelve kills two cost a new start; after the others the same run goes on.
    "ray": [*["one client host"] * 6, *["all client hosts"] * 4, "server", "command"],
}
# A kill comes at most so long after the start, or after the last kill. On the local engine it is this part of
# the undisturbed run's time, so that a run is killed a dozen times before it ends; on Ray so many seconds.
LONGEST_PART, LONGEST_S = 1 / 3, 2.0
STARTS = 100


@cache
def cases(engine):
    """METHOD:SCHEDULE:CODEC:PRIVACY; always what had the fewest cases so far, of what the recipe may have.

    On the local engine each of them is in at least LEAST cases where methods accept it. A method's cases try
    in turn a privacy setting, a codec, and neither, the last two under some schedule. On Ray each of them is
    in at least one case, and a method has one, with all three as far as they go together.
    """
    times, found = Counter(), []
    turns, least = (LEAST, LEAST) if engine == "local" else (1, 1)

    def tried(case, kind, names):
        """The case with the rarest of these names that a recipe may have; None: no recipe may."""
        for name in sorted(names, key=lambda name: times[kind, name]):
            place = KINDS.index(kind)
            one = (*case[:place], name, *case[place + 1 :])
            if one not in found and is_accepted(":".join(one)):
                return one
        return None

    def add(case):
        found.append(case)
        times.update(zip(KINDS, case, strict=True))

    for turn in range(turns):
        for number, method in enumerate(METHODS):
            case = plain = (method, "sync", NONE, NONE)
            one = [["codec"], ["privacy"], []][(number + turn) % LEAST]
            for kind in one if engine == "local" else ["privacy", "codec"]:
                case = tried(case, kind, SETTINGS[kind]) or case
            if engine == "ray" or one != ["privacy"] or case == plain:
                case = tried(case, "schedule", SETTINGS["schedule"]) or case
            add(case)
    for kind, settings in SETTINGS.items():
        for name, method in product(settings, METHODS):
            case = (method, "sync", NONE, NONE) if times[kind, name] < least else None
            if case and (case := tried(case, kind, [name])):
                add(case)
    return [":".join(case) for case in found]


@cache
def is_accepted(case):
    """Whether a run of the case is refused before its first round."""
    try:
        prepare(*recipe_of(case))
    except RecipeError:
        return False
    return True


def recipe_of(case):
    """A case's recipe, and what is changed in it, as on the command line."""
    method, *names = case.split(":")
    changes = [SETTINGS[kind][name] for kind, name in zip(KINDS[1:], names, strict=True) if name != NONE]
    # The examples' noise is for many clients; of two a round the models would end in no number.
    return small_recipe(BASE, method), changes + ["privacy.noise_multiplier=0.01"] * (names[-1] != NONE)


@cache
def undisturbed(case, folder):
    """The same recipe on the local engine, without a kill; and the seconds that it took."""
    began = time.monotonic()
    recipe, changes = recipe_of(case)
    changes = [*changes, f"results.folder={folder / case.replace(':', '-')}"]
    result = rayfed_kd.run(recipe, changes, local=True)
    return result, time.monotonic() - began


class KilledRun:
    """One run, killed and resumed until it is finished.

    Args:
        folder: the run's; its parent holds what is written beside it.
        case: one of `cases`.
        engine: local or ray.
        stream: numpy's generator that decides victims and moments.
        longest_s: seconds from a kill, or a start, to the next kill, at most.
        address: of a Ray that this process has started; None: each start has a private one.
    """

    def __init__(self, folder, case, engine, stream, longest_s, address=None):
        self.folder, self.engine, self.stream, self.longest_s = folder, engine, stream, longest_s
        self.address, self._before = address, set()
        self.path, self.errors = folder.with_suffix(".yaml"), folder.with_suffix(".txt")
        recipe, self._changes = recipe_of(case)
        self.path.write_text(yaml.safe_dump({**recipe, "results": {"folder": str(folder)}}))
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
            assert self._ended or self._restart, f"it ended by itself: {said}"
            self._damage()
        raise AssertionError(f"{STARTS} starts were not enough; the last said: {self.errors.read_text()}")

    def _start(self):
        """The command: `run`, and `resume` once there is something to resume."""
        begun = (self.folder / "config.yaml").exists()
        words = ["resume", self.folder] if begun else ["run", self.path, *self._changes]
        words += ["--restart"] if self._restart else []
        self.resumes += 1
        self._ended = False  # by a kill of what it cannot get over
        if self.engine == "local":
            self.process = ForkedCommand([*words, "--local"], self.errors)
            return
        if self.address is not None:
            self._before = set(self._actors((SERVER, *CLIENTS)))  # of a command that was just killed
            # The fork server may be older than this Ray's token.
            variables = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")}
            self.process = ForkedCommand(words, self.errors, variables | {"RAY_ADDRESS": self.address})
            return
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rayfed_kd", *map(str, words)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
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
            self._ended = True

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
        pids = self._actors(SERVER if victim == "server" else CLIENTS)
        return [pid for pid in pids if pid not in self._before]

    def _actors(self, titles):
        return actors(psutil.Process(self.process.pid if self.address is None else None), titles)

    def assert_no_actors(self):
        """That Ray has ended the actors of all starts. Raises: AssertionError after a minute."""
        deadline = time.monotonic() + 60
        while left := self.address is not None and self._actors((SERVER, *CLIENTS)):
            assert time.monotonic() < deadline, f"actors are left: {left}"
            time.sleep(0.1)

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
    """Tables, and the evaluated models of the newest checkpoints, bit for bit."""
    assert_same_tables({name: read_table(folder / "tables", name) for name in DECIDED}, expected.tables)
    setting = prepare(folder / CONFIG).setting
    publish = LocalEngine(Host(setting)).publish
    snapshot = Checkpointer(folder, setting.recipe.checkpoint).latest(publish, "cpu", print)
    models = shared_vectors(setting.method.evaluated(snapshot.server))
    assert models.keys() == expected.models.keys()
    assert all(np.array_equal(models[name], expected.models[name]) for name in models)


def kill_one_run(case, engine, seed, most, folder, address=None):
    """One run with up to `most` kills; `address` as `KilledRun` has it.

    Returns: kills by victim, checkpoints cut off, resumes and seconds; or the error under "wrong".
    """
    began, run, wrong = time.monotonic(), None, None
    try:
        expected, seconds = undisturbed(case, folder)
        stream = np.random.default_rng([seed, *f"{case} {engine}".encode()])
        longest_s = seconds * LONGEST_PART if engine == "local" else LONGEST_S
        name = f"{case.replace(':', '-')}-{engine}-{seed}"
        run = KilledRun(folder / name, case, engine, stream, longest_s, address)
        run.to_the_end(most)
        run.assert_no_actors()
        assert_same_files(run.folder, expected)
    except (AssertionError, RayfedError, subprocess.TimeoutExpired) as error:
        wrong = str(error)[-2000:] or type(error).__name__
        if run is not None and run.process.poll() is None:
            run.process.kill()
    return {
        "case": case,
        "engine": engine,
        "private": engine == "ray" and address is None,
        "seed": seed,
        "kills": {} if run is None else dict(run.kills),
        "checkpoints cut off": 0 if run is None else run.damaged,
        "resumes": 0 if run is None else run.resumes,
        "seconds": round(time.monotonic() - began, 1),
        "wrong": wrong,
    }
