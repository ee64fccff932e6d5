"""What rows cost, by hand: bytes, codecs' factors, epsilon, and the pictures over them."""

import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from known_comparison import COSTS, any_costs, compared, write_yaml

from rayfed_kd.cli.main import commands
from rayfed_kd.cluster.server.traffic import METADATA, SIMULATION
from rayfed_kd.comparison.compare import write_comparison
from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.curves import AXES, MIB, NOT_COUNTED, Cost, Curve, RunTotals, totals_of
from rayfed_kd.comparison.studies import Study
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.comparison.table_text import remarks
from rayfed_kd.comparison.writers.all_tables import (
    cost_table,
    cost_title,
    main_table,
    number_text,
    render_markdown,
)
from rayfed_kd.comparison.writers.latex import render_latex
from rayfed_kd.comparison.writers.parquet import comparison_table
from rayfed_kd.comparison.writers.pictures import curves_picture
from rayfed_kd.errors import RecipeError
from rayfed_kd.reporting.study_sections import comparison_section
from rayfed_kd.results.charts.lines import spans_a_decade
from rayfed_kd.results.tables import TableWriter, read_table

REPLACED = {"neighbours": "replace one client", "noise": "server", "sampling": "2 of 4 clients"}


def mebibytes(comparison, raw=None):
    """The same numbers, MiB for bytes; of row A as many up and down without a codec as `raw` says."""
    factor = {"bytes_up": MIB, "bytes_down": MIB}
    costs = {
        label: [
            Cost(*(int(getattr(cost, name) * unit) for name, unit in factor.items()), cost.sim_s)
            for cost in by_round
        ]
        for label, by_round in COSTS.items()
    }
    curves = {
        key: Curve(curve.rounds, curve.values, costs[key[0]]) for key, curve in comparison.curves.items()
    }
    totals = {
        (label, seed): RunTotals(
            costs[label][-1],
            Cost(*(int(size * MIB) for size in ((raw if raw and label == "A" else None) or sent(label)))),
        )
        for label, seed in comparison.totals
    }
    return Comparison(comparison.study, curves, totals)


def sent(label):
    return COSTS[label][-1].bytes_up, COSTS[label][-1].bytes_down


def test_costs_of_a_run_by_hand():
    """A sends 3 times 4 and 6 MiB, B 2 and 3; A needs 3 simulated seconds and B has no clock."""
    comparison = mebibytes(compared())
    assert cost_table(comparison).header == ["run", "MiB up", "MiB down", "MiB", "simulated s"]
    assert cost_table(comparison).rows == [
        ["A", "12.00", "18.00", "30.00", "3.0"],
        ["B", "6.00", "9.00", "15.00", ""],
    ]
    assert cost_title(comparison) == "Costs of a whole run, mean over seeds"


def test_the_fastest_seeds_real_seconds_are_shown_where_the_study_asks_for_totals():
    """A's seed 2 takes 1.5 s as everywhere, its seed 1 nine more."""
    known = compared(totals=True)
    slower = {key: replace(run, cost=replace(run.cost, wall_s=10.5)) for key, run in known.totals.items()}
    totals = {**known.totals, ("A", 1): slower["A", 1]}
    comparison = Comparison(known.study, known.curves, totals)
    assert cost_table(comparison).header[-1] == "real s, fastest seed"
    assert [line[-1] for line in cost_table(comparison).rows] == ["1.5", "1.5"]


def test_codecs_have_the_bytes_without_them_and_the_factor():
    """48 MiB up for 12 are 4 times as much, 18 for 18 once, 66 for 30 2.2 times."""
    comparison = mebibytes(compared(), raw=(48, 18))
    names = [f"without codec: {name}" for name in ("MiB up", "MiB down", "MiB")]
    assert cost_table(comparison).header[4:7] == names
    assert cost_table(comparison).rows[0][4:7] == ["48.00 (x 4)", "18.00", "66.00 (x 2.2)"]
    assert cost_table(comparison).rows[1][4:7] == ["6.00", "9.00", "15.00"]
    assert "how many times as much" in cost_title(comparison)


def test_cost_to_the_target_in_each_direction():
    """.6: A in rounds 4 and 2: 8 and 4 MiB up, 12 and 6 down, 2 and 1 s; B with seed 1 in round 6."""
    comparison = mebibytes(compared(target=0.6))
    names = ("rounds", "MiB up", "MiB down", "MiB", "simulated s")
    assert cost_table(comparison).header[-5:] == [f"to target: {name}" for name in names]
    assert cost_table(comparison).rows[0] == [
        *("A (global)", "12.00", "18.00", "30.00", "3.0"),
        *("3.0", "6.00", "9.00", "15.00", "1.5"),
    ]
    assert cost_table(comparison).rows[1][5:] == ["6.0 (1 of 2 seeds)", "6.00", "9.00", "15.00", ""]
    written = [row for row in comparison_table(comparison).to_pylist() if row["statistic"] == "to target"]
    assert [row["mean"] for row in written if row["run"] == "B"] == [6, 6 * MIB, 9 * MIB, 15 * MIB, None]
    never = mebibytes(compared(target=0.95))
    assert [line[5:] for line in cost_table(never).rows] == [["not reached", "", "", "", ""]] * 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00234567, "0.00235"), (1.0, "1.00"), (12.345, "12.35"), (12345, "12,345.0")],
)
def test_mebibytes_have_three_digits_or_more(value, text):
    assert number_text(value) == text


def private(**rows):
    """The known numbers; the rows that are named have spent these epsilons by seed, a third a round."""
    known = compared(against=["epsilon"])
    totals = {}
    for (label, seed), run in known.totals.items():
        spent = None
        if label in rows:
            epsilon, local = rows[label][seed - 1], None
            spent = {**REPLACED, "epsilon": epsilon, "local_epsilon": local, "delta": 1e-5}
        totals[label, seed] = RunTotals(run.cost, run.raw, spent)
    curves = {}
    for key, curve in known.curves.items():
        last = rows[key[0]][key[2] - 1] if key[0] in rows else None
        spent = [None if last is None else last * step / 3 for step in (1, 2, 3)]
        costs = [Cost(4, 6, epsilon=epsilon) for epsilon in spent]
        curves[key] = Curve(curve.rounds, curve.values, costs)
    return Comparison(known.study, curves, totals)


def test_epsilon_stands_in_the_table_and_says_of_what_it_is():
    comparison = private(A=(6.0, 6.0))
    assert main_table(comparison).header[-2:] == ["epsilon", "delta"]
    assert [line[-2:] for line in main_table(comparison).rows] == [["6", "1e-05"], ["none", "none"]]
    assert remarks(comparison)[-1] == (
        "Epsilon is of one client's data, after the last round: replace one client, noise at the server, "
        "2 of 4 clients in A."
    )


@pytest.mark.parametrize(
    ("epsilons", "text"),
    [
        ((6.0, 9.0), "7.5 ± 2.1"),  # (9 - 6) / sqrt(2) = 2.12
        ((math.inf, math.inf), "inf"),
        ((19196.4, 19196.4), "19,196"),
        ((None, None), "no bound"),
    ],
)
def test_epsilon_over_seeds(epsilons, text):
    comparison = private(A=(1.0, 1.0), B=(1.0, 1.0))
    for seed, epsilon in enumerate(epsilons, start=1):
        comparison.totals["B", seed].privacy["epsilon"] = epsilon
    assert [line[-2] for line in main_table(comparison).rows] == ["1", text]


def test_costs_and_epsilon_are_in_every_file(tmp_path):
    comparison = private(A=(6.0, 9.0))
    text = render_markdown(comparison)
    assert "| run | MiB up | MiB down | MiB |" in text
    assert "7.5 ± 2.1 | 1e-05 |" in text
    table, costs = comparison_section("x", text).tables
    assert (table.header[-2:], costs.title) == (["epsilon", "delta"], "Costs of a whole run, mean over seeds")
    latex = render_latex(comparison)
    assert r"7.5 $\pm$ 2.1 & 1e-05 \\" in latex
    assert r"{\footnotesize Costs of a whole run, mean over seeds.}" in latex
    write_comparison(comparison, tmp_path)
    rows = pq.read_table(tmp_path / "comparison.parquet").to_pylist()
    totals = {(r["run"], r["metric"]): r for r in rows if r["statistic"] == "in all"}
    assert totals["A", "bytes_up"]["seeds"] == [12.0, 12.0]
    assert totals["A", "raw_bytes"]["mean"] == 30.0
    assert (totals["A", "epsilon"]["mean"], totals["A", "epsilon"]["seeds"]) == (7.5, [6.0, 9.0])
    assert totals["A", "delta"]["deviation"] == 0.0
    assert ("B", "epsilon") not in totals
    assert (tmp_path / "against-epsilon-server_accuracy.png").is_file()


def points(figure, label):
    (axes,) = figure.axes
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return [list(map(float, values)) for values in line.get_data()]


def test_headline_is_drawn_over_bytes_with_all_rows_named():
    """A's means over two seeds are .6, .6, .6 at 10, 20, 30 MiB; B's .1, .2, .6 at 5, 10, 15."""
    figure = curves_picture(mebibytes(compared()), "server_accuracy", "bytes")
    assert points(figure, "A (global)") == [[10, 20, 30], pytest.approx([60.0, 60.0, 60.0])]
    assert points(figure, "B (global)") == [[5, 10, 15], pytest.approx([10.0, 20.0, 60.0])]
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_xlabel()) == ("linear", "MiB sent, up and down")
    (first, _) = axes.collections  # a band for each row: A's deviations are .1414, 0 and .2828
    heights = first.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((60 - 28.284, 60 + 28.284), abs=1e-3)
    ends = [line for line in axes.get_lines() if line.get_marker() == "o"]
    last = [tuple(map(float, line.get_xydata()[0])) for line in ends]
    assert last == [pytest.approx((30, 60)), pytest.approx((15, 60))]


@pytest.mark.parametrize(("axis", "costs"), [("bytes_up", [4, 8, 12]), ("bytes_down", [6, 12, 18])])
def test_each_direction_is_an_axis(axis, costs):
    assert points(curves_picture(mebibytes(compared()), "server_accuracy", axis), "A (global)")[0] == costs


def test_axis_is_logarithmic_beyond_a_decade():
    assert not spans_a_decade([1.0, 10.0, math.nan, 0.0])
    assert spans_a_decade([1.0, 10.1])
    assert not spans_a_decade([])
    comparison = mebibytes(compared())
    key = next(key for key in comparison.curves if key[0] == "B")
    comparison.curves[key].costs[0] = Cost(int(0.1 * MIB), 0)
    (axes,) = curves_picture(comparison, "server_accuracy", "bytes").axes
    assert axes.get_xscale() == "log"  # B's first mean is (.1 + 5) / 2 = 2.55 of at most 30


def test_row_without_privacy_is_a_line_over_epsilon():
    """A's epsilon is 2, 4, 6 after its evaluations; B ends at (.9 + .3) / 2."""
    figure = curves_picture(private(A=(6.0, 6.0)), "server_accuracy", "epsilon")
    assert points(figure, "A (global)")[0] == [2.0, 4.0, 6.0]
    assert points(figure, "B (global), no finite epsilon")[1] == pytest.approx([60.0, 60.0])


def test_infinite_epsilon_and_a_row_that_sends_nothing_are_lines():
    figure = curves_picture(private(A=(math.inf, math.inf), B=(3.0, 3.0)), "server_accuracy", "epsilon")
    assert points(figure, "A (global), no finite epsilon")[1] == pytest.approx([60.0, 60.0])
    comparison = mebibytes(compared())
    for key, curve in list(comparison.curves.items()):
        if key[0] == "B":
            comparison.curves[key] = Curve(curve.rounds, curve.values, any_costs(3))
    assert points(curves_picture(comparison, "server_accuracy", "bytes"), "B (global), sends nothing")


def test_more_rows_than_colours_have_looks_of_their_own():
    labels = [f"row {number}" for number in range(10)]
    study = Study.model_validate({"folder": "x", "runs": [{"label": label} for label in labels]})
    curves = {
        (label, "global", 1, "amp"): Curve([1, 2], [0.1, 0.2], [Cost(1, 1), Cost(2, 2)]) for label in labels
    }
    (axes,) = curves_picture(Comparison(study, curves, {}), "amp", "bytes").axes
    lines = [line for line in axes.get_lines() if line.get_label().startswith("row")]
    assert len({(line.get_color(), str(line._dash_pattern)) for line in lines}) == 10


def test_picture_that_no_row_has_anything_for_is_not_drawn_and_said(tmp_path):
    comparison = compared(against=["epsilon", "bytes"])
    assert remarks(comparison)[-1] == "There is no picture over epsilon, of which no row has any."
    names = {path.name for path in write_comparison(comparison, tmp_path)}
    assert "against-bytes-server_accuracy.png" in names
    assert not [name for name in names if "epsilon" in name]


@pytest.mark.parametrize(("metric", "axis"), [("ua", "bytes"), ("server_accuracy", "byte")])
def test_picture_of_nothing_is_refused(metric, axis):
    with pytest.raises(RecipeError, match=r"no row has ua|'byte' is unknown; .* Did you mean bytes\?"):
        curves_picture(compared(), metric, axis)


def test_study_names_one_axis_or_several():
    assert compared(against="bytes").study.against == ["bytes"]
    content = {"folder": "x", "runs": [{"label": "A"}], "against": ["bytes_up"]}
    (study,) = select_studies(content, against=["bytes_up", "epsilon"])
    assert study.against == ["bytes_up", "epsilon"]
    with pytest.raises(RecipeError, match=r"--against: 'epsilom' is unknown; .* Did you mean epsilon\?"):
        select_studies(content, against=["epsilom"])
    with pytest.raises(RecipeError, match="against"):
        select_studies({**content, "against": "MiB"})


def test_help_names_every_axis():
    for command in ("compare", "report"):
        shown = " ".join(CliRunner().invoke(commands, [command, "--help"]).output.split())
        assert not [axis for axis in AXES if axis not in shown]


def test_totals_are_read_from_the_tables_and_leave_out_what_does_not_count(tmp_path):
    """Two rounds of 100 and 30 bytes up; one message took 300 without its codec; helps are 7,000."""
    assert set(NOT_COUNTED) == {METADATA, SIMULATION}
    writer = TableWriter(tmp_path / "tables")
    for index, up in ((1, 100), (2, 30)):
        one = {"round": index, "sim_s": 1.5 * index}
        message = one | {"client": 0, "direction": "up", "parts": 1}
        rows = [
            message | {"kind": "weights", "bytes": up, "raw_bytes": 3 * up},
            message | {"kind": "metadata", "bytes": 8, "raw_bytes": 8},
            message | {"kind": "simulation", "bytes": 7000, "raw_bytes": 7000},
            message | {"kind": "weights", "direction": "down", "bytes": 5, "raw_bytes": 5},
        ]
        spent = one | {"epsilon": 0.5 * index, "delta": 1e-6}
        round_row = one | {"wall_s": 2.0 * index, "bytes_up": up, "bytes_down": 5, "logged": {}}
        writer.write(index, {"rounds": [round_row], "messages": rows, "privacy": [spent]})
    writer.close()
    totals = totals_of({name: read_table(tmp_path, name) for name in ("rounds", "privacy", "messages")})
    assert totals.cost == Cost(130, 10, 3.0, epsilon=1.0)
    assert totals.cost.wall_s == 4.0
    assert (totals.raw.bytes_up, totals.raw.bytes_down, totals.raw.bytes) == (390, 10, 400)
    assert (totals.privacy["epsilon"], totals.privacy["delta"]) == (1.0, 1e-6)


def test_command_line_draws_over_an_axis_and_refuses_another_before_the_first_run(study, tmp_path):
    content = study.model_copy(update={"seeds": [1]}).model_dump()
    path = str(write_yaml(tmp_path / "study.yaml", content))
    refused = CliRunner().invoke(commands, ["compare", path, "--local", "--against", "MiB"])
    assert "--against: 'MiB' is unknown; expected one of bytes, bytes_up" in str(refused.exception)
    assert not (tmp_path / "runs").exists()
    drawn = CliRunner().invoke(commands, ["compare", path, "--local", "--against", "bytes_down"])
    assert drawn.exit_code == 0, drawn.output
    assert drawn.output.splitlines()[-1] == str(tmp_path / "runs" / "against-bytes_down-amp.png")
