"""What a state becomes when a step goes wrong."""

from __future__ import annotations

from attrs import evolve

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ContractViolation
from agentloop.values.agent_state import AgentState
from agentloop.values.agent_step import AgentStep
from agentloop.values.message import Message
from agentloop.values.tool_execution import ErrorInfo, ToolExchange
from agentloop.values.tool_executions import ToolExecutions


def attached(error: BaseException, before: AgentState) -> AgentState:
    """Return the state that an error carries; where a driver attached none, what it was, with the batch that it carries."""
    state = getattr(error, "agent_state", None)
    if isinstance(state, AgentState):
        return state
    outcome = getattr(error, "tool_executions", None)
    return outcome.state if isinstance(outcome, ToolExecutions) else before


def with_error(
    state: AgentState, raised: Exception, error: Exception, scope: ExecutionScope, *, step_taken: bool
) -> AgentState:
    """Return the state with an error in its last step, when that is the one that went wrong, or else in a step of its own.

    Args:
        state: the state.
        raised: what was raised; a driver may have noted it already.
        error: what is to be recorded: the same, or what an interceptor made of it.
        scope: where id and time come from.
        step_taken: whether the last step is the one that went wrong.
    """
    info = ErrorInfo.of(error)
    last = state.last_step
    if step_taken and last is not None:
        others = last.errors[:-1] if last.errors[-1:] == (ErrorInfo.of(raised),) else last.errors
        return state.with_last_step(evolve(last, errors=(*others, info)))
    now = scope.clock.now()
    step = AgentStep(
        id=scope.ids.new_id("step"),
        number=state.step_count + 1,
        message=_salvaged(error),
        errors=(info,),
        started_at=now,
        ended_at=now,
    )
    return state.with_step(step)


def checked(before: AgentState, after: object, driver: object) -> AgentState:
    """Return what a driver returned, if it keeps the contract.

    Raises:
        ContractViolation: when it is not a state of the same execution, one step further.
    """
    name = type(driver).__name__
    if not isinstance(after, AgentState):
        raise ContractViolation(f"the driver {name} returned {after!r:.100}; use_tools returns an AgentState")
    if after.agent_id != before.agent_id or after.execution_id != before.execution_id:
        raise ContractViolation(f"the driver {name} returned the state of another agent or execution")
    waited = before.open_turn is not None
    expected = before.step_count + (0 if waited else 1)
    if after.step_count != expected:
        raise ContractViolation(
            f"the driver {name} returned a state with {after.step_count} steps instead of {expected}: one use_tools is one "
            "step; add it with AgentState.with_step"
        )
    return after


def _salvaged(error: Exception) -> Message | None:
    """Make the message of the calls that were settled before the error, where a driver did not make one."""
    outcome = getattr(error, "tool_executions", None)
    if not isinstance(outcome, ToolExecutions) or not outcome.executions:
        return None
    return Message.assistant(*[ToolExchange(execution.call, execution) for execution in outcome.executions])
