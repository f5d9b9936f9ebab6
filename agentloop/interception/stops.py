"""Interceptors that stop an execution: after too many steps, repeated calls, or a finish reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from attrs import evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.can_tell_controls import CanTellControls, Control
from agentloop.errors import MalformedArguments
from agentloop.interception.interceptor import Interceptor
from agentloop.values.batches import parse_key
from agentloop.values.inference import FinishReason
from agentloop.values.json import JsonObject, canonical_json
from agentloop.values.parts import Text
from agentloop.values.points import AfterStep, AfterToolUse, BeforeStep
from agentloop.values.policies import CallPolicy
from agentloop.values.stop import StopReason
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExecution, ToolSpec
from agentloop.values.value import Value, instance_of

LIMIT_PRIORITY = 1000
"""Limits are outside of other interceptors, so that these do nothing for a step that is not made."""

# --- steps ------------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class StepLimit(Value, Interceptor, CanTellControls):
    """Stops an execution that has made this many steps without a final answer (law 5).

    Attributes:
        steps: the maximum number of steps of one execution.
        priority: the position among other interceptors.
    """

    steps: int = field(validator=ge(1))
    priority: int = field(default=LIMIT_PRIORITY, kw_only=True)
    writes = ("state.execution.continuation",)  # type: tuple[str, ...]  # an annotation would be a field

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # it is for every tool
        """Return that it limits the steps."""
        return [Control("limits", f"at most {self.steps} steps in an execution", of="steps")]

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop in place of a step that exceeds the limit."""
        state, last = point.state, point.state.last_step
        # Suspended calls are settled in the step that made them, so that is no new step.
        if state.step_count < self.steps or (last is not None and last.open_turn is not None):
            return point
        return point.stop(
            f"the limit of {self.steps} {'step' if self.steps == 1 else 'steps'} is reached",
            reason=StopReason.STEP_LIMIT,
            context=JsonObject(limit=self.steps, steps=state.step_count),
        )


# --- repeated calls ---------------------------------------------------------------------------------------------

_NOTICE_PREFIX = "[no progress: "


def _is_repetition(_: object, __: object, times: int | None) -> None:
    if times is not None and times < 2:  # noqa: PLR2004  # the first call repeats nothing
        raise ValueError(
            f"a call is a repetition from its second time on, so the number must be at least 2, not {times}"
        )


@frozen(eq=False, repr=False)
class RepeatThresholds(Value):
    """How often a call may be repeated with the same result.

    Attributes:
        warn_at: the number of times from which on the model is warned; None for no warning.
        stop_at: the number of times at which the execution stops; None for no stop.
    """

    warn_at: int | None = field(default=3, validator=_is_repetition)
    stop_at: int | None = field(default=4, validator=_is_repetition)


@frozen(eq=False, repr=False)
class StopOnRepeatedCalls(Value, Interceptor, CanNameTools, CanTellControls):
    """Warns a model that makes the same call with the same result step after step, and then stops the execution.

    Calls are the same if they have the same tool and equal arguments; results are the same if they have the same outcome, be
    it a value or an error. The count is of consecutive steps that contain such a call. Other calls in these steps do not
    matter, and several equal calls in one step count once, because the model had not seen the result.

    Attributes:
        warn_at: the number of times from which on a notice is added to the result that the model sees; None for no warning.
        stop_at: the number of times at which the execution stops; None for no stop.
        tools: other thresholds for tools, by name or pattern such as `poll_*`; the first match counts.
        optional: whether the names in `tools` may match no tool. Otherwise that is an error when an execution begins.
        priority: the position among other interceptors.
    """

    warn_at: int | None = field(default=3, validator=_is_repetition)
    stop_at: int | None = field(default=4, validator=_is_repetition)
    tools: Mapping[str, RepeatThresholds] = field(factory=dict, kw_only=True)
    optional: bool = field(default=False, validator=instance_of(bool), kw_only=True)
    priority: int = field(default=LIMIT_PRIORITY, kw_only=True)
    writes = ("execution.content", "state.execution.continuation")  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools with thresholds of their own."""
        return [] if self.optional else [ToolReference("StopOnRepeatedCalls(tools=…)", name) for name in self.tools]

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the name alone counts
        """Return after how many equal calls with equal results the execution stops."""
        times = self._thresholds(tool.name).stop_at
        return [] if times is None else [Control("limits", f"{times} equal calls with equal results", of="repetitions")]

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Count the repetitions of the call; warn, or stop."""
        # Counting goes back no further than the higher threshold, so its cost does not grow with the run.
        thresholds = self._thresholds(point.call.name)
        max_count = max(thresholds.warn_at or 0, thresholds.stop_at or 0)
        times = _count_repetitions(point, max_count) if max_count else 1
        if thresholds.warn_at is not None and times >= thresholds.warn_at:
            point = point.with_execution(_with_notice(point.execution, times))
        if thresholds.stop_at is None or times < thresholds.stop_at:
            return point
        name = point.call.name
        return point.stop(
            f"the tool {name!r} was called {times} times in a row with the same arguments and the same result",
            reason=StopReason.NO_PROGRESS,
            context=JsonObject(tool=name, times=times),
        )

    def _thresholds(self, name: str) -> RepeatThresholds:
        matches = [thresholds for pattern, thresholds in self.tools.items() if fnmatchcase(name, pattern)]
        return matches[0] if matches else RepeatThresholds(self.warn_at, self.stop_at)


def _count_repetitions(point: AfterToolUse, max_count: int) -> int:
    """Return in how many consecutive steps, this one included, the call was made with this result; at most `max_count`."""
    place = parse_key(point.execution.key)
    step_number = place[0] if place is not None else point.state.step_count + 1
    count = 1
    for step in reversed(point.state.steps):
        if step.number >= step_number:
            continue  # a resumed step is in the state already; it must not be compared with itself
        earlier_calls = [call for execution in step.executions for call in execution.flat]
        if count >= max_count or not any(_is_same(point.execution, earlier) for earlier in earlier_calls):
            break
        count += 1
    return count


def _is_same(execution: ToolExecution, earlier: ToolExecution) -> bool:
    return (
        execution.name == earlier.name
        and execution.status is earlier.status
        and execution.error == earlier.error
        and execution.value == earlier.value
        and _has_same_arguments(execution.call, earlier.call)
        and _parts_without_notice(execution) == _parts_without_notice(earlier)
    )


def _has_same_arguments(call: ToolCall, earlier: ToolCall) -> bool:
    if call.arguments_json == earlier.arguments_json:
        return True
    try:
        return canonical_json(call.arguments) == canonical_json(earlier.arguments)
    except MalformedArguments:
        # Arguments that cannot be parsed are the same only if their text is.
        return False


def _parts_without_notice(execution: ToolExecution) -> tuple[ContentPart, ...]:
    # Earlier results in the state may have a notice of this interceptor, which is not part of the result.
    parts = execution.parts
    last = parts[-1] if parts else None
    return parts[:-1] if isinstance(last, Text) and last.text.startswith(_NOTICE_PREFIX) else parts


def _with_notice(execution: ToolExecution, times: int) -> ToolExecution:
    notice = (
        f"{_NOTICE_PREFIX}this is the same result as before; {execution.name!r} was called {times} times in a row with these "
        "arguments. Calling it again will not bring anything new: try something else, or answer with what you have]"
    )
    return evolve(execution, content=(*execution.parts, Text(notice)))


# --- finish reasons ---------------------------------------------------------------------------------------------


class StopOnFinishReason(Interceptor):
    """Stops an execution after a step whose response ended with one of these finish reasons.

    The stop signal is soft: a requested continuation overrides it.

    Args:
        reasons: the finish reasons; by default `length` and `content_filter`.
        priority: the position among other interceptors.
    """

    writes: Collection[str] | None = ("state.execution.continuation",)

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
