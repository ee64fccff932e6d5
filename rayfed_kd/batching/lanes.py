"""Clients trained together: the local epochs of many clients as one batched program.

Each client's step runs as it is written, in a lane of its own (a greenlet), until it comes to its local
epochs (`training.train_local_epochs`). There it waits for the others. Lanes whose loss is the same code on
captured values of the same kinds are one program (rayfed_kd/batching/programs.py), which runs batched
(rayfed_kd/batching/together.py). Then every step goes on with its own trained student.

Results differ from those of the plain loop only by how sums are rounded; they depend on which clients are
together, on nothing else. What cannot be batched runs as it is, lane by lane, and says why (`Outcome.alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import torch
from greenlet import getcurrent, greenlet

from rayfed_kd.batching.programs import ApartError, Program, outside
from rayfed_kd.batching.together import Together
from rayfed_kd.protocol import ClientContext
from rayfed_kd.toolbox.local_training import LocalEpochs

T = TypeVar("T")


@dataclass
class Outcome(Generic[T]):
    """What a lane's step gave.

    Attributes:
        value: what it returned.
        alone: why some of its local epochs ran by themselves; empty if none did.
    """

    value: T
    alone: str = ""


@dataclass
class Lanes:
    """Runs many clients' steps, their local epochs together.

    Attributes:
        hopeless: programs that could not be batched, and why: not tried again.
    """

    hopeless: dict[Hashable, str] = field(default_factory=dict)

    def run(self, steps: Sequence[tuple[ClientContext, Callable[[], T]]]) -> list[Outcome[T]]:
        """Each step's result, in the order given.

        Raises: what a step raised.
        """
        lanes = [greenlet(step) for _, step in steps]
        outcomes: dict[int, Outcome[T]] = {}
        reasons: dict[int, str] = {}
        apart: dict[int, str] = {}
        for lane, (ctx, _) in enumerate(steps):
            ctx.together = partial(_waiting, lane, reasons)
        running, came = list(range(len(steps))), set[int]()
        try:
            while running:
                asked = {}
                for lane in running:
                    found = lanes[lane].switch(lane not in apart) if lane in came else lanes[lane].switch()
                    if lanes[lane].dead:
                        outcomes[lane] = Outcome(found, reasons.get(lane, ""))
                    else:
                        asked[lane] = found
                        came.add(lane)
                apart = self._train(asked)
                reasons |= apart
                running = list(asked)
        finally:
            for (ctx, _), left in zip(steps, lanes, strict=True):
                ctx.together = None
                if not left.dead:
                    left.throw()
        for lane, (ctx, _) in enumerate(steps):
            if lane not in came and ctx.samples_drawn and not outcomes[lane].alone:
                outcomes[lane].alone = "its step goes over batches in a loop of its own"
        return [outcomes[lane] for lane in range(len(steps))]

    def _train(self, asked: Mapping[int, LocalEpochs]) -> dict[int, str]:
        """Makes the epochs that can be made together; gives the lanes whose cannot, and why."""
        programs: dict[Hashable, list[tuple[int, Program]]] = {}
        reasons = {}
        for lane, epochs in asked.items():
            try:
                program = Program(epochs)
            except ApartError as error:
                reasons[lane] = str(error)
                continue
            programs.setdefault(program.key, []).append((lane, program))
        for key, members in programs.items():
            reason = self.hopeless.get(key, "")
            if not reason and len(members) == 1:
                reason = "no other client of its group has the same program"
            if not reason:
                reason = self._together(key, [program for _, program in members])
            if reason:
                reasons |= {lane: reason for lane, _ in members}
        return reasons

    def _together(self, key: Hashable, programs: Sequence[Program]) -> str:
        """Runs programs as one; why not, if they cannot be. Then nothing has changed."""
        try:
            Together(programs).run()
        except torch.OutOfMemoryError:
            raise  # how much memory a host has must not decide what is computed
        except Exception as error:  # a fault of the method's own comes again when the lane runs by itself
            self.hopeless[key] = _first_line(error)
        return self.hopeless.get(key, "")


def _waiting(lane: int, reasons: dict[int, str], epochs: LocalEpochs) -> None:
    """Leaves a lane until its epochs were made together with others'; if they were not, makes them here."""
    if shared := outside(epochs.loss):
        reasons[lane] = f"its loss uses {shared}, which lies outside of its step"
        epochs.run()
        return
    parent = getcurrent().parent
    assert parent is not None  # a step's lane was made by `Lanes.run`
    if not parent.switch(epochs):
        epochs.run()


VMAPS = {
    "randomness": "its loss draws random numbers",
    ".item()": "its loss turns a tensor into a number",
    "data-dependent control flow": "its loss decides by a tensor's value",
}


def _first_line(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, ApartError):
        return text
    found = next((f"{meaning} (" for sign, meaning in VMAPS.items() if "vmap" in text and sign in text), "")
    return f"{found}{type(error).__name__}: {text}{')' if found else ''}"
