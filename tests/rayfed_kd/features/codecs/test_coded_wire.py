"""Parts on the wire: what is left as it is, what layouts say, whose memory is whose."""

import numpy as np
import pytest
import torch
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, small_recipe
from torch import nn

from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.features.codecs.chain import Chain, Stage
from rayfed_kd.features.codecs.coded_wire import CodedWire
from rayfed_kd.features.codecs.plain import Difference, Zstd
from rayfed_kd.features.codecs.quantisers import Sign, Uniform
from rayfed_kd.features.codecs.sparse import TopK
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.vectors import Layout, PlacedTensor
from rayfed_kd.protocol import Averaged, Codec, Coded, Simulated
from rayfed_kd.protocol.declaration import kinds
from rayfed_kd.protocol.wire import Sending, Wire

NORMED = FlatModule(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)))
DECLARED = kinds(
    {"student": "weights", "labels": "labels", "help": Simulated("weights"), "logits": Averaged("logits")}
)
SIGNS = Chain((Stage("sign", Sign()),))


def wire_of(chain, direction="up", **facts):
    return CodedWire(DECLARED, direction, {"weights": chain}, {NORMED.layout.size: NORMED.layout}, **facts)


def vector(seed=1, size=NORMED.layout.size):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_layout_has_the_tensors_as_they_lie():
    """As FlatModule's own tests count: conv 54 + 3, norm 3 + 3, linear 48 + 4; mean, variance."""
    assert [(tensor.name, tensor.shape, tensor.role) for tensor in NORMED.layout.tensors] == [
        ("0.weight", (3, 3, 3, 2), "parameter"),
        ("0.bias", (3,), "parameter"),
        ("1.weight", (3,), "parameter"),
        ("1.bias", (3,), "parameter"),
        ("3.weight", (4, 12), "parameter"),
        ("3.bias", (4,), "parameter"),
        ("1.running_mean", (3,), "buffer"),
        ("1.running_var", (3,), "buffer"),
    ]
    assert NORMED.layout.size == NORMED.num_elements


def test_rows_of_a_convolution_are_its_outputs():
    """The second output's numbers lie in the vector as the layout's second row."""
    with torch.no_grad():
        NORMED.module[0].weight.zero_()[1] = 1.0
    (_, start, stop), *_ = NORMED.layout.placed()
    rows = NORMED.vector()[start:stop].view(3, -1)
    assert rows.sum(dim=1).tolist() == [0, 18, 0]


def test_statistics_are_left_as_they_are():
    array = vector()
    sent = wire_of(SIGNS).encoded({"student": array})
    found = wire_of(SIGNS).decoded(sent.wire)["student"]
    np.testing.assert_array_equal(found[-6:], array[-6:])
    assert len(np.unique(np.abs(found[:-6]))) == 6, "a scale for each of six tensors"
    # 115 signs, 6 scales, the shape of those 115 and 6 numbers that stay.
    assert sent.sizes["student"] == (121, 15 + 24 + 4 + 24, 484)


def test_statistics_are_coded_where_that_is_asked_and_variances_stay_above_zero():
    array, wire = vector(), wire_of(SIGNS, exact=())
    array[-3:] = [0.1, -0.0, 5]
    sent = wire.encoded({"student": array})
    found = wire.decoded(sent.wire)["student"]
    assert len(np.unique(np.abs(found[-6:-3]))) == 1
    assert "student/exact" not in sent.wire
    lossy = wire_of(Chain((Stage("difference", Difference()), Stage("sign", Sign()))), exact=())
    before = Sending(received=lambda name: array)
    change = array.copy()
    change[-3:] = [0.01, 0.01, 0.01]
    sent = lossy.encoded({"student": change}, before)
    assert lossy.decoded(sent.wire, before.received)["student"][-3:].min() == 0


def test_a_codec_may_decode_to_the_very_array_that_was_sent():
    array, wire = np.abs(vector()), wire_of(Chain((Stage("same", Codec()),)), exact=())
    sent = wire.encoded({"student": array}).wire
    stored = {name: np.broadcast_to(part, part.shape) for name, part in sent.items()}  # read-only, as Ray's
    np.testing.assert_array_equal(wire.decoded(stored)["student"], array)


def test_decoded_array_of_another_shape_is_not_spread_over_the_vector():
    class Mean(Codec):
        def encode(self, array, part):
            return Coded(array.mean(keepdims=True))

    wire = wire_of(Chain((Stage("mean", Mean()),)))
    sent = wire.encoded({"student": vector()}).wire
    assert wire.decoded(sent)["student"].shape == (1,), "whoever reads it refuses it"


def test_change_of_a_model_stays_below_zero_where_the_model_has_variances():
    change, wire = -np.abs(vector()), wire_of(Chain((Stage("uniform", Uniform(bits=32)),)), exact=())
    sent = wire.encoded({"student": change})
    np.testing.assert_array_equal(wire.decoded(sent.wire)["student"], change)
    assert sent.sizes["student"].bytes == change.nbytes


def test_codecs_without_loss_take_statistics_along():
    array, wire = vector(), wire_of(Chain((Stage("zstd", Zstd()),)))
    sent = wire.encoded({"student": array}).wire
    assert "student/exact" not in sent
    assert wire.decoded(sent)["student"].tobytes() == array.tobytes()


def test_what_cannot_or_must_not_be_coded_travels_as_it_is():
    wire = wire_of(SIGNS)
    bad = vector()
    bad[3] = np.nan
    for name, array in [
        ("student", bad),
        ("student", np.zeros(0, np.float32)),
        ("help", vector()),
        ("labels", np.arange(3)),
        ("logits", vector()),
        ("undeclared", vector()),
    ]:
        sent = wire.encoded({name: array})
        assert sent.wire == {name: array}
        assert sent.sizes[name] == (array.size, array.nbytes, array.nbytes)
        assert wire.decoded(sent.wire)[name] is array
    whole = np.arange(122)
    sent = wire.encoded({"student": whole})
    assert sent.wire == {"student": whole}
    (refused,) = sent.refused
    assert refused.startswith("student: sign: it takes float32 numbers, got int64; ")


def test_without_codecs_the_very_same_mapping_is_sent():
    parts, wire = {"student": vector()}, Wire()
    assert wire.encoded(parts).wire is parts
    assert wire.decoded(parts) is parts


def test_streams_differ_by_part_direction_client_and_participation():
    chain = Chain((Stage("uniform", Uniform(bits=2)),))
    array = vector()

    def sent(direction, seed, *stream):
        wire = CodedWire({"a": "weights", "b": "weights"}, direction, {"weights": chain}, seed=seed)
        coded = wire.encoded({"a": array, "b": array}, Sending(stream)).wire
        return [coded[f"{part}/array"].tobytes() for part in "ab"]

    keys = [
        ("up", 1, "client", 3, 1),
        ("up", 1, "client", 3, 2),
        ("up", 1, "client", 4, 1),
        ("up", 2, "client", 3, 1),
        ("down", 1, "message", 3, 1),
    ]
    all_sent = [one for key in keys for one in sent(*key)]
    assert len(set(all_sent)) == 2 * len(keys)
    assert [one for key in keys for one in sent(*key)] == all_sent


def test_memory_is_each_parts_own_and_stays_while_a_part_is_not_sent():
    chain = Chain((Stage("top_k", TopK(share=0.1), feedback=True),))
    wire = CodedWire({"a": "weights", "b": "weights"}, "up", {"weights": chain})
    first = wire.encoded({"a": vector(), "b": vector(2)})
    second = wire.encoded({"a": vector(3)}, Sending(memory=first.memory))
    assert set(first.memory) == set(second.memory) == {"a/0/residual", "b/0/residual"}
    assert second.memory["b/0/residual"] is first.memory["b/0/residual"]
    expected = vector(3) + first.memory["a/0/residual"] - wire.decoded(second.wire)["a"]
    np.testing.assert_array_equal(second.memory["a/0/residual"], expected)
    assert wire.remembers
    assert not CodedWire(kinds({"a": Simulated("weights")}), "up", {"weights": chain}).remembers


def test_an_answer_is_taken_from_a_message_of_its_length_alone():
    wire = CodedWire({"a": "weights"}, "up", {"weights": Chain((Stage("difference", Difference()),))})
    sent = wire.encoded({"a": vector()}, Sending(received=lambda name: vector(2, size=5)))
    assert sent.refused == ("a: difference: the message that is answered has no part a of 121 numbers",)


def test_stretches_of_a_layout_cut_no_tensor():
    layout = Layout(tuple(PlacedTensor(name, (2,), "parameter") for name in "abc"))
    assert [tensor.name for tensor in layout.within([slice(2, 4), slice(4, 6)]).tensors] == ["b", "c"]
    assert layout.places(["buffer"]).tolist() == [False] * 6


def normed(codec, **method):
    return {
        **small_recipe(FOUR_CLIENTS, "fedavg"),
        "model": {"name": "bottleneck_resnet", "blocks": [1, 1, 1], "width": 4},
        "method": method or {"name": "fedavg"},
        "data": {"name": "digits", "fraction": 0.03},
        "codec": codec,
        "rounds": 1,
        "sampling": {"count": 1},
    }


def test_first_and_last_layers_are_known_with_their_statistics():
    """FedPer sends the first layers: parameters, then buffers."""
    setting = prepare(normed({"up": {"weights": "sign"}}, name="fedper", personal=["F1"])).setting
    whole, *parts = setting.wires["up"].layouts.values()
    module = setting.module_pool().lend("model", setting.module_pool().initial_vector("model"))
    assert whole == module.layout
    head = sum(tensor.size for tensor in whole.tensors if tensor.name.startswith("head."))
    (base,) = [part for part in parts if part.size == whole.size - head]
    assert {tensor.role for tensor in base.tensors} == {"parameter", "buffer"}
    roles = [tensor.role != "parameter" for tensor in base.tensors]
    assert roles == sorted(roles), "buffers come behind all parameters"


@pytest.mark.parametrize("buffers", ["exact", "coded"])
def test_statistics_of_a_run_are_exact_unless_asked(buffers):
    """One client, one round: the server's model is its reply, of which signs leave little but statistics."""
    recipe = normed({"up": {"weights": "sign"}, "buffers": buffers})
    words = ["partition={name: iid, clients: 1}"]
    coded = run_in_process(recipe, *words).models["global"]
    plain = run_in_process({**recipe, "codec": {}}, *words).models["global"]
    layout = next(iter(prepare(recipe, words).setting.wires["up"].layouts.values()))
    statistics = layout.places(["buffer"])
    assert np.array_equal(coded[statistics], plain[statistics]) is (buffers == "exact")
    assert not np.array_equal(coded[~statistics], plain[~statistics])


def test_looks_at_clients_leave_their_memory_alone():
    """FedKF shows what clients' generators make: observed steps, whose state is thrown away."""
    sparse = ["difference", {"name": "top_k", "share": 0.05, "feedback": True}]
    recipe = {**small_recipe(FOUR_CLIENTS, "fedkf"), "codec": {"up": {"weights": sparse}}}
    words = ["rounds=2", "sampling={count: 2}"]
    shown, silent = (
        run_in_process(recipe, *words, f"evaluation.samples={look}") for look in ("true", "false")
    )
    assert all(np.array_equal(shown.models[name], silent.models[name]) for name in silent.models)
    assert shown.tables["messages"].equals(silent.tables["messages"])
