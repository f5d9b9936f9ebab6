"""Reasons to stop, as values."""

from __future__ import annotations

from enum import StrEnum

from attrs import evolve, field, frozen

from agentloop.errors import AgentLoopError
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.value import Value


class StopReason(StrEnum):
    """Why an execution stops, the weightiest first: where there are several signals, the weightiest one wins.

    The last three are soft: a requested continuation overrides them. All others are hard.
    """

    ERROR = "error"
    USER_REQUESTED = "user_requested"
    SUSPENDED = "suspended"
    COST_LIMIT = "cost_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105  # the name of a limit
    TIME_LIMIT = "time_limit"
    STEP_LIMIT = "step_limit"
    TOOL_CALL_LIMIT = "tool_call_limit"
    RETRY_LIMIT = "retry_limit"
    NO_PROGRESS = "no_progress"
    STOP_REQUESTED = "stop_requested"
    FINISH_REASON = "finish_reason"
    COMPLETED = "completed"

    @property
    def is_hard(self) -> bool:
        """Whether a requested continuation cannot override it."""
        return self not in _SOFT

    @property
    def weight(self) -> int:
        """Its place in the order of weight; higher wins."""
        return _WEIGHTS[self]


_SOFT = frozenset({StopReason.STOP_REQUESTED, StopReason.FINISH_REASON, StopReason.COMPLETED})
_WEIGHTS = {reason: weight for weight, reason in enumerate(reversed(StopReason))}

LIMITS = frozenset(reason for reason in StopReason if reason.is_hard) - {
    StopReason.ERROR,
    StopReason.USER_REQUESTED,
    StopReason.SUSPENDED,
}
"""The reasons that are limits: an execution that ends by one of these was cut short but did not fail."""


@frozen(eq=False, repr=False)
class StopSignal(Value):
    """One reason to stop.

    Attributes:
        reason: what kind of reason it is.
        message: the reason in words, for a person.
        source: who gave it: the name of an interceptor, a tool or a driver.
        context: details as JSON, such as the limit and the count that reached it.
    """

    reason: StopReason = field(converter=StopReason)
    message: str = ""
    source: str = ""
    context: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


@frozen(eq=False, repr=False)
class Continuation(Value):
    """What speaks for stopping and for going on, after a step.

    Attributes:
        signals: the stop signals so far.
        requested: whether somebody asked to go on; that overrides soft signals and never hard ones.
    """

    signals: tuple[StopSignal, ...] = field(default=(), converter=tuple[StopSignal, ...])
    requested: bool = False

    @property
    def hard_signal(self) -> StopSignal | None:
        """The weightiest hard signal, if there is one."""
        signal = self.signal
        return signal if signal is not None and signal.reason.is_hard else None

    @property
    def signal(self) -> StopSignal | None:
        """The weightiest signal, the first of equals, if there is one."""
        return max(self.signals, key=lambda signal: signal.reason.weight) if self.signals else None

    def should_stop(self, *, has_tool_executions: bool) -> bool:
        """Decide, after a step, whether the execution stops.

        Args:
            has_tool_executions: whether the step ran tools, whose results the model has not seen yet.
        """
        if self.hard_signal is not None:
            return True
        return not self.requested and (bool(self.signals) or not has_tool_executions)

    def with_signal(self, signal: StopSignal) -> Continuation:
        """Return it with one more signal."""
        return Continuation((*self.signals, signal), self.requested)

    def with_request(self) -> Continuation:
        """Return it with the wish to go on."""
        return Continuation(self.signals, True)  # noqa: FBT003  # the field is named `requested` five lines above


NO_SIGNALS = Continuation()


class AgentStop(AgentLoopError):
    """Raise it in a tool, an interceptor or a driver to stop the execution without failing it.

    Attributes:
        signal: the reason.
    """

    def __init__(
        self,
        message: str = "",
        *,
        reason: StopReason = StopReason.STOP_REQUESTED,
        source: str = "",
        context: JsonObject = EMPTY_OBJECT,
    ) -> None:
        super().__init__(message or f"stop: {reason.value}")
        self.signal: StopSignal = StopSignal(reason, message, source, context)

    def set_default_source(self, source: str) -> None:
        """Name who raised it, unless it says so itself."""
        if not self.signal.source:
            self.signal = evolve(self.signal, source=source)
