"""Kills at random moments, of client hosts, server or launcher; checkpoints cut off. All end equal.

`pytest -m slow -s tests/chaos`, by environment:

    RAYFED_KD_CHAOS_CASES   method:schedule, comma separated (default fedavg:sync,fedkf:fedbuff); METHODS and
                            SCHEDULES below have the names
    RAYFED_KD_KILLS         kills in all (default 4), as many in each case
    RAYFED_KD_CHAOS_SEED    decides moments and victims (default 1)

Each case runs one recipe to its end through any number of deaths and resumes, again and again until it had
its kills, and compares tables and models with those of the undisturbed run in one process.
"""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import yaml
from safetensors.numpy import load_file
from small_recipes import DECIDED, assert_same_tables

import rayfed_kd
from rayfed_kd.results.tables import read_table

KILLS = int(os.environ.get("RAYFED_KD_KILLS", "4"))
SEED = int(os.environ.get("RAYFED_KD_CHAOS_SEED", "1"))
CASES = os.environ.get("RAYFED_KD_CHAOS_CASES", "fedavg:sync,fedkf:fedbuff").split(",")
RECIPE = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.5},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6},
    "local": {"epochs": 2, "batch_size": 16},
    "rounds": 30,
    "sampling": {"fraction": 0.5},
    "evaluation": {"samples": False},
    "checkpoint": {"every": 2},
    "clock": {"name": "lognormal"},
    "faults": {"max_retries": 10},
}
METHODS = {
    "fedavg": {"name": "fedavg", "track_oca": True},
    "fedkf": {"name": "fedkf", "generator": {"width": 8, "latent": 8}},
    "dafkd": {"name": "dafkd", "generator": {"width": 4, "latent": 8}, "distill_batches": 4},
    "dafkd-local": {
        "name": "dafkd",
        "generator": {"width": 4, "latent": 8},
        "distill_batches": 4,
        "protocol": "local",
    },
}
SCHEDULES = {
    "sync": {"name": "sync"},
    "quorum": {"name": "quorum", "min_fraction": 0.6},
    "next_round": {"name": "quorum", "min_fraction": 0.6, "late": "next_round"},
    "fedbuff": {"name": "fedbuff", "buffer": 2},
    "fedasync": {"name": "fedasync"},
}
VICTIMS = ["ClientActor", "ClientActor", "all ClientActors", "ServerActor", "driver"]


class Run:
    """One run, killed and resumed until it is finished."""

    def __init__(self, folder, recipe, stream):
        self.folder, self.stream = folder, stream
        self.path = folder.with_suffix(".yaml")
        self.path.write_text(yaml.safe_dump({**recipe, "results": {"folder": str(folder)}}))
        self.kills, self.damaged, self.resumes = [], 0, -1
        self.start()

    def start(self):
        """The command: `run`, and `resume` once there is something to resume."""
        begun = (self.folder / "config.yaml").exists()
        # Killed before its first checkpoint it begins again, which `resume` does only if it is told to.
        words = ["resume", self.folder, "--restart"] if begun else ["run", self.path]
        self.resumes += 1
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rayfed_kd", *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder.parent / "stderr.txt").open("w"),
            start_new_session=True,
        )

    def to_the_end(self, most):
        """Kills at most `most` times on the way."""
        for _ in range(100):
            while len(self.kills) < most and self.process.poll() is None:
                self.kill()
            self.process.wait(timeout=600)
            if self.finished():
                return
            self.damage()
            self.start()
        raise AssertionError("a hundred starts were not enough")

    def kill(self):
        """Waits for a random moment of a run that is going on, and kills something."""
        while self.process.poll() is None and not self.pids("ClientActor"):
            time.sleep(0.1)
        kind = str(self.stream.choice(VICTIMS))
        deadline = time.monotonic() + float(self.stream.uniform(0.5, 6.0))
        while time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.05)
        pids = self.pids(kind.removeprefix("all ").rstrip("s"))
        if pids and not kind.startswith("all "):
            pids = [int(self.stream.choice(pids))]
        if pids and not self.finished():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            self.kills.append(kind)
        # The next victim is of a run that got over this one.
        while kind in ("driver", "ServerActor") and self.process.poll() is None:
            time.sleep(0.1)

    def pids(self, kind):
        """This run's processes of a kind; none when it is over."""
        if self.process.poll() is not None:
            return []
        if kind == "driver":
            return [self.process.pid]
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if kind in " ".join(child.cmdline()):
                    found.append(child.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def damage(self):
        """Cuts the newest checkpoint off, every second time."""
        files = sorted((self.folder / "checkpoints").glob("round-*.safetensors"))
        if len(files) > 1 and self.stream.random() < 0.5:
            content = files[-1].read_bytes()
            files[-1].write_bytes(content[: int(self.stream.integers(0, len(content)))])
            self.damaged += 1

    def finished(self):
        """Whether the run says so."""
        path = self.folder / "summary.json"
        return path.is_file() and json.loads(path.read_text())["status"] == "finished"


def assert_same(folder, expected):
    assert_same_tables({name: read_table(folder / "tables", name) for name in DECIDED}, expected.tables)
    for model in expected.models:
        for source in (folder, expected.folder):
            rayfed_kd.export(source, model, source.parent / f"{source.name}-{model}")
        ours, theirs = (
            load_file(s.parent / f"{s.name}-{model}.safetensors") for s in (folder, expected.folder)
        )
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours), model


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_killed_at_random_moments_the_run_ends_as_undisturbed(case, tmp_path):
    method, schedule = case.split(":")
    recipe = {**RECIPE, "method": METHODS[method], "schedule": SCHEDULES[schedule]}
    expected = rayfed_kd.run(recipe, [f"results.folder={tmp_path / 'whole'}"], local=True)
    stream, started = np.random.default_rng([SEED, *case.encode()]), time.monotonic()
    wanted, kills, damaged, resumes, runs = -(-KILLS // len(CASES)), [], 0, 0, 0
    while len(kills) < wanted:
        runs += 1
        run = Run(tmp_path / f"run-{runs}", recipe, stream)
        run.to_the_end(wanted - len(kills))
        assert_same(run.folder, expected)
        kills, damaged, resumes = kills + run.kills, damaged + run.damaged, resumes + run.resumes
    each = ", ".join(f"{kills.count(kind)} {kind}" for kind in sorted(set(kills)))
    figures = f"{damaged} checkpoints cut off, {resumes} resumes, {runs} runs, all equal"
    seconds = time.monotonic() - started
    sys.stdout.write(f"\n{case}: {len(kills)} kills ({each}), {figures}; {seconds:.0f} s\n")
