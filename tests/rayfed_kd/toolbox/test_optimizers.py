"""Flat optimisers against torch's own, and their explicit state."""

import pytest
import torch
from torch import nn

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.schema import OptimizerRecipe
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer, faded, minimise

RECIPES = [
    (OptimizerRecipe(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (
        OptimizerRecipe(lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    (
        OptimizerRecipe(lr=0.1, momentum=0.5, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, nesterov=True),
    ),
    (
        OptimizerRecipe(name="adam", lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ),
]


def loss_of(model, images):
    return model(images).square().mean()


@pytest.mark.parametrize(("recipe", "make"), RECIPES)
def test_flat_steps_are_those_of_torchs_class(recipe, make):
    torch.manual_seed(0)
    plain, images = nn.Linear(4, 3), torch.randn(5, 4)
    flat = FlatModule(nn.Linear(4, 3)).train()
    flat.load(torch.cat([p.detach().flatten() for p in plain.parameters()]))
    reference, optimizer = make(plain.parameters()), Optimizer(recipe, flat)
    for _ in range(5):
        reference.zero_grad()
        loss_of(plain, images).backward()
        reference.step()
        optimizer.minimise(loss_of(flat, images))
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    assert torch.allclose(flat.vector(), expected, atol=1e-6)


@pytest.mark.parametrize(("recipe", "make"), RECIPES)
def test_kept_state_goes_on_as_if_never_interrupted(recipe, make):
    images = torch.randn(5, 4)
    start = torch.randn(15)

    def steps(flat, optimizer, count):
        for _ in range(count):
            optimizer.minimise(loss_of(flat, images))

    whole = FlatModule(nn.Linear(4, 3)).train()
    whole.load(start)
    steps(whole, Optimizer(recipe, whole), 4)
    halves = FlatModule(nn.Linear(4, 3)).train()
    halves.load(start)
    first = Optimizer(recipe, halves)
    steps(halves, first, 2)
    steps(halves, Optimizer(recipe, halves, first.state()), 2)
    assert torch.equal(whole.vector(), halves.vector())


def test_state_is_a_copy():
    flat = FlatModule(nn.Linear(1, 1)).train()
    optimizer = Optimizer(OptimizerRecipe(lr=0.1, momentum=0.9), flat)
    kept = optimizer.state()
    optimizer.minimise(flat(torch.ones(1, 1)).sum())
    assert torch.count_nonzero(kept["momentum"]) == 0


def test_free_tensor_takes_the_steps_of_torchs_adam_with_betas_of_its_own():
    start = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(4))
    wanted = torch.ones_like(start)
    plain = start.clone().requires_grad_()
    reference = torch.optim.Adam([plain], lr=0.01, betas=(0.5, 0.9))
    free = FreeTensor(start)
    optimizer = Optimizer(OptimizerRecipe(name="adam", lr=0.01), free, betas=(0.5, 0.9))
    for _ in range(5):
        reference.zero_grad()
        (plain - wanted).pow(4).sum().backward()
        reference.step()
        optimizer.minimise((free.value - wanted).pow(4).sum())
    torch.testing.assert_close(free.trainable, plain.detach())
    assert free.value.data_ptr() == free.trainable.data_ptr()
    assert not torch.equal(free.trainable, start)


def test_faded_recipe_has_a_smaller_rate_and_is_otherwise_the_same():
    recipe = OptimizerRecipe(name="adam", lr=0.5, weight_decay=0.1)
    assert faded(recipe, 0.25) == OptimizerRecipe(name="adam", lr=0.125, weight_decay=0.1)
    assert recipe.lr == 0.5


@pytest.mark.parametrize(("recipe", "make"), RECIPES)
def test_step_with_a_factor_is_a_step_of_a_smaller_rate(recipe, make):
    start, images = torch.randn(15), torch.randn(5, 4)
    ends = []
    for rate, factor in ((recipe, 0.25), (faded(recipe, 0.25), 1.0)):
        flat = FlatModule(nn.Linear(4, 3)).train()
        flat.load(start)
        optimizer = Optimizer(rate, flat)
        for _ in range(3):
            optimizer.minimise(loss_of(flat, images), factor=factor)
        ends.append(flat.vector())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], start)


def test_gradients_that_another_loss_has_left_are_not_stepped_on():
    """Of two optimisers on one loss, whose modules hold gradients already: as if they held none."""
    torch.manual_seed(2)
    images, ends = torch.randn(5, 4), []
    for left_over in (False, True):
        first, second = (FlatModule(nn.Linear(4, 4)).train() for _ in range(2))
        for place, module in enumerate((first, second)):
            module.load(torch.linspace(-1, 1, 20) + place)
            module.gradients.fill_(1e6 * left_over)
        recipe = OptimizerRecipe(lr=0.1, momentum=0.9)
        minimise(second(first(images)).square().mean(), Optimizer(recipe, first), Optimizer(recipe, second))
        ends += [first.vector(), second.vector()]
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[3])


def test_an_optimiser_has_no_step_without_a_loss():
    steps = {name for name in vars(Optimizer) if not name.startswith("_")}
    assert steps == {"begun", "go_on_from", "minimise", "state"}


def test_a_module_that_a_loss_passes_through_keeps_its_gradients_and_parameters():
    through, trained = (FlatModule(nn.Linear(3, 3)).train() for _ in range(2))
    through.gradients.fill_(7.0)
    before = through.vector()
    Optimizer(OptimizerRecipe(lr=0.1), trained).minimise(through(trained(torch.randn(2, 3))).sum())
    assert (through.gradients == 7.0).all()
    assert torch.equal(through.vector(), before)


def test_clipping_bounds_the_norm_of_each_modules_gradient():
    flat = FlatModule(nn.Linear(3, 3)).train()
    before = flat.vector()
    Optimizer(OptimizerRecipe(lr=1.0), flat).minimise(1e3 * flat(torch.ones(2, 3)).sum(), clip=0.5)
    assert (flat.vector() - before).norm().item() == pytest.approx(0.5, rel=1e-4)
