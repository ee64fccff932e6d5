"""FedSD2C: losses and choice by hand, boxes, crops, senders' teachers, what travels, refusals."""

import math

import numpy as np
import pytest
import torch
from runs import run_in_process
from small_recipes import FOUR_CLIENTS
from torch.nn import functional as F

from rayfed_kd.algorithms.fedsd2c import Options, cropped, easiest_crops, random_boxes, senders_logits
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare

LENET5 = 21_386
LOGITS = torch.tensor([[2.0, 0.0, -1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.0]])
ONCE = {**FOUR_CLIENTS, "rounds": 1, "sampling": {"fraction": 1.0}, "evaluation": {"samples": False}}


class Whole:
    """A context that gives all items as one batch."""

    def in_batches(self, items, *, every):
        assert every
        return (items,)


def told(images):
    """The logits of the place that an image's first pixel names."""
    return LOGITS[images[:, 0, 0, 0].long()]


def bright(images):
    """Logits of two classes; the first is the brightness."""
    return torch.stack([images.mean((1, 2, 3)), torch.zeros(len(images))], 1)


def run(**options):
    method = {"name": "fedsd2c", "ipc": 3, "small_classes": "send", "crops": 2, "epochs": 2, **options}
    return run_in_process({**ONCE, "method": method})


def test_cross_entropies_by_hand():
    """Of the logits t, u, v, label 0: 0.1698460196, 0.6802696706, 1.5514447139; two images: t and u stay."""
    images = torch.arange(3.0)[:, None, None, None].expand(3, 1, 2, 2)
    easiest, losses = easiest_crops(told, images, 0, Options(crops=0), None, Whole())
    assert losses.tolist() == pytest.approx([0.1698460196, 0.6802696706, 1.5514447139], abs=1e-7)
    assert torch.equal(easiest, images)
    assert losses.argsort()[:2].tolist() == [0, 1]


def test_the_crop_with_the_smallest_loss_stays():
    """The model likes class 0 the more, the brighter the image: of ten boxes that with the largest mean."""
    stream = torch.Generator().manual_seed(1)
    images = torch.rand(5, 1, 8, 8, generator=stream)
    state = stream.get_state()
    easiest, _ = easiest_crops(bright, images, 0, Options(), stream, Whole())
    stream.set_state(state)
    crops = cropped(images.repeat(10, 1, 1, 1), random_boxes(50, (8, 8), 0.08, stream)).view(10, 5, 8, 8)
    for image in range(5):
        brightest = max(range(10), key=lambda place: crops[place, image].mean().item())
        assert torch.equal(easiest[image, 0], crops[brightest, image])


@pytest.mark.parametrize("sides", [(8, 8), (6, 20)])
def test_boxes_lie_in_the_image_and_have_their_area(sides):
    boxes = random_boxes(4000, sides, 0.1, torch.Generator().manual_seed(3))
    start, size = boxes[:, :2], boxes[:, 2:]
    assert torch.equal(boxes, boxes.round())
    assert (start >= 0).all()
    assert (size >= 1).all()
    assert (start + size <= torch.tensor(sides)).all()
    whole = (size == torch.tensor(sides)).all(1)
    # Rounding each side moves it by at most half a pixel.
    least = 0.1 * math.prod(sides)
    assert ((size[:, 0] + 0.5) * (size[:, 1] + 0.5) >= least)[~whole].all()
    ratios = (size[:, 1] / size[:, 0])[~whole]
    assert (((size[:, 1] + 0.5) / (size[:, 0] - 0.5))[~whole] >= 3 / 4).all()
    assert (((size[:, 1] - 0.5) / (size[:, 0] + 0.5))[~whole] <= 4 / 3).all()
    assert ratios.min() < 1 < ratios.max()
    assert (start[~whole] > 0).any()


def test_a_box_is_stretched_as_torch_stretches_its_pixels():
    images = torch.rand(3, 2, 7, 9, generator=torch.Generator().manual_seed(2))
    boxes = torch.tensor([[0.0, 0, 7, 9], [2, 3, 4, 5], [6, 8, 1, 1]])
    for image, (top, left, height, width), found in zip(
        images, boxes.int().tolist(), cropped(images, boxes), strict=True
    ):
        box = image[None, :, top : top + height, left : left + width]
        expected = F.interpolate(box, (7, 9), mode="bilinear", align_corners=False)[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_crops_of_the_whole_area_are_the_images():
    """A box of the whole area fits only where its sides are the image's."""
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(4))
    boxes = random_boxes(4, (8, 8), 1.0, torch.Generator().manual_seed(5))
    torch.testing.assert_close(cropped(images, boxes), images, rtol=0, atol=1e-5)


def test_each_image_is_told_of_by_its_senders_model():
    models = [lambda shown: shown[:, :, 0, 0] + 10, lambda shown: shown[:, :, 0, 0] + 20, None]
    images = torch.arange(4.0)[:, None, None, None]
    said = senders_logits(models, torch.tensor([1, 0, 1, 1]), images)
    assert said[:, 0].tolist() == [20.0, 11.0, 22.0, 23.0]


def test_models_and_core_sets_travel_once():
    result = run()
    rows = result.tables["messages"].to_pylist()
    assert {row["direction"] for row in rows} == {"up"}
    for client in range(4):
        sent = {row["kind"]: row["bytes"] for row in rows if row["client"] == client}
        assert sent["weights"] == 4 * LENET5
        pixels = sent["images"] // sent["labels"]
        assert pixels == 8 * 8  # float32 each, an int32 class
        assert 0 < sent["labels"] // 4 <= 3 * 10


def test_a_small_class_is_left_out_as_released():
    """Of a class with more than ten samples at a client ten labels of 4 bytes are sent, of others none."""
    setting = prepare({**ONCE, "method": {"name": "fedsd2c"}}).setting
    labels = np.asarray(setting.dataset.train.labels)
    counts = np.stack([np.bincount(labels[part], minlength=10) for part in setting.partition.train])
    assert 0 < (counts > 10).sum() < (counts > 0).sum()
    rows = run(ipc=10, small_classes="leave out").tables["messages"].to_pylist()
    sent = [sum(r["bytes"] for r in rows if (r["client"], r["kind"]) == (k, "labels")) for k in range(4)]
    assert sent == (40 * (counts > 10).sum(axis=1)).tolist()


def test_core_sets_without_an_image_are_told():
    """Nobody has more than 10,000 samples of a class: nothing but models is sent, and nothing learned."""
    result = run(ipc=10_000, small_classes="leave out")
    kinds = {row["kind"] for row in result.tables["messages"].to_pylist() if row["bytes"]}
    assert kinds == {"weights"}
    assert (result.models["student"] == run(epochs=0).models["student"]).all()
    assert dict(result.tables["rounds"].to_pylist()[0]["logged"])["core_set"] == 0


def test_the_student_learns_from_the_core_sets():
    """Clients train ten epochs; guessing is right for one in ten."""
    method = {"name": "fedsd2c", "ipc": 30, "small_classes": "send", "epochs": 30, "batch_size": 32}
    method["optimizer"] = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    local = {"epochs": 10, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}}
    result = run_in_process({**ONCE, "method": method, "local": local})
    (row,) = (row for row in result.tables["metrics"].to_pylist() if row["model"] == "student")
    assert row["amp"] > 0.3  # of ten classes


def test_samples_that_are_no_images_are_refused():
    recipe = {
        **ONCE,
        "method": {"name": "fedsd2c"},
        "data": {"name": "synthetic_text"},
        "model": {"name": "fast_text"},
    }
    with pytest.raises(RecipeError, match="generates crops of images; this data set has"):
        prepare(recipe, ())
