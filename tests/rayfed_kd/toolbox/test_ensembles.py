"""An ensemble is its members, batched or not."""

import pytest
import torch

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.resnet import bottleneck_resnet
from rayfed_kd.models.small_cnns import simple_cnn
from rayfed_kd.toolbox.ensembles import Ensemble


def members(make, count=3):
    torch.manual_seed(7)
    vectors = []
    for _ in range(count):
        flat = FlatModule(make())
        flat.storage[flat.num_parameters :].uniform_(0.5, 1.5)  # running statistics that differ
        vectors.append(flat.vector())
    return FlatModule(make()).freeze(), vectors


CASES = {
    "heads": (lambda: simple_cnn((3, 32, 32), 10), lambda m, x: m.between(6, None, x), (5, 16, 5, 5)),
    "networks with BatchNorm": (lambda: bottleneck_resnet((1, 8, 8), 4, width=4), None, (5, 1, 8, 8)),
}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_ensemble_gives_what_each_member_gives(case, batched):
    make, function, shape = CASES[case]
    flat, vectors = members(make)
    inputs = torch.randn(shape)
    found = Ensemble(flat, vectors, function, batched=batched)(inputs)
    for vector, logits in zip(vectors, found, strict=True):
        flat.load(vector)
        expected = flat(inputs) if function is None else function(flat.module, inputs)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batched", [True, False])
def test_each_gives_every_member_its_own_inputs(batched):
    make, function, shape = CASES["heads"]
    flat, vectors = members(make)
    inputs = torch.randn(3, *shape)
    found = Ensemble(flat, vectors, function, batched=batched).each(inputs)
    for vector, own, logits in zip(vectors, inputs, found, strict=True):
        flat.load(vector)
        torch.testing.assert_close(logits, function(flat.module, own), rtol=1e-4, atol=1e-5)


def test_gradient_reaches_the_inputs_and_is_the_same_both_ways():
    make, function, shape = CASES["heads"]
    flat, vectors = members(make)
    inputs = torch.randn(shape)
    gradients = []
    for batched in (True, False):
        leaf = inputs.clone().requires_grad_()
        Ensemble(flat, vectors, function, batched=batched)(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert gradients[0].abs().max() > 0


def test_module_that_lends_its_form_keeps_its_values():
    make, function, shape = CASES["heads"]
    flat, vectors = members(make)
    before = flat.vector()
    Ensemble(flat, vectors, function, batched=True)(torch.randn(shape))
    assert torch.equal(flat.vector(), before)
