"""Defaults and ranges of all options are those written down in `defaults.yaml`.

A default is part of a result: who changes one changes runs that do not name it. The file says so in the diff,
and the changelog to users. Which are a paper's or a released script's the methods' pages say; those of a
paper's recipes are held by `test_recipes.py`.

    python tests/configs/test_defaults.py      # writes the file anew, as `make derived` does
"""

from pathlib import Path

import pytest
import yaml

from rayfed_kd.algorithms import METHODS
from rayfed_kd.cli.listing import option_rows
from rayfed_kd.data import SOURCES
from rayfed_kd.data.partition import SCHEMES
from rayfed_kd.features.codecs.loading import CODECS
from rayfed_kd.models import CLASSIFIERS, GENERATORS
from rayfed_kd.recipe.registry import load_object, options_model
from rayfed_kd.recipe.timing import CLOCKS, SCHEDULES
from rayfed_kd.setting.metrics import METRICS
from rayfed_kd.timing.staleness import STALENESS_RULES

FILE = Path(__file__).with_name("defaults.yaml")
MODELS = {
    "methods": (METHODS, lambda entry: entry.options_model()),
    "models": ({**CLASSIFIERS, **GENERATORS}, options_model),
    "data": (SOURCES, options_model),
    "partitions": (SCHEMES, options_model),
    "metrics": (METRICS, options_model),
    "schedules": (SCHEDULES, lambda entry: entry.options_model()),
    "staleness": (STALENESS_RULES, lambda entry: entry),
    "clocks": (CLOCKS, lambda entry: entry.options_model()),
    "codecs": (CODECS, options_model),
}


def defaults(kind):
    """name -> option -> its default, and what it takes."""
    registered, model_of = MODELS[kind]
    models = {name: model_of(load_object(entry, "")) for name, entry in registered.items()}
    return {
        name: {row.option: f"{row.default}; {row.takes}" for row in option_rows(model)}
        for name, model in models.items()
    }


@pytest.mark.parametrize("kind", MODELS)
def test_defaults_and_ranges_are_those_written_down(kind):
    written = yaml.safe_load(FILE.read_text())[kind]
    assert defaults(kind) == written, "if this is meant, `make derived` writes them, and CHANGELOG.md says so"


if __name__ == "__main__":
    content = yaml.safe_dump({kind: defaults(kind) for kind in MODELS}, sort_keys=False, width=1000)
    FILE.write_text(f"# Option: default; what it takes. test_defaults.py holds the code to it.\n{content}")
