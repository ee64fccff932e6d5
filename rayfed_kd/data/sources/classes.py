"""Classes as every source numbers them: the distinct labels of the training samples, ascending."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from pyarrow.csv import ConvertOptions

from rayfed_kd.data.dataset import MOST_CLASSES, Array
from rayfed_kd.errors import DataError, in_words, shortened, shown

# Without leading zeros: 01 is a code, and another one than 1.
PLAIN_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
# Of those, texts that are told by their number alone: 1e2 may be a code, and 1.10 a version after 1.9.
ONE_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.0+|\.\d*[1-9])?")


@dataclass(frozen=True)
class Labels:
    """The labels of one part's samples.

    Attributes:
        where: file and column or key, for messages.
        distinct: what labels there are: texts, numbers or booleans.
        places: [n] int64, each sample's place in `distinct`.
    """

    where: str
    distinct: Sequence[Any]
    places: Array


def by_value(value: Any) -> Any:
    """A category or label such that equal ones are equal: 1, 1.0 and "1" are the number 1.

    Args:
        value: a text, number or boolean; anything else becomes its text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower()
    if isinstance(value, str) and ONE_NUMBER.fullmatch(value):
        value = float(value) if "." in value else int(value)
    if isinstance(value, float | Decimal):
        return int(value) if value == value // 1 else float(value)
    return value if isinstance(value, int | str) else str(value)


def in_order(value: Any) -> tuple[bool, Any]:
    """Sorts what `by_value` gives: numbers first, by size, then texts."""
    return isinstance(value, str), value


def gap_notes(values: Iterable[Any], kind: str) -> list[str]:
    """A note for each class or client whose name is one of those that tables have for a missing value."""
    gaps = ConvertOptions().null_values
    return [f"{shown(value)} is a {kind} of its own, no missing value" for value in values if value in gaps]


def number_classes(parts: Sequence[Labels]) -> tuple[list[Array], tuple[str, ...], list[str]]:
    """Number the classes of a training part, and perhaps a test part, by the labels in the training part.

    Args:
        parts: one or two; the first has the training samples.
    Returns: the classes of each part, [n] int64; their names; what the user should know.
    Raises: DataError for labels that are no classes, and for a class that the test part alone has.
    """
    notes, train = list[str](), parts[0]
    names: dict[Any, str] = {}
    for part in parts:
        for label in part.distinct:
            if label is None or str(label).strip() == "":
                raise DataError(f"{part.where}: a sample without a class")
            value = by_value(label)
            if isinstance(value, float) or ("." in str(value) and PLAIN_NUMBER.fullmatch(value)):
                raise DataError(
                    f"{part.where}: {label} is no class; expected a text or a whole number for each sample. "
                    "Numbers that are to be predicted are none"
                )
    used = [train.distinct[place] for place in np.unique(train.places)]
    if len(used) > MOST_CLASSES:
        raise DataError(f"{train.where}: {len(used):,} classes; expected {MOST_CLASSES:,} at most")
    for label in used:
        value = by_value(label)
        names.setdefault(value, str(label) if isinstance(label, str | bool) else str(value))
    ordered = sorted(names, key=in_order)
    codes_of = {value: code for code, value in enumerate(ordered)}
    for part in parts[1:]:
        unknown = [entry for entry in part.distinct if by_value(entry) not in codes_of]
        if unknown:
            raise DataError(f"{part.where}: the class {shown(unknown[0])} is not in {train.where}")
    if ordered != list(range(len(ordered))) and not any(isinstance(value, str) for value in ordered):
        labels = shortened(in_words(map(str, ordered)))
        notes.append(f"the labels are {labels}; models number them 0 to {len(ordered) - 1}, in this order")
    texts = [value for value in ordered if isinstance(value, str)]
    notes += gap_notes(texts, "class")
    if len({text.strip().casefold() for text in texts}) < len(texts):
        notes.append(
            f"some classes differ in blanks or case alone: {shortened(', '.join(map(shown, texts)), 200)}"
        )
    codes = []
    for part in parts:
        code_of = np.array([codes_of.get(by_value(entry), -1) for entry in part.distinct], np.int64)
        codes.append(code_of[part.places])
    return codes, tuple(names[value] for value in ordered), notes
