"""A group's calls and results are after the crossing what they were before it."""

import pickle

import numpy as np
import pytest

from rayfed_kd.cluster.engine.calls import Held, StepCall
from rayfed_kd.cluster.ray_backend.packing import PackedCalls, stacked, unstacked
from rayfed_kd.protocol import DispatchFacts


def call(client, message, state=None):
    return StepCall(
        "client_update",
        DispatchFacts(client, 3, participation=2, exchange=1),
        message,
        {"gamma": 0.5},
        state,
        7,
        40 + client,
        observing=True,
        notes={"clip": 0.5},
    )


def test_calls_come_out_as_they_went_in():
    message, state = Held({"student": np.zeros(3)}), Held({"state": None})
    calls = [call(1, message), call(4, message, state)]
    assert PackedCalls.of(calls).calls() == calls  # handles are compared by identity


def test_no_handle_is_hidden_in_the_bytes_where_ray_would_not_see_its_reference():
    class Untouchable(Held):
        def __reduce__(self):
            raise AssertionError("a handle was pickled")

    packed = PackedCalls.of([call(0, Untouchable({}), Untouchable({}))])
    with pytest.raises(AssertionError, match="a handle was pickled"):
        pickle.dumps(packed)
    assert isinstance(packed.plain, bytes)


def test_parts_of_equal_shape_cross_as_one_array_a_name():
    parts = [{"student": np.full(3, client, np.float32), "loss": np.float32(client)} for client in range(4)]
    parts = [{name: np.asarray(part) for name, part in one.items()} for one in parts]
    crossing = stacked(parts)
    assert {name: whole.shape for name, whole in crossing.items()} == {"student": (4, 3), "loss": (4,)}
    for one, again in zip(parts, unstacked(crossing), strict=True):
        assert one.keys() == again.keys()
        for name, part in one.items():
            assert isinstance(again[name], np.ndarray)
            assert again[name].dtype == part.dtype
            np.testing.assert_array_equal(again[name], part)


@pytest.mark.parametrize(
    "parts",
    [
        [{"logits": np.zeros((2, 3))}, {"logits": np.zeros((4, 3))}],
        [{"logits": np.zeros(2)}, {"logits": np.zeros(2, np.float32)}],
        [{"logits": np.zeros(2)}, {"labels": np.zeros(2)}],
        [{}, {}],
    ],
)
def test_other_parts_cross_client_by_client(parts):
    found = unstacked(stacked(parts))
    kinds = [[{n: (p.shape, p.dtype) for n, p in one.items()} for one in some] for some in (parts, found)]
    assert kinds[0] == kinds[1]
