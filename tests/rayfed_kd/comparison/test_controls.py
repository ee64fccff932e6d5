"""Rows that a comparison adds to methods on labelled public samples."""

import pytest
from known_comparison import write_yaml
from small_recipes import THREE_CLIENTS

import rayfed_kd
from rayfed_kd.comparison.controls import uncontrolled
from rayfed_kd.comparison.planning import plan_runs
from rayfed_kd.comparison.study_selection import select_studies
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.loading import load_recipe

PUBLIC = {**THREE_CLIENTS["partition"], "public": {"fraction": 0.3}}
CONTENT = {
    "base": {**THREE_CLIENTS, "rounds": 1, "partition": PUBLIC},
    "seeds": [1, 2],
    "runs": [
        {"label": "A"},
        {"label": "M", "overrides": ["method={name: fedmd}"]},
        {"label": "G", "overrides": ["method={name: fedgem, server: {name: mlp}}"]},
    ],
}


@pytest.fixture
def asked(tmp_path):
    """A study file of FedAvg, FedMD and FedGEM, changed."""

    def write(**changes):
        base = write_yaml(tmp_path / "base.yaml", CONTENT["base"])
        content = {**CONTENT, "base": str(base), "folder": str(tmp_path / "runs"), **changes}
        return str(write_yaml(tmp_path / "study.yaml", content))

    return write


def test_labels_alone_is_added_with_a_claim_for_each_model(asked):
    (study,) = select_studies([asked()])
    assert study.labels == ["A", "M", "M, labels alone", "G", "G, labels alone"]
    claims = [(one.higher.run, one.higher.model, one.lower.run, one.lower.model) for one in study.claims]
    assert claims == [
        ("M", "personal", "M, labels alone", "personal"),
        ("G", "server", "G, labels alone", "server"),
        ("G", "personal", "G, labels alone", "personal"),
    ]


@pytest.mark.parametrize("headline", ["fm", "local_negative_log_likelihood"])
def test_claim_of_a_control_is_turned_round_where_smaller_values_are_better(asked, headline):
    metrics = "evaluation.metrics=[negative_log_likelihood]"
    (study,) = select_studies([asked(headline=headline, runs=CONTENT["runs"][:2])], [metrics])
    (claim,) = study.claims
    assert claim.says == "M below its public labels alone (personal)"
    assert (claim.higher.run, claim.lower.run) == ("M, labels alone", "M")


def test_study_may_ask_for_all_controls_or_leave_some_out(asked):
    (study,) = select_studies([asked(controls="all")], without=["G, no labels", "A"])
    assert study.labels == [
        *("M", "M, labels alone", "M, teacher at chance", "M, no labels"),
        *("G", "G, labels alone", "G, teacher at chance"),
    ]
    assert study.changes == ("without A", 'without "G, no labels"')
    (study,) = select_studies([asked(controls="none")])
    assert study.labels == ["A", "M", "G"]
    with pytest.raises(RecipeError, match=r"'A, labels' is unknown; .*, \"M, labels alone\""):
        select_studies([asked()], without=["A, labels"])


def test_control_wins_over_the_command_line(asked):
    (study,) = select_studies([asked(controls="all")], ["method.epsilon=0.5"], only=["G"])
    changes = {one.label: one.overrides for one in plan_runs(study)}
    assert changes["G, no labels"].index("method.epsilon=0.0") > changes["G"].index("method.epsilon=0.5")


def test_own_row_of_that_label_is_the_control(asked):
    own = {"label": "M, labels alone", "overrides": ["method={name: fedmd, digest_epochs: 0}"]}
    (study,) = select_studies([asked(runs=[*CONTENT["runs"][:2], own])])
    assert study.labels == ["A", "M", "M, labels alone"]
    assert study.runs[2].overrides == own["overrides"]
    assert not study.claims


def test_own_method_on_public_labels_without_a_control_is_told(own_module):
    code = "from rayfed_kd.algorithms.fedavg import FedAvg\nclass Lab(FedAvg):\n    public = 'labels'\n"
    own = load_recipe({**THREE_CLIENTS, "method": {"name": f"{own_module('labelled', code)}:Lab"}})
    (told,) = uncontrolled({"L": own, "A": load_recipe(THREE_CLIENTS)})
    assert told.startswith("public labels train L, and no row")


def test_table_without_a_control_says_so(asked):
    (table,) = rayfed_kd.compare(asked(controls="none", runs=CONTENT["runs"][:2]), seeds=1, local=True)
    assert "ublic labels train M, and no row has these labels alone" in " ".join(str(table).split())
    (table,) = rayfed_kd.compare(asked(runs=CONTENT["runs"][:2]), seeds=1, local=True)
    assert "ublic labels train" not in str(table)
    assert "M above its public labels alone (personal)" in str(table)
