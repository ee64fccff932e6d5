"""Runs small recipes on the CPU and on a second device (tests/helpers/second_device.py), one JSON line each.

    python tests/helpers/second_device_runs.py                 # every method, and what else a run may have
    python tests/helpers/second_device_runs.py fedavg fedkf

A line has the case's name, and `fault`: empty if models and metrics have the CPU's bits. `copies` counts what
was copied in a run, by direction and by the place that asked for it. `hosts` has the rows of that table,
`sizes` each client's training samples, and `sent` the bytes of parts in the table `messages` by direction.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from device_cases import cases, run
from second_device import COPIES, NAME, install

from rayfed_kd.experiment.preparation import prepare

# An ensemble of `torch.func.vmap`, which the device does not know.
BATCHED = ("fedftg",)


def fault(recipe: dict[str, Any], facts: dict[str, Any]) -> str:
    """What is wrong with a recipe on the second device; empty: nothing. `facts` takes what its run left."""
    there = run(recipe, NAME)
    facts["hosts"] = there.tables["hosts"].to_pylist()
    facts["sizes"] = [len(samples) for samples in prepare(recipe).setting.partition.train]
    sent = Counter[str]()
    for row in there.tables["messages"].to_pylist():
        if row["kind"] != "metadata":  # plain numbers, which lie on no device
            sent[row["direction"]] += row["bytes"]
    facts["sent"] = sent
    copies = list(COPIES)
    here = run(recipe, "cpu")
    COPIES[:] = copies
    for name, vector in here.models.items():
        if not torch.equal(vector, there.models[name]):
            return f"model {name} has other bits"
    tables = [outcome.tables["metrics"].drop_columns(["sim_s"]) for outcome in (here, there)]
    return "" if tables[0].equals(tables[1]) else "the table metrics has other numbers"


def main(names: list[str]) -> None:
    """Try the cases and print their lines."""
    torch.set_num_threads(1)
    install()
    for name, recipe in cases().items():
        if name in BATCHED or (names and name not in names):
            continue
        COPIES.clear()
        facts = dict[str, Any]()
        try:
            wrong = fault(recipe, facts)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        copies = Counter(f"{copy.to} {copy.place}" for copy in COPIES)
        sys.stdout.write(json.dumps({"name": name, "fault": wrong, "copies": copies} | facts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
