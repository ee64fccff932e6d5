"""What a run tells before its first round: what runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from rayfed_kd.errors import counted
from rayfed_kd.experiment.preparation import Prepared
from rayfed_kd.recipe.sections.client_models import PROJECTED
from rayfed_kd.recipe.sections.on_the_way import PrivacyRecipe, StageRecipe
from rayfed_kd.recipe.timing import sampling_rate
from rayfed_kd.results.schemas import NOT_COVERED

if TYPE_CHECKING:
    from rayfed_kd.setting.setting import Setting


# Below it on average, what is given as classes may be numbers or names that tell samples apart.
FEW_OF_A_CLASS = 5


def describe_run(prepared: Prepared, engine: str, layout: str) -> dict[str, str]:
    """What runs: name -> text, in the order in which it is shown.

    Args:
        prepared: the checked recipe.
        engine: the engine's name.
        layout: in which processes server and clients run, as `layout` of the launcher gives it.
    """
    recipe, setting = prepared.recipe, prepared.setting
    threads, schedule = recipe.placement.threads, setting.schedule
    asked = f"{schedule.concurrency} {'at a time' if schedule.asynchronous else 'a round'}"
    if recipe.sampling.poisson:
        asked = f"{sampling_rate(recipe) * recipe.partition.clients:.10g} a round on average"
    clients = f"{recipe.partition.clients}, {asked}; "
    clients += recipe.partition.name if recipe.partition.file is None else f"from {recipe.partition.file}"
    if recipe.partition.options and recipe.partition.file is None:
        clients += f" ({', '.join(f'{key} {value}' for key, value in recipe.partition.options.items())})"
    facts = {
        "method": " ".join(filter(None, (recipe.method.name, _in_brackets(setting.method.summary)))),
        "model": _models(setting),
        "data": _data(setting),
        **{f"note {place}": note for place, note in enumerate(setting.notes, start=1)},
        "clients": clients,
        "test": _test(setting),
        "engine": f"{engine}, {counted(threads, 'thread')} a process; "
        f"{counted(recipe.rounds, 'round')}, seed {recipe.seed}",
        "processes": layout,
    }
    if recipe.codec.chains:
        facts["codec"] = _codecs(prepared)
    if recipe.privacy is not None:
        facts["privacy"] = _privacy(recipe.privacy)
    return facts


def _codecs(prepared: Prepared) -> str:
    """The chains as the recipe has them; and what is known to spoil weights, which nothing forbids."""
    from rayfed_kd.protocol.declaration import kinds
    from rayfed_kd.protocol.message_codec import VECTORS  # it loads torch, before which Ray starts

    written, warnings = prepared.recipe.codec.chains, list[str]()
    # What a method sends up alone may be a change already; what it also sends down is none.
    both = set(prepared.setting.method.up) & set(prepared.setting.method.down)
    for direction, chains_by_kind in prepared.setting.codecs.items():
        for kind, chain in chains_by_kind.items():
            declared = any(kinds(prepared.setting.method.up).get(part) == kind for part in both)
            if kind in VECTORS and declared and (name := chain.meant_for_changes):
                warnings.append(
                    f"warning: {name} gets the {kind} themselves here, not what a client changed, and spoils "
                    f"them; `{direction}: {{{kind}: [difference, {name}]}}` sends changes"
                    if direction == "up"
                    else f"warning: {name} gets the {kind} themselves here, and spoils them; there is no "
                    "difference downwards"
                )
    chains = (
        f"{path.removeprefix('codec.').replace('.', ' ')}: {', '.join(map(_stage, stages))}"
        for path, stages in written.items()
    )
    return "; ".join([*chains, *warnings])


def _stage(stage: StageRecipe) -> str:
    texts = [f"{name} {value}" for name, value in stage.options.items()] + ["feedback"] * stage.feedback
    return " ".join(filter(None, (stage.name, _in_brackets(" ".join(texts)))))


def _privacy(privacy: PrivacyRecipe) -> str:
    bounds = {"clip": privacy.clip, "clip of rows": privacy.row_clip}
    texts = [f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None]
    texts += ["an adaptive clip"] if privacy.adaptive is not None else []
    noise = f"noise multiplier {privacy.noise_multiplier:g} at the {privacy.noise}"
    return f"{', '.join([noise, *texts, 'client level'])}; {NOT_COVERED}"


def _models(setting: Setting) -> str:
    pool = setting.module_pool()
    texts = []
    for name in dict.fromkeys(setting.models_by_client):
        flat = pool.lend(name, pool.initial_vector(name))
        texts.append(f"{_architecture(setting, name)}, {flat.num_parameters:,} parameters")
    pool.take_back()
    return "; ".join(texts)


def _architecture(setting: Setting, name: str) -> str:
    """What a model is called; one that is projected by its base."""
    named = setting.architectures.described(name)
    if named.name != PROJECTED:
        return named.name
    from rayfed_kd.models.projected import RECIPES_DEFAULT

    return str(named.options.get("base", RECIPES_DEFAULT.model_dump())["name"])


def _data(setting: Setting) -> str:
    """Of how many samples and classes, which part trains, which tests and which is public."""
    data, dataset, partition = setting.recipe.data, setting.dataset, setting.partition
    count = len(dataset.train.labels)
    samples = "samples" if dataset.test is None else "samples of its training set"
    text = f"{count:,} {samples}"
    if data.fraction < 1:
        text = f"{count:,} of {dataset.whole:,} {samples} (data.fraction {data.fraction:g})"
    text += f" in {dataset.classes:,} classes"
    trained, tested = partition.train.indices, len(partition.test.indices)
    # Public samples may be the clients' own as well (`partition.public.apart: false`).
    shared = int(np.isin(partition.public, trained).sum())
    apart = len(partition.public) - shared
    shares = {
        "for training": len(trained),
        "of them public": shared,
        "for testing": tested,
        "public" if setting.method.public != "none" else "public, which this method does not use": apart,
        "not used": count - len(trained) - tested - apart,
    }
    text = f"{data.name}, {text}: {', '.join(f'{n:,} {share}' for share, n in shares.items() if n)}"
    of_a_class = dataset.whole / dataset.classes
    if of_a_class < FEW_OF_A_CLASS:
        text += (
            f"; warning: {of_a_class:.1f} samples of a class on average, as when a number to be predicted is "
            "taken for a class"
        )
    return text


def _test(setting: Setting) -> str:
    """What models are tested on: the clients' own parts, the official test set, or both."""
    local, official = len(setting.tested.indices), setting.dataset.test
    drawn = setting.recipe.evaluation.clients
    whose = "the clients' own" if drawn is None else f"those of {counted(drawn, 'client')}"
    texts = [f"{local:,} samples, parts of {whose}"] if local else []
    without = int((setting.tested.sizes[setting.evaluated_clients] == 0).sum())
    if without and setting.recipe.partition.test == "local":
        texts.append(f"{counted(without, 'client')} {'has' if without == 1 else 'have'} no test sample")
    if official is not None:
        texts.append(f"{len(official):,} samples of the official test set")
    return "; ".join([*texts, *_absent_classes(setting)]) or "no samples"


def _absent_classes(setting: Setting) -> Iterator[str]:
    """Of which classes there are no test samples, where metrics that the recipe names may need some."""
    dataset = setting.dataset
    labels = {"the clients' own parts": np.asarray(dataset.train.labels)[setting.tested.indices]}
    if dataset.test is not None:
        labels["the official test set"] = np.asarray(dataset.test.labels)
    for whose, classes in labels.items():
        absent = dataset.classes - len(np.unique(classes))
        if setting.recipe.evaluation.metrics and len(classes) and absent:
            yield (
                f"warning: {whose} have no sample of {absent} of the {dataset.classes} classes, "
                "of which metrics by class, as an AUROC, may say nothing, or count them as 0"
            )


def _in_brackets(text: str) -> str:
    return f"({text})" if text else ""
