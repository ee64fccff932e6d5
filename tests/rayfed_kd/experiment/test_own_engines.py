"""An engine from a file outside of the package: chosen by name, with the bits of every other one."""

import json

import pytest
import yaml
from click.testing import CliRunner
from small_recipes import FOUR_CLIENTS, assert_same_run, small_recipe

import rayfed_kd
from rayfed_kd.cli.main import commands
from rayfed_kd.errors import RecipeError

RECIPE = {**FOUR_CLIENTS, "rounds": 4, "sampling": {"fraction": 0.75}}
ENGINE = '''
from concurrent.futures import Future

from rayfed_kd.cluster.engine.host import Host
from rayfed_kd.cluster.engine.local import LocalEngine
from rayfed_kd.experiment.engines import InProcess

ran = []


class LastFirst(LocalEngine):
    """Keeps steps until one is waited for, and then runs them in the reverse order."""

    def __init__(self, host):
        super().__init__(host)
        self.waiting = []

    def submit(self, calls, summed=()):
        futures = [Awaited(self) for _ in calls]
        self.waiting.append((calls, summed, futures))
        return futures

    def work(self):
        while self.waiting:
            calls, summed, futures = self.waiting.pop()
            ran.extend(call.facts.client for call in calls)
            for future, done in zip(futures, super().submit(calls, summed), strict=True):
                future.set_result(done.result())


class Awaited(Future):
    def __init__(self, engine):
        super().__init__()
        self.engine = engine

    def result(self, timeout=None):
        self.engine.work()
        return super().result(timeout)


class Reversed(InProcess):
    name = "last first"

    def engine(self, setting):
        return LastFirst(Host(setting, keep_states=2))
'''


@pytest.mark.parametrize("method", ["fedkf", "fedd2s"])
def test_engine_that_runs_steps_in_reverse_gives_the_same_run(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_engine.py").write_text(ENGINE)
    recipe = small_recipe(RECIPE, method)
    expected = rayfed_kd.run(recipe, [f"results.folder={tmp_path / 'local'}"], engine="local")
    folder = tmp_path / "own"
    rayfed_kd.run(recipe, [f"results.folder={folder}", "rounds=2"], engine="own_engine:Reversed")
    result = rayfed_kd.resume(folder, ["rounds=4"], engine="own_engine:Reversed")
    assert_same_run(result, expected)
    import own_engine

    assert own_engine.ran[:3] == sorted(own_engine.ran[:3], reverse=True)
    assert json.loads((folder / "environment.json").read_text())["engine"] == "last first"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("lokal", "engine: 'lokal' is not known. Did you mean local\\? There are local, ray"),
        ("json:JSONDecoder", "is no subclass of"),
    ],
)
def test_engine_that_is_none_is_refused(engine, told):
    with pytest.raises(RecipeError, match=told):
        rayfed_kd.run(small_recipe(RECIPE, "fedavg"), engine=engine)


def test_command_takes_an_engine_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_engine.py").write_text(ENGINE)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(small_recipe(RECIPE, "fedavg")))
    folder = tmp_path / "run"
    own = ["--engine", "my_engine:Reversed"]
    begun = CliRunner().invoke(commands, ["run", "recipe.yaml", "rounds=1", f"results.folder={folder}", *own])
    gone_on = CliRunner().invoke(commands, ["resume", str(folder), "rounds=2", *own])
    assert (begun.exit_code, gone_on.exit_code) == (0, 0), begun.output + gone_on.output
    assert json.loads((folder / "environment.json").read_text())["engine"] == "last first"
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2


@pytest.mark.parametrize("command", ["run", "resume"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--local", "--engine", "ray"], "--local and --engine ray name two engines"),
        (["--local", "--address", "localhost:1"], "the engine local uses no Ray"),
        (["--engine", "local", "--address", "localhost:1"], "the engine local uses no Ray"),
    ],
)
def test_options_that_contradict_each_other_are_refused(command, options, told, tmp_path):
    given = tmp_path / "config.yaml"
    given.write_text(yaml.safe_dump(small_recipe(RECIPE, "fedavg")))
    refused = CliRunner().invoke(commands, [command, str(given if command == "run" else tmp_path), *options])
    assert isinstance(refused.exception, RecipeError)
    assert told in str(refused.exception)
