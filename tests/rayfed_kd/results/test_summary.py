"""summary.json: last, best, bytes by kind."""

import json
import math

import pyarrow as pa

from rayfed_kd.files.whole import write_json
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.summary import summarise
from rayfed_kd.results.summary_table import summary_tables


def table(name, rows):
    columns = {c: [row.get(c) for row in rows] for c in SCHEMAS[name].names}
    return pa.table(columns, schema=SCHEMAS[name])


def found(metrics, clients=(), scores=()):
    rounds = [{"round": r, "wall_s": 2.0 * r, "bytes_up": 10, "bytes_down": 30} for r in (1, 2)]
    one = {"client": 0, "direction": "up", "kind": "weights", "bytes": 10, "raw_bytes": 10, "parts": 1}
    messages = [
        {**one, "round": 1},
        {**one, "round": 2, "raw_bytes": 40},
        {**one, "round": 2, "direction": "down", "kind": "metadata", "bytes": 8, "raw_bytes": 8},
    ]
    tables = {"rounds": table("rounds", rounds), "messages": table("messages", messages)}
    tables |= {"metrics": table("metrics", metrics), "clients": table("clients", clients)}
    tables["scores"] = table("scores", scores)
    return summarise(tables, "finished", 3)


def test_best_is_one_round_for_all_metrics():
    """Round 2 has the better FM and WLP; the row is of round 1, whose AMP is largest and comes first."""
    rows = [
        {"round": 1, "model": "global", "amp": 0.6, "fm": 0.02, "wlp": 0.1},
        {"round": 2, "model": "global", "amp": 0.5, "fm": 0.01, "wlp": 0.2},
        {"round": 3, "model": "global", "amp": 0.6, "fm": 0.03, "wlp": 0.3},
    ]
    model = found(rows)["models"]["global"]
    assert (model["best_round"], model["best_by"]) == (1, "amp")
    assert [model["best"][metric] for metric in ("amp", "fm", "wlp")] == [0.6, 0.02, 0.1]
    assert model["best"]["server_accuracy"] is None
    assert model["last"]["wlp"] == 0.3


def test_best_round_is_that_of_the_official_test_where_there_is_one():
    rows = [
        {"round": 1, "model": "global", "amp": 0.6, "server_accuracy": 0.4},
        {"round": 2, "model": "global", "amp": 0.5, "server_accuracy": 0.5},
    ]
    model = found(rows)["models"]["global"]
    assert (model["best_round"], model["best_by"], model["best"]["amp"]) == (2, "server_accuracy", 0.5)


def test_clients_without_test_samples_are_counted():
    rows = [{"round": r, "client": c, "model": m} for r in (1, 2) for c in (0, 2) for m in ("global", "oca")]
    summary = found([], rows)
    assert (summary["clients"], summary["tested_clients"]) == (3, 2)
    assert found([])["tested_clients"] is None


def test_metrics_that_the_recipe_names_have_rows_of_their_own():
    """Round 1 is best by AMP; the mean of .5 and .25 is .375; NaN counts as none."""
    rows = [{"round": r, "model": "global", "amp": amp} for r, amp in ((1, 0.6), (2, 0.5))]
    score = {"model": "global", "metric": "f1", "test": "local", "samples": 4, "better": "larger"}
    other = {**score, "metric": "auroc", "test": "official", "value": math.nan}
    scores = [{**score, "round": 1, "value": 0.5}, {**score, "round": 2, "value": 0.25}]
    summary = found(rows, scores=[*scores, {**other, "round": 1}, {**other, "round": 2}])
    model = summary["models"]["global"]
    assert [model[key]["local_f1"] for key in ("last", "best", "last10")] == [0.25, 0.5, 0.375]
    assert [model[key]["official_auroc"] for key in ("last", "best", "last10")] == [None] * 3
    _, values = summary_tables(summary)
    assert [[str(cell) for cell in column.cells] for column in values.columns] == [
        ["local_f1", "official_auroc"],
        ["global", "global"],
        ["0.2500", "-"],
        ["0.5000", "-"],
    ]
    assert len(summary_tables(found(rows))) == 1


def test_value_that_is_no_number_is_never_the_best():
    rows = [
        {"round": r, "model": "global", "amp": amp} for r, amp in ((1, math.nan), (2, 0.3), (3, math.nan))
    ]
    model = found(rows)["models"]["global"]
    assert (model["last"]["amp"], model["best"]["amp"], model["best_round"]) == (None, 0.3, 2)
    model = found(rows[:1])["models"]["global"]
    assert (model["best"]["amp"], model["best_round"], model["best_by"]) == (None, None, None)


def test_mean_of_the_last_ten_evaluations():
    """UA 0.01 to 0.12 in twelve evaluations: .03 to .12 make .075; what is missing is left out."""
    rows = [{"round": r, "model": "personal", "ua": r / 100} for r in range(1, 13)]
    rows[5]["wlp"] = 0.5
    model = found(rows)["models"]["personal"]
    assert math.isclose(model["last10"]["ua"], 0.075)
    assert (model["last10"]["wlp"], model["last10"]["server_accuracy"]) == (0.5, None)
    assert math.isclose(found(rows[:4])["models"]["personal"]["last10"]["ua"], 0.025)


def test_bytes_add_up_over_rounds_and_by_kind():
    summary = found([])
    assert (summary["rounds"], summary["wall_s"]) == (2, 4.0)
    assert (summary["bytes"]["up"], summary["bytes"]["down"]) == (20, 60)
    assert summary["bytes"]["by_kind"] == {"metadata": {"up": 0, "down": 8}, "weights": {"up": 20, "down": 0}}


def test_bytes_without_codec_add_up_by_kind():
    raw = found([])["bytes"]["raw_by_kind"]
    assert raw == {"metadata": {"up": 0, "down": 8}, "weights": {"up": 10 + 40, "down": 0}}


def test_run_without_a_round_has_a_summary():
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    assert summarise(empty, "failed", 3)["rounds"] == 0


def test_json_is_written_whole_or_not_at_all(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
