"""FedAvg in Flower's simulation engine, two clients at a time: `python benchmarks/flower_app.py FOLDER`."""

from __future__ import annotations

import os
import sys

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job, read

client_app, server_app = ClientApp(), ServerApp()
FOLDER = "PEERS_JOB"  # the environment variable through which Ray's processes learn of the folder


def train(job: Job, module: torch.nn.Module, client: int, finished: int) -> int:
    """A client's epochs, as a user writes them; gives its number of samples."""
    images, labels = job.own(client)
    optimizer = torch.optim.SGD(module.parameters(), lr=job.lr, momentum=job.momentum)
    module.train()
    for order in job.orders[finished, client]:
        for batch in torch.from_numpy(order).split(job.batch_size):
            loss = torch.nn.functional.cross_entropy(module(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return len(labels)


@client_app.train()
def client_train(message: Message, context: Context) -> Message:
    """One client's part of a round."""
    job = read(os.environ[FOLDER])
    module = job.module()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    n = int(message.content["config"]["server-round"])
    samples = train(job, module, int(context.node_config["partition-id"]), n - 1)
    reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": samples})}
    return Message(content=RecordDict(reply), reply_to=message)


@server_app.main()
def server_main(grid: Grid, context: Context) -> None:
    """All rounds."""
    job = read(os.environ[FOLDER])
    module = job.module()

    def ended(n: int, arrays: ArrayRecord) -> None:
        if n == job.rounds:
            module.load_state_dict(arrays.to_torch_state_dict())
            job.end(module, "flower")
        if n:
            job.say(n)

    clients = len(job.partition)
    FedAvg(fraction_evaluate=0.0, min_available_nodes=clients).start(
        grid=grid,
        initial_arrays=ArrayRecord(module.state_dict()),
        num_rounds=job.rounds,
        train_config=ConfigRecord(),
        evaluate_fn=ended,
    )


def main() -> None:
    """Runs the simulation on two processes."""
    folder = sys.argv[1]
    os.environ[FOLDER] = folder
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=len(read(folder).partition),
        backend_config={
            "init_args": {"num_cpus": 2, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    # Apps of an imported module: Ray then imports them by name in its processes, and does not copy them.
    import flower_app

    flower_app.main()
