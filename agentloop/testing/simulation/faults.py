"""What goes wrong in a simulation: a plan of faults from the seed, which can be made smaller as long as it still shows a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from random import Random

from attrs import frozen

from agentloop.errors import ConfigurationError


class SimulatedFault(StrEnum):
    """What goes wrong."""

    CRASH = "crash"
    """A machine dies between two steps of its tasks, and another one starts in its place."""
    PAUSE = "pause"
    """A machine stands still."""
    EXPIRE = "expire"
    """The storage gives up the claims of a machine, which does not know it."""
    LOSE = "lose"
    """The storage gives up the claims of a machine, and the machine is told."""
    CUT = "cut"
    """A machine cannot reach the storage for a while."""
    REFUSE = "refuse"
    """A request to the storage fails before the storage has it."""
    UNANSWERED = "unanswered"
    """The storage does what a request asks, and the answer is lost."""
    SLOW = "slow"
    """A request to the storage takes a long time."""
    CANCEL = "cancel"
    """The task that drives an execution is cancelled."""
    MODEL = "model"
    """A model does not answer."""
    TOOL = "tool"
    """A tool raises an error after its effect."""
    CLOCK = "clock"
    """The clock of a machine is set forward or back."""
    UNDO = "undo"
    """The database server undoes a transaction because of a concurrent one."""
    RESTART = "restart"
    """The database server fails, and is back after some time, as itself or as its standby."""


ALL_FAULTS: tuple[SimulatedFault, ...] = tuple(SimulatedFault)
_OF_SERVERS = frozenset({SimulatedFault.UNDO, SimulatedFault.RESTART})
_OF_NETWORKS = frozenset({SimulatedFault.EXPIRE, SimulatedFault.LOSE, SimulatedFault.CUT, SimulatedFault.UNANSWERED})
FAULTS_BY_STORAGE: Mapping[str, tuple[SimulatedFault, ...]] = {
    "memory": tuple([kind for kind in ALL_FAULTS if kind not in _OF_SERVERS]),
    "sqlite": tuple([kind for kind in ALL_FAULTS if kind not in _OF_SERVERS | _OF_NETWORKS]),
    "postgres": ALL_FAULTS,
}
"""What can go wrong with each storage: a file of the same computer has no network, and the memory of a server no transactions."""
_SECONDS = (0.1, 1.0, 5.0, 40.0)


@frozen
class PlannedFault:
    """One fault of a plan.

    Attributes:
        at: the step of the machines, counted from 1, at which it occurs, or from which on at its next opportunity.
        kind: what goes wrong.
        seconds: how long it takes; for a clock, how far it is set.
    """

    at: int
    kind: SimulatedFault
    seconds: float = 1.0

    def __str__(self) -> str:
        return f"{self.kind.value}@{self.at}:{self.seconds:g}"

    @classmethod
    def parse(cls, text: str) -> PlannedFault:
        """Return the fault that a text describes, as `str` returns it: `crash@62:40`.

        Raises:
            ConfigurationError: the text describes none.
        """
        kind, _, rest = text.strip().partition("@")
        at, _, seconds = rest.partition(":")
        try:
            return cls(int(at), SimulatedFault(kind), float(seconds or 1.0))
        except ValueError as error:
            raise ConfigurationError(
                f"{text!r:.100} is not a fault; write kind@step:seconds, such as crash@62:40; the kinds are {', '.join(ALL_FAULTS)}"
            ) from error


def plan_faults(
    seed: int, *, kinds: Sequence[SimulatedFault] = FAULTS_BY_STORAGE["memory"], most: int = 6, gap: int = 60
) -> tuple[PlannedFault, ...]:
    """Return the faults that a seed stands for; some seeds have none.

    Args:
        seed: the seed.
        kinds: what may go wrong.
        most: the maximum number of faults.
        gap: the maximum number of steps between two of them.
    """
    random = Random(f"faults of {seed}")  # noqa: S311  # not for secrets
    at, faults = 0, list[PlannedFault]()
    for _ in range(random.randint(0, most) if kinds else 0):
        at += random.randint(1, gap)
        kind, seconds = random.choice(kinds), random.choice(_SECONDS)
        if kind is SimulatedFault.CLOCK:
            seconds *= random.choice((-1, 1))
        faults.append(PlannedFault(at, kind, seconds))
    return tuple(faults)


def shrink(
    plan: Sequence[PlannedFault], fails: Callable[[tuple[PlannedFault, ...]], bool], *, attempts: int = 60
) -> tuple[PlannedFault, ...]:
    """Return a part of a plan that still shows a problem, without the faults that are not needed for it.

    Args:
        plan: a plan that shows the problem.
        fails: returns whether a plan shows it.
        attempts: the maximum number of plans to try.
    """
    smallest, size = tuple(plan), max(len(plan) // 2, 1)
    while smallest and attempts > 0:
        for start in range(0, len(smallest), size):
            smaller = smallest[:start] + smallest[start + size :]
            attempts -= 1
            if fails(smaller):
                smallest = smaller
                break
        else:
            if size == 1:
                break
            size = max(size // 2, 1)
    return smallest
