"""The public set: drawn before the partition, apart from it, saved with it, and the same everywhere."""

import numpy as np
import pytest
import torch
from contexts import client_context
from small_recipes import MADE_UP

from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import DataError, RecipeError, RunError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.protocol import DispatchFacts

RECIPE = {
    **MADE_UP,
    "method": {"name": "fedavg"},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5, "public": {"fraction": 0.5}},
    "rounds": 1,
}
NEEDY = """
from rayfed_kd.algorithms.fedavg import FedAvg

class Samples(FedAvg):
    public = "samples"

class Labels(FedAvg):
    public = "labels"
"""


def setting(*overrides):
    return prepare(RECIPE, overrides).setting


def of_client(found, client=0, round_index=1):
    return client_context(found, DispatchFacts(client, round_index, round_index))


def private(partition):
    return np.concatenate([*partition.train, *partition.test])


def total(found):
    return len(found.dataset.train.labels)


def test_public_and_private_are_disjoint_and_complete():
    found = setting()
    everything = np.concatenate([found.partition.public, private(found.partition)])
    assert sorted(everything.tolist()) == list(range(total(found)))
    assert len(found.partition.public) == total(found) // 2
    assert (np.diff(found.partition.public) > 0).all()


def test_number_and_share_name_the_same_set():
    by_share, by_number = setting(), setting(f"partition.public={{count: {total(setting()) // 2}}}")
    assert np.array_equal(by_share.partition.public, by_number.partition.public)
    assert all(
        np.array_equal(*parts)
        for parts in zip(by_share.partition.train, by_number.partition.train, strict=True)
    )


def test_public_set_is_drawn_from_a_stream_of_its_own():
    first, other = (
        setting().partition,
        setting("partition={name: iid, clients: 5, public: {fraction: 0.5}}").partition,
    )
    assert np.array_equal(first.public, other.public)
    assert not np.array_equal(first.train[0], other.train[0])
    assert not np.array_equal(first.public, setting("seed=2").partition.public)


def test_keeping_fewer_public_samples_leaves_the_private_side_as_it_is():
    """FedGEMS Fig. 4: smaller sets lie in larger ones."""
    partitions = [setting(f"partition.public={{fraction: 0.5, keep: {keep}}}").partition for keep in (10, 20)]
    assert [len(p.public) for p in partitions] == [10, 20]
    assert set(partitions[0].public) < set(partitions[1].public) < set(setting().partition.public)
    for partition in partitions:
        assert np.array_equal(private(partition), private(setting().partition))


def test_saved_partition_brings_its_public_set(tmp_path):
    drawn, path = setting().partition, tmp_path / "partition.parquet"
    drawn.save(path)
    again = setting(f"partition.file={path}").partition
    assert np.array_equal(again.public, drawn.public)
    assert np.array_equal(private(again), private(drawn))
    with pytest.raises(RecipeError, match=r"partition\.public: .* has \d+ public samples, expected 0"):
        setting(f"partition.file={path}", "partition.public=null")
    with pytest.raises(RecipeError, match=r"has \d+ public samples, expected 7"):
        setting(f"partition.file={path}", "partition.public={count: 7}")
    with pytest.raises(DataError, match="over samples of other labels or in another order"):
        setting(f"partition.file={path}", "data.classes=4")
    with pytest.raises(RecipeError, match=r"partition\.test: .* says what clients test on; expected local"):
        setting(f"partition.file={path}", "partition.test=official", "data.test_samples=9")


def test_shared_public_set_is_of_the_clients_training_samples(tmp_path):
    """The clients' split is that of a recipe without a public set; nobody is tested on a public sample."""
    shared, path = "partition.public={count: 7, apart: false}", tmp_path / "partition.parquet"
    drawn, alone = setting(shared).partition, setting("partition.public=null").partition
    for ours, theirs in zip((*drawn.train, *drawn.test), (*alone.train, *alone.test), strict=True):
        assert np.array_equal(ours, theirs)
    assert len(np.unique(drawn.public)) == 7 and np.isin(drawn.public, np.concatenate(drawn.train)).all()
    drawn.save(path)
    assert np.array_equal(setting(f"partition.file={path}", shared).partition.public, drawn.public)


def test_shared_public_set_cannot_be_larger_than_what_clients_train_on():
    with pytest.raises(RecipeError, match=r"partition\.public\.count = 59: the clients train on \d+ samples"):
        setting("partition.public={count: 59, apart: false}")


def test_saved_public_sample_that_a_client_has_is_refused(tmp_path):
    drawn, path = setting().partition, tmp_path / "partition.parquet"
    Partition(drawn.train, drawn.test, drawn.origin, np.append(drawn.public, drawn.train[0][0])).save(path)
    with pytest.raises(DataError, match="gives a sample to two clients or parts"):
        setting(f"partition.file={path}")


def test_images_and_labels_of_an_id_are_the_same_for_server_and_clients():
    found = setting()
    ids = torch.tensor([3, 0, 7])
    chosen = found.partition.public[ids.numpy()]
    train = found.dataset.train
    contexts = [found.server_context(1), of_client(found, 0), of_client(found, 3)]
    for ctx in contexts:
        assert len(ctx.public) == len(found.partition.public)
        assert ctx.public.labels(ids).tolist() == train.labels[chosen].tolist()
        assert torch.equal(ctx.public.images(ids), contexts[0].public.images(ids))
    pixels = torch.from_numpy(np.asarray(train.images[chosen], dtype=np.float32)) / 255
    expected = (pixels - found.dataset.mean[0]) / found.dataset.std[0]
    assert torch.allclose(contexts[0].public.images(ids), expected, atol=1e-6)


def test_public_batches_are_not_augmented_and_have_an_order_of_their_own():
    found = setting("data.augment=crop_flip")
    ctx = of_client(found)
    batches = list(ctx.public.epoch(0, 16))
    ids = torch.cat([batch.ids for batch in batches])
    assert sorted(ids.tolist()) == list(range(len(ctx.public)))
    assert torch.equal(torch.cat([batch.images for batch in batches]), ctx.public.images(ids))
    for other in (ctx.public.epoch(1, 16), of_client(found, 1).public.epoch(0, 16)):
        assert next(other).ids.tolist() != batches[0].ids.tolist()
    again = of_client(found).public.epoch(0, 16)
    assert next(again).ids.tolist() == batches[0].ids.tolist()
    assert torch.equal(torch.cat([b.ids for b in ctx.public.in_order()]), ctx.public.ids)
    some = torch.tensor([5, 2, 9])
    assert torch.equal(next(ctx.public.in_order(some)).ids, some)
    assert sorted(torch.cat([b.ids for b in ctx.public.epoch(0, 2, some)]).tolist()) == [2, 5, 9]


def test_a_public_set_leaves_clients_own_batches_alone():
    found = setting()
    first, second = of_client(found), of_client(found)
    list(second.public.epoch(0, 16))
    assert torch.equal(next(first.epoch(0)).images, next(second.epoch(0)).images)


def test_public_samples_take_simulated_time_as_private_ones_do():
    """A pass over each: what the clock charges a client for is both."""
    found = setting()
    ctx = of_client(found)
    assert sum(len(batch.ids) for batch in ctx.public.epoch(0, 16)) == len(found.partition.public)
    assert sum(len(labels) for _, labels in ctx.epoch(0)) == ctx.num_samples
    assert ctx.samples_drawn == len(found.partition.public) + ctx.num_samples


def test_unknown_labels_are_not_given():
    ctx = of_client(setting("partition.public={fraction: 0.5, labels: false}"))
    assert len(ctx.public.images(torch.tensor([0]))) == 1
    with pytest.raises(RunError, match=r"partition\.public\.labels is false"):
        ctx.public.labels(torch.tensor([0]))
    with pytest.raises(RunError, match=r"no partition\.public: a method that needs it says so"):
        len(of_client(setting("partition.public=null")).public)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["partition.public={}"], r"partition\.public: give exactly one of fraction and count"),
        (["partition.public={fraction: 0.5, count: 3}"], r"give exactly one of fraction and count"),
        (
            ["partition.public={fraction: 1.0}"],
            r"partition\.public\.fraction = 1.0: expected a number below 1",
        ),
        (
            ["partition.public={count: 5000}"],
            r"partition\.public\.count = 5000: there are \d+ training samples",
        ),
        (
            ["partition.public={count: 5, keep: 6}"],
            r"partition\.public\.keep = 6: there are 5 public samples",
        ),
        (["partition.public={frction: 0.5}"], r"partition\.public\.frction is no key of partition\.public"),
        (["method.name=needy:Samples", "partition.public=null"], r"needy:Samples needs public samples, as"),
        (
            ["method.name=needy:Labels", "partition.public={count: 5, labels: false}"],
            r"partition\.public\.labels = false: needy:Labels needs the labels",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_round(changes, message, own_module):
    own_module("needy", NEEDY)
    with pytest.raises(RecipeError, match=message):
        setting(*changes)


def test_method_that_needs_no_labels_runs_without(own_module):
    own_module("needy", NEEDY)
    assert setting("method.name=needy:Samples", "partition.public={count: 5, labels: false}")
