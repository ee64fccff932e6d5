"""What an author of a clock implements, and the clocks that simulate nothing.

A clock is a pure object: each answer is a function of its options, the run's facts and the arguments.
So a run repeats, and a resumed run gets the answers of an uninterrupted one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rayfed_kd.recipe.registry import annotated_options
from rayfed_kd.recipe.strict import Strict
from rayfed_kd.timing.devices import Devices


class ClockOptions(Strict):
    """Base of every clock's options: the keys of a recipe's `clock` beside `name`."""


@dataclass(frozen=True)
class ClockFacts:
    """What a clock knows of the run.

    Attributes:
        clients: K, the recipe's `partition.clients`.
        seed: the run's.
        devices: what the clock's `make_devices` gave.
    """

    clients: int
    seed: int
    devices: Devices | None = None


class Clock(ABC):
    """Base of every clock. A subclass defines `arrival`, and overrides what it does otherwise.

    Args:
        options: the checked options of the recipe's `clock`. A subclass says their model by annotating
            `options` with it; without an annotation the clock has no options.
        facts: of the run.

    Raises: RecipeError if an option does not fit the facts.

    Attributes:
        simulated: whether there are simulated seconds to show in the tables, and an order of replies.
        measured: True if the server takes replies as they really come and asks the clock nothing. Such a run
            does not repeat.
    """

    options: Any
    simulated: ClassVar[bool] = True
    measured: ClassVar[bool] = False

    def __init__(self, options: Any, facts: ClockFacts) -> None:
        self.options, self.facts = options, facts

    @classmethod
    def options_model(cls) -> type[ClockOptions]:
        """The model of its options."""
        return annotated_options(cls, ClockOptions)

    @classmethod
    def make_devices(cls, options: Any, clients: int, seed: int) -> Devices | None:
        """The clients' devices, read or drawn once, where the run is prepared; None if the clock has none.

        They go to the server's process with the run, so that a file which is read here need not lie there.
        The run's folder keeps them as `devices.parquet`.

        Args:
            options: as in the constructor.
            clients: K.
            seed: the run's.

        Raises: DataError if a file cannot be read; RecipeError if what it says makes no sense.
        """
        return None

    @abstractmethod
    def arrival(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        """The second at which a reply is at the server.

        Args:
            client: who was asked.
            at: the second at which the server asked it.
            bytes_down: of the message, as the ledger counts them.
            samples: training samples that the client drew, each counted in every epoch.
            bytes_up: of the reply, as the ledger counts them.

        Returns: at least `at`, and no less for more bytes or samples.
        """

    def earliest(self, client: int, at: float, bytes_down: int, least_samples: int) -> float:
        """A second before which the reply cannot be there, known when the client is asked.

        The closer it is to the arrival, the more steps run at the same time. It is never after the arrival.

        Args:
            least_samples: training samples that the step draws at the least.
        """
        # No bytes up, because the size of the reply is not known yet.
        return self.arrival(client, at, bytes_down, least_samples, 0)

    def available(self, clients: Sequence[int], at: float) -> Sequence[int]:
        """Those of `clients`, in their order, that can be asked at second `at`; by default all."""
        return clients

    def next_available(self, clients: Sequence[int], at: float) -> float:
        """The first second from `at` on at which one of `clients` can be asked; infinite: none ever can."""
        return at

    def least_seconds(self, client: int, samples: int) -> float:
        """Seconds that a step of `samples` training samples takes at the least, whenever it starts.

        With it a schedule refuses a deadline that nobody can meet; 0, the default, says nothing.
        """
        return 0.0


class NoClock(Clock):
    """No simulated time: all replies arrive at the same second, and are taken in client order."""

    simulated: ClassVar[bool] = False

    def arrival(self, client: int, at: float, bytes_down: int, samples: int, bytes_up: int) -> float:
        """The second of the dispatch itself: messages and work take no simulated time."""
        return at


class RealClock(NoClock):
    """The server takes replies in the order in which they really arrive, to study a cluster.

    Such a run is not reproducible.
    """

    measured: ClassVar[bool] = True
