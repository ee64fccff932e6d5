"""When clients are asked, when replies arrive, how late ones count: what an author of each implements.

Import from this package, not from the files in it. `schedules`, `clocks` and `staleness` have the registered
ones; `rayfed_kd.recipe.timing` has their names.
"""

from rayfed_kd.timing.clock import Clock, ClockFacts, ClockOptions
from rayfed_kd.timing.devices import Devices, Windows
from rayfed_kd.timing.schedule import Progress, Schedule, ScheduleFacts, ScheduleOptions
from rayfed_kd.timing.staleness import Staleness, StalenessRule
from rayfed_kd.timing.update_rule import Normalisation, UpdateRule

__all__ = [
    "Clock",
    "ClockFacts",
    "ClockOptions",
    "Devices",
    "Normalisation",
    "Progress",
    "Schedule",
    "ScheduleFacts",
    "ScheduleOptions",
    "Staleness",
    "StalenessRule",
    "UpdateRule",
    "Windows",
]
