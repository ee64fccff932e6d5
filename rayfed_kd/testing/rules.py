"""The rules of the contract, and the error that tells of a broken one."""

from __future__ import annotations

from collections.abc import Mapping

ON_RAY = "engines"  # the rule that only runs on Ray can show to be kept
CLIENT_KEEPS, EVALUATES = "client_keeps", "evaluates"
RULES: Mapping[str, str] = {
    "client state": "A step must leave its client's state as it was, and return a new one.",
    "message": "A step must leave its message as it was.",
    "own tensors": "A step must return a state of its own tensors: no later step may change them.",
    "global random": "A method must draw from `ctx.stream` alone: torch's, NumPy's and Python's global "
    "generators must stay as they were.",
    "declared": "Every part that crosses must be declared in `down` or `up`.",
    "storable": "A state must be made of dataclasses, mappings, sequences, tensors and plain values.",
    "replay": "The same call must give the same reply, log and state, bit for bit.",
    "complete state": "A client's state must hold all that its next step needs, so that any host can run it.",
    "order": "The order in which clients run must change nothing.",
    "server state": "A round must leave the server's state before it as it was, and return a new one.",
    "frozen": "A method must hold nothing but its options; what changes belongs into a state.",
    "checkpoint": "A run that goes on from a checkpoint must give the bits of the undisturbed run.",
    ON_RAY: "A run on Ray must give the bits of a run in one process.",
    CLIENT_KEEPS: '`client_keeps` must say "nothing" exactly where steps leave no state.',
    EVALUATES: "`evaluates` must name every model that `evaluated` gives.",
}


class ContractError(AssertionError):
    """A method breaks a rule.

    Attributes:
        rule: its key in `RULES`.
        where: the step, round and client, or the part of the run, in which it showed.
    """

    def __init__(self, rule: str, where: str, detail: str) -> None:
        self.rule, self.where = rule, where
        super().__init__(f"{RULES[rule]} Broken in {where}: {detail}")
