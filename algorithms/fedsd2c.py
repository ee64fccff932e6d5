"""FedSD2C (`coreset`): one exchange; clients send their model and a core set, on which the server distils.

Zhang, Liu, Wang 2024, One-shot Federated Learning via Synthetic Distiller-Distillate Communication, NeurIPS,
arXiv 2412.05186; released code: Carkham/FedSD2C, its mode `coreset`.

    client    trains its own model; of each class with more than ipc samples, of at most 500 of them:
              of 10 random resized crops of an image the one with the smallest CE of the model stays;
              of the images the ipc with the smallest CE: the core set
    up        the model and the core set with its classes       4 P_k + 4 (c h w + 1) bytes an image
    server    a new student, on all core sets, flipped at random, in batches
              KL(softmax(z_k), softmax(z_s)),  z_k of the model of the client that sent the image
    down      the student, before a further exchange            4 P bytes; nothing before the first

Clients' models may be of any architectures; the student is of the recipe's `model`. The core set is made of
clients' own images: it shows them to the server. The paper's full method synthesises distillates from it with
the image codec of Stable Diffusion, which is not here. Readings: boxes are drawn as torchvision's
RandomResizedCrop draws them, with the whole image where ten tries do not fit; images are sent as models see
them, not augmented; the rate falls by epochs, as released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    FlatModule,
    Message,
    MethodOptions,
    OptimizerRecipe,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.data_free.one_shot import OneShot, OneShotState
from rayfed_kd.toolbox.generation import SHOWN
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.losses import distillation
from rayfed_kd.toolbox.optimizers import Optimizer

SGD = {"name": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4}
RATIOS, TRIES = (3 / 4, 4 / 3), 10  # of a box's sides; how often one is drawn, as in torchvision


class Options(MethodOptions):
    """FedSD2C's options; the defaults are those of the released code on Imagenette."""

    ipc: int = Field(50, ge=1, description="images of a class in a core set")
    seen: int = Field(500, ge=1, description="samples of a class that are looked at, at most")
    small_classes: Literal["leave out", "send"] = Field(
        "leave out", description="a class with at most ipc samples at a client: not in its core set, or whole"
    )
    crops: int = Field(10, ge=0, description="random resized crops of an image; 0: the image itself")
    least_area: float = Field(0.08, gt=0, le=1, description="share of the image that a crop has at least")
    epochs: int = Field(100, ge=0, description="the student's passes over all core sets")
    batch_size: int = Field(128, ge=1, description="images a step")
    optimizer: OptimizerRecipe = Field(OptimizerRecipe.model_validate(SGD), description="of the student")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of its rate, by epochs")


class FedSD2C(OneShot, plain_training=True):
    """Distiller-distillate communication, with core sets as distillates."""

    options: Options
    summary = "one exchange: clients send models and core sets of their images, on which the server distils"
    paper = "Zhang et al. 2024, arXiv 2412.05186"
    generates = "crops of images"
    server_keeps = "the student, some images of core sets to look at"
    up = {"trained": Unaligned("weights"), "images": Unaligned("images"), "labels": Unaligned("labels")}

    def architectures(self) -> dict[str, Architecture]:
        """None but the models: there is no generator."""
        return {}

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train as in DENSE; send the model and its core set."""
        trained = ctx.model(message["student"] if "student" in message else ctx.initial_vector())
        train_on_labels(trained, ctx)
        vector = trained.vector()
        images, labels = self.core_set(ctx.frozen_model(vector), ctx)
        return None, Reply(trained=vector, images=images, labels=labels.int())

    def core_set(self, model: FlatModule, ctx: ClientContext) -> tuple[Tensor, Tensor]:
        """The core set of a client under its model: images [n, c, h, w] as models see them, classes [n]."""
        options, stream = self.options, ctx.stream("core set")
        images, labels = (torch.cat(column) for column in zip(*ctx.samples(), strict=True))
        chosen, classes = [images[:0]], [labels[:0]]
        present, counts = torch.unique(labels, return_counts=True)
        for label, count in zip(present.tolist(), counts.tolist(), strict=True):
            if count <= options.ipc and options.small_classes == "leave out":
                continue
            order = torch.randperm(count, generator=stream, device=ctx.device)[: options.seen]
            candidates = images[labels == label][order]
            easiest, losses = easiest_crops(model, candidates, label, options, stream, ctx)
            places = losses.argsort(stable=True)[: options.ipc]
            chosen.append(easiest[places])
            classes.append(torch.full((len(places),), label, dtype=labels.dtype, device=ctx.device))
        return torch.cat(chosen), torch.cat(classes)

    def absorb(self, server: OneShotState, replies: Replies, ctx: ServerContext) -> OneShotState:
        """Distil the senders' models into the student on all core sets."""
        options, stream = self.options, ctx.stream("distillates")
        counts = torch.tensor([len(reply["labels"]) for reply in replies], device=ctx.device)
        ctx.log(core_set=float(counts.sum()))  # 0: no client has more than ipc images of a class
        if not counts.sum():
            return server
        models = [ctx.frozen_model(reply["trained"], ctx.client_models[reply.client]) for reply in replies]
        images = torch.cat([reply["images"].to(ctx.device) for reply in replies])
        senders = torch.arange(len(models), device=ctx.device).repeat_interleave(counts)
        student = ctx.model(server.student)
        learning = Optimizer(options.optimizer, student)
        for epoch in range(options.epochs):
            factor = (
                (1 + math.cos(math.pi * epoch / options.epochs)) / 2 if options.schedule == "cosine" else 1.0
            )
            order = torch.randperm(len(images), generator=stream, device=ctx.device)
            for chosen in ctx.in_batches(order, options.batch_size):
                flips = torch.rand(len(chosen), 1, 1, 1, generator=stream, device=ctx.device) < 0.5
                batch = torch.where(flips, images[chosen].flip(3), images[chosen])
                kl = distillation(senders_logits(models, senders[chosen], batch), student(batch))
                ctx.log(distillation=kl)
                learning.minimise(kl, factor=factor)
        labels = torch.cat([reply["labels"] for reply in replies])[:SHOWN].long()
        pictures = ctx.pixels(images[:SHOWN]).cpu()
        return OneShotState(student.vector().cpu(), server.version + 1, pictures, labels)


def easiest_crops(
    model: FlatModule,
    images: Tensor,
    label: int,
    options: Options,
    stream: torch.Generator,
    ctx: ClientContext,
) -> tuple[Tensor, Tensor]:
    """Of each image of a class the crop with the smallest cross entropy, [n, c, h, w], and that, [n]."""
    easiest, losses = [], []
    for batch in ctx.in_batches(images, every=True):
        crops = batch[None]
        if options.crops:
            repeated = batch.repeat(options.crops, 1, 1, 1)
            boxes = random_boxes(len(repeated), batch.shape[2:], options.least_area, stream)
            crops = cropped(repeated, boxes).view(options.crops, *batch.shape)
        with torch.no_grad():
            ce = -model(crops.flatten(0, 1)).log_softmax(1)[:, label].view(len(crops), -1)
        smallest = ce.min(0)
        easiest.append(crops[smallest.indices, torch.arange(len(batch), device=batch.device)])
        losses.append(smallest.values)
    return torch.cat(easiest), torch.cat(losses)


def random_boxes(number: int, sides: Sequence[int], least_area: float, stream: torch.Generator) -> Tensor:
    """Boxes in images of sides (h, w): top and left edge, height and width, [number, 4], in whole pixels.

    The area is uniform from its least share to all, the logarithm of width / height from that of 3/4 to 4/3.
    Of ten tries the first counts that is no larger than the image; if there is none, the whole image.
    """
    image = torch.tensor(sides, dtype=torch.float32, device=stream.device)
    drawn = torch.rand(4, number, TRIES, generator=stream, device=stream.device)
    area = image.prod() * (least_area + (1 - least_area) * drawn[0])
    ratio = RATIOS[0] * (RATIOS[1] / RATIOS[0]) ** drawn[1]
    size = torch.stack([(area / ratio).sqrt(), (area * ratio).sqrt()], 2).round()
    start = torch.stack([drawn[2], drawn[3]], 2) * (image - size + 1)
    tries = torch.cat([torch.minimum(start.floor(), image - size), size], 2)
    fits = ((size >= 1) & (size <= image)).all(2)
    first = tries[torch.arange(number, device=stream.device), fits.int().argmax(1)]
    return torch.where(fits.any(1)[:, None], first, torch.cat([0 * image, image]))


def cropped(images: Tensor, boxes: Tensor) -> Tensor:
    """Each image's own box, stretched to the image's size, bilinear: [n, c, h, w] of [n, c, h, w], [n, 4]."""
    grid = []
    for axis, side in enumerate(images.shape[2:]):
        start, length = boxes[:, axis, None], boxes[:, axis + 2, None]
        pixels = (torch.arange(side, device=boxes.device) + 0.5) * length / side - 0.5
        inside = start + torch.minimum(pixels.clamp(min=0), length - 1)  # nothing from beyond the box
        grid.append((2 * inside + 1) / side - 1)  # grid_sample counts each side from -1 to 1
    shape = len(images), *images.shape[2:]
    rows, columns = grid[0][:, :, None].expand(shape), grid[1][:, None, :].expand(shape)
    return F.grid_sample(images, torch.stack([columns, rows], 3), align_corners=False)


def senders_logits(models: list[FlatModule], senders: Tensor, images: Tensor) -> Tensor:
    """Each image's logits of its sender's model, [n, C]; senders [n] are places in `models`."""
    with torch.no_grad():
        indices = [(senders == place).nonzero()[:, 0] for place in range(len(models))]
        rows = [(index, models[place](images[index])) for place, index in enumerate(indices) if len(index)]
    return torch.cat([logits for _, logits in rows])[torch.cat([index for index, _ in rows]).argsort()]
