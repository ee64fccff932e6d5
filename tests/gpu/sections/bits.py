"""One recipe twice on the local engine and once on two hosts of Ray: the same bits in models and tables."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from sections.apart import fresh, processes
from size import Row, Size, rows_of
from small_recipes import FOUR_CLIENTS, decided, small_recipe

Found = tuple[Mapping[str, Any], Mapping[str, Any]]
ROUNDS = {"rounds": 3, "sampling": {"fraction": 1.0}, "evaluation": {"samples": False}}
CASES = {
    "FedKF": small_recipe(FOUR_CLIENTS, "fedkf"),
    "DaFKD": small_recipe(FOUR_CLIENTS, "dafkd"),
    "FedAvg, batched by 2": small_recipe(FOUR_CLIENTS, "fedavg")
    | {"local": {"epochs": 1, "batch_size": 32, "vectorise": 2}},
}


def rows(size: Size) -> Iterator[Row]:
    """A row for each case; one that differs has a fault."""
    names = size.of(list(CASES), ["FedKF"])
    cases = {name: {**CASES[name], **ROUNDS} for name in names}
    with processes(size.of(2 * len(cases), 1)) as pool:  # beside Ray's runs: nothing is timed here
        local = {
            name: [pool.submit(_run, recipe, size.placement, True) for _ in range(2)]
            for name, recipe in cases.items()
        }
        compared = {name: partial(_compared, recipe, local[name], size) for name, recipe in cases.items()}
        yield from rows_of("case", compared)


def _compared(recipe: Mapping[str, Any], local: Sequence[Future[Found]], size: Size) -> Row:
    began = time.perf_counter()
    one, other = (future.result() for future in local)
    row: Row = {"twice_on_local": _difference(one, other) or "equal", "on_ray": None}
    if importlib.util.find_spec("ray") is not None:
        shares = (0.0, 0.0) if size.device == "cpu" else (0.4, 0.2)
        placed: dict[str, Any] = {
            "placement.clients_per_actor": 2,
            "placement.client.num_gpus": shares[0],
            # Where the local engine has the server, as its bits are compared.
            "placement.server.num_gpus": shares[1],
        }
        row["on_ray"] = _difference(one, fresh(_run, recipe, placed, False)) or "equal"
    row["seconds"] = round(time.perf_counter() - began, 1)
    wrong = [
        f"{how}: {said}" for how, said in row.items() if how != "seconds" and said not in (None, "equal")
    ]
    return row | ({"fault": "; ".join(wrong)} if wrong else {})


def _run(recipe: Mapping[str, Any], overrides: Mapping[str, Any], local: bool) -> Found:
    import rayfed_kd

    with tempfile.TemporaryDirectory() as folder:
        result = rayfed_kd.run(recipe, {**overrides, "results.folder": f"{folder}/run"}, local=local)
        return dict(result.models), decided(result.tables)


def _difference(one: Found, other: Found) -> str:
    """What differs first; empty: nothing."""
    for name, vector in one[0].items():
        if not np.array_equal(vector, other[0][name]):
            return f"model {name} by up to {np.abs(vector - other[0][name]).max():.1e}"
    return next((f"table {name}" for name, table in one[1].items() if not table.equals(other[1][name])), "")
