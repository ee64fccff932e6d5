"""The features that a recipe asks for, at the server."""

from __future__ import annotations

from rayfed_kd.cluster.engine.interface import Engine
from rayfed_kd.cluster.server.features import RoundFeature
from rayfed_kd.cluster.server.features.poisoning import Poisoning
from rayfed_kd.cluster.server.features.privacy import Privacy
from rayfed_kd.cluster.server.features.sums import SummedReplies
from rayfed_kd.cluster.server.stored.snapshot import Snapshot
from rayfed_kd.models.module_pool import ModulePool
from rayfed_kd.protocol.declaration import means_suffice
from rayfed_kd.setting.setting import Setting


def features_of(
    setting: Setting, engine: Engine, module_pool: ModulePool, start: Snapshot
) -> tuple[RoundFeature, ...]:
    """A recipe's features, in the order in which they are applied; a plain recipe has none.

    Args:
        setting: of the run.
        engine: publishes the replies of attackers.
        module_pool: of all architectures.
        start: what the run continues from.
    """
    recipe, features = setting.recipe, list[RoundFeature]()
    if recipe.local.sum_replies != "off":
        features.append(SummedReplies())
    if recipe.attack is not None:
        features.append(Poisoning(recipe, setting.method, engine.publish))
    if recipe.privacy is not None:
        privacy = Privacy(recipe, means_suffice(setting.method.up), module_pool, setting.builders)
        if start.privacy is not None:
            privacy.restore(start.privacy)
        features.append(privacy)
    return tuple(features)
