"""How long a run of FedGEMS' Table 2 at full size takes on one core: its steps times the seconds of a step.

    python tests/benchmarks/fedgems_estimate.py

`--estimate` trains and evaluates 16 clients on parts of the data, which takes an hour itself. This measures
one step and one forward pass of the client's and of the server's network, on a batch of 256 images 3x32x32,
in processor time, and counts: 25,000 public images, 1,562 private ones a client, 10,000 for tests.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from rayfed_kd.models.resnet import bottleneck_resnet

CLIENTS, ROUNDS, BATCH = 16, 200, 256
PUBLIC, PRIVATE, TEST = 25_000 / BATCH, 25_000 / CLIENTS / BATCH, 10_000 / BATCH  # batches
FEDAVG_EPOCHS = 20
STEPS = 3


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of one call, after a first one."""
    work()
    began = time.process_time()
    for _ in range(STEPS):
        work()
    return (time.process_time() - began) / STEPS


def measured(blocks: list[int]) -> tuple[float, float]:
    """Seconds of a training step and of a forward pass of a bottleneck ResNet."""
    model = bottleneck_resnet((3, 32, 32), 10, blocks=blocks)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def forward() -> None:
        with torch.no_grad():
            model(images)

    trained = seconds(step)
    model.eval()
    return trained, seconds(forward)


def main() -> None:
    """Print both steps, a round's parts, and the hours of a run of FedGEMS and of FedAvg."""
    torch.set_num_threads(1)
    (client, client_forward), (server, server_forward) = measured([1, 1, 1]), measured([6, 6, 6])
    # A client learns the public and its own images once, and gives logits on the public ones.
    clients = CLIENTS * ((PUBLIC + PRIVATE) * client + PUBLIC * client_forward)
    # The server looks at its own answers, learns, and gives logits.
    servers = PUBLIC * (server + 2 * server_forward)
    evaluation = TEST * (CLIENTS * client_forward + server_forward)
    fedavg = CLIENTS * FEDAVG_EPOCHS * PRIVATE * client + TEST * client_forward
    hours = [ROUNDS * a_round / 3600 for a_round in (clients + servers + evaluation, fedavg)]
    sys.stdout.write(
        f"a step: client {client:.2f} s, server {server:.2f} s; "
        f"forward: {client_forward:.2f} s, {server_forward:.2f} s\n"
        f"a round of FedGEMS: clients {clients:.0f} s, server {servers:.0f} s, "
        f"evaluation {evaluation:.0f} s\n"
        f"a run: FedGEMS {hours[0]:.0f} h, FedAvg {hours[1]:.0f} h\n"
    )


if __name__ == "__main__":
    main()
