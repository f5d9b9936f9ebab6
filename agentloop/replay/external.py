"""Stops that came from outside of a run, and that no replay can repeat."""

from __future__ import annotations

import re

from agentloop.errors import AgentLoopError, InterceptorFailed, ToolInDoubt
from agentloop.replay.timeline import Asked, Turn
from agentloop.values.recorded import RecordedCall
from agentloop.values.stop import AgentStop, StopReason, StopSignal

_EXTERNAL = frozenset({StopReason.USER_REQUESTED, StopReason.TIME_LIMIT})


def stopped_from_outside(turn: Turn) -> str:
    """Say why a turn was cut short by its user, by the time, or by a crash that left a call in doubt; empty when it was not."""
    state = turn.state
    if state is None or state.execution is None:
        return ""
    known = turn.before.execution.continuation.signals if turn.before.execution is not None else ()
    signal = next(
        (one for one in state.execution.continuation.signals if one.reason in _EXTERNAL and one not in known), None
    )
    if signal is not None:
        return f"{signal.reason.value}: {signal.message}"
    errors = state.last_step.errors if state.last_step is not None else ()
    doubt = next((one for one in errors if one.type == ToolInDoubt.__name__), None)
    return "" if doubt is None else doubt.message


def recorded_stop(asked: Asked, turn: Turn) -> AgentStop | None:
    """Return the wish to stop with which an inference ended; None when it ended otherwise.

    What is recorded of an inference tells its error alone; the signal stands in the state after it.
    """
    error, state = asked.recorded.error, turn.state
    if error is None or state is None or state.execution is None:
        return None
    signals = [one for one in state.execution.continuation.signals if one.reason is not StopReason.ERROR]
    signal = next((one for one in signals if _tells(one, error.message)), None)
    if signal is None:
        return None
    return AgentStop(signal.message, reason=signal.reason, source=signal.source, context=signal.context)


def recorded_failure(recorded: RecordedCall, turn: Turn) -> Exception | None:
    """Return the error of what stood around a call, with which its step failed; None when nothing around it failed.

    A tool's own error is an outcome; one that the step has too is that of an interceptor or a listener.
    """
    error = recorded.execution.error if recorded.execution is not None else None
    step = turn.state.last_step if turn.state is not None else None
    if error is None or step is None or error not in step.errors:
        return None
    found = _FAILED.match(error.message)
    if error.type == InterceptorFailed.__name__ and found is not None:
        failed = InterceptorFailed.__new__(InterceptorFailed, error.message)
        failed.interceptor, failed.point = found["interceptor"], found["point"]
        failed.args = (error.message,)
        return failed
    like_it: type[AgentLoopError] = type(error.type, (AgentLoopError,), {})
    return like_it(error.message)


_FAILED = re.compile(r"the interceptor (?P<interceptor>.+?) failed at (?P<point>\w+): ", re.DOTALL)


def _tells(signal: StopSignal, message: str) -> bool:
    return message in {signal.message, f"stop: {signal.reason.value}"}
