"""Effects that a model repeats although they have just succeeded: the call is answered with the result and does not run again."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from agentloop.contracts.tool import Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import ToolError
from agentloop.tools.fitting import comparable_arguments, fit_call
from agentloop.values.batches import ToolCalls
from agentloop.values.bounds import Bounds
from agentloop.values.messages import Message
from agentloop.values.tool_calls import Effect, ToolCall, ToolExchange, ToolExecution, parse_arguments

_MAX_RESULT_CHARACTERS = 2_000


def reject_repeated_effect(calls: ToolCalls, messages: Sequence[Message], tools: Tools, bounds: Bounds) -> ToolCalls:
    """Return the batch with the reason why its first call must not run, if that is the call which has run last.

    A call is repeated if the last call that ran was an effect of the same tool with equal arguments and succeeded. A tool that is
    pure, idempotent or `repeatable` may be called again. So may any tool after other arguments, a failure, another call, or a
    message of the user.

    Args:
        calls: the calls of an answer, as they will be admitted.
        messages: the conversation before the answer.
        tools: the tools on offer.
        bounds: the bounds on the check of arguments.
    """
    if not messages or messages[-1].role != "assistant" or not calls.calls:
        return calls
    call, key = calls.calls[0], calls.keys[0]
    if key in calls.rejections:
        return calls
    last = _last_run(messages)
    if last is None or last.name != call.name or not last.succeeded:
        return calls
    if not _runs_once(tools.get(call.name)) or not _is_equal(call, last.call, tools, bounds):
        return calls
    reason = f"this call has run, with this result: {_shown(last)}. It was not run again; go on, or call it with other arguments"
    return evolve(calls, rejections={**calls.rejections, key: reason})


def _runs_once(tool: Tool | None) -> bool:
    """Return whether a call of a tool is not to run again directly after itself."""
    if tool is None or tool.effect is not Effect.EFFECT or tool.policy.repeatable:
        return False
    # Deduplication and a cache say which calls are the same, and answer them.
    return tool.policy.deduplicate is None and tool.policy.cache is None


def _last_run(messages: Sequence[Message]) -> ToolExecution | None:
    """Return the outcome of the last call that ran or may have run since the last message of the user; None if there is none."""
    for message in reversed(messages):
        if message.role != "assistant":
            return None
        for part in reversed(message.parts):
            if isinstance(part, ToolExchange) and (part.execution.succeeded or part.execution.may_have_run):
                return part.execution
    return None


def _is_equal(call: ToolCall, earlier: ToolCall, tools: Tools, bounds: Bounds) -> bool:
    """Return whether the function gets equal values: after coercion, and with the defaults of what is left out."""
    spec = tools.spec(call.name)
    if spec is None:
        return False
    try:
        new = fit_call(call, spec, bounds)[1]
        old = parse_arguments(earlier.arguments_json)
    except ToolError:  # it is rejected for another reason
        return False
    return comparable_arguments(new, spec) == comparable_arguments(old, spec)


def _shown(execution: ToolExecution) -> str:
    text = execution.text or ""
    return text if len(text) <= _MAX_RESULT_CHARACTERS else f"{text[:_MAX_RESULT_CHARACTERS]}…"
