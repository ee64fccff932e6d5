"""A tracker that notes what it is told, as lines of JSON beside the run's folder."""

import json

import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd import Tracker

RECIPE = {**THREE_CLIENTS, "rounds": 5, "checkpoint": {"every": 2}, "evaluation": {"samples": False}}


class Recording(Tracker):
    """Fails once in round `fails`, and in round 0 cannot start; `holds` the rounds that are noted."""

    def __init__(self, *, fails: int = -1):
        self.fails = fails

    def start(self, run):
        assert self.fails != 0
        self.folder, self.file = run.folder, run.folder.parent / "told.jsonl"
        held = rounds_told(run.folder.parent) if self.file.exists() else []
        self.note("start", run.id, run.name, run.group)
        run.config.clear()  # a tracker's own
        return max(held, default=None) if len(held) < 6 else None

    def round(self, told):
        if told.round == self.fails:
            self.fails = -1
            raise ValueError("it is full")
        self.note("round", told.round, dict(told.scalars), sorted(told.images), sorted(told.histograms))

    def end(self, summary, files):
        written = (self.folder / "summary.json").exists()
        self.note("end", summary["rounds"], summary["status"], written, [path.name for path in files])
        summary.clear()

    def note(self, *what):
        with self.file.open("a") as lines:
            lines.write(json.dumps(what) + "\n")


def told(folder, kind):
    """What was noted of a kind in a folder, in order."""
    lines = [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]
    return [line[1:] for line in lines if line[0] == kind]


def rounds_told(folder):
    return [line[0] for line in told(folder, "round")]


def cut_off(folder, trackers):
    """Begin a run with these trackers; what is left is as after a kill when they were told of round 4.

    Rounds 3 and 4 then run again, from the checkpoint after round 2.
    """

    def listen(event):
        if event["round"] == 4:
            raise KeyboardInterrupt

    changes = {"results": {"folder": str(folder), "trackers": trackers}}
    with pytest.raises(KeyboardInterrupt):
        rayfed_kd.run(RECIPE, changes, local=True, on_event=listen)
    for file in (folder / "checkpoints").glob("round-00000[34].*"):
        file.unlink()
