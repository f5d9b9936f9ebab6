"""What is wrong with a decision, and what remains of one that was asked for in vain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.asking_again import Unusable
from agentloop.drivers.modes.call_validation import validate_call
from agentloop.drivers.modes.react_decision import ReActDecision
from agentloop.drivers.step_draft import StepDraft
from agentloop.errors import DecisionExtractionError, DecisionValidationError
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_text import format_json
from agentloop.values.parts import Reasoning
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ErrorInfo, ToolExecution, ToolStatus
from agentloop.values.tool_executions import ToolCalls, ToolExecutions
from agentloop.values.tool_spec import ToolSpec

DecisionValidator: TypeAlias = Callable[[ReActDecision, Sequence[ToolCall], Sequence[ToolSpec]], Unusable | None]
"""Says what is wrong with a decision, of its calls as the model made them and of the tools on offer; None when nothing is."""

EXTRACTION, VALIDATION = "decision_extraction", "decision_validation"
"""The names under which a step holds a decision that could not be read, or not be used."""


def validate_decision(
    decision: ReActDecision,  # noqa: ARG001  # for validators that look further
    calls: Sequence[ToolCall],
    tools: Sequence[ToolSpec],
) -> Unusable | None:
    """Say for each call whether it names an offered tool, with arguments that satisfy its schema."""
    errors = tuple([validate_call(call, tools).error_message for call in calls])
    return Unusable(errors=errors) if any(errors) else None


def given_up(
    draft: StepDraft, response: InferenceResponse, wrong: Unusable, scope: ExecutionScope
) -> DecisionExtractionError | DecisionValidationError:
    """Return the error that ends an execution, and let the step hold what the model wrote, as a call that failed.

    Args:
        draft: the step; it gets the call.
        response: the model's last answer.
        wrong: what is wrong with it.
        scope: where id and time come from.
    """
    error: DecisionExtractionError | DecisionValidationError
    if wrong.problem:
        error = DecisionExtractionError(wrong.problem, response.text)
        call = ToolCall("", EXTRACTION, _json({"text": response.text}))
    else:
        problems = (wrong.output,) if wrong.output else tuple([one for one in wrong.errors if one])
        error = DecisionValidationError(problems)
        made = [{"tool": one.name, "args": one.arguments_json} for one in response.tool_calls]
        call = ToolCall("", VALIDATION, _json({"calls": made, "text": response.text}))
    draft.parts = (*[part for part in response.parts if isinstance(part, Reasoning)], call)
    draft.calls = ToolCalls.of([call], draft.state)
    now = scope.clock.now()
    execution = ToolExecution(
        id=scope.ids.new_id("tool_execution"),
        key=draft.calls.keys[0],
        call=call,
        status=ToolStatus.FAILED,
        error=ErrorInfo.of(error),
        started_at=now,
        ended_at=now,
    )
    error.tool_executions = ToolExecutions((execution,), (), draft.state)  # type: ignore[union-attr]  # for the template of drivers
    return error


def _json(data: dict[str, object]) -> str:
    return format_json(data).decode()
