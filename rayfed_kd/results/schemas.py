"""The names in a run's folder, in its tables and of their values, which are an interface: users read them."""

from __future__ import annotations

import pyarrow as pa

from rayfed_kd.errors import RecipeError, nearest, shown

CONFIG = "config.yaml"  # the recipe; a folder without it holds no run
TABLES = "tables"  # the folder of tables

_INT, _FLOAT, _TEXT = pa.int64(), pa.float64(), pa.string()


def _by_round(**columns: pa.DataType) -> pa.Schema:
    """The columns of a table: of every one the first two are the round, and simulated seconds until then."""
    return pa.schema({"round": _INT, "sim_s": _FLOAT, **columns})


SCHEMAS: dict[str, pa.Schema] = {
    "rounds": _by_round(
        wall_s=_FLOAT,
        dispatch_s=_FLOAT,
        client_s=_FLOAT,
        server_s=_FLOAT,
        evaluate_s=_FLOAT,
        bytes_up=_INT,
        bytes_down=_INT,
        cohort=_INT,
        dropped=_INT,
        staleness=_FLOAT,
        losses=pa.map_(_TEXT, _FLOAT),
        bad_replies=_INT,
    ),
    "metrics": _by_round(
        model=_TEXT,
        amp=_FLOAT,
        fm=_FLOAT,
        wlp=_FLOAT,
        ua=_FLOAT,
        server_accuracy=_FLOAT,
        server_loss=_FLOAT,
        not_finite=_INT,
    ),
    "clients": _by_round(
        client=_INT,
        model=_TEXT,
        samples=_INT,
        correct=_INT,
        accuracy=_FLOAT,
    ),
    "scores": _by_round(
        model=_TEXT,
        metric=_TEXT,
        test=_TEXT,
        samples=_INT,
        value=_FLOAT,
        better=_TEXT,
    ),
    "messages": _by_round(
        client=_INT,
        direction=_TEXT,
        kind=_TEXT,
        bytes=_INT,
        raw_bytes=_INT,
        parts=_INT,
    ),
    "privacy": _by_round(
        epsilon=_FLOAT,
        local_epsilon=_FLOAT,
        delta=_FLOAT,
        releases=_INT,
        noise_multiplier=_FLOAT,
        clip=_FLOAT,
        row_clip=_FLOAT,
        unit=_TEXT,
        neighbours=_TEXT,
        noise=_TEXT,
        sampling=_TEXT,
        accountant=_TEXT,
    ),
    "hosts": _by_round(
        host=_INT,
        node=_TEXT,
        rss_mb=_FLOAT,
        gpu_mb=_FLOAT,
        busy_s=_FLOAT,
        clients=_INT,
        gpu_peak_mb=_FLOAT,
        gpu_busy=_FLOAT,
        gpu_copies_in=_INT,
        gpu_bytes_in=_INT,
        gpu_copies_out=_INT,
        gpu_bytes_out=_INT,
    ),
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
# that a reader's "first model" is the method's own.
ROW_ORDER: dict[str, tuple[str, ...]] = {
    "rounds": (),
    "metrics": (),
    "clients": ("client", "model"),
    "scores": ("model", "metric", "test"),
    "messages": ("client", "direction", "kind"),
    "privacy": (),
    "hosts": ("host",),
}


def check_table_name(name: str) -> None:
    """Check that a run has a table of this name.

    Raises: RecipeError naming the tables, and the nearest.
    """
    if name not in SCHEMAS:
        raise RecipeError(
            f"a run has no table {shown(name)}; there are {', '.join(SCHEMAS)}.",
            hint=nearest(name, SCHEMAS) if isinstance(name, str) else None,
        )
