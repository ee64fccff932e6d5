"""Runs the sections of tests/gpu/sections, each in a process with a time limit, and writes what they found.

    tests/gpu/check.sh --out FOLDER

FOLDER/gpu.json has all of it, FOLDER/gpu.md the tables, FOLDER/NAME.log what a section printed. The first two
are written anew after each section, so that an interruption loses one section. The exit code is 1 if a
section failed, 2 if it cannot begin. Standard library only: it says itself what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tables import page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Seconds that each section may take on a GPU. They are more than WHOLE_S together: one that hangs costs the
# last ones their time, and a check in which all is well ends far earlier.
SECTIONS = {
    "machine": 30,
    "bits": 110,
    "devices": 130,
    "fedkf": 50,
    "workloads": 80,
    "hosts": 150,
    "precision": 40,
    "graphs": 90,
    "memory": 60,
}
WHOLE_S = 525.0
CPU_PATIENCE = 4  # times as long at toy size on the CPU: its cores may be busy with something else
LEAST_S = 8.0  # less is not enough to import torch


@dataclass(frozen=True)
class Options:
    """What all sections are told.

    Attributes:
        device: cuda or cpu.
        toy: whether everything is as small as it can be.
        out: the folder.
    """

    device: str
    toy: bool
    out: Path


def main(words: Sequence[str] | None = None) -> int:
    """Run the sections; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is found; made if need be")
    parser.add_argument("--cpu", action="store_true", help="at toy size on the CPU")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--seconds", type=float, help="limit of the whole check")
    given = parser.parse_args(words)
    if lacking := missing_packages():
        return refuse(
            f"missing packages: {', '.join(lacking)}. On a machine with network: "
            f"`tests/gpu/fetch_wheels.sh {' '.join(lacking)}`, and carry wheels here"
        )
    options = Options("cpu" if given.cpu else "cuda", given.cpu, given.out)
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"commit": commit(), "command": sys.argv, "device": options.device}
    found |= {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "sections": {}}
    began, patience = time.monotonic(), CPU_PATIENCE if given.cpu else 1
    whole_s = given.seconds or patience * WHOLE_S
    for name in given.only:
        limit = min(patience * SECTIONS[name], whole_s - (time.monotonic() - began))
        section = run(name, options, limit)
        found["sections"][name], found["seconds"] = section, round(time.monotonic() - began, 1)
        write(options.out, found)
        told = f"{name:<10} {section['status']:<12} {section['seconds']:6.1f} s  {len(section['rows'])} rows"
        sys.stdout.write(f"{told}  {section['reason']}\n".rstrip() + "\n")
        if name == "machine" and section["status"] == "failed":
            return refuse(f"the machine cannot be used, {options.out / 'machine.log'} has more")
    sys.stdout.write(f"{options.out / 'gpu.json'}\n{options.out / 'gpu.md'}\n")
    statuses = {section["status"] for section in found["sections"].values()}
    return 1 if statuses & {"failed", "out of time"} else 0


def run(name: str, options: Options, limit_s: float) -> dict[str, Any]:
    """One section: its rows, how it ended (done, failed, left out, out of time), and why."""
    section: dict[str, Any] = {"status": "out of time", "reason": "", "seconds": 0.0, "rows": []}
    if limit_s < LEAST_S:
        return section | {"reason": "no time was left for it"}
    rows, log = options.out / f"{name}.rows", options.out / f"{name}.log"
    rows.write_text("")
    words = [sys.executable, str(HERE / "section.py"), name, "--rows", str(rows), "--device", options.device]
    words += ["--toy"] * options.toy + ["--seconds", f"{limit_s:.0f}"]
    began = time.monotonic()
    with log.open("w") as printed:
        # A session of its own, so that its end takes the processes that it has started with it.
        process = subprocess.Popen(
            words, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    section["seconds"] = round(time.monotonic() - began, 1)
    section["rows"] = [json.loads(line) for line in rows.read_text().splitlines()]
    rows.unlink()
    faults = [row["fault"] for row in section["rows"] if row.get("fault")]
    last = next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")
    if code is None:
        return section | {"reason": f"stopped after {limit_s:.0f} s"}
    if code == LEFT_OUT:
        return section | {"status": "left out", "reason": last}
    if code or faults:
        return section | {"status": "failed", "reason": last if code else f"{len(faults)} rows: {faults[0]}"}
    return section | {"status": "done"}


LEFT_OUT = 77  # the exit code by which a section says that it cannot be on this machine


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a section's whole group of processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write(out: Path, found: Mapping[str, Any]) -> None:
    """The two files."""
    (out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf8")
    (out / "gpu.md").write_text(page(found), encoding="utf8")


def missing_packages() -> list[str]:
    """What the package needs and is not installed; Ray is not asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    names = [requirement.partition(">")[0] for requirement in project["dependencies"]]
    lacking = []
    # What these need in turn is not asked for, but pydantic's parts are often missing with it.
    for name in [*names, "pydantic-core", "annotated-types", "typing-inspection"]:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            lacking.append(name)
    return [name for name in lacking if name != "ray"]


def commit() -> str | None:
    """The tree's commit; None where git does not know it."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None


def refuse(why: str) -> int:
    """Says why it cannot be done."""
    sys.stderr.write(f"{why}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
