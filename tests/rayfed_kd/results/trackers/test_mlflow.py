"""MLflow for real, offline: what its own client reads of a run that was cut off and resumed."""

import pytest
from recording_tracker import cut_off

import rayfed_kd

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("alembic")
NAMED = {"name": "mlflow", "experiment": "kd"}


def runs(path, experiment="kd"):
    reader = mlflow.MlflowClient(f"sqlite:///{path}")
    return reader, reader.search_runs([reader.get_experiment_by_name(experiment).experiment_id])


def test_a_run_that_was_cut_off_is_one_run_with_each_round_once(tmp_path):
    cut_off(tmp_path / "run", [NAMED])
    _, (begun,) = runs(tmp_path / "mlflow.db")
    assert (begun.info.status, begun.info.run_name) == ("KILLED", "run")
    result = rayfed_kd.resume(tmp_path / "run", local=True)
    reader, (run,) = runs(tmp_path / "mlflow.db")
    assert (run.info.run_id, run.info.status) == (begun.info.run_id, "FINISHED")
    for name in ("amp", "fm", "wlp", "ua"):
        history = reader.get_metric_history(run.info.run_id, f"{name}/global")
        values = result.table("metrics")[name].to_pylist()
        assert [(one.step, one.value) for one in history] == list(enumerate(values, 1))
    assert run.data.params["method.name"] == "fedavg"
    best = result.summary["models"]["global"]["best"]["amp"]
    assert run.data.metrics["models.global.best.amp"] == best
    files = {file.path for file in reader.list_artifacts(run.info.run_id)}
    assert {"config.yaml", "summary.json", "figures", "tables"} <= files
