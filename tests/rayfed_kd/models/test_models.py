"""Parameter counts, shapes, and what a model refuses."""

import pytest
import torch
from classifier_samples import SPACES, samples_of, space_of
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_kd.errors import RecipeError
from rayfed_kd.models import CLASSIFIERS, GENERATORS, HEADS
from rayfed_kd.models.base import Shortcut, last_maps, layer_shape, pooled_relu
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.recipe.registry import load_object

OF_IMAGES = [name for name in CLASSIFIERS if name not in SPACES]


def make(name, shape, classes, **options):
    return load_object({**CLASSIFIERS, **GENERATORS}[name], "model")(shape, classes, **options)


def count(name, shape, classes=10, **options):
    return sum(p.numel() for p in make(name, shape, classes, **options).parameters())


# Name, shape of the images, classes, options, and how many parameters the paper prints, or its layers have.
PARAMETERS = [
    # 6 (25 + 1) = 156; 16 (6 25 + 1) = 2,416; 120 (16 5 5 + 1) = 48,120; 84 (120 + 1) = 10,164; C (84 + 1).
    # Padded 28x28 and plain 32x32 both give 28, 14, 10, 5 a side: 60,856 + 85 C, so 61,706 and 63,066.
    # 8x8, padded twice: 8, 4, 4, 2, so the first full layer is 120 (16 2 2 + 1) = 7,800: 20,536 + 850.
    ("lenet5", (1, 28, 28), 10, {}, 61_706),
    ("lenet5", (1, 28, 28), 26, {}, 63_066),
    ("lenet5", (1, 32, 32), 10, {}, 61_706),
    ("lenet5", (1, 8, 8), 10, {}, 21_386),
    # With w the stem's channels; a norm over n channels has 2 n, convolutions no bias. Stem 27 w + 2 w.
    # Block 1: 2 x 9 w^2 + 4 w. Block 2: (18 + 36 + 2) w^2 + 3 x 4 w, its shortcut the 2 w^2.
    # Block 3: (72 + 144 + 8) w^2 + 3 x 8 w. Head C (4 w + 1). In all 298 w^2 + 69 w + C (4 w + 1):
    # w = 64: 1,220,608 + 4,416 + 257 C; w = 16: 76,288 + 1,104 + 65 C.
    ("resnet8", (3, 32, 32), 10, {"width": 64}, 1_227_594),
    ("resnet8", (3, 32, 32), 100, {"width": 64}, 1_250_724),
    ("resnet8", (3, 32, 32), 10, {"width": 16}, 78_042),
    # 6 (3 25 + 1) = 456; 2,416; 48,120; 10,164: 61,156 before the projection, then C (84 + 1).
    # The projection adds 84 (84 + 1) + 256 (84 + 1) = 28,900, and the head is C (256 + 1).
    ("simple_cnn", (3, 32, 32), 10, {"projection": True}, 92_626),
    ("simple_cnn", (3, 32, 32), 100, {"projection": True}, 115_756),
    ("simple_cnn", (3, 32, 32), 10, {"projection": False}, 62_006),
    ("simple_cnn", (3, 32, 32), 100, {"projection": False}, 69_656),
    # FedD2S's M1: 8 (27 + 1) = 224; 16 (72 + 1) = 1,168; 32 (144 + 1) = 4,640;
    # 4x4 maps: 32 (512 + 1) = 16,416; 16 (32 + 1) = 528; 10 (16 + 1) = 170.
    ("m1", (3, 32, 32), 10, {}, 23_146),
    # M2, 3x32x32: 448; 9,280; 73,856; 128 (2,048 + 1) = 262,272; 4,128; 100 (32 + 1) = 3,300.
    # M2, 1x28x28, 3x3 maps: 160; 9,280; 73,856; 128 (1,152 + 1) = 147,584; 4,128; 62 (32 + 1) = 2,046.
    ("m2", (3, 32, 32), 100, {}, 353_284),
    ("m2", (1, 28, 28), 62, {}, 237_054),
    # 32 (3 25 + 1) = 2,432; 64 (32 25 + 1) = 51,264; 512 (64 8 8 + 1) = 2,097,664; 10 (512 + 1) = 5,130.
    ("cnn2", (3, 32, 32), 10, {}, 2_156_490),
    # 64 (12 + 1) + 10 (64 + 1) = 1,482 by default; 5 (12 + 1) + 10 (5 + 1) = 125 with five hidden units.
    ("mlp", (12,), 10, {}, 1_482),
    ("mlp", (12,), 10, {"hidden": 5}, 125),
    # The full layers of M1 and M2.
    # 32 (512 + 1) + 16 (32 + 1) + 10 (16 + 1); 128 (2,048 + 1) + 32 (128 + 1) + 100 (32 + 1).
    ("dense", (512,), 10, {}, 16_416 + 528 + 170),
    ("dense", (128, 4, 4), 100, {"units": [128, 32]}, 262_272 + 4_128 + 3_300),
    # 101 x 128 (s/4)^2 = 827,392 at 32, 633,472 at 28; BatchNorm 256; 128 (128 9 + 1) = 147,584; 256;
    # 64 (128 9 + 1) = 73,792; 128; c (64 9 + 1) = 577 c. No room for an affine BatchNorm at the end.
    ("dafl_image", (1, 32, 32), 10, {}, 1_049_985),
    ("dafl_image", (3, 32, 32), 10, {}, 1_051_139),
    ("dafl_image", (1, 28, 28), 10, {}, 856_065),
    # Stem 432 + 32. First blocks 4,928, 24,192, 95,488; further ones (into = out = 4 w, w = 16, 32, 64):
    # w (4 w) 2 + 9 w w + 12 w = 4,544, 17,792, 70,400, 92,736 together. Head 256 x 10 + 10.
    # So 464 + 124,608 + 2,570 + (blocks - 1) 92,736.
    ("bottleneck_resnet", (3, 32, 32), 10, {"blocks": [1, 1, 1]}, 127_642),
    ("bottleneck_resnet", (3, 32, 32), 10, {"blocks": [2, 2, 2]}, 220_378),
    ("bottleneck_resnet", (3, 32, 32), 10, {"blocks": [4, 4, 4]}, 405_850),
    ("bottleneck_resnet", (3, 32, 32), 10, {"blocks": [6, 6, 6]}, 591_322),
    ("bottleneck_resnet", (3, 32, 32), 10, {"blocks": [12, 12, 12]}, 1_147_738),
    # C C + (100 + C) 512 4 + 512 256 4 + 256 128 4 + 128 16 4 + 2 (512 + 256 + 128), which is
    # C C + (100 + C) 2,048 + 524,288 + 131,072 + 8,192 + 1,792.
    ("fedcg_feature", (16, 5, 5), 10, {}, 890_724),
    ("fedcg_feature", (16, 5, 5), 100, {}, 1_084_944),
    # (100 + 1 + 10 + 1) 64 s s / 16 + BN 256 + conv 147,584 + BN 256 + conv 73,792 + BN 128 + conv 577 c.
    ("conditional_image", (1, 28, 28), 10, {}, 112 * 64 * 7**2 + 222_016 + 577),
    ("conditional_image", (3, 32, 32), 10, {}, 112 * 64 * 8**2 + 222_016 + 1_731),
    # Embeddings (100 + 1 + 10 + 1) u / 2, BatchNorm 2 w, last layer (u + 1) pixels; u = w s s / 16 units.
    ("dense_image", (1, 28, 28), 10, {"width": 32}, 56 * 1_568 + 64 + 1_569 * 784),
    ("dense_image", (3, 32, 32), 10, {"width": 8}, 56 * 512 + 16 + 513 * 3_072),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "expected"), PARAMETERS)
def test_model_has_the_published_parameters_or_those_of_its_layers(name, shape, classes, options, expected):
    assert count(name, shape, classes, **options) == expected


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 40, 20)])
@pytest.mark.parametrize("name", ["lenet5", "resnet8", "cnn2", "m1", "m2", "mlp", "dense"])
def test_classifier_takes_any_size_it_can(name, shape):
    model = make(name, shape, 7)
    images = torch.randn(3, *shape)
    assert model(images).shape == (3, 7)
    assert model.features(images).shape == (3, model.feature_size)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet5", (1, 4, 4)),
        ("resnet8", (5, 5, 5)),
        ("simple_cnn", (2, 16, 19)),
        ("cnn2", (3, 4, 7)),
        ("m1", (1, 8, 9)),
        ("m2", (3, 8, 8)),
        ("mlp", (12,)),
    ],
)
def test_smallest_shape_still_tells_inputs_apart(name, shape):
    torch.manual_seed(0)
    logits = make(name, shape, 3)(torch.randn(8, *shape))
    assert logits.shape == (8, 3)
    assert logits.std(dim=0).min() > 1e-3


@pytest.mark.parametrize("name", ["lenet5", "resnet8", "simple_cnn", "cnn2"])
def test_channels_last_weights_give_the_same_model(name):
    """In float64, so that another order of sums cannot hide a wrong order of features."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 20, 32, dtype=torch.float64)
    model = make(name, (3, 20, 32), 4).double()
    plain = model(images)
    gradient = torch.autograd.grad(plain.square().sum(), list(model.parameters()))
    stored = model.to(memory_format=torch.channels_last)
    assert torch.allclose(stored(images), plain, atol=1e-12)
    logits = stored(images.contiguous(memory_format=torch.channels_last))
    assert torch.allclose(logits, plain, atol=1e-12)
    again = torch.autograd.grad(logits.square().sum(), list(stored.parameters()))
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(again, gradient, strict=True))


@pytest.mark.parametrize("name", [*CLASSIFIERS, *GENERATORS])
def test_weights_follow_the_callers_seed(name):
    def weights(seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.utils.parameters_to_vector(make(name, space_of(name), 4).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_features_and_the_last_layer_are_the_model_and_so_is_its_flat_form(name):
    torch.manual_seed(0)
    model = make(name, space_of(name), 4).eval()
    images = samples_of(name, 2)
    logits = model(images)
    assert torch.equal(model.classify(model.features(images)), logits)
    assert isinstance(model.head, nn.Linear)
    assert model.head.in_features == model.feature_size
    assert torch.allclose(FlatModule(model).freeze()(images), logits, atol=1e-5)


REFUSED = [
    ("lenet5", (1, 3, 3), "lenet5 takes images of 4x4 or more, this data has 3x3"),
    ("resnet8", (3, 4, 4), "resnet8 takes images of 5x5 or more, this data has 4x4"),
    ("cnn2", (3, 9, 3), "cnn2 takes images of 4x4 or more, this data has 9x3"),
    ("simple_cnn", (3, 8, 8), "simple_cnn takes images of 16x16 or more, this data has 8x8"),
    ("lenet5", (64,), r"lenet5 takes images \(channels, height, width\), this data has numbers \(64,\)"),
    ("dafl_image", (1, 30, 30), "sides are multiples of 4, not 30x30"),
]


@pytest.mark.parametrize(("name", "shape", "message"), REFUSED)
def test_shape_that_does_not_fit_is_told(name, shape, message):
    with pytest.raises(RecipeError, match=message) as refused:
        make(name, shape, 10)
    assert refused.value.path == ("method.generator.name" if name in GENERATORS else "model.name")


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (2, 8, 12)])
def test_generator_makes_images_of_the_datas_shape(shape):
    generator = make("dafl_image", shape, 10, width=8, latent=5)
    images = generator(torch.randn(4, 5))
    assert images.shape == (4, *shape)
    assert images.min() >= 0
    assert images.max() <= 1


def test_batchnorm_eps_reaches_the_convolutions_only():
    generator = make("dafl_image", (1, 8, 8), 10, width=8, batchnorm_eps=0.8)
    assert [m.eps for m in generator.modules() if isinstance(m, nn.BatchNorm2d)] == [1e-5, 0.8, 0.8]


@pytest.mark.parametrize(("into", "side", "batch"), [(4, 8, 2), (3, 7, 3), (16, 4, 1)])
def test_shortcut_is_torchs_strided_1x1_convolution(into, side, batch):
    """Held against torch in float64, whose kernel is not the one that corrupts memory."""
    shortcut = Shortcut(into, 5, 2)
    exact = nn.Conv2d(into, 5, 1, stride=2, bias=False).double()
    exact.load_state_dict({"weight": shortcut.weight.detach().double()})
    images = torch.randn(batch, into, side, side).contiguous(memory_format=torch.channels_last)
    ours, theirs = images.clone().requires_grad_(), images.double().requires_grad_()
    made, expected = shortcut(ours), exact(theirs)
    (made**2).sum().backward()
    (expected**2).sum().backward()
    for got, wanted in (
        (made, expected),
        (ours.grad, theirs.grad),
        (shortcut.weight.grad, exact.weight.grad),
    ):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)


def test_bottleneck_resnet_without_its_stem_takes_feature_maps_and_has_464_parameters_less():
    """3 x 9 x 16 of the convolution and 2 x 16 of its norm; the first bottleneck widens what comes."""
    assert count("bottleneck_resnet", (16, 32, 32), blocks=[6, 6, 6], stem=False) == 591_322 - 432 - 32
    torch.manual_seed(0)
    whole = make("bottleneck_resnet", (3, 32, 32), 10)
    rest = make("bottleneck_resnet", (16, 32, 32), 10, stem=False)
    own = {name: value for name, value in whole.state_dict().items() if not name.startswith("body.0.")}
    rest.load_state_dict(dict(zip(rest.state_dict(), own.values(), strict=True)))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(rest.eval()(whole.eval().between(0, 1, images)), whole(images))


def test_layers_before_the_last_have_their_outputs_shape():
    model = make("m1", (3, 32, 32), 10)
    shapes = {name: layer_shape(model, name, (3, 32, 32), "method.cut") for name in ("C1", "C3", "F2")}
    assert shapes == {"C1": (8, 16, 16), "C3": (512,), "F2": (16,)}
    with pytest.raises(
        RecipeError, match=r"method\.cut: 'F3' is no layer before the model's last; there are C1"
    ):
        layer_shape(model, "F3", (3, 32, 32), "method.cut")
    with pytest.raises(
        RecipeError, match=r"method\.cut: a Linear has no named layers.*torchvision:resnet18.*Classifier"
    ):
        layer_shape(nn.Linear(3, 2), "F1", (3,), "method.cut")


@pytest.mark.parametrize(("channels", "expected"), [(3, 127_899), (1, 127_611)])
def test_discriminator_head_on_the_trunk_adds_257(channels, expected):
    trunk = make("bottleneck_resnet", (channels, 32, 32), 10)
    head = load_object(HEADS["linear"], "head")((trunk.feature_size,), 1)
    assert sum(p.numel() for module in (trunk, head) for p in module.parameters()) == expected


def test_buffers_of_fedcg_feature_are_its_norms():
    """Means and variances of 512, 256 and 128 channels, and the counter of each."""
    assert sum(b.numel() for b in make("fedcg_feature", (16, 5, 5), 10).buffers()) == 2 * 896 + 3


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fedcg_feature", (16, 5, 5)),
        ("conditional_image", (1, 8, 8)),
        ("dense_image", (1, 8, 8)),
        ("dense_feature", (12,)),
    ],
)
def test_conditional_generator_makes_its_space_and_heeds_the_class(name, shape):
    torch.manual_seed(0)
    generator = make(name, shape, 3).eval()
    noise = torch.randn(1, generator.latent).repeat(3, 1)
    made_ = generator(noise, torch.tensor([0, 1, 1]))
    assert made_.shape == (3, *shape)
    torch.testing.assert_close(made_[1], made_[2])
    assert not torch.allclose(made_[0], made_[1])


def test_growing_layer_is_torchs_transposed_convolution():
    torch.manual_seed(0)
    ours = make("fedcg_feature", (16, 5, 5), 3, width=8).body[0]
    theirs = nn.ConvTranspose2d(ours.in_channels, ours.out_channels, 2, bias=False)
    theirs.load_state_dict(ours.state_dict())
    for side in (1, 3):
        maps = torch.randn(4, ours.in_channels, side, side)
        torch.testing.assert_close(ours(maps), theirs(maps), rtol=1e-4, atol=1e-5)


def test_images_of_the_conditional_generator_have_mean_zero_and_deviation_one_as_normalised_ones():
    generator = make("conditional_image", (3, 8, 8), 4, width=8).train()
    images = generator(torch.randn(64, 100), torch.arange(64) % 4)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3), rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("name", "shape", "stage", "maps"),
    [
        ("simple_cnn", (3, 32, 32), 6, (16, 5, 5)),
        ("lenet5", (1, 28, 28), 6, (16, 5, 5)),
        ("bottleneck_resnet", (1, 28, 28), 4, (256, 7, 7)),
    ],
)
def test_last_maps_and_what_follows_them(name, shape, stage, maps):
    model = make(name, shape, 10).eval()
    assert last_maps(model, shape) == (stage, maps)
    images = torch.randn(2, *shape)
    torch.testing.assert_close(model.between(stage, None, model.between(0, stage, images)), model(images))


def test_pooling_before_relu_gives_the_bits_of_relu_before_pooling():
    stream = torch.Generator().manual_seed(3)
    for layout in (torch.contiguous_format, torch.channels_last):
        plain = torch.randn(4, 6, 8, 8, generator=stream).round(decimals=1)  # with ties
        found = []
        for order in (pooled_relu(), reversed(pooled_relu())):
            images = plain.clone(memory_format=layout).requires_grad_()
            maps = nn.Sequential(*order)(images)
            (maps * torch.arange(maps.numel()).view(maps.shape)).sum().backward()
            found.append((maps.detach(), images.grad))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# ResNets of torchvision's form have one-pixel maps at their end and BatchNorm before; a ViT has no maps.
OTHERS = {"mlp", "dense", "short_resnet", "small_vit"}


@pytest.mark.parametrize("name", sorted({*OF_IMAGES} - OTHERS))
def test_no_classifier_has_batchnorm_behind_its_last_maps(name):
    """So generated feature maps, which enter there (KDIA), move no running statistics."""
    model = make(name, (3, 32, 32), 10)
    behind = model.stages[last_maps(model, (3, 32, 32))[0] :]
    assert behind
    assert not [part for stage in behind for part in stage.modules() if isinstance(part, _BatchNorm)]
