"""States as structure and arrays: what comes back, and what is refused, where and why."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from method_zoo import Pair

from rayfed_kd.errors import RunError
from rayfed_kd.protocol import state_packing
from rayfed_kd.protocol.state_packing import Packed, UnstorableError, check_storable, copied, pack
from rayfed_kd.protocol.state_unpacking import unpack


@dataclass(frozen=True)
class State:
    model: torch.Tensor
    moments: dict
    pairs: tuple
    name: str | None = None


@dataclass
class Derived:
    model: torch.Tensor
    length: int = field(init=False, default=0)

    def __post_init__(self):
        self.length += len(self.model)
        self.model = self.model / 2


def test_a_state_comes_back_with_its_classes_and_bits():
    state = State(
        torch.randn(3, 2),
        {1: [np.arange(3), 0.1, True], "steps": torch.tensor(3, dtype=torch.int64)},
        (Pair(2**70, torch.zeros(0)), float("inf")),
    )
    packed = pack(state)
    again = unpack(Packed(json.loads(json.dumps(packed.structure)), packed.arrays))
    assert isinstance(again, State)
    assert isinstance(again.pairs[0], Pair)
    assert torch.equal(again.model, state.model)
    assert (again.moments[1][0] == np.arange(3)).all()
    assert again.moments[1][1:] == [0.1, True]
    assert again.moments["steps"].dtype == torch.int64
    assert (again.pairs[0].first, again.pairs[1], again.name) == (2**70, float("inf"), None)


@pytest.mark.parametrize("again", [copied, lambda state: unpack(pack(state))])
def test_what_a_class_made_of_its_fields_is_not_made_twice(again):
    state = again(Derived(torch.ones(2)))
    assert (state.model.tolist(), state.length) == ([0.5, 0.5], 2)


def test_unpacked_tensors_share_no_memory_with_what_was_received():
    packed = pack({"model": torch.zeros(4)})
    unpack(packed)["model"].add_(1)
    assert packed.arrays[0].tolist() == [0, 0, 0, 0]


def test_server_tensors_on_the_cpu_stay_there():
    packed = pack([torch.zeros(1)])
    assert unpack(packed, "meta", keep_cpu=True)[0].device.type == "cpu"
    assert unpack(packed, "meta")[0].device.type == "meta"


@pytest.mark.parametrize(("value", "told"), [({1, 2}, "a set"), (torch.nn.ReLU(), "a ReLU")])
def test_what_cannot_be_stored_is_refused_with_its_place(value, told):
    with pytest.raises(UnstorableError, match=rf"the state\.moments\.x\[1\] is {told}, which no checkpoint"):
        pack(State(torch.zeros(1), {"x": [0, value]}, ()))
    with pytest.raises(UnstorableError, match=rf"the state\.moments\.x\[1\] is {told}, which no checkpoint"):
        check_storable(State(torch.zeros(1), {"x": [0, value]}, ()))


def test_a_state_is_checked_without_a_copy_of_its_tensors(monkeypatch):
    monkeypatch.setattr(state_packing, "to_array", lambda tensor: pytest.fail("copied"))
    check_storable(State(torch.zeros(1), {"x": [torch.ones(2)]}, ()))


def test_class_that_would_not_be_found_again_is_refused():
    @dataclass
    class Inner:
        x: int = 0

    with pytest.raises(UnstorableError, match="the state is an Inner"):
        pack(Inner())


@pytest.mark.parametrize("name", ["antigravity:State", "os:system", "subprocess:Popen"])
def test_class_of_a_module_that_is_not_loaded_is_refused(name):
    """Nothing is imported, nor anything but a state's class called, for what a file says."""
    with pytest.raises(RunError, match=f"a state holds a {name}"):
        unpack(Packed([name, {}], []))
