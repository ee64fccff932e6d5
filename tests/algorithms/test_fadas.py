"""FADAS: torch's own AMSGrad on the mean change, and the rate by the largest delay, by hand."""

import pytest
import torch

from rayfed_kd.algorithms.fadas import FADAS, Options, rate
from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.protocol import Replies, Reply
from rayfed_kd.timing import UpdateRule


@pytest.mark.parametrize(("delay", "factor"), [(0, 1), (1, 1), (2, 0.5), (5, 0.2)])
def test_rate_is_divided_by_a_delay_above_the_bound(delay, factor):
    assert rate(Options(), delay) == pytest.approx(0.001 * factor)
    assert rate(Options(tau_c=None), delay) == 0.001


@pytest.mark.parametrize("tau_c", [1, None])
def test_updates_are_torchs_amsgrad_on_the_mean_change(bench, tau_c):
    """Two replies an update; a late one's change is from the model that it was sent."""
    table = bench({"name": "fadas", "eta": 0.01, "tau_c": tau_c})
    ctx, rule = table.server(), UpdateRule(normalisation="count")
    server = table.method.init_server(ctx)
    w = torch.nn.Parameter(server.weights.clone())
    adam = torch.optim.Adam([w], lr=0.01, betas=(0.9, 0.99), eps=1e-8, amsgrad=True)
    stream, sent = torch.Generator().manual_seed(1), server.weights.clone()
    for delay in (0, 3, 1):
        changes = torch.randn(2, len(w), generator=stream)
        replies = []
        for client, (base, tau) in enumerate(((server.weights, 0), (sent, delay))):
            reply = Reply(student=base + changes[client], samples=7)
            reply.client, reply.staleness, reply.sent = client, tau, Held({"student": base.numpy()})
            replies.append(reply)
        server = table.method.absorb(server, Replies(replies, rule), ctx)
        adam.param_groups[0]["lr"] = 0.01 / (delay if tau_c and delay > 1 else 1)
        w.grad = -changes.mean(0)
        adam.step()
        torch.testing.assert_close(server.weights, w.detach(), atol=2e-5, rtol=1e-5)
    assert server.updates == 3 and isinstance(table.method, FADAS)


def test_in_rounds_one_step_has_the_length_of_eta_everywhere(bench):
    """Adam's first step is eta times the change's sign, wherever it is large beside eps."""
    table = bench({"name": "fadas", "eta": 0.05})
    ctx = table.server()
    server = table.method.init_server(ctx)
    replies = table.exchange(server, [0, 1, 2])
    after = table.method.absorb(server, replies, ctx)
    mean = sum(one["student"] * one["samples"] for one in replies) / sum(replies.numbers("samples"))
    large = (mean - server.weights).abs() > 1e-4
    step = (after.weights - server.weights)[large]
    torch.testing.assert_close(step, 0.05 * (mean - server.weights)[large].sign(), atol=1e-4, rtol=1e-3)
