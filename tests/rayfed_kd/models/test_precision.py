"""Models in bfloat16 over weights in float32: how far gradients are from float32's, and what stays exact."""

import math

import pytest
import torch
from classifier_samples import SPACES, samples_of, space_of
from small_recipes import THREE_CLIENTS
from torch import nn

import rayfed_kd
from rayfed_kd.errors import RecipeError
from rayfed_kd.models import CLASSIFIERS, GENERATORS
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.recipe.registry import load_object
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

# bfloat16 has 8 binary digits that count, so rounding changes a number by at most half of 2^-7 of it.
U = 2.0**-8


def gradients(module, images, labels, autocast):
    """The gradient of the mean cross entropy, as an optimiser finds it."""
    module.autocast = autocast
    module.zero_gradients()
    torch.autograd.backward(cross_entropy(module(images), labels), inputs=module.leaves)
    return module.gradients.clone()


def test_gradients_of_a_linear_model_are_within_what_rounding_allows():
    """Every number that bfloat16 rounds, one after the other, bounds the error of each gradient.

    Logits z = W x + b: x, W, b and the sum are rounded, so z changes by d at most, which is (1 + u)^4 - 1 of
    sum |W| |x| + |b|. Log-softmax then changes by 2 d at most, and p by a factor of e^(2 d). The gradient
    g = (p - y) / n is rounded before it goes back, and so are x and the products' sum: (1 + u)^3. Sums in
    float32 are exact beside that.
    """
    torch.manual_seed(3)
    module = FlatModule(nn.Linear(64, 10)).train()
    images, labels = torch.rand(32, 64), torch.randint(0, 10, (32,))
    weight, bias = module.parts(module.trainable)
    with torch.no_grad():
        size = images.abs() @ weight.abs().T + bias.abs()
        d = ((1 + U) ** 4 - 1) * size.amax(dim=1, keepdim=True)
        p = module(images).softmax(dim=1)
        g = (p - nn.functional.one_hot(labels, 10)) / 32
        wrong = p * torch.expm1(2 * d) / 32
        back = wrong * (1 + U) ** 3 + g.abs() * ((1 + U) ** 3 - 1)
        bound = torch.cat([(back.T @ images).flatten(), back.sum(dim=0)])
    exact = gradients(module, images, labels, None)
    rounded = gradients(module, images, labels, torch.bfloat16)
    error = (rounded - exact).abs()
    assert error.max() > 0
    assert (error <= bound + 1e-7).all()
    assert bound.norm() < exact.norm()  # the bound is no triviality


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gradients_of_every_classifier_point_where_those_of_float32_do(name):
    torch.manual_seed(1)
    module = FlatModule(load_object(CLASSIFIERS[name], "model")(space_of(name), 10)).train()
    for part in module.submodules:
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    images, labels = samples_of(name, 16), torch.randint(0, 10, (16,))
    exact = gradients(module, images, labels, None)
    rounded = gradients(module, images, labels, torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert torch.isfinite(rounded).all()
    assert not rounded.equal(exact)
    assert torch.cosine_similarity(rounded, exact, dim=0) > 0.9


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_computes_in_bfloat16(name):
    torch.manual_seed(1)
    build = load_object(GENERATORS[name], "model")
    generator = FlatModule(build(SPACES.get(name, (1, 28, 28)), 10)).train()
    inputs = [torch.randn(4, generator.latent)]
    if generator.module.conditional:
        inputs.append(torch.arange(4))
    exact = generator(*inputs)
    generator.autocast = torch.bfloat16
    rounded = generator(*inputs)
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() < 0.1 * exact.norm()
    assert torch.isfinite(torch.autograd.grad(rounded.sum(), generator.leaves[-1])[0]).all()


def test_parts_of_a_model_compute_in_bfloat16_too():
    module = FlatModule(load_object(CLASSIFIERS["lenet5"], "model")((1, 28, 28), 10)).freeze()
    images = torch.randn(4, 1, 28, 28)
    exact = module.features(images), module.between(0, 2, images)
    module.autocast = torch.bfloat16
    parts = module.features(images), module.between(0, 2, images)
    assert all(part.dtype == torch.float32 for part in parts)
    assert not any(part.equal(other) for part, other in zip(parts, exact, strict=True))
    assert module.classify(parts[0]).equal(module(images))
    assert module.between(2, None, parts[1]).equal(module(images))


def test_weights_and_moments_stay_in_float32():
    """Steps of 2^-12 are lost beside a weight of 1 in bfloat16, whose next number is 1 - 2^-8."""
    module = FlatModule(nn.Linear(1, 1, bias=False)).train()
    module.load(torch.ones(1))
    module.autocast = torch.bfloat16
    optimizer = Optimizer(OptimizerRecipe(lr=2.0**-12, momentum=0.5), module)
    images = torch.ones(1, 1)
    for _ in range(2):
        optimizer.minimise(module(images).sum())
    # Gradient 1 each time: the momentum is 1, then 1.5.
    assert module.vector().tolist() == [1 - 2.5 * 2.0**-12]
    assert all(moment.dtype == torch.float32 for moment in optimizer.state().values())


def test_a_lent_module_computes_as_this_loan_says():
    pool = ModulePool({"model": lambda: nn.Linear(64, 10)}, seed=1)
    start, images = pool.initial_vector("model"), torch.randn(2, 64)
    rounded = pool.lend("model", start, torch.bfloat16)(images)
    pool.take_back()
    exact = pool.lend("model", start)(images)
    assert not rounded.equal(exact)
    assert rounded.equal(rounded.bfloat16().float())
    assert not exact.equal(exact.bfloat16().float())


class Scatters(nn.Module):
    """Copies logits into float32: torch refuses numbers of another type there."""

    def __init__(self, shape, classes):
        super().__init__()
        self.head, self.classes = nn.Linear(math.prod(shape), classes), classes

    def forward(self, images):
        logits = self.head(images.flatten(1))
        places = torch.arange(self.classes).expand(len(images), -1)
        return torch.zeros(len(images), self.classes).scatter(1, places, logits)


def test_a_model_that_cannot_be_trained_in_bfloat16_is_refused_before_the_first_round():
    recipe = {**THREE_CLIENTS, "model": {"name": f"{__name__}:Scatters"}}
    rayfed_kd.prepare(recipe)
    with pytest.raises(RecipeError, match=r"Scatters with local\.precision=bf16 cannot be trained on"):
        rayfed_kd.prepare(recipe, ["local.precision=bf16"])
