"""Every method, and what else a run may have: two rounds on the device twice, and once on the CPU."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator

import torch
from device_cases import cases, run
from sections.apart import each
from size import Row, Size

TOY = ("fedavg", "fedkf", "batched")


def rows(size: Size) -> Iterator[Row]:
    """A row for each case, in the order in which they end."""
    names = size.of([*cases(), "batched", "bf16"], list(TOY))
    processes = size.of(max(1, min(8, (os.cpu_count() or 2) // 2)), 1)
    yield from each(_case, [(name, size) for name in names], processes)


def _case(name: str, size: Size) -> Row:
    size.set_up()
    fedavg = cases()["fedavg"]
    local = fedavg["local"]
    own = {
        "batched": fedavg | {"local": {**local, "vectorise": 4}},
        "bf16": fedavg | {"local": {**local, "precision": "bf16"}},
    }
    recipe = own[name] if name in own else cases()[name]
    began = time.perf_counter()
    try:
        one, other = (run(recipe, size.device).models for _ in range(2))
        here = run(recipe, "cpu").models
    except Exception as error:  # of any kind: the next case may be well
        traceback.print_exc()
        return {"case": name, "fault": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    wrong = [
        f"model {model} differs in the second run" for model in one if not one[model].equal(other[model])
    ]
    wrong += [f"model {model} is not finite" for model in one if not torch.isfinite(one[model]).all()]
    # Methods that draw on the device draw other numbers than on the CPU, so that this is no error by itself.
    distances = [((one[model] - here[model]).norm() / here[model].norm()).item() for model in one]
    row = {"case": name, "seconds": round(time.perf_counter() - began, 1), "same_bits_twice": not wrong}
    far = max(distances, default=None)  # methods without a shared model have none
    return row | {"relative_distance_to_cpu": far} | ({"fault": "; ".join(wrong)} if wrong else {})
