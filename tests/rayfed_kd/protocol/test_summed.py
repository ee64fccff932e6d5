"""The server's half of `local.sum_replies`: sums of groups, worked by hand, and what it refuses."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from rayfed_kd.errors import RunError
from rayfed_kd.protocol import Replies, Reply
from rayfed_kd.protocol.summed import GroupSum, SummedReply


@dataclass
class Sums:
    """Sums that lie in this process."""

    arrays: dict = field(default_factory=dict)

    def resolve(self):
        return self.arrays


def summed(group, client, weights, **reply):
    """A reply that is at the server, in a group."""
    answer = Reply(**reply)
    answer.client, answer.origin = client, f"round 1, client {client}, step"
    answer.in_sum = SummedReply(group, weights)
    return answer


def replies_of(sums, weights):
    """Replies of groups: clients -> what their host sent; client -> its weight."""
    return Replies(
        [
            summed(group, client, {"v": weights[client]}, v=torch.zeros(2), samples=weights[client])
            for clients, array in sums.items()
            for group in [GroupSum(Sums({"v": np.array(array, np.float64)}), clients)]
            for client in clients
        ]
    )


# v_2 = [1, 2] of 1 sample, v_5 = [3, -1] of 2, v_7 = [0.5, 4] of 4; clients 2 and 5 share a host, 7 is left:
# 1 v_2 + 2 v_5 = [7, 0], 4 v_7 = [2, 16], and in all 7 samples.
WEIGHTS = {2: 1.0, 5: 2.0, 7: 4.0}
SUMS = {(2, 5): [7.0, 0.0], (7,): [2.0, 16.0]}


def test_the_new_vector_is_the_sum_by_all_weights_of_groups_or_of_replies_in_the_type_of_the_one_before():
    alone = [Reply(v=torch.tensor(v).double(), samples=n) for n, *v in ((1, 1, 2), (2, 3, -1), (4, 0.5, 4))]
    for replies in (replies_of(SUMS, WEIGHTS), Replies(alone)):
        for kind in (torch.float32, torch.float64):
            new = replies.aggregated("v", replies.numbers("samples"), torch.zeros(2, dtype=kind))
            assert new.dtype == kind and torch.equal(new, torch.tensor([9 / 7, 16 / 7], dtype=kind))


def test_a_mean_is_the_sum_of_the_groups_by_the_number_of_replies():
    replies = replies_of({(2, 5): [4.0, 1.0], (7,): [0.5, 4.0]}, dict.fromkeys(WEIGHTS, 1.0))
    assert torch.equal(replies.mean("v"), torch.tensor([4.5 / 3, 5 / 3], dtype=torch.float32))


def test_replies_that_weigh_nothing_leave_the_vector():
    replies = replies_of({(2, 5): [0.0, 0.0]}, {2: 0.0, 5: 0.0})
    now = torch.tensor([3.0, 4.0])
    assert torch.equal(replies.aggregated("v", [0.0, 0.0], now), now)


def test_other_weights_than_the_hosts_are_an_error_that_says_what_to_do():
    replies = replies_of(SUMS, WEIGHTS)
    message = (
        r"round 1, client 5, step: the server weighs 'v' by 1, and its host has weighed it by 2, .*"
        r"Averaged\(\.\.\., by=\.\.\.\).* local\.sum_replies=off"
    )
    with pytest.raises(RunError, match=message):
        replies.aggregated("v", [1.0, 1.0, 4.0], torch.zeros(2))
    with pytest.raises(ValueError, match="3 replies and 2 weights"):
        replies.aggregated("v", [1.0, 2.0], torch.zeros(2))


def test_a_sum_of_clients_whose_replies_are_missing_is_an_error():
    replies = list(replies_of(SUMS, WEIGHTS))
    some = Replies([reply for reply in replies if reply.client != 5])
    with pytest.raises(RunError, match=r"sums of clients \[2, 5, 7\] came for the replies of \[2, 7\]"):
        some.aggregated("v", [1.0, 4.0], torch.zeros(2))


def test_a_part_that_no_host_summed_is_an_error():
    with pytest.raises(RunError, match=r"client 2, step: the reply has no 'w', .*; there are v$"):
        replies_of(SUMS, WEIGHTS).mean("w")


def test_sums_of_unequal_shapes_are_not_broadcast():
    replies = replies_of({(2, 5): [7.0, 0.0], (7,): [2.0]}, WEIGHTS)
    with pytest.raises(RunError, match=r"shapes \[2\] and \[1\], the latter of clients \[7\]"):
        replies.aggregated("v", [1.0, 2.0, 4.0], torch.zeros(2))


def test_a_summed_replys_parts_are_seen_through_means_only():
    replies = replies_of(SUMS, WEIGHTS)
    assert "v" in replies[0]
    assert replies.numbers("samples") == [1.0, 2.0, 4.0]
    for reading in (lambda: replies[0]["v"], lambda: list(replies.vectors("v"))):
        with pytest.raises(RunError, match=r"local\.sum_replies: the method reads a reply's 'v' by itself"):
            reading()


def test_a_copy_of_a_groups_sums_is_made_once():
    copies = []

    def publish(arrays):
        copies.append(Sums(dict(arrays)))
        return copies[-1]

    group = GroupSum(Sums({"v": np.ones(2)}), [1, 2])
    assert group.copied(publish) is group
    assert group.copied(publish) is group
    assert len(copies) == 1
    assert group.resolve() is copies[0].arrays
