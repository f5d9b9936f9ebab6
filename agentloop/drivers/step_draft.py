"""A step while it is being taken."""

from __future__ import annotations

from datetime import datetime

from attrs import define

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.values.agent_state import AgentState
from agentloop.values.agent_step import NO_USAGE, AgentStep, OpenTurn
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.message import Message, ResponsePart
from agentloop.values.tool_execution import ErrorInfo, ToolExecution, ToolStatus
from agentloop.values.tool_executions import ToolCalls, ToolExecutions
from agentloop.values.usage import Usage


@define(eq=False)
class StepDraft:
    """What is known of a step so far. It lives as long as one `use_tools` and is seen by one driver only.

    Attributes:
        state: the state, as the interceptors have made it so far.
        id: the id of the step.
        number: its number, from 1.
        started_at: when it began.
        parts: what the model decided, in order; None until it has.
        calls: the calls among the parts, with their keys.
        usage: tokens of all inferences so far.
        response: the latest response.
        errors: what went wrong so far.
    """

    state: AgentState
    id: str
    number: int
    started_at: datetime
    parts: tuple[ResponsePart, ...] | None = None
    calls: ToolCalls | None = None
    usage: Usage = NO_USAGE
    response: InferenceResponse | None = None
    errors: tuple[ErrorInfo, ...] = ()

    @classmethod
    def begin(cls, state: AgentState, scope: ExecutionScope) -> StepDraft:
        """Begin the step after the last one of this state."""
        return cls(state, scope.ids.new_id("step"), state.step_count + 1, scope.clock.now())

    def count(self, response: InferenceResponse) -> None:
        """Take a response: its tokens count, whatever becomes of it."""
        self.usage = response.usage if self.usage is NO_USAGE else self.usage + response.usage
        self.response = response

    def finished(self, outcome: ToolExecutions | None, at: datetime) -> AgentState:
        """Return the state after the step, with its calls joined to their outcomes.

        Args:
            outcome: what came of the calls; None when there were none, or none was executed.
            at: when the step ended.
        """
        if self.parts is None:
            return self.state.with_step(self._step(None, None, at))
        if outcome is None or self.calls is None:
            return self.state.with_step(self._step(Message.of_response(self.parts, ()), None, at))
        state = outcome.state
        if not outcome.pending:
            return state.with_step(self._step(Message.of_response(self.parts, outcome.executions), None, at))
        turn = OpenTurn.of(self.parts, self.calls.keys, outcome.executions, outcome.pending)
        return state.with_step(self._step(None, turn, at))

    def _step(self, message: Message | None, turn: OpenTurn | None, at: datetime) -> AgentStep:
        response = self.response
        return AgentStep(
            id=self.id,
            number=self.number,
            message=message,
            open_turn=turn,
            response_id=response.id if response is not None else "",
            model=response.model if response is not None else "",
            finish_reason=response.finish_reason if response is not None else None,
            usage=self.usage,
            errors=self.errors,
            started_at=self.started_at,
            ended_at=at,
        )


def unknown(calls: ToolCalls, state: AgentState, error: BaseException, scope: ExecutionScope) -> ToolExecutions:
    """Make the outcome of calls whose executor failed without saying what came of them: nobody knows."""
    now = scope.clock.now()
    executions = tuple(
        [
            ToolExecution(
                id=scope.ids.new_id("tool_execution"),
                key=key,
                call=call,
                status=ToolStatus.FAILED,
                error=ErrorInfo(type(error).__name__, f"the executor failed: {error}"),
                may_have_run=True,
                started_at=now,
                ended_at=now,
            )
            for call, key in zip(calls.calls, calls.keys, strict=True)
        ]
    )
    return ToolExecutions(executions, (), state)
