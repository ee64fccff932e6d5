"""When clients are asked, when replies arrive, how late ones count: what an author of each implements.

Import from this package, not from the files in it. `schedules`, `clocks` and `staleness` have the registered
ones; `rayfed_kd.recipe.timing` has their names.
"""

from rayfed_kd.timing.clock import Clock as Clock
from rayfed_kd.timing.clock import ClockFacts as ClockFacts
from rayfed_kd.timing.clock import ClockOptions as ClockOptions
from rayfed_kd.timing.devices import Devices as Devices
from rayfed_kd.timing.devices import Windows as Windows
from rayfed_kd.timing.schedule import Progress as Progress
from rayfed_kd.timing.schedule import Schedule as Schedule
from rayfed_kd.timing.schedule import ScheduleFacts as ScheduleFacts
from rayfed_kd.timing.schedule import ScheduleOptions as ScheduleOptions
from rayfed_kd.timing.staleness import Staleness as Staleness
from rayfed_kd.timing.staleness import StalenessRule as StalenessRule
from rayfed_kd.timing.update_rule import Normalisation as Normalisation
from rayfed_kd.timing.update_rule import UpdateRule as UpdateRule
