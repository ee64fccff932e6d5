"""A zoo of CSV files, as programs and people write them: read as what they mean, or refused in one line.

A bug report adds a row.
"""

import csv
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DEVIATION = np.sqrt(2 / 3)  # of three numbers 1 apart
THREE = np.array([[-1], [0], [1]]) / DEVIATION


def table(*rows, **written):
    """CSV as Python's own writer has it."""
    text = io.StringIO()
    csv.writer(text, **written).writerows([("x", "label"), *rows])
    return text.getvalue()


OPEN = "a text begins with a quotation mark and does not end with one ."
LIKE_NUMBERS = "in the column 'x', which otherwise holds numbers"
# Name -> content, what is read, options if there are some.
FILES = {
    "plain": (table((1, "a"), (2, "b"), (3, "a")), THREE),
    "all in quotes": (table((1, "a"), (2, "b"), (3, "a"), quoting=csv.QUOTE_ALL), THREE),
    "a mark of UTF-8": ("\ufeff" + table((1, "a"), (2, "b"), (3, "a")), THREE),
    "lines of Windows": (table((1, "a"), (2, "b"), (3, "a"), lineterminator="\r\n"), THREE),
    "tabs": (table((1, "a"), (2, "b"), (3, "a"), delimiter="\t"), THREE, {"separator": "\t"}),
    "blanks before numbers": ("x,label\n 1,a\n 2,b\n 3,a\n", THREE),
    "an empty line": ("x,label\n1,a\n\n2,b\n3,a\n", THREE),
    "decimal commas": (
        table(("0,1", "a"), ("0,2", "b"), ("0,3", "a"), delimiter=";"),
        THREE,
        {"separator": ";", "decimal": ","},
    ),
    "thousands": (table(("1,001.5", "a"), ("1,002.5", "b"), ("1,003.5", "a")), THREE, {"thousands": ","}),
    "thousands of Europe": (
        table(("1.001,5", "a"), ("1.002,5", "b"), ("1.003,5", "a")),
        THREE,
        {"thousands": ".", "decimal": ","},
    ),
    "question marks": (
        table((1, "a"), ("?", "b"), (3, "a")),
        [[-1], [0], [1]],
        {"null_values": ["?"], "missing": "mean"},
    ),
    "NA": (table((1, "a"), ("NA", "b"), (3, "a")), [[-1], [0], [1]], {"missing": "mean"}),
    "nothing": (table((1, "a"), ("", "b"), (3, "a")), [[-1], [0], [1]], {"missing": "mean"}),
    "days": (table(("2024-02-28", "a"), ("2024-02-29", "b"), ("2024-03-01", "a")), THREE),
    "times with a zone": (table(*[(f"2024-02-29T23:59:5{s}Z", "ab"[int(s) % 2]) for s in "123"]), THREE),
    "true and false": (table(("true", "a"), ("false", "b"), ("true", "a")), [[0, 1], [1, 0], [0, 1]]),
    "words": (table(("no", "a"), ("", "b"), ("yes", "a")), np.eye(3)[[1, 0, 2]]),
    "codes with letters": (table(("V1", "a"), ("V2", "b"), ("31", "a")), np.eye(3)[[1, 2, 0]]),
    "latin letters": (table(("ä", "a"), ("ö", "b")).encode("latin-1"), np.eye(2), {"encoding": "latin-1"}),
    "UTF-16": (table((1, "a"), (2, "b"), (3, "a")).encode("utf-16"), THREE, {"encoding": "utf-16"}),
    "UTF-16 without the key": (table((1, "a")).encode("utf-16"), "is UTF-16, .*data.encoding=utf-16"),
    "UTF-16 without a mark": (table((1, "a")).encode("utf-16-le"), "zero bytes.*data.encoding=utf-16-le"),
    "latin without the key": (table(("ä", "a")).encode("latin-1"), "line 2: byte 0xe4 is not UTF-8.*latin-1"),
    "latin far below": (
        table(*[("a", "b")] * 3000, ("ä", "a")).encode("latin-1"),
        "row 3001, column 'x': byte 0xe4 is not UTF-8",
    ),
    "no such encoding": (table((1, "a")), "data.encoding: 'utf-61' is no encoding", {"encoding": "utf-61"}),
    "semicolons without the key": (
        "x;y;label\n1;2;a\n",
        "one column, 'x;y;label', .*'data.separator=\";\"' divides it into 3",
    ),
    "semicolons and decimal commas": ("x;label\n1,5;a\n2,5;b\n", "'data.separator=\";\"' divides it into 2"),
    "tabs without the key": ("x\tlabel\n1\ta\n", r"'data.separator=\"\\t\"' divides it into 2"),
    "a row too long": ("x,label\n1,a\n1,a,9\n", "row 2: 3 values for 2 columns: 1,a,9"),
    "a row too short": ("x,label\n1,a\n2,b\n3\n", "row 3: 1 values for 2 columns: 3"),
    "an open quotation mark": ('x,label\n1,"a\n2,b\n3,c\n', f"row 1: {OPEN}unexpected end of data"),
    "an open quotation mark, no last line": ('x,label\n1,a\n\n2,"b\n3,c', f"row 2: {OPEN}unexpected"),
    "two stray quotation marks": ('x,label\n1,"a\n2,b\n3,"c\n4,d\n', f"row 1: {OPEN}',' expected after"),
    "lines in quotes": ('x,label\n1,"a ""b"", \nc"\n2,d"e\n3,d"e\n', THREE),
    "a byte 0x22": ('x,label\n1,a\n2,b\n3,"\u2200\n"\n'.encode("utf-16"), THREE, {"encoding": "utf-16"}),
    "gzip under another name": (b"\x1f\x8b\x08 and so on", "compressed by gzip, which its name"),
    "two columns of one name": ("x,x,label\n1,2,a\n", "two columns have the name 'x'"),
    "a question mark": (
        table((1, "a"), (2, "b"), ("?", "a")),
        rf"row 3: '\?' {LIKE_NUMBERS}; 'data.null_values=\[\"\?\"\]' reads it as a missing number, "
        r"'data.categorical=\[\"x\"\]' keeps the texts",
    ),
    "mostly question marks": (
        table(*[("?", "a")] * 9, (1, "b"), (2, "b"), (3, "b")),
        rf"row 1: '\?' {LIKE_NUMBERS}",
    ),
    "a decimal comma": (
        table((1, "a"), ("2,5", "b")),
        f"row 2: '2,5' {LIKE_NUMBERS}; 'data.decimal=\",\"' reads it as a number",
    ),
    "a comma between thousands": (
        table((1, "a"), ("1,000,000", "b")),
        f"row 2: '1,000,000' {LIKE_NUMBERS}; 'data.thousands=\",\"' reads",
    ),
    "a point between thousands": (
        table((1, "a"), ("1.234,5", "b")),
        f"row 2: '1.234,5' {LIKE_NUMBERS}; 'data.decimal=\",\"' 'data.thousands=\".\"' reads",
    ),
    "a day in another form": (
        table(("2024-01-02", "a"), ("31.02.2024", "b"), ("2024-02-01", "a")),
        r"row 2: '31.02.2024' .*holds times; .*=\[\"31.02.2024\"\]' reads it as a missing time, 'data.cat",
    ),
    "a day that no year has": (
        table(("2024-01-02T10:00", "a"), ("2024-02-01", "b"), ("2024-02-30", "a")),
        "row 3: '2024-02-30' in the column 'x', which otherwise holds times",
    ),
    "a number without a value": (table((1, "a"), ("NA", "b")), "row 2: no value in the column 'x'"),
    "an infinite number": (table((1, "a"), ("inf", "b")), "row 2: inf in the column 'x'"),
    "a label without a value": (table((1, "a"), (2, " ")), "row 2: no value in the column 'label'"),
    "no rows": ("x,label\n", "no rows below the names of columns"),
    "nothing at all": ("", "not readable as CSV .Empty CSV file"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_csv_file_is_what_it_means_or_one_line(kind, tmp_path, read_or_refused):
    content, features, *options = FILES[kind]
    (tmp_path / "train.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    read_or_refused(
        "tabular", features if isinstance(features, str) else {"images": features}, **dict(*options)
    )


def labelled(*labels):
    return "".join(["x,label\n", *(f"{place},{label}\n" for place, label in enumerate(labels))])


IN_ORDER = "models number them 0 to"
CLASSES = {
    "from 1": (labelled(1, 2, 3), ("1", "2", "3"), [0, 1, 2], [f"labels are 1, 2 and 3; {IN_ORDER} 2"]),
    "with a gap": (labelled(0, 3, 1), ("0", "1", "3"), [0, 2, 1], ["labels are 0, 1 and 3"]),
    "as floats": (labelled("1.0", "0.0"), ("0", "1"), [1, 0], []),
    "numbers as texts": (labelled("10", "9", "x"), ("9", "10", "x"), [1, 0, 2], []),
    "true and false": (labelled("true", "false"), ("False", "True"), [1, 0], []),
    "negative": (labelled(1, -1), ("-1", "1"), [1, 0], ["labels are -1 and 1"]),
    "that stand for a gap": (labelled("a", "NA"), ("NA", "a"), [1, 0], ["'NA' is a class of its own"]),
    "that differ in a blank": (labelled("a", " a"), (" a", "a"), [1, 0], ["differ in blanks or case"]),
    "fractions": (labelled(0.5, 1.25), "column 'label': 0.5 is no class; .*to be predicted are none", [], []),
    "days": (labelled("2024-02-28"), "column 'label' holds times, expected texts or whole numbers", [], []),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_classes_are_the_distinct_labels_in_order(kind, tmp_path, read_or_refused):
    content, names, labels, notes = CLASSES[kind]
    (tmp_path / "train.csv").write_text(content)
    written = names if isinstance(names, str) else {"names": names, "labels": labels, "notes": notes}
    read_or_refused("csv", written)


# Categories in the training file, in the test file, and what the test rows become; None: unseen.
COMPARED = {
    "whole numbers and floats": (("1", "2"), ("2.0", "1.0"), [1, 0]),
    "texts and numbers": (("1", "x"), ("1", "1"), [0, 0]),
    "codes with an e": (("1e2", "100"), ("100", "1e2"), [0, 1]),
    "versions": (("1.1", "1.10"), ("1.10", "1.1"), [1, 0]),
    "zeros in front": (("01", "1"), ("1", "01"), [0, 1]),
    "capital letters of true": (("true", "false"), ("True", "FALSE"), [1, 0]),
    "unseen ones": (("a", "b"), ("c", "b"), [None, 1]),
}


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize("kind", COMPARED)
def test_categories_are_compared_by_value(kind, parquet, tmp_path, read_or_refused):
    train, test, places = COMPARED[kind]
    for name, values in (("train.csv", train), ("test.csv", test)):
        (tmp_path / name).write_text(table(*zip(values, "ab", strict=True)))
    if parquet:  # of numbers, where they are numbers
        values = [
            float(one) if one[0].isdigit() and kind not in ("codes with an e", "versions") else one
            for one in test
        ]
        pq.write_table(pa.table({"x": values, "label": ["a", "b"]}), tmp_path / "test.csv")
        if kind == "zeros in front":
            places = [0, 0]  # as a number 01 is 1
    hot = [np.eye(2)[place] if place is not None else np.zeros(2) for place in places]
    unseen = ["column 'x' has a category that training lacks in 1 of 2 test rows"] * (None in places)
    written = {"test_labels": [0, 1], "test_images": hot, "notes": unseen}
    read_or_refused("tabular", written, categorical=["x"], test="test.csv")


def test_texts_among_a_test_files_numbers_are_told_with_the_key(tmp_path, read_or_refused):
    (tmp_path / "train.csv").write_text(labelled("a", "b"))
    (tmp_path / "test.csv").write_text("x,label\nnone,b\n")
    refusal = r"test.csv, row 1: 'none' in the column 'x', .*data.null_values=\[\"none\"\]"
    read_or_refused("tabular", refusal, test="test.csv")


def test_keys_that_contradict_one_another_are_refused(tmp_path, read_or_refused):
    (tmp_path / "train.csv").write_text("1,2\n")
    read_or_refused("tabular", "data.decimal: '.' is data.thousands as well", thousands=".")
    read_or_refused("tabular", "there are 1, 2. The first line of a CSV file has the names of its columns")
    (tmp_path / "train.csv").write_text("x,label\n1,2\n")
    read_or_refused("csv", "data.label_column: label is listed as a feature as well", numeric=["x", "label"])
    read_or_refused("csv", "data.categorical: 'x' is listed twice, here or in", numeric=["x", "x"])


LONG = ("18446744073709551617", "18446744073709551618")  # 2^64 + 1 and 2^64 + 2, of one float64


@pytest.mark.parametrize("labels", [("01", "1", "01"), ("1", "01", "01"), (*LONG, LONG[0])])
@pytest.mark.parametrize("source", ["csv", "tabular"])
def test_codes_that_are_no_numbers_are_other_classes_as_in_parquet(labels, source, tmp_path, read_or_refused):
    """Numbers stand before texts; without such codes, labels are numbers as before."""
    (tmp_path / "train.csv").write_text(labelled(*labels))
    codes, long = [int(label in ("01", LONG[1])) for label in labels], labels[0] in LONG
    notes = [f"the labels are {LONG[0]} and {LONG[1]}"] * long
    written = {"images": THREE, "names": LONG if long else ("1", "01"), "labels": codes, "notes": notes}
    read_or_refused(source, written)
    (tmp_path / "train.csv").write_text(labelled("10", "2", "10"))
    notes = ["the labels are 2 and 10"]
    read_or_refused(source, {"images": THREE, "names": ("2", "10"), "labels": [1, 0, 1], "notes": notes})


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"'])
def test_spreadsheets_line_about_the_separator_is_refused_in_words(line, tmp_path, read_or_refused):
    (tmp_path / "train.csv").write_text(f"{line}\n" + labelled("a", "b", "a").replace(",", ";"))
    read_or_refused("csv", "begins with the line sep=;, which .* expected the names", separator=";")


def test_a_test_file_is_standardised_by_the_training_file(tmp_path, read_or_refused):
    (tmp_path / "train.csv").write_text(labelled("a", "b", "a"))
    (tmp_path / "test.csv").write_text("x,label\n2.5,b\n")
    written = {"images": THREE, "test_labels": [1], "test_images": [[1.5 / DEVIATION]]}
    absent = ["the official test set has no sample of 1 of 2 classes: a"]
    read_or_refused("csv", {**written, "notes": absent}, test="test.csv")


def test_notes_tell_columns_that_say_nothing(tmp_path, read_or_refused):
    rows = [f"{place},7,,n{place},{place % 9 + 1}/04/2021,{place}%,{'ab'[place % 2]}" for place in range(40)]
    (tmp_path / "train.csv").write_text("\n".join(["Unnamed: 0,same,none,name,day,part,label", *rows]))
    notes = [
        "left out: 'Unnamed: 0', which numbers the rows, .*; 'none', which has no values",
        "the column 'same' has one value",
        r"the column 'name' has 40 categories in 40 training rows, .*data.leave_out=\[\"name\"\]",
        "the column 'day' has dates as 1/04/2021, read as categories; 2021-04-30 is read as a time",
        "the column 'part' has 40 categories",
        "the column 'part' has amounts as 0%, read as categories; 5 and 20000 are read as numbers",
    ]
    read_or_refused("tabular", {"notes": notes})


def test_whole_numbers_that_32_bits_would_round_are_standardised_exactly(tmp_path, read_or_refused):
    (tmp_path / "train.csv").write_text("x,label\n16777217,a\n16777218,b\n16777219,a\n")
    read_or_refused("csv", {"images": THREE})
