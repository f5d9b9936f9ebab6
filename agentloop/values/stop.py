"""Why an execution stops: reasons, signals, and the decision to continue."""

from __future__ import annotations

from enum import StrEnum

from attrs import evolve, field, frozen

from agentloop.errors.kinds import AgentLoopError
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.value import Value, check_types


class StopReason(StrEnum):
    """Why an execution stops, in order of precedence: of several signals, the first in this order wins.

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
        """Whether the execution stops even if a continuation was requested."""
        return self not in _SOFT

    @property
    def weight(self) -> int:
        """The precedence; the signal with the highest weight wins."""
        return _WEIGHTS[self]


# The order of the members above is the order of precedence.
_SOFT = frozenset({StopReason.STOP_REQUESTED, StopReason.FINISH_REASON, StopReason.COMPLETED})
_WEIGHTS = {reason: weight for weight, reason in enumerate(reversed(StopReason))}

LIMITS = frozenset(reason for reason in StopReason if reason.is_hard) - {
    StopReason.ERROR,
    StopReason.USER_REQUESTED,
    StopReason.SUSPENDED,
}
"""The reasons that are limits: the execution ended early, but did not fail."""


@frozen(eq=False, repr=False)
class StopSignal(Value):
    """A request to stop the execution.

    Attributes:
        reason: the kind of reason.
        message: the reason in words, for people.
        source: the name of the interceptor, tool or driver that sent it.
        context: details as JSON, such as the limit and the count that reached it.
    """

    reason: StopReason = field(converter=StopReason)
    message: str = ""
    source: str = ""
    context: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class Continuation(Value):
    """The stop signals and the continuation request that decide, after a step, whether another step follows.

    Attributes:
        signals: the stop signals so far.
        requested: whether a continuation was requested; a request overrides soft signals, never hard ones.
    """

    signals: tuple[StopSignal, ...] = field(default=(), converter=tuple[StopSignal, ...])
    requested: bool = False

    __attrs_post_init__ = check_types

    @property
    def hard_signal(self) -> StopSignal | None:
        """The signal of highest weight if it is hard, else None."""
        signal = self.signal
        return signal if signal is not None and signal.reason.is_hard else None

    @property
    def signal(self) -> StopSignal | None:
        """The signal of highest weight, the first among equals; None if there are no signals."""
        return max(self.signals, key=lambda signal: signal.reason.weight) if self.signals else None

    def should_stop(self, *, has_tool_executions: bool) -> bool:
        """Return whether the execution stops after a step.

        Args:
            has_tool_executions: whether the step executed tools, whose results the model has not seen yet.
        """
        if self.hard_signal is not None:
            return True
        return not self.requested and (bool(self.signals) or not has_tool_executions)

    def with_signal(self, signal: StopSignal) -> Continuation:
        """Return a copy with one more signal."""
        return Continuation((*self.signals, signal), self.requested)

    def with_request(self) -> Continuation:
        """Return a copy that requests a continuation."""
        return Continuation(self.signals, requested=True)

    def kept_in(self, later: Continuation) -> Continuation:
        """Return a later one with the signals and the request of this one that it lacks."""
        count = len(self.signals)
        if later.signals[:count] == self.signals and later.requested >= self.requested:
            return later
        added = list(later.signals)
        for signal in self.signals:
            if signal in added:
                added.remove(signal)
        return Continuation((*self.signals, *added), self.requested or later.requested)

    def without(self, reason: StopReason) -> Continuation:
        """Return a copy without the signals of this reason."""
        return Continuation([signal for signal in self.signals if signal.reason is not reason], self.requested)


NO_SIGNALS = Continuation()


class AgentStop(AgentLoopError):
    """Raise this in a tool, an interceptor or a driver to stop the execution without failing it.

    Args:
        message: the reason in words, for people.
        reason: the kind of reason.
        source: the name of the sender; by default the tool, interceptor or driver that raises the error.
        context: details as JSON.

    Attributes:
        signal: the stop signal.
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
        """Set the source of the signal, unless it has one."""
        if not self.signal.source:
            self.signal = evolve(self.signal, source=source)


class InterceptorTimedOut(AgentStop):
    """A time limit or a cancellation of the execution interrupted an interceptor.

    What it guards does not happen, and an outcome that it was to change is dropped.
    """
