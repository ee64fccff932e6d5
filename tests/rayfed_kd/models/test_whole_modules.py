"""Modules that were not written for us: torchvision's by name, any nn.Module; their features and maps."""

import pytest
import torch
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models import CLASSIFIERS
from rayfed_kd.models.base import last_maps
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.whole_modules import HEAD, ChainClassifier, features_of, tried_head
from rayfed_kd.recipe.torchvision_import import import_torchvision


class Plain(nn.Module):
    """Convolution and two layers; what it calls `features` are maps."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3)
        self.side = nn.Linear(144, 144)
        self.last = nn.Linear(144, classes)

    def forward(self, images):
        hidden = self.features(images).flatten(1)
        return self.last(hidden + self.side(hidden))

    def features(self, images):
        return self.conv(images).relu()


class NoLinearEnd(Plain):
    def forward(self, images):
        return super().forward(images).log_softmax(dim=1)


class Pair(Plain):
    def forward(self, images):
        return super().forward(images), images


def built(name, shape=(3, 32, 32), classes=7, **options):
    make = CLASSIFIERS.find(name, "model.name")
    torch.manual_seed(0)
    return make(shape, classes, **options)


def test_features_of_a_plain_module_are_the_input_of_its_last_linear_layer():
    module = Plain((1, 8, 8), 10).eval()
    images = torch.randn(3, 1, 8, 8)
    setattr(module, HEAD, tried_head(module, (1, 8, 8), 10, "plain"))
    assert getattr(module, HEAD) == "last"
    flat = FlatModule(module)
    assert flat.features(images).shape == (3, 144)
    assert torch.equal(flat.classify(flat.features(images)), flat(images))
    assert not module.last._forward_pre_hooks


def test_a_module_that_does_not_end_in_a_linear_layer_has_no_features():
    module = NoLinearEnd((1, 8, 8), 10)
    assert tried_head(module, (1, 8, 8), 10, "plain") is None
    with pytest.raises(
        RecipeError, match=r"model.name: a NoLinearEnd has no features: its output is not that of"
    ):
        features_of(module, torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (Plain, (1, 9, 9), r"net does not take samples of 1x9x9: RuntimeError: mat1 and mat2"),
        (Plain, (8, 8), r"net does not take samples of 8x8: "),
        (Pair, (1, 8, 8), r"net gives tuple of 2 samples of 1x8x8; expected logits \(2, 10\)"),
        (lambda shape, classes: Plain(shape, 9), (1, 8, 8), r"net gives \(2, 9\) of 2 samples of 1x8x8"),
    ],
)
def test_a_module_that_does_not_fit_is_told(make, shape, message):
    with pytest.raises(RecipeError, match=message):
        tried_head(make((1, 8, 8), 10), shape, 10, "net")


def test_a_trial_changes_neither_the_module_nor_the_random_stream():
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))
    before, state = [b.clone() for b in module.buffers()], torch.get_rng_state()
    tried_head(module, (1, 8, 8), 10, "net")
    assert all(map(torch.equal, before, module.buffers()))
    assert torch.equal(state, torch.get_rng_state())
    assert module.training


def test_torchvisions_resnet_has_its_classes_channels_features_and_maps():
    model = built("torchvision:resnet18", (1, 32, 32))
    assert isinstance(model, ChainClassifier)
    assert last_maps(model, (1, 32, 32)) == (10, (256, 2, 2))
    images = torch.randn(2, 1, 32, 32)
    model.eval()
    assert torch.equal(model.classify(model.features(images)), model(images))
    assert model(images).shape == (2, 7)
    assert model.features(images).shape == (2, 512)
    # The published 11,689,512 less 3 - 1 channels of 64 7x7 kernels, and 7 classes instead of 1,000.
    assert sum(p.numel() for p in model.parameters()) == 11_689_512 - 2 * 64 * 49 - 993 * 513


def test_a_file_of_weights_fills_all_but_a_last_layer_of_other_classes(tmp_path):
    import_torchvision()
    from torchvision import models

    torch.manual_seed(1)
    theirs = models.get_model("shufflenet_v2_x0_5", weights=None)
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    model = built("torchvision:shufflenet_v2_x0_5", (1, 32, 32), weights=str(tmp_path / "w.pth")).eval()
    grey = torch.rand(2, 1, 32, 32)
    theirs.fc = nn.Identity()
    expected = theirs.eval()(grey.expand(2, 3, 32, 32))
    assert torch.allclose(model.features(grey), expected, atol=1e-5)
    torch.save(model.state_dict(), tmp_path / "w.pth")  # named as in a file that `export` writes
    again = built("torchvision:shufflenet_v2_x0_5", (1, 32, 32), weights=str(tmp_path / "w.pth")).eval()
    assert torch.equal(again(grey), model(grey))


def test_weights_that_are_not_there_or_of_another_model_are_told(tmp_path):
    name = "torchvision:shufflenet_v2_x0_5"
    with pytest.raises(RecipeError, match=r"no such file; nothing is downloaded"):
        built(name, weights=str(tmp_path / "none.pth"))
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(RecipeError, match=r"it has no conv1.0.weight; expected the weights of this model"):
        built(name, weights=str(tmp_path / "w.pth"))
    torch.save(built(name).state_dict() | {"stage9.weight": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(RecipeError, match=r"no stage9.weight; expected the weights of this model"):
        built(name, weights=str(tmp_path / "w.pth"))
    (tmp_path / "w.pth").write_text("no weights")
    with pytest.raises(RecipeError, match=r"w.pth': not readable"):
        built(name, weights=str(tmp_path / "w.pth"))
