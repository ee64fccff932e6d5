"""Kills at random moments, of client hosts, server or launcher; checkpoints cut off. All end equal.

`pytest -m slow tests/chaos`; RAYFED_KD_KILLS says how many (default 3), RAYFED_KD_CHAOS_SEED where.
RAYFED_KD_CHAOS_METHODS=fedavg,fedkf,dafkd names the methods (default fedavg). Each case runs one recipe to
its end through any number of deaths and resumes, and compares tables with those of the undisturbed run.
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

import rayfed_kd
from rayfed_kd.results.tables import read_table

KILLS = int(os.environ.get("RAYFED_KD_KILLS", "3"))
SEED = int(os.environ.get("RAYFED_KD_CHAOS_SEED", "1"))
RECIPE = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.3},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6},
    "local": {"epochs": 2, "batch_size": 32},
    "rounds": 12,
    "sampling": {"fraction": 0.5},
    "evaluation": {"samples": False},
    "checkpoint": {"every": 1},
}
METHODS = {
    "fedavg": {"name": "fedavg", "track_oca": True},
    "fedkf": {"name": "fedkf", "generator": {"width": 8, "latent": 8}},
    "dafkd": {"name": "dafkd", "generator": {"width": 4, "latent": 8}, "distill_batches": 4},
}
CHOSEN = os.environ.get("RAYFED_KD_CHAOS_METHODS", "fedavg").split(",")
TIMES = ["wall_s", "dispatch_s", "client_s", "server_s", "evaluate_s"]


def command(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "rayfed_kd", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def victims(process, kind):
    """Pids of this run's processes of a kind: its client hosts, its server, or itself."""
    if kind == "driver":
        return [process.pid]
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if kind in " ".join(child.cmdline()):
                found.append(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def kill_one(process, stream):
    """Kills something at a random moment; gives what, or None if there was nothing to kill."""
    kind = str(stream.choice(["ClientActor", "ClientActor", "ServerActor", "driver"]))
    deadline = time.monotonic() + float(stream.uniform(4, 12))
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    if process.poll() is not None:
        return None
    pids = victims(process, kind)
    if not pids:
        return None
    os.kill(int(stream.choice(pids)), signal.SIGKILL)
    return kind


def damage_newest(folder, stream):
    """Cuts the newest checkpoint off, sometimes."""
    files = sorted((folder / "checkpoints").glob("round-*.safetensors"))
    if len(files) > 1 and stream.random() < 0.5:
        content = files[-1].read_bytes()
        files[-1].write_bytes(content[: int(stream.integers(0, len(content)))])
        return True
    return False


def finished(folder):
    path = folder / "summary.json"
    return path.is_file() and json.loads(path.read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("method", CHOSEN)
def test_killed_at_random_moments_the_run_ends_as_undisturbed(method, tmp_path):
    recipe = {**RECIPE, "method": METHODS[method]}
    expected = rayfed_kd.run(recipe, [f"results.folder={tmp_path / 'whole'}"], local=True)
    stream = np.random.default_rng([SEED, len(method)])
    kills = damaged = 0
    attempt = 0
    while kills < -(-KILLS // len(CHOSEN)):
        attempt += 1
        folder = tmp_path / f"cut-{attempt}"
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**recipe, "results": {"folder": str(folder)}}))
        process = command("run", path)
        for _ in range(20):
            kills += kill_one(process, stream) is not None
            process.wait(timeout=300)
            if finished(folder):
                break
            damaged += damage_newest(folder, stream)
            begun = (folder / "config.yaml").exists()
            process = command("resume", folder) if begun else command("run", path)
        else:
            process.wait(timeout=300)
        assert finished(folder), process.stderr.read()
        for name in ("rounds", "metrics", "clients", "messages"):
            table, wanted = read_table(folder / "tables", name), expected.tables[name]
            if name == "rounds":
                table, wanted = table.drop(TIMES), wanted.drop(TIMES)
            assert table.equals(wanted), (name, attempt)
        rayfed_kd.export(folder, next(iter(expected.models)), tmp_path / f"model-{attempt}")
        from safetensors.numpy import load_file

        exported = load_file(tmp_path / f"model-{attempt}.safetensors")
        assert sum(array.size for array in exported.values()) == next(iter(expected.models.values())).size
    assert kills >= KILLS // len(CHOSEN)
