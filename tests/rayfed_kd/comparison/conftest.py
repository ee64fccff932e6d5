"""Small studies that several tests start from."""

import pytest
from known_comparison import KDIA, write_yaml
from small_recipes import THREE_CLIENTS

from rayfed_kd.comparison.studies import Study


@pytest.fixture
def study(tmp_path):
    base = write_yaml(tmp_path / "base.yaml", THREE_CLIENTS)
    runs = [{"label": "A"}, {"label": "B b", "overrides": ["local.optimizer.lr=0.1"]}]
    content = {"base": str(base), "folder": str(tmp_path / "runs"), "seeds": [1, 2], "runs": runs}
    return Study.model_validate(content)


@pytest.fixture
def tables(tmp_path):
    """Two tables, learning rates .1 and .2, and a quick version of the second with one round."""
    base = write_yaml(tmp_path / "base.yaml", THREE_CLIENTS)
    content = {
        "title": "T",
        "base": str(base),
        "folder": str(tmp_path / "runs"),
        "seeds": [1, 2, 3],
        "tables": {
            "lr .1": {"overrides": ["local.optimizer.lr=0.1"], "where": {"beta": 0.1}},
            "lr .2": {"overrides": ["local.optimizer.lr=0.2"], "where": {"beta": 0.5}},
        },
        "runs": [{"label": "A"}, {"label": "B", "overrides": ["method={name: fedprox}"]}],
        "published": [{**KDIA, "where": {"dataset": "CIFAR-10"}, "differs": "digits"}],
        "quick": {
            "title": "one round",
            "overrides": ["rounds=1"],
            "seeds": [4],
            "tables": ["lr .2"],
            "runs": {"B": ["method.mu=0.5"]},
            "differs": "one round for two",
        },
    }
    return write_yaml(tmp_path / "study.yaml", content)
