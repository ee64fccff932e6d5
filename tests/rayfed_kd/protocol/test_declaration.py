"""What a method declares of its parts: what is read from it, and what is refused before round 1."""

import pytest
from broken_methods import Keeping

from rayfed_kd.errors import RecipeError
from rayfed_kd.protocol import Answers, Averaged, Simulated, Unaligned
from rayfed_kd.protocol.declaration import kinds, means_suffice
from rayfed_kd.protocol.declared import REPLACED, check_declared

MEAN = Averaged("weights", by="samples")


def declaring(**members):
    return type("Own", (Keeping,), members)()


def test_kinds_are_those_of_the_parts_that_travel():
    parts = {
        "a": "labels",
        "b": MEAN,
        "c": Unaligned("logits"),
        "d": Answers("logits"),
        "e": Simulated("counts"),
    }
    assert kinds(parts) == {"a": "labels", "b": "weights", "c": "logits", "d": "logits"}


@pytest.mark.parametrize(
    ("up", "suffice"),
    [
        ({"a": MEAN}, True),
        ({"a": MEAN, "b": Averaged("logits")}, True),
        ({"a": MEAN, "b": "counts"}, False),
        ({"a": Unaligned("weights")}, False),
        ({"a": Answers("logits")}, False),
        ({"a": MEAN, "b": Simulated("counts")}, False),
        ({}, False),
    ],
)
def test_means_suffice_where_all_parts_are_averaged(up, suffice):
    assert means_suffice(up) is suffice


@pytest.mark.parametrize("old", REPLACED)
@pytest.mark.parametrize("value", [True, property(lambda method: {})])
def test_a_member_that_parts_say_now_is_refused_with_what_to_write(old, value):
    with pytest.raises(RecipeError) as told:
        check_declared("mine", declaring(**{old: value}), {})
    assert str(told.value).startswith(f"method.name: mine has `{old}`")
    assert REPLACED[old] in str(told.value)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"up": {"a": Averaged("weight")}}, r"up = .*: 'weight' is no kind; .* Did you mean weights"),
        ({"down": {"a": MEAN}}, r"down = .*Averaged.* is no kind"),
        ({"up": {"a b": "weights"}}, "a part's name is an identifier"),
    ],
)
def test_a_declaration_that_says_nothing_is_refused(members, message):
    with pytest.raises(RecipeError, match=message):
        check_declared("mine", declaring(**members), {})


def test_a_declaration_may_be_a_property():
    check_declared("mine", declaring(up=property(lambda method: {"student": MEAN})), {})
