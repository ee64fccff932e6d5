"""Pictures and TensorBoard after a kill: those of the undisturbed run."""

import threading

import pytest
from small_recipes import THREE_CLIENTS, small_recipe

import rayfed_kd
from rayfed_kd.results.recorder import RunRecorder

RECIPE = {
    **small_recipe(THREE_CLIENTS, "fedkf"),
    "clock": {"name": "lognormal"},
    "rounds": 2,
    "checkpoint": {"every": 1},
}
pytestmark = pytest.mark.usefixtures("blank_pictures")


def run(folder, *overrides):
    return rayfed_kd.run(RECIPE, [f"results.folder={folder}", *overrides], local=True).folder


def test_checkpoint_waits_for_the_pictures_before_it(tmp_path, monkeypatch):
    """A run that goes on from it repeats no earlier round, so it could not draw them."""
    drawn, release, draw = [], threading.Event(), RunRecorder._draw_samples
    from rayfed_kd.cluster.server.checkpoints import Checkpointer

    save = Checkpointer.save

    def slow(self, round_index, samples):
        release.wait(0.2)
        draw(self, round_index, samples)
        drawn.append(round_index)

    def saved(self, snapshot):
        before = snapshot.round - 1
        save(self, snapshot)
        assert before + 1 in drawn

    monkeypatch.setattr(RunRecorder, "_draw_samples", slow)
    monkeypatch.setattr(Checkpointer, "save", saved)
    run(tmp_path / "run")
    assert drawn == [1, 2]
