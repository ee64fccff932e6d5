"""`rayfed-kd methods`: what is derived from a method is right, what a method must say itself is said."""

import io
import json
import math
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import run_command
from rich.console import Console
from small_recipes import FOUR_CLIENTS

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cli.listing import (
    SAID,
    WIDTH,
    by_default,
    echo_json,
    method_facts,
    method_page,
    methods_overview,
    page_width,
    public_data,
    schedules,
)
from rayfed_kd.cli.main import commands
from rayfed_kd.errors import RecipeError
from rayfed_kd.experiment.preparation import prepare
from rayfed_kd.recipe.registry import load_object

LISTS = ("methods", "models", "recipes")


def printed(*parts, width=WIDTH):
    console = Console(file=io.StringIO(), width=width)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def flowing(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", METHODS)
def test_method_says_what_the_listing_shows(name):
    method = load_object(METHODS[name], "")
    unsaid = [attribute for attribute in SAID if not getattr(method, attribute)]
    assert not unsaid, (
        f"{METHODS[name]}: class attribute {', '.join(unsaid)} is missing (rayfed_kd/protocol/method.py)"
    )


ROUNDS = (
    "ccvr",
    "datafree",
    "fd",
    "fedd2s",
    "fedkd",
    "fedper_plus",
    "fedrep_plus",
    "cronus",
    "dsfl",
    "fedgkt",
)
ROUNDS += ("fedict", "fedgem", "fedgems", "fedmd", "fens", "takfl")
ASKED_FOR = {
    schedules: {
        **dict.fromkeys(METHODS, "all"),
        **dict.fromkeys(ROUNDS, "sync, quorum"),
        "dafkd": "all; sync, quorum if protocol: local",
    },
    public_data: {
        **dict.fromkeys(METHODS, "none"),
        **dict.fromkeys(("cronus", "dsfl", "fedktl", "takfl"), "unlabelled"),
        **dict.fromkeys(("fedgem", "fedgems"), "labelled"),
        "feddf": "unlabelled; labelled if validation: {}",
        "fedrevive": "none; unlabelled if images: public",
        "fedmd": "labelled; unlabelled if pretrain_public: 0",
    },
}


@pytest.mark.parametrize("fact", ASKED_FOR)
def test_schedules_and_public_data_are_what_each_method_asks_for(fact):
    assert {name: fact(load_object(location, "")) for name, location in METHODS.items()} == ASKED_FOR[fact]


def test_overview_shows_every_method_and_fits_a_page():
    text = printed(methods_overview(method_facts(name, METHODS) for name in METHODS))
    assert max(map(len, text.splitlines())) <= WIDTH
    for name in METHODS:
        assert f"\n{name}: " in f"\n{text}"
    assert "…" not in text


def test_overview_shows_paper_traffic_and_what_is_kept():
    text = printed(methods_overview([method_facts("fedkf", METHODS)]), width=400)
    for shown in (
        "fedkf: data-free distillation at the clients from the average of all clients",
        "Zhou et al. 2023,",
        "down: student, teacher",
        "up: student (weights)",
        "server: ACA, OCA, all",
        "client: its generator and",
        "public data: none",
        "schedules: all",
    ):
        assert shown in text


@pytest.mark.parametrize("name", METHODS)
def test_one_method_is_shown_with_every_option(name):
    """The rows' first words are the option's names, those of parts behind the part's name."""
    text = printed(*method_page(method_facts(name, METHODS)))
    first = {line.split()[0] for line in text.splitlines() if line.strip()}
    model = load_object(METHODS[name], "").options_model()
    assert set(model.model_fields) <= first
    assert max(map(len, text.splitlines())) <= WIDTH


def test_option_is_shown_with_default_values_and_meaning():
    text = printed(*method_page(method_facts("fedkf", METHODS)), width=300)
    rows = [flowing(line) for line in text.splitlines()]
    assert "lambda1 0.1 number >= 0 weight of the one-hot loss (eq. 5)" in rows
    assert "generator.lr 0.001 number > 0 Adam's learning rate" in rows
    assert any(row.startswith("teacher oca oca, aca aca is FedKF-") for row in rows)
    assert any(row.startswith("steps_per_epoch null equal or whole number >= 1 or null") for row in rows)


OWN = """
from pydantic import Field
from broken_methods import Keeping
from rayfed_kd.protocol import MethodOptions

class Options(MethodOptions):
    size: int = Field(ge=1, lt=9, description="of [batch]")

class Mine(Keeping):
    options: Options
"""


def test_own_method_is_shown_by_its_location(monkeypatch, own_module):
    """With an option that has no default, brackets that are no markup, and nothing said about itself."""
    own_module("listed_method", OWN)
    monkeypatch.setattr("sys.path", [*sys.path])
    shown = CliRunner().invoke(commands, ["methods", "listed_method:Mine"])
    rows = [flowing(line) for line in shown.stdout.splitlines()]
    assert "size required whole number >= 1, < 9 of [batch]" in rows
    assert "paper not said" in rows


MALFORMED = """
from typing import Any
from broken_methods import Keeping
from pydantic import BaseModel
from rayfed_kd.protocol import MethodOptions, OneExchange
from rayfed_kd.toolbox.averaging import Averaging

class Bare(OneExchange): pass
class NoParts(Keeping): down = 3
class NoKind(Keeping): up = {"a": 5}
class NoModel(Keeping): options: int
class NoType(Keeping): options: "Nowhere"
class MoreToSay(Keeping):
    def __init__(self, options, other):
        self.options = options
class Raising(Keeping):
    @property
    def public(self):
        raise ValueError("mine")
class Ignoring(BaseModel): a: int = 1
class Nested(MethodOptions): inner: Ignoring | None = None
class IgnoresWithin(Keeping): options: Nested
class Loose(MethodOptions):
    words: list = []
    whatever: Any = 1
class Unlike(Averaging): options: Loose
class Fine(Keeping):
    options: Loose
    paper = 2024
"""


def test_malformed_class_is_answered_in_one_message(own_module):
    own_module("malformed_methods", MALFORMED)
    for name, message in {
        "Bare": r"must define evaluated\(\), init_server\(\): see rayfed_kd.protocol.method",
        "NoParts": "declares down = 3; expected part names and their kinds",
        "NoKind": "5 is no kind",
        "NoModel": r"options of NoModel are <class 'int'>; expected a subclass of rayfed_kd\S+MethodOptions",
        "IgnoresWithin": "Ignoring ignores unknown keys",
        "Unlike": r"are <class 'malformed_methods.Loose'>; expected a subclass of \S+AveragingOptions",
        "NoType": "options of NoType failed: NameError: name 'Nowhere' is not defined",
        "MoreToSay": "MoreToSay failed: TypeError: .*'other'",
        "Raising": r"Raising failed: ValueError: mine .*malformed_methods\.py, line \d+",
    }.items():
        with pytest.raises(RecipeError, match=message):
            method_facts(f"malformed_methods:{name}", METHODS)
    for name in ("NoModel", "NoType"):  # a run says the same
        with pytest.raises(RecipeError, match=f"options of {name}"):
            prepare(FOUR_CLIENTS, ["sampling.fraction=1", f"method={{name: malformed_methods:{name}}}"])
    text = printed(*method_page(method_facts("malformed_methods:Fine", METHODS)))
    rows = [flowing(line) for line in text.splitlines()]
    assert {"paper 2024", "words [] list of any value", "whatever 1 any value"} <= set(rows)


def test_files_and_pipes_get_a_page_of_100_columns():
    console = page_width(Console(file=io.StringIO(), width=37))
    assert console.width == WIDTH
    terminal = Console(file=io.StringIO(), width=37, force_terminal=True)
    assert page_width(terminal) is terminal


def test_command_shows_all_or_one():
    everything = CliRunner().invoke(commands, ["methods"])
    assert everything.exit_code == 0
    assert "kdia: " in everything.stdout
    assert "lambda_kd" not in everything.stdout
    one = CliRunner().invoke(commands, ["methods", "kdia"])
    assert one.exit_code == 0
    assert "lambda_kd" in one.stdout
    assert "fedkf: " not in one.stdout


def test_json_has_no_infinity(capsys):
    echo_json({"epsilon": math.inf, "deviation": math.nan, "folder": Path("a")})
    assert list(json.loads(capsys.readouterr().out).values()) == ["inf", "nan", "a"]


def test_lists_are_json_for_programs():
    listed = {command: json.loads(run_command(command, "--json").stdout) for command in LISTS}
    assert [one["name"] for one in listed["methods"]] == list(METHODS)
    (lenet5,) = (one for one in listed["models"] if one["name"] == "lenet5")
    assert lenet5["kind"] == "classifier" and lenet5["options"] == []
    quickstart = next(one for one in listed["recipes"] if one["name"] == "quickstart")
    assert (quickstart["method"], quickstart["data"], quickstart["kind"]) == ("fedkf", "digits", "recipe")


PUBLIC = [
    name for name, location in METHODS.items() if by_default(load_object(location, "")).public != "none"
]


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("name", PUBLIC)
def test_public_labels_are_asked_for_exactly_where_the_listing_says_so(name, labels):
    partition = {**FOUR_CLIENTS["partition"], "public": {"fraction": 0.5, "labels": labels}}
    recipe = {**FOUR_CLIENTS, "partition": partition, "sampling": {"count": 2}, "method": {"name": name}}
    if labels or public_data(load_object(METHODS[name], "")).startswith("unlabelled"):
        assert prepare(recipe).setting
    else:
        with pytest.raises(RecipeError, match=r"partition\.public\.labels = false"):
            prepare(recipe)
