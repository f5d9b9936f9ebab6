"""What one execution runs with besides its state."""

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
    """Things that were opened, by key; whoever made the set closes it, in reverse order of opening."""

    __slots__ = ("_closers", "_opened")

    def __init__(self) -> None:
        self._opened: dict[Hashable, object] = {}
        self._closers: list[Callable[[], Awaitable[None] | None]] = []

    def open(self, key: Hashable, make: Callable[[], T], close: Callable[[T], Awaitable[None] | None]) -> T:
        """Return what was opened under this key, or open it now.

        Args:
            key: names the thing.
            make: opens it.
            close: closes it, plain or async.
        """
        if key not in self._opened:
            made = self._opened[key] = make()
            self._closers.append(lambda: close(made))
        return cast("T", self._opened[key])

    def is_open(self, key: Hashable) -> bool:
        """Say whether something was opened under this key."""
        return key in self._opened

    async def aclose(self) -> None:
        """Close everything; one that cannot be closed does not keep the others open.

        Raises:
            ExceptionGroup: with what the closing functions raised.
        """
        errors: list[Exception] = []
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
    """What one execution runs with besides its state.

    Attributes:
        clock: where times come from.
        ids: where ids come from.
        dependencies: what the program gave to `AgentLoop.execute(…, dependencies=…)`, for its tools.
        local_resources: what this execution opens for itself; closed when it ends.
        shared_resources: what executions of one loop share, such as connections: held open by a loop that is entered, else the
            same as `local_resources`.
        depth: how many agents stand above: 0 for one that was not started by another's tool.
        log: records its inferences and tool calls; None without a journal.
    """

    clock: Clock = field(factory=SystemClock)
    ids: IdSource = field(factory=RandomIds)
    dependencies: Any = None
    local_resources: Resources = field(factory=Resources)
    shared_resources: Resources = field(factory=Resources)
    depth: int = 0
    log: CallLog | None = None
