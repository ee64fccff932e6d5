"""What a run checks before Ray starts."""

from concurrent.futures import ThreadPoolExecutor

from command_line import loaded_after
from small_recipes import THREE_CLIENTS

from rayfed_kd.experiment.preparation import prepare


def test_checks_before_ray_starts_load_neither_torch_nor_ray(tmp_path):
    """Torch takes a second to load, which Ray's start would wait for."""
    code = f"""
import rayfed_kd.experiment.running
from rayfed_kd.experiment.resumability import check_unused
from rayfed_kd.recipe.loading import load_recipe
check_unused(load_recipe("quickstart", ["results.folder={tmp_path}/run"]).results.path)
"""
    assert loaded_after(code, "torch", "ray") == []


def test_runs_that_are_prepared_at_the_same_time_do_not_take_one_anothers_draws():
    """As `compare` prepares those that share a Ray: modules draw from generators that all threads share."""
    with ThreadPoolExecutor(8) as threads:
        ready = list(threads.map(lambda _: prepare(THREE_CLIENTS), range(16)))
    assert len(ready) == 16
