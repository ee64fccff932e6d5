"""BatchNorm's statistics by hand, the pool, and what a generator that starts afresh is trained for."""

import pytest
import torch
from small_recipes import THREE_CLIENTS
from torch import nn

from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.data_free.synthesis import ImagePool, Synthesis, SynthesisOptions, Teachers, Terms

GENERATOR = {"name": "dafl_image", "width": 4, "latent": 8}
RECIPE = {**THREE_CLIENTS, "method": {"name": "dense", "generator": GENERATOR}}


@pytest.fixture
def ctx():
    torch.set_num_threads(1)
    return prepare(RECIPE).setting.server_context(1)


def options(**changes):
    return SynthesisOptions.model_validate({"generator": GENERATOR, "images": 6, **changes})


def normalised(mean, variance):
    """A teacher of two channels whose BatchNorm layer comes first."""
    layers = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    layers[0].running_mean.copy_(torch.tensor(mean))
    layers[0].running_var.copy_(torch.tensor(variance))
    return FlatModule(layers).freeze()


def test_gap_of_means_by_hand():
    """Off by means (0.3, 0.4) and no variances: 0.5; by a variance, 2. Two teachers: 1.25, or 2.5 in all.

    A third without BatchNorm counts as one that is off by nothing: 2.5 / 3.
    """
    images = torch.randn(5, 2, 2, 2, generator=torch.Generator().manual_seed(1))
    flat = images.transpose(0, 1).flatten(1)
    mean, variance = flat.mean(1), flat.var(1, correction=0)
    off = normalised((mean + torch.tensor([0.3, 0.4])).tolist(), variance.tolist())
    logits, gap = Teachers([off]).with_gap(images)
    assert gap.item() == pytest.approx(0.5, abs=1e-6)
    assert torch.equal(logits, off(images)[None])
    wide = normalised(mean.tolist(), (variance + torch.tensor([0.0, 2.0])).tolist())
    plain = FlatModule(nn.Sequential(nn.Flatten(), nn.Linear(8, 3))).freeze()
    assert Teachers([off, wide]).with_gap(images)[1].item() == pytest.approx(1.25, abs=1e-5)
    assert Teachers([off, wide]).with_gap(images, "sum")[1].item() == pytest.approx(2.5, abs=1e-5)
    assert Teachers([off, wide, plain]).with_gap(images)[1].item() == pytest.approx(2.5 / 3, abs=1e-5)


def test_gap_reaches_the_images_and_leaves_no_hooks_nor_statistics():
    teacher = normalised([1.0, 2.0], [1.0, 3.0])
    before = teacher.vector()
    images = torch.zeros(3, 2, 2, 2, requires_grad=True)
    Teachers([teacher]).with_gap(images)[1].backward()
    assert images.grad.abs().sum() > 0
    assert torch.equal(teacher.vector(), before)
    assert not teacher.module[0]._forward_pre_hooks


def test_teachers_without_batchnorm_have_no_gap():
    plain = FlatModule(nn.Sequential(nn.Flatten(), nn.Linear(8, 3))).freeze()
    assert Teachers([plain]).with_gap(torch.ones(2, 2, 2, 2))[1].item() == 0


def test_pool_keeps_eight_bits_a_pixel_and_passes_over_all_in_an_order_of_its_own(ctx):
    pool = ImagePool(ctx)
    pixels = torch.arange(7.0).view(7, 1, 1, 1).expand(7, *ctx.shape) / 10
    pool.add(ctx.normalise(pixels[:4]), torch.arange(4))
    pool.add(ctx.normalise(pixels[4:]), torch.arange(4, 7))
    passes = []
    for _ in range(2):
        batches = list(pool.batches(3))
        assert [len(labels) for _, labels in batches] == [3, 3, 1]
        images, labels = (torch.cat(list(column)) for column in zip(*batches, strict=True))
        expected = ctx.normalise((pixels[labels] * 255).round() / 255)
        torch.testing.assert_close(images, expected)
        passes.append(labels.tolist())
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(7))
    assert passes[0] != passes[1]
    assert pool.newest().labels.tolist() == [4, 5, 6]


def synthesis(ctx, **changes):
    generator = ctx.model(ctx.initial_vector("generator"), "generator")
    student = ctx.frozen_model(ctx.initial_vector())
    return Synthesis(Teachers([student]), student, generator, options(**changes), ctx)


def test_loss_is_the_weighted_sum_and_a_term_without_weight_is_not_computed(ctx):
    def never(*tensors):
        raise AssertionError

    terms = Terms(lambda logits: logits.sum(0), lambda said, labels: said.mean(), lambda a, b: (a + b).mean())
    images, labels = torch.ones(2, *ctx.shape), torch.zeros(2, dtype=torch.int64)
    logits = ctx.frozen_model(ctx.initial_vector())(images)
    found = synthesis(ctx, lambda_ce=0.5, lambda_adv=0.25).loss(images, labels, terms)
    assert found.item() == pytest.approx(float(0.5 * logits.mean() - 0.25 * 2 * logits.mean()), abs=1e-6)
    alone = synthesis(ctx, lambda_ce=0.5, lambda_adv=0.0).loss(images, labels, terms._replace(apart=never))
    assert alone.item() == pytest.approx(float(0.5 * logits.mean()), abs=1e-6)


def test_images_are_those_of_the_smallest_loss(ctx, monkeypatch):
    """Losses 3, 1, 2: the second step's images."""
    work, seen, losses = synthesis(ctx, generator_steps=3), [], iter([3.0, 1.0, 2.0])

    def loss(self, images, labels, terms):
        seen.append(images.detach().clone())
        return images.mean() * 0 + next(losses)

    monkeypatch.setattr(Synthesis, "loss", loss)
    images, labels = work.images(0, None)
    assert torch.equal(images, seen[1])
    assert labels.shape == (6,)


def test_every_draw_is_a_fresh_start_whatever_was_trained_before(ctx, monkeypatch):
    first = []

    def loss(self, images, labels, terms):
        first.append(images.detach())
        return images.mean()

    monkeypatch.setattr(Synthesis, "loss", loss)
    work = synthesis(ctx, generator_steps=1)
    for draw in (0, 1, 0):
        work.images(draw, None)
        start = work.generator.vector()
        fresh = ctx.redrawn_vector(draw, "generator")
        parameters = work.generator.num_parameters
        # One step of Adam moves each parameter by its rate at most.
        assert 0 < (start - fresh)[:parameters].abs().max() <= 0.0011
    assert not torch.allclose(first[0], first[1], atol=1e-3)


def test_released_initialisation_is_normal_with_a_deviation_of_a_fiftieth(ctx, monkeypatch):
    """Linear layers and convolutions N(0, 0.02), BatchNorm N(1, 0.02), biases 0; a fresh draw each time."""
    starts = []

    def loss(self, images, labels, terms):
        starts.append(self.generator.vector().clone())
        return images.mean()

    monkeypatch.setattr(Synthesis, "loss", loss)
    work = synthesis(ctx, generator_steps=1, initialisation="normal")
    work.images(0, None)
    work.images(1, None)
    assert not torch.equal(starts[0], starts[1])
    work.generator.load(starts[0])
    weights = {0.0: [], 1.0: []}
    for layer in work.generator.module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
            weights[float(isinstance(layer, nn.BatchNorm2d))].append(layer.weight.detach().flatten())
            assert not layer.bias.any()
    for mean, parts in weights.items():
        drawn = torch.cat(parts).double() - mean
        # Five standard errors of a mean and of a deviation, 0.02 / sqrt(n) and 0.02 / sqrt(2 n).
        assert drawn.mean().abs() < 5 * 0.02 / len(drawn) ** 0.5
        assert abs(drawn.square().mean().sqrt() - 0.02) < 5 * 0.02 / (2 * len(drawn)) ** 0.5


def test_option_of_the_sum_reaches_the_loss(ctx):
    terms = Terms(
        lambda logits: logits.sum(0), lambda said, labels: said.mean() * 0, lambda a, b: a.mean() * 0
    )
    images, labels = torch.randn(5, 2, 2, 2), torch.zeros(5, dtype=torch.int64)
    teachers = Teachers([normalised([1.0, 2.0], [1.0, 3.0]), normalised([0.0, 1.0], [2.0, 1.0])])
    found = {}
    for over in ("mean", "sum"):
        work = synthesis(ctx, bn_over=over, lambda_ce=0.0, lambda_adv=0.0)
        found[over] = Synthesis(teachers, work.student, work.generator, work.options, ctx).loss(
            images, labels, terms
        )
    assert found["sum"].item() == pytest.approx(2 * found["mean"].item())
    assert found["mean"] > 0
