"""Numbers that pages write out of what there is are those of the code."""

import re
from typing import get_args

import pytest
from pages import PAGES, README
from paths import ROOT
from simulated_runs import CASES, FEW, IN_ROUNDS, METHODS, ROUNDS, SCHEDULES

from rayfed_kd.timing.schedules import LateOptions
from rayfed_kd.timing.staleness import STALENESS_RULES
from rayfed_kd.timing.update_rule import Normalisation

WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
SCRIPTS = len(list(ROOT.glob("examples/*.py")))
FORMS = get_args(LateOptions.model_fields["update"].annotation)
COUNTS = [
    ("README.md", "has N scripts and a notebook", [SCRIPTS]),
    ("extend/examples.md", "N scripts and a notebook", [SCRIPTS]),
    (
        "extend/schedule.md",
        "one of N rules with parameters, N normalisations and N forms of update",
        [len(STALENESS_RULES), len(get_args(Normalisation)), len(FORMS)],
    ),
    (
        "guide/recovery.md",
        "There are N cases: N methods with one exchange a round under N schedules",
        [len(CASES), len(METHODS), len(SCHEDULES)],
    ),
    (
        "guide/recovery.md",
        "N methods with several exchanges under the N that have rounds",
        [len(IN_ROUNDS), len(ROUNDS)],
    ),
    ("guide/recovery.md", "The fast tests run N seeds, 17 of each of N cases", [17 * len(FEW), len(FEW)]),
]


@pytest.mark.parametrize(
    ("page", "sentence", "expected"), COUNTS, ids=[sentence for _, sentence, _ in COUNTS]
)
def test_counts_on_pages_are_those_of_the_code(page, sentence, expected):
    text = " ".join((README if page == "README.md" else PAGES[page]).split())
    (found,) = re.findall(re.sub(r"\bN\b", r"([\\w,]+)", re.escape(sentence)), text)
    told = [found] if isinstance(found, str) else found
    numbers = [WORDS.index(word.lower()) if word.isalpha() else int(word.replace(",", "")) for word in told]
    assert numbers == expected


def test_kills_of_the_table_of_kill_points_are_all_that_are_told():
    rows = re.findall(r"^\| `.*\| (\d+) \| (\d+) \| (\d+) \| 0 \|$", PAGES["guide/recovery.md"], re.MULTILINE)
    table = [list(map(int, row)) for row in rows]
    assert all(tried == equal + told for tried, equal, told in table)
    told = re.search(r"These (\d+) kills", PAGES["guide/recovery.md"])
    assert sum(tried for tried, *_ in table[:5]) == int(told[1])
