"""What each codec promises: bytes by hand, error bounds, worked numbers, and what must come out again."""

import numpy as np
import pytest

from rayfed_kd.features.codecs.chain import Chain, Stage
from rayfed_kd.features.codecs.low_rank import PowerSgd, Svd
from rayfed_kd.features.codecs.plain import Cast, Difference, Zstd
from rayfed_kd.features.codecs.quantisers import (
    Qsgd,
    Sign,
    Uniform,
    group_sizes,
    pack_bits,
    unpack_bits,
)
from rayfed_kd.features.codecs.sparse import RandomK, TopK
from rayfed_kd.models.vectors import Layout, PlacedTensor
from rayfed_kd.protocol import Codec, CodecError, Coded, TravellingPart

LAYOUT = Layout(
    (
        PlacedTensor("conv.weight", (6, 3, 3, 2), "parameter"),
        PlacedTensor("conv.bias", (6,), "parameter"),
        PlacedTensor("empty", (0,), "parameter"),
        PlacedTensor("head.weight", (10, 20), "parameter"),
    )
)
DRAWS = 20_000


def numbers(*values):
    return np.array(values, np.float32)


def part_of(array, seed=0, **facts):
    return TravellingPart("w", "weights", "up", array.shape, stream=(seed, ("test",)), **facts)


def coded(codec, array, **facts):
    return codec.encode(array, part_of(array, **facts))


def decoded(codec, array, **facts):
    part = part_of(array, **facts)
    sent = codec.encode(array, part)
    return codec.decode(Coded(sent.array, sent.side), part)


def size(sent):
    return sent.array.nbytes + sum(side.nbytes for side in sent.side.values())


def example(shape=(LAYOUT.size,), seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def squares(array):
    return float(np.sum(np.square(array, dtype=np.float64)))


EVERY = {
    "fp16": Cast(to="fp16"),
    "bf16": Cast(to="bf16"),
    **{f"uniform {bits}": Uniform(bits=bits) for bits in (1, 3, 8, 12, 32)},
    "uniform by channel": Uniform(bits=4, by="channel"),
    "qsgd": Qsgd(levels=5),
    "sign": Sign(),
    "sign by channel": Sign(by="channel"),
    "top_k": TopK(share=0.1),
    "top_k of most": TopK(share=0.9),
    "random_k": RandomK(share=0.1),
    "powersgd": PowerSgd(rank=2),
    "svd": Svd(energy=0.7),
    "zstd": Zstd(),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("known", [True, False], ids=["vector", "rows"])
def test_shape_type_and_zeros_come_again_and_the_same_seed_gives_the_same_bytes(name, known):
    array = example() if known else example((7, 11))
    facts = {"layout": LAYOUT} if known else {}
    again = decoded(EVERY[name], array, **facts)
    assert (again.shape, again.dtype) == (array.shape, array.dtype)
    assert not decoded(EVERY[name], np.zeros_like(array), **facts).any()
    one, other = (coded(EVERY[name], array, **facts) for _ in range(2))
    assert one.array.tobytes() == other.array.tobytes()
    assert one.side.keys() == other.side.keys()
    assert all(one.side[key].tobytes() == other.side[key].tobytes() for key in one.side)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "zstd"])
def test_what_is_no_float32_is_refused(name):
    with pytest.raises(CodecError, match="takes float32 numbers, got uint16"):
        coded(EVERY[name], np.zeros((3, 3), np.uint16))


@pytest.mark.parametrize("bits", range(1, 33))
def test_bits_are_packed_without_a_gap(bits):
    count = 2**18 + 5 if bits == 3 else 21
    values = np.random.default_rng(bits).integers(0, 2**bits, count, dtype=np.uint32)
    packed = pack_bits(values, bits)
    assert packed.nbytes == -(-count * bits // 8)
    np.testing.assert_array_equal(unpack_bits(packed, count, bits), values)


# 16 bits. IEEE 754 half precision and bfloat16; worked by hand.


@pytest.mark.parametrize(
    ("to", "value", "expected"),
    [
        ("fp16", 0.1, 0.0999755859375),
        ("fp16", 1 / 3, 0.333251953125),
        ("fp16", 2049, 2048),
        ("fp16", 65519, 65504),
        ("fp16", 6e-8, 2.0**-24),
        ("fp16", 1e-8, 0),
        ("bf16", 0.1, 0.10009765625),
        ("bf16", 1 / 3, 0.333984375),
        ("bf16", 257, 256),
        ("bf16", 259, 260),
        ("bf16", 3.14159265, 3.140625),
        ("bf16", -257, -256),
    ],
)
def test_casts_round_to_the_nearest_and_to_even(to, value, expected):
    assert float(decoded(Cast(to=to), numbers(value))[0]) == expected


@pytest.mark.parametrize(("to", "bound"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_casts_take_two_bytes_and_keep_their_bound(to, bound):
    array = example((10_000,)) * np.float32(100)
    assert size(coded(Cast(to=to), array)) == 20_000
    small = 2.0**-25 if to == "fp16" else 0
    assert np.all(np.abs(decoded(Cast(to=to), array) - array) <= np.maximum(bound * np.abs(array), small))


@pytest.mark.parametrize(("to", "value"), [("fp16", 65520), ("bf16", 3.4e38)])
def test_numbers_beyond_the_type_are_refused(to, value):
    with pytest.raises(CodecError, match=f"2 of 3 numbers are beyond {to}'s "):
        coded(Cast(to=to), numbers(value, 1, -value))


# Rounding at random.


def draws(codec, array, count=DRAWS, **facts):
    """Decoded arrays, [count, n]. One array of many equal rows, each of them a group, draws for all rows."""
    rows = np.tile(array, (count, 1))
    return decoded(codec, rows, **facts)


def assert_unbiased(found, array, variances):
    """Within 5 standard errors; `variances` are those of a number."""
    errors = 5 * np.sqrt(np.asarray(variances) / len(found)) + 1e-6
    assert np.all(np.abs(found.mean(axis=0, dtype=np.float64) - array) <= errors)


def test_uniform_two_bits_by_hand():
    """D = 1.7/3; places (2.6470588, 0, 3, 2.1176471), so variances D^2 f (1 - f) are as below."""
    array = numbers(0.3, -1.2, 0.5, 0)
    found = draws(Uniform(bits=2, by="channel"), array)
    assert np.all(found[:, 1] == np.float32(-1.2)), "the least number is exact"
    assert np.all(found[:, 2] == np.float32(0.5)), "the largest number is exact"
    variances = [0.0733333333, 0, 0, 0.0333333333]
    assert_unbiased(found, array, variances)
    np.testing.assert_allclose(found.var(axis=0), variances, rtol=0.05, atol=1e-6)
    assert size(coded(Uniform(bits=2), array)) == 1 + 8


@pytest.mark.parametrize("bits", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("by", ["tensor", "channel"])
def test_uniform_stays_within_a_level_and_counts_its_bytes(bits, by):
    array, sent = example(), coded(Uniform(bits=bits, by=by), example(), layout=LAYOUT)
    groups = {"tensor": 3, "channel": 6 + 1 + 10}[by]
    assert size(sent) == -(-LAYOUT.size * bits // 8) + 8 * groups
    sizes = group_sizes(part_of(array, layout=LAYOUT), by)
    assert len(sizes) == groups
    places = np.split(np.arange(LAYOUT.size), np.cumsum(sizes)[:-1])
    errors = np.abs(decoded(Uniform(bits=bits, by=by), array, layout=LAYOUT) - array)
    for place in places:
        step = np.ptp(array[place].astype(np.float64)) / (2**bits - 1)
        assert np.all(errors[place] <= step * (1 + 1e-6))


def test_group_of_equal_numbers_takes_its_bounds_alone():
    array = np.concatenate([np.full(6 * 18, 0.25, np.float32), example((6,)), example((200,))])
    sent = coded(Uniform(bits=8), array, layout=LAYOUT)
    assert size(sent) == 206 + 8 * 3
    assert np.all(decoded(Uniform(bits=8), array, layout=LAYOUT)[: 6 * 18] == 0.25)


def test_uniform_rows_keep_the_divergence_of_softmax_within_its_bound():
    """KL(s(z), s(z')) <= r^2/8 for errors in a range r: Hoeffding's lemma."""
    logits = 3 * example((500, 10))
    errors = decoded(Uniform(bits=4, by="channel"), logits).astype(np.float64) - logits
    z, other = logits.astype(np.float64), logits.astype(np.float64) + errors
    p, q = (np.exp(x - np.log(np.exp(x).sum(axis=1, keepdims=True))) for x in (z, other))
    divergences = (p * np.log(p / q)).sum(axis=1)
    assert np.all(divergences <= np.ptp(errors, axis=1) ** 2 / 8 + 1e-12)
    assert divergences.max() > 1e-6


def test_qsgd_by_hand():
    """Norm 5, places (2.4, 3.2, 0): variance 25/16 (0.24 + 0.16) = 0.625, at most 4.6875."""
    array = numbers(3, -4, 0)
    found = draws(Qsgd(levels=4, by="channel"), array)
    variances = np.array([0.24, 0.16, 0]) * 25 / 16
    assert_unbiased(found, array, variances)
    assert found.var(axis=0).sum() == pytest.approx(0.625, rel=0.05)
    assert set(np.unique(found[:, 0])) == {2.5, 3.75}
    # A sign and three bits for 0 to 4 each, and the norm.
    assert size(coded(Qsgd(levels=4), array)) == 2 + 4


@pytest.mark.parametrize("levels", [1, 3, 16])
def test_qsgd_keeps_its_variance_bound_and_counts_its_bytes(levels):
    array = example((40,))
    found = draws(Qsgd(levels=levels, by="channel"), array, 4000)
    error = np.square(found - array, dtype=np.float64).sum(axis=1)
    bound = min(40 / levels**2, 40**0.5 / levels) * squares(array)
    assert error.mean() <= bound + 5 * error.std() / 4000**0.5
    bits = 1 + {1: 1, 3: 2, 16: 5}[levels]
    assert size(coded(Qsgd(levels=levels), example(), layout=LAYOUT)) == -(-LAYOUT.size * bits // 8) + 12


def test_qsgd_of_one_number_is_that_number():
    assert decoded(Qsgd(levels=3), numbers(-0.1)) == numbers(-0.1)


def test_sign_by_hand():
    """EF-signSGD's compression: scale 5/4, squared error 10.5 - 25/4."""
    array = numbers(3, -1, 0.5, -0.5)
    found = decoded(Sign(), array)
    np.testing.assert_array_equal(found, [1.25, -1.25, 1.25, -1.25])
    assert squares(found - array) == 4.25
    assert size(coded(Sign(), array)) == 1 + 4
    assert np.all(decoded(Sign(), numbers(0, 2)) == [1, 1]), "0 counts as positive"


def test_signs_of_a_vector_have_a_scale_for_each_tensor():
    assert size(coded(Sign(), example(), layout=LAYOUT)) == -(-LAYOUT.size // 8) + 3 * 4
    assert size(coded(Sign(by="channel"), example(), layout=LAYOUT)) == -(-LAYOUT.size // 8) + 17 * 4


# Few numbers.


def test_top_k_by_hand():
    array = numbers(3, -1, 0.5, -0.5)
    found = decoded(TopK(share=0.5), array)
    np.testing.assert_array_equal(found, [3, -1, 0, 0])
    assert squares(found - array) == 0.5
    assert size(coded(TopK(share=0.5), array)) == 2 * 4 + 1


def test_of_equal_numbers_the_first_are_sent():
    np.testing.assert_array_equal(decoded(TopK(share=0.5), numbers(1, -2, 1, -1)), [1, -2, 0, 0])


@pytest.mark.parametrize("share", [0.001, 0.03, 0.2, 0.9])
def test_top_k_keeps_its_bound_and_takes_the_shorter_of_two_forms_of_places(share):
    array = example((1000,))
    count = round(share * 1000)
    # ceil(log2 1000) = 10 bits a place, or one bit a number.
    assert size(coded(TopK(share=share), array)) == 4 * count + min(-(-10 * count // 8), 125)
    assert squares(decoded(TopK(share=share), array) - array) <= (1 - count / 1000) * squares(array)


def test_random_k_is_unbiased_with_its_variance():
    """k = 1 of 4: a number comes as 4 x with probability 1/4, so its variance is 3 x^2."""
    array = numbers(1, -2, 3, 0.5)
    codec = RandomK(share=0.25)
    found = np.stack([decoded(codec, array, seed=seed) for seed in range(3000)])
    assert_unbiased(found, array, 3 * array**2)
    assert size(coded(codec, array)) == 4 + 8
    kept = decoded(RandomK(share=0.5, unbiased=False), array)
    assert np.count_nonzero(kept) == 2
    assert set(kept) <= {*array, 0}


# Low rank.


def test_powersgd_by_hand():
    """A = M Q normalised, Q' = M' A: rows (1.5, 0.5), an error of 1, above the best of rank 1, 0.7639."""
    matrix, wide = np.array([[2, 0], [1, 1]], np.float32), np.zeros((2, 4), np.float32)
    wide[:, :2] = (
        matrix  # two columns of zeros, as a 2 x 2 matrix of rank 1 takes no fewer numbers than itself
    )
    start = numbers(1, 1, 1, 1)
    sent = coded(PowerSgd(rank=1), wide, memory={"right": start})
    left, right = sent.array[:2], sent.array[2:]
    np.testing.assert_allclose(np.abs(left), [0.7071067812] * 2, rtol=1e-6)
    np.testing.assert_allclose(np.abs(right), [2.1213203436, 0.7071067812, 0, 0], atol=1e-6)
    np.testing.assert_allclose(np.outer(left, right)[:, :2], [[1.5, 0.5]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(sent.memory["right"], right)
    assert sent.array.nbytes == 4 * (2 + 4)
    found = decoded(Svd(energy=0.8), wide)
    assert squares(found - wide) == pytest.approx(0.7639320225, rel=1e-5)


def test_a_matrix_of_rank_r_comes_out_whole():
    rng = np.random.default_rng(3)
    matrix = (rng.standard_normal((12, 2)) @ rng.standard_normal((2, 15))).astype(np.float32)
    for codec in (PowerSgd(rank=2), Svd(energy=0.999999)):
        np.testing.assert_allclose(decoded(codec, matrix), matrix, atol=1e-5)


def test_powersgd_goes_on_from_its_last_matrix_to_the_best_rank():
    matrix = example((12, 15))
    best = squares(np.linalg.svd(matrix, compute_uv=False)[2:])
    memory, errors = {}, []
    for seed in range(30):
        sent = coded(PowerSgd(rank=2), matrix, memory=memory, seed=seed)
        memory = sent.memory
        errors.append(squares(PowerSgd(rank=2).decode(sent, part_of(matrix)) - matrix))
    assert errors[0] > 1.02 * best
    assert best * (1 - 1e-5) <= errors[-1] <= 1.01 * best


def test_powersgd_starts_anew_after_zeros_and_for_another_model():
    zeros = coded(PowerSgd(rank=1), np.zeros((6, 7), np.float32)).memory
    assert not zeros["right"].any()
    matrix = np.outer(example((6,)), example((7,)))
    for memory in (zeros, {"right": numbers(1, 2)}):
        found = PowerSgd(rank=1).decode(coded(PowerSgd(rank=1), matrix, memory=memory), part_of(matrix))
        np.testing.assert_allclose(found, matrix, atol=1e-5)


def test_low_rank_sends_vectors_and_small_matrices_whole():
    """conv [6, 18] and head [10, 20] at rank 2; at rank 6 conv's factors are longer than itself."""
    array = example()
    assert size(coded(PowerSgd(rank=2), array, layout=LAYOUT)) == 4 * (2 * 24 + 6 + 2 * 30)
    assert size(coded(PowerSgd(rank=6), array, layout=LAYOUT)) == 4 * (108 + 6 + 6 * 30)
    np.testing.assert_array_equal(decoded(PowerSgd(rank=6), array, layout=LAYOUT)[:114], array[:114])


@pytest.mark.parametrize("energy", [0.3, 0.9, 0.99])
def test_svd_takes_the_least_rank_that_has_the_energy(energy):
    matrix = example((12, 40)) * np.float32(2.0) ** -np.arange(12, dtype=np.float32)[:, None]
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False) ** 2
    rank = next(r for r in range(1, 13) if values[:r].sum() >= energy * values.sum())
    sent = coded(Svd(energy=energy), matrix)
    assert sent.side["ranks"].tolist() == [rank]
    assert size(sent) == 4 * rank * 52 + 4
    error = squares(decoded(Svd(energy=energy), matrix) - matrix)
    assert error == pytest.approx(values[rank:].sum(), rel=1e-3, abs=1e-9)
    assert error <= (1 - energy) * squares(matrix) * (1 + 1e-6)


def test_low_rank_refuses_a_vector_without_matrices():
    with pytest.raises(CodecError, match="it needs matrices"):
        coded(PowerSgd(rank=1), example())


# What changes nothing.


@pytest.mark.parametrize(
    "codec",
    [
        Uniform(bits=32),
        TopK(share=1.0),
        RandomK(share=1.0),
        PowerSgd(rank=99),
        Svd(energy=1.0),
        Zstd(level=19),
    ],
)
def test_codecs_that_leave_nothing_out_give_every_bit(codec):
    array = example()
    array[:3] = [-0.0, 1e-42, 3e38]
    assert decoded(codec, array, layout=LAYOUT).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8])
def test_zstd_takes_every_type(dtype):
    array = np.arange(600).reshape(20, 30).astype(dtype)
    assert decoded(Zstd(), array).tobytes() == array.tobytes()
    assert decoded(Zstd(), np.zeros((0, 3), dtype)).shape == (0, 3)
    assert size(coded(Zstd(), np.zeros((100, 100), dtype))) < 60


def test_difference_is_from_what_was_received():
    array, received = numbers(1, 2, 4), numbers(1, 1, 1)
    np.testing.assert_array_equal(coded(Difference(), array, received=received).array, [0, 1, 3])
    np.testing.assert_array_equal(decoded(Difference(), array, received=received), array)
    with pytest.raises(CodecError, match="has no part w of 3 numbers"):
        coded(Difference(), array)


# Error feedback, whatever the codecs.


def telescoped(stages, changes, **facts):
    """All that was sent, and the last residual."""
    chain, memory, total = Chain(tuple(stages)), {}, np.zeros_like(changes[0], np.float64)
    sent = []
    for seed, change in enumerate(changes):
        part = part_of(change, seed=seed, memory=memory, **facts)
        result = chain.encode(change, part)
        memory = result.memory
        sent.append(chain.decode(result.wire, part))
        total += sent[-1]
    return sent, total, memory["0/residual"]


def test_error_feedback_by_hand():
    changes = [numbers(1, 0.6), numbers(1, 0.6), numbers(0, 0)]
    sent, total, residual = telescoped([Stage("top_k", TopK(share=0.5), feedback=True)], changes)
    np.testing.assert_allclose(sent, [[1, 0], [0, 1.2], [1, 0]], rtol=1e-6)
    np.testing.assert_allclose(residual, [0, 0], atol=1e-7)
    np.testing.assert_allclose(total, [2, 1.2], rtol=1e-6)


@pytest.mark.parametrize(
    "codecs",
    [
        [TopK(share=0.05)],
        [TopK(share=0.05), Uniform(bits=4), Zstd()],
        [RandomK(share=0.1, unbiased=False), Cast(to="fp16")],
        [Sign()],
        [Cast(to="bf16")],
        [PowerSgd(rank=1), Qsgd(levels=7)],
        [Svd(energy=0.5), Uniform(bits=8)],
    ],
)
def test_what_is_sent_and_the_last_residual_are_all_changes(codecs):
    changes = [example(seed=seed) for seed in range(12)]
    stages = [Stage("codec", codec, feedback=not place) for place, codec in enumerate(codecs)]
    _, total, residual = telescoped(stages, changes, layout=LAYOUT)
    np.testing.assert_allclose(total + residual, np.sum(changes, axis=0), atol=1e-4)
    assert residual.any()


def test_each_factor_of_a_low_rank_matrix_has_a_scale_of_its_own():
    """4 bits behind rank 2 of a matrix of norm 1e4, by hand: 15 steps from least to largest in each factor.

    Left columns have length 1. With the right factor's scale their levels would be some 200 apart.
    """
    rng = np.random.default_rng(2)
    matrix = (1e4 * np.outer(rng.standard_normal(12), rng.standard_normal(15)) / 14).astype(np.float32)
    chain = Chain((Stage("powersgd", PowerSgd(rank=2)), Stage("uniform", Uniform(bits=4))))
    part = part_of(matrix)
    factors = Chain(chain.stages[:1]).encode(matrix, part).wire["array"]
    exact = [factors[:24].astype(np.float64), factors[24:].astype(np.float64)]  # [2, 12] and [2, 15]
    wire = chain.encode(matrix, part).wire
    np.testing.assert_array_equal(wire["1.low"], [one.min().astype(np.float32) for one in exact])
    np.testing.assert_array_equal(wire["1.high"], [one.max().astype(np.float32) for one in exact])
    levels = unpack_bits(wire["array"], 54, 4).astype(np.float64)
    steps = [(one.max() - one.min()) / 15 for one in exact]
    found = [
        one.min() + level * step
        for one, level, step in zip(exact, np.split(levels, [24]), steps, strict=True)
    ]
    for one, other, step in zip(found, exact, steps, strict=True):
        assert np.abs(one - other).max() <= step * (1 + 1e-9)
    product = found[0].reshape(2, 12).T @ found[1].reshape(2, 15)
    np.testing.assert_allclose(chain.decode(wire, part), product, atol=1e-6 * np.abs(product).max())


def test_factors_columns_can_have_scales_of_their_own():
    """`by: channel` of rank 2: two columns in each factor of conv and of head, and conv's bias."""
    array = example()
    chain = Chain((Stage("powersgd", PowerSgd(rank=2)), Stage("uniform", Uniform(bits=4, by="channel"))))
    wire = chain.encode(array, part_of(array, layout=LAYOUT)).wire
    assert wire["1.low"].size == 2 + 2 + 1 + 2 + 2
    found = chain.decode(wire, part_of(array, layout=LAYOUT))
    assert squares(found - array) < squares(array)


def test_four_bits_behind_low_rank_keep_about_the_residual_of_low_rank_alone():
    """Large changes, 80 rounds. One scale for both factors grew past all numbers."""
    rng = np.random.default_rng(4)
    changes = [(1e3 * rng.standard_normal((60, 40))).astype(np.float32) for _ in range(80)]
    alone, coarse = (
        telescoped([Stage("powersgd", PowerSgd(rank=4), feedback=True), *behind], changes)[2]
        for behind in ([], [Stage("uniform", Uniform(bits=4))])
    )
    assert squares(coarse) < 1.2 * squares(alone)


COARSE = {
    "one bit behind low rank": [PowerSgd(rank=2), Uniform(bits=1)],
    "two bits behind low rank": [Svd(energy=0.9), Uniform(bits=2)],
    "one level behind low rank": [PowerSgd(rank=2), Qsgd(levels=1)],
    "few of the factors' numbers": [PowerSgd(rank=2), RandomK(share=0.1)],
    "one bit of the largest": [TopK(share=0.3), Uniform(bits=1)],
    "one level of the largest": [TopK(share=0.3), Qsgd(levels=1)],
    "few of the largest": [TopK(share=0.3), RandomK(share=0.1)],
}


@pytest.mark.parametrize("name", COARSE)
def test_no_rounding_behind_feedback_lets_a_residual_grow_beyond_what_was_to_be_sent(name):
    """A round's residual is at most the change and the residual before it, and nothing is lost.

    Without damping each of these chains grew past 1e9 times the change within 150 rounds.
    """
    stages = [Stage("codec", codec, feedback=not place) for place, codec in enumerate(COARSE[name])]
    chain, memory = Chain(tuple(stages)), {}
    rng, before, total, damped = np.random.default_rng(5), np.zeros((40, 30)), np.zeros((40, 30)), 0
    for seed in range(150):
        change = (1e3 * rng.standard_normal((40, 30))).astype(np.float32)
        part = part_of(change, seed=seed, memory=memory)
        sent = chain.encode(change, part)
        memory = sent.memory
        after, due = memory["0/residual"].astype(np.float64), change + before
        assert squares(after) <= squares(due) * (1 + 1e-5)
        np.testing.assert_allclose(chain.decode(sent.wire, part) + after, due, atol=1e-5 * np.abs(due).max())
        total += change
        damped += sent.logged["damped"]  # also 0
        before = after
    assert damped
    assert squares(before) < 30**2 * squares(change)


def test_damping_is_for_each_tensor_and_counted():
    class Thrice(Codec):
        """Decodes the second of the three tensors, x, as 3x: that leaves 2x, more than x."""

        def encode(self, array, part):
            return Coded(array)

        def decode(self, coded, part):
            return coded.array * np.repeat(np.float32([1, 3, 1]), [108, 6, 200])

    array = example()
    chain = Chain((Stage("thrice", Thrice(), feedback=True),))
    part = part_of(array, layout=LAYOUT)
    result = chain.encode(array, part)
    # <x, 3x> / |3x|^2 = 1/3, and a third of 3x is x: nothing is left of any.
    np.testing.assert_allclose(result.wire["0.damping"], [1, 1 / 3, 1], rtol=1e-6)
    assert result.logged == {"damped": 1}
    np.testing.assert_allclose(chain.decode(result.wire, part), array, rtol=1e-6)
    np.testing.assert_allclose(result.memory["0/residual"], 0, atol=1e-6)


def test_residual_of_another_model_is_dropped():
    chain = Chain((Stage("sign", Sign(), feedback=True),))
    first = chain.encode(numbers(1, 2, 3), part_of(numbers(1, 2, 3)))
    fresh, after = (
        chain.encode(numbers(1, 5), part_of(numbers(1, 5), memory=memory)) for memory in ({}, first.memory)
    )
    np.testing.assert_array_equal(fresh.wire["0.scale"], after.wire["0.scale"])


# A chain on the wire.


def test_a_chain_counts_every_array_and_the_shapes_that_change():
    """top_k 50 of 1000: 50 values of 4 bits, 10 bits a place; each of the two codecs' shapes is 4 bytes."""
    array = example((1000,))
    chain = Chain((Stage("top_k", TopK(share=0.05)), Stage("uniform", Uniform(bits=4))))
    wire = chain.encode(array, part_of(array)).wire
    bytes_of = {name: one.nbytes for name, one in wire.items()}
    assert bytes_of == {"array": 25, "0.places": 63, "0.shape": 4, "1.low": 4, "1.high": 4, "1.shape": 4}
    found = chain.decode(wire, part_of(array))
    assert np.count_nonzero(found) <= 50
    assert found.shape == (1000,)


def test_a_chain_stops_where_nothing_is_left():
    """A matrix of zeros has rank 0: no numbers go on to the codecs behind it."""
    zeros = np.zeros((6, 7), np.float32)
    chain = Chain((Stage("svd", Svd(energy=0.9)), Stage("uniform", Uniform(bits=4)), Stage("zstd", Zstd())))
    wire = chain.encode(zeros, part_of(zeros)).wire
    assert {name: one.nbytes for name, one in wire.items()} == {"array": 0, "0.ranks": 4, "0.shape": 8}
    np.testing.assert_array_equal(chain.decode(wire, part_of(zeros)), zeros)
