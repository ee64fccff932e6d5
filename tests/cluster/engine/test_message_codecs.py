"""Codecs from a file outside of the package: what is counted, and that every engine gives one result."""

import numpy as np
import pytest
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, assert_same_run, refused, small_recipe

import rayfed_kd
from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.protocol import ClientContext

RECIPE = {**FOUR_CLIENTS, "rounds": 3, "sampling": {"fraction": 0.75}}
CODECS = """
import numpy as np

from rayfed_kd.protocol import Codec, Coded

class Half(Codec):
    def encode(self, array, part):
        return Coded(array.astype(np.float16))
    def decode(self, coded, part):
        return coded.array.astype(np.float32)

class Largest(Codec):
    '''The largest elements and their places, upwards.'''
    def __init__(self, *, share: float = 0.1):
        self.share = share
    def encode(self, array, part):
        count = max(1, int(self.share * array.size))
        places = np.sort(np.argsort(-np.abs(array.ravel()), kind="stable")[:count]).astype(np.int32)
        return Coded(array.ravel()[places], {"places": places})
    def decode(self, coded, part):
        array = np.zeros(part.shape, np.float32)
        array.ravel()[coded.side["places"]] = coded.array
        return array

class Overflowing(Codec):
    def encode(self, array, part):
        return Coded(np.full(array.shape, np.inf, np.float16))

    def decode(self, coded, part):
        return coded.array.astype(np.float32)

class Counting(Codec):
    def encode(self, array, part):
        return Coded(array, logged={"sent": float(array.size) if part.direction == "up" else 0.5})

class Flat(Codec):
    def decode(self, coded, part):
        return coded.array.ravel().astype(np.float64)

class Noisy(Codec):
    def encode(self, array, part):
        return Coded(array + np.random.default_rng().standard_normal(array.shape, np.float32))

class Doubling(Codec):
    def encode(self, array, part):
        return Coded(np.multiply(array, 2, out=array))

class Halving(Codec):
    def decode(self, coded, part):
        return np.divide(coded.array, 2, out=coded.array)

class Unready(Codec):
    def encode(self, array, part):
        raise LookupError("no table")
"""


@pytest.fixture(autouse=True)
def own_codecs(own_module):
    own_module("own_codecs", CODECS)


HALF = {way: {"weights": "own_codecs:Half"} for way in ("up", "down")}


def run(folder, *overrides, method="fedavg", codec=HALF, local=True, **options):
    recipe = {**small_recipe(RECIPE, method, **options), "codec": codec}
    return rayfed_kd.run(recipe, [f"results.folder={folder}", *overrides], local=local)


def counted(result):
    return {
        (row["round"], row["client"], row["direction"], row["kind"]): row["bytes"]
        for row in result.tables["messages"].to_pylist()
    }


def coded(codec, *overrides, method="fedavg"):
    return run_in_process({**small_recipe(RECIPE, method), "codec": codec}, *overrides)


def test_half_precision_halves_the_counted_bytes_and_changes_the_result():
    half, whole = coded(HALF), coded({})
    expected = {key: size // 2 if key[-1] == "weights" else size for key, size in counted(whole).items()}
    assert counted(half) == expected
    raw = [result.tables["messages"]["raw_bytes"].to_pylist() for result in (half, whole)]
    assert raw[0] == raw[1] == whole.tables["messages"]["bytes"].to_pylist()
    assert not np.array_equal(half.models["global"], whole.models["global"])
    np.testing.assert_allclose(half.models["global"], whole.models["global"], atol=0.02)


def test_the_simulated_clock_charges_what_is_on_the_wire():
    clock = (
        "clock={name: constant, seconds_per_sample: 0.0, latency_s: 0.0, up_mbit_s: 1.0, down_mbit_s: 1.0}"
    )
    seconds = [coded(codec, clock, "rounds=2").tables["rounds"]["sim_s"].to_pylist() for codec in (HALF, {})]
    assert [2 * one for one in seconds[0]] == pytest.approx(seconds[1])


SPARSE = [
    "difference",
    {"name": "top_k", "share": 0.05, "feedback": True},
    {"name": "uniform", "bits": 8},
    "zstd",
]
LOW_RANK = ["difference", {"name": "powersgd", "rank": 2, "feedback": True}, {"name": "cast", "to": "fp16"}]
ROUNDED = {
    "up": {"logits": {"name": "uniform", "bits": 6, "by": "channel"}},
    "down": {"logits": {"name": "qsgd", "levels": 31}},
}
UP = {"sparse": {"up": {"weights": SPARSE}}, "low rank": {"up": {"weights": LOW_RANK}}, "rounded": ROUNDED}
FREE = "clock={name: lognormal, up_mbit_s: 1e9, down_mbit_s: 1e9}"
LATE = ["clock.name=lognormal", "schedule={name: fedbuff, buffer: 2, update: difference}"]


@pytest.mark.parametrize(
    ("codec", "method"), [(HALF, "fedavg"), (UP["low rank"], "fedavg"), (ROUNDED, "fedgems")]
)
def test_ray_gives_the_local_engines_bits(codec, method, hosts):
    recipe = {**small_recipe(RECIPE, method), "codec": codec}
    assert_same_run(hosts.run(recipe, "placement.clients_per_actor=2"), run_in_process(recipe))


@pytest.mark.slow
def test_a_whole_run_on_ray_gives_the_local_engines_bits(shared_ray, tmp_path):
    result = run(tmp_path / "ray", "placement.clients_per_actor=2", local=False, codec=UP["sparse"])
    assert_same_run(result, run(tmp_path / "local", codec=UP["sparse"]))


@pytest.mark.parametrize(("method", "codec"), [("fedkf", HALF), ("fedavg", UP["sparse"])])
def test_resumed_asynchronous_run_is_the_undisturbed_one(method, codec, tmp_path):
    """Messages under way are stored as they were sent, and late replies are held against what clients got."""
    options = {"track_oca": True} if method == "fedavg" else {}
    expected = run(tmp_path / "whole", "rounds=6", *LATE, method=method, codec=codec, **options)
    run(tmp_path / "cut", "rounds=3", *LATE, method=method, codec=codec, **options)
    assert_same_run(rayfed_kd.resume(tmp_path / "cut", ["rounds=6"], local=True), expected)


def test_clients_that_train_as_one_batch_have_memories_of_their_own():
    alone, group = (coded(UP["sparse"], f"local.vectorise={size}") for size in ("off", 3))
    rows = [outcome.tables["messages"].drop("bytes") for outcome in (alone, group)]
    assert rows[0].equals(rows[1])
    np.testing.assert_allclose(alone.models["global"], group.models["global"], atol=1e-2)


SCHEDULES = {
    "sync": [],
    "quorum": ["clock.name=lognormal", "schedule={name: quorum, min_fraction: 0.5, over_selection: 0.5}"],
    "buffered": ["clock.name=lognormal", "schedule={name: buffered, buffer: 2}"],
    "fedbuff": LATE,
    "fedasync": ["clock.name=lognormal", "schedule.name=fedasync"],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_lost_under_any_schedule(schedule):
    """Replies are late in the same order, as the clock charges no bytes here."""
    words = [word.replace("clock.name=lognormal", FREE) for word in SCHEDULES[schedule]]
    both = {"weights": [{"name": "uniform", "bits": 32}, {"name": "top_k", "share": 1.0}, "zstd"]}
    exact = coded({"up": both, "down": both}, *words, "rounds=5")
    assert np.array_equal(exact.models["global"], coded({}, *words, "rounds=5").models["global"])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_error_feedback_runs_under_every_schedule(schedule, hosts):
    recipe = {**small_recipe({**RECIPE, "rounds": 4}, "fedavg"), "codec": UP["sparse"]}
    outcome = run_in_process(recipe, *SCHEDULES[schedule])
    assert_same_run(hosts.run(recipe, "placement.clients_per_actor=2", *SCHEDULES[schedule]), outcome)


def test_options_are_the_constructors_keywords():
    def codec(**options):
        return {"up": {"weights": {"name": "own_codecs:Largest", **options}}}

    few, many = (counted(coded(codec(**given), "rounds=1")) for given in ({}, {"share": 0.5}))
    # 21,386 numbers; 8 bytes for each that is sent, and 4 for the shape.
    assert {size for key, size in few.items() if key[2:] == ("up", "weights")} == {8 * 2138 + 4}
    assert {size for key, size in many.items() if key[2:] == ("up", "weights")} == {8 * 10693 + 4}
    wanted = r"codec\.up\.weights\.0\.part is no option of own_codecs:Largest.*share"
    with pytest.raises(RecipeError, match=wanted):
        coded(codec(part=1))


def test_what_overflows_on_the_wire_is_a_bad_reply():
    with pytest.raises(RunError, match="reply part student has NaN or infinite values"):
        coded({"up": {"weights": "own_codecs:Overflowing"}}, "rounds=1")


# One step, as the next one would give NaN.
TOO_LARGE = ["local.optimizer.lr=10000000.0", "local.batch_size=1000", "rounds=1"]


def test_what_a_codec_cannot_encode_is_a_bad_reply():
    codec = {"up": {"weights": {"name": "cast", "to": "fp16"}}}
    told = r"round 1, client \d, .*: reply part student: cast: \d+ of 21386 numbers are beyond fp16's 65504"
    with pytest.raises(RunError, match=told):
        coded(codec, *TOO_LARGE)
    with pytest.raises(RunError, match="65504; no reply of round 1 is left"):
        coded(codec, *TOO_LARGE, "faults.bad_replies=drop")


def test_a_message_that_cannot_be_encoded_ends_the_run():
    codec = {"down": {"weights": {"name": "cast", "to": "fp16"}}}
    with pytest.raises(RunError, match=r"round 2, message 1: part student: cast: \d+ of 21386 numbers"):
        coded(codec, *TOO_LARGE, "rounds=2")


def test_numbers_that_a_codec_logs_are_in_the_tables(monkeypatch):
    codec = {way: {"weights": "own_codecs:Counting"} for way in ("up", "down")}
    (logged,) = coded(codec, "rounds=1").tables["rounds"]["logged"].to_pylist()
    assert [dict(logged)[name] for name in ("student_sent", "student_sent_down")] == [21386, 0.5]
    monkeypatch.setattr(ClientContext, "logged", lambda ctx: {"student_sent": (1.0, 1)})
    with pytest.raises(RunError, match="client_update: both the method and a codec log student_sent"):
        coded(codec)


def test_attacks_act_on_what_the_server_decodes():
    """With z = 0 three attackers send the mean of the honest: of one client, whose changes came as signs."""
    recipe = {**small_recipe(RECIPE, "fedavg"), "codec": {"up": {"weights": ["difference", "sign"]}}}
    words = ["rounds=1", "sampling={fraction: 1.0}", "attack={name: lie, clients: [0, 1, 2], z: 0.0}"]
    setting = rayfed_kd.prepare(recipe, words).setting
    changes = np.abs(
        run_in_process(recipe, *words).models["global"]
        - setting.module_pool().initial_vector("model").numpy()
    )
    for tensor, start, stop in setting.wires["up"].layouts[len(changes)].placed():
        scale = changes[start]
        assert scale > 0, tensor.name
        np.testing.assert_allclose(changes[start:stop], scale, atol=1e-6)


@pytest.mark.parametrize(("codec", "message"), refused("codecs"))
def test_bad_codecs_are_refused_before_the_first_round(codec, message):
    with pytest.raises(RecipeError, match=message):
        rayfed_kd.prepare(small_recipe(RECIPE, "fedavg"), [f"codec={{{codec}}}"])


def test_a_codec_needs_a_part_that_goes_down_or_means_the_same_each_time():
    """q-FFL's delta goes up alone; FedKD's factors have another rank each time."""
    sign = "{name: sign, feedback: true}"
    for name, codec, sends in (("qffl", "difference", "no delta down"), ("fedkd", sign, "its update once")):
        with pytest.raises(RecipeError, match=rf"codec\.up\.weights: {name} sends {sends}"):
            rayfed_kd.prepare(small_recipe(RECIPE, name), [f"codec={{up: {{weights: {codec}}}}}"])


def test_copies_that_both_sides_keep_take_codecs_without_a_loss():
    """FedKD's clients would drift away from the server's mentee."""
    recipe = small_recipe(RECIPE, "fedkd")
    with pytest.raises(RecipeError, match=r"codec\.down\.weights: fedkd's clients and server add whole to"):
        rayfed_kd.prepare(recipe, ["codec={down: {weights: [{name: cast, to: fp16}, zstd]}}"])
    rayfed_kd.prepare(recipe, ["codec={down: {weights: zstd}, up: {weights: {name: cast, to: fp16}}}"])


STREAMS = """
import torch

from rayfed_kd.protocol import Answers, Message, Method, Reply


class Twice(Method):
    '''What is sent twice in a round is rounded at random each time: that their mean is nearer.'''

    down = {"student": "weights"}
    up = {"student": "weights", "answers": Answers("logits")}

    def init_server(self, ctx):
        return ctx.initial_vector()

    def step(self, client, message, ctx):
        return None, Reply(student=message["student"])

    def answers(self, client, message, ctx):
        return None, Reply(answers=message["student"].view(-1, 2))

    def run_round(self, server, cohort, ctx):
        message = Message(student=server)
        first, second = (cohort.broadcast(self.step, message)[0]["student"] for _ in range(2))
        assert not torch.equal(first, second)
        ids = torch.arange(10)
        first, second = (cohort.questions(self.answers, message, answer="answers").ask(ids) for _ in range(2))
        assert not torch.equal(first, second)
        return server

    def evaluated(self, server):
        return {"global": server}
"""


@pytest.mark.parametrize("codec", [{"up": {"weights": 2, "logits": 2}}, {"down": {"weights": 2}}])
def test_what_is_sent_twice_in_a_round_is_rounded_twice(codec, own_module):
    own_module("own_streams", STREAMS)
    uniform = {
        way: {kind: {"name": "uniform", "bits": bits} for kind, bits in kinds.items()}
        for way, kinds in codec.items()
    }
    recipe = {**RECIPE, "model": {"name": "mlp", "hidden": 4}, "method": {"name": "own_streams:Twice"}}
    run_in_process({**recipe, "codec": uniform}, "rounds=1")
