"""CSV files of a user's own, read by Arrow: what is odd in one is told with the key that reads it."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pydantic import Field

from rayfed_kd.data.dataset import Array
from rayfed_kd.data.sources.columns import distinct_values
from rayfed_kd.errors import DataError, RecipeError, setting, shortened, shown

Separator = Annotated[str, Field(min_length=1, max_length=1, description="between the columns of a CSV file")]
Encoding = Annotated[str, Field(min_length=1, description="of a CSV file, as Python names it")]
Decimal = Annotated[
    str, Field(min_length=1, max_length=1, description="before the decimals of a number in CSV")
]
Thousands = Annotated[
    str | None, Field(min_length=1, max_length=1, description="between thousands in CSV; null: nothing")
]
NullValues = Annotated[
    list[str], Field(description="what also stands for a missing number in CSV, beside Arrow's own, as NA")
]
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
GZIP = b"\x1f\x8b"
OTHER_FILES = {
    b"PK\x03\x04": "a ZIP archive, as spreadsheets are",
    b"ARROW1": "an Arrow IPC (Feather) file",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet",
    b"\x89HDF": "an HDF5 file",
    b"SQLite": "a data base",
    GZIP: "compressed by gzip, which its name must say by .gz",
}
NUMBER = r"\s*[+-]?(\d+{0}?\d*|{0}\d+)([eE][+-]?\d+)?\s*"
GROUPED = r"\s*[+-]?\d{1,3}([,.' \u00a0\u202f])\d{3}(\1\d{3})*([.,]\d+)?\s*"


@dataclass(frozen=True)
class CsvForm:
    """How CSV files are written; the fields are the recipe's keys of `data`."""

    separator: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None
    null_values: Sequence[str] = ()

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise RecipeError(
                f"{shown(self.encoding)} is no encoding; expected one of Python's, as utf-16 or latin-1",
                path="data.encoding",
            ) from None
        if self.decimal == self.thousands:
            raise RecipeError(f"{shown(self.decimal)} is data.thousands as well", path="data.decimal")


def read_csv(file: Path, form: CsvForm, texts: Sequence[str] = ()) -> pa.Table:
    """A CSV file with names of columns in its first line.

    Args:
        texts: columns that are texts whatever they look like.
    Raises: DataError that says what is wrong where, and which key reads it.
    """
    _check_beginning(file, form)
    bad = list[Any]()

    def collect(row: Any) -> str:
        bad.append(row)
        return "skip"

    # With threads no row has a number.
    reading = arrow_csv.ReadOptions(encoding=form.encoding, use_threads=False)
    parsing = arrow_csv.ParseOptions(
        delimiter=form.separator, newlines_in_values=True, invalid_row_handler=collect
    )
    missing = [*arrow_csv.ConvertOptions().null_values, *form.null_values]
    types = {name: pa.string() for name in texts}
    try:
        converting = arrow_csv.ConvertOptions(
            column_types=types, decimal_point=form.decimal, null_values=missing
        )
        table = arrow_csv.read_csv(file, reading, parsing, converting)
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(f"{file}: not readable as CSV ({_printable(str(error))})") from None
    _check_separator(file, form, names)
    if bad:
        raise DataError(
            f"{file}, row {bad[0].number - 1}: {bad[0].actual_columns} values for {bad[0].expected_columns} "
            f"columns: {_printable(bad[0].text)}"
        )
    for place, column in enumerate(table.columns):
        if pa.types.is_binary(column.type):  # Arrow's word for texts that are not of the encoding
            _refuse_bytes(file, names[place], column)
        if form.thousands and pa.types.is_string(column.type) and names[place] not in texts:
            table = table.set_column(place, names[place], _ungrouped(column, form, missing))
    _check_quotes(file, table, form)
    return table


def _check_beginning(file: Path, form: CsvForm) -> None:
    with file.open("rb") as stream:
        head = stream.read(4096)
    for mark, kind in OTHER_FILES.items():
        if head.startswith(mark) and (mark != GZIP or file.suffix != ".gz"):
            raise DataError(f"{file} is {kind}; expected CSV or Parquet")
    if match := re.match(rb"(?:\xef\xbb\xbf)?\"?sep=(.)\"?\r?\n", head):
        raise DataError(
            f"{file} begins with the line sep={match[1].decode('latin-1')}, which spreadsheets alone read; "
            "expected the names of columns there, and the character as data.separator"
        )
    if codecs.lookup(form.encoding).name not in ("utf-8", "ascii") or file.suffix in (".gz", ".bz2"):
        return
    for mark, encoding in MARKS.items():
        if head.startswith(mark):
            raise DataError(
                f"{file} is {encoding.upper()}, expected UTF-8; data.encoding={encoding} reads it"
            )
    if b"\0" in head:
        raise DataError(
            f"{file} has zero bytes, as UTF-16 has and files that are no texts; data.encoding=utf-16-le or "
            "utf-16-be reads the first"
        )
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError as error:
        raise _not_utf8(f"{file}, line {head[: error.start].count(10) + 1}", head[error.start]) from None


def _not_utf8(where: str, byte: int) -> DataError:
    return DataError(
        f"{where}: byte 0x{byte:02x} is not UTF-8; expected UTF-8, or the encoding's name, as "
        "data.encoding=cp1252 or latin-1"
    )


def _refuse_bytes(file: Path, name: str, column: pa.ChunkedArray) -> None:
    for row, value in enumerate(column.to_pylist(), start=1):
        try:
            (value or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{file}, row {row}, column {shown(name)}", value[error.start]) from None


def _check_separator(file: Path, form: CsvForm, names: Sequence[str]) -> None:
    """A table has a column of classes and another one, so one column is a slip."""
    if len(names) != 1:
        return
    for other in (";", "\t", "|", ",", " "):
        if other != form.separator and other in names[0].strip():
            raise DataError(
                f"{file}: one column, {shown(names[0])}, with data.separator={shown(form.separator)}; "
                f"{setting('data.separator', other)} divides it into {names[0].count(other) + 1}"
            )


def _check_quotes(file: Path, table: pa.Table, form: CsvForm) -> None:
    """A stray quotation mark makes one text of the rows up to the next one, which Arrow takes."""
    texts = (column for column in table.columns if pa.types.is_string(column.type))
    if not any(pc.any(pc.match_substring_regex(column, "[\r\n]")).as_py() for column in texts):
        return
    row, limit = -1, csv.field_size_limit(2**31 - 1)
    try:
        with pa.input_stream(file) as stream:  # decompresses, as Arrow's reader of CSV
            text = io.TextIOWrapper(stream, form.encoding, newline="")
            for cells in csv.reader(text, delimiter=form.separator, strict=True):
                row += bool(cells)  # Arrow skips empty lines as well
    except csv.Error as error:
        raise DataError(
            f"{file}, row {row + 1}: a text begins with a quotation mark and does not end with one ({error})"
        ) from None
    finally:
        csv.field_size_limit(limit)


def _printable(text: str) -> str:
    return shortened("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text), 300)


def _ungrouped(column: pa.ChunkedArray, form: CsvForm, missing: Sequence[str]) -> pa.ChunkedArray:
    """The column as numbers if all its texts are numbers with `thousands` between; else as it is."""
    mark, point = re.escape(form.thousands or ""), re.escape(form.decimal)
    grouped = rf"^\s*[+-]?(\d+|\d{{1,3}}({mark}\d{{3}})+)({point}\d*)?\s*$"
    known = pc.if_else(pc.is_in(column, pa.array(missing)), pa.scalar(None, column.type), column)
    if not pc.all(pc.match_substring_regex(known, grouped)).as_py():
        return column
    bare = pc.replace_substring(pc.utf8_trim_whitespace(known), form.thousands, "")
    return pc.replace_substring(bare, form.decimal, ".").cast(pa.float64())


def stray_text(
    column: pa.ChunkedArray, form: CsvForm, *, numbers: bool = False
) -> tuple[int, str, str, str] | None:
    """The first text of a column that otherwise holds numbers, or times as 2021-04-30.

    Otherwise: half of the rows or more are numbers in some spelling, or all other rows have one same text.

    Args:
        numbers: the column holds numbers in another file, so that every text is one too many.
    Returns: row from 0, text, "number" or "time", and which key reads such texts; None: texts are texts.
    """
    texts, places = distinct_values(column)
    plain = _matches(texts, NUMBER.format(re.escape(form.decimal)))
    other = _matches(texts, NUMBER.format("," if form.decimal == "." else re.escape(".")))
    spelt = plain | other | _matches(texts, GROUPED)
    filled = np.array([bool(text.strip()) for text in texts], bool)
    counts = np.bincount(places, minlength=len(texts))
    times, kind = np.array([is_time(text) for text in texts], bool), "number"
    if 2 * counts[times].sum() > counts[filled].sum():
        plain, spelt, kind = times, times, "time"
    marker = (filled & ~spelt).sum() == 1 and spelt.sum() > 2
    most = numbers or marker or 2 * counts[spelt].sum() >= counts[filled].sum()
    if not most or not (filled & ~plain).any():
        return None
    row = int(np.flatnonzero((filled & ~plain)[places])[0])
    text, keys = texts[places[row]], list[str]()
    if other[places[row]] and kind == "number":
        keys.append(setting("data.decimal", "," if form.decimal == "." else "."))
    if match := re.fullmatch(GROUPED, text):
        keys.append(setting("data.thousands", match[1]))
        if match[3] and match[3][0] != form.decimal:
            keys = [" ".join([setting("data.decimal", match[3][0]), keys[-1]])]
    cure = " or ".join(keys) or setting("data.null_values", [text])
    return row, text, kind, f"{cure} reads it as a {'' if keys else 'missing '}{kind}"


def is_time(text: str) -> bool:
    """Whether a text is a date that there is, as 2021-04-30, with or without a time of day."""
    with suppress(ValueError):
        return text.strip()[4:5] == "-" and bool(datetime.fromisoformat(text.strip()))
    return False


def _matches(texts: Sequence[str], pattern: str) -> Array:
    return np.array([re.fullmatch(pattern, text) is not None for text in texts], bool)
