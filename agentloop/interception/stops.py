"""A model that makes the same call again and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from attrs import evolve, field, frozen

from agentloop.errors import MalformedArguments
from agentloop.interception.budgets.budget import LIMIT_PRIORITY
from agentloop.interception.interceptor import Interceptor
from agentloop.values.batches import key_place
from agentloop.values.inference import FinishReason
from agentloop.values.json import JsonObject, canonical
from agentloop.values.parts import Text
from agentloop.values.points import AfterStep, AfterToolUse
from agentloop.values.stop import StopReason
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExecution

_NOTICE = "[no progress: "


def _from_the_second(_: object, __: object, times: int | None) -> None:
    if times is not None and times < 2:  # noqa: PLR2004  # a call that is made once is no repetition
        raise ValueError(f"a call is repeated from its second time on, not from its {times}.")


@frozen
class Repeats:
    """How often a call may be repeated that brings nothing new.

    Attributes:
        warn_at: the time at which the model is warned, and each after it; None never to warn.
        stop_at: the time at which the execution is stopped; None never to stop.
    """

    warn_at: int | None = field(default=3, validator=_from_the_second)
    stop_at: int | None = field(default=4, validator=_from_the_second)


@frozen
class StopOnRepeatedCalls(Interceptor):
    """Warns a model that makes the same call with the same result step after step, and then stops the execution.

    The same call is the same tool with the same arguments, in whatever spelling; the same result is the same outcome, be it
    a value or an error. Counted are the steps in a row that hold such a call, up to the newest: other calls beside it do not
    matter, a step without it ends the row, and several in one step count once, since the model had not seen the result.

    Attributes:
        warn_at: the time at which a notice is added to what the model is shown of the result; None never to warn.
        stop_at: the time at which the execution stops; None never to stop.
        tools: other numbers for tools, by name or pattern as in `poll_*`; the first that matches counts.
        priority: where it stands among the interceptors.
    """

    warn_at: int | None = field(default=3, validator=_from_the_second)
    stop_at: int | None = field(default=4, validator=_from_the_second)
    tools: Mapping[str, Repeats] = field(factory=dict, kw_only=True)
    priority: int = field(default=LIMIT_PRIORITY, kw_only=True)

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Count the repetitions of the call; warn, or stop."""
        repeats = self._repeats(point.call.name)
        most = max(repeats.warn_at or 0, repeats.stop_at or 0)
        times = _times(point, most) if most else 1
        if repeats.warn_at is not None and times >= repeats.warn_at:
            point = point.with_execution(_with_notice(point.execution, times))
        if repeats.stop_at is None or times < repeats.stop_at:
            return point
        name = point.call.name
        return point.stop(
            f"the tool {name!r} was called {times} times in a row with the same arguments and the same result",
            reason=StopReason.NO_PROGRESS,
            context=JsonObject(tool=name, times=times),
        )

    def _repeats(self, name: str) -> Repeats:
        found = [repeats for pattern, repeats in self.tools.items() if fnmatchcase(name, pattern)]
        return found[0] if found else Repeats(self.warn_at, self.stop_at)


def _times(point: AfterToolUse, most: int) -> int:
    """Return in how many steps in a row the call was made with this result, this step included; counts no further than `most`."""
    place = key_place(point.execution.key)
    own = place[0] if place is not None else point.state.step_count + 1
    times = 1
    for step in reversed(point.state.steps):
        if step.number >= own:
            continue  # a step that waited for a decision is not a step before itself
        if times >= most or not any(_same(point.execution, earlier) for earlier in step.executions):
            break
        times += 1
    return times


def _same(one: ToolExecution, other: ToolExecution) -> bool:
    return (
        one.name == other.name
        and one.status is other.status
        and one.error == other.error
        and one.value == other.value
        and _same_arguments(one.call, other.call)
        and _shown(one) == _shown(other)
    )


def _same_arguments(one: ToolCall, other: ToolCall) -> bool:
    if one.arguments_json == other.arguments_json:
        return True
    try:
        return canonical(one.arguments) == canonical(other.arguments)
    except MalformedArguments:
        return False


def _shown(execution: ToolExecution) -> tuple[ContentPart, ...]:
    """Return what the model was shown, without a notice of ours."""
    parts = execution.parts
    last = parts[-1] if parts else None
    return parts[:-1] if isinstance(last, Text) and last.text.startswith(_NOTICE) else parts


def _with_notice(execution: ToolExecution, times: int) -> ToolExecution:
    notice = (
        f"{_NOTICE}this is the same result as before; {execution.name!r} was called {times} times in a row with these "
        "arguments. Calling it again will not bring anything new: try something else, or answer with what you have]"
    )
    return evolve(execution, content=(*execution.parts, Text(notice)))


class StopOnFinishReason(Interceptor):
    """Stops an execution after a step whose model stopped writing for one of these reasons.

    The signal is soft: a requested continuation goes over it.

    Args:
        reasons: the finish reasons to stop at; when none is given, `length` and `content_filter`.
        priority: where it stands among the interceptors.
    """

    def __init__(
        self,
        reasons: Iterable[FinishReason | str] = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER),
        *,
        priority: int = 0,
    ) -> None:
        self.reasons: frozenset[FinishReason] = frozenset(FinishReason(reason) for reason in reasons)
        self.priority = priority

    def after_step(self, point: AfterStep) -> AfterStep:
        """Stop at one of the reasons."""
        step = point.state.last_step
        if step is None or step.finish_reason not in self.reasons:
            return point
        return point.stop(
            f"the model stopped writing: {step.finish_reason.value}",
            reason=StopReason.FINISH_REASON,
            context=JsonObject(finish_reason=step.finish_reason.value),
        )

    def __repr__(self) -> str:
        return f"StopOnFinishReason({sorted(reason.value for reason in self.reasons)})"
