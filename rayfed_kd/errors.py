"""The errors that a user may see: each holds facts, and becomes one message at the very end.

`RecipeError` and `DataError` are a user's mistake and end with exit code 2 before the first round;
`RunError` ends a started run with exit code 1. None of them is shown with a stack trace.
"""

from __future__ import annotations

import json
import shlex
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class RayfedError(Exception):
    """Base of all errors that are told as one message."""

    exit_code = 1


class RecipeError(RayfedError):
    """A recipe that cannot be run.

    Args:
        message: what is wrong and what was expected.
        path: where in the recipe, as `partition.alpha`.
        hint: the nearest valid thing, told as `Did you mean ...?`.
        source: the recipe's file, if it came from one.
    """

    exit_code = 2

    def __init__(
        self, message: str, path: str | None = None, hint: str | None = None, source: str | None = None
    ) -> None:
        self.message, self.path, self.hint, self.source = message, path, hint, source
        super().__init__(message, path, hint, source)

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        path = f"{self.path}: " if self.path else ""
        hint = f" Did you mean {self.hint}?" if self.hint else ""
        return f"{where}{path}{self.message}{hint}"


@contextmanager
def optional_package(what: str, extra: str) -> Iterator[None]:
    """Let a failed import within the block name the extra of ours that installs the package.

    Args:
        what: what needs it, and its name, as `privacy: dp-accounting`.
        extra: the extra's name.

    Raises: RecipeError in place of an ImportError.
    """
    try:
        yield
    except ImportError as error:
        raise RecipeError(
            f"{what} cannot be imported ({error}); pip install -e '.[{extra}]' in the clone installs it"
        ) from None


@contextmanager
def naming(source: str | Path | Mapping[str, Any] | None) -> Iterator[None]:
    """Recipe errors raised within name the file that is read, if it is one and none is named yet."""
    try:
        yield
    except RecipeError as error:
        name = None if source is None or isinstance(source, Mapping) else str(source)
        raise RecipeError(error.message, error.path, error.hint, error.source or name) from None


class DataError(RayfedError):
    """Data that is missing, damaged or does not fit the recipe."""

    exit_code = 2


class RunError(RayfedError):
    """A run that started and could not go on."""


class ServerError(RunError):
    """A method's part at the server raised an error, shown with its own traceback."""


class MisuseError(RunError):
    """A method gave or asked for what is none. Whoever runs it says where."""


class FrozenError(AttributeError):
    """A method was changed after it was made."""


# What torch says of a batch of one sample, where a module normalises by a batch's statistics.
ONE_SAMPLE = "Expected more than 1 value per channel"


def told_in_full(error: BaseException) -> str:
    """An error with its stack trace, and with the key that cures it where one is known."""
    cure = "A batch of one sample: local.last_batch = join or drop makes none."
    return f"{''.join(traceback.format_exception(error))}{cure if ONE_SAMPLE in str(error) else ''}"


@contextmanager
def blaming_method(where: str) -> Iterator[None]:
    """Let what a method's part at the server raises become one message; ours are messages already.

    Args:
        where: the round and the method, as `round 3, server of fedavg`.
    """
    try:
        yield
    except AssertionError:  # an assertion is how a check of a method ends its run
        raise
    except MisuseError as error:
        raise RunError(f"{where}: {error}") from error
    except RayfedError:
        raise
    # Also what would end the process in which the server runs. Ctrl-C is the user's.
    except (Exception, SystemExit, GeneratorExit) as error:
        raise ServerError(f"{where} failed:\n{told_in_full(error)}") from error


def shortened(text: str, most: int = 60) -> str:
    """A text with its middle cut out if it is longer than `most` characters: messages stay readable."""
    return text if len(text) <= most else f"{text[: most - most // 3 - 3]}...{text[-(most // 3) :]}"


def shown(value: object, most: int = 60) -> str:
    """What a user wrote, as messages echo it: as Python writes it, shortened."""
    try:
        return shortened(repr(value), most)
    except (ValueError, RecursionError):  # Python writes no number of more than 4,300 digits
        return f"a {type(value).__name__} too long to show"


def setting(key: str, value: Any) -> str:
    """A key with its value in YAML, as any shell takes it: `'data.leave_out=["my column"]'`."""
    text = json.dumps(value, ensure_ascii=False)
    return shlex.quote(f"{key}={text if text.isprintable() else json.dumps(value)}")


def kind_of(value: object) -> str:
    """What a value is, as messages name it: `a list`, `an OrderedDict`, `None`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, whatever the case, or one that has it as a word; None if none is."""
    import difflib

    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.65)
    matches += [one for one in by_folded if name.casefold() in one.split("_")]  # f1: macro_f1
    return by_folded[matches[0]] if matches else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A sentence that names the candidate most like `name`, with a space before it; empty if none is."""
    return f" Did you mean {near}?" if (near := nearest(name, candidates)) else ""


def changes(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> str:
    """What differs, as `KEY was OLD, is NEW` for each key of `after`; empty if nothing does.

    A section that has the same keys on both sides is told by these, as `local.epochs was 1, is 3`.

    Args:
        above: of a section within: its path and a dot.
    """
    told = []
    for key, value in after.items():
        old = before.get(key)
        if value == old:
            continue
        if isinstance(old, Mapping) and isinstance(value, Mapping) and old.keys() == value.keys():
            told.append(changes(old, value, f"{above}{key}."))
        else:
            told.append(f"{above}{key} was {old}, is {value}")
    return "; ".join(told)


def quoted(label: str) -> str:
    """A label among others, in quotes if it has a comma of its own."""
    return f'"{label}"' if "," in label else label


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number of things, as `1 reply` and `2 replies`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def span(counts: Collection[int]) -> str:
    """The least and the largest of some counts, as `3 to 10`; one number where all are alike."""
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def in_words(labels: Iterable[str]) -> str:
    """Labels in a sentence, as `A, "B, server" and C`."""
    words = [quoted(label) for label in labels]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
