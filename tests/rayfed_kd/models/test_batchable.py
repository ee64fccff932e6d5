"""Each module type on the list trains as one program of clients as it trains by itself, up to rounding."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rayfed_kd.cluster.engine.batching.batched_steps import BatchedSteps
from rayfed_kd.models.attention import AttentionBlock, MeanOfPlaces, Patches
from rayfed_kd.models.base import Shortcut
from rayfed_kd.models.batchable import TYPES, unbatchable
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.generators import Growing, conditional_image, dafl_image, dense_feature, fedcg_feature
from rayfed_kd.models.mlp import mlp, row_mlp
from rayfed_kd.models.projected import SteadyBatchNorm2d
from rayfed_kd.models.resnet import BasicBlock, Bottleneck
from rayfed_kd.models.text import fast_text, text_transformer, word_bag
from rayfed_kd.recipe.sample_shapes import RowShape, TextShape
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.local_training import LocalSteps, Loss, Phase
from rayfed_kd.toolbox.optimizers import Optimizer

CLIENTS, STEPS, ROWS = 3, 4, 5
CLOSE = 1e-5
IMAGES, MAPS, ROW, WORDS = (2, 8, 8), (16, 5, 5), (12,), TextShape(6, 11)
CODES = RowShape(3, (4, 7))


def chain(*layers):
    """Each call has layers of its own."""
    return nn.Sequential(*copy.deepcopy(layers))


def images(*layers):
    """Between a convolution and a linear layer, [batch, 4, 8, 8] -> [batch, ...]."""
    body = chain(nn.Conv2d(2, 4, 3, padding=1), *layers, nn.Flatten())
    features = copy.deepcopy(body)(torch.zeros(2, *IMAGES)).shape[1]
    return lambda: chain(*body, nn.Linear(features, 3))


def activation(layer):
    return lambda: chain(nn.Linear(12, 8), layer, nn.Linear(8, 3))


# Name -> (what makes the module, what one sample of its input is).
MODULES = {
    "ReLU": (activation(nn.ReLU()), ROW),
    "ReLU in place": (activation(nn.ReLU(inplace=True)), ROW),
    "LeakyReLU": (activation(nn.LeakyReLU(0.2)), ROW),
    "GELU": (activation(nn.GELU()), ROW),
    "GELU of tanh": (activation(nn.GELU(approximate="tanh")), ROW),
    "SiLU": (activation(nn.SiLU()), ROW),
    "ELU": (activation(nn.ELU()), ROW),
    "Tanh": (activation(nn.Tanh()), ROW),
    "Sigmoid": (activation(nn.Sigmoid()), ROW),
    "Identity": (activation(nn.Identity()), ROW),
    "Linear without bias": (lambda: chain(nn.Linear(12, 3, bias=False)), ROW),
    "LayerNorm": (activation(nn.LayerNorm(8)), ROW),
    "LayerNorm without weights": (activation(nn.LayerNorm(8, elementwise_affine=False)), ROW),
    "BatchNorm1d": (activation(nn.BatchNorm1d(8)), ROW),
    "BatchNorm1d without weights": (activation(nn.BatchNorm1d(8, affine=False)), ROW),
    "BatchNorm1d without statistics": (activation(nn.BatchNorm1d(8, track_running_stats=False)), ROW),
    "AdaptiveAvgPool1d": (activation(nn.AdaptiveAvgPool1d(8)), ROW),
    "AdaptiveAvgPool1d up": (
        lambda: chain(nn.Linear(12, 8), nn.AdaptiveAvgPool1d(11), nn.Linear(11, 3)),
        ROW,
    ),
    "Conv2d": (images(nn.Conv2d(4, 6, 3, stride=2, bias=False)), IMAGES),
    "Conv2d in groups": (images(nn.Conv2d(4, 8, 3, groups=4, padding="same")), IMAGES),
    "Conv2d dilated": (images(nn.Conv2d(4, 8, 3, dilation=2)), IMAGES),
    "ConvTranspose2d": (images(nn.ConvTranspose2d(4, 5, 3, stride=2, output_padding=1)), IMAGES),
    "ConvTranspose2d in groups": (images(nn.ConvTranspose2d(4, 6, 2, groups=2, bias=False)), IMAGES),
    "BatchNorm2d": (images(nn.BatchNorm2d(4, eps=0.8, momentum=0.3)), IMAGES),
    "SteadyBatchNorm2d": (images(SteadyBatchNorm2d(4)), IMAGES),
    "SteadyBatchNorm2d of pixels": (images(nn.AdaptiveAvgPool2d(1), SteadyBatchNorm2d(4)), IMAGES),
    "GroupNorm": (images(nn.GroupNorm(2, 4)), IMAGES),
    "GroupNorm without weights": (images(nn.GroupNorm(4, 4, affine=False)), IMAGES),
    "MaxPool2d": (images(nn.MaxPool2d(2)), IMAGES),
    "MaxPool2d, overlapping": (images(nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)), IMAGES),
    "AvgPool2d": (images(nn.AvgPool2d(2)), IMAGES),
    "AvgPool2d, padded": (images(nn.AvgPool2d(3, 2, padding=1, count_include_pad=False)), IMAGES),
    "AdaptiveAvgPool2d": (images(nn.AdaptiveAvgPool2d((3, None))), IMAGES),
    "Upsample": (images(nn.Upsample(scale_factor=2)), IMAGES),
    "Unflatten": (images(nn.Flatten(), nn.Unflatten(1, (16, 4, 4)), nn.Conv2d(16, 2, 3)), IMAGES),
    "Shortcut": (images(Shortcut(4, 6, 2)), IMAGES),
    "Growing": (images(Growing(4, 3)), IMAGES),
    "attention": (lambda: chain(Patches(IMAGES, 4, 6), AttentionBlock(6, 2), MeanOfPlaces()), IMAGES),
    "mlp": (lambda: mlp(IMAGES, 3, hidden=8), IMAGES),
    "BasicBlock": (images(BasicBlock(4, 6, 2)), IMAGES),
    "Bottleneck": (images(Bottleneck(4, 2, 2, projected=True)), IMAGES),
    "MeanEmbedding": (lambda: word_bag(WORDS, 3, width=5, hidden=[4]), WORDS),
    "MeanOfPairs": (lambda: fast_text(WORDS, 3), WORDS),
    "Encoder": (lambda: text_transformer(WORDS, 3, width=6, heads=2), WORDS),
    "RowEmbedding": (lambda: row_mlp(CODES, 3, width=2, units=[6]), CODES),
    "Generator": (lambda: dafl_image(IMAGES, 3, width=4, latent=5), None),
    "Projected": (lambda: conditional_image(IMAGES, 3, width=4, latent=5), None),
    "Embedded": (lambda: fedcg_feature(MAPS, 3, width=8, latent=5), None),
    "OneHot": (lambda: dense_feature(ROW, 3, hidden=6, latent=5), None),
}


def inputs(shape, module, draw):
    """A batch of what the module takes; a generator's is noise, and labels if it takes them."""
    if shape is None:
        noise = torch.randn(ROWS, module.latent, generator=draw)
        return (noise, torch.arange(ROWS) % 3) if module.conditional else (noise,)
    if isinstance(shape, TextShape):
        return (torch.randint(0, 11, (ROWS, *shape), generator=draw),)
    if isinstance(shape, RowShape):
        return (
            torch.cat([torch.randn(ROWS, 3, generator=draw), torch.arange(2 * ROWS).view(ROWS, 2) % 4], 1),
        )
    return (torch.randn(ROWS, *shape, generator=draw),)


def loss(models, batch, extras):
    names = sorted(name for name in batch if name.startswith("input"))
    found = models["student"](*(batch[name] for name in names))
    return Loss(F.mse_loss(found, batch["target"]))


def made(make, seed):
    """A module whose weights depend on the seed alone."""
    module = make()
    torch.manual_seed(seed)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return module


class Quiet:
    """A context of a client that has batches of its own."""

    device = torch.device("cpu")

    def log(self, **values):
        pass

    def log_sums(self, sums):
        pass

    def count_drawn(self, samples):
        pass


def clients(make, shape):
    """Three clients' training, each with weights and batches of its own."""
    every = []
    for client in range(CLIENTS):
        flat = FlatModule(made(make, client)).train()
        draw = torch.Generator().manual_seed(client)
        batches = []
        for _ in range(STEPS):
            given = inputs(shape, flat.module, draw)
            with torch.no_grad():
                target = torch.randn(copy.deepcopy(flat.module)(*given).shape, generator=draw)
            batches.append((None, {**{f"input{k}": one for k, one in enumerate(given)}, "target": target}))
        optimizer = Optimizer(OptimizerRecipe(lr=0.03, momentum=0.5), flat)
        every.append(LocalSteps({"student": flat}, [Phase(loss, [optimizer])], batches, {}, Quiet()))
    return every


@pytest.mark.parametrize("name", MODULES)
def test_a_group_learns_what_its_clients_learn_alone(name):
    make, shape = MODULES[name]
    assert unbatchable(make()) == ""
    single, grouped = clients(make, shape), clients(make, shape)
    before = [steps.models["student"].vector() for steps in single]
    for steps in single:
        steps.run()
    BatchedSteps(grouped).run()
    for start, one, other in zip(before, single, grouped, strict=True):
        alone, together = one.models["student"], other.models["student"]
        moved = (alone.trainable - start[: alone.num_parameters]).abs().max()
        assert (alone.vector() - together.vector()).abs().max() < min(CLOSE, moved / 1000)


def test_every_type_on_the_list_is_trained_here():
    shown = {type(part) for make, _ in MODULES.values() for part in make().modules()}
    assert shown >= TYPES


class Own(nn.Linear):
    """A linear layer of somebody's own."""


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 3)


def hooked():
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda *_: None)
    return layer


def holding(value):
    layer = nn.Linear(4, 3)
    layer.held = value
    return layer


def with_a_buffer():
    layer = nn.Linear(4, 3)
    layer.register_buffer("table", torch.zeros(2))
    return layer


def tied():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen():
    layer = nn.Linear(4, 3)
    layer.bias.requires_grad_(False)
    return layer


def hooked_weight(register):
    layer = nn.Linear(4, 3)
    getattr(layer.weight, register)(lambda gradient: None)
    return layer


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout()), "1 is a torch.*Dropout, which"),
        (lambda: hooked_weight("register_hook"), "whose weight .* has hooks on its gradient"),
        (
            lambda: hooked_weight("register_post_accumulate_grad_hook"),
            "whose weight .* has hooks on its gradient",
        ),
        (Lstm, "the model itself is a .*Lstm, which is not on the list"),
        (lambda: nn.Sequential(nn.Sequential(nn.LSTM(4, 3))), r"0\.0 is a torch.*LSTM, which"),
        (lambda: nn.Sequential(Own(4, 3)), "0 is a .*Own, which is not on the list"),
        (hooked, "with hooks, .*_forward_hooks"),
        (lambda: holding([nn.Parameter(torch.zeros(1))]), "no number or text: held"),
        (lambda: holding(torch.zeros(1)), "no number or text: held"),
        (lambda: holding({"a": 1}), "no number or text: held"),
        (with_a_buffer, "with a buffer of its own"),
        (tied, "one parameter in two places"),
        (shared, "one parameter in two places"),
        (frozen, "whose bias is frozen or not float32"),
        (lambda: nn.Linear(4, 3, dtype=torch.float64), "whose weight is frozen or not float32"),
        (lambda: nn.BatchNorm1d(3, momentum=None), "options .*momentum=None"),
        (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), "options .*circular"),
        (lambda: nn.Embedding(3, 2, max_norm=1.0), "options .*max_norm"),
        (lambda: nn.Embedding(3, 2, padding_idx=0), "options .*padding_idx"),
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), "options .*bilinear"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), "ParametrizedLinear, which"),
    ],
)
def test_what_is_not_known_to_be_right_is_named(make, reason):
    assert re.search(reason, unbatchable(make()))


def test_plain_attributes_are_no_obstacle():
    assert unbatchable(holding([1, 0.5, "a", None, (True, 2)])) == ""
