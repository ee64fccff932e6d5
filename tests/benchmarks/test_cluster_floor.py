"""The benchmark of a cluster's network: the parts that need neither root nor a cluster."""

from pathlib import Path

import pytest


@pytest.fixture
def floor(monkeypatch):
    """The script, importable as from its command."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import cluster_floor

    return cluster_floor


def test_bytes_and_seconds_are_a_rounds_without_the_first_and_the_last(floor):
    # Four rounds: the links are looked at after each. Between the first and the third lie two.
    counters = [{"head": (at, 10 * at)} for at in (100, 300, 900, 5000)]
    times = zip((1.0, 3.0, 7.0, 50.0), (9.0, 1.0, 2.0, 9.0), (5, 10, 30, 99), strict=True)
    rows = [
        {"round": n, "wall_s": wall, "client_s": client, "bytes_up": up, "bytes_down": 2 * up}
        for n, (wall, client, up) in enumerate(times, 1)
    ]
    one = floor.seen(counters, rows)
    assert one.crossed == {"head": (400.0, 4000.0)}  # (900 - 100) / 2
    assert one.round_s == 3.0  # of 3 - 1 and 7 - 3
    assert one.waited_s == 1.5
    assert one.counted == (20.0, 40.0)


def test_what_pays_is_twice_what_spread_takes_longer(floor):
    def took(seconds):
        return [floor.Seen(seconds, 0.0, {}, (0.0, 0.0))]

    runs = {("2.2", "head", "1gbit"): took(2.0), ("2.2", "spread", "1gbit"): took(3.5)}
    (line,) = floor.what_pays(runs)
    assert line.startswith("- FedAvg, 2.2 M, 1gbit: spread takes +1.50 s a round; ")
    assert "from 3.0 s of training" in line


def test_the_model_has_as_many_parameters_as_asked(floor, tmp_path):
    from rayfed_kd.experiment.preparation import prepare

    told = floor.recipe("0.1", "spread", 3, tmp_path)
    model = prepare(told).setting.builders["model"]()
    assert sum(one.numel() for one in model.parameters()) == pytest.approx(0.1e6, rel=0.01)
    prepare(floor.recipe("fedgems", "head", 3, tmp_path))  # is a recipe
