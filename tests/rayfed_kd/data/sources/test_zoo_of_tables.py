"""A zoo of tables, as Arrow, pandas and polars write them: read as what they mean, or refused in one line.

A bug report adds a row. Expected numbers are exact means and deviations of what was written, as fractions.
"""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from math import sqrt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

LABELS = ["a", "b", "a", "b"]
LARGE = 1_700_000_000_000_000_000  # nanoseconds since 1970; float64 keeps 256 of them apart
DAY = timedelta(days=1)
NOON = datetime(2024, 2, 28, 12)


def z(*numbers):
    """[n, 1]: numbers less their mean, over their deviation."""
    exact = [Fraction(number) for number in numbers]
    mean = sum(exact) / len(exact)
    deviation = sqrt(sum((number - mean) ** 2 for number in exact) / len(exact))
    return np.array([[float(number - mean) / deviation] for number in exact])


def hot(*places):
    """[n, categories]: 1 at each row's place."""
    return np.eye(max(places) + 1)[list(places)]


COUNTED = [0, 1, 2, 4]
DAYS = [date(2024, 2, 28) + count * DAY for count in COUNTED]
STAMPS = [NOON + count * DAY for count in COUNTED]
SPANS = [count * DAY for count in COUNTED]
HOURS = [time(count) for count in COUNTED]
TOWNS = ["Ulm", "Bonn", "Ulm", "Kiel"]
IN_TOWNS = hot(2, 0, 2, 1)
VECTORS = [[0, 5], [1, 5], [2, 5], [4, 9]]
OF_VECTORS = np.hstack([z(0, 1, 2, 4), z(5, 5, 5, 9)])
NONE = "no value in the column 'x'; 1 have none"
LEFT_OUT = r"data.leave_out=\[\"x\"\]"

ARROW = {
    "int8": (pa.array([-1, 2, 3, 5], pa.int8()), z(-1, 2, 3, 5)),
    "uint16": (pa.array([1, 2, 3, 65535], pa.uint16()), z(1, 2, 3, 65535)),
    "uint64 beyond int64": (pa.array([2**63 + one for one in COUNTED], pa.uint64()), z(0, 1, 2, 4)),
    "int64 beyond float64": (pa.array([LARGE + one for one in COUNTED]), z(0, 1, 2, 4)),
    "both ends of int64": (pa.array([-(2**63), 0, 0, 2**63 - 1]), z(-(2**63), 0, 0, 2**63 - 1)),
    "float16": (pa.array(np.array([0.5, 1, 2, 4], np.float16)), z(Fraction(1, 2), 1, 2, 4)),
    "float32": (pa.array([0.5, 1, 2, 4], pa.float32()), z(Fraction(1, 2), 1, 2, 4)),
    "float64 whose squares are too large": (pa.array([0, 1e300, 2e300, 4e300]), z(0, 1, 2, 4)),
    "decimal128": (
        pa.array([Decimal("1.10"), Decimal("2.2"), 3, 4], pa.decimal128(9, 2)),
        z("1.1", "2.2", 3, 4),
    ),
    "decimal256": (pa.array([Decimal(one) for one in COUNTED], pa.decimal256(50, 3)), z(0, 1, 2, 4)),
    "date32": (pa.array(DAYS), z(0, 1, 2, 4)),
    "date64": (pa.array(DAYS, pa.date64()), z(0, 1, 2, 4)),
    "timestamp in s": (pa.array(STAMPS, pa.timestamp("s")), z(0, 1, 2, 4)),
    "timestamp in ns with a zone": (pa.array(STAMPS, pa.timestamp("ns", "Asia/Tokyo")), z(0, 1, 2, 4)),
    "duration": (pa.array(SPANS, pa.duration("ms")), z(0, 1, 2, 4)),
    "duration below a microsecond": (pa.array([0, 100, 200, 400], pa.duration("ns")), z(0, 1, 2, 4)),
    "time32": (pa.array(HOURS, pa.time32("s")), z(0, 1, 2, 4)),
    "time64": (pa.array(HOURS, pa.time64("ns")), z(0, 1, 2, 4)),
    "bool": (pa.array([True, False, False, True]), hot(1, 0, 0, 1)),
    "string": (pa.array(TOWNS), IN_TOWNS),
    "large_string": (pa.array(TOWNS, pa.large_string()), IN_TOWNS),
    "string_view": (pa.array(TOWNS, pa.string_view()), IN_TOWNS),
    "dictionary of texts": (pa.array(TOWNS).dictionary_encode(), IN_TOWNS),
    "dictionary of numbers": (pa.array([30, 7, 30, 7]).dictionary_encode(), hot(1, 0, 1, 0)),
    "texts with a missing one": (pa.array(["b", None, "a", "b"]), hot(2, 0, 1, 2)),
    "fixed_size_list": (pa.array(VECTORS, pa.list_(pa.float32(), 2)), OF_VECTORS),
    "list of one length": (pa.array(VECTORS, pa.list_(pa.int16())), OF_VECTORS),
    "tensor": (pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(VECTORS)), OF_VECTORS),
    "two lengths": (pa.array([[1], [1, 2], [1], [1]]), "column 'x' has lists of 1, 2 numbers; expected one"),
    "list of numbers, one missing": (pa.array([[1, 2], [3, 4], None, [5, 6]]), f"row 3: {NONE}"),
    "struct": (pa.array([{"a": 1}] * 4), f"'x' holds struct<a: int64>; expected numbers.*{LEFT_OUT}"),
    "binary": (pa.array([b"a"] * 4), f"'x' holds binary; .*{LEFT_OUT}"),
    "list of texts": (pa.array([["a"]] * 4), r"'x' holds list<element: string>; .*data.leave_out"),
    "numbers as texts, with a mark": (
        pa.array(["1", "2", "?", "4"]),
        r"row 3: '\?' in the column 'x', .* a file that has them as numbers, 'data.categorical=\[\"x\"\]",
    ),
    "missing number": (pa.array([1, None, 2, 4]), f"row 2: {NONE}. data.missing=mean"),
    "NaN": (pa.array([1.0, 2, float("nan"), 4]), f"row 3: {NONE}. data.missing=mean"),
    "inf": (pa.array([1.0, float("inf"), 2, 4]), "row 2: inf in the column 'x'; expected finite numbers"),
    "no values": (pa.nulls(4), "no column of numbers or categories beside label; .*'x', which has no values"),
    "one number, which sums do not keep": (pa.array([0.1] * 4), np.zeros((4, 1))),
    "one number but for rounding": (pa.array([0.3, 0.1 + 0.2, 0.3, 0.3]), np.zeros((4, 1))),
}


@pytest.mark.parametrize("kind", ARROW)
def test_a_column_of_each_arrow_type_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    column, features = ARROW[kind]
    pq.write_table(pa.table({"x": column, "label": LABELS}), tmp_path / "train.parquet")
    constant = not isinstance(features, str) and not features.any()
    notes = ["column 'x' has one value in all training rows"] if constant else []
    notes += ["column 'x' has numbers above 2.53"] if "too large" in kind else []
    written = features if isinstance(features, str) else {"images": features, "notes": notes}
    read_or_refused("tabular", written, train="train.parquet")


WITH_A_GAP = np.insert(z(1, 3, 8), 1, 0, axis=0)


def frame(pd, x, index=None, label=LABELS):
    return pd.DataFrame({"x": x, "label": label}, index=index)


PANDAS = {
    "texts": (lambda pd: frame(pd, TOWNS), IN_TOWNS),
    "categories": (lambda pd: frame(pd, pd.Categorical(TOWNS), label=pd.Categorical(LABELS)), IN_TOWNS),
    "ordered": (lambda pd: frame(pd, pd.Categorical([30, 7, 30, 7], ordered=True)), hot(1, 0, 1, 0)),
    "whole numbers": (
        lambda pd: frame(pd, pd.array([1, None, 3, 8], "Int64")),
        WITH_A_GAP,
        {"missing": "mean"},
    ),
    "floats with a gap": (lambda pd: frame(pd, [1, None, 3, 8]), WITH_A_GAP, {"missing": "mean"}),
    "booleans": (lambda pd: frame(pd, pd.array([True, None, False, True], "boolean")), hot(2, 0, 1, 2)),
    "zoned": (lambda pd: frame(pd, pd.to_datetime(STAMPS).tz_localize("Europe/Berlin")), z(0, 1, 2, 4)),
    "spans": (lambda pd: frame(pd, pd.to_timedelta(SPANS)), z(0, 1, 2, 4)),
    "intervals": (lambda pd: frame(pd, pd.interval_range(0, 4)), f"'x' holds struct<.*{LEFT_OUT}"),
    "an index": (
        lambda pd: frame(pd, COUNTED, index=[7, 3, 9, 1]),
        z(0, 1, 2, 4),
        {"notes": ["'__index_level_0__', which numbers the rows, as pandas' index does"]},
    ),
    "an index with a name, which groups rows": (
        lambda pd: pd.DataFrame({"label": LABELS}, index=pd.Index([4, 1, 1, 0], name="site")),
        z(4, 1, 1, 0),
        {"notes": [r"'site', an index of pandas, is a feature; 'data.leave_out=\[\"site\"\]' leaves it out"]},
    ),
    "an index with a name, which numbers rows": (
        lambda pd: frame(pd, COUNTED, index=pd.Index([7, 3, 9, 1], name="id")),
        z(0, 1, 2, 4),
        {"notes": ["left out: 'id', which numbers the rows, as pandas' index does"]},
    ),
    "texts that are all numbers": (
        lambda pd: frame(pd, ["10", "9", "10", "2.5"]),
        hot(2, 1, 2, 0),
        {"notes": ["column 'x' has texts, all of them numbers, which are read as categories"]},
    ),
}


@pytest.mark.parametrize("kind", PANDAS)
def test_pandas_parquet_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    make, features, *more = PANDAS[kind]
    options = dict(*more)
    make(pytest.importorskip("pandas")).to_parquet(tmp_path / "train.parquet")
    notes = {"notes": options.get("notes", [])}
    written = features if isinstance(features, str) else {"images": features, "names": ("a", "b"), **notes}
    read_or_refused("tabular", written, train="train.parquet", missing=options.get("missing", "refuse"))


POLARS = {
    "texts": (lambda pl: pl.Series("x", TOWNS), IN_TOWNS),
    "categories": (lambda pl: pl.Series("x", TOWNS, pl.Categorical), IN_TOWNS),
    "an enumeration": (lambda pl: pl.Series("x", TOWNS, pl.Enum(["Ulm", "Kiel", "Bonn"])), IN_TOWNS),
    "decimals": (lambda pl: pl.Series("x", list(map(Decimal, COUNTED)), pl.Decimal(9, 2)), z(0, 1, 2, 4)),
    "small numbers": (lambda pl: pl.Series("x", COUNTED, pl.UInt8), z(0, 1, 2, 4)),
    "days": (lambda pl: pl.Series("x", DAYS), z(0, 1, 2, 4)),
    "times": (lambda pl: pl.Series("x", STAMPS), z(0, 1, 2, 4)),
    "spans": (lambda pl: pl.Series("x", SPANS), z(0, 1, 2, 4)),
    "times of a day": (lambda pl: pl.Series("x", HOURS), z(0, 1, 2, 4)),
    "lists": (lambda pl: pl.Series("x", VECTORS, pl.List(pl.Int32)), OF_VECTORS),
    "arrays": (lambda pl: pl.Series("x", VECTORS, pl.Array(pl.Float32, 2)), OF_VECTORS),
    "NaN": (lambda pl: pl.Series("x", [1.0, float("nan"), 3.0, 8.0]), "row 2: no value in the column 'x'"),
    "bytes": (lambda pl: pl.Series("x", [b"a"] * 4), "'x' holds .*binary.*data.leave_out"),
}


@pytest.mark.parametrize("kind", POLARS)
def test_polars_parquet_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    make, features = POLARS[kind]
    pl = pytest.importorskip("polars")
    pl.DataFrame([make(pl), pl.Series("label", LABELS)]).write_parquet(tmp_path / "train.parquet")
    written = features if isinstance(features, str) else {"images": features}
    read_or_refused("tabular", written, train="train.parquet")


def test_libraries_csv_is_read_with_the_keys_that_say_how_it_is_written(tmp_path, read_or_refused):
    frame = pytest.importorskip("pandas").DataFrame({"x": [0.5, 1, 2, 4], "y": TOWNS, "label": LABELS})
    features = np.hstack([z(Fraction(1, 2), 1, 2, 4), IN_TOWNS])
    frame.to_csv(tmp_path / "train.csv", sep=";", decimal=",", encoding="utf-16", index=False)
    read_or_refused("tabular", {"images": features}, separator=";", decimal=",", encoding="utf-16")
    frame.to_csv(tmp_path / "train.csv", index=True)
    index = ["left out: one without a name, which numbers the rows"]
    read_or_refused("tabular", {"images": features, "notes": index, "columns": ["y"]})
    read_or_refused("tabular", "there are '', x, y, label. Did you", label_column="lable")
    frame.to_csv(tmp_path / "index.csv.gz")
    read_or_refused("tabular", {"images": features, "notes": index}, train="index.csv.gz")
    pytest.importorskip("polars").from_pandas(frame).write_csv(tmp_path / "train.csv")
    read_or_refused("tabular", {"images": features})


def test_a_column_without_a_name_that_is_no_row_number_is_a_feature(tmp_path, read_or_refused):
    (tmp_path / "train.csv").write_text(",label\n0.5,a\n1,b\n2,a\n4,b\n")
    notes = [r"'', an index of pandas, is a feature; 'data.leave_out=\[\"\"\]' leaves it out"]
    read_or_refused("tabular", {"images": z(Fraction(1, 2), 1, 2, 4), "notes": notes})


def test_other_files_than_tables_are_named(tmp_path, read_or_refused):
    feather.write_feather(pa.table({"x": COUNTED, "label": LABELS}), tmp_path / "a.feather")
    refusal = "a.feather is an Arrow IPC .* file; expected CSV or Parquet"
    read_or_refused("tabular", refusal, train="a.feather")
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04 and so on")
    read_or_refused("csv", "a.xlsx is a ZIP archive, as spreadsheets are", train="a.xlsx")


def test_parquet_is_known_by_its_content(tmp_path, read_or_refused):
    pq.write_table(pa.table({"x": COUNTED, "label": LABELS}), tmp_path / "a.pq")
    read_or_refused("csv", {"images": z(0, 1, 2, 4)}, train="a.pq")


def test_a_time_with_a_zone_is_not_compared_with_one_without(tmp_path, read_or_refused):
    pq.write_table(pa.table({"x": STAMPS, "label": LABELS}), tmp_path / "train.parquet")
    zoned = [stamp.replace(tzinfo=UTC) for stamp in STAMPS]
    pq.write_table(pa.table({"x": zoned, "label": LABELS}), tmp_path / "test.parquet")
    refusal = "test.parquet: the column 'x' has times with a time zone, in .* times without a time zone"
    read_or_refused("tabular", refusal, train="train.parquet", test="test.parquet")
