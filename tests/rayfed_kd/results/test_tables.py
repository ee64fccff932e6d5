"""Tables: pinned columns, readable at any moment, resumed and ended without loss."""

import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from waiting import wait_until

from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.tables import TableWriter, count_rows, last_round, read_table
from rayfed_kd.results.tables.streams import STREAM

# Every column with its type, in order.
COLUMNS = {
    "rounds": "round int64, sim_s double, wall_s double, dispatch_s double, client_s double, "
    "server_s double, evaluate_s double, bytes_up int64, bytes_down int64, cohort int64, dropped int64, "
    "staleness double, logged map<string, double>, bad_replies int64",
    "metrics": "round int64, sim_s double, model string, amp double, fm double, wlp double, ua double, "
    "server_accuracy double, server_loss double, not_finite int64",
    "clients": "round int64, sim_s double, client int64, model string, samples int64, correct int64, "
    "accuracy double",
    "scores": "round int64, sim_s double, model string, metric string, test string, samples int64, "
    "value double, better string",
    "messages": "round int64, sim_s double, client int64, direction string, kind string, bytes int64, "
    "raw_bytes int64, parts int64",
    "privacy": "round int64, sim_s double, epsilon double, local_epsilon double, delta double, "
    "releases int64, noise_multiplier double, clip double, row_clip double, unit string, neighbours string, "
    "noise string, sampling string, accountant string",
    "hosts": "round int64, sim_s double, host int64, node string, rss_mb double, gpu_mb double, "
    "busy_s double, clients int64, client_ids list<item: int64>, gpu_peak_mb double, gpu_busy double, "
    "gpu_copies_in int64, gpu_bytes_in int64, gpu_copies_out int64, gpu_bytes_out int64",
}


def metric(round_index, model="global"):
    return {"round": round_index, "model": model, "amp": round_index / 10}


def rounds_in(folder):
    return read_table(folder, "metrics")["round"].to_pylist()


def written(folder, rounds):
    writer = TableWriter(folder)
    for round_index in rounds:
        writer.write(round_index, {"metrics": [metric(round_index)]})
    return writer


def files_of(folder, name="metrics"):
    return sorted(path.name for path in (folder / name).iterdir())


def with_both_files(folder, rounds, ended):
    """What a kill leaves between writing a table's new file and removing the old one.

    Args:
        ended: the rounds that the Parquet file has.
    """
    written(folder, ended).close()
    parquet = (folder / "metrics" / "rows.parquet").read_bytes()
    (folder / "metrics" / "rows.parquet").unlink()
    writer = written(folder, rounds)
    (folder / "metrics" / "rows.parquet").write_bytes(parquet)
    return writer


def test_every_table_is_listed_here():
    assert set(COLUMNS) == set(SCHEMAS)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_the_promised_ones(name):
    assert ", ".join(f"{field.name} {field.type}" for field in SCHEMAS[name]) == COLUMNS[name]


def test_rows_come_back_with_nulls_where_a_method_has_none(tmp_path):
    TableWriter(tmp_path).write(1, {"metrics": [metric(1)]})
    (row,) = read_table(tmp_path, "metrics").to_pylist()
    assert row == dict.fromkeys(SCHEMAS["metrics"].names) | {"round": 1, "model": "global", "amp": 0.1}


def test_what_was_logged_comes_back_by_name_from_a_table_that_called_it_losses_too(tmp_path):
    writer, file = TableWriter(tmp_path), tmp_path / "rounds/rows.parquet"
    writer.write(1, {"rounds": [{"round": 1, "logged": {"ce": 1.5, "kl": 0.25}}]})
    writer.close()
    for column in ("logged", "losses"):
        pq.write_table(pq.read_table(file).rename_columns({"logged": column}), file)
        assert read_table(tmp_path, "rounds")["logged"].to_pylist() == [[("ce", 1.5), ("kl", 0.25)]]


def test_table_without_rows_is_empty_with_its_columns(tmp_path):
    TableWriter(tmp_path)
    assert read_table(tmp_path, "hosts").schema == SCHEMAS["hosts"]


def test_a_runs_end_makes_one_parquet_file_of_a_table(tmp_path):
    writer = written(tmp_path, range(1, 101))
    assert files_of(tmp_path) == [STREAM]
    assert rounds_in(tmp_path) == list(range(1, 101))
    writer.close()
    assert files_of(tmp_path) == ["rows.parquet"]
    assert files_of(tmp_path, "hosts") == []
    assert rounds_in(tmp_path) == list(range(1, 101))


def test_kill_between_the_parquet_file_and_the_stream_doubles_nothing(tmp_path):
    with_both_files(tmp_path, range(1, 6), ended=range(1, 6))
    assert rounds_in(tmp_path) == [1, 2, 3, 4, 5]
    TableWriter(tmp_path)
    assert files_of(tmp_path) == [STREAM]
    assert rounds_in(tmp_path) == [1, 2, 3, 4, 5]


def test_kill_while_a_resumed_run_drops_rounds_brings_none_back(tmp_path):
    with_both_files(tmp_path, range(1, 4), ended=range(1, 6))
    assert rounds_in(tmp_path) == [1, 2, 3]
    TableWriter(tmp_path, after_round=3)
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_next_writer_removes_what_a_kill_left_unfinished(tmp_path):
    written(tmp_path, [1]).close()
    (tmp_path / "metrics" / ".part-0123456789abcdef-rows.parquet").write_bytes(b"half written")
    TableWriter(tmp_path)
    assert files_of(tmp_path) == [STREAM]


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("after_round", [0, 1, 3, 5, None])
def test_a_resumed_run_keeps_the_rounds_up_to_its_checkpoint(tmp_path, after_round, ended):
    writer = written(tmp_path, range(1, 6))
    if ended:
        writer.close()
    kept = list(range(1, 6 if after_round is None else after_round + 1))
    resumed = TableWriter(tmp_path, after_round)
    assert rounds_in(tmp_path) == kept
    assert resumed.row_counts(9)["metrics"] == len(kept)
    resumed.write(6, {"metrics": [metric(6, "oca")]})
    assert rounds_in(tmp_path) == [*kept, 6]
    resumed.close()
    assert read_table(tmp_path, "metrics")["model"].to_pylist() == ["global"] * len(kept) + ["oca"]


def test_rows_of_a_round_that_is_there_are_refused(tmp_path):
    writer = written(tmp_path, range(1, 6))
    with pytest.raises(ValueError, match="table metrics has round 5 already; expected a later one"):
        writer.write(3, {"hosts": [{"round": 3, "host": 0}], "metrics": [metric(3)]})
    assert read_table(tmp_path, "hosts").num_rows == 0


def test_reader_looks_again_when_the_run_ends_meanwhile(tmp_path, monkeypatch):
    writer, read = written(tmp_path, [1, 2, 3]), Path.open

    def ending_first(path, *arguments):
        monkeypatch.setattr(Path, "open", read)
        writer.close()
        return read(path, *arguments)

    monkeypatch.setattr(Path, "open", ending_first)
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_reader_looks_again_when_a_run_is_resumed_meanwhile(tmp_path, monkeypatch):
    written(tmp_path, [1, 2, 3]).close()
    listed = Path.glob

    def resumed_first(path, pattern):
        monkeypatch.setattr(Path, "glob", listed)
        TableWriter(tmp_path)
        return listed(path, pattern)

    monkeypatch.setattr(Path, "glob", resumed_first)
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_readers_find_whole_rounds_while_a_writer_writes(tmp_path):
    writer, seen = TableWriter(tmp_path), []

    def read():
        while not seen or seen[-1] < 50 * 300:
            rounds = rounds_in(tmp_path)
            assert rounds == [r for r in range(1, len(rounds) // 50 + 1) for _ in range(50)]
            seen.append(len(rounds))

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read)
        for round_index in range(1, 301):
            writer.write(round_index, {"metrics": [metric(round_index)] * 50})
        reading.result(60)
    assert len(seen) > 1


def test_rows_of_a_round_come_in_order(tmp_path):
    rows = [{"round": 1, "client": c, "model": m} for m in ("oca", "global") for c in (10, 2)]
    TableWriter(tmp_path).write(1, {"clients": rows})
    found = read_table(tmp_path, "clients")
    assert list(zip(found["client"].to_pylist(), found["model"].to_pylist(), strict=True)) == [
        (2, "global"),
        (2, "oca"),
        (10, "global"),
        (10, "oca"),
    ]


def test_metrics_keep_the_order_in_which_the_method_names_its_models(tmp_path):
    rows = [{"round": 1, "model": model} for model in ("server", "personal", "global")]
    TableWriter(tmp_path).write(1, {"metrics": rows})
    assert read_table(tmp_path, "metrics")["model"].to_pylist() == ["server", "personal", "global"]


def test_arrow_reads_the_folder_of_a_finished_table_as_it_lies(tmp_path):
    with_both_files(tmp_path, [1, 2], ended=[1, 2])
    (tmp_path / "metrics" / ".part-0123456789abcdef-rows.parquet").write_bytes(b"half written")
    assert pq.read_table(tmp_path / "metrics").num_rows == 2


def test_a_finished_table_of_several_files_is_of_an_earlier_version(tmp_path):
    written(tmp_path, [1, 2]).close()
    content = (tmp_path / "metrics/rows.parquet").read_bytes()
    (tmp_path / "metrics/part-00000001-00000001.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"has 2 files, as version 0\.1 left"):
        read_table(tmp_path, "metrics")
    (tmp_path / "metrics/rows.parquet").unlink()
    assert rounds_in(tmp_path) == [1, 2]  # version 0.1 merged all parts at a run's end


@pytest.mark.parametrize("ended", [True, False])
def test_a_resumed_run_goes_on_with_a_table_that_lacks_a_newer_column(tmp_path, ended, monkeypatch):
    with monkeypatch.context() as earlier:
        columns = [field for field in SCHEMAS["hosts"] if field.name != "client_ids"]
        earlier.setitem(SCHEMAS, "hosts", pa.schema(columns))
        writer = TableWriter(tmp_path)
        writer.write(1, {"hosts": [{"round": 1, "host": 0, "clients": 2}]})
        if ended:
            writer.close()
    assert "client_ids" not in read_table(tmp_path, "hosts").column_names
    TableWriter(tmp_path, 1).write(2, {"hosts": [{"round": 2, "host": 0, "client_ids": [0, 3]}]})
    assert read_table(tmp_path, "hosts")["client_ids"].to_pylist() == [None, [0, 3]]


def test_unknown_column_is_refused(tmp_path):
    with pytest.raises(KeyError, match="table metrics has no column ampp"):
        TableWriter(tmp_path).write(1, {"metrics": [{"round": 1, "ampp": 3}]})


@pytest.mark.parametrize(
    ("table", "column", "value", "expected"),
    [
        ("metrics", "round", "one", "int64"),
        ("metrics", "amp", "high", "double"),
        ("metrics", "model", 3, "string"),
        ("rounds", "cohort", 1.5, "int64"),
        ("rounds", "logged", {"ce": "low"}, "map"),
    ],
)
def test_value_of_a_wrong_type_is_refused(tmp_path, table, column, value, expected):
    with pytest.raises(TypeError, match=f"table {table}, column {column}: .*{expected}"):
        TableWriter(tmp_path).write(1, {table: [{"round": 1, column: value}]})


@pytest.mark.parametrize("size", [3_000, 100_000])
def test_killed_writer_leaves_readable_tables(tmp_path, size):
    code = (
        "import sys\nfrom pathlib import Path\nfrom rayfed_kd.results.tables import TableWriter\n"
        "writer = TableWriter(Path(sys.argv[1]))\n"
        "for r in range(1, 10**6):\n"
        "    writer.write(r, {'metrics': [{'round': r, 'model': 'global'}] * 50})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        stream = tmp_path / "metrics" / STREAM
        wait_until(lambda: stream.exists() and stream.stat().st_size >= size)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    table = read_table(tmp_path, "metrics")
    last = max(table["round"].to_pylist())
    assert table["round"].to_pylist() == [r for r in range(1, last + 1) for _ in range(50)]


def test_the_runs_folder_is_as_good_as_its_folder_of_tables(tmp_path):
    TableWriter(tmp_path / "tables").write(1, {"metrics": [metric(1)]})
    tables = [read_table(folder, "metrics") for folder in (tmp_path, tmp_path / "tables", str(tmp_path))]
    assert tables[0].num_rows == 1
    assert tables[0].equals(tables[1]) and tables[0].equals(tables[2])


def test_a_run_that_has_no_tables_yet_has_no_rows(tmp_path):
    (tmp_path / "config.yaml").touch()
    for folder in (tmp_path, tmp_path / "tables"):
        assert read_table(folder, "rounds").equals(SCHEMAS["rounds"].empty_table())


def test_a_folder_that_is_no_runs_is_told(tmp_path):
    with pytest.raises(DataError, match=r"nothing: no such folder; expected a run's folder, as runs/NAME"):
        read_table(tmp_path / "nothing", "rounds")
    with pytest.raises(DataError, match="holds no table rounds: expected a run's folder"):
        read_table(tmp_path, "rounds")
    with pytest.raises(RecipeError, match=r"no table 'metric'; there are rounds, .* Did you mean metrics"):
        read_table(tmp_path, "metric")


def test_a_flush_that_failed_is_tried_again(tmp_path, monkeypatch):
    writer, full = written(tmp_path, [1]), OSError(28, "No space left on device")

    def fail(descriptor):
        raise full

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space"):
            writer.sync()
    seen = []
    monkeypatch.setattr(os, "fsync", seen.append)
    writer.sync()
    assert len(seen) == 1


def test_what_a_kill_cut_off_anywhere_costs_its_round_alone(tmp_path):
    one, two, content = (
        (written(tmp_path / str(n), range(1, n + 1)), (tmp_path / f"{n}/metrics" / STREAM).read_bytes())[1]
        for n in (1, 2, 3)
    )
    written(tmp_path, [1])
    stream = tmp_path / "metrics" / STREAM
    for size in [*range(0, len(two), 7), *range(len(two), len(content))]:
        stream.write_bytes(content[:size])
        assert rounds_in(tmp_path) == [1, 2][: (size >= len(one)) + (size >= len(two))]
        assert last_round(tmp_path) == 0  # the table of rounds has no row
    TableWriter(tmp_path).write(3, {"metrics": [metric(3)]})
    assert rounds_in(tmp_path) == [1, 2, 3]


def damaged_in_round_3(folder, how):
    """Rounds 1 to 4, of which a power cut has damaged the third."""
    sizes = []
    writer = TableWriter(folder)
    for round_index in range(1, 5):
        writer.write(round_index, {"metrics": [metric(round_index)]})
        sizes.append((folder / "metrics" / STREAM).stat().st_size)
    content = bytearray((folder / "metrics" / STREAM).read_bytes())
    start, stop = sizes[1:3]
    if how == "zeros":
        content[start:stop] = bytes(stop - start)
    elif how == "zeros in the numbers":
        content[stop - 16 : stop] = bytes(16)
        place = content.index(np.float64(0.3).tobytes(), start)
        content[place : place + 8] = bytes(8)
    else:
        content[start:] = bytes(100)
    (folder / "metrics" / STREAM).write_bytes(content)


@pytest.mark.parametrize("how", ["zeros", "zeros in the numbers", "zeros to the end"])
def test_what_a_power_cut_damaged_is_told_and_dropped_by_a_resumed_run(tmp_path, how):
    damaged_in_round_3(tmp_path, how)
    with pytest.raises(DataError, match=r"_rows\.arrows is damaged after round 2"):
        read_table(tmp_path, "metrics")
    assert count_rows(tmp_path, 2)["metrics"] == 2
    assert count_rows(tmp_path, 4)["metrics"] == 2
    assert TableWriter(tmp_path, after_round=2).row_counts(2)["metrics"] == 2
    assert rounds_in(tmp_path) == [1, 2]


def test_what_is_read_while_a_run_goes_on_is_what_its_end_has(tmp_path):
    rows = [
        {"round": 2, "cohort": np.int64(3), "wall_s": 0.1 + 0.2, "logged": {"ce": 1.5}},
        {"round": 2, "cohort": None, "wall_s": math.nan, "staleness": math.inf, "logged": {}},
    ]
    writer = TableWriter(tmp_path)
    writer.write(2, {"rounds": rows})
    going_on = read_table(tmp_path, "rounds")
    writer.close()
    assert str(going_on.to_pylist()) == str(read_table(tmp_path, "rounds").to_pylist())
    assert going_on["wall_s"].to_pylist()[0] == 0.1 + 0.2
