"""Checkpoints write what has changed: what is appended, what a kill leaves, how much disk it takes."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe
from whole_checkpoints import whole

import rayfed_kd
from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.cluster.server.checkpoints import Checkpointer
from rayfed_kd.cluster.server.client_records import ClientRecord, Records
from rayfed_kd.cluster.server.run_state import Snapshot
from rayfed_kd.cluster.server.stored import changes
from rayfed_kd.protocol import PartRef
from rayfed_kd.protocol.state_packing import pack
from rayfed_kd.protocol.state_unpacking import unpack
from rayfed_kd.recipe.sections.safety import CheckpointRecipe

ELEMENTS = 1000  # of a client's state and of its slot: 4,000 bytes each


class Counted:
    """A handle that counts how often it is fetched."""

    def __init__(self, **arrays):
        self.arrays, self.fetched = arrays, 0

    def resolve(self):
        self.fetched += 1
        return self.arrays


def state_handle(value):
    return Counted(state=pack(torch.full((ELEMENTS,), float(value))))


class World:
    """Clients whose states and slots change as a run's do, and what a checkpoint must give back.

    Args:
        folder: the run's.
        keep: checkpoints.
    """

    def __init__(self, folder, keep=2):
        self.keeper = Checkpointer(folder, CheckpointRecipe(every=1, keep=keep))
        self.folder, self.records, self.slots, self.round, self.number = folder, Records(), {}, 0, 0

    def play(self, *clients):
        """One round in which these clients reply."""
        self.round += 1
        self.records.begin(self.round)
        self.slots = dict(self.slots)
        for client in clients:
            self.number += 1
            before = self.records[client]
            record = ClientRecord(before.participations + 1, state_handle(self.number), self.number, 1)
            self.records.put(client, record)
            vector = np.full(ELEMENTS, -self.number, dtype=np.float32)
            self.slots[client] = PartRef(Counted(student=vector), "student")

    def save(self):
        server = {"slots": self.slots, "weights": torch.tensor([self.round])}
        self.keeper.save(Snapshot(self.round, server, self.records, 0.0))

    def expected(self):
        records = {
            client: (record.participations, record.version, float(record.version))
            for client, record in self.records.items()
        }
        return self.round, {client: -float(self.records[client].version) for client in self.slots}, records


def read_back(folder, told=None):
    """As `World.expected`, of the newest usable checkpoint."""
    keeper = Checkpointer(folder, CheckpointRecipe())
    found = keeper.latest(Held, "cpu", (told if told is not None else []).append)
    if found is None:
        return None
    slots = {client: only(ref.load()) for client, ref in found.server["slots"].items()}
    records = {
        client: (record.participations, record.version, only(unpack(record.state.resolve()["state"])))
        for client, record in found.records.items()
    }
    assert found.server["weights"].tolist() == [found.round]
    return found.round, slots, records


def only(vector):
    assert vector.shape == (ELEMENTS,)
    (value,) = set(vector.tolist())
    return value


def logs(folder):
    return sorted((folder / "checkpoints").glob("states-*.log"))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_only_what_changed_is_fetched_and_appended(tmp_path, world):
    world.play(*range(10))
    world.save()
    (log,) = logs(tmp_path)
    before = log.stat().st_size
    assert 10 * 2 * 4 * ELEMENTS < before < 10 * 2 * (4 * ELEMENTS + 200)
    world.play(3)
    world.save()
    assert 2 * 4 * ELEMENTS < log.stat().st_size - before < 2 * (4 * ELEMENTS + 200)
    handles = [record.state for record in world.records.values()]
    handles += [slot.handle for slot in world.slots.values()]
    assert [handle.fetched for handle in handles] == [1] * 20
    assert read_back(tmp_path) == world.expected()
    assert (tmp_path / "checkpoints" / "round-000002.safetensors").stat().st_size < 4 * ELEMENTS


def test_replaced_states_are_not_kept_in_memory(tmp_path, world):
    world.play(0, 1)
    world.save()
    gone = [weakref.ref(world.records[0].state), weakref.ref(world.slots[0].handle)]
    for _ in range(3):  # the records remember two rounds, to undo them
        world.play(0)
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    world.save()
    assert read_back(tmp_path) == world.expected()


def test_undone_round_is_not_in_the_checkpoint_after_it(tmp_path, world):
    """A client that only the undone round has seen is unseen again."""
    world.play(0, 1)
    world.save()
    expected = world.expected()
    slots = world.slots
    world.play(1, 2)
    world.save()
    world.records.undo()
    world.slots, world.round = slots, 1
    world.save()
    (tmp_path / "checkpoints" / "round-000002.json").unlink()
    assert read_back(tmp_path) == expected


def test_plain_mapping_of_records_is_compared_as_a_whole(tmp_path):
    keeper = Checkpointer(tmp_path, CheckpointRecipe())
    records = {k: ClientRecord(1, state_handle(k), k, 1) for k in (1, 2)}
    server = {"slots": {}, "weights": torch.tensor([1])}
    keeper.save(Snapshot(1, server, records, 0.0))
    records = {2: records[2], 5: ClientRecord(1, state_handle(5), 5, 1)}
    keeper.save(Snapshot(2, {**server, "weights": torch.tensor([2])}, records, 0.0))
    assert read_back(tmp_path) == (2, {}, {2: (1, 2, 2.0), 5: (1, 5, 5.0)})


def test_clients_without_states_need_no_log(tmp_path):
    records = {4: ClientRecord(2, Counted(state=None), 7, 1), 5: ClientRecord(1)}
    Checkpointer(tmp_path, CheckpointRecipe()).save(Snapshot(1, None, records, 0.0))
    assert logs(tmp_path) == []
    found = Checkpointer(tmp_path, CheckpointRecipe()).latest(Held, "cpu", pytest.fail).records
    assert (found[4].participations, found[4].version, found[5].participations) == (2, 7, 1)
    assert unpack(found[4].state.resolve()["state"]) is None
    assert found[5].state is None


def test_server_state_of_any_mappings_comes_back(tmp_path):
    """Those of whole numbers to numbers or slots are stored as arrays, others one by one."""
    ref = PartRef(Counted(student=np.ones(2, dtype=np.float32)), "student")
    state = {
        "floats": {3: 0.1, -1: math.inf, 2**40: -0.0},
        "ints": {5: 2**62, 1: -4},
        "large": {2**70: 1.0, 1: 2.0},
        "large values": {1: 2**70},
        "mixed": {1: 1, 2: 1.5},
        "flags": {1: True, 2: False},
        "named": {"a": 1.0},
        "empty": {},
        "one slot": ref,
        "slots": {2: ref, 1: ref},
    }
    keeper = Checkpointer(tmp_path, CheckpointRecipe())
    keeper.save(Snapshot(1, state, {}, 0.0))
    found = keeper.latest(Held, "cpu", pytest.fail).server
    slots = [found.pop("one slot"), *found["slots"].values()]
    assert list(found.pop("slots")) == [2, 1]
    assert [slot.load().tolist() for slot in slots] == [[1.0, 1.0]] * 3
    assert ref.handle.fetched == 1
    # As text: a flag equals a number otherwise, and the order counts.
    assert str(found) == str({name: state[name] for name in found})


def test_table_of_all_records_is_appended_when_many_have_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "MOST_ROWS", 8)
    world, rows = World(tmp_path), []
    for index in range(9):
        world.play(*range(3 * index, 3 * index + 3), 0)
        world.save()
        path = tmp_path / "checkpoints" / f"round-{world.round:06d}.safetensors"
        rows.append(changed_rows(path))
        assert read_back(tmp_path) == world.expected()
    # Four clients a round (three in the first), client 0 in each: 3, 6, 9 > 8, then 4, 7, 10 > 8, and so on.
    assert rows == [3, 6, 0, 4, 7, 0, 4, 7, 0]


def changed_rows(path):
    from safetensors.numpy import load_file

    return len(load_file(path)["records"])


def test_disk_stays_bounded_however_often_states_change(tmp_path):
    world = World(tmp_path, keep=2)
    stream = np.random.default_rng(1)
    world.play(*range(20))
    world.save()
    entry = 4 * ELEMENTS + 200  # with its header
    for _ in range(60):
        world.play(*stream.choice(20, 4, replace=False).tolist())
        world.save()
        sizes = [path.stat().st_size for path in logs(tmp_path)]
        # Of 40 states and slots, and 8 more in the last checkpoint.
        assert max(sizes) <= (2 * 40 + 8) * entry
        assert len(sizes) <= 2
    assert read_back(tmp_path) == world.expected()
    assert len(list((tmp_path / "checkpoints").glob("round-*"))) == 4


@pytest.mark.parametrize("damage", ["cut off", "a byte changed", "gone"])
def test_damaged_log_is_recognised_and_the_checkpoint_before_it_used(damage, tmp_path, world):
    world.play(0, 1)
    world.save()
    expected = world.expected()
    if damage == "gone":  # of a later log, as after a resume
        world.keeper = Checkpointer(tmp_path, CheckpointRecipe())
    world.play(1)
    world.save()
    log = logs(tmp_path)[-1]
    content = bytearray(log.read_bytes())
    if damage == "cut off":
        log.write_bytes(content[:-1])
    elif damage == "a byte changed":
        content[-1] ^= 1
        log.write_bytes(content)
    else:
        log.unlink()
    told = []
    assert read_back(tmp_path, told) == expected
    assert len(told) == 1
    assert "round-000002.safetensors is damaged" in told[0]
    assert log.name in told[0]
    assert told[0].endswith("the one before it is used")


@pytest.mark.parametrize("begun", [False, True])
def test_failed_write_leaves_no_trace_and_the_next_checkpoint_is_whole(begun, tmp_path, monkeypatch, world):
    world.play(0, 1)
    if begun:
        world.save()
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoints").glob("*")}
    world.play(1, 2)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rayfed_kd.cluster.server.checkpoints.save", full)
        with pytest.raises(OSError, match="No space left"):
            world.save()
    assert {path: path.read_bytes() for path in (tmp_path / "checkpoints").glob("*")} == before
    world.save()
    assert read_back(tmp_path) == world.expected()


CLOCK = {"name": "lognormal"}
KINDS = {
    "fedkf, rounds": ("fedkf", {}),
    "kdia, rounds": ("kdia", {}),
    "fedkf, fedbuff": ("fedkf", {"schedule": {"name": "fedbuff", "buffer": 2}, "clock": CLOCK}),
    "pfedsd, fedasync": ("pfedsd", {"schedule": {"name": "fedasync"}, "clock": CLOCK}),
}


def run(folder, kind, rounds, local=True):
    method, more = KINDS[kind]
    asked = {
        **small_recipe({**FOUR_CLIENTS, "sampling": {"fraction": 0.5}}, method),
        "rounds": rounds,
        "evaluation": {"samples": False},
        "checkpoint": {"every": 1},
        **more,
    }
    return rayfed_kd.run(asked, [f"results.folder={folder}"], local=local)


@pytest.mark.parametrize(
    "kind", [kind if kind != "kdia, rounds" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_run_that_goes_on_from_a_checkpoint_is_the_undisturbed_run(kind, tmp_path):
    expected = run(tmp_path / "whole", kind, 5)
    run(tmp_path / "cut", kind, 3)
    told = []
    resumed = rayfed_kd.resume(tmp_path / "cut", ["rounds=5"], local=True, tell=told.append)
    assert told == ["resumed after round 3"]
    assert_same_run(resumed, expected)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fedkf, rounds", "pfedsd, fedasync"])
def test_run_on_ray_that_goes_on_from_a_checkpoint_is_the_undisturbed_local_run(kind, tmp_path):
    expected = run(tmp_path / "whole", kind, 4)
    run(tmp_path / "cut", kind, 2, local=False)
    assert_same_run(rayfed_kd.resume(tmp_path / "cut", ["rounds=4"]), expected)
    assert_same_end(tmp_path / "cut", tmp_path / "whole")


def assert_same_end(folder, expected):
    """The last checkpoints' whole content."""
    (tree, arrays), (wanted_tree, wanted) = (
        whole(max((one / "checkpoints").glob("round-*.safetensors"))) for one in (folder, expected)
    )
    assert {**tree, "wall_s": 0} == {**wanted_tree, "wall_s": 0}
    assert arrays.keys() == wanted.keys()
    assert all(np.array_equal(arrays[name], wanted[name], equal_nan=True) for name in wanted)
