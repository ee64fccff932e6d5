"""What clients clip and add, by hand."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from broken_methods import Keeping
from torch import nn

from rayfed_kd.features.privacy.mechanism import ClientPrivacy, Noise, variances_of
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol import DispatchFacts, RunError
from rayfed_kd.protocol.wire import OutgoingReply
from rayfed_kd.recipe.loading import load_recipe

FACTS = DispatchFacts(client=3, round=5, participation=2)


class Vectors(Keeping):
    """Sends two models, a part with rows, and a number."""

    public = "samples"
    down: ClassVar = {"a": "weights", "b": "generator"}
    up: ClassVar = {"a": "weights", "b": "generator", "rows": "logits"}


class WithBuffers(nn.Sequential):
    """Vector: weight and bias of the norm (2 + 2), then mean (2) and variance (2)."""

    def __init__(self):
        super().__init__(nn.BatchNorm1d(2))


def recipe(**privacy):
    sampling = privacy.pop("sampling", {"fraction": 1.0})
    return load_recipe(
        {
            "method": {"name": "fedavg"},
            "partition": {"name": "iid", "clients": 4},
            "sampling": sampling,
            "privacy": {"noise_multiplier": 0.0, **privacy},
        }
    )


def client(builders=None, **privacy):
    pool = ModulePool({} if builders is None else builders, 1)
    return ClientPrivacy(recipe(**privacy), Vectors(), pool, builders or {})


def protected(privacy, parts, message, clip=None, facts=FACTS, **numbers):
    arrays = {name: np.asarray(part, dtype=np.float32) for name, part in parts.items()}
    sent = {name: torch.tensor(part) for name, part in message.items()}
    notes = {} if clip is None else {"clip": clip}
    return privacy.outgoing(OutgoingReply(arrays, numbers), sent, facts, notes)


def test_a_change_of_3_and_4_is_clipped_to_0_6_and_0_8():
    sent = protected(client(clip=1.0), {"a": [4.0, 6.0]}, {"a": [1.0, 2.0]}, 1.0)
    np.testing.assert_allclose(sent.parts["a"], [1.6, 2.8], rtol=1e-7)
    assert sent.notes["releases"] == 1
    assert sent.notes.get("within_clip") is None


def test_all_vectors_of_a_reply_are_clipped_as_one():
    sent = protected(client(clip=1.0), {"a": [3.0], "b": [4.0]}, {"a": [0.0], "b": [0.0]}, 1.0)
    np.testing.assert_allclose([sent.parts["a"][0], sent.parts["b"][0]], [0.6, 0.8], rtol=1e-7)
    assert sent.notes["releases"] == 1


def test_a_change_within_the_clip_stays_to_the_bit():
    part = torch.randn(100, generator=torch.Generator().manual_seed(1)).numpy() / 1000
    sent = protected(client(clip=1.0), {"a": part}, {"a": [1e-3] * 100}, 1.0)
    assert np.array_equal(sent.parts["a"], part)


def test_rows_are_clipped_each_by_itself():
    sent = protected(client(row_clip=5.0), {"rows": [[6.0, 8.0], [3.0, 4.0], [0.0, 0.0]]}, {})
    np.testing.assert_allclose(sent.parts["rows"], [[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]], rtol=1e-7)
    assert sent.notes["releases"] == 1


def test_a_client_adds_its_share_of_the_noise():
    privacy = client(clip=0.5, row_clip=2.0, noise_multiplier=3.0, noise="client")
    zeros = {"a": [0.0] * 10_000, "rows": np.zeros((100, 100))}
    sent = protected(privacy, zeros, {"a": [0.0] * 10_000}, 0.5)
    error = 5 / 20_000**0.5
    # z S / sqrt(m), and z c sqrt(N0) / sqrt(m), with m 4 and N0 100.
    assert sent.parts["a"].std() == pytest.approx(3 * 0.5 / 2, rel=error)
    assert sent.parts["rows"].std() == pytest.approx(3 * 2.0 * 10 / 2, rel=error)
    assert sent.notes["releases"] == 2


def test_noise_at_the_server_leaves_the_message_without():
    sent = protected(client(clip=1.0, noise_multiplier=3.0), {"a": [0.5]}, {"a": [0.0]}, 1.0)
    assert sent.parts["a"].tolist() == [0.5]


def test_the_noise_is_of_client_participation_and_exchange_and_of_nothing_else():
    privacy = client(clip=1.0, noise_multiplier=1.0, noise="client")

    def noise(**facts):
        return protected(
            privacy,
            {"a": [0.0] * 8},
            {"a": [0.0] * 8},
            1.0,
            DispatchFacts(**{"client": 3, "round": 5, "participation": 2, **facts}),
        ).parts["a"]

    assert np.array_equal(noise(), noise(round=6))
    for other in ({"client": 4}, {"participation": 3}, {"exchange": 1}):
        assert not np.array_equal(noise(), noise(**other))


def test_samples_are_sent_as_1_and_other_numbers_are_refused():
    assert protected(client(clip=1.0), {}, {}, 1.0, samples=57).metadata == {"samples": 1}
    with pytest.raises(RunError, match="number 'layer'"):
        protected(client(clip=1.0), {}, {}, 1.0, layer=2)


def test_a_part_without_a_reference_of_its_length_is_refused():
    with pytest.raises(RunError, match="'a' is not as long"):
        protected(client(clip=1.0), {"a": [1.0, 2.0]}, {"a": [1.0]}, 1.0)
    with pytest.raises(RunError, match="'a' is not as long"):
        protected(client(clip=1.0), {"a": [1.0, 2.0]}, {}, 1.0)


def test_a_call_that_brings_no_clip_is_refused():
    with pytest.raises(RunError, match="brought no clip"):
        protected(client(clip=1.0), {"a": [1.0]}, {"a": [1.0]}, None)


def test_rows_that_are_no_floats_are_refused():
    privacy = client(row_clip=1.0)
    with pytest.raises(RunError, match="'rows' is int64"):
        privacy.outgoing(OutgoingReply({"rows": np.zeros((2, 2), np.int64)}, {}), {}, FACTS, {})


def test_buffers_are_clipped_and_variances_stay_positive():
    builders = {"model": WithBuffers}
    own = [0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 4.0, 0.0]
    message = [0.0] * 8
    sent = protected(client(builders, clip=1.0), {"a": own}, {"a": message}, 1.0)
    # The norm is 5.
    np.testing.assert_allclose(sent.parts["a"], [0, 0, 0, 0, 0.6, 0, 0.8, 0], rtol=1e-7)
    noisy = client(builders, clip=1.0, noise_multiplier=50.0, noise="client")
    values = [
        protected(noisy, {"a": own}, {"a": message}, 1.0, DispatchFacts(k, 1, 1)).parts["a"]
        for k in range(20)
    ]
    assert min(value[6:8].min() for value in values) == 0.0
    assert min(value[:6].min() for value in values) < 0


def test_a_stretch_of_a_model_with_buffers_is_refused():
    with pytest.raises(RunError, match="'a' is a stretch"):
        protected(client({"model": WithBuffers}, clip=1.0), {"a": [1.0]}, {"a": [1.0]}, 1.0)


def test_places_of_running_variances():
    pool = ModulePool({"m": WithBuffers, "d": lambda: nn.Linear(1, 1)}, 1)
    lengths, places = variances_of(pool, ["m", "d"])
    assert lengths == {8, 2}
    assert list(places) == [8]
    assert places[8].tolist() == [6, 7]


def test_places_that_contradict_are_refused():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1, 4)

    with pytest.raises(RunError, match="two models of 8 numbers"):
        variances_of(ModulePool({"m": WithBuffers, "o": Other}, 1), ["m", "o"])


ADAPTIVE = {"clip": 0.1, "adaptive": {"count_noise": 1.0}}


def test_the_count_takes_its_share_of_the_privacy():
    noise = Noise.of(recipe(noise_multiplier=1.0, **ADAPTIVE))
    assert noise.multiplier == pytest.approx(1.1547005384)
    assert noise.count == 1.0
    assert Noise.of(recipe(noise_multiplier=0.0, **ADAPTIVE)).multiplier == 0.0
    few = Noise.of(recipe(noise_multiplier=0.1, clip=0.1, adaptive={}, sampling={"count": 2}))
    assert few.count == 2 / 20


def test_a_client_says_whether_it_lay_within_the_clip_with_its_share_of_the_noise():
    exact = client(**ADAPTIVE)
    assert protected(exact, {"a": [0.1]}, {"a": [0.0]}, 0.2).notes["within_clip"] == 1.0
    assert protected(exact, {"a": [0.3]}, {"a": [0.0]}, 0.2).notes["within_clip"] == 0.0
    assert protected(exact, {"rows": [[1.0]]}, {}).notes.get("within_clip") is None
    noisy = client(noise_multiplier=1.0, noise="client", **ADAPTIVE)
    votes = [
        protected(noisy, {"a": [0.0]}, {"a": [0.0]}, 0.1, DispatchFacts(k, 1, 1)).notes["within_clip"]
        for k in range(400)
    ]
    # sigma_b / sqrt(m) = 1 / 2
    assert np.std(votes) == pytest.approx(0.5, rel=5 / math.sqrt(800))
    assert np.mean(votes) == pytest.approx(1.0, abs=5 * 0.5 / 20)
