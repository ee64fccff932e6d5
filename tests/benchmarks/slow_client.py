"""A round of ten clients on two hosts, of which one's step takes four seconds and the others' one.

    python tests/benchmarks/slow_client.py

All have as many samples, so in the first round the slow one, the last by number, starts last. Then its hosts
know it. Steps sleep, so a busy machine does little to the numbers. No plan is shorter than seven seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time

import rayfed_kd
from algorithms.fedavg import FedAvg
from rayfed_kd.protocol import ClientContext, Message, Reply

SLOW, SLOW_S, OTHERS_S = 9, 4.0, 1.0
RECIPE = {
    "method": {"name": "tests.benchmarks.slow_client:Sleeping"},
    "model": {"name": "mlp", "hidden": 4},
    "data": {"name": "synthetic", "samples": 200, "shape": [8]},
    "partition": {"name": "iid", "clients": 10},
    "placement": {"clients_per_actor": 5},
    "local": {"epochs": 1},
    "sampling": {"fraction": 1.0},
    "rounds": 4,
}


class Sleeping(FedAvg):
    """FedAvg whose steps also take their time."""

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """FedAvg's."""
        time.sleep(SLOW_S if ctx.client == SLOW else OTHERS_S)
        return super().client_update(client, message, ctx)


def main() -> None:
    """Run, and print each round's seconds."""
    with tempfile.TemporaryDirectory() as folder:
        result = rayfed_kd.run(RECIPE, results={"folder": f"{folder}/run"})
        for row in result.table("rounds").to_pylist():
            sys.stdout.write(f"round {row['round']}: {row['client_s']:.2f} s\n")


if __name__ == "__main__":
    main()
