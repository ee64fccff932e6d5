"""Generated input: each case is read, or refused with one message and exit code 2.

A sample of each kind runs with the fast tests, a few hundred with the slow ones.
"""

import math
import string

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import images, png
from memory_limit import limited_memory
from partitions import partition_of
from small_recipes import FOUR_CLIENTS, small_recipe
from steady import STEADY

from rayfed_kd.comparison.checking import check_study
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.data.partition import Partition
from rayfed_kd.data.sources.pixels import Fitting
from rayfed_kd.data.sources.shards.readers import table_reader
from rayfed_kd.data.sources.shards.sources import decode_files
from rayfed_kd.errors import RayfedError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.loading import load_recipe
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.validation import model_in
from rayfed_kd.recipe.yaml_documents import read_yaml_file
from rayfed_kd.timing.device_sources import read_trace
from rayfed_kd.tuning.space import read_space

LONGEST_MESSAGE = 1500
RECIPE = {
    **small_recipe(FOUR_CLIENTS, "fedkf"),
    "data": {"name": "synthetic", "samples": 40, "classes": 2, "shape": [1, 8, 8]},
    "rounds": 1,
    "sampling": {"fraction": 0.5},
}
NUMBERS = [
    *(0, 1, -1, 2, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**300),
    *(0.0, -0.0, 0.5, 1e-300, 5e-324, 1e300, -1e300, math.inf, -math.inf, math.nan),
]
TEXTS = [
    "",
    "none",
    "auto",
    "local",
    "digits",
    "iid",
    "sync",
    "os:system",
    ":",
    "a\0b",
    "~nouser/x",
    "x" * 400,
    "../x",
]
PLAIN = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.none(),
    st.booleans(),
    st.text(max_size=8),
    st.integers(),
    st.floats(),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(["name", "count", "a"]), PLAIN), inner, max_size=3),
    ),
    max_leaves=5,
)


def keys(model, prefix=()):
    """The paths of all keys that a recipe may have."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        inner = model_in(field.annotation)
        if inner is not None:
            yield from keys(inner, (*prefix, name))


OPTIONS = [
    *(("data", key) for key in ("samples", "test_samples", "classes", "shape", "signal", "data_seed")),
    *(("partition", key) for key in ("alpha", "min_size")),
    *(("method", key) for key in ("gamma", "lambda1", "teacher", "generator")),
    *(("method", "generator", key) for key in ("width", "latent", "lr", "batchnorm_eps")),
    *(
        ("clock", key)
        for key in ("name", "seconds_per_sample", "compute_sigma", "up_mbit_s", "file", "period_s")
    ),
    *(
        ("schedule", key)
        for key in ("name", "min_fraction", "buffer", "deadline_s", "staleness", "concurrency")
    ),
    ("staleness",),
]
KEYS = sorted({*keys(Recipe), *OPTIONS})


def changed(recipe, path, value):
    """The recipe with a value at a path, whatever stood there."""
    inner = recipe.get(path[0])
    if len(path) > 1:
        value = changed(inner if isinstance(inner, dict) else {}, path[1:], value)
    return {**recipe, path[0]: value}


def answer(read, *given_values):
    """What `read` gives; None if it refused the input as it should. Any other error fails the test."""
    with limited_memory():
        try:
            return read(*given_values)
        except RayfedError as error:
            assert error.exit_code == 2
            assert 0 < len(str(error)) < LONGEST_MESSAGE, str(error)
            return None


def many(slow):
    """As many examples as a fast and a slow test take."""
    return pytest.mark.parametrize(
        "examples", [pytest.param(15, id="sample"), pytest.param(slow, id="many", marks=pytest.mark.slow)]
    )


def generated(examples, check, **strategies):
    """Run a check with generated values, the same ones each time."""
    settings(STEADY, max_examples=examples)(given(**strategies)(check))()


@pytest.fixture
def place(tmp_path, monkeypatch, own_cache):
    monkeypatch.chdir(tmp_path)
    return tmp_path


CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=2)


@many(1500)
def test_recipe(examples, place):
    def check(changes):
        recipe = RECIPE
        for path, value in changes:
            recipe = changed(recipe, path, value)
        answer(prepare, recipe)

    generated(examples, check, changes=CHANGES)


# Pieces that YAML gives a meaning.
PIECES = st.sampled_from(
    [
        *(
            "a: ",
            "b",
            "\n",
            " ",
            "  ",
            "- ",
            "? ",
            ": ",
            "[",
            "]",
            "{",
            "}",
            ", ",
            "#",
            "|",
            ">",
            "'",
            '"',
            "%",
            "@",
        ),
        *(
            "&a ",
            "*a",
            "<<: ",
            "!!int ",
            "!!float ",
            "!!bool ",
            "!!set ",
            "!!binary ",
            "!!python/name:os ",
            "!x ",
        ),
        *(
            "1",
            "0x",
            "0b1",
            "1_0",
            "1:30",
            "1e9999",
            ".nan",
            ".inf",
            "2020-01-01",
            "yes",
            "null",
            "~",
            "=",
            "---\n",
        ),
        *("method", "runs", "space", "seed", "\t", "\x07", "é", "\ud800", "\x85", "\u2028", "...\n"),
    ]
)
DOCUMENTS = st.one_of(
    st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode("utf8", "surrogatepass")),
    st.text(alphabet=string.printable, max_size=60).map(str.encode),
    st.binary(max_size=60),
    VALUES.map(lambda value: yaml.safe_dump(value).encode("utf8", "surrogatepass")),
)


def is_plain(value):
    if isinstance(value, dict):
        return all(is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


@many(1500)
def test_yaml(examples, place):
    def check(content):
        (place / "x.yaml").write_bytes(content)
        assert is_plain(answer(read_yaml_file, place / "x.yaml", "recipe file"))
        answer(load_recipe, place / "x.yaml")
        answer(read_space, place / "x.yaml")
        answer(select_studies, ["x.yaml"])

    generated(examples, check, content=DOCUMENTS)


STUDY_KEYS = ("title", "base", "overrides", "seeds", "folder", "tables", "runs", "models", "last", "headline")
STUDY_KEYS += ("target", "published", "quick")
PARTS = st.one_of(
    VALUES,
    st.fixed_dictionaries({"label": VALUES}, optional={"overrides": VALUES, "published": VALUES}),
    st.dictionaries(
        st.text(max_size=4), st.fixed_dictionaries({}, optional={"runs": VALUES, "where": VALUES})
    ),
    st.fixed_dictionaries(
        {"paper": st.sampled_from(["fedkf", "x"]), "table": VALUES}, optional={"where": VALUES}
    ),
)


@many(800)
def test_study(examples, place):
    (place / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    study = {"base": "recipe.yaml", "folder": "x", "runs": [{"label": "A"}, {"label": "B"}]}

    def read():
        for table in select_studies(["study.yaml"]):
            check_study(table)

    def check(key, value, listed):
        content = {**study, key: [value] if listed else value}
        (place / "study.yaml").write_bytes(yaml.safe_dump(content).encode("utf8", "surrogatepass"))
        answer(read)

    generated(examples, check, key=st.sampled_from(STUDY_KEYS), value=PARTS, listed=st.booleans())


ENTRIES = st.one_of(
    VALUES,
    st.dictionaries(
        st.sampled_from(["uniform", "loguniform", "randint", "choice"]),
        st.one_of(st.lists(PLAIN, max_size=3), st.lists(st.integers(), min_size=2, max_size=2).map(sorted)),
        min_size=1,
        max_size=1,
    ),
)


@many(800)
def test_space(examples, place):
    def read():
        space = read_space("space.yaml")
        for key, value in space.draw(1, 0).items():
            extremes = space.distributions[key].values
            assert (
                extremes[0] <= value <= extremes[1]
                if "choice" not in space.entries[key]
                else value in extremes
            )
        return space

    def check(entries):
        (place / "space.yaml").write_bytes(yaml.safe_dump({"space": entries}).encode("utf8", "surrogatepass"))
        space = answer(read)
        if space is not None:
            answer(lambda: next(space.grid()))

    dictionaries = st.dictionaries(st.sampled_from(["a.b", "c", "d.e", "rounds", ""]), ENTRIES, max_size=3)
    generated(examples, check, entries=dictionaries)


SECONDS = st.one_of(
    st.sampled_from(NUMBERS), st.floats(0, 100), st.none(), st.sampled_from(["x", "", "1", "7" * 400])
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "client": st.one_of(st.integers(-1, 3), st.sampled_from(NUMBERS)),
            "seconds_per_sample": SECONDS,
            "up_mbit_s": SECONDS,
            "down_mbit_s": SECONDS,
        },
        optional={"latency_s": SECONDS, "from_s": SECONDS, "until_s": SECONDS, "x": SECONDS},
    ),
    min_size=1,
    max_size=4,
)


@many(1500)
def test_trace(examples, place):
    def check(rows, start, length, speed, period_s):
        plain = {"client": 0, "seconds_per_sample": speed, "up_mbit_s": 1.0, "down_mbit_s": 1.0}
        window = {**plain, "from_s": start, "until_s": None if start is None else start + length}
        for table in (rows, [window]):
            names = list(dict.fromkeys(name for row in table for name in row))
            lines = [
                ",".join("" if row.get(name) is None else str(row[name]) for name in names) for row in table
            ]
            (place / "trace.csv").write_text("\n".join([",".join(names), *lines]))
            devices = answer(read_trace, place / "trace.csv", period_s, len(table))
            for client in range(0 if devices is None else len(devices)):
                busy_s = devices.busy_s(client, 10**9, 10**6, 10**9)
                assert 0 <= devices.done(client, 12.5, busy_s) < math.inf
                assert devices.available_from(client, 12.5) >= 12.5

    generated(
        examples,
        check,
        rows=ROWS,
        start=st.one_of(st.none(), st.floats(0, 1e10)),
        length=st.one_of(st.floats(0, 10), st.sampled_from([1e-300, 1e-3, 1e-4, 1e9])),
        speed=st.floats(0, 1e10),
        period_s=st.one_of(st.none(), st.floats(1e-3, 1e9)),
    )


DAMAGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


@many(1500)
def test_parquet(examples, place):
    """Bytes that are changed or cut off, anywhere in a file."""
    partition_of((np.arange(6), np.arange(6, 10)), (np.arange(0), np.arange(0))).save(place / "p.parquet")
    column = [{"bytes": png(pixels), "path": None} for pixels in images(3, 4, 4)]
    pq.write_table(pa.table({"image": pa.array(column), "label": [0, 1, 1]}), place / "i.parquet")
    speeds = {name: [1.0, 1.0] for name in ("seconds_per_sample", "up_mbit_s", "down_mbit_s")}
    pq.write_table(pa.table({"client": [0, 1], **speeds}), place / "t.parquet")
    readers = {
        "p": lambda path: Partition.load(path, 10),
        "i": lambda path: decode_files([path], [], table_reader(None, None), Fitting()),
        "t": lambda path: read_trace(path, None, 2),
    }
    contents = {name: (place / f"{name}.parquet").read_bytes() for name in readers}

    def check(name, bytes_changed, length):
        content = bytearray(contents[name])
        for at, value in bytes_changed:
            content[at % len(content)] = value
        path = place / "damaged.parquet"
        path.write_bytes(content[: len(content) * length // 100])
        answer(readers[name], path)

    generated(
        examples,
        check,
        name=st.sampled_from(sorted(readers)),
        bytes_changed=DAMAGES,
        length=st.one_of(st.just(100), st.integers(0, 100)),
    )
