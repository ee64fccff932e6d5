"""Flat optimisers against torch's own, and their explicit state."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.sections.learning_rates import RateSchedule
from rayfed_kd.recipe.sections.local_training import LocalRecipe, OptimizerRecipe
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer, clipped, faded, minimise

RECIPES = [
    (OptimizerRecipe(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (
        OptimizerRecipe(lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    (OptimizerRecipe(lr=0.1, momentum=0.5, nesterov=True), partial(SGD, lr=0.1, momentum=0.5, nesterov=True)),
    (OptimizerRecipe(name="adam", lr=0.01, weight_decay=0.1), partial(Adam, lr=0.01, weight_decay=0.1)),
    (
        OptimizerRecipe(name="adam", lr=0.01, betas=[0.5, 0.9], amsgrad=True),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9), amsgrad=True),
    ),
    (OptimizerRecipe(lr=0.1, momentum=0.9, dampening=0.5), partial(SGD, lr=0.1, momentum=0.9, dampening=0.5)),
    (OptimizerRecipe(name="adamw"), torch.optim.AdamW),
    (OptimizerRecipe(name="adadelta"), torch.optim.Adadelta),
    (OptimizerRecipe(name="adagrad", lr_decay=0.1), lambda p: torch.optim.Adagrad(p, lr_decay=0.1)),
    (OptimizerRecipe(name="adamax"), torch.optim.Adamax),
    (OptimizerRecipe(name="asgd", t0=1.0), lambda p: torch.optim.ASGD(p, t0=1.0)),
    (OptimizerRecipe(name="nadam"), torch.optim.NAdam),
    (OptimizerRecipe(name="radam", weight_decay=0.1), lambda p: torch.optim.RAdam(p, weight_decay=0.1)),
    (
        OptimizerRecipe(name="rmsprop", momentum=0.5, centered=True),
        lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    ),
    (OptimizerRecipe(name="rprop"), torch.optim.Rprop),
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
    assert steps == {"begun", "factor_at", "go_on_from", "minimise", "state"}


def test_a_module_that_a_loss_passes_through_keeps_its_gradients_and_parameters():
    through, trained = (FlatModule(nn.Linear(3, 3)).train() for _ in range(2))
    through.gradients.fill_(7.0)
    before = through.vector()
    Optimizer(OptimizerRecipe(lr=0.1), trained).minimise(through(trained(torch.randn(2, 3))).sum())
    assert (through.gradients == 7.0).all()
    assert torch.equal(through.vector(), before)


def test_steps_go_on_where_torchs_zero_grad_has_led_gradients_away():
    """As a loop of one's own leaves the module for the step after it, perhaps another client's."""
    for held in (FlatModule(nn.Linear(2, 1)).train(), FreeTensor(torch.zeros(3))):
        SGD(held.leaves).zero_grad()
        Optimizer(OptimizerRecipe(lr=1.0), held).minimise(sum(leaf.sum() for leaf in held.leaves))
        assert held.gradients.tolist() == [1, 1, 1]


def test_parameter_that_a_step_has_frozen_trains_in_the_next():
    (flat := FlatModule(nn.Linear(2, 1)).train()).leaves[0].requires_grad_(False)
    assert flat.train().leaves[0].requires_grad


def test_two_losses_are_not_minimised_as_their_sum():
    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'backward'"):
        minimise((torch.ones(()), torch.ones(())), Optimizer(OptimizerRecipe(), FreeTensor(torch.zeros(1))))


def test_clipping_bounds_the_norm_of_each_modules_gradient():
    flat = FlatModule(nn.Linear(3, 3)).train()
    before = flat.vector()
    Optimizer(OptimizerRecipe(lr=1.0), flat).minimise(1e3 * flat(torch.ones(2, 3)).sum(), clip=0.5)
    assert (flat.vector() - before).norm().item() == pytest.approx(0.5, rel=1e-4)


def test_an_optimisers_options_are_all_in_the_recipe_it_resolves_to():
    resolved = OptimizerRecipe(name="adamw").model_dump()
    assert (resolved["lr"], resolved["weight_decay"], resolved["betas"]) == (0.001, 0.01, [0.9, 0.999])
    assert OptimizerRecipe(**resolved) == OptimizerRecipe(name="adamw")


def local_optimizer(samples=40, **keys):
    """The optimiser that a context gives a client: plain SGD of rate 0.5, two epochs in batches of 10."""
    local = LocalRecipe(epochs=2, batch_size=10, optimizer=OptimizerRecipe(lr=0.5), **keys)
    return local.of_client(samples).optimizer


@pytest.mark.parametrize(
    ("own", "norm", "expected"),
    [
        ({}, 0.5, [0.3, 0.4]),
        ({"lr_schedule": {"epochs": {"name": "step", "every": 9, "factor": 0.1}}}, 0.5, [0.3, 0.4]),
        ({"clip": {"value": 2.0}}, 0.5, [2.0, 2.0]),
        ({}, None, [3.0, 4.0]),
        ({"clip": {"norm": 0.5}}, None, [0.3, 0.4]),
        ({"clip": {"value": 2.0}}, None, [2.0, 2.0]),
        ({"clip": {"norm": 9}}, None, [3.0, 4.0]),
    ],
)
def test_a_methods_clipping_holds_unless_the_recipe_clips_itself(own, norm, expected):
    flat = FlatModule(nn.Linear(2, 1, bias=False)).train()
    before = flat.vector()
    recipe = clipped(local_optimizer(**own), norm)
    Optimizer(recipe, flat).minimise(flat(torch.tensor([[3.0, 4.0]])).sum())
    assert torch.allclose(before - flat.vector(), 0.5 * torch.tensor(expected), atol=1e-5)


TORCHS = torch.optim.lr_scheduler
SCHEDULES = [
    ({"name": "step", "every": 3, "factor": 0.1}, lambda o: TORCHS.StepLR(o, 3, 0.1)),
    ({"name": "exponential", "factor": 0.9}, lambda o: TORCHS.ExponentialLR(o, 0.9)),
    ({"name": "cosine", "least": 0.2}, lambda o: TORCHS.CosineAnnealingLR(o, 8, 0.5 * 0.2)),
]


@pytest.mark.parametrize(("keys", "make"), SCHEDULES)
def test_learning_rates_fall_as_torchs_schedulers_have_them(keys, make):
    """A rate of 0.5 over 8 rounds, and over the 8 steps of a local training."""
    reference = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    scheduler, expected = make(reference), []
    for _ in range(8):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        scheduler.step()
    local = LocalRecipe(optimizer=OptimizerRecipe(lr=0.5), lr_schedule={"rounds": keys})
    assert [local.in_round(n, 8).optimizer.lr for n in range(1, 9)] == pytest.approx(expected)
    steps = Optimizer(local_optimizer(lr_schedule={"steps": keys}), FlatModule(nn.Linear(1, 1)))
    # Steps beyond those of the E passes have the last one's rate.
    assert [0.5 * steps.factor_at(n) for n in range(10)] == pytest.approx([*expected, *expected[-1:] * 2])


def test_an_epochs_schedule_holds_its_rate_for_an_epoch_and_counts_from_each_local_training():
    recipe = local_optimizer(35, lr_schedule={"epochs": {"name": "exponential", "factor": 0.1}})
    flat = FlatModule(nn.Linear(1, 1, bias=False)).train()
    for _ in range(2):
        optimizer, rates = Optimizer(recipe, flat), []
        for _ in range(8):
            before = flat.vector()
            optimizer.minimise(flat(torch.ones(1, 1)).sum())
            rates.append((before - flat.vector()).item())
        assert rates == pytest.approx([0.5] * 4 + [0.05] * 4, rel=1e-3)


def test_a_warm_up_rises_to_the_rate_in_equal_steps():
    schedule = RateSchedule(name="cosine", warmup=3)
    assert [schedule.at(n, 7) for n in range(8)] == pytest.approx(
        [1 / 4, 2 / 4, 3 / 4, *((1 + math.cos(math.pi * n / 4)) / 2 for n in (0, 1, 2, 3, 3))]
    )


def test_schedules_over_rounds_and_steps_multiply():
    falling = {"name": "exponential", "factor": 0.5}
    local = LocalRecipe(optimizer=OptimizerRecipe(lr=0.8), lr_schedule={"rounds": falling, "steps": falling})
    optimizer = Optimizer(local.in_round(2, 9).of_client(5).optimizer, FlatModule(nn.Linear(1, 1)))
    assert optimizer.rule.recipe.lr * optimizer.factor_at(1) == pytest.approx(0.2)
