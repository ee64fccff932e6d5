"""DKDR: weights of both divergences and groups by hand, the identity with FedAvg, what travels."""

import pytest
import torch
from runs import reply_of

from rayfed_kd.algorithms.dkdr import DKDR, Options, ServerState, finch, head_share
from rayfed_kd.cluster.engine.calls import Held
from rayfed_kd.protocol import Replies

# t = (2, 0, -1), u = (1, 0.5, 0); probabilities (.4, .35, .25) and (.3, .5, .2) as logits.
TAUGHT = torch.tensor([[2.0, 0.0, -1.0], [0.4, 0.35, 0.25]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0.5, 0.0], [0.3, 0.5, 0.2]], dtype=torch.float64)
TAUGHT[1], STUDENT[1] = TAUGHT[1].log(), STUDENT[1].log()
LENET5 = 21_386


@pytest.mark.parametrize(
    ("rows", "share", "total"),
    [([0], 0.5, 0.2890641718), ([1], 1 / 3, 0.0469435888), ([0, 1], 0.4166666667, 0.1707757658)],
)
def test_both_divergences_are_weighed_by_where_the_two_differ(rows, share, total):
    taught, student = TAUGHT[rows], STUDENT[rows]
    assert head_share(taught.softmax(1), student.softmax(1), 0.5).item() == pytest.approx(share, abs=1e-9)
    assert DKDR(Options()).distillation(taught, student).item() == pytest.approx(total, abs=1e-9)


def test_gradient_of_the_second_divergence_passes_both_its_places():
    """d/dz sum_c q_c (log q_c - log p_c) = q (log q - log p - KL), q of the student, p of the teacher."""
    logits = STUDENT[:1].clone().requires_grad_()
    head = head_share(TAUGHT[:1].softmax(1), logits.detach().softmax(1), 0.5)
    DKDR(Options()).distillation(TAUGHT[:1], logits).backward()
    q, p = STUDENT[:1].softmax(1), TAUGHT[:1].softmax(1)
    reverse = (q * (q / p).log()).sum()
    wanted = head * (q - p) + (1 - head) * q * ((q / p).log() - reverse)
    torch.testing.assert_close(logits.grad, wanted)


def test_a_sample_without_difference_counts_half():
    same = TAUGHT[:1].softmax(1)
    assert head_share(same, same, 0.5).item() == 0.5


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        ([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], [0, 0, 1, 1]),
        ([[3.0, 4.0]], [0]),
        ([[1, 0], [0, 0.5]], [0, 0]),  # nobody is alone where there are two
        ([[0, 1], [1, 0], [0.9, 0.1], [0.1, 0.9], [0.2, 0.8]], [0, 1, 1, 0, 0]),
    ],
)
def test_groups_are_chains_of_nearest_rows(rows, groups):
    assert finch(torch.tensor(rows), rank=1.0).tolist() == groups


def test_lengths_of_rows_decide_nothing():
    rows = torch.tensor([[1.0, 0.0], [9.0, 1.0], [0.0, 1.0], [0.01, 0.09]])
    assert finch(rows, rank=1.0).tolist() == [0, 0, 1, 1]


def test_groups_means_by_samples_are_fedavgs_model(bench):
    table = bench({"name": "dkdr"}, "local.optimizer.lr=0.1", "partition.clients=6")
    ctx = table.server()
    server = table.method.init_server(ctx)
    replies = table.exchange(server, [0, 1, 2, 3])
    after = table.method.absorb(server, replies, ctx)
    assert 1 <= len(after.experts) <= 2
    groups = finch(torch.stack(list(replies.vectors("student"))) - server.weights, 0.2)
    counts = torch.tensor(replies.numbers("samples"))
    sizes = torch.stack([counts[groups == group].sum() for group in range(len(after.experts))])
    mixed = (sizes[:, None] * after.experts).sum(0) / sizes.sum()
    torch.testing.assert_close(mixed, after.weights, atol=1e-6, rtol=1e-5)


def test_a_late_clients_change_is_from_the_model_that_it_was_sent(bench):
    """Clients 0 and 2 change by x, late and fresh, 1 and 3 by y; the model has moved by 1 meanwhile."""
    table = bench({"name": "dkdr", "rank": 1.0})
    ctx = table.server(2)
    older, stream = ctx.initial_vector(), torch.Generator().manual_seed(1)
    x, y = 0.01 * torch.randn(2, len(older), generator=stream)
    now = older + 1
    models = [older + x, older + y, now + x, now + y]
    replies = [reply_of(k, 1, student=model) for k, model in enumerate(models)]
    for reply in replies[:2]:
        reply.staleness, reply.sent = 1, Held({"student": older.numpy()})
    after = table.method.absorb(ServerState(now, now[None]), Replies(replies), ctx)
    wanted = torch.stack([(models[0] + models[2]) / 2, (models[1] + models[3]) / 2])
    torch.testing.assert_close(after.experts, wanted)


def test_beta_zero_is_fedavg_bit_for_bit(train):
    ours, plain = train({"name": "dkdr", "beta": 0.0}), train({"name": "fedavg"})
    assert torch.equal(ours["global"], plain["global"])


def test_groups_travel_down_from_the_second_round_on(run_small):
    """Three clients a round are one group: each has two others, and links chain."""
    rows = run_small({"name": "dkdr"}).tables["rounds"].to_pylist()
    groups = [int(dict(row["logged"])["groups"]) for row in rows]
    assert groups[:2] == [1, 1]
    assert [row["bytes_down"] for row in rows] == [
        3 * 4 * LENET5 * n for n in (1, 1 + groups[0], 1 + groups[1])
    ]
    assert [row["bytes_up"] for row in rows] == [3 * 4 * LENET5] * 3
