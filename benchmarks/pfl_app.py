"""FedAvg in pfl-research: `torchrun --nproc-per-node 2 benchmarks/pfl_app.py FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from job import Job, read
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


def with_loss(job: Job) -> torch.nn.Module:
    """The user's module with the two functions that pfl asks of it."""
    module = job.module()

    class Trained(type(module)):  # type: ignore[misc]
        def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            """The mean loss of a batch."""
            self.train()
            return torch.nn.functional.cross_entropy(self(images), labels)

        @torch.no_grad()
        def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            """Sums for the mean loss."""
            self.eval()
            loss = torch.nn.functional.cross_entropy(self(images), labels, reduction="sum")
            return {"loss": Weighted(loss.item(), len(labels))}

    module.__class__ = Trained
    return module


class Rounds(TrainingProcessCallback[Any]):
    """Counts rounds, prints them in the first process, and evaluates the last model."""

    def __init__(self, job: Job) -> None:
        self.job, self.finished = job, 0

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round has ended; no metrics of its own."""
        self.finished = central_iteration + 1
        if pytorch_ops.distributed.global_rank == 0:
            if self.finished == self.job.rounds:
                self.job.end(model.pytorch_model, "pfl")
            self.job.say(self.finished)
        return False, Metrics()


class InOrder(Dataset):
    """A client's samples, in batches of the round's order."""

    def __init__(self, job: Job, rounds: Rounds, client: int) -> None:
        super().__init__(job.own(client), user_id=str(client))
        self._job, self._rounds, self._client = job, rounds, client

    def iter(self, batch_size: int | None) -> Iterator[list[torch.Tensor]]:
        """Batches of all epochs: pfl asks once an epoch, and the workloads have one."""
        (order,) = self._job.orders[self._rounds.finished, self._client]
        for batch in torch.from_numpy(order).split(batch_size or len(order)):
            yield [part[batch] for part in self.raw_data]


class WithoutEvaluation(FederatedAveraging):
    """pfl evaluates every client before and after training in the first round; the others do not."""

    def get_next_central_contexts(self, *arguments: Any, **named: Any) -> Any:
        """The next round, without evaluation."""
        contexts, model, metrics = super().get_next_central_contexts(*arguments, **named)
        if contexts is not None:
            contexts = tuple(replace(context, do_evaluation=False) for context in contexts)
        return contexts, model, metrics


def main() -> None:
    """All rounds, in each process that torchrun starts."""
    job = read(sys.argv[1])
    rounds, clients = Rounds(job), len(job.partition)
    module = with_loss(job)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=partial(torch.optim.SGD, momentum=job.momentum),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    sampler = get_user_sampler("minimize_reuse", list(range(clients)))
    data = FederatedDataset(partial(InOrder, job, rounds), sampler)
    WithoutEvaluation().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds,
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=job.epochs,
            local_learning_rate=job.lr,
            local_batch_size=job.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.world_size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
