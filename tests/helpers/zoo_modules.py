"""Modules as people bring them, for images of 1x8x8 and 10 classes. Each is a builder: (shape, classes)."""

import math
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from rayfed_kd import model_builder
from rayfed_kd.protocol import Classifier

PIXELS, WIDTH = 64, 12


class Net(nn.Module):
    """Flat pixels -> 12 numbers, by a linear layer -> `between` -> classes."""

    def __init__(self, shape, classes):
        super().__init__()
        self.inner, self.head = nn.Linear(math.prod(shape), WIDTH), nn.Linear(WIDTH, classes)
        self.prepare()

    def prepare(self):
        """What else it has."""

    def between(self, hidden):
        return hidden

    def forward(self, images):
        return self.head(self.between(torch.tanh(self.inner(images.flatten(1)))))


# Layers and blocks.


@model_builder
def conv(shape, classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, classes))


@model_builder
def depthwise(shape, classes):
    layers = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Hardswish(), nn.Conv2d(4, 6, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, classes))


class Conv3d(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.conv, self.head = nn.Conv3d(1, 3, 2), nn.Linear(3 * 7 * 3 * 1, classes)

    def forward(self, images):
        return self.head(self.conv(images.view(-1, 1, 8, 4, 2)).relu().flatten(1))


class Transposed(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 4, 2, 2), nn.ConvTranspose2d(4, 2, 2, 2)
        self.head = nn.Linear(128, classes)

    def forward(self, images):
        return self.head(self.up(self.down(images).relu()).flatten(1))


class ViewedMaps(Transposed):
    """Only of maps in torch's own order, as code of LeNets has it."""

    def forward(self, images):
        return self.head(self.up(self.down(images).relu()).view(len(images), -1))


class StridedMaps(Transposed):
    def forward(self, images):
        maps = self.up(self.down(images).relu())
        return self.head(torch.as_strided(maps, (len(images), 128), (128, 1)))


class NormedHead(Net):
    """A pass of the head alone makes one more step towards the norm."""

    def prepare(self):
        self.head = nn.utils.parametrizations.spectral_norm(self.head)


class HookedHead(Net):
    def prepare(self):
        self.head.register_forward_pre_hook(lambda layer, arguments: (2 * arguments[0],))


class KeywordHead(Net):
    def forward(self, images):
        return self.head(input=torch.tanh(self.inner(images.flatten(1))))


class Bilinear(Net):
    def prepare(self):
        self.pair = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def between(self, hidden):
        return self.pair(hidden, hidden)


# Norms and running statistics.


class BatchNorm1d(Net):
    def prepare(self):
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, hidden):
        return self.norm(hidden)


class BatchNormWithoutMomentum(Net):
    def prepare(self):
        self.norm = nn.BatchNorm1d(WIDTH, momentum=None)

    def between(self, hidden):
        return self.norm(hidden)


class BatchNormOfTheBatch(Net):
    def prepare(self):
        self.norm = nn.BatchNorm1d(WIDTH, momentum=None, track_running_stats=False)

    def between(self, hidden):
        return self.norm(hidden)


@model_builder
def batchnorm2d(shape, classes):
    layers = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(144, classes))


@model_builder
def instancenorm(shape, classes):
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


@model_builder
def groupnorm(shape, classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes)
    )


class LayerNorms(Net):
    def prepare(self):
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)])

    def between(self, hidden):
        return self.norms[1](self.norms[0](hidden))


# Recurrent, attention, text.


class Recurrent(nn.Module):
    """Rows of pixels as a sequence."""

    def __init__(self, kind, classes, directions=1, projected=0, **options):
        super().__init__()
        further = {"proj_size": projected} if projected else {}
        self.rnn = kind(8, 6, batch_first=True, bidirectional=directions == 2, **further, **options)
        self.head = nn.Linear(directions * (projected or 6), classes)

    def forward(self, images):
        return self.head(self.rnn(images[:, 0])[0][:, -1])

    @classmethod
    def builder(cls, kind, **options):
        return model_builder(lambda shape, classes: cls(kind, classes, **options))


rnn, gru_two_layers = Recurrent.builder(nn.RNN), Recurrent.builder(nn.GRU, num_layers=2)
lstm, lstm_both_ways = Recurrent.builder(nn.LSTM), Recurrent.builder(nn.LSTM, directions=2)
lstm_projected = Recurrent.builder(nn.LSTM, projected=3)


@model_builder
def lstm_with_weight_norm(shape, classes):
    module = Recurrent(nn.LSTM, classes)
    nn.utils.weight_norm(module.rnn, "weight_hh_l0")
    return module


class LstmCell(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 6), nn.Linear(6, classes)

    def forward(self, images):
        state = None
        for row in images[:, 0].unbind(1):
            state = self.cell(row, state)
        return self.head(state[0])


class Attention(nn.Module):
    """With a causal mask of minus infinity, and a class token."""

    def __init__(self, shape, classes):
        super().__init__()
        self.inner, self.token = nn.Linear(8, 8), nn.Parameter(torch.zeros(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.full((9, 9), -math.inf), 1))
        self.head = nn.Linear(8, classes)

    def forward(self, images):
        rows = torch.cat([self.inner(images[:, 0]), self.token.expand(len(images), -1, -1)], 1)
        return self.head(self.attention(rows, rows, rows, attn_mask=self.mask, need_weights=False)[0][:, -1])


class Transformer(nn.Module):
    """Encoder layers of torch; its fast path in eval mode."""

    def __init__(self, shape, classes, dropout=0.0):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("positions", torch.randn(1, 8, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, classes)

    def forward(self, images):
        return self.head(self.encoder(self.inner(images[:, 0]) + self.positions).mean(1))


class EmbeddingWithMaxNorm(nn.Module):
    """Pixels above a half as tokens; too long rows are cut in every pass."""

    def __init__(self, shape, classes):
        super().__init__()
        self.table, self.head = nn.Embedding(64, 6, max_norm=1.0), nn.Linear(6, classes)

    def forward(self, images):
        tokens = torch.arange(64, device=images.device) * (images.flatten(1) > 0)
        return self.head(self.table(tokens).mean(1))


class EmbeddingBagSparse(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(128, 6, sparse=True), nn.Linear(6, classes)

    def forward(self, images):
        return self.head(self.table(torch.arange(64) + 64 * (images.flatten(1) > 0)))


# Weights that are computed of others, or shared.


@model_builder
def weight_norm_old(shape, classes):
    inner = nn.utils.weight_norm(nn.Linear(64, 12))
    return nn.Sequential(nn.Flatten(), inner, nn.ReLU(), nn.Linear(12, classes))


@model_builder
def weight_norm_new(shape, classes):
    inner = parametrizations.weight_norm(nn.Conv2d(1, 4, 3))
    return nn.Sequential(inner, nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))


@model_builder
def spectral_norm_old(shape, classes):
    return nn.Sequential(
        nn.Flatten(), nn.utils.spectral_norm(nn.Linear(64, 12)), nn.ReLU(), nn.Linear(12, classes)
    )


@model_builder
def spectral_norm_new(shape, classes):
    inner = parametrizations.spectral_norm(nn.Linear(64, 12))
    return nn.Sequential(nn.Flatten(), inner, nn.ReLU(), nn.Linear(12, classes))


class Orthogonal(Net):
    def prepare(self):
        self.turn = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH, bias=False))

    def between(self, hidden):
        return self.turn(hidden)


class Tied(Net):
    def prepare(self):
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.other.weight = self.one.weight

    def between(self, hidden):
        return self.other(torch.relu(self.one(hidden)))


class Autoencoding(Net):
    """One weight, used as it is and transposed."""

    def prepare(self):
        self.weight = nn.Parameter(torch.randn(WIDTH, 5) / 4)

    def between(self, hidden):
        return F.linear(F.linear(hidden, self.weight.t()), self.weight)


class OneModuleTwice(Net):
    def prepare(self):
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.again = self.block

    def between(self, hidden):
        return self.again(self.block(hidden))


# Frozen parts, scalars, parameters in containers.


class FrozenBody(Net):
    def prepare(self):
        self.inner.requires_grad_(False)


class NormStaysInEval(Net):
    """Fine-tuning: its own `train` keeps BatchNorm's statistics as they are."""

    def prepare(self):
        self.norm = nn.BatchNorm1d(WIDTH)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def between(self, hidden):
        return self.norm(hidden)


class FrozenBias(Net):
    def prepare(self):
        self.inner.bias.requires_grad_(False)


class FrozenBodyWithNorm(Net):
    """A frozen body whose running statistics follow, as `requires_grad_(False)` leaves them."""

    def prepare(self):
        self.norm = nn.BatchNorm1d(WIDTH)
        self.inner.requires_grad_(False)
        self.norm.requires_grad_(False)

    def between(self, hidden):
        return self.norm(hidden)


class LowRankAdapter(Net):
    def prepare(self):
        self.inner.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        nn.init.zeros_(self.up.weight)

    def between(self, hidden):
        return hidden + self.up(self.down(hidden))


class Scalar(Net):
    def prepare(self):
        self.scale = nn.Parameter(torch.tensor(1.0))

    def between(self, hidden):
        return hidden * self.scale.exp()


class ParameterList(Net):
    def prepare(self):
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(2)])

    def between(self, hidden):
        return hidden * self.scales[0] + self.scales[1]


class PlainListOfRegistered(Net):
    """A plain list of parameters that are registered, too."""

    def prepare(self):
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.both = [self.scale, self.shift]

    def between(self, hidden):
        return hidden * self.both[0] + self.both[1]


class PlainList(Net):
    def prepare(self):
        self.scales = [nn.Parameter(torch.ones(WIDTH))]

    def between(self, hidden):
        return hidden * self.scales[0]


class PlainListOfModules(Net):
    def prepare(self):
        self.layers = [nn.Linear(WIDTH, WIDTH)]

    def between(self, hidden):
        return self.layers[0](hidden)


class Unused(Net):
    """A parameter that no output depends on."""

    def prepare(self):
        self.spare = nn.Linear(3, 3)


# Dropout.


class Dropout(Net):
    def prepare(self):
        self.drop = nn.Dropout(0.4)

    def between(self, hidden):
        return self.drop(hidden)


class AlphaDropout(Dropout):
    def prepare(self):
        self.drop = nn.AlphaDropout(0.3)


class FunctionalDropout(Net):
    def between(self, hidden):
        return F.dropout(hidden, 0.3, self.training)


class StochasticDepth(Net):
    """A block that is left out in some batches."""

    def prepare(self):
        self.block = nn.Linear(WIDTH, WIDTH)

    def between(self, hidden):
        if self.training and torch.rand(()) < 0.5:
            return hidden
        return hidden + self.block(hidden)


class Noisy(Net):
    def between(self, hidden):
        return hidden + 0.1 * torch.randn_like(hidden) if self.training else hidden


@model_builder
def transformer_with_dropout(shape, classes):
    return Transformer(shape, classes, dropout=0.2)


# Buffers.


class WithBuffer(Net):
    """A constant, of any type."""

    constant = torch.linspace(0.5, 1.5, WIDTH)

    def prepare(self):
        self.register_buffer("table", self.constant)

    def between(self, hidden):
        return hidden * self.table


class Float64Buffer(WithBuffer):
    constant = torch.linspace(0.5, 1.5, WIDTH, dtype=torch.float64)

    def between(self, hidden):
        return (hidden * self.table).float()


class ComplexBuffer(WithBuffer):
    constant = torch.polar(torch.ones(WIDTH), torch.linspace(0, 3.0, WIDTH))

    def between(self, hidden):
        return (hidden * self.table).imag


class BoolBuffer(WithBuffer):
    constant = torch.arange(WIDTH) % 3 > 0


class LargeIntegerBuffer(WithBuffer):
    """Numbers that float32 cannot hold."""

    constant = 2**24 + 1 + torch.arange(WIDTH)

    def between(self, hidden):
        return hidden * (self.table % 2)


class RandomBuffer(Net):
    """A random projection that is fixed, and an order of columns."""

    def prepare(self):
        self.register_buffer("projection", torch.randn(WIDTH, WIDTH) / 4)
        self.register_buffer("order", torch.randperm(WIDTH), persistent=False)

    def between(self, hidden):
        return (hidden @ self.projection)[:, self.order]


class RandomAttribute(Net):
    """A random projection that is no buffer."""

    def prepare(self):
        self.projection = torch.randn(WIDTH, WIDTH) / 4

    def between(self, hidden):
        return hidden @ self.projection


class SharedBuffer(Net):
    def prepare(self):
        self.parts = nn.ModuleList([Ema((WIDTH,), WIDTH), Ema((WIDTH,), WIDTH)])
        self.parts[1].mean = self.parts[0].mean

    def between(self, hidden):
        return self.parts[1](self.parts[0](hidden))


class Ema(nn.Module):
    """A buffer that training moves in place, and eval reads."""

    def __init__(self, shape, classes):
        super().__init__()
        self.net = nn.Linear(math.prod(shape), classes)
        self.register_buffer("mean", torch.zeros(math.prod(shape)))

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.follow(x.mean(0).detach())
        return self.net(x - self.mean)

    def follow(self, mean):
        self.mean.mul_(0.9).add_(0.1 * mean)


class EmaAssigned(Ema):
    def follow(self, mean):
        self.mean = 0.9 * self.mean + 0.1 * mean


class EmaData(Ema):
    def follow(self, mean):
        self.mean.data = 0.9 * self.mean.data + 0.1 * mean


class EmaNotPersistent(Ema):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.register_buffer("mean", torch.zeros(math.prod(shape)), persistent=False)


class EmaOfCodes(Net):
    """A codebook with its own averages, as VQ-VAE has one."""

    def prepare(self):
        self.register_buffer("codes", torch.randn(5, WIDTH))
        self.register_buffer("sizes", torch.zeros(5))
        self.register_buffer("sums", self.codes.clone())

    def between(self, hidden):
        nearest = F.one_hot(torch.cdist(hidden, self.codes).argmin(1), 5).float()
        if self.training:
            self.sizes.data.mul_(0.9).add_(nearest.sum(0), alpha=0.1)
            self.sums.data.mul_(0.9).add_(nearest.t() @ hidden.detach(), alpha=0.1)
            self.codes.data.copy_(self.sums / (self.sizes.unsqueeze(1) + 1e-2))
        return hidden + (nearest @ self.codes - hidden).detach()


# Hooks.


class Hooks(Net):
    def prepare(self):
        self.inner.register_forward_hook(lambda layer, inputs, output: output * 0.5)
        self.head.weight.register_hook(lambda gradient: gradient * 2)

    def between(self, hidden):
        return hidden


class Caches(Net):
    """What it keeps of a batch is never read in another."""

    def prepare(self):
        self.seen, self.filled = None, False

    def between(self, hidden):
        if not self.filled:
            self.filled = True
        self.seen = hidden.detach()
        return self.seen * 0.1 + hidden


class GrowingCache(Net):
    """It is made for the largest batch so far, which may be an evaluation's, and training reads it."""

    def prepare(self):
        self.scales = None

    def between(self, hidden):
        if self.scales is None or len(self.scales) < len(hidden):
            self.scales = torch.full((len(hidden), WIDTH), 0.5)
        return hidden * self.scales[: len(hidden)]


class GivesNothingBack(Dropout):
    def train(self, mode=True):
        super().train(mode)

    def eval(self):
        super().eval()


# Refused.


class ChangesItsInput(Net):
    def forward(self, images):
        return super().forward(images.sub_(0.5))


class OwnParameters(Net):
    def parameters(self, recurse=True):
        return self.head.parameters(recurse)


class FrozenInTraining(Net):
    def train(self, mode=True):
        self.inner.weight.requires_grad_(not mode)
        return super().train(mode)


class OwnForward(Classifier):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes), math.prod(shape))

    def forward(self, images):
        return super().forward(images) * (4 if self.training else 1)


@model_builder
def wrong_size(shape, classes):
    return Classifier(nn.Flatten(), nn.Linear(math.prod(shape), classes), 7)


class OwnClassify(OwnForward):
    def forward(self, images):
        return self.classify(self.features(images))

    def classify(self, features):
        return super().classify(F.normalize(features))


class Bfloat16(Net):
    def prepare(self):
        self.to(torch.bfloat16)

    def forward(self, images):
        return super().forward(images.bfloat16()).float()


class Float64(Net):
    def prepare(self):
        self.double()

    def forward(self, images):
        return super().forward(images.double()).float()


class ComplexWeight(Net):
    def prepare(self):
        self.turn = nn.Parameter(torch.polar(torch.ones(WIDTH), torch.linspace(0, 3.0, WIDTH)))

    def between(self, hidden):
        return (hidden * self.turn).real


@model_builder
def lazy(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(12), nn.ReLU(), nn.Linear(12, classes))


@model_builder
def scripted(shape, classes):
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, classes)))


@model_builder
def on_meta(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, device="meta"))


class Auxiliary(Net):
    def forward(self, images):
        logits = super().forward(images)
        return (logits, logits) if self.training else logits


class ReentrantCheckpoint(Net):
    def between(self, hidden):
        return checkpoint(torch.relu, hidden, use_reentrant=True)


class ScaledInTraining(Net):
    def forward(self, images):
        logits = super().forward(images)
        return logits.mul_(2) if self.training else logits


class FailsInTraining(Net):
    def between(self, hidden):
        if self.training:
            raise RuntimeError("not while training")
        return hidden


class SoftmaxedInTraining(Net):
    def forward(self, images):
        logits = super().forward(images)
        return logits.softmax(1) if self.training else logits


class SoftmaxedInEval(Net):
    def forward(self, images):
        logits = super().forward(images)
        return logits if self.training else logits.softmax(1)


class NoGradient(Net):
    def forward(self, images):
        return super().forward(images).detach()


class AllFrozen(Net):
    def prepare(self):
        self.requires_grad_(False)


class Counter(Net):
    """Warms up over its first batches, which a Python number counts."""

    def prepare(self):
        self.batches = 0

    def between(self, hidden):
        self.batches += self.training
        return hidden * min(1.0, self.batches / 1000 + 0.5)


class CounterOfLargeBatches(Net):
    """Counts only batches of more than eight samples."""

    def prepare(self):
        self.batches = 0

    def between(self, hidden):
        self.batches += self.training and len(hidden) > 8
        return hidden / (1 + self.batches / 100)


class DrawsForLargeBatches(Net):
    def between(self, hidden):
        return hidden * (random.random() > 0.3) if self.training and len(hidden) > 8 else hidden


class IntegerCounter(Net):
    def prepare(self):
        self.register_buffer("batches", torch.tensor(0))

    def between(self, hidden):
        if self.training:
            self.batches += 1
        return hidden


class Float64Statistics(Net):
    def prepare(self):
        self.norm = nn.BatchNorm1d(WIDTH).double()
        self.norm.weight.data, self.norm.bias.data = self.norm.weight.float(), self.norm.bias.float()

    def between(self, hidden):
        if self.training:
            self.norm.running_mean += hidden.detach().mean(0)
        return hidden - self.norm.running_mean.float()


class Meter:
    def __init__(self):
        self.total = 0.0


class HiddenMeter(Net):
    """An object that is no tensor collects."""

    def prepare(self):
        self.meter = Meter()

    def between(self, hidden):
        self.meter.total += float(hidden.detach().mean())
        return hidden


class OwnGenerator(Net):
    def prepare(self):
        self.draws = torch.Generator().manual_seed(1)

    def between(self, hidden):
        return hidden + 0.1 * torch.randn(hidden.shape, generator=self.draws)


class NumpyDraws(Net):
    def between(self, hidden):
        return hidden * (1 if np.random.rand() < 0.5 else 0.9)


class PythonDraws(Net):
    def between(self, hidden):
        return hidden * (1 if random.random() < 0.5 else 0.9)


class NumpyBuilt(Net):
    def prepare(self):
        self.register_buffer("mask", torch.from_numpy(np.random.rand(WIDTH).astype(np.float32)))

    def between(self, hidden):
        return hidden * self.mask


class HiddenState(Net):
    """What is left of the batch before goes into the next, as a recurrent state that is kept."""

    def prepare(self):
        self.state = None

    def between(self, hidden):
        if self.state is not None:
            hidden = hidden + 0.5 * self.state.mean(0)
        self.state = hidden.detach()
        return hidden


class FirstBatchDecides(Net):
    """Initialised by the first batch that it sees."""

    def prepare(self):
        self.known, self.scale = False, torch.ones(WIDTH)

    def between(self, hidden):
        if not self.known:
            self.known, self.scale = True, hidden.detach().std(0) + 0.1
        return hidden / self.scale


class Memory(Net):
    """A list that grows with every batch."""

    def prepare(self):
        self.seen = []

    def between(self, hidden):
        self.seen.append(hidden.detach().mean())
        return hidden


class NewWeight(Net):
    """Weights that are held in bounds by new ones."""

    def between(self, hidden):
        self.head.weight.data = self.head.weight.data.clamp(-0.5, 0.5)
        return hidden


class NewParameter(Net):
    def between(self, hidden):
        if self.training:
            self.head.bias = nn.Parameter(self.head.bias.detach().clone())
        return hidden


class StepsByItself(Net):
    """As torch's tutorial on memory has it: each parameter's own step within the backward pass."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(lambda own: setattr(own, "grad", None))


class MadeInForward(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.inner, self.classes, self.head = nn.Linear(64, WIDTH), classes, None

    def forward(self, images):
        hidden = self.inner(images.flatten(1))
        if self.head is None:
            self.head = nn.Linear(hidden.shape[1], self.classes)
        return self.head(hidden)


class NoneBuffer(Net):
    def prepare(self):
        self.register_buffer("mean", None)

    def between(self, hidden):
        if self.training:
            self.mean = hidden.detach().mean(0)
        return hidden


class GrowingBuffer(Net):
    def prepare(self):
        self.register_buffer("bank", torch.zeros(1, WIDTH))

    def between(self, hidden):
        if self.training:
            self.bank = torch.cat([self.bank, hidden.detach()])
        return hidden


class SameMemory(Net):
    def prepare(self):
        self.one = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("other", self.one.data)

    def between(self, hidden):
        return hidden * self.one + self.other


class Thaws(Net):
    """Its body is frozen until the first batch."""

    def prepare(self):
        self.inner.requires_grad_(False)

    def between(self, hidden):
        self.inner.requires_grad_(True)
        return hidden


@model_builder
def tied_layers(shape, classes):
    one, other = nn.Linear(12, 12), nn.Linear(12, 12)
    other.weight = one.weight
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), one, nn.ReLU(), other, nn.ReLU())
    return Classifier(body, nn.Linear(12, classes), feature_size=12)
