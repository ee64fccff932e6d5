"""What a table says of the names of its models."""

import pytest

from rayfed_kd.results.model_names import model_notes, unlike_models


@pytest.mark.parametrize(
    ("names", "unlike"),
    [
        (["aca", "oca"], False),
        (["personal"], False),
        (["personal", "nearest"], False),
        (["personal", "global"], True),
    ],
)
def test_own_models_beside_one_for_all_are_said_not_to_be_alike(names, unlike):
    notes = unlike_models(names)
    assert len(notes) == unlike
    assert all("not like for like" in note for note in notes)


def test_names_that_do_not_say_it_are_explained():
    (legend,) = model_notes(["global", "personal", "aca"])
    assert "global:" not in legend
    assert legend.startswith("aca: ")
    assert "personal: each client's own model" in legend
    assert model_notes(["global"]) == []
