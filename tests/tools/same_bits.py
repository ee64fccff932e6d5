"""Checks that the recipes of same_bits.yaml give the same bits at two commits, on both engines.

    git worktree add ../before COMMIT
    cp tests/tools/same_bits.* ..               # both trees are recorded by one script
    (cd ../before && python ../same_bits.py record ../bits-before)
    python ../same_bits.py record ../bits-after
    python ../same_bits.py compare ../bits-before ../bits-after

`record` runs every case with `--local` and with two hosts on a private Ray. It runs the sources of the
current folder, which is the root of a tree, and calls nothing but the command line: the commands and the
recipes' keys stay the same when files move. It exports every evaluated model after the last round and writes
FOLDER/bits.json, which has a digest of each model's tensors and of each column of the tables. Floats count
with all their bits. Measured seconds, the table of hosts and the pictures are left out. The run folders are
kept in FOLDER/runs. `--only NAME` (one or several) records some cases again, for instance the rest after an
interruption. Make both records on the same machine with the same packages.

`compare` prints one line for each case and engine: equal, or what differs first. Then it compares, within the
second folder, the local runs with those on Ray and the resumed runs with the uninterrupted ones. The exit
code is 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import yaml
from safetensors import safe_open

GIVEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf8"))
RESUMED = {f"{name}-resumed": name for name in GIVEN["resumed"]}
CASES = {**GIVEN["cases"], **{name: GIVEN["cases"][whole] for name, whole in RESUMED.items()}}
ENGINES = ("local", "ray")
TABLES = ("rounds", "metrics", "clients", "messages")
SECONDS = ("wall_s", "dispatch_s", "client_s", "server_s", "evaluate_s")

Bits = dict[str, dict[str, str]]  # table or "models" -> column or model -> digest


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command, folders in (("record", 1), ("compare", 2)):
        asked = commands.add_parser(command)
        asked.add_argument("folders", nargs=folders, type=Path, metavar="FOLDER")
        asked.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    given = parser.parse_args()
    if given.command == "record":
        return record(given.folders[0].resolve(), given.only)
    before, after = (json.loads((folder / "bits.json").read_text()) for folder in given.folders)
    return compare(before, after, given.only)


def record(folder: Path, names: list[str]) -> int:
    """Runs the cases on both engines; bits.json is written anew after each run."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    source = Path(said(sys.executable, "-c", "import rayfed_kd; print(rayfed_kd.__file__)").strip())
    if not source.is_relative_to(Path.cwd()):
        raise SystemExit(f"{source} would run, which is not below {Path.cwd()}")
    changed = said("git", "status", "--porcelain", "--untracked-files=no")
    tree = f"{said('git', 'rev-parse', 'HEAD').strip()} in {Path.cwd()}{', changed' * bool(changed)}"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "bits.json"
    runs = json.loads(kept.read_text())["runs"] if kept.exists() else {}
    (folder / "base.yaml").write_text(yaml.safe_dump(GIVEN["base"]))
    os.environ["RAY_AUTH_MODE"] = (
        "disabled"  # one Ray for all cases, on loopback: starting it takes the longest
    )
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    engines = {"local": ["--local"], "ray": ["--address", ray.get_runtime_context().gcs_address]}
    for name in names:
        for engine, options in engines.items():
            started = time.monotonic()
            run = folder / "runs" / f"{name}-{engine}"
            runs[f"{name}, {engine}"] = recorded(name, run, options)
            kept.write_text(json.dumps({"tree": tree, "runs": runs}, indent=1))
            hosts = len(set(table(run, "hosts")["host"].to_pylist()))  # a run this short may leave one idle
            told(f"{name}, {engine}: {time.monotonic() - started:.1f} s, hosts that worked: {hosts}")
    return 0


def recorded(name: str, run: Path, options: list[str]) -> Bits:
    """Runs a case into a folder with the options of an engine and gives its digests."""
    shutil.rmtree(run, ignore_errors=True)
    changes = [f"{key}={json.dumps(value)}" for key, value in CASES[name].items()]  # JSON is YAML
    changes += [f"results.folder={run}", *["rounds=2"] * (name in RESUMED)]
    rayfed_kd("run", run.parents[1] / "base.yaml", *changes, *options)
    if name in RESUMED:
        rayfed_kd("resume", run, f"rounds={GIVEN['base']['rounds']}", *options)
    bits = {path.stem: columns(pq.read_table(path)) for path in sorted(run.glob("*.parquet"))}
    bits |= {f"table {kind}": columns(table(run, kind)) for kind in TABLES}
    bits["models"] = {}
    for model in sorted(set(table(run, "metrics")["model"].to_pylist())):
        for client in range(GIVEN["base"]["partition"]["clients"]) if model == "personal" else (None,):
            words = () if client is None else ("--client", client)
            path = run / "exported" / f"{model}{'' if client is None else client}.safetensors"
            rayfed_kd("export", run, "--model", model, "--to", path, *words)
            bits["models"][path.stem] = tensors(path)
    return bits


def table(run: Path, kind: str) -> pa.Table:
    """Reads a table of a finished run; the one file of its folder."""
    (path,) = (run / "tables" / kind).glob("*.parquet")
    return pq.read_table(path)


def columns(found: pa.Table) -> dict[str, str]:
    """Column -> digest of its type and of its values in the order of rows; without measured seconds."""
    kept = [name for name in found.column_names if name not in SECONDS]
    texts = {name: f"{found[name].type} {exact(found[name].to_pylist())}" for name in kept}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def exact(value: Any) -> str:
    """Gives a value as text, a float as its eight bytes."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(exact, value))}]"
    return struct.pack(">d", value).hex() if isinstance(value, float) else repr(value)


def tensors(path: Path) -> str:
    """Gives the digest of an exported model: names, types, shapes and all bytes."""
    seen = hashlib.sha256()
    with safe_open(path, "numpy") as file:
        for key in sorted(file.keys()):
            tensor = file.get_tensor(key)
            seen.update(f"{key} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return seen.hexdigest()


def rayfed_kd(*words: object) -> None:
    said(sys.executable, "-m", "rayfed_kd", *map(str, words))


def said(*words: str) -> str:
    """Runs a command and gives what it printed; ends the recording if it failed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def compare(before: dict[str, Any], after: dict[str, Any], names: list[str]) -> int:
    """Prints a line for each pair of runs; gives the exit code."""
    told(f"before: {before['tree']}\nafter: {after['tree']}")
    old, new = before["runs"], after["runs"]
    runs = [f"{name}, {engine}" for name in names for engine in ENGINES]
    pairs = [(run, old.get(run), new.get(run)) for run in runs]
    pairs += [(f"{n}, local and Ray", *(new.get(f"{n}, {engine}") for engine in ENGINES)) for n in names]
    for name in (name for name in names if name in RESUMED):
        both = [[new.get(f"{n}, {engine}") for n in (RESUMED[name], name)] for engine in ENGINES]
        pairs += [(f"{name} and not, {e}", *pair) for e, pair in zip(ENGINES, both, strict=True)]
    found = [(label, difference(one, other)) for label, one, other in pairs]
    told(*(f"{label}: {different or 'equal'}" for label, different in found))
    told(f"{sum(bool(different) for _, different in found)} of {len(found)} differ")
    return int(any(different for _, different in found))


def difference(one: Bits | None, other: Bits | None) -> str:
    """Says which table's column or which model differs first; empty if none does."""
    if one is None or other is None:
        return "NOT RECORDED on either side" if one is other else "NOT RECORDED on one side"
    for part in {**one, **other}:
        ours, theirs = one.get(part, {}), other.get(part, {})
        for key in {**ours, **theirs}:
            if ours.get(key) != theirs.get(key):
                return f"DIFFERENT in {part}: {key}"
    return ""


def told(*lines: str) -> None:
    sys.stdout.write("\n".join((*lines, "")))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
