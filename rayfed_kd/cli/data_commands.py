"""The commands `data` and `data check`: which data there are, and what a folder has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from rayfed_kd.cli.options import JSON, OVERRIDES, UserPath
from rayfed_kd.errors import RecipeError


@click.group(invoke_without_command=True)
@JSON
@click.pass_context
def data(context: click.Context, *, as_json: bool) -> None:
    """List the data sets and file formats that are read; `data check FOLDER` says what a folder has.

    The list has where to get each named set (nothing is fetched), its files and layouts, size, MD5 sums and
    licence.
    """
    if context.invoked_subcommand is not None:
        return
    from rayfed_kd.data import SOURCES
    from rayfed_kd.data.sources.image_sets import source_facts

    _echo([source_facts(name) for name in SOURCES], as_json, flow=False)


@data.command()
@click.argument("folder", type=UserPath())
@OVERRIDES
@click.option("--source", metavar="NAME", help="Read it as this source does.")
@click.option("--sheet", type=UserPath(), metavar="FILE", help="Draw some images of each class, as PNG.")
@JSON
@click.pass_context
def check(
    context: click.Context,
    folder: str,
    overrides: Sequence[str],
    source: str | None,
    sheet: str | None,
    *,
    as_json: bool,
) -> None:
    """Say what a run would read in FOLDER, or of a file: source, samples, classes, shapes, problems.

    KEY=VALUE are a source's options as a recipe has them, as data.size=32. The data are decoded as a run does
    it, and a run finds them in the cache.
    """
    from rayfed_kd.cli.data_check import check_folder, first_of_each_class
    from rayfed_kd.experiment.preparation import find_own_modules
    from rayfed_kd.recipe.loading import overridden

    find_own_modules()
    recipe: dict[str, Any] = reduce(overridden, overrides, {"data": {}})
    options = recipe["data"]
    if len(recipe) > 1 or not isinstance(options, dict) or {"name", "folder"} & options.keys():
        raise RecipeError("expected options of the data, as data.size=32; --source and FOLDER say the others")
    checks = check_folder(Path(folder), source, options)
    _echo([report for report, _ in checks], as_json or (context.parent or context).params["as_json"])
    if sheet is not None:
        from rayfed_kd.results.charts.figure import save_figure
        from rayfed_kd.results.charts.images import sample_grid_figure

        drawn = [checked for _, checked in checks if checked and checked.train.images.dtype == "uint8"]
        if len(drawn) != 1:
            raise RecipeError(
                f"--sheet: {len(drawn)} data sets of images; expected one, which --source names"
            )
        images, labels = first_of_each_class(drawn[0].train)
        heading = f"training images of {drawn[0].classes} classes"
        save_figure(sample_grid_figure(images, labels, drawn[0].class_names, heading), Path(sheet))
    if any(checked is None for _, checked in checks):
        context.exit(RecipeError.exit_code)


def _echo(reports: Sequence[dict[str, Any]], as_json: bool, flow: bool | None = None) -> None:
    """Print what is known of data sets as JSON, or as YAML for people."""
    import yaml

    from rayfed_kd.cli.listing import echo_json

    if as_json:
        echo_json(reports)
    else:
        for report in reports:
            text = yaml.safe_dump(report, default_flow_style=flow, sort_keys=False, allow_unicode=True)
            click.echo(text)


COMMANDS = (data,)
