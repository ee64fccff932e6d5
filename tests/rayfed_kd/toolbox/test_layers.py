"""Classifiers cut into layers: names, the forward pass, the vector, who is trained."""

import pytest
import torch
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models import CLASSIFIERS
from rayfed_kd.models.base import Classifier
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.layers import Layers, between, from_, lowest_layer, up_to
from rayfed_kd.toolbox.optimizers import Optimizer, minimise

SIX = ("C1", "C2", "C3", "F1", "F2", "F3")


def flat(name, shape=(3, 32, 32), classes=10, **options):
    torch.manual_seed(0)
    return FlatModule(load_object(CLASSIFIERS[name], "model")(shape, classes, **options))


def normed() -> FlatModule:
    """C1 with BatchNorm, then F1: 2 * 9 + 2 parameters and 2 + 2 of the norm; 3 * (2 * 16) + 3."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    return FlatModule(Classifier(body, nn.Linear(32, 3), 32))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m1", SIX),
        ("m2", SIX),
        ("lenet5", ("C1", "C2", "F1", "F2", "F3")),
        ("resnet8", ("C1", "C2", "C3", "C4", "F1")),
        ("simple_cnn", ("C1", "C2", "F1", "F2", "F3", "F4", "F5")),
        ("cnn2", ("C1", "C2", "F1", "F2")),
        ("mlp", ("F1", "F2")),
        ("dense", ("F1", "F2", "F3")),
    ],
)
def test_every_classifier_has_named_layers(name, expected):
    assert Layers(flat(name)).names == expected


@pytest.mark.parametrize(
    ("layer", "numbers"), [(1, 8 * 16 * 16), (3, 512), (4, 32), (5, 16), (6, 10)], ids=str
)
def test_outputs_of_m1s_layers_have_the_published_sizes(layer, numbers):
    """Methods, section 5: H_1 2,048 floats at 32x32, H_3 512, H_4 32, H_5 16, H_6 10."""
    model = flat("m1")
    assert up_to(layer, model, torch.zeros(2, 3, 32, 32)).numel() == 2 * numbers


@pytest.mark.parametrize("name", ["m1", "resnet8", "bottleneck_resnet", "mlp"])
def test_cut_anywhere_the_whole_is_the_model(name):
    model = flat(name).freeze()
    layers, images = Layers(model), torch.randn(4, 3, 32, 32)
    for layer in range(len(layers) + 1):
        hidden = up_to(layer, model, images)
        assert torch.equal(from_(layer, model, hidden), model(images))
        if layer:
            assert torch.equal(between(1, layer, model, up_to(1, model, images)), hidden)
    model.autocast = torch.bfloat16
    assert torch.equal(between(0, len(layers), model, images), model(images))


def test_vector_of_layers_by_hand():
    """C1: 20 parameters, BatchNorm 4, and 2 + 2 of its buffers; F1: 99. The vector: 123 and 4."""
    model = normed()
    layers, vector = Layers(model), torch.arange(127.0)
    assert layers.first(vector, 1).tolist() == [*range(24), *range(123, 127)]
    assert layers.rest(vector, 1).tolist() == [*range(24, 123)]
    assert layers.parameters(0, 1) == slice(0, 24)
    assert layers.parameters(1, 2) == slice(24, 123)
    assert layers.first(vector, 0).numel() == layers.rest(vector, 2).numel() == 0


@pytest.mark.parametrize("name", ["m1", "bottleneck_resnet"])
def test_parts_put_together_are_the_vector(name):
    model = flat(name)
    layers, vector, other = Layers(model), model.vector(), torch.zeros(model.num_elements)
    for layer in range(len(layers) + 1):
        first = layers.with_first(other, layer, layers.first(vector, layer))
        assert torch.equal(layers.with_rest(first, layer, layers.rest(vector, layer)), vector)
        assert torch.equal(layers.rest(first, layer), layers.rest(other, layer))
    assert other.count_nonzero() == 0


def test_optimiser_of_a_part_moves_no_other_parameter():
    """Momentum and decay would move a parameter whose gradient is merely zero."""
    model = flat("m1").train()
    layers, before = Layers(model), model.vector()
    recipe = OptimizerRecipe(lr=0.1, momentum=0.5, weight_decay=0.01)
    optimizer = Optimizer(recipe, model, part=layers.parameters(3, 6))
    for _ in range(3):
        optimizer.minimise(model(torch.randn(4, 3, 32, 32)).square().sum())
    assert torch.equal(layers.first(model.vector(), 3), layers.first(before, 3))
    assert not torch.equal(layers.rest(model.vector(), 3), layers.rest(before, 3))


def test_optimiser_of_all_parts_is_the_whole_optimiser():
    for name in ("sgd", "adam"):
        vectors = []
        for parts in ([slice(None)], [slice(0, 24), slice(24, 123)]):
            model = normed().train()
            recipe = OptimizerRecipe(name=name, lr=0.1, weight_decay=0.01)
            optimizers = [Optimizer(recipe, model, part=part) for part in parts]
            for step in range(3):
                torch.manual_seed(step)
                minimise(model(torch.randn(5, 1, 4, 4)).square().sum(), *optimizers)
            vectors.append(model.vector())
        assert torch.equal(*vectors)


def test_statistics_of_layers_in_eval_mode_stay():
    model = normed().train()
    layers, before = Layers(model), model.vector()
    layers.train_only(1, len(layers), model)
    model(torch.randn(5, 1, 4, 4))
    assert torch.equal(model.vector(), before)
    layers.train_only(0, 1, model)
    model(torch.randn(5, 1, 4, 4))
    assert not torch.equal(model.vector(), before)


def test_module_that_is_no_classifier_has_no_layers():
    with pytest.raises(
        RecipeError, match=r"model.name: a Linear has no named layers.*torchvision:resnet18.*Classifier"
    ):
        Layers(FlatModule(nn.Linear(2, 1)))


def test_layers_out_of_order_are_refused():
    class Reversed(Classifier):
        @property
        def stages(self):
            return [self.head, self.body]

    with pytest.raises(RecipeError, match="does not hold its layers in their order"):
        Layers(FlatModule(Reversed(nn.Linear(2, 2), nn.Linear(2, 2), 2)))


@pytest.mark.parametrize(
    ("left_out", "expected"), [([], 6), (["F3"], 5), (["F1", "F2", "F3"], 3), (list(SIX), 0)]
)
def test_layers_that_are_left(left_out, expected):
    assert lowest_layer(SIX, left_out, "method.personal") == expected


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        (["F4"], "method.personal: the model has no layer F4; it has C1, C2, C3, F1, F2, F3"),
        (["F1", "F3"], "F1, F3 are not the model's last layers"),
        (["F3", "F2"], "F3, F2 are not the model's last layers"),
        (["F1", "F2"], "F1, F2 are not the model's last layers"),
    ],
)
def test_layers_that_cannot_be_left_out(left_out, message):
    with pytest.raises(RecipeError) as caught:
        lowest_layer(SIX, left_out, "method.personal")
    assert message in str(caught.value)


def test_a_cut_between_layers_that_share_a_tensor_is_refused():
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    model = FlatModule(Classifier(nn.Sequential(one, nn.ReLU(), other), nn.Linear(4, 2), 4))
    layers = Layers(model)
    # 16 weights once, 4 + 4 biases, then 8 + 2 of the head.
    assert layers.first(model.vector(), 2).numel() == 24
    with pytest.raises(RecipeError, match="its layers F1 and F2 share a tensor"):
        layers.first(model.vector(), 1)
