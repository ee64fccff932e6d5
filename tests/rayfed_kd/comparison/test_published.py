"""The papers' tables, and how far two orders of rows agree."""

import math

import pytest

from rayfed_kd.comparison.published import FOLDER, _content, published_lines, published_rows, rank_correlation
from rayfed_kd.errors import RecipeError


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),  # five pairs one way, one the other
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5),
        ([1, 1, 1], [1, 2, 3], math.nan),  # equal rows have no order
    ],
)
def test_rank_correlation_by_hand(first, second, tau):
    assert rank_correlation(first, second) == pytest.approx(tau, nan_ok=True)


def test_published_data_holds_what_the_papers_print():
    lines = published_lines("dafkd", "3a", {"dataset": "MNIST", "alpha": 0.1})
    assert lines["DaFKD"] == {"accuracy": (95.56, 0.41)}
    (amp,) = published_rows("fedkf", "V", {"method": "FedAvg", "alpha": 0.01, "metric": "AMP"})
    assert (amp["mean"], amp["std"]) == (55.42, 2.78)


def test_every_printed_record_has_a_number_or_why_there_is_none():
    for file in FOLDER.glob("*.yaml"):
        for table in _content(file)["tables"]:
            for row in table["rows"]:
                assert row["mean"] is not None or {"more_than", "top_accuracy"} & row.keys(), row


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kdai", "2", {}), "Did you mean kdia?"),
        (("kdia", "20", {}), "published.table: '20' is unknown; expected one of 2, 3, 4, 5, 6, 7"),
        (("kdia", "2", {"alpha": 0.1}), "published.where: 'alpha' is unknown; expected one of beta,"),
        (("kdia", "2", {"beta": 7}), "no row of kdia's table 2 has {'beta': 7}"),
    ],
)
def test_what_is_not_published_is_told(arguments, message):
    with pytest.raises(RecipeError) as caught:
        published_rows(*arguments)
    assert message in str(caught.value)
