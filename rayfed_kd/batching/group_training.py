"""Training of a group of clients: their local epochs run as one batched program where that is possible.

Each client's step runs as it is written, as a greenlet, until it comes to its local training
(rayfed_kd/toolbox/local_training.py). There it waits for the other clients of the group. Clients of equal
`program_of` are then trained as one (rayfed_kd/batching/batched_steps.py), and every step goes on with its
own trained models.

Results differ from those of clients trained alone only by how sums are rounded. They depend on which clients
are in the group and on nothing else. What cannot be batched runs client by client, to the same bits as
without a group, and says why (`Outcome.alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from greenlet import getcurrent, greenlet

from rayfed_kd.batching.batched_steps import BatchedSteps
from rayfed_kd.batching.step_program import CannotBatchError, program_of
from rayfed_kd.batching.step_purity import ModuleData
from rayfed_kd.errors import RunError
from rayfed_kd.protocol import ClientContext
from rayfed_kd.toolbox.local_training import FreeSteps, LocalSteps

T = TypeVar("T")

OWN_LOOP = "its step goes over batches in a loop of its own"
CLOSURE = "its loss is a closure: what differs from client to client is not told (train_batches)"


@dataclass
class Outcome(Generic[T]):
    """What a client's step gave.

    Attributes:
        value: what it returned.
        alone: why some of its local training ran by itself; empty if none did.
    """

    value: T
    alone: str = ""


@dataclass
class GroupTraining:
    """Runs the steps of groups of clients.

    Attributes:
        refused: programs that could not be batched, and why; they are not tried again.
    """

    refused: dict[Hashable, str] = field(default_factory=dict)

    def run(
        self, steps: Sequence[tuple[ClientContext, Callable[[], T]]], method_step: Callable[..., Any]
    ) -> list[Outcome[T]]:
        """Runs one step of each client of a group.

        Args:
            steps: every client's context, and its step to be called.
            method_step: the method's function behind all of them; it is looked at for data that lie outside.
        Returns: the steps' results, in the order given.
        Raises: what a step raised; RunError if the step has changed a module's variable, because a client may
            then have found another's value.
        """
        outside = ModuleData.used_by(method_step)
        if outside.mutable:
            reason = f"its step uses {outside.mutable}, which lies outside of it"
            # A step that drew no samples did not train, so there is no reason to report.
            return [Outcome(step(), reason * (ctx.samples_drawn > 0)) for ctx, step in steps]
        before = outside.constants()
        outcomes = self._in_turns(steps)
        if changed := [name for name, value in outside.constants().items() if value is not before[name]]:
            raise RunError(
                f"{changed[0]} was changed while clients trained as a group, so one of them may have found "
                "another's value. Keep it in the client's state or in a local variable, or set "
                "local.vectorise to off"
            )
        return outcomes

    def _in_turns(self, steps: Sequence[tuple[ClientContext, Callable[[], T]]]) -> list[Outcome[T]]:
        turns = [greenlet(step) for _, step in steps]
        outcomes: dict[int, Outcome[T]] = {}
        reasons: dict[int, str] = {}
        alone: dict[int, str] = {}
        for place, (ctx, _) in enumerate(steps):
            ctx.group_runner = partial(_wait, place, reasons)
        running, waited = list(range(len(steps))), set[int]()
        try:
            while running:
                training: dict[int, LocalSteps] = {}
                for place in running:
                    turn = turns[place]
                    # A waiting step learns whether the group made its training; if not, `_wait` makes it.
                    came = turn.switch(place not in alone) if place in waited else turn.switch()
                    if turn.dead:
                        outcomes[place] = Outcome(came, reasons.get(place, ""))
                    else:
                        training[place] = came
                        waited.add(place)
                alone = self._train(training)
                reasons |= alone
                running = list(training)
        finally:
            for (ctx, _), turn in zip(steps, turns, strict=True):
                ctx.group_runner = None
                # Another step has raised: unwind this one, so that its `finally` blocks run now.
                if not turn.dead:
                    turn.throw()
        for place, (ctx, _) in enumerate(steps):
            if place not in waited and ctx.samples_drawn and not outcomes[place].alone:
                outcomes[place].alone = OWN_LOOP
        return [outcomes[place] for place in range(len(steps))]

    def _train(self, training: Mapping[int, LocalSteps]) -> dict[int, str]:
        """Makes the steps that can be made as a group; gives the clients whose cannot, and why."""
        groups: dict[Hashable, list[int]] = {}
        reasons = {}
        for place, steps in training.items():
            try:
                groups.setdefault(program_of(steps), []).append(place)
            except CannotBatchError as error:
                reasons[place] = str(error)
        for program, places in groups.items():
            reason = self.refused.get(program, "")
            if not reason and len(places) == 1:
                reason = "no other client of its group has the same program"
            if not reason:
                reason = self._batched(program, [training[place] for place in places])
            if reason:
                reasons |= dict.fromkeys(places, reason)
        return reasons

    def _batched(self, program: Hashable, members: Sequence[LocalSteps]) -> str:
        """Makes the members' steps as one program; why not, if it cannot. Then nothing has changed."""
        try:
            BatchedSteps(members).run()
        except torch.OutOfMemoryError:
            raise  # how much memory a host has must not decide what is computed
        except Exception as error:  # a fault of the method's own comes again when the client trains alone
            self.refused[program] = _first_line(error)
        return self.refused.get(program, "")


def _wait(place: int, reasons: dict[int, str], steps: LocalSteps | FreeSteps) -> None:
    """Leaves a client's step until its training was made with others'; if it was not, makes it here."""
    if isinstance(steps, FreeSteps):
        reasons[place] = CLOSURE
        steps.run()
        return
    parent = getcurrent().parent
    assert parent is not None  # a step's greenlet was made by `GroupTraining`
    if not parent.switch(steps):
        steps.run()


VMAPS_WORDS = {
    "randomness": "its loss draws random numbers",
    ".item()": "its loss turns a tensor into a number",
    "data-dependent control flow": "its loss decides by a tensor's value",
}


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, CannotBatchError):
        return text
    meant = next((f"{words} (" for sign, words in VMAPS_WORDS.items() if "vmap" in text and sign in text), "")
    return f"{meant}{type(error).__name__}: {text}{')' if meant else ''}"
