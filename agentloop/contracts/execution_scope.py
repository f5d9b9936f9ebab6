"""The scope of an execution: clock, ids, resources, log and dependencies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from inspect import isawaitable
from typing import Any, TypeVar, cast

from attrs import field, frozen

from agentloop.contracts.run_log import CallLog
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.value import Value

T = TypeVar("T")


class Resources:
    """A set of opened resources, by key. Its creator closes it; resources are closed in reverse order of opening."""

    __slots__ = ("_closers", "_opened")

    def __init__(self) -> None:
        self._opened: dict[Hashable, object] = {}
        self._closers: list[Callable[[], Awaitable[None] | None]] = []

    def open(self, key: Hashable, make: Callable[[], T], close: Callable[[T], Awaitable[None] | None]) -> T:
        """Return the resource of this key; open it if it is not open yet.

        Args:
            key: identifies the resource.
            make: opens the resource.
            close: closes it; plain or async.

        Raises:
            Exception: any error of `make`; the key stays free then.
        """
        if key not in self._opened:
            resource = self._opened[key] = make()
            self._closers.append(lambda: close(resource))
        return cast("T", self._opened[key])

    def is_open(self, key: Hashable) -> bool:
        """Return whether a resource is open under this key."""
        return key in self._opened

    async def aclose(self) -> None:
        """Close all resources, even if some of them raise.

        Raises:
            ExceptionGroup: the errors of the closing functions.
        """
        errors: list[Exception] = []
        # One at a time from the end: a closer may open or use resources that were opened before.
        while self._closers:
            closer = self._closers.pop()
            try:
                outcome = closer()
                if isawaitable(outcome):
                    await outcome
            except Exception as error:  # noqa: BLE001  # collected and raised below
                errors.append(error)
        self._opened.clear()
        if errors:
            raise ExceptionGroup("not everything could be closed", errors)


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionScope(Value):
    """Everything that one execution uses besides its state.

    Attributes:
        clock: the source of times.
        ids: the source of ids.
        dependencies: the argument of `AgentLoop.execute(…, dependencies=…)`, for the tools.
        local_resources: resources of this execution; closed when it ends.
        shared_resources: resources that the executions of one loop share, such as connections. They stay open while the loop
            is entered by `async with`; otherwise they are the same as `local_resources`.
        depth: the number of agents above this one; 0 for a top-level agent.
        log: records inferences and tool calls; None without a journal.
    """

    clock: Clock = field(factory=SystemClock)
    ids: IdSource = field(factory=RandomIds)
    dependencies: Any = None
    local_resources: Resources = field(factory=Resources)
    shared_resources: Resources = field(factory=Resources)
    depth: int = 0
    log: CallLog | None = None
