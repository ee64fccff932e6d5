"""Small recipes of every method, and what two runs of the same recipe must have in common."""

from pathlib import Path

import numpy as np
import yaml

import rayfed_kd
from rayfed_kd.algorithms import METHODS
from rayfed_kd.cli.listing import by_default
from rayfed_kd.recipe.registry import load_object

# What is trained on what, by whom; a test's recipe says for how many rounds, and what else it needs.
FOUR_CLIENTS = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 4},
    "local": {"epochs": 1, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5}},
}
THREE_CLIENTS = {
    "method": {"name": "fedavg"},
    "model": {"name": "mlp"},
    "data": {"name": "digits", "fraction": 0.1},
    "partition": {"name": "iid", "clients": 3},
    "local": {"epochs": 1},
    "sampling": {"fraction": 1.0},
    "rounds": 2,
}
TWO_LENETS = {
    "model": {"name": "lenet5"},
    "data": {"name": "synthetic", "samples": 120, "classes": 3, "shape": [1, 16, 16]},
    "partition": {"name": "iid", "clients": 2},
    "sampling": {"fraction": 1.0},
    "rounds": 2,
}
THREE_MLPS = {
    **THREE_CLIENTS,
    "model": {"name": "mlp", "hidden": 6},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 3},
}
FIVE_CLIENTS = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 5},
    "local": {"epochs": 2, "batch_size": 32, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.5}},
    "rounds": 3,
    "sampling": {"fraction": 0.6},
    "evaluation": {"samples": False, "every": 3},
}
SIX_CLIENTS = {
    "model": {"name": "mlp", "hidden": 16},
    "data": {"name": "digits", "fraction": 0.2},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6},
    "rounds": 3,
    "sampling": {"count": 5},
    "evaluation": {"samples": False},
}
SIX_LENETS = {
    **SIX_CLIENTS,
    "method": {"name": "fedavg"},
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "fraction": 0.3},
    "local": {"epochs": 1, "batch_size": 32},
    "rounds": 6,
    "sampling": {"fraction": 0.5},
}
# Three classes of made-up images, which an MLP learns in a moment.
MADE_UP = {
    "model": {"name": "mlp", "hidden": 8},
    "data": {"name": "synthetic", "samples": 60, "test_samples": 40, "shape": [1, 8, 8], "classes": 3},
    "partition": {"name": "dirichlet", "alpha": 1.0, "clients": 4},
    "local": {"epochs": 1, "batch_size": 16, "optimizer": {"name": "adam", "lr": 0.01}},
    "rounds": 2,
    "sampling": {"fraction": 1.0},
    "evaluation": {"samples": False},
}
# A round of 16 clients and 25,000 public samples; what they train is of no account.
FEDGEMS_TABLE_4 = {
    "model": {"name": "mlp", "hidden": 1},
    "data": {"name": "synthetic", "samples": 25_100, "shape": [1], "classes": 10},
    "partition": {"name": "iid", "clients": 16, "public": {"count": 25_000, "labels": False}},
    "local": {"epochs": 1, "batch_size": 25_000},
    "rounds": 1,
}
UNLABELLED = {**MADE_UP["partition"], "public": {"count": 30, "labels": False}}
# The same for m1, whose layers have names.
LAYERED = {
    **MADE_UP,
    "model": {"name": "m1"},
    "local": {"epochs": 2, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}},
    "rounds": 3,
    "sampling": {"fraction": 0.5},
}
ONE_SHOT = {
    "generator": {"name": "dafl_image", "width": 4, "latent": 8},
    "epochs": 2,
    "generator_steps": 2,
    "images": 8,
    "batch_size": 8,
}
# A method without a line here is small enough as it is.
OPTIONS = {
    "fedcog": {"images": 20, "steps": 2},
    "fedgen": {"generator": {"hidden": 16, "latent": 4, "steps": 2, "batch_size": 8}},
    "fedftg": {"generator": {"width": 4, "latent": 8}, "iterations": 1, "student_steps": 2, "batch_size": 8},
    "fedrevive": {
        "generator": {"width": 4, "latent": 8},
        "teachers": 2,
        "synth_from": 0,
        "blend_after": 1,
        "every": 1,
        "synthesised": 8,
        "generator_steps": 1,
        "distill_steps": 1,
    },
    "feddf": {"epochs": 1},
    "takfl": {"epochs": 1, "optimizer": {"lr": 0.001}},
    "dense": ONE_SHOT,
    "coboosting": ONE_SHOT,
    "fedpft": {"epochs": 2},
    "fedsd2c": {"ipc": 3, "small_classes": "send", "crops": 2, "epochs": 2, "batch_size": 16},
    "fens": {"batch_size": 8},
    "ccvr": {"every": 1, "samples_per_class": 10},
    "datafree": {
        "teacher_rounds": 1,
        "steps": 1,
        "generator": {"name": "dafl_image", "width": 4, "latent": 8},
    },
    "fedkf": {"generator": {"name": "dafl_image", "width": 4, "latent": 8}},
    "kdia": {"generator": {"width": 8, "epochs": 1, "batches": 2}},
    "dafkd": {"generator": {"width": 4, "latent": 8}, "distill_batches": 2},
    "fedd2s": {"z0": 1},
    "fedper_plus": {"z0": 1},
    "fedrep": {"head_epochs": 1},
    "fedrep_plus": {"head_epochs": 1, "z0": 1},
    "fedtgp": {"server_epochs": 2},
    "fedl2g": {"warmup": 1, "server_lr": 0.1},
    "fedktl": {"generator": {"width": 4, "latent": 8, "epochs": 1}, "server_epochs": 2},
    "fd": {"means": "after"},  # in groups; `training` counts what a loop of its own sees
    "fedmd": {"public_samples": 50},
    "cronus": {"public_samples": 50},
    "dsfl": {"public_samples": 50},
    "fedgkt": {"server": {"name": "mlp"}, "server_epochs": 1},
    "fedict": {"cut": "C2", "server": {"name": "dense"}},
    "fedgem": {"server": {"name": "mlp"}},
    "fedgems": {"server": {"name": "mlp"}, "server_batch_size": 64},
}
# KDIA's feature maps are 5x5: simple_cnn has them on 32x32 images.
MAPS = {
    "model": {"name": "simple_cnn"},
    "data": {"name": "synthetic", "samples": 100, "classes": 3, "shape": [1, 32, 32]},
}
ALONE = {"partition": {"name": "iid", "clients": 1}, "sampling": {"count": 1}}
CHANGES = {"kdia": MAPS, "datafree": ALONE, "centralized": ALONE}

DECIDED = ("rounds", "metrics", "scores", "clients", "messages")
TIMES = ["wall_s", "dispatch_s", "client_s", "server_s", "evaluate_s"]


def small_recipe(base, name, **options):
    """`base` with the method, small, and what it needs of data and partition; `options` on top."""
    recipe = {**base, **CHANGES.get(name, {}), "method": {"name": name, **OPTIONS.get(name, {}), **options}}
    if by_default(load_object(METHODS.get(name, name), "")).public != "none":
        recipe["partition"] = {**recipe["partition"], "public": {"fraction": 0.5}}
    return recipe


def decided(tables):
    """The tables without what differs from run to run: real seconds."""
    return {name: tables[name].drop(TIMES) if name == "rounds" else tables[name] for name in DECIDED}


def assert_same_run(result, expected):
    """Bit for bit: the models and the tables."""
    assert set(result.models) == set(expected.models)
    for name, vector in expected.models.items():
        assert np.array_equal(result.models[name], vector), name
    assert_same_tables(result.tables, expected.tables)


def assert_same_tables(tables, expected):
    found = decided(tables)
    for name, wanted in decided(expected).items():
        assert found[name].equals(wanted), name


def assert_resumed_is_whole(recipe, folder, cut, rounds):
    """A run that ends after round `cut` and goes on is the undisturbed one, bit for bit; gives both."""

    def run(name, last):
        return rayfed_kd.run(recipe, [f"results.folder={folder / name}", f"rounds={last}"], local=True)

    whole = run("whole", rounds)
    run("cut", cut)
    resumed = rayfed_kd.resume(folder / "cut", [f"rounds={rounds}"], local=True)
    assert_same_run(resumed, whole)
    return resumed, whole


def refused(whose):
    """Changes of the test's own recipe, and a pattern of the message by which each is refused."""
    return yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf8"))[whose]
