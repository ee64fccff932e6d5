"""The names in a run's folder, in its tables and of their values, which are an interface: users read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from rayfed_kd.errors import RecipeError, nearest, shown
from rayfed_kd.recipe.yaml_documents import read_yaml_file

CONFIG = "config.yaml"  # the recipe; a folder without it holds no run
# What describes a run beside its recipe. A run without a clock has no devices.
DESCRIPTION = ("environment.json", "options.yaml", "partition.parquet", "classes.parquet", "devices.parquet")
TABLES = "tables"  # the folder of tables
UNFINISHED = ".running"  # ends the name of a comparison's run folder until the run is finished
FIRST = {"round": "int64", "sim_s": "float64"}  # columns of every table

TYPES = {
    **{name: pa.type_for_alias(name) for name in ("int64", "float64", "string")},
    "list of int64": pa.list_(pa.int64()),
    "numbers by name": pa.map_(pa.string(), pa.float64()),
}
# The tables' columns, as schemas.yaml has them; the first two are round and simulated seconds.
SCHEMAS = {
    name: pa.schema({key: TYPES[kind] for key, kind in {**FIRST, **columns}.items()})
    for name, columns in read_yaml_file(Path(__file__).with_suffix(".yaml"), "list of tables").items()
}

# Columns that measure a host's device: null on a CPU.
GPU_COLUMNS = SCHEMAS["hosts"].names[-6:]

EPSILONS = ("epsilon", "local_epsilon")  # columns of `privacy`: of the sums, and of single messages
# Said wherever an epsilon is: it is of messages, and data are prepared with all clients' samples.
NOT_COVERED = (
    "epsilon does not cover what preparing the data computes over all clients' samples: means and deviations "
    "of pixels and columns where none are given, categories, vocabularies"
)

# The order of a round's rows; those of `metrics` stay in the order in which the method names its models, so
# that a reader's "first model" is the method's own. Other tables have one row.
ROW_ORDER = {
    "clients": ("client", "model"),
    "scores": ("model", "metric", "test"),
    "messages": ("client", "direction", "kind"),
    "hosts": ("host",),
}


def check_table_name(name: str) -> None:
    """Check that a run has a table of this name.

    Raises: RecipeError naming the tables, and the nearest.
    """
    if name not in SCHEMAS:
        hint = nearest(name, SCHEMAS) if isinstance(name, str) else None
        raise RecipeError(f"a run has no table {shown(name)}; there are {', '.join(SCHEMAS)}.", hint=hint)
