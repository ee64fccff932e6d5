"""Made-up texts and rows that need no files, for quick recipes and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split
from rayfed_kd.data.sources.columns import plain_table
from rayfed_kd.data.sources.csv_files import CsvForm
from rayfed_kd.data.sources.features import Rows
from rayfed_kd.data.sources.own_table import Length, Vocabulary, tokens_of
from rayfed_kd.data.sources.tables import LabelledTables
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.sample_shapes import TextShape
from rayfed_kd.recipe.seeds import numpy_stream
from rayfed_kd.recipe.yaml_documents import read_yaml_file

WORDS = Path(__file__).with_name("words.yaml")
JOBS = ("clerk", "driver", "farmer", "nurse", "teacher", "trader")
REGIONS = ("east", "north", "south", "west")
RISKS = ("high", "low", "middle")

Samples = Annotated[int, Field(ge=1, le=1_000_000, description="training samples")]
TestSamples = Annotated[
    int, Field(ge=0, le=1_000_000, description="official test samples; 0: no official test set")
]
DataSeed = Annotated[int, Field(ge=0, description="seed of the data, apart from the run's")]


@data_source
def synthetic_text(
    folder: Path,
    *,
    samples: Samples = 1200,
    test_samples: TestSamples = 0,
    authors: Annotated[int, Field(ge=1, le=1000, description="writers, each with words of its own")] = 10,
    length: Length = 16,
    vocabulary: Vocabulary = 512,
    data_seed: DataSeed = 0,
) -> Source:
    """Made-up short texts of four topics, the classes, by authors with favourite words.

    The column `author` is for the partition `by_column`; `natural` takes an author for a client.
    """

    def decode() -> RawDataset:
        stream = numpy_stream(data_seed, "synthetic text")
        words_of = read_yaml_file(WORDS, "table of words")
        topics = [words.split() for words in words_of["topics"].values()]
        common, style = words_of["common"].split(), words_of["style"].split()
        favourites = [stream.choice(style, 3, replace=False).tolist() for _ in range(authors)]
        labels = np.arange(samples + test_samples) % len(topics)
        writers = stream.integers(0, authors, samples + test_samples)
        texts = []
        for label, writer in zip(labels, writers, strict=True):
            words = stream.integers(6, 15)
            # Three words of ten are the topic's, two the author's; the others tell nothing.
            drawn = stream.choice(3, words, p=(0.3, 0.2, 0.5))
            sources = [topics[label], favourites[writer], common]
            texts.append(" ".join(sources[kind][int(stream.integers(len(sources[kind])))] for kind in drawn))
        tokens = tokens_of(texts, length, vocabulary)
        test = Split(tokens[samples:], labels[samples:]) if test_samples else None
        used = writers[:samples]
        return RawDataset(
            Split(tokens[:samples], labels[:samples]),
            test,
            tuple(words_of["topics"]),
            writers=used,
            columns={"author": used},
            sample=TextShape(length, vocabulary),
        )

    return Source((), {}, decode)


@data_source
def synthetic_table(
    folder: Path,
    *,
    samples: Samples = 1200,
    test_samples: TestSamples = 0,
    categories: Annotated[Literal["one_hot", "codes"], Field(description="as `tabular` has it")] = "one_hot",
    data_seed: DataSeed = 0,
) -> Source:
    """Made-up rows of three classes of risk: age, income and years as numbers, job and region as categories.

    Incomes differ by region. The partition `by_column` takes `job` or `region`.
    """

    def decode() -> RawDataset:
        stream = numpy_stream(data_seed, "synthetic table")
        count = samples + test_samples
        age, years = stream.integers(18, 80, count), stream.integers(0, 30, count)
        job, region = stream.integers(0, len(JOBS), count), stream.integers(0, len(REGIONS), count)
        income = stream.lognormal(10 + 0.2 * region, 0.4)
        merit = stream.standard_normal(len(JOBS))[job] + 0.04 * (age - 45) + 2 * (np.log(income) - 10.3)
        score = merit + 0.06 * (years - 15) + 0.4 * stream.standard_normal(count)
        # Thirds by score, so that classes are equally frequent.
        third = np.argsort(np.argsort(score)) * 3 // count
        risk = np.array(["high", "middle", "low"])[third]
        table = pa.table(
            {
                "age": age,
                "income": income,
                "years": years,
                "job": np.array(JOBS)[job],
                "region": np.array(REGIONS)[region],
                "risk": risk,
            }
        )
        labels: Array = np.searchsorted(np.array(RISKS), risk).astype(np.int64)
        tested = np.arange(count) >= samples if test_samples else None
        read = LabelledTables([Path("synthetic_table")], [plain_table(table)], [labels], RISKS, tested)
        rows = Rows(read, CsvForm())
        return rows.dataset(["age", "income", "years"], ["job", "region"], "risk", None, categories)

    return Source((), {}, decode)
