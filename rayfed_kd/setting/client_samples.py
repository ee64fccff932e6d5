"""Whether clients' samples suffice: for batches that their models train on, a warm-up, a test of anybody."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rayfed_kd.errors import RecipeError, counted
from rayfed_kd.protocol import RECIPE_MODEL
from rayfed_kd.recipe.registry import blame
from rayfed_kd.recipe.sample_shapes import Shape
from rayfed_kd.setting.modules.module_checks import drawn_samples
from rayfed_kd.setting.setting import Setting


def check_samples(setting: Setting) -> None:
    """Refuse what the sizes of the clients' parts make impossible.

    Raises: RecipeError
    """
    _check_tested(setting)
    trained, local = setting.method.trained_samples, setting.recipe.local
    sizes = [trained(samples, local) for samples in setting.partition.sizes.tolist()]
    _check_whole_batches(setting, sizes)
    _check_single_samples(setting, sizes)
    _check_warmup(setting, max(sizes))


def _check_tested(setting: Setting) -> None:
    partition, drawn = setting.recipe.partition, setting.recipe.evaluation.clients
    # An official test set is none for clients' own models, unless the recipe says so.
    own = partition.test == "local" and "personal" in setting.method.evaluates
    if len(setting.tested.indices) or (setting.dataset.test is not None and not own):
        return
    whose = f"{partition.clients} clients" if drawn is None else f"{drawn} clients of evaluation.clients"
    lacking = "which their own models need" if own else f"and {setting.dataset.name} has no official test set"
    raise RecipeError(
        f"none of the {whose} has a test sample, {lacking}; "
        "expected fewer partition.clients, a larger data.fraction or partition.test_fraction than "
        f"{partition.test_fraction:g}, or data with a test set, for partition.test=official",
        path="partition.clients",
    )


def _check_whole_batches(setting: Setting, sizes: Sequence[int]) -> None:
    local = setting.recipe.local
    short = [client for client, samples in enumerate(sizes) if 0 < samples < local.batch_size]
    if local.last_batch == "drop" and short:
        raise RecipeError(
            f"local.last_batch = 'drop': client {short[0]} has "
            f"{counted(sizes[short[0]], 'sample')} to train on, fewer than one batch of local.batch_size = "
            f"{local.batch_size}, and would train on nothing, as {len(short)} of {len(sizes)} clients; "
            "expected keep or join, or a smaller local.batch_size"
        )


def _check_single_samples(setting: Setting, sizes: Sequence[int]) -> None:
    """Whether a batch of one sample meets a model that cannot train on one, as with BatchNorm."""
    local = setting.recipe.local
    alone = [client for client, samples in enumerate(sizes) if 1 in local.batch_sizes(samples)]
    # What a method's clients train beside their own model is the recipe's, as FML's meme.
    beside = [n for n, model in setting.method.architectures().items() if model.name == RECIPE_MODEL]
    for name in dict.fromkeys([*beside, *(setting.models_by_client[client] for client in alone)]):
        with_it = [c for c in alone if name in beside or setting.models_by_client[c] == name]
        with torch.random.fork_rng(devices=[]):  # layers draw their initial values there
            fault = single_sample_fault(setting.builders[name](), setting.dataset.shape) if with_it else None
        if fault is not None:
            samples = sizes[with_it[0]]
            raise RecipeError(
                f"local.last_batch = {local.last_batch!r}: client {with_it[0]} has "
                f"{counted(samples, 'sample')} to train on, and local.batch_size = {local.batch_size} leaves "
                f"a batch of one, as at {len(with_it)} of {len(sizes)} clients; "
                f"{setting.architectures.described(name).name} cannot train on one: "
                f"{fault}; expected {_cure(samples, local.batch_size)}"
            )


def _check_warmup(setting: Setting, most_samples: int) -> None:
    local = setting.recipe.local
    rates, steps = local.lr_schedule, local.steps_of(most_samples)
    if rates and rates.steps and 0 < steps <= rates.steps.warmup:
        raise RecipeError(
            f"local.lr_schedule.steps.warmup = {rates.steps.warmup}: the rate would rise to the end; "
            f"expected fewer than the {steps:,} steps of the largest client"
        )


def _cure(samples: int, batch_size: int) -> str:
    if batch_size == 1:
        return "a local.batch_size of 2 or more"
    if samples == 1:
        return "two samples or more for each client to train on, by a larger partition.min_size"
    return "local.last_batch=join or drop, or another local.batch_size"


def single_sample_fault(module: nn.Module, shape: Shape) -> str | None:
    """Why a classifier that trains on two samples cannot train on one; None if it can, or on neither.

    Args:
        module: a new one, which this changes.
        shape: of a sample.
    """
    samples = drawn_samples(shape, 0)
    with torch.random.fork_rng(devices=[]):  # dropout draws there
        torch.manual_seed(0)
        if _fault(module, samples) is not None:
            return None  # whatever is wrong with it, batches of one are not the reason
        return _fault(module, samples[:1])


def _fault(module: nn.Module, samples: Tensor) -> str | None:
    try:
        with torch.no_grad():
            module.train()
            logits = module(samples)
        if len(logits) != len(samples):
            return f"it makes {tuple(logits.shape)} of {len(samples)}"
        # A layer of one's own may divide by a deviation, which one sample does not have.
        return None if bool(torch.isfinite(logits).all()) else "its logits are not finite"
    except Exception as error:  # of a module of anybody's, which is tried
        return blame(error)
