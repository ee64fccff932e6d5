"""Which modules many clients may train as one program: those whose every part is of a known type.

torch.vmap runs a module's own forward pass with stacked weights. Whether that gives what single clients get
is not tried: it is known of the types that stand here, each shown by
tests/rayfed_kd/models/test_batchable.py. A model with any other part trains client by client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from rayfed_kd.models import attention, base, generators, mlp, projected, resnet, text

BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, projected.SteadyBatchNorm2d)
# Exact types: a subclass may compute something else.
TYPES = {
    *(nn.Sequential, nn.ModuleList, nn.Identity, nn.Flatten, nn.Unflatten),
    *(nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding, nn.LayerNorm, nn.GroupNorm, *BATCHNORM),
    *(nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Upsample),
    *(base.Classifier, base.Generator, base.ConditionalGenerator, base.Shortcut),
    *(resnet.BasicBlock, resnet.Bottleneck),
    *(attention.AttentionBlock, attention.Patches, attention.MeanOfPlaces),
    *(text.MeanEmbedding, text.MeanOfPairs, text.Encoder, mlp.RowEmbedding),
    *(generators.Embedded, generators.Projected, generators.OneHot, generators.Growing),
}
# Of some types not all options.
OPTIONS: Mapping[type[nn.Module], Callable[[Any], bool]] = {
    # Without one it makes a Python number of its counter.
    **dict.fromkeys(BATCHNORM, lambda layer: layer.momentum is not None),
    nn.Conv2d: lambda layer: layer.padding_mode == "zeros",
    # Others change rows of the weight outside of the gradient, or make of the gradient something else.
    nn.Embedding: lambda layer: (
        (layer.max_norm, layer.padding_idx, layer.scale_grad_by_freq, layer.sparse)
        == (None, None, False, False)
    ),
    nn.MaxPool2d: lambda layer: not layer.return_indices,
    nn.Upsample: lambda layer: layer.mode == "nearest",
}
OWN = ("training", "_parameters", "_buffers", "_modules")  # what a module's construction fills
BARE = vars(nn.Module())  # no hooks


def unbatchable(module: nn.Module) -> str:
    """Why clients' modules of this architecture cannot train as one program; empty if they can.

    Returns: where in the module, and what is there.
    """
    for path, part in module.named_modules():
        fault = _fault(part)
        if fault:
            return (
                f"{path or 'the model itself'} is a {type(part).__module__}.{type(part).__qualname__}{fault}"
            )
    if len(list(module.parameters())) < len(list(module.named_parameters(remove_duplicate=False))):
        return "it has one parameter in two places"
    return ""


def _fault(part: nn.Module) -> str:
    """What of a module, without those within it, is not known to be right."""
    if type(part) not in TYPES:
        return f", which is not on the list of {__name__}"
    if type(part) in OPTIONS and not OPTIONS[type(part)](part):
        return f" with options that are not known to be right: {part}"
    if type(part) not in BATCHNORM and next(part.buffers(recurse=False), None) is not None:
        return " with a buffer of its own"
    for name, value in vars(part).items():
        if name not in OWN and not (value == BARE[name] if name in BARE else _is_plain(value)):
            return f" with hooks, or an attribute that is no number or text: {name}"
    for name, parameter in part.named_parameters(recurse=False):
        # Stacked weights are other tensors, without what `register_hook` gave to this one.
        hooked = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        if hooked or parameter.dtype != torch.float32 or not parameter.requires_grad:
            return f" whose {name} is frozen or not float32, or has hooks on its gradient"
    return ""


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
