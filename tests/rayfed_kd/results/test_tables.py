"""Tables: pinned columns, readable at any moment, merged and truncated without loss."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.tables import TableWriter, count_rows, last_round, read_table
from rayfed_kd.results.tables.recent import FILE, read_recent
from rayfed_kd.results.tables.writing import MERGE_AT

INT, FLOAT, TEXT = "int64", "double", "string"
COLUMNS = {
    "rounds": {
        "round": INT,
        **dict.fromkeys(["sim_s", "wall_s", "dispatch_s", "client_s", "server_s", "evaluate_s"], FLOAT),
        **dict.fromkeys(["bytes_up", "bytes_down", "cohort", "dropped"], INT),
        "staleness": FLOAT,
        "losses": "map<string, double>",
    },
    "metrics": {
        "round": INT,
        "sim_s": FLOAT,
        "model": TEXT,
        **dict.fromkeys(["amp", "fm", "wlp", "ua", "server_accuracy", "server_loss"], FLOAT),
    },
    "clients": {
        "round": INT,
        "sim_s": FLOAT,
        "client": INT,
        "model": TEXT,
        "samples": INT,
        "correct": INT,
        "accuracy": FLOAT,
    },
    "scores": {
        "round": INT,
        "sim_s": FLOAT,
        **dict.fromkeys(["model", "metric", "test"], TEXT),
        "samples": INT,
        "value": FLOAT,
        "better": TEXT,
    },
    "messages": {
        "round": INT,
        "sim_s": FLOAT,
        "client": INT,
        "direction": TEXT,
        "kind": TEXT,
        "bytes": INT,
        "raw_bytes": INT,
        "parts": INT,
    },
    "privacy": {
        "round": INT,
        **dict.fromkeys(["sim_s", "epsilon", "local_epsilon", "delta"], FLOAT),
        "releases": INT,
        **dict.fromkeys(["noise_multiplier", "clip", "row_clip"], FLOAT),
        **dict.fromkeys(["unit", "neighbours", "noise", "sampling", "accountant"], TEXT),
    },
    "hosts": {
        "round": INT,
        "sim_s": FLOAT,
        "host": INT,
        "node": TEXT,
        **dict.fromkeys(["rss_mb", "gpu_mb", "busy_s"], FLOAT),
        "clients": INT,
        **dict.fromkeys(["gpu_peak_mb", "gpu_busy"], FLOAT),
        **dict.fromkeys(["gpu_copies_in", "gpu_bytes_in", "gpu_copies_out", "gpu_bytes_out"], INT),
    },
}


def metric(round_index, model="aca"):
    return {"round": round_index, "model": model, "amp": round_index / 10}


def rounds_in(folder):
    return read_table(folder, "metrics")["round"].to_pylist()


def written(folder, rounds):
    writer = TableWriter(folder)
    for round_index in rounds:
        writer.write(round_index, {"metrics": [metric(round_index)]})
    return writer


def merged_with_the_small_parts_left(folder):
    """What a kill between merging and deleting leaves: rounds 1 to 5 in one part, and one by one."""
    writer = written(folder, range(1, 6))
    parts = {path: path.read_bytes() for path in (folder / "metrics").iterdir()}
    writer.close()
    for path, content in parts.items():
        path.write_bytes(content)


def test_every_table_is_listed_here():
    assert set(COLUMNS) == set(SCHEMAS)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_the_promised_ones(name):
    assert [(field.name, str(field.type)) for field in SCHEMAS[name]] == list(COLUMNS[name].items())


def test_rows_come_back_with_nulls_where_a_method_has_none(tmp_path):
    TableWriter(tmp_path).write(1, {"metrics": [metric(1)]})
    assert read_table(tmp_path, "metrics").to_pylist() == [
        {
            "round": 1,
            "sim_s": None,
            "model": "aca",
            "amp": 0.1,
            **dict.fromkeys(["fm", "wlp", "ua", "server_accuracy", "server_loss"]),
        }
    ]


def test_losses_come_back_by_name(tmp_path):
    TableWriter(tmp_path).write(1, {"rounds": [{"round": 1, "losses": {"ce": 1.5, "kl": 0.25}}]})
    assert read_table(tmp_path, "rounds")["losses"].to_pylist() == [[("ce", 1.5), ("kl", 0.25)]]


def test_table_without_rows_is_empty_with_its_columns(tmp_path):
    TableWriter(tmp_path)
    assert read_table(tmp_path, "hosts").schema == SCHEMAS["hosts"]


def test_many_rounds_merge_into_few_parts(tmp_path):
    writer = TableWriter(tmp_path)
    for round_index in range(1, MERGE_AT + 10):
        writer.write(round_index, {"metrics": [metric(round_index)]})
    assert len(list((tmp_path / "metrics").glob("*.parquet"))) == 10
    assert rounds_in(tmp_path) == list(range(1, MERGE_AT + 10))
    writer.close()
    assert len(list((tmp_path / "metrics").iterdir())) == 1
    assert rounds_in(tmp_path) == list(range(1, MERGE_AT + 10))


def test_kill_between_merging_and_deleting_doubles_nothing(tmp_path):
    merged_with_the_small_parts_left(tmp_path)
    assert rounds_in(tmp_path) == [1, 2, 3, 4, 5]


def test_next_writer_removes_what_a_kill_left(tmp_path):
    merged_with_the_small_parts_left(tmp_path)
    (tmp_path / "metrics" / ".part-00000006-00000006.parquet").write_bytes(b"half written")
    TableWriter(tmp_path)
    assert [path.name for path in (tmp_path / "metrics").iterdir()] == ["part-00000001-00000005.parquet"]


@pytest.mark.parametrize("after_round", [0, 1, 3, 5])
def test_truncating_after_a_kill_brings_nothing_back(tmp_path, after_round):
    writer = written(tmp_path, [])
    merged_with_the_small_parts_left(tmp_path)
    writer.truncate(after_round)
    assert rounds_in(tmp_path) == list(range(1, after_round + 1))


def test_truncating_goes_on_after_a_kill_in_it(tmp_path):
    writer = written(tmp_path, range(1, 6))
    writer.close()
    whole = tmp_path / "metrics" / "part-00000001-00000005.parquet"
    content = whole.read_bytes()
    writer.truncate(3)
    whole.write_bytes(content)  # killed after the shorter part was written
    assert rounds_in(tmp_path) == [1, 2, 3, 4, 5]
    TableWriter(tmp_path).truncate(3)
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_rounds_go_on_after_truncating(tmp_path):
    writer = written(tmp_path, range(1, 6))
    writer.close()
    writer.truncate(3)
    writer.write(4, {"metrics": [metric(4, "oca")]})
    writer.close()
    assert read_table(tmp_path, "metrics")["model"].to_pylist() == ["aca", "aca", "aca", "oca"]


def test_merged_round_is_not_lost_by_writing_it_again(tmp_path):
    writer = written(tmp_path, range(1, 6))
    writer.close()
    with pytest.raises(ValueError, match=r"round 3 is in part-00000001-00000005.parquet already"):
        writer.write(3, {"metrics": [metric(3)]})


def test_reader_looks_again_when_parts_merge(tmp_path, monkeypatch):
    writer = written(tmp_path, [1, 2, 3])
    read = pq.read_table

    def merging_first(path, **options):
        monkeypatch.setattr(pq, "read_table", read)
        writer.close()
        return read(path, **options)

    monkeypatch.setattr(pq, "read_table", merging_first)
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_rows_of_a_round_come_in_order(tmp_path):
    rows = [{"round": 1, "client": c, "model": m} for m in ("oca", "aca") for c in (10, 2)]
    TableWriter(tmp_path).write(1, {"clients": rows})
    found = read_table(tmp_path, "clients")
    assert list(zip(found["client"].to_pylist(), found["model"].to_pylist(), strict=True)) == [
        (2, "aca"),
        (2, "oca"),
        (10, "aca"),
        (10, "oca"),
    ]


def test_metrics_keep_the_order_in_which_the_method_names_its_models(tmp_path):
    rows = [{"round": 1, "model": model} for model in ("server", "personal", "aca")]
    TableWriter(tmp_path).write(1, {"metrics": rows})
    assert read_table(tmp_path, "metrics")["model"].to_pylist() == ["server", "personal", "aca"]


def test_truncating_drops_later_rounds_only(tmp_path):
    writer = TableWriter(tmp_path)
    for round_index in range(1, 6):
        writer.write(round_index, {"metrics": [metric(round_index)]})
    writer.close()
    writer.write(6, {"metrics": [metric(6)]})
    writer.truncate(3)
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_arrow_reads_the_folder_as_it_lies(tmp_path):
    writer = TableWriter(tmp_path)
    writer.write(1, {"metrics": [metric(1)]})
    (tmp_path / "metrics" / ".part-00000002-00000002.parquet").write_bytes(b"half written")
    assert pq.read_table(tmp_path / "metrics").num_rows == 1


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
        ("rounds", "losses", {"ce": "low"}, "map"),
    ],
)
def test_value_of_a_wrong_type_is_refused(tmp_path, table, column, value, expected):
    with pytest.raises(TypeError, match=f"table {table}, column {column}: .*{expected}"):
        TableWriter(tmp_path).write(1, {table: [{"round": 1, column: value}]})


def test_row_of_another_round_is_refused(tmp_path):
    with pytest.raises(ValueError, match="table metrics: rows of round 2 written as round 1"):
        TableWriter(tmp_path).write(1, {"metrics": [metric(2)]})


def test_unknown_table_is_refused_by_name(tmp_path):
    with pytest.raises(
        RecipeError, match=r"no table 'metric'; there are rounds, metrics.* Did you mean metrics"
    ):
        TableWriter(tmp_path).write(1, {"metric": [metric(1)]})
    with pytest.raises(RecipeError, match="no table 'metric'"):
        read_table(tmp_path, "metric")


@pytest.mark.parametrize("parts", [1, 20, MERGE_AT - 1])
def test_killed_writer_leaves_readable_tables(tmp_path, parts):
    code = (
        "import sys\nfrom pathlib import Path\nfrom rayfed_kd.results.tables import TableWriter\n"
        "writer = TableWriter(Path(sys.argv[1]))\n"
        "for r in range(1, 10**6):\n"
        "    writer.write(r, {'metrics': [{'round': r, 'model': 'aca'}] * 50})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and len(list(tmp_path.glob("metrics/part-*.parquet"))) < parts:
            time.sleep(0.01)
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
    with pytest.raises(RecipeError, match="no table 'losses'; there are rounds, metrics"):
        read_table(tmp_path, "losses")


@pytest.fixture
def flushed(monkeypatch):
    """The names of what was flushed to disk so far, files and folders."""
    names, flush = [], os.fsync

    def note(descriptor):
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return names


def test_parts_are_flushed_together_and_once(tmp_path, flushed):
    writer = written(tmp_path, [1, 2])
    assert flushed == []
    writer.sync()
    assert flushed == ["part-00000001-00000001.parquet", "part-00000002-00000002.parquet", "metrics"]
    writer.sync()
    assert len(flushed) == 3
    written(tmp_path, [3]).close()
    # The merged part before its rename; the third part, whose rows are in it, is gone.
    assert flushed[3].endswith("-part-00000001-00000003.parquet")
    assert flushed[4:] == ["metrics"]


def test_a_single_part_is_flushed_at_the_end(tmp_path, flushed):
    written(tmp_path, [1]).close()
    assert flushed == ["part-00000001-00000001.parquet", "metrics"]


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
    assert len(seen) == 2  # the part and its folder


@pytest.mark.parametrize("content", [b"", b"PAR1 and the half of it"])
def test_what_a_power_cut_damaged_is_dropped_unread(tmp_path, content):
    writer = written(tmp_path, [1, 2])
    writer.sync()
    written(tmp_path, [3])
    (tmp_path / "metrics" / "part-00000003-00000003.parquet").write_bytes(content)
    assert count_rows(tmp_path, 2)["metrics"] == 2
    with pytest.raises(DataError, match=r"part-00000003-00000003\.parquet is damaged"):
        read_table(tmp_path, "metrics")
    assert TableWriter(tmp_path, after_round=2).row_counts(2)["metrics"] == 2
    assert rounds_in(tmp_path) == [1, 2]


def gathering(folder, rounds, **options):
    """A writer that gathers all rounds but its first, which came long after the last parts."""
    writer = TableWriter(folder, gather_s=float("inf"), **options)
    for round_index in rounds:
        writer.write(round_index, {"metrics": [metric(round_index)], "hosts": [{"round": round_index}]})
    return writer


def part_names(folder, name="metrics"):
    return sorted(path.name for path in (folder / name).iterdir())


def test_rounds_that_follow_fast_are_read_at_once_and_share_a_part(tmp_path):
    writer = gathering(tmp_path, range(1, 5))
    assert rounds_in(tmp_path) == [1, 2, 3, 4]
    assert part_names(tmp_path) == ["part-00000001-00000001.parquet"]
    writer.write_recent()
    assert part_names(tmp_path) == ["part-00000001-00000001.parquet", "part-00000002-00000004.parquet"]
    assert rounds_in(tmp_path) == [1, 2, 3, 4]
    assert read_recent(tmp_path) == {}


def test_a_round_after_a_pause_takes_those_gathered_along(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("rayfed_kd.results.tables.writing.time.monotonic", lambda: now[0])
    writer = TableWriter(tmp_path, gather_s=1.0)
    for round_index, seconds in enumerate([0.0, 0.5, 0.4, 5.0, 0.1], start=1):
        now[0] += seconds
        writer.write(round_index, {"metrics": [metric(round_index)]})
    assert part_names(tmp_path) == ["part-00000001-00000001.parquet", "part-00000002-00000004.parquet"]
    assert list(read_recent(tmp_path)) == [5]
    assert rounds_in(tmp_path) == [1, 2, 3, 4, 5]


def test_gathered_rounds_are_no_more_than_64(tmp_path):
    gathering(tmp_path, range(1, 70))
    assert part_names(tmp_path)[1:] == ["part-00000002-00000065.parquet"]
    assert rounds_in(tmp_path) == list(range(1, 70))


def test_a_round_of_many_rows_is_not_gathered(tmp_path):
    writer = gathering(tmp_path, [1])
    writer.write(2, {"clients": [{"round": 2, "client": c, "model": "aca"} for c in range(2000)]})
    assert part_names(tmp_path, "clients") == ["part-00000002-00000002.parquet"]
    assert part_names(tmp_path) == ["part-00000001-00000001.parquet"]


def test_what_a_killed_writer_has_gathered_stays(tmp_path):
    gathering(tmp_path, [1, 2, 3])  # and never closed
    writer = TableWriter(tmp_path)
    assert read_recent(tmp_path) == {}
    assert part_names(tmp_path)[1:] == ["part-00000002-00000003.parquet"]
    assert writer.row_counts(2)["metrics"] == 2


@pytest.mark.parametrize("after_round", [0, 1, 2, 3])
def test_a_resumed_run_drops_later_rounds_of_those_gathered(tmp_path, after_round):
    gathering(tmp_path, [1, 2, 3])
    writer = TableWriter(tmp_path, after_round=after_round)
    assert rounds_in(tmp_path) == list(range(1, after_round + 1))
    assert writer.row_counts(9)["metrics"] == after_round


def test_a_kill_between_the_parts_of_two_tables_doubles_and_loses_nothing(tmp_path):
    writer = gathering(tmp_path, [1, 2, 3])
    recent = (tmp_path / FILE).read_bytes()
    writer.write_recent()
    (tmp_path / "hosts" / "part-00000002-00000003.parquet").unlink()  # killed before it was written
    (tmp_path / FILE).write_bytes(recent)
    for _ in range(2):
        assert rounds_in(tmp_path) == [1, 2, 3]
        assert read_table(tmp_path, "hosts")["round"].to_pylist() == [1, 2, 3]
        TableWriter(tmp_path)


@pytest.fixture
def on_disk(monkeypatch):
    """What was done to files, in order: the names of those brought to disk, and "emptied"."""
    done, flush, cut = [], os.fsync, os.ftruncate

    def note(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        flush(descriptor)

    def emptied(descriptor, size):
        done.append("emptied")
        cut(descriptor, size)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "ftruncate", emptied)
    return done


def test_gathered_rounds_are_brought_to_disk_as_they_are(tmp_path, on_disk):
    """For a checkpoint after each round; the file's name only once."""
    writer = gathering(tmp_path, [1, 2])
    on_disk.clear()
    writer.flush()
    assert FILE in on_disk
    assert tmp_path.name in on_disk
    assert list(read_recent(tmp_path)) == [2]
    assert writer.row_counts(1)["metrics"] == 1
    assert writer.row_counts(2)["metrics"] == 2 == count_rows(tmp_path, 2)["metrics"]
    writer.write(3, {"metrics": [metric(3)]})
    on_disk.clear()
    writer.flush()
    assert on_disk == [FILE]


@pytest.mark.parametrize("flushed", [True, False])
def test_gathered_rounds_that_a_checkpoint_counts_on_go_when_their_parts_are_on_disk(
    tmp_path, on_disk, flushed
):
    writer = gathering(tmp_path, [1, 2, 3])
    if flushed:
        writer.flush()
    on_disk.clear()
    writer.write_recent()
    assert on_disk[-1] == "emptied"
    assert any("part-00000002-00000003.parquet" in name for name in on_disk) == flushed


def test_a_resumed_run_brings_gathered_rounds_to_disk_before_it_removes_them(tmp_path, on_disk):
    gathering(tmp_path, [1, 2, 3]).flush()
    on_disk.clear()
    TableWriter(tmp_path)
    assert any("part-00000002-00000003.parquet" in name for name in on_disk)


@pytest.mark.parametrize("tail", [b'[4, {"metrics": [{"round"', b"\x00\x00\x00\n[5, {}]\n"])
def test_half_a_line_is_no_round(tmp_path, tail):
    gathering(tmp_path, [1, 2, 3])
    with (tmp_path / FILE).open("ab") as file:
        file.write(tail)
    assert rounds_in(tmp_path) == [1, 2, 3]
    assert last_round(tmp_path) == 0  # the table of rounds has no row
    TableWriter(tmp_path)
    assert rounds_in(tmp_path) == [1, 2, 3]


def test_what_is_read_of_gathered_rounds_is_what_parts_have(tmp_path):
    rows = [
        {"round": 2, "cohort": np.int64(3), "wall_s": 0.1 + 0.2, "losses": {"ce": 1.5}},
        {"round": 2, "cohort": None, "wall_s": math.nan, "staleness": math.inf, "losses": {}},
    ]
    writer = gathering(tmp_path, [1])
    writer.write(2, {"rounds": rows})
    assert not part_names(tmp_path, "rounds")
    gathered = read_table(tmp_path, "rounds")
    writer.close()
    assert not (tmp_path / FILE).exists()
    assert str(gathered.to_pylist()) == str(read_table(tmp_path, "rounds").to_pylist())
    assert gathered["wall_s"].to_pylist()[0] == 0.1 + 0.2


def test_small_parts_before_a_large_one_are_not_merged_over_it(tmp_path):
    writer = gathering(tmp_path, [1])
    writer.write_recent()
    for round_index in range(2, MERGE_AT + 2):  # one part of 64 rounds
        writer.write(round_index, {"metrics": [metric(round_index)]})
    for round_index in range(MERGE_AT + 2, 2 * MERGE_AT + 2):
        writer.write(round_index, {"metrics": [metric(round_index)]})
        writer.write_recent()
    assert rounds_in(tmp_path) == list(range(1, 2 * MERGE_AT + 2))
    assert len(part_names(tmp_path)) == 3
