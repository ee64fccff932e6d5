"""Questions from inside a server's loop: 8 clients, batches of 256 public samples, two hosts on Ray.

    python tests/benchmarks/questions.py [--batch 256] [--batches 20] [--rounds 5]

The server walks the public set, asks all clients for the logits of every batch, as FedGEMS does of samples
that it never got right, and learns from their mean. Two ways take turns: `ahead`, the simulator's questions,
which clients answer in one call each and the server reads by row; and `calls`, one call per client and
question. Both give the same server model and count the same bytes up, which is checked. LeNet-5 on made-up
3x32x32 images, one torch thread a process.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from cluster.ray_backend import private_ray  # noqa: F401  before Ray

# isort: split
import click
import ray
import torch
from torch import Tensor

from cluster.ray_backend.client_actor import ClientActor
from cluster.ray_backend.engine import RayEngine
from cluster.ray_backend.placement import Plan
from cluster.ray_backend.session import RaySession
from cluster.server.cohort import EngineCohort
from cluster.server.simulation import Simulation
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import ClientContext, Message, Method, Reply
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.recipe.sections.placement import ResourceRecipe
from rayfed_kd.toolbox.local_training import public_logits
from rayfed_kd.toolbox.losses import distillation
from rayfed_kd.toolbox.optimizers import Optimizer

WORKERS, CLIENTS = 2, 8


class Asking(Method[Tensor, Tensor]):
    """Clients that only predict."""

    down: ClassVar = {"ids": "ids"}
    up: ClassVar = {"logits": "logits"}
    public = "samples"

    def init_server(self, ctx: Any) -> Tensor:
        """Nothing of its own."""
        return torch.zeros(1)

    def init_client(self, ctx: ClientContext) -> Tensor:
        """A model of its own."""
        return ctx.own_initial_vector()

    def predict(
        self, client: Tensor | None, message: Message, ctx: ClientContext
    ) -> tuple[Tensor | None, Reply]:
        """Logits on all public samples, or on those that the message names."""
        assert client is not None
        ids = message["ids"].long() if "ids" in message else None
        return client, Reply(logits=public_logits(ctx.frozen_model(client), ctx, ids))


class Walk(NamedTuple):
    """Seconds of an epoch, those of them spent in questions, the model after it, bytes of answers."""

    seconds: float
    waited: float
    model: Tensor
    bytes_up: int


class Side:
    """The simulator on two Ray actors."""

    def __init__(self, batch: int, batches: int) -> None:
        self.batch = batch
        recipe = {
            "method": {"name": f"{__spec__.name if __spec__ else 'tests.benchmarks.questions'}:Asking"},
            "model": {"name": "lenet5"},
            "data": {"name": "synthetic", "samples": batch * batches + 80, "shape": [3, 32, 32]},
            "partition": {"name": "iid", "clients": CLIENTS, "public": {"count": batch * batches}},
            "sampling": {"fraction": 1.0},
        }
        prepared = prepare(recipe)
        self._session = RaySession(prepared.recipe, None)
        self._session.__enter__().ready()
        shared, actor = ray.put(prepared.blueprint), ray.remote(ClientActor).options(num_cpus=1)
        plan = Plan(WORKERS, False, CLIENTS, ResourceRecipe(), ResourceRecipe())
        actors = [actor.remote() for _ in range(WORKERS)]
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        sizes = prepared.setting.partition.sizes.tolist()
        engine = RayEngine(actors, shared, plan, sizes, loop, faults=prepared.recipe.faults)
        self.simulation = Simulation(prepared.setting, engine, Silent())
        self.simulation.begin()
        self.method = prepared.setting.method

    def ahead(self, index: int) -> Walk:
        """Asked ahead, read by row."""
        cohort = EngineCohort(index, self.simulation.run_state)
        started = time.perf_counter()
        questions = cohort.questions(self.method.predict, Message(), answer="logits", question="ids")
        return self._walk(index, cohort, questions.ask, started)

    def calls(self, index: int) -> Walk:
        """A broadcast for each question."""
        cohort = EngineCohort(index, self.simulation.run_state)

        def ask(ids: Tensor) -> Tensor:
            replies = cohort.broadcast(self.method.predict, Message(ids=ids.int()))
            return torch.stack(list(replies.vectors("logits")))

        return self._walk(index, cohort, ask, time.perf_counter())

    def _walk(self, index: int, cohort: Any, ask: Callable[[Tensor], Tensor], started: float) -> Walk:
        """The server's epoch: a question and a step on every batch."""
        ctx, waited = self.simulation._context(index), 0.0
        student = ctx.model(ctx.initial_vector())
        optimizer = Optimizer(OptimizerRecipe(name="adam", lr=0.001), student)
        for ids, images in ctx.public.epoch(0, self.batch):
            asked = time.perf_counter()
            logits = ask(ids)
            waited += time.perf_counter() - asked
            optimizer.minimise(distillation(logits.mean(0), student(images)))
        seconds = time.perf_counter() - started
        self.simulation._module_pool.take_back()
        return Walk(seconds, waited, student.vector(), cohort.traffic.ledger.total("up"))

    def close(self) -> None:
        """Ends Ray."""
        self._session.__exit__(None, None, None)


class Silent:
    """A recorder that writes nothing."""

    def record(self, record: Any) -> None:
        """Nothing."""

    def close(self, status: str) -> dict[str, Any]:
        """Nothing."""
        return {}


def main() -> int:
    """Prints medians over interleaved rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256, help="samples a question")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    side = Side(asked.batch, asked.batches)
    found: dict[str, list[Walk]] = {"ahead": [], "calls": []}
    try:
        for index in range(1, asked.rounds + 2):
            first, second = side.ahead(index), side.calls(index)
            if not torch.equal(first.model, second.model) or first.bytes_up != second.bytes_up:
                click.echo("the two ways differ", err=True)
                return 1
            if index > 1:  # the first round builds the models
                found["ahead"].append(first)
                found["calls"].append(second)
    finally:
        side.close()
    questions = asked.batches * CLIENTS
    for name, walks in found.items():
        seconds = statistics.median(walk.seconds for walk in walks)
        share = statistics.median(walk.waited / walk.seconds for walk in walks)
        click.echo(
            f"{name}: {questions / seconds:,.0f} questions of {asked.batch} samples a second, "
            f"{100 * share:.0f} % of {seconds:.2f} s spent waiting"
        )
    pairs = zip(found["ahead"], found["calls"], strict=True)
    ratio = statistics.median(second.seconds / first.seconds for first, second in pairs)
    click.echo(f"calls / ahead: {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
