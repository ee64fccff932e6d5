"""A module as one flat vector."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.models.flat_module import FlatModule, initial_vector
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.models.vectors import weighted_mean, weighted_sum


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))


def test_vector_counts_parameters_and_buffers():
    """Conv 2*3*9 + 3, BN 3 + 3, linear 48 + 4 = 115; buffers 3 + 3, without the counter."""
    flat = FlatModule(small())
    assert (flat.num_parameters, flat.num_buffers, flat.num_elements) == (115, 6, 121)


def test_loading_a_vector_gives_it_back():
    flat = FlatModule(small())
    vector = torch.arange(121, dtype=torch.float32)
    flat.load(vector)
    assert torch.equal(flat.vector(), vector)


def test_gradients_lie_in_one_buffer():
    flat = FlatModule(nn.Linear(2, 1)).train()
    flat(torch.tensor([[3.0, 5.0]])).sum().backward()
    assert flat.gradients.tolist() == [3.0, 5.0, 1.0]
    assert flat.module.weight.grad.data_ptr() == flat.gradients.data_ptr()


def test_batch_statistics_reach_the_vector():
    """Momentum 0.1, batch mean 10: running mean 0.1 * 10 = 1."""
    flat = FlatModule(nn.BatchNorm1d(1)).train()
    flat.load(torch.tensor([1.0, 0.0, 0.0, 1.0]))
    flat(torch.tensor([[9.0], [11.0]]))
    assert flat.vector()[2].item() == pytest.approx(1.0)


def test_a_counter_of_batches_begins_anew_with_every_load():
    flat = FlatModule(nn.BatchNorm1d(1)).train()
    flat(torch.tensor([[9.0], [11.0]]))
    assert flat.module.num_batches_tracked.item() == 1
    flat.load(flat.vector())
    assert flat.module.num_batches_tracked.item() == 0


def test_frozen_parameters_have_no_gradient_but_inputs_do():
    flat = FlatModule(nn.Linear(2, 1)).freeze()
    inputs = torch.ones(1, 2, requires_grad=True)
    flat(inputs).sum().backward()
    assert inputs.grad is not None
    assert torch.count_nonzero(flat.gradients) == 0


def test_vector_of_wrong_length_is_refused():
    with pytest.raises(ValueError, match=r"shape \[3\], expected \[121\]"):
        FlatModule(small()).load(torch.zeros(3))


def test_half_precision_parameters_are_refused():
    with pytest.raises(RecipeError, match=r"weight is torch\.float16; models are float32 only"):
        FlatModule(nn.Linear(1, 1).half())


def test_initial_vector_leaves_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = initial_vector(small, 1, "model")
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, initial_vector(small, 1, "model"))
    assert not torch.equal(first, initial_vector(small, 2, "model"))


def test_weighted_mean_by_hand():
    """n = 10, 30, 60 and w = 1, 2, 4: (10 + 60 + 240) / 100 = 3.1 (baselines: FedAvg)."""
    vectors = [torch.tensor([v]) for v in (1.0, 2.0, 4.0)]
    assert weighted_mean(vectors, [10, 30, 60]).item() == pytest.approx(3.1)


def test_sum_does_not_lose_small_terms():
    """float32 would drop the ones beside 2^25."""
    vectors = [torch.tensor([2.0**25]), torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([-(2.0**25)])]
    assert weighted_sum(vectors, [1, 1, 1, 1]).item() == 2.0


def test_no_vectors_have_no_mean():
    with pytest.raises(ValueError, match="at least one"):
        weighted_mean([], [])


@pytest.mark.parametrize(
    ("mode", "training", "output", "running"),
    [
        ("keeping_statistics", True, [-1.0, 1.0], [10.0, 4.0]),
        ("using_batch_statistics", False, [-1.0, 1.0], [10.0, 4.0]),
        ("using_running_statistics", True, [-4.5, -3.5], [10.0, 4.0]),
        (None, True, [-1.0, 1.0], [9.2, 3.8]),
    ],
)
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_statistics_of_the_batch_or_of_the_past(norm, mode, training, output, running):
    """Values 1, 3: mean 2, variance 1 (2 unbiased). Running mean 10, variance 4: (1 - 10) / 2, (3 - 10) / 2.

    Momentum 0.1 where the past follows: 0.9 x 10 + 0.1 x 2 = 9.2 and 0.9 x 4 + 0.1 x 2 = 3.8.
    """
    flat = FlatModule(norm(1, affine=False, eps=1e-12, track_running_stats=True))
    flat.load(torch.tensor([10.0, 4.0]))
    flat.train() if training else flat.freeze()
    with getattr(flat, mode)() if mode else nullcontext():
        shown = flat(torch.tensor([[[1.0, 3.0]]]))
    assert shown.flatten().tolist() == pytest.approx(output)
    assert flat.vector()[:2].tolist() == pytest.approx(running)
    assert flat.module.training is training
    assert flat.module.track_running_stats


def test_frozen_parameters_and_buffers_that_stay_are_beside_the_vector():
    module = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    module.register_buffer("table", torch.ones(3, dtype=torch.float64))
    flat, before = FlatModule(module), module[0].weight.clone()
    assert flat.num_elements == 3
    flat.load(torch.zeros(3))
    assert not flat.train().module[0].weight.requires_grad
    assert torch.equal(module[0].weight, before)
    assert module.table.dtype == torch.float64


def test_a_constant_that_changes_after_all_stops_the_step():
    module = nn.Linear(1, 1)
    module.bias.requires_grad_(False)
    flat = FlatModule(module)
    module.bias.add_(1.0)
    with pytest.raises(RunError, match="bias: it changes"):
        flat.vector()


def test_a_buffer_that_is_assigned_anew_comes_back_into_its_place():
    module = nn.Linear(1, 1)
    module.register_buffer("mean", torch.zeros(2))
    flat = FlatModule(module)
    module.mean = torch.tensor([3.0, 4.0])
    assert flat.vector()[2:].tolist() == [3.0, 4.0]
    flat.load(torch.ones(4))
    assert module.mean.tolist() == [1.0, 1.0]


def test_what_a_step_leaves_in_a_module_is_gone_where_it_is_lent_next():
    """A momentum, a hook, another layer, a forward of its own: the next client's result was another."""
    pool = ModulePool({"net": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))}, 1)
    vector, inputs = pool.initial_vector("net"), torch.arange(12.0).view(4, 3)

    def trained():
        lent = pool.lend("net", vector).train()
        outputs = lent(inputs)
        pool.take_back()
        return lent, outputs, lent.vector()

    lent, *expected = trained()
    lent.module[0].momentum = 0.9
    lent.module[0].register_forward_hook(lambda layer, given, output: 2 * output)
    lent.module[1] = nn.Identity()
    lent.module.forward = torch.sin
    again, *found = trained()
    assert again is lent
    assert all(map(torch.equal, found, expected))
