"""A user's own model, generator, data set and partition, from one file beside the recipe."""

import pytest
import torch

import rayfed_kd
from rayfed_kd.data.batches import PixelScale
from rayfed_kd.errors import RecipeError
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.generation import generate

OWN = """
import numpy as np
from pydantic import BaseModel
from torch import from_numpy, nn

from rayfed_kd import data_source, model_builder, partition_scheme
from rayfed_kd.data.dataset import RawDataset, Source, Split
from rayfed_kd.models.base import Classifier, Generator

@model_builder
def net(shape, classes, *, hidden: int = 5):
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, hidden), nn.ReLU())
    body[1].load_state_dict({"bias": from_numpy(np.ones(hidden, np.float32))}, strict=False)
    return Classifier(body, nn.Linear(hidden, classes), hidden)

@model_builder
def draw(shape, classes, *, latent: int = 3):
    return Generator(nn.Sequential(nn.Linear(latent, 16), nn.Unflatten(1, (1, 4, 4)), nn.Sigmoid()), latent)

@data_source
def stripes(folder, *, count: int = 40, value: int = VALUE):
    def decode():
        labels = np.arange(count) % 2
        pixels = np.zeros((count, 1, 4, 4), dtype=np.uint8)
        pixels[labels == 1, :, ::2] = value
        return RawDataset(Split(pixels, labels.astype(np.int64)), None, ("plain", "striped"))

    return Source((), {"count": count}, decode)

@partition_scheme
def halves(pool, clients, stream, *, first: float = 0.5):
    cut = int(first * len(pool.labels))
    return [np.arange(cut), np.arange(cut, len(pool.labels))]

@partition_scheme
def drawn_elsewhere(pool, clients, stream):
    return np.array_split(np.random.default_rng().permutation(len(pool.labels)), clients)

@partition_scheme
def relabelling(pool, clients, stream):
    return halves(pool, clients, pool.labels.sort())

class Net(Classifier):
    def __init__(self, shape, classes, *, hidden: int = 5):
        body = nn.Sequential(nn.Flatten(), nn.Linear(16, hidden))
        super().__init__(body, nn.Linear(hidden, classes), hidden)

class Features(nn.Module):
    conditional = True

    def __init__(self, shape, classes, *, latent: int = 3):
        super().__init__()
        self.latent, self.layer = latent, nn.Linear(latent, shape[0])

    def forward(self, z, labels):
        return self.layer(z)

@model_builder
def broken(shape, classes):
    return [][classes]

class Inner(BaseModel):
    a: int

@model_builder
def ignoring(shape, classes, *, inner: Inner | None = None):
    raise AssertionError("built")

@data_source
def undecodable(folder):
    return Source((), {}, lambda: {}["images"])

def unmarked(*given, **more):
    raise AssertionError("called")
"""
RECIPE = {
    "method": {"name": "fedkf", "generator": {"name": "own_parts:draw", "latent": 4}},
    "model": {"name": "own_parts:net", "hidden": 6},
    "data": {"name": "own_parts:stripes", "count": 60},
    "partition": {"name": "own_parts:halves", "first": 0.25, "clients": 2},
    "local": {"epochs": 1, "batch_size": 8},
    "rounds": 1,
    "sampling": {"fraction": 1.0},
}


@pytest.fixture
def own(own_module, own_cache):
    own_module("own_parts", OWN.replace("VALUE", "200"))


def test_own_parts_run_together_without_a_warning(own, tmp_path, recwarn):
    result = rayfed_kd.run(RECIPE, [f"results.folder={tmp_path / 'run'}"], local=True)
    assert result.summary["status"] == "finished"
    rows = [row for row in result.tables["clients"].to_pylist() if row["model"] == "global"]
    assert [row["samples"] for row in rows] == [3, 9]
    assert not [str(warned.message) for warned in recwarn if "meta parameter" in str(warned.message)]


def test_changed_code_of_own_data_is_decoded_again(own, own_module):
    first = rayfed_kd.prepare(RECIPE).setting.dataset.train.images.max()
    own_module("own_parts", OWN.replace("VALUE", "100"))
    second = rayfed_kd.prepare(RECIPE).setting.dataset.train.images.max()
    assert (int(first), int(second)) == (200, 100)


def test_features_of_an_own_generator_are_no_pixels_to_normalise(own):
    method = {"name": "fedgen", "generator": {"name": "own_parts:Features"}}
    generator = FlatModule(rayfed_kd.prepare({**RECIPE, "method": method}).setting.builders["generator"]())
    z, labels = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    assert torch.equal(
        generate(generator, z, labels, PixelScale(torch.ones(1), torch.ones(1))), generator(z, labels)
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hiden=3", r"model.hiden is no option of own_parts:net. Did you mean model.hidden\?"),
        ("data.count=many", "data.count = 'many': expected a whole number"),
        ("partition.frist=0.1", r"Did you mean partition.first\?"),
        ("method.generator.latnt=1", r"Did you mean method.generator.latent\?"),
        ("partition={name: 'own_parts:drawn_elsewhere', clients: 2}", "it gave other parts the second time"),
        ("partition={name: 'own_parts:relabelling', clients: 2}", r"sort array is read-only \(.*\.py"),
        (
            "method.generator={name: 'own_parts:stripes'}",
            r"method.generator.name: own_parts:stripes is not a function marked",
        ),
        (
            "data={name: 'own_parts:undecodable'}",
            r"data.name: own_parts:undecodable failed: KeyError: 'images' \(.*own_parts.py, line",
        ),
        (
            "model={name: 'own_parts:broken'}",
            r"^model.name: own_parts:broken, called with \(shape, classes\), failed: "
            "IndexError: .*own_parts.py, line",
        ),
        ("model={name: 'own_parts:ignoring', inner: {a: 1, b: 2}}", "Inner ignores unknown keys"),
        ("method.name=own_parts:net", "own_parts:net is no subclass of rayfed_kd.protocol.method.Method"),
    ],
)
def test_what_is_wrong_with_own_parts_and_their_options_is_told_in_one_message(own, override, message):
    with pytest.raises(RecipeError, match=message):
        rayfed_kd.prepare(RECIPE, [override])


def test_a_class_of_modules_is_a_model_without_a_mark(own):
    prepared = rayfed_kd.prepare({**RECIPE, "model": {"name": "own_parts:Net", "hidden": 3}})
    assert prepared.setting.builders["model"]().feature_size == 3


@pytest.mark.parametrize(
    ("section", "role"),
    [("model", "model_builder"), ("data", "data_source"), ("partition", "partition_scheme")],
)
@pytest.mark.parametrize("name", ["own_parts:unmarked", "shutil:rmtree", "own_parts:halves", "own_parts:net"])
def test_only_an_object_that_is_marked_for_its_role_is_called(own, tmp_path, section, role, name):
    if (section, name) in (("model", "own_parts:net"), ("partition", "own_parts:halves")):
        pytest.skip("its role")
    (tmp_path / "kept").mkdir()
    recipe = {**RECIPE, section: {"name": name, **({"folder": "kept"} if section == "data" else {})}}
    with pytest.raises(
        RecipeError, match=rf"{section}.name: {name} is not a function marked @rayfed_kd.{role}"
    ):
        rayfed_kd.prepare(recipe)
    assert (tmp_path / "kept").is_dir()


def test_method_on_averaging_has_its_options_without_saying_so():
    class Bare(Averaging[None]):
        """Its author forgot `options`."""

    assert Bare.options_model() is AveragingOptions
