"""Architectures of the groups: their sizes, a common length of features, and runs that repeat."""

import importlib

import pytest
import torch
from runs import run_in_process
from small_recipes import MADE_UP
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models import CLASSIFIERS
from rayfed_kd.models.attention import small_vit
from rayfed_kd.models.projected import SteadyBatchNorm2d, projected, short_resnet
from rayfed_kd.models.small_cnns import cnn2
from rayfed_kd.recipe.sample_shapes import TextShape
from rayfed_kd.recipe.sections.client_models import GROUP_FEATURES, ClientModelsRecipe, groups
from rayfed_kd.recipe.strict import Named
from rayfed_kd.recipe.torchvision_import import import_torchvision

SHAPE, CLASSES = (3, 32, 32), 10
HEAD = CLASSES * (GROUP_FEATURES + 1)
# name -> the published number of ImageNet's 1,000 classes, and the length of the features.
PUBLISHED = {
    "resnet18": (11_689_512, 512),
    "resnet34": (21_797_672, 512),
    "resnet50": (25_557_032, 2048),
    "resnet101": (44_549_160, 2048),
    "resnet152": (60_192_808, 2048),
    "mobilenet_v2": (3_504_872, 1280),
    "shufflenet_v2_x1_0": (2_278_604, 1024),
    "googlenet": (6_624_904, 1024),
    "efficientnet_b0": (5_288_548, 1280),
    "vit_b_16": (86_567_656, 768),
    "vit_b_32": (88_224_232, 768),
}
# ViTs learn a position for each patch: 196 and 49 of 224x224, 4 and 1 of 32x32.
FEWER_PLACES = {"vit_b_16": 768 * (196 - 4), "vit_b_32": 768 * (49 - 1)}


def make(named, shape=SHAPE):
    bound = CLASSIFIERS.bound(named, "model")
    return bound.found(shape, CLASSES, **bound.arguments)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def projection(length):
    return 0 if length == GROUP_FEATURES else GROUP_FEATURES * (length + 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_groups_torchvision_model_has_the_published_parameters_with_another_head(name):
    """Published, less the head of 1,000 classes, and with the projection and the head of 10."""
    published, length = PUBLISHED[name]
    base = {"name": f"torchvision:{name}"}
    with torch.device("meta"):
        model = make(Named(name="projected", base=base, features=GROUP_FEATURES))
    body = published - 1000 * (length + 1) - FEWER_PLACES.get(name, 0)
    assert count(model) == body + projection(length) + HEAD
    assert model.feature_size == GROUP_FEATURES


def test_the_published_numbers_are_torchvisions():
    models = importlib.import_module(f"{import_torchvision().__name__}.models")
    for name, (published, _) in PUBLISHED.items():
        assert models.get_model_weights(name).IMAGENET1K_V1.meta["num_params"] == published


@pytest.mark.parametrize(("stages", "expected"), [(1, 84_170), (2, 314_954), (3, 1_235_274), (4, 4_910_922)])
def test_short_resnets_have_the_parameters_of_their_blocks(stages, expected):
    """Stem 3 x 64 x 49 + 128. A block from i to o: 9 i o + 9 o o + 4 o, and i o + 2 o of its shortcut."""
    total, into = 3 * 64 * 49 + 128, 64
    for stage in range(stages):
        out = 64 * 2**stage
        total += 9 * into * out + 9 * out * out + 4 * out + (into * out + 2 * out if into != out else 0)
        into = out
    with torch.device("meta"):
        model = short_resnet(SHAPE, CLASSES, blocks=[1] * stages)
    assert count(model) == total + CLASSES * (into + 1) == expected
    assert f"{expected:,}" in short_resnet.__doc__


def test_a_short_resnet_of_four_stages_is_torchvisions():
    resnet = importlib.import_module(f"{import_torchvision().__name__}.models.resnet")
    ours = short_resnet(SHAPE, CLASSES).eval()
    theirs = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES).eval()
    with torch.no_grad():
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(own)
    images = torch.randn(2, *SHAPE)
    assert torch.equal(ours(images), theirs(images))


def test_small_models_of_groups_have_the_parameters_of_their_docstrings():
    """cnn2 without padding: 32 (75 + 1), 64 (800 + 1), 512 (1,600 + 1) and 10 (512 + 1)."""
    assert count(cnn2(SHAPE, CLASSES, padding=0)) == 32 * 76 + 64 * 801 + 512 * 1601 + 10 * 513 == 878_538
    assert count(cnn2((1, 28, 28), 10, padding=0)) == 32 * 26 + 64 * 801 + 512 * 1025 + 10 * 513
    block = 2 * 2 * 64 + (64 + 1) * 192 + (64 + 1) * 64 + (64 + 1) * 256 + (256 + 1) * 64
    assert count(small_vit(SHAPE, CLASSES)) == 64 * 49 + 64 * 64 + 4 * block + 128 + 650 == 207_946
    assert "207,946" in small_vit.__doc__ and "878,538" in cnn2.__doc__


@pytest.mark.parametrize("group", [name for name in groups() if "small" in name or "txt-2" in name])
def test_models_of_a_group_have_features_of_one_length(group):
    shape = TextShape(6, 20) if "txt" in group else SHAPE
    for member in ClientModelsRecipe(group=group, features=24).members:
        model = make(member, shape)
        assert (model.feature_size, model.head.in_features) == (24, 24)


def test_features_of_the_wanted_length_are_not_projected_again():
    assert type(projected(SHAPE, CLASSES, base=Named(name="lenet5"), features=84).body[-1]) is nn.ReLU
    assert type(projected(SHAPE, CLASSES, base=Named(name="lenet5"), features=None).body[-1]) is nn.ReLU
    assert type(projected(SHAPE, CLASSES, base=Named(name="lenet5"), features=85).body[-1]) is nn.Linear


def test_htflibs_form_is_its_pooling():
    torch.manual_seed(0)
    model = projected(SHAPE, CLASSES, base=Named(name="lenet5"), features=7, form="adaptive_pool").eval()
    images = torch.randn(2, *SHAPE)
    own = model.body[:-1](images)
    assert torch.equal(model.features(images), nn.functional.adaptive_avg_pool1d(own, 7))


def test_a_base_without_a_last_linear_layer_is_refused(monkeypatch):
    class Mean(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(classes))

        def forward(self, images):
            return images.mean(dim=(1, 2, 3))[:, None] * self.scale

    monkeypatch.setattr("rayfed_kd.models.Mean", Mean, raising=False)
    with pytest.raises(
        RecipeError, match=r"model\.base: rayfed_kd.models:Mean does not end in a torch.nn.Linear"
    ):
        projected(SHAPE, CLASSES, base=Named(name="rayfed_kd.models:Mean"))
    with pytest.raises(RecipeError, match=r"model\.base\.name: 'lenet' is not known.*Did you mean lenet5"):
        projected(SHAPE, CLASSES, base=Named(name="lenet"))


def test_dropout_is_off_so_that_a_model_repeats():
    base = Named(name="torchvision:mobilenet_v2")
    model = projected(SHAPE, CLASSES, base=base, features=16).train()
    images = torch.randn(4, *SHAPE)
    assert torch.equal(model(images), model(images))


def test_dropout_within_torchs_layers_is_off_too(own_module):
    own_module("dropping", DROPPING)
    model = projected((3, 4, 4), CLASSES, base=Named(name="dropping:Dropping"), features=None).train()
    images = torch.randn(4, 3, 4, 4)
    assert torch.equal(model(images), model(images))


DROPPING = """
from rayfed_kd import model_builder
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(16, 2, 8, dropout=0.5, batch_first=True)
        self.memory = nn.LSTM(16, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.memory(self.attention(x.flatten(2)))[0][:, -1])

@model_builder
def Dropping(shape, classes):
    return Net(shape, classes)
"""


def test_batchnorm_stays_frozen_tied_and_without_parameters_as_it_was(own_module):
    own_module("normed", NORMED)
    body = projected(SHAPE, CLASSES, base=Named(name="normed:Normed"), features=None).body[0]
    assert isinstance(body.frozen, SteadyBatchNorm2d) and not body.frozen.weight.requires_grad
    assert body.frozen is body.again and body.bare.weight is None


NORMED = """
from rayfed_kd import model_builder
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.frozen = nn.BatchNorm2d(shape[0]).requires_grad_(False)
        self.bare = nn.BatchNorm2d(shape[0], affine=False)
        self.again, self.head = self.frozen, nn.Linear(shape[0] * 1024, classes)

    def forward(self, x):
        return self.head(self.again(self.bare(self.frozen(x))).flatten(1))

@model_builder
def Normed(shape, classes):
    return Net(shape, classes)
"""


def test_one_image_takes_running_statistics_where_maps_are_one_pixel():
    """Elsewhere BatchNorm is torch's."""
    model = projected(SHAPE, CLASSES, base=Named(name="short_resnet"), features=8).train()
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms and all(type(part) is SteadyBatchNorm2d for part in norms)
    assert torch.isfinite(model(torch.randn(1, *SHAPE))).all()
    norm, plain = SteadyBatchNorm2d(3), nn.BatchNorm2d(3)
    maps = torch.randn(1, 3, 1, 1)
    assert torch.equal(norm(maps), norm.eval()(maps))
    assert norm.num_batches_tracked == 0
    larger = torch.randn(2, 3, 4, 4)
    assert torch.equal(norm.train()(larger), plain(larger))
    assert torch.equal(norm.running_var, plain.running_var)


def test_weights_of_a_file_are_those_that_clients_begin_with(tmp_path):
    models = importlib.import_module(f"{import_torchvision().__name__}.models")
    stored = models.resnet18(num_classes=1000)
    torch.save(stored.state_dict(), tmp_path / "resnet18.pth")
    listed = ClientModelsRecipe(group="HtFE-img-2", weights={"resnet18": str(tmp_path / "resnet18.pth")})
    model = make(listed.members[1])
    assert torch.equal(model.body[0].weight, stored.conv1.weight)
    missing = ClientModelsRecipe(group="HtFE-img-2", weights={"resnet18": str(tmp_path / "none.pth")})
    with pytest.raises(RecipeError, match="no such file; nothing is downloaded"):
        make(missing.members[1])


SMALL = {
    **MADE_UP,
    "method": {"name": "fedproto"},
    "client_models": {"group": "small-4", "features": 16},
    "partition": {"name": "iid", "clients": 4},
    "rounds": 1,
}


HTFLIBS_FOUR = {
    "client_models": {"group": "HtFE-img-4"},
    "data": {"name": "synthetic", "samples": 44, "shape": [3, 32, 32], "classes": 3},
}


@pytest.mark.parametrize("changes", [{}, pytest.param(HTFLIBS_FOUR, marks=pytest.mark.slow)])
def test_a_group_runs_with_a_method_that_compares_features(changes):
    first, again = (run_in_process({**SMALL, **changes}) for _ in range(2))
    assert first.tables["clients"].equals(again.tables["clients"])
    assert all((first.models[name] == again.models[name]).all() for name in first.models)


def test_a_common_length_is_for_a_list_as_well():
    listed = {"models": [{"name": "lenet5"}, {"name": "mlp"}], "features": 12}
    recipe = {**SMALL, "client_models": listed}
    setting = prepare(recipe).setting
    assert {setting.builders[name]().feature_size for name in ("model", *setting.models_by_client)} == {12}
    with pytest.raises(
        RecipeError, match=r"features have lengths.* client_models\.features=N projects all to N"
    ):
        prepare({**recipe, "client_models": {"models": listed["models"]}})


def test_a_groups_model_that_does_not_fit_the_data_is_named_by_its_place():
    """The group has no keys of its models, which could be changed."""
    small = {**SMALL, "data": {"name": "digits", "fraction": 0.2}, "client_models": {"group": "HtFE-img-2"}}
    with pytest.raises(RecipeError) as refused:
        prepare(small)
    assert str(refused.value) == (
        "client_models.group: HtFE-img-2, model 1: cnn2 takes images of 16x16 or more, this data has 8x8"
    )
