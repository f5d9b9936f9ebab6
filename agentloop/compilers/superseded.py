"""Results that later calls have made stale."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from attrs import evolve

from agentloop.contracts.tool_policy import Supersedes
from agentloop.contracts.tools import Tools
from agentloop.interception.resilience.call_identity import canonical
from agentloop.values.json_value import JsonObject
from agentloop.values.message import Message, Part
from agentloop.values.parts import Text
from agentloop.values.tool_execution import ToolExchange

STUB: Final = "superseded by a later call"
"""What a model is shown in place of a stale result."""

_Place: TypeAlias = tuple[int, int]
_Live: TypeAlias = dict[str, tuple[JsonObject, list[_Place]]]


def without_stale_results(messages: Sequence[Message], tools: Tools) -> dict[int, Message]:
    """Return the messages, by their places, that hold stale results, each with notices in place of these.

    A result is stale when a later call of its tool succeeded that supersedes it, as the tool's policy says. Results that
    are shorter than the notice stay.
    """
    rules = {tool.name: rule for tool in tools if (rule := tool.policy.supersedes) is not None}
    if not rules:
        return {}
    live: dict[str, _Live] = defaultdict(dict)
    stale: dict[int, set[int]] = defaultdict(set)
    for place, message in enumerate(messages):
        for number, part in enumerate(message.parts):
            if not isinstance(part, ToolExchange):
                continue
            execution = part.execution
            rule = rules.get(execution.name)
            if rule is None or not execution.succeeded:
                continue
            earlier = live[execution.name]
            key = canonical(execution.arguments)
            for old in _superseded(earlier, key, execution.arguments, rule):
                for at, index in earlier.pop(old)[1]:
                    stale[at].add(index)
            earlier.setdefault(key, (execution.arguments, []))[1].append((place, number))
    made = {at: _stubbed(messages[at], numbers) for at, numbers in stale.items()}
    return {at: message for at, message in made.items() if message is not messages[at]}


def _superseded(earlier: _Live, key: str, arguments: JsonObject, rule: Supersedes) -> Iterable[str]:
    """Return the keys of the earlier calls that a call supersedes."""
    if rule == "same arguments":
        return [key] if key in earlier else []
    if rule == "same tool":
        return list(earlier)
    return [old for old, (before, _) in earlier.items() if rule(before, arguments)]


def _stubbed(message: Message, numbers: set[int]) -> Message:
    parts = [_stub(part) if number in numbers else part for number, part in enumerate(message.parts)]
    changed = any(made is not part for made, part in zip(parts, message.parts, strict=True))
    return message.with_parts(parts) if changed else message


def _stub(part: Part) -> Part:
    if not isinstance(part, ToolExchange):
        return part
    shown = part.execution.parts
    if all(isinstance(one, Text) for one in shown) and len(part.execution.text) <= len(STUB):
        return part
    return evolve(part, execution=evolve(part.execution, content=(Text(STUB),)))
