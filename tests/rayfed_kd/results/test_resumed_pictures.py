"""Pictures and TensorBoard after a kill: those of the undisturbed run."""

import shutil
import threading

import pytest
from small_recipes import THREE_CLIENTS, small_recipe
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rayfed_kd
from rayfed_kd.results.recorder import RunRecorder
from rayfed_kd.results.tensorboard import RunWriter

RECIPE = {
    **small_recipe(THREE_CLIENTS, "fedkf"),
    "clock": {"name": "lognormal"},
    "rounds": 2,
    "checkpoint": {"every": 1},
}
pytestmark = pytest.mark.usefixtures("blank_pictures")


def run(folder, *overrides):
    return rayfed_kd.run(RECIPE, [f"results.folder={folder}", *overrides], local=True).folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Its pictures are drawn: TensorBoard has them, too, but only their rounds are compared."""
    return run(tmp_path_factory.mktemp("undisturbed") / "run")


def decided_points(folder):
    """Tag -> its points, but for what measures."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "time/" not in tag and "hosts/" not in tag]
    points = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags}
    return points | {tag: sorted(one.step for one in events.Images(tag)) for tag in events.Tags()["images"]}


def names(folder):
    return sorted(path.name for path in (folder / "figures").iterdir())


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


def test_resumed_run_has_every_point_and_picture_once(undisturbed, tmp_path):
    """The event files of the killed run hold a round that runs again, and lack what was still queued."""
    folder = run(tmp_path / "run", "rounds=1")
    for path in (folder / "tensorboard").iterdir():
        path.unlink()
    stale = RunWriter(folder / "tensorboard")
    stale.series("sim/amp/aca", [10_000], [0.5])  # a round after the checkpoint
    stale.close()
    (folder / "figures" / "curves.png").unlink()
    rayfed_kd.resume(folder, ["rounds=2"], local=True)
    assert decided_points(folder) == decided_points(undisturbed)
    assert names(folder) == names(undisturbed)


def test_run_that_was_killed_while_it_ended_draws_its_last_pictures(undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    (folder / "summary.json").unlink()
    for name in ("curves.png", "logged.png", "client-accuracies.png"):
        (folder / "figures" / name).unlink()
    shutil.rmtree(folder / "tensorboard")
    rayfed_kd.resume(folder, local=True)
    assert names(folder) == names(undisturbed)
    assert decided_points(folder) == decided_points(undisturbed)
