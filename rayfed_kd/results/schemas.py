"""The names in a run's folder and the columns of its tables, which are an interface: users read them."""

from __future__ import annotations

import pyarrow as pa

CONFIG = "config.yaml"  # the recipe; a folder without it holds no run
TABLES = "tables"  # the folder of tables

_INT, _FLOAT, _TEXT = pa.int64(), pa.float64(), pa.string()

SCHEMAS: dict[str, pa.Schema] = {
    "rounds": pa.schema(
        [
            ("round", _INT),
            ("sim_s", _FLOAT),
            ("wall_s", _FLOAT),
            ("dispatch_s", _FLOAT),
            ("client_s", _FLOAT),
            ("server_s", _FLOAT),
            ("evaluate_s", _FLOAT),
            ("bytes_up", _INT),
            ("bytes_down", _INT),
            ("cohort", _INT),
            ("dropped", _INT),
            ("staleness", _FLOAT),
            ("losses", pa.map_(_TEXT, _FLOAT)),
        ]
    ),
    "metrics": pa.schema(
        [
            ("round", _INT),
            ("sim_s", _FLOAT),
            ("model", _TEXT),
            ("amp", _FLOAT),
            ("fm", _FLOAT),
            ("wlp", _FLOAT),
            ("ua", _FLOAT),
            ("server_accuracy", _FLOAT),
            ("server_loss", _FLOAT),
        ]
    ),
    "clients": pa.schema(
        [
            ("round", _INT),
            ("sim_s", _FLOAT),
            ("client", _INT),
            ("model", _TEXT),
            ("samples", _INT),
            ("correct", _INT),
            ("accuracy", _FLOAT),
        ]
    ),
    "scores": pa.schema(
        [
            ("round", _INT),
            ("sim_s", _FLOAT),
            ("model", _TEXT),
            ("metric", _TEXT),
            ("test", _TEXT),
            ("samples", _INT),
            ("value", _FLOAT),
            ("better", _TEXT),
        ]
    ),
    "messages": pa.schema(
        [
            ("round", _INT),
            ("sim_s", _FLOAT),
            ("client", _INT),
            ("direction", _TEXT),
            ("kind", _TEXT),
            ("bytes", _INT),
            ("parts", _INT),
        ]
    ),
    "hosts": pa.schema(
        [
            ("round", _INT),
            ("sim_s", _FLOAT),
            ("host", _INT),
            ("node", _TEXT),
            ("rss_mb", _FLOAT),
            ("gpu_mb", _FLOAT),
            ("busy_s", _FLOAT),
            ("clients", _INT),
        ]
    ),
}

# The order of a round's rows.
ROW_ORDER: dict[str, tuple[str, ...]] = {
    "rounds": (),
    "metrics": ("model",),
    "clients": ("client", "model"),
    "scores": ("model", "metric", "test"),
    "messages": ("client", "direction", "kind"),
    "hosts": ("host",),
}
