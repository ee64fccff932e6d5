"""What `local.sum_replies` refuses before the first round: whatever needs a client's reply by itself."""

from __future__ import annotations

from typing import Any

from rayfed_kd.errors import RecipeError
from rayfed_kd.features.codecs.loading import Codecs
from rayfed_kd.protocol import Method
from rayfed_kd.protocol.declaration import sums_suffice
from rayfed_kd.recipe.schema import Recipe


def check_summed_replies(recipe: Recipe, method: Method[Any, Any], codecs: Codecs) -> None:
    """Refuse sums at the hosts where the method or the recipe needs single replies.

    Args:
        codecs: by direction and kind.
    Raises: RecipeError
    """
    size = recipe.local.sum_replies
    if size == "off":
        return
    reason = _of_recipe(recipe, codecs)
    if not sums_suffice(method.up):
        reason = (
            f"{recipe.method.name} with these options uses single replies, and hosts would send sums; "
            "expected off, or a method that declares all parts of its replies as Averaged"
        )
    if reason:
        raise RecipeError(f"local.sum_replies = {size}: {reason}")


def _of_recipe(recipe: Recipe, codecs: Codecs) -> str | None:
    schedule, placement = recipe.schedule.name, recipe.placement
    lossy = next((kind for kind, chain in codecs["up"].items() if not chain.lossless), None)
    reasons = {
        f"schedule.name = {schedule!r} may drop a reply or take it later, which its group's sum would still "
        "hold; expected off, or schedule.name=sync": schedule != "sync",
        "attack replaces single replies at the server; expected off, or attack=null": recipe.attack
        is not None,
        "privacy weighs replies and adds its noise at the server; expected off, or privacy=null": (
            recipe.privacy is not None
        ),
        "faults.bad_replies = 'drop' leaves out single replies, which their group's sum would still hold; "
        "expected off, or faults.bad_replies=stop": recipe.faults.bad_replies == "drop",
        f"codec.up.{lossy}: the server would average what was decoded, and hosts sum what was not encoded; "
        "expected off, or codecs without a loss": lossy is not None,
        "placement.clients_per_actor = 1: a client's own actor runs nobody else; expected off, or more "
        "clients per actor": placement.clients_per_actor == 1,
        "placement.overrides gives some clients hosts of their own, and a sum is made at one host; expected "
        "off, or placement.overrides=[]": bool(placement.overrides),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
