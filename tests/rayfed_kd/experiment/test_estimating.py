"""Estimates: the arithmetic by hand, and what is measured; seconds differ from machine to machine."""

from dataclasses import replace

import pytest
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.cluster.server.round_tables import RoundRecord
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment import estimating
from rayfed_kd.experiment.estimating import Estimate, HostMemory, _continued
from rayfed_kd.recipe.sections.local_training import LocalRecipe


def test_run_takes_its_rounds_and_its_evaluations():
    """10 (2 + .5) + 3 . 4 = 37."""
    assert Estimate(2.0, 0.5, 4.0, rounds=10, evaluations=3, measured=(1.0,)).run_s == 37.0


@pytest.mark.parametrize(("where", "held"), [("auto", 700.0), ("batches", 400.0)])
def test_memory_of_a_host_has_the_data_that_the_measurement_left_out(where, held, monkeypatch):
    """A quarter of the data were 100 MiB: three times as much comes on top, unless none lies on the GPU."""
    recipe = rayfed_kd.prepare(THREE_CLIENTS, placement={"gpu_data": where}).setting.recipe
    measured = estimating._Measured(4, 10.0, 1.0, 1.0, 1.0, data_mb=100.0, gpu_mb=400.0)
    seen = []
    monkeypatch.setattr(estimating, "host_memory", lambda *sizes: seen.append(sum(sizes)))
    estimating._memory(recipe, 0.025, measured)
    assert seen == [held]
    assert estimating._memory(recipe, 0.025, replace(measured, gpu_mb=None)) is None


def test_an_estimate_ends_with_a_hosts_memory():
    one = Estimate(2.0, 0.5, 4.0, 10, 3, (1.0,), HostMemory(500.0, 2000.0))
    taken = "a host takes 500 of the GPU's 2,000 MiB: placement.client.num_gpus=0.25 lets 4 share it"
    assert str(one).endswith(f"\n{taken}")


def test_seconds_go_on_along_the_line_through_both_points():
    """.2 a sample: 5 + 80 . .2. What falls is noise and goes on as it is; one point stands for itself."""
    assert _continued([(10, 3.0), (20, 5.0)], 100) == pytest.approx(21.0)
    assert [_continued(points, 100) for points in ([(10, 3.0), (20, 2.0)], [(10, 3.0)])] == [2.0, 3.0]
    # A server that takes as long whatever the samples: a hundredth more is the clock's.
    assert _continued([(1280, 3.0), (2560, 3.03)], 50_000) == 3.03


def test_work_of_an_asynchronous_round_is_of_the_clients_that_it_dispatched():
    """Client 0's reply is of a round before: the seconds are client 2's."""
    prepared = rayfed_kd.prepare(THREE_CLIENTS)
    messages = [{"client": client, "direction": way} for client, way in ((0, "up"), (2, "down"))]
    row = dict.fromkeys(("client_s", "server_s", "evaluate_s", "cohort"), 1)
    record = RoundRecord(5, {"rounds": [row], "messages": messages, "hosts": []})
    one = estimating._last_round(prepared, [record])
    assert (one.clients, one.samples) == (1, prepared.setting.partition.sizes[2])


def test_clients_of_few_batches_are_measured_with_all_their_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    one = rayfed_kd.estimate(THREE_CLIENTS, rounds=7, evaluation={"every": 3}, tell=lines.append)
    assert one.measured == (0.1,)
    assert lines == ["measuring 2 rounds with data.fraction 0.1 and 1 local epoch"]
    assert (one.rounds, one.evaluations) == (7, 3)  # evaluated: 3, 6, and the last, 7
    assert one.clients_s > 0
    assert list(tmp_path.iterdir()) == []


def test_clients_of_many_batches_are_measured_with_two_and_four(tmp_path):
    """1,797 digits, a fifth of each client's for its test: 479 or so for a client, 240 batches of 2."""
    recipe = {**THREE_CLIENTS, "data": {"name": "digits"}, "local": {"epochs": 1, "batch_size": 2}}
    sizes = rayfed_kd.prepare(recipe).setting.partition.sizes
    one = rayfed_kd.estimate(recipe)
    assert one.measured == pytest.approx((4 / sizes.mean(), 8 / sizes.mean()))


def test_clients_seconds_grow_with_their_samples_and_the_servers_stay(monkeypatch):
    """Of 4 clients of a mean of 100: seconds .1 + .01 a sample, the server 3 whatever they hold."""

    def measured(recipe, lines, fraction, epochs, tell):
        samples = round(400 * fraction)
        return estimating._Measured(4, samples, 0.1 + 0.01 * samples, 3.0, 0.5)

    monkeypatch.setattr(estimating, "_fractions", lambda recipe, size: [0.1, 0.2])
    monkeypatch.setattr(estimating, "_measure", measured)
    sizes = rayfed_kd.prepare(THREE_CLIENTS).setting.partition.sizes
    one = rayfed_kd.estimate(THREE_CLIENTS)
    assert one.clients_s == pytest.approx(0.1 + 0.01 * 4 * sizes.mean())
    assert (one.server_s, one.evaluation_s) == (3.0, 0.5)


@pytest.mark.parametrize("a_sample", [0.0, 0.003])
def test_further_epochs_take_what_one_more_took(monkeypatch, a_sample):
    """Work of .01 a sample whatever the epochs, as on what a teacher gives, and .003 or nothing in each."""

    def measured(recipe, lines, fraction, epochs, tell):
        samples = round(400 * fraction)
        return estimating._Measured(4, samples, 0.1 + samples * (0.01 + a_sample * epochs), 3.0, 0.5)

    monkeypatch.setattr(estimating, "_fractions", lambda recipe, size: [0.01, 0.02])
    monkeypatch.setattr(estimating, "_measure", measured)
    one = rayfed_kd.estimate(THREE_CLIENTS, local={"epochs": 5})
    whole = 4 * rayfed_kd.prepare(THREE_CLIENTS).setting.partition.sizes.mean()
    assert one.clients_s == pytest.approx(0.1 + whole * (0.01 + 5 * a_sample))


def test_bad_recipe_is_refused_by_name():
    with pytest.raises(RecipeError, match="fedavgg"):
        rayfed_kd.estimate({**THREE_CLIENTS, "method": {"name": "fedavgg"}})


def test_clients_that_send_nothing_count_as_average_ones(monkeypatch):
    measured, last_round = [], estimating._last_round

    def watched(prepared, records):
        measured.append((last_round(prepared, records), prepared.setting.partition.sizes))
        return measured[-1][0]

    monkeypatch.setattr(estimating, "_last_round", watched)
    rayfed_kd.estimate({**THREE_CLIENTS, "method": {"name": "standalone"}})
    [(one, sizes)] = measured
    assert one.clients == 3
    assert one.samples == pytest.approx(sizes.sum())


def test_method_that_needs_several_epochs_is_measured_with_all_of_them(monkeypatch):
    """FedRep trains its head for 2 of 3 epochs, so one is no recipe; FedAvg is measured with one and two."""
    epochs_of, measure = [], estimating._measure

    def watched(recipe, lines, fraction, epochs, tell):
        epochs_of.append(epochs)
        return measure(recipe, lines, fraction, epochs, tell)

    monkeypatch.setattr(estimating, "_measure", watched)
    fedrep = {"name": "fedrep", "personal": ["F2"], "head_epochs": 2}
    for method in (fedrep, {"name": "fedavg"}):
        recipe = {**THREE_CLIENTS, "method": method, "local": {"epochs": 3}}
        assert rayfed_kd.estimate(recipe).clients_s > 0
    assert epochs_of == [None, 1, 2]  # None: as many as the recipe has


def test_interrupted_estimate_names_no_folder_to_resume(monkeypatch):
    def interrupted(simulation, start):
        raise KeyboardInterrupt

    monkeypatch.setattr(estimating.Simulation, "run", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        rayfed_kd.estimate(THREE_CLIENTS)
    assert stopped.value.args == ("an estimate that is not finished leaves nothing",)


def test_the_official_test_set_shrinks_with_the_training_images(monkeypatch):
    """A tenth and a fifth of 50 test images are 5 and 10, from the first to the last; evaluated once."""
    tested, last_round = [], estimating._last_round

    def watched(prepared, records):
        labels = prepared.setting.dataset.test.labels
        tested.append((labels.tolist(), sum("metrics" in record.tables for record in records)))
        return last_round(prepared, records)

    monkeypatch.setattr(estimating, "_last_round", watched)
    monkeypatch.setattr(estimating, "_fractions", lambda recipe, size: [0.1, 0.2])
    data = {"name": "synthetic", "samples": 600, "test_samples": 50, "classes": 4}
    recipe = {**THREE_CLIENTS, "data": data, "partition": {"name": "iid", "clients": 3, "test": "official"}}
    whole = rayfed_kd.prepare(recipe).setting.dataset.test.labels
    assert rayfed_kd.estimate(recipe, rounds=5).evaluation_s > 0
    # 49 / 4 = 12.25 and 49 / 9 = 5.44 images from one to the next
    assert tested == [
        (whole[[0, 12, 24, 36, 49]].tolist(), 1),
        (whole[[0, 5, 10, 16, 21, 27, 32, 38, 43, 49]].tolist(), 1),
    ]


def test_a_recipe_of_one_round_is_measured_with_one():
    lines = []
    one = rayfed_kd.estimate(THREE_CLIENTS, rounds=1, tell=lines.append)
    assert lines == ["measuring 1 round with data.fraction 0.1 and 1 local epoch"]
    assert "measured in round 1 with" in str(one)


def test_the_last_round_is_measured_in_which_a_method_has_left_its_warm_up(monkeypatch):
    """FedL2G trains after three rounds of warm-up, and logs its cross-entropy then."""
    seen, rates, in_round = [], set(), LocalRecipe.in_round

    def watched(prepared, records):
        seen.extend((record.round, *record.tables["rounds"][0]["logged"]) for record in records)
        return estimating._Measured(3, 10.0, 1.0, 1.0, 1.0)

    def told(local, *rounds):
        rates.add(rounds)
        return in_round(local, *rounds)

    monkeypatch.setattr(estimating, "_last_round", watched)
    monkeypatch.setattr(LocalRecipe, "in_round", told)
    rayfed_kd.estimate({**THREE_CLIENTS, "method": {"name": "fedl2g", "warmup": 3}, "rounds": 5})
    assert [(number, "ce" in losses) for number, *losses in seen] == [(1, False), (5, True)]
    assert rates == {(number, 5) for number in (0, 1, 5)}


def test_a_last_round_without_clients_is_the_servers_alone():
    method = {"name": "datafree", "teacher_rounds": 1, "steps": 1}
    made_up = {"name": "synthetic", "samples": 90, "test_samples": 9, "classes": 3}
    one = rayfed_kd.estimate(
        {**THREE_CLIENTS, "method": method, "model": {"name": "lenet5"}, "data": made_up},
        partition={"name": "iid", "clients": 1, "test": "official"},
        local={"epochs": 2},
    )
    assert one.clients_s == 0 < one.server_s
