"""What a run tells before its first round: what runs, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rayfed_kd.experiment.preparation import Prepared, make_ready
from rayfed_kd.experiment.result import Tell
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.timing import cohort_size
from rayfed_kd.results.telling import as_teller

if TYPE_CHECKING:
    from rayfed_kd.experiment.engines import Launcher
    from rayfed_kd.setting.setting import Setting


def make_ready_telling(recipe: Recipe, tell: Tell) -> Prepared:
    """`make_ready`, telling how far it is."""
    from rayfed_kd.data.decoding import decoding_told

    phase = as_teller(tell).phase
    phase("reading data, model and method")
    with decoding_told(phase):
        return make_ready(recipe)


def wait_for_engine(launcher: Launcher, ready: Callable[[], None], tell: Tell) -> None:
    """Wait until an engine is ready, telling so."""
    if launcher.name == "ray":
        as_teller(tell).phase("starting Ray")
    ready()


def begin_telling(prepared: Prepared, launcher: Launcher, tell: Tell) -> None:
    """Tell what runs, if somebody listens."""
    teller = as_teller(tell)
    if teller is tell:
        teller.begin(describe_run(prepared, launcher.name, launcher.hosts(prepared)))


def describe_run(prepared: Prepared, engine: str, hosts: int) -> dict[str, str]:
    """What runs: name -> text, in the order in which it is shown.

    Args:
        prepared: the checked recipe.
        engine: the engine's name.
        hosts: the number of processes that run clients' steps.
    """
    recipe, setting = prepared.recipe, prepared.setting
    partition, threads = setting.partition, recipe.placement.threads
    cohort = cohort_size(recipe)
    clients = f"{recipe.partition.clients}, {cohort} a round; {recipe.partition.name}"
    if recipe.partition.options:
        clients += f" ({', '.join(f'{key} {value}' for key, value in recipe.partition.options.items())})"
    return {
        "method": " ".join(filter(None, (recipe.method.name, _in_brackets(setting.method.summary)))),
        "model": _models(setting),
        "data": _data(setting),
        "clients": clients,
        "test": f"{len(setting.dataset.test.labels):,} images of the official test set"
        if recipe.partition.test == "official" and setting.dataset.test is not None
        else f"{sum(map(len, partition.test)):,} images, parts of the clients' own",
        "engine": f"{engine}, {_count(hosts, 'host')} with {_count(threads, 'thread')}"
        f"{' each' if hosts > 1 else ''}; {_count(recipe.rounds, 'round')}, seed {recipe.seed}",
    }


def _models(setting: Setting) -> str:
    pool = setting.module_pool()
    texts = []
    for name in setting.client_architectures:
        flat = pool.lend(name, pool.initial_vector(name))
        texts.append(f"{setting.described(name).name}, {flat.num_parameters:,} parameters")
    pool.take_back()
    return "; ".join(texts)


def _data(setting: Setting) -> str:
    data, dataset = setting.recipe.data, setting.dataset
    count = len(dataset.train.labels)
    text = f"{data.name}, {count:,} training images"
    if data.fraction < 1:
        whole = f"{dataset.whole:,}" if dataset.whole else f"about {round(count / data.fraction):,}"
        text = f"{data.name}, {count:,} of {whole} training images (data.fraction {data.fraction:g})"
    public = len(setting.partition.public)
    return f"{text}, {public:,} of them public" if public else text


def _in_brackets(text: str) -> str:
    return f"({text})" if text else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
