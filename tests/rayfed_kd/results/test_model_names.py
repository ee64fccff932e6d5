"""What a table says of the names of its models."""

import pytest

from rayfed_kd.results.names import model_notes, nearest_model, unlike_models


@pytest.mark.parametrize(
    ("names", "unlike"),
    [
        (["global", "oca"], False),
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
    (legend,) = model_notes(["global", "personal", "oca"])
    assert "global:" not in legend
    assert legend.startswith("oca: ")
    assert "personal: each client's own model" in legend
    assert model_notes(["global"]) == []


@pytest.mark.parametrize(
    ("name", "models", "meant"),
    [
        ("aca", ["global", "oca"], "global"),  # what FedAvg and FedKF called it
        ("aca", ["student", "oca"], "oca"),  # the most alike, where nothing is called global
        ("globl", ["global", "oca"], "global"),
        ("aca", ["student"], None),
    ],
)
def test_former_name_of_a_model_leads_to_todays(name, models, meant):
    assert nearest_model(name, models) == meant
