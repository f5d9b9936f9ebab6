"""Effects that a model repeats although they have just succeeded: the call is answered with the result and does not run again."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from agentloop.contracts.tools import Tools
from agentloop.errors import ToolError
from agentloop.tools.fitting import comparable_arguments, fit_call
from agentloop.values.batches import ToolCalls
from agentloop.values.bounds import Bounds
from agentloop.values.messages import Message
from agentloop.values.tool_calls import (
    Effect,
    ToolCall,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
    parse_arguments,
)

_MAX_RESULT_CHARACTERS = 2_000


def reject_repeated_effects(calls: ToolCalls, messages: Sequence[Message], tools: Tools, bounds: Bounds) -> ToolCalls:
    """Return the batch with the reason why a call must not run, if it repeats the last effect.

    A call is repeated if its tool has an effect, and the same tool with equal arguments has succeeded since the last message of the
    user, and nothing but pure calls have succeeded since then. A tool that is `repeatable` may be called again, and so may a tool
    that declares deduplication or a cache: they say which calls are the same. Equal calls of one answer are left to these.

    Args:
        calls: the calls of an answer, as they will be admitted.
        messages: the conversation before the answer.
        tools: the tools on offer.
        bounds: the bounds on the check of arguments.
    """
    last = _last_effect(messages, tools)
    if last is None or not last.succeeded or not _runs_once(last.name, tools):
        return calls
    repeated: dict[str, str] = {}
    for key, call in zip(calls.keys, calls.calls, strict=True):
        tool = tools.get(call.name)
        if tool is None or tool.effect is Effect.PURE or key in calls.rejections:
            continue  # it does not run, or changes nothing
        is_equal = _is_equal(call, last.call, tool.spec, bounds)
        if is_equal:
            repeated[key] = _REASON.format(_shown(last))
        elif is_equal is not None:
            break  # the calls behind this one come after another effect
    return evolve(calls, rejections={**calls.rejections, **repeated}) if repeated else calls


def _last_effect(messages: Sequence[Message], tools: Tools) -> ToolExecution | None:
    """Return the outcome of the last call since a message of the user that changed something or failed; None if there is none."""
    for message in reversed(messages):
        if message.role != "assistant":
            return None
        for part in reversed(message.parts):
            if isinstance(part, ToolExchange) and _counts(part.execution, tools):
                return part.execution
    return None


def _counts(execution: ToolExecution, tools: Tools) -> bool:
    if not execution.succeeded:  # after a failure of any tool, the model may have a reason to call again
        return execution.may_have_run or execution.status in {ToolStatus.FAILED, ToolStatus.TIMED_OUT}
    tool = tools.get(execution.name)
    return tool is None or tool.effect is not Effect.PURE


def _runs_once(name: str, tools: Tools) -> bool:
    """Return whether a call of a tool must not run again directly after itself."""
    tool = tools.get(name)
    if tool is None or tool.effect is not Effect.EFFECT or tool.policy.repeatable:
        return False
    # Deduplication and a cache say which calls are the same, and answer them.
    return tool.policy.deduplicate is None and tool.policy.cache is None


def _is_equal(call: ToolCall, earlier: ToolCall, spec: ToolSpec, bounds: Bounds) -> bool | None:
    """Return whether the function gets equal values: after coercion, and with the defaults of what is left out.

    None for a call that will be rejected because of its arguments.
    """
    try:
        new = fit_call(call, spec, bounds)[1]
        if call.name != earlier.name:
            return False
        old = parse_arguments(earlier.arguments_json)
    except ToolError:
        return None
    return comparable_arguments(new, spec) == comparable_arguments(old, spec)


_REASON = "this call has run, with this result: {}. It was not run again; go on with the result, or call the tool with other arguments"


def _shown(execution: ToolExecution) -> str:
    text = execution.text or "the one above"
    return text if len(text) <= _MAX_RESULT_CHARACTERS else f"{text[:_MAX_RESULT_CHARACTERS]}…"
