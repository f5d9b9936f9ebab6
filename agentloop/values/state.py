"""The complete state of an agent as one immutable value: identity, context and current execution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from attrs import evolve, field, frozen

from agentloop.errors.kinds import AgentLoopError, ContractViolation
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import ResponseFormat, Usage
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, extract_json, freeze, freeze_object
from agentloop.values.messages import Message
from agentloop.values.provenance import PROVENANCE, InterceptorWrite, explain_writes, read_writes
from agentloop.values.rendering import render_call
from agentloop.values.reprs import Bar, Summarized, format_count, render_waterfall
from agentloop.values.steps import NO_USAGE, AgentStep, ExecutionState, ExecutionStatus, StepKind, SuspendedTurn
from agentloop.values.stop import NO_SIGNALS, StopSignal
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution
from agentloop.values.value import Value, check_types, copier, starts_with
from agentloop.values.visible_text import escape_invisible

if TYPE_CHECKING:  # `typing` has defaults of type variables from Python 3.13 on
    from typing_extensions import TypeVar

    Output_co = TypeVar("Output_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Output_co = TypeVar("Output_co", covariant=True)


@frozen(eq=False, repr=False)
class AgentContext(Value):
    """The context of a model: system prompt and conversation, with metadata for the application.

    Attributes:
        system_prompt: the instructions that precede the conversation.
        messages: the complete conversation; a compiler selects the messages that a model sees.
        metadata: JSON for the application's use; it is never sent to a model.
        response_format: the required format of final answers; None for free text.
    """

    system_prompt: str = ""
    messages: tuple[Message, ...] = field(default=(), converter=tuple[Message, ...])
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    response_format: ResponseFormat | None = None
    _grown_from: tuple[Message, ...] | None = field(default=None, init=False, eq=False, repr=False)

    __attrs_post_init__ = check_types

    def with_system_prompt(self, system_prompt: str) -> AgentContext:
        """Return a copy with this system prompt instead."""
        return self._with_checked(evolve(self, messages=(), system_prompt=system_prompt))

    def with_message(self, message: Message) -> AgentContext:
        """Return a copy with one more message at the end.

        Raises:
            TypeError: it is not a `Message`.
        """
        if not isinstance(message, Message):
            raise TypeError(f"a conversation consists of messages, not of {type(message).__name__}: {message!r:.100}")
        copy = AgentContext(self.system_prompt, (), self.metadata, self.response_format)
        object.__setattr__(copy, "messages", self.messages + (message,))  # noqa: RUF005  # a fifth of the time
        object.__setattr__(copy, "_grown_from", self.messages)
        return copy

    def continues(self, messages: tuple[Message, ...]) -> bool:
        """Return whether the conversation begins with these messages, which takes no time while it only grows."""
        return starts_with(self.messages, messages, self._grown_from)

    def with_messages(self, messages: Iterable[Message]) -> AgentContext:
        """Return a copy with this conversation instead."""
        return evolve(self, messages=messages)

    def with_metadata(self, **entries: object) -> AgentContext:
        """Return a copy with these entries of metadata added or replaced."""
        return self._with_checked(evolve(self, messages=(), metadata=self.metadata.plus(**entries)))

    def with_response_format(self, response_format: ResponseFormat | None) -> AgentContext:
        """Return a copy with this response format instead."""
        return self._with_checked(evolve(self, messages=(), response_format=response_format))

    def _with_checked(self, copy: AgentContext) -> AgentContext:
        """Put the messages, whose types were checked, into a copy; checking them again would take longer with each step."""
        object.__setattr__(copy, "messages", self.messages)
        return copy


class _Unset(Enum):
    # Copies and pickles of a member of an enumeration are the member itself.
    OUTPUT = "output"


_NO_OUTPUT: Final = _Unset.OUTPUT
_UNFINISHED: Final = "agentloop.unfinished"
"""The owner of the ids of unfinished executions among the extensions of a state."""
_OUTPUT_TYPE: Final = "agentloop.output_type"
"""The extension of a state whose response format is that of the output type of a loop."""
AGENT_NAME: Final = "agentloop.agent_name"
"""The extension of a state that holds the name of the loop that the conversation is with, if that loop has a name."""


@frozen(eq=False, repr=False, kw_only=True)
class AgentState(Value, Summarized, Generic[Output_co]):
    """The state of an agent: identity, context, and the current execution. Create it with `AgentState.start`.

    The parameter is the type of `output`, as in `AgentState[Weather]`; a loop of this type returns such states.

    Attributes:
        agent_id: the id of the agent.
        parent_agent_id: the id of the agent whose tool call this agent serves; None for a top-level agent.
        context: the context of the model.
        extensions: JSON that the loop and interceptors store in the state from step to step, by owner; it is never sent to a
            model. Owners inside the package start with `agentloop.`. Applications use the metadata of the context instead.
        execution: the current or last execution; None before the first.
        execution_count: the number of executions started so far.
        created_at: when the agent was created.
        updated_at: when it last changed.
    """

    agent_id: str
    parent_agent_id: str | None = None
    context: AgentContext = field(factory=AgentContext)
    extensions: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    execution: ExecutionState | None = None
    execution_count: int = 0
    created_at: datetime
    updated_at: datetime
    _output: Any = field(default=_NO_OUTPUT, init=False, eq=False, repr=False)

    __attrs_post_init__ = check_types

    @classmethod
    def start(
        cls,
        message: Message | str | None = None,
        *,
        system_prompt: str = "",
        agent_id: str | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> AgentState:
        """Create the state of a new agent.

        Args:
            message: the first message, or the text of a user message; None to add it later.
            system_prompt: the instructions that precede the conversation.
            agent_id: the id of the agent; by default from `ids`.
            clock: the source of the creation time; by default the system's clock.
            ids: the source of the agent's id; by default random ids.
        """
        now = (clock or SystemClock()).now()
        context = AgentContext(system_prompt)
        if message is not None:
            context = context.with_message(Message.user(message) if isinstance(message, str) else message)
        chosen = agent_id or (ids or RandomIds()).new_id("agent")
        return cls(agent_id=chosen, context=context, created_at=now, updated_at=now)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation."""
        return self.context.messages

    @property
    def agent_name(self) -> str:
        """The name of the loop that the conversation is with, as the current execution began or by a handoff since; empty without one."""
        return str(self.extensions.get(AGENT_NAME, ""))

    @property
    def status(self) -> ExecutionStatus:
        """The status of the current execution; `pending` before the first."""
        return self.execution.status if self.execution is not None else ExecutionStatus.PENDING

    @property
    def execution_id(self) -> str:
        """The id of the current execution; empty before the first."""
        return self.execution.id if self.execution is not None else ""

    @property
    def steps(self) -> tuple[AgentStep, ...]:
        """The steps of the current execution."""
        return self.execution.steps if self.execution is not None else ()

    @property
    def step_count(self) -> int:
        """The number of steps in the current execution."""
        return len(self.execution.steps) if self.execution is not None else 0

    @property
    def last_step(self) -> AgentStep | None:
        """The last step of the current execution; None before the first."""
        execution = self.execution
        return execution.steps[-1] if execution is not None and execution.steps else None

    @property
    def final_response(self) -> Message | None:
        """The message with the final answer; None if the execution has not produced one."""
        step = self.last_step
        return step.message if step is not None and step.kind is StepKind.FINAL_RESPONSE else None

    @property
    def has_final_response(self) -> bool:
        """Whether there is a final answer."""
        return self.final_response is not None

    @property
    def final_text(self) -> str | None:
        """The text of the final answer; None if there is none: it failed, was stopped, is suspended or has not ended."""
        message = self.final_response
        return message.text if message is not None else None

    @property
    def output(self) -> Output_co:
        """The final answer as an instance of the loop's `output_type`.

        In a state that was stored and loaded it is the JSON of the answer; without a response format it is the text.

        Raises:
            NoOutput: there is no answer: the execution failed, was stopped, is suspended or has not ended; or its last
                answer is not JSON, such as one that was cut off.
        """
        output = self._output
        if output is _NO_OUTPUT:
            output = _read_output(self)
        return output  # type: ignore[no-any-return]  # the loop has checked that it has the type

    @property
    def inference_count(self) -> int:
        """The number of requests that the steps of the current execution sent to models, with failed ones."""
        return sum([step.usage.requests if step.inferences is None else step.inferences for step in self.steps])

    @property
    def other_inference_count(self) -> int:
        """How many of these requests were sent to models other than the driver's own."""
        return sum([step.other_inferences for step in self.steps])

    @property
    def usage(self) -> Usage:
        """The tokens of the current execution."""
        return self.execution.totals.usage if self.execution is not None else NO_USAGE

    @property
    def tool_call_count(self) -> int:
        """The number of tool calls that the model made in the current execution."""
        return self.execution.totals.tool_calls if self.execution is not None else 0

    @property
    def stop_signal(self) -> StopSignal | None:
        """The stop signal of highest weight; None if there is none."""
        return self.execution.continuation.signal if self.execution is not None else None

    @property
    def errors(self) -> tuple[ErrorInfo, ...]:
        """The errors of the current execution's steps; the errors of tools are in their executions."""
        return tuple([error for step in self.steps for error in step.errors])

    @property
    def open_turn(self) -> SuspendedTurn | None:
        """The response with pending calls; None if no call is pending."""
        step = self.last_step
        return step.open_turn if step is not None else None

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The pending calls; a call that an agent serves is followed by the pending calls of that agent."""
        turn = self.open_turn
        return tuple([call for waiting in turn.pending for call in waiting.flat]) if turn is not None else ()

    def extension(self, owner: str) -> JsonValue:
        """Return the JSON value that an owner stored with `with_extension`; None if it stored nothing."""
        return self.extensions.get(owner)

    @property
    def unfinished_executions(self) -> tuple[str, ...]:
        """The ids of earlier executions that made tool calls and did not complete, oldest first.

        They failed, were stopped, or were interrupted and never resumed, so the model has not answered from their results.
        """
        stored = self.extensions.get(_UNFINISHED)
        if stored is None:
            return ()
        return tuple([item for item in stored if isinstance(item, str)]) if isinstance(stored, tuple) else ()

    def explain(self, *, provenance: bool = False) -> str:
        """Return a short account of the current execution, for people.

        Args:
            provenance: whether to list which interceptor changed what; needs a loop that records it, `AgentLoop(provenance=…)`.
        """
        lines = explain_writes(self.extension(PROVENANCE), self.execution_id) if provenance else ()
        return "\n".join([explain(self.execution), *lines])

    def _summary(self) -> Mapping[str, str]:
        execution, answer, messages = self.execution, self.final_response, self.messages
        asked = [message.text for message in messages if message.role == "user"]
        return {
            "name": self.agent_name,
            "agent": self.agent_id,
            "status": self.status.value if execution is None else f"{self.status.value}{_format_reason(execution)}",
            "work": "" if execution is None else _format_work(execution),
            "messages": str(len(messages)),
            "question": asked[-1] if asked else "",
            "answer": answer.text if answer is not None else "",
            "pending": ", ".join(call.call.name for call in self.pending),
            "errors": "\n".join(f"{error.type}: {error.message}" for error in self.errors),
        }

    def _repr_html_(self) -> str:
        """Return the summary and the steps and calls of the execution over time, for notebooks."""
        return super()._repr_html_() + render_waterfall([bar for step in self.steps for bar in _bars_of(step)])

    @property
    def interceptor_writes(self) -> tuple[InterceptorWrite, ...]:
        """The recorded changes of interceptors in the current execution, in order; see `AgentLoop.provenance`."""
        return read_writes(self.extension(PROVENANCE), self.execution_id)

    @property
    def is_cut_off(self) -> bool:
        """Whether the execution was stopped because its last answer did not end normally, as by the limit of its tokens."""
        last = self.last_step
        if self.status is not ExecutionStatus.STOPPED or last is None or last.kind is not StepKind.FINAL_RESPONSE:
            return False
        return last.finish_reason is not None and last.finish_reason.is_incomplete

    def raise_for_status(self) -> Self:
        """Return this state if its execution has completed.

        Raises:
            ExecutionFailed: an error ended the execution; it is raised from the exception, in the same process.
            ExecutionStopped: a limit or a request to stop ended it.
            ExecutionSuspended: calls wait for decisions.
            ExecutionError: it has not ended.
        """
        match self.status:
            case ExecutionStatus.COMPLETED:
                return self
            case ExecutionStatus.FAILED:
                raise ExecutionFailed(self) from (self.errors[-1].exception if self.errors else None)
            case ExecutionStatus.STOPPED:
                raise ExecutionStopped(self)
            case ExecutionStatus.SUSPENDED:
                raise ExecutionSuspended(self)
            case _:
                raise ExecutionError(self)

    def with_context(self, context: AgentContext) -> AgentState:
        """Return a copy with this context instead."""
        return evolve(self, context=context)

    def with_message(self, message: Message | str) -> AgentState:
        """Return a copy with one more message; a string becomes a user message."""
        return self.with_context(
            self.context.with_message(Message.user(message) if isinstance(message, str) else message)
        )

    def with_messages(self, messages: Iterable[Message]) -> AgentState:
        """Return a copy with this conversation instead."""
        return self.with_context(self.context.with_messages(messages))

    def with_system_prompt(self, system_prompt: str) -> AgentState:
        """Return a copy with this system prompt instead."""
        return self.with_context(self.context.with_system_prompt(system_prompt))

    def with_metadata(self, **entries: object) -> AgentState:
        """Return a copy with these entries of the context's metadata added or replaced."""
        return self.with_context(self.context.with_metadata(**entries))

    def with_extension(self, owner: str, value: object) -> AgentState:
        """Return a copy with this JSON value stored for an owner, which replaces its last one; None removes it."""
        if value is None:
            return evolve(self, extensions={each: kept for each, kept in self.extensions.items() if each != owner})
        return evolve(self, extensions=self.extensions.plus(**{owner: value}))

    def with_output(self, output: object) -> AgentState:
        """Return a copy with the final answer as this object, which is neither compared nor stored."""
        # The field is not a constructor parameter, so it cannot be passed and never appears in the JSON form.
        object.__setattr__(state := evolve(self), "_output", output)
        return state

    def with_response_format(self, response_format: ResponseFormat | None) -> AgentState:
        """Return a copy with this response format instead, for this and further executions."""
        state = self.with_context(self.context.with_response_format(response_format))
        return state if _OUTPUT_TYPE not in state.extensions else state.with_extension(_OUTPUT_TYPE, None)

    def with_output_type_format(self, response_format: ResponseFormat | None) -> AgentState:
        """Return a copy with the response format of a loop's output type.

        Args:
            response_format: the format; None for a loop without an output type, which removes the format of an earlier loop
                and leaves one that was set by `with_response_format`.
        """
        if response_format is not None:
            return self.with_response_format(response_format).with_extension(_OUTPUT_TYPE, value=True)
        return self.with_response_format(None) if _OUTPUT_TYPE in self.extensions else self

    def with_execution_started(self, execution_id: str, at: datetime) -> AgentState:
        """Return the state at the start of its next execution."""
        execution = ExecutionState(
            id=execution_id,
            status=ExecutionStatus.IN_PROGRESS,
            history_length=len(self.context.messages),
            started_at=at,
        )
        state = self
        last = self.execution
        if last is not None and last.status is not ExecutionStatus.COMPLETED and last.totals.tool_calls:
            state = self.with_extension(_UNFINISHED, [*self.unfinished_executions, last.id])
        return evolve(state, execution=execution, execution_count=self.execution_count + 1, updated_at=at)

    def with_step(self, step: AgentStep) -> AgentState:
        """Return the state after one more step, whose message is added to the conversation."""
        context = self.context if step.message is None else self.context.with_message(step.message)
        return self._with_progress(context, self._require_execution().with_step(step), step.ended_at)

    def with_last_step(self, step: AgentStep) -> AgentState:
        """Return a copy with the last step replaced; if the step has a message now and had none, it is added.

        Raises:
            ContractViolation: if there is no step yet.
        """
        execution = self._require_execution().with_last_step(step)
        last = self.last_step
        context = self.context
        if step.message is not None and last is not None and last.message is None:
            context = context.with_message(step.message)
        return self._with_progress(context, execution, step.ended_at)

    def with_usage(self, usage: Usage) -> AgentState:
        """Return a copy in which the tokens of an inference between two steps are counted."""
        return evolve(self, execution=self._require_execution().with_usage(usage))

    def with_stop_signal(self, signal: StopSignal) -> AgentState:
        """Return a copy with one more stop signal."""
        execution = self._require_execution()
        return evolve(self, execution=execution.with_continuation(execution.continuation.with_signal(signal)))

    def with_continuation_requested(self) -> AgentState:
        """Return a copy that requests another step; the request overrides soft stop signals, never hard ones."""
        execution = self._require_execution()
        return evolve(self, execution=execution.with_continuation(execution.continuation.with_request()))

    def with_continuation_cleared(self) -> AgentState:
        """Return a copy without stop signals and continuation request, as each step starts."""
        execution = self._require_execution()
        if execution.continuation is NO_SIGNALS or execution.continuation == NO_SIGNALS:
            return self
        return evolve(self, execution=execution.with_continuation(NO_SIGNALS))

    def with_continuation_of(self, earlier: AgentState) -> AgentState:
        """Return a copy with the stop signals and the continuation request of an earlier state of the execution, and its own."""
        before, after = earlier.execution, self.execution
        if before is None or after is None or before.id != after.id or before.continuation is after.continuation:
            return self
        kept = before.continuation.kept_in(after.continuation)
        return self if kept is after.continuation else evolve(self, execution=after.with_continuation(kept))

    def with_execution_resumed(self, at: datetime) -> AgentState:
        """Return the state with its suspended execution in progress again; the time since its last change counts as waited."""
        waited = max((at - self.updated_at).total_seconds(), 0.0)
        return evolve(self, execution=self._require_execution().with_resumed(waited), updated_at=at)

    def with_status(self, status: ExecutionStatus, at: datetime) -> AgentState:
        """Return a copy with another status of the execution."""
        return evolve(self, execution=self._require_execution().with_status(status, at), updated_at=at)

    def _require_execution(self) -> ExecutionState:
        if self.execution is None:
            raise ContractViolation("this state has no execution yet: pass it to AgentLoop.execute")
        return self.execution

    def _with_progress(self, context: AgentContext, execution: ExecutionState, at: datetime) -> AgentState:
        return _copy_with_progress(self, context, execution, at)


_copy_with_progress = copier(AgentState, "context", "execution", "updated_at")


def _read_output(state: AgentState) -> Any:
    text = state.final_text
    if text is None:
        raise NoOutput(state) from (ExecutionFailed(state) if state.status is ExecutionStatus.FAILED else None)
    if state.context.response_format is None:
        return text
    try:
        return freeze(extract_json(text))
    except ValueError as error:  # an answer that was cut off has stopped the execution
        raise NoOutput(state) from error


def with_agent_name(state: AgentState, name: str) -> AgentState:
    """Return the state with the name of the loop that the conversation is with; empty for a loop without a name."""
    return state if state.agent_name == name else state.with_extension(AGENT_NAME, name or None)


def find_discontinuity(before: AgentState, after: AgentState) -> str:
    """Return why a state cannot follow another one inside a step or between two; an empty text if it can.

    It belongs to the same execution, has the same steps, except for errors that were added to the last one, and its
    conversation only became longer.

    Args:
        before: the earlier state.
        after: the later state, such as one that an interceptor returns.
    """
    if after.agent_id != before.agent_id or after.execution_id != before.execution_id:
        return "it is the state of another agent or another execution"
    if after.steps is not before.steps and not _has_same_steps(before.steps, after.steps):
        return "steps of the execution are missing, added or changed"
    return find_dropped_messages(before, after)


def find_dropped_messages(before: AgentState, after: AgentState) -> str:
    """Return why the conversation of a state does not continue that of another one; an empty text if it does."""
    return "" if after.context.continues(before.messages) else "messages of the conversation are missing or changed"


def _has_same_steps(before: Sequence[AgentStep], after: Sequence[AgentStep]) -> bool:
    if len(before) != len(after) or before[:-1] != after[:-1]:
        return False
    earlier, later = before[-1], after[-1]
    if later == earlier:
        return True
    return later.errors[: len(earlier.errors)] == earlier.errors and evolve(later, errors=earlier.errors) == earlier


# --- the account for people --------------------------------------------------------------------------------------

_LINE_LENGTH = 100
_CALL_LENGTH = 200


def _bars_of(step: AgentStep) -> list[Bar]:
    kind = step.kind.value.replace("_", " ")
    calls = [
        Bar(f"· {each.name}", each.status.value.replace("_", " "), each.status.value, each.started_at, each.ended_at)
        for execution in step.executions
        for each in execution.flat
    ]
    return [Bar(f"step {step.number}", kind, "", step.started_at, step.ended_at), *calls]


def explain(execution: ExecutionState | None) -> str:
    """Return a short account of an execution: its status and stop reason, its tokens, then each step with its calls."""
    if execution is None:
        return "no execution yet"
    status = f"execution {execution.id}: {execution.status.value}{_format_reason(execution)}"
    lines = [_shorten_line(status, _LINE_LENGTH * 4)]
    lines.append(f"  {_format_work(execution)}")
    for step in execution.steps:
        lines.extend(_format_step(step))
    return "\n".join(lines)


def _format_work(execution: ExecutionState) -> str:
    """Return the steps, the tool calls, the tokens and the time of an execution."""
    steps, calls = format_count(len(execution.steps), "step"), format_count(execution.totals.tool_calls, "tool call")
    return f"{steps}, {calls}, {_format_tokens(execution.totals.usage)}{_format_duration(execution)}"


def _shorten_line(text: str, max_length: int = _LINE_LENGTH) -> str:
    line = escape_invisible(" ".join(text[: max_length * 4].splitlines()))
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def _format_reason(execution: ExecutionState) -> str:
    signal = execution.continuation.signal
    if signal is None:
        return ""
    source = f" (by {signal.source})" if signal.source else ""
    return f": {signal.reason.value}{source}" + (f", {signal.message}" if signal.message else "")


def _format_step(step: AgentStep) -> list[str]:
    model = f" [{step.model}]" if step.model else ""
    lines = [_shorten_line(f"  step {step.number}: {step.kind.value.replace('_', ' ')}{model}")]
    for execution in step.executions:
        lines += [_format_call(execution), *[f"  {_format_call(inner)}" for inner in execution.inner]]
    lines += [_format_call_line(call.call, f"waits: {call.reason}", call.defaults) for call in step.pending]
    lines += [_shorten_line(f"    error {error.type}: {error.message}") for error in step.errors]
    if step.message is not None and step.message.text:
        lines.append(_shorten_line(f"    {step.message.text!r}"))
    return lines


def _format_call(execution: ToolExecution) -> str:
    outcome = f"{execution.status.value} in {execution.duration_ms:.0f} ms"
    return _format_call_line(execution.call, f"{outcome}: {execution.text}")


def _format_call_line(call: ToolCall, outcome: str, defaults: JsonObject = EMPTY_OBJECT) -> str:
    return f"    {render_call(call, defaults=defaults, max_length=_CALL_LENGTH)} {_shorten_line(outcome)}"


def _format_tokens(usage: Usage) -> str:
    total = usage.total_tokens
    return "unknown tokens" if total is None else format_count(total, "token")


def _format_duration(execution: ExecutionState) -> str:
    if execution.ended_at is None:
        return ""
    return f", {(execution.ended_at - execution.started_at).total_seconds():.1f} s"


# --- errors of executions without an output ---------------------------------------------------------------------------


class ExecutionError(AgentLoopError):
    """An execution has no output; raised by `AgentLoop.run`, `AgentState.raise_for_status` and `AgentState.output`.

    The subclasses say why. The base class itself is raised for a state whose execution has not ended, and by
    `AgentLoop.run` if a loop with another output type has answered.

    Attributes:
        state: the state of the execution with all that was done, such as the calls that were made before a limit stopped it.
    """

    def __init__(self, state: AgentState, message: str = "") -> None:
        """Create the error.

        Args:
            state: the state.
            message: the problem; by default it is built from the state.
        """
        super().__init__(message or f"{_name_execution(state)} has not ended; it is {state.status.value}")
        self.state: AgentState = state

    def __reduce__(self) -> tuple[type[ExecutionError], tuple[AgentState], dict[str, object]]:
        """Rebuild copies and pickles, as of a worker process, from the state."""
        return type(self), (self.state,), {"args": self.args}


class ExecutionFailed(ExecutionError):
    """An error ended the execution. `__cause__` is the exception, in the process in which it was raised."""

    def __init__(self, state: AgentState) -> None:
        last = state.errors[-1] if state.errors else None
        why = _format_signal(state) if last is None else f": {last.type}: {last.message}"
        failed = f"{_name_execution(state)} failed after {_count_steps(state)}"
        super().__init__(state, failed + (why or ": no error was recorded"))


class ExecutionStopped(ExecutionError):
    """A limit or a request to stop ended the execution; the message says which, and how much was used.

    `state.stop_signal` has the reason for programs. If the model gave a last answer, such as the one that a `Budget` asks
    for, `state.final_text` has it.
    """

    def __init__(self, state: AgentState) -> None:
        last = "" if state.final_text is None else "; the last answer of the model is in state.final_text"
        stopped = f"{_name_execution(state)} was stopped after {_count_steps(state)}"
        super().__init__(state, f"{stopped}{_format_signal(state)}{last}")


class ExecutionSuspended(ExecutionError):
    """Calls wait for decisions; `AgentLoop.resume` continues the execution with them. `state.pending` has the calls."""

    def __init__(self, state: AgentState) -> None:
        waiting = [call for call in state.pending if not call.waits_for]
        # The first line of the text of a call is its tool.
        calls = ", ".join([f"{call.rendering.splitlines()[0]} ({call.key})" for call in waiting])
        super().__init__(
            state,
            f"{_name_execution(state)} is suspended: {calls} {'waits' if len(waiting) == 1 else 'wait'} for a decision; "
            "show a person the `rendering` of each call in error.state.pending, and continue with "
            "loop.resume(error.state, {call.key: approve(call.digest)})",
        )


class NoOutput(ExecutionError):
    """A state has no final answer; raised by `AgentState.output`. `__cause__` is an `ExecutionFailed` if it failed."""

    def __init__(self, state: AgentState) -> None:
        if state.execution is None:
            problem = "this state has no output, because it has no execution yet: pass it to AgentLoop.execute"
        else:
            last = state.errors[-1] if state.status.value == "failed" and state.errors else None
            why = _format_signal(state) if last is None else f": {last.type}: {last.message}"
            problem = f"{_name_execution(state)} has no output, it is {state.status.value}{why}"
        super().__init__(state, problem)


def _name_execution(state: AgentState) -> str:
    return f"execution {state.execution_id}" if state.execution_id else "the execution of this state"


def _count_steps(state: AgentState) -> str:
    return "1 step" if state.step_count == 1 else f"{state.step_count:,} steps"


def _format_signal(state: AgentState) -> str:
    """Return the reason of the stop signal, as the end of a sentence; empty if there is no signal."""
    signal = state.stop_signal
    if signal is None:
        return ""
    source = f" (by {signal.source})" if signal.source else ""
    return f": {signal.reason.value}{source}" + (f": {signal.message}" if signal.message else "")
