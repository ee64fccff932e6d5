"""Codecs from a file outside of the package: what is counted, and that every engine gives one result."""

import numpy as np
import pytest
from runs import run_in_process
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.errors import RecipeError, RunError

RECIPE = {**FOUR_CLIENTS, "rounds": 3, "sampling": {"fraction": 0.75}}
CODECS = """
from dataclasses import dataclass

import numpy as np

from rayfed_kd.protocol import Codec


class Half(Codec):
    def encode(self, array, part):
        half = part.kind in ("weights", "logits")
        return {"half": array.astype(np.float16)} if half else super().encode(array, part)

    def decode(self, wire, part):
        return wire["half"].astype(np.float32) if "half" in wire else super().decode(wire, part)


@dataclass(frozen=True, kw_only=True)
class Largest(Codec):
    '''The largest elements and their places, upwards.'''

    share: float = 0.1

    def encode(self, array, part):
        if part.direction == "down":
            return super().encode(array, part)
        count = max(1, int(self.share * array.size))
        places = np.sort(np.argsort(-np.abs(array.ravel()), kind="stable")[:count]).astype(np.int32)
        return {"places": places, "values": array.ravel()[places], "shape": np.array(array.shape, np.int32)}

    def decode(self, wire, part):
        if "places" not in wire:
            return super().decode(wire, part)
        array = np.zeros(tuple(wire["shape"]), np.float32)
        array.ravel()[wire["places"]] = wire["values"]
        return array


class Overflowing(Codec):
    def encode(self, array, part):
        return {"": np.full(array.shape, np.inf, np.float16)} if part.direction == "up" else {"": array}
"""


@pytest.fixture(autouse=True)
def own_codecs(tmp_path, monkeypatch):
    (tmp_path / "own_codecs.py").write_text(CODECS)
    monkeypatch.chdir(tmp_path)


def run(folder, *overrides, method="fedavg", codec="own_codecs:Half", local=True, **options):
    recipe = {**small_recipe(RECIPE, method, **options), "codec": {"name": codec}}
    return rayfed_kd.run(recipe, [f"results.folder={folder}", *overrides], local=local)


def counted(result):
    return {
        (row["round"], row["client"], row["direction"], row["kind"]): row["bytes"]
        for row in result.tables["messages"].to_pylist()
    }


def test_half_precision_halves_the_counted_bytes_and_changes_the_result(tmp_path):
    half, whole = run(tmp_path / "half"), run(tmp_path / "whole", codec="none")
    expected = {key: size // 2 if key[-1] == "weights" else size for key, size in counted(whole).items()}
    assert counted(half) == expected
    assert not np.array_equal(half.models["aca"], whole.models["aca"])
    np.testing.assert_allclose(half.models["aca"], whole.models["aca"], atol=0.02)


def test_the_simulated_clock_charges_what_is_on_the_wire(tmp_path):
    clock = (
        "clock={name: constant, seconds_per_sample: 0.0, latency_s: 0.0, up_mbit_s: 1.0, down_mbit_s: 1.0}"
    )
    seconds = [
        run(tmp_path / codec[-4:], clock, codec=codec).tables["rounds"]["sim_s"].to_pylist()
        for codec in ("own_codecs:Half", "none")
    ]
    assert [2 * one for one in seconds[0]] == pytest.approx(seconds[1])


CODED = [("own_codecs:Half", method) for method in ("fedavg", "fedkf", "fedgems")]


@pytest.mark.parametrize(("codec", "method"), [*CODED, ("own_codecs:Largest", "fedavg")])
def test_ray_gives_the_local_engines_bits(codec, method, hosts):
    recipe = {**small_recipe(RECIPE, method), "codec": {"name": codec}}
    assert_same_run(hosts.run(recipe, "placement.clients_per_actor=2"), run_in_process(recipe))


@pytest.mark.slow
def test_a_whole_run_on_ray_gives_the_local_engines_bits(shared_ray, tmp_path):
    result = run(tmp_path / "ray", "placement.clients_per_actor=2", local=False)
    assert_same_run(result, run(tmp_path / "local"))


@pytest.mark.parametrize("method", ["fedavg", "fedkf"])
def test_resumed_asynchronous_run_is_the_undisturbed_one(method, tmp_path):
    """Messages under way are stored as they were sent, and late replies are held against what clients got."""
    late = ["clock.name=lognormal", "schedule={name: fedbuff, buffer: 2, update: difference}"]
    options = {"track_oca": True} if method == "fedavg" else {}
    expected = run(tmp_path / "whole", "rounds=6", *late, method=method, **options)
    run(tmp_path / "cut", "rounds=3", *late, method=method, **options)
    assert_same_run(rayfed_kd.resume(tmp_path / "cut", ["rounds=6"], local=True), expected)


def test_options_are_the_constructors_keywords(tmp_path):
    recipe = {**small_recipe(RECIPE, "fedavg"), "codec": {"name": "own_codecs:Largest", "share": 0.5}}
    few, many = run(tmp_path / "few", codec="own_codecs:Largest"), rayfed_kd.run(recipe, local=True)
    sizes = [sum(size for key, size in counted(result).items() if key[2] == "up") for result in (few, many)]
    assert 4 < sizes[1] / sizes[0] < 6
    with pytest.raises(RecipeError, match=r"codec\.part is no option of own_codecs:Largest.*share"):
        rayfed_kd.prepare({**recipe, "codec": {"name": "own_codecs:Largest", "part": 1}})


def test_what_overflows_on_the_wire_is_a_bad_reply(tmp_path):
    with pytest.raises(RunError, match="reply part student has NaN or infinite values"):
        run(tmp_path / "run", codec="own_codecs:Overflowing")


@pytest.mark.parametrize(
    ("codec", "told"),
    [("nome", "codec.name: 'nome' is not known; there are none,"), ("own_codecs:np", "is no subclass of")],
)
def test_what_is_no_codec_is_refused(codec, told):
    with pytest.raises(RecipeError, match=told):
        rayfed_kd.prepare({**small_recipe(RECIPE, "fedavg"), "codec": {"name": codec}})
