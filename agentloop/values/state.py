"""The whole of an agent, as one immutable value."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from attrs import evolve, field, frozen

from agentloop.errors import AgentLoopError, ContractViolation
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import ResponseFormat, Usage
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, extract_json, freeze, freeze_object
from agentloop.values.messages import Message
from agentloop.values.steps import NO_USAGE, AgentStep, ExecutionState, ExecutionStatus, StepKind, SuspendedTurn
from agentloop.values.stop import NO_SIGNALS, StopSignal
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.tool_calls import ErrorInfo, ToolExecution
from agentloop.values.value import Value

_LINE = 100


def explain(execution: ExecutionState | None) -> str:
    """Tell in a few lines what happened: the status and why, the tokens, then each step with its calls."""
    if execution is None:
        return "no execution yet"
    lines = [_one_line(f"execution {execution.id}: {execution.status.value}{_why(execution)}", _LINE * 4)]
    lines.append(
        f"  {_count(len(execution.steps), 'step')}, {_count(execution.totals.tool_calls, 'tool call')}, "
        f"{_tokens(execution.totals.usage)}{_time(execution)}"
    )
    for step in execution.steps:
        lines.extend(_step(step))
    return "\n".join(lines)


def _one_line(text: str, most: int = _LINE) -> str:
    line = " ".join(text.splitlines())
    return line if len(line) <= most else line[: most - 1] + "…"


def _why(execution: ExecutionState) -> str:
    signal = execution.continuation.signal
    if signal is None:
        return ""
    source = f" (by {signal.source})" if signal.source else ""
    return f": {signal.reason.value}{source}" + (f", {signal.message}" if signal.message else "")


def _step(step: AgentStep) -> list[str]:
    model = f" [{step.model}]" if step.model else ""
    lines = [f"  step {step.number}: {step.kind.value.replace('_', ' ')}{model}"]
    lines += [f"    {_call(execution)}" for execution in step.executions]
    lines += [f"    {call.call.name}({call.call.arguments_json}) waits: {call.reason}" for call in step.pending]
    lines += [f"    error {error.type}: {error.message}" for error in step.errors]
    if step.message is not None and step.message.text:
        lines.append(f"    {step.message.text!r}")
    return [_one_line(line) for line in lines]


def _call(execution: ToolExecution) -> str:
    shown = (
        f"{execution.name}({execution.call.arguments_json}) {execution.status.value} in {execution.duration_ms:.0f} ms"
    )
    return f"{shown}: {execution.text}"


def _tokens(usage: Usage) -> str:
    total = usage.total_tokens
    return "unknown tokens" if total is None else _count(total, "token")


def _time(execution: ExecutionState) -> str:
    if execution.ended_at is None:
        return ""
    return f", {(execution.ended_at - execution.started_at).total_seconds():.1f} s"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


@frozen(eq=False, repr=False)
class AgentContext(Value):
    """What a model may see of an agent, and metadata that travels with it.

    Attributes:
        system_prompt: instructions that stand before the conversation.
        messages: the conversation, complete; a compiler decides how much of it a model sees.
        metadata: JSON of yours; the model never sees it.
        response_format: the form that final answers have to have; None for free text.
    """

    system_prompt: str = ""
    messages: tuple[Message, ...] = field(default=(), converter=tuple[Message, ...])
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    response_format: ResponseFormat | None = None

    def with_system_prompt(self, system_prompt: str) -> AgentContext:
        """Return the context with another system prompt."""
        return evolve(self, system_prompt=system_prompt)

    def with_message(self, message: Message) -> AgentContext:
        """Return the context with one more message at the end."""
        return AgentContext(self.system_prompt, (*self.messages, message), self.metadata, self.response_format)

    def with_messages(self, messages: Iterable[Message]) -> AgentContext:
        """Return the context with another conversation."""
        return evolve(self, messages=messages)

    def with_metadata(self, **entries: object) -> AgentContext:
        """Return the context with these entries of metadata added or replaced."""
        return evolve(self, metadata=self.metadata.plus(**entries))

    def with_response_format(self, response_format: ResponseFormat | None) -> AgentContext:
        """Return the context with another form for final answers."""
        return evolve(self, response_format=response_format)


_NO_OUTPUT: Final = object()


@frozen(eq=False, repr=False, kw_only=True)
class AgentState(Value):
    """Identity, context, and the current execution if there is one. Begin one with `AgentState.start`.

    Attributes:
        agent_id: the id of the agent.
        parent_agent_id: the id of the agent whose tool call this agent serves; None for one of its own.
        context: what a model may see.
        extensions: JSON that the loop and interceptors keep in the state from step to step, by owner; the model never sees
            it. Owners inside the package begin with `agentloop.`. Metadata is for the user, extensions are not.
        execution: the current or last run of the loop; None before the first.
        execution_count: how many executions were begun.
        created_at: when the agent was begun.
        updated_at: when it last changed.
    """

    agent_id: str
    parent_agent_id: str | None = None
    context: AgentContext = AgentContext()  # immutable
    extensions: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    execution: ExecutionState | None = None
    execution_count: int = 0
    created_at: datetime
    updated_at: datetime
    _output: Any = field(default=_NO_OUTPUT, init=False, eq=False, repr=False)

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
        """Begin an agent.

        Args:
            message: the first message, or the text of a user's one; None to add it later.
            system_prompt: instructions that stand before the conversation.
            agent_id: an id of your own; drawn from `ids` when left out.
            clock: where the time of creation comes from; the system's when left out.
            ids: where the id comes from; random when left out.
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
    def status(self) -> ExecutionStatus:
        """Where the current execution stands; `pending` before the first."""
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
        """How many steps the current execution has taken."""
        return len(self.execution.steps) if self.execution is not None else 0

    @property
    def last_step(self) -> AgentStep | None:
        """The newest step of the current execution."""
        return self.steps[-1] if self.steps else None

    @property
    def final_response(self) -> Message | None:
        """The message that answers the input; None when the execution has not, or did not, come to an answer."""
        step = self.last_step
        return step.message if step is not None and step.kind is StepKind.FINAL_RESPONSE else None

    @property
    def has_final_response(self) -> bool:
        """Whether there is an answer."""
        return self.final_response is not None

    @property
    def final_text(self) -> str:
        """The text of the answer; empty when there is none."""
        message = self.final_response
        return message.text if message is not None else ""

    @property
    def output(self) -> Any:
        """The answer, of the loop's `output_type`; in a state that was stored its JSON, or its text if no form was asked."""
        if self._output is not _NO_OUTPUT:
            return self._output
        if not self.has_final_response or self.context.response_format is None:
            return self.final_text
        return freeze(extract_json(self.final_text))

    @property
    def usage(self) -> Usage:
        """Tokens of the current execution."""
        return self.execution.totals.usage if self.execution is not None else NO_USAGE

    @property
    def tool_call_count(self) -> int:
        """How many tool calls the model has made in the current execution."""
        return self.execution.totals.tool_calls if self.execution is not None else 0

    @property
    def stop_signal(self) -> StopSignal | None:
        """The weightiest reason to stop, if there is one."""
        return self.execution.continuation.signal if self.execution is not None else None

    @property
    def errors(self) -> tuple[ErrorInfo, ...]:
        """The errors of the current execution's steps; failures of tools stand in their executions."""
        return tuple([error for step in self.steps for error in step.errors])

    @property
    def open_turn(self) -> SuspendedTurn | None:
        """The response some of whose calls still wait; None when nothing waits."""
        step = self.last_step
        return step.open_turn if step is not None else None

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a decision; after a call that an agent serves, those that wait inside of it."""
        turn = self.open_turn
        return tuple([call for waiting in turn.pending for call in waiting.flat]) if turn is not None else ()

    def extension(self, owner: str) -> JsonValue:
        """Return what an owner has stored with `with_extension`; None if it has stored nothing."""
        return self.extensions.get(owner)

    def explain(self) -> str:
        """Return a short account of the current execution, for a person to read."""
        return explain(self.execution)

    def raise_for_failure(self) -> AgentState:
        """Return this state, unless its execution failed.

        Raises:
            ExecutionFailed: when the status is `failed`.
        """
        if self.status is ExecutionStatus.FAILED:
            raise ExecutionFailed(self)
        return self

    def with_context(self, context: AgentContext) -> AgentState:
        """Return the state with another context."""
        return evolve(self, context=context)

    def with_message(self, message: Message | str) -> AgentState:
        """Return the state with one more message, or one more user's message of this text."""
        return self.with_context(
            self.context.with_message(Message.user(message) if isinstance(message, str) else message)
        )

    def with_messages(self, messages: Iterable[Message]) -> AgentState:
        """Return the state with another conversation."""
        return self.with_context(self.context.with_messages(messages))

    def with_system_prompt(self, system_prompt: str) -> AgentState:
        """Return the state with another system prompt."""
        return self.with_context(self.context.with_system_prompt(system_prompt))

    def with_metadata(self, **entries: object) -> AgentState:
        """Return the state with these entries of the context's metadata added or replaced."""
        return self.with_context(self.context.with_metadata(**entries))

    def with_extension(self, owner: str, value: object) -> AgentState:
        """Return the state with this JSON value of an owner added or replaced; None removes it."""
        extensions = {**self.extensions, owner: value}
        if value is None:
            del extensions[owner]
        return evolve(self, extensions=extensions)

    def with_output(self, output: object) -> AgentState:
        """Return the state with its answer as data; neither compared nor stored."""
        object.__setattr__(made := evolve(self), "_output", output)
        return made

    def with_response_format(self, response_format: ResponseFormat | None) -> AgentState:
        """Return the state with another form for final answers."""
        return self.with_context(self.context.with_response_format(response_format))

    def with_execution_started(self, execution_id: str, at: datetime) -> AgentState:
        """Return the state at the beginning of its next execution."""
        execution = ExecutionState(
            id=execution_id,
            status=ExecutionStatus.IN_PROGRESS,
            history_length=len(self.context.messages),
            started_at=at,
        )
        return evolve(self, execution=execution, execution_count=self.execution_count + 1, updated_at=at)

    def with_step(self, step: AgentStep) -> AgentState:
        """Return the state after one more step, whose message is added to the conversation."""
        context = self.context if step.message is None else self.context.with_message(step.message)
        return self._moved(context, self._running().with_step(step), step.ended_at)

    def with_last_step(self, step: AgentStep) -> AgentState:
        """Return the state with its last step replaced; a message that the step did not have before is added.

        Raises:
            ContractViolation: when there is no step yet.
        """
        execution = self._running().with_last_step(step)
        last = self.last_step
        context = self.context
        if step.message is not None and last is not None and last.message is None:
            context = context.with_message(step.message)
        return self._moved(context, execution, step.ended_at)

    def with_usage(self, usage: Usage) -> AgentState:
        """Return the state with the tokens of an inference between two steps counted."""
        return evolve(self, execution=self._running().with_usage(usage))

    def with_stop_signal(self, signal: StopSignal) -> AgentState:
        """Return the state with one more reason to stop."""
        execution = self._running()
        return evolve(self, execution=execution.with_continuation(execution.continuation.with_signal(signal)))

    def with_continuation_requested(self) -> AgentState:
        """Return the state with the wish to go on after this step; it overrides soft signals and never hard ones."""
        execution = self._running()
        return evolve(self, execution=execution.with_continuation(execution.continuation.with_request()))

    def with_continuation_cleared(self) -> AgentState:
        """Return the state as it goes into its next step: nothing said yet about stopping."""
        execution = self._running()
        if execution.continuation == NO_SIGNALS:
            return self
        return evolve(self, execution=execution.with_continuation(NO_SIGNALS))

    def with_execution_resumed(self, at: datetime) -> AgentState:
        """Return the state as its suspended execution goes on; the time since it last changed is noted as waited."""
        waited = max((at - self.updated_at).total_seconds(), 0.0)
        return evolve(self, execution=self._running().with_resumed(waited), updated_at=at)

    def with_status(self, status: ExecutionStatus, at: datetime) -> AgentState:
        """Return the state with the execution in another status."""
        return evolve(self, execution=self._running().with_status(status, at), updated_at=at)

    def _running(self) -> ExecutionState:
        if self.execution is None:
            raise ContractViolation("this state has no execution yet: pass it to AgentLoop.execute")
        return self.execution

    def _moved(self, context: AgentContext, execution: ExecutionState, at: datetime) -> AgentState:
        return AgentState(
            agent_id=self.agent_id,
            parent_agent_id=self.parent_agent_id,
            context=context,
            extensions=self.extensions,
            execution=execution,
            execution_count=self.execution_count,
            created_at=self.created_at,
            updated_at=at,
        )


class ExecutionFailed(AgentLoopError):
    """An execution ended as failed; raised by `AgentState.raise_for_failure`.

    Attributes:
        state: the final state, with everything that was done before the failure.
    """

    def __init__(self, state: AgentState) -> None:
        last = state.errors[-1] if state.errors else None
        why = f"{last.type}: {last.message}" if last is not None else "no error was recorded"
        super().__init__(f"execution {state.execution_id} failed after {state.step_count} steps: {why}")
        self.state = state
