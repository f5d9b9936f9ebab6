"""Calls that a model repeats although they bring nothing new: behind them, it is asked for its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentloop.contracts.tools import Tools
from agentloop.errors import MalformedArguments
from agentloop.tools.fitting import comparable_arguments
from agentloop.values.json import canonical_json
from agentloop.values.parts import Text
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import Effect, ToolExecution, parse_arguments

_REACH: Final = 8
"""The steps before the last one that are compared with it."""
_POLLS: Final = 3
"""The steps in a row with equal calls and results that a model with a tool API may take: it may be waiting for something."""


def repeats_calls(steps: Sequence[AgentStep], tools: Tools) -> bool:
    """Return whether the steps before have all calls of the last step, with the same results.

    Calls before one that may have changed something do not count.

    Args:
        steps: the steps of the execution; at least one.
        tools: the tools on offer.
    """
    left = _pure(steps[-1].executions, tools)
    for step in reversed(steps[-_REACH - 1 : -1]):
        if not left or (step.executions and not _pure(step.executions, tools)):
            return False
        left = _without_equal(left, step.executions, tools)
        if not left:
            return True
    return False


def keeps_repeating(steps: Sequence[AgentStep], tools: Tools) -> bool:
    """Return whether the last three steps have the same calls with the same results.

    Args:
        steps: the steps of the execution.
        tools: the tools on offer.
    """
    last = _pure(steps[-1].executions, tools) if len(steps) >= _POLLS else []
    return bool(last) and all(not _without_equal(last, step.executions, tools) for step in steps[-_POLLS:-1])


def _pure(executions: Sequence[ToolExecution], tools: Tools) -> list[ToolExecution]:
    """Return the executions of a step; none if one failed, has more than text as its result, or may have changed something."""
    for execution in executions:
        tool = tools.get(execution.name)
        if tool is None or tool.effect is not Effect.PURE or not execution.succeeded:
            return []
        if execution.content is not None and not all(isinstance(part, Text) for part in execution.content):
            return []
    return list(executions)


def _without_equal(
    executions: Sequence[ToolExecution], others: Sequence[ToolExecution], tools: Tools
) -> list[ToolExecution]:
    """Return the executions that have no equal among the others; arguments are read only where all else is equal."""
    written = {(other.call.name, other.text, other.call.arguments_json) for other in others}
    left = [each for each in executions if (each.call.name, each.text, each.call.arguments_json) not in written]
    results = {(name, text) for name, text, _ in written}
    if all((each.call.name, each.text) not in results for each in left):
        return left
    equal = {(_call_of(other, tools), other.text) for other in others}
    return [each for each in left if (_call_of(each, tools), each.text) not in equal]


def _call_of(execution: ToolExecution, tools: Tools) -> tuple[str, str]:
    """Return a call so that two calls are equal if the tool gets the same arguments, in whatever form they were written."""
    call, tool = execution.call, tools.get(execution.name)
    try:
        arguments = parse_arguments(call.arguments_json)
    except MalformedArguments:
        return call.name, call.arguments_json
    return call.name, canonical_json(arguments if tool is None else comparable_arguments(arguments, tool.spec))
