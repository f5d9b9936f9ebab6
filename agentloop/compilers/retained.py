"""What a model is still shown of the part of a conversation that is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from attrs import define, evolve

from agentloop.contracts.tool import Supersedes
from agentloop.contracts.tools import Tools
from agentloop.values.epochs import SUMMARY
from agentloop.values.json import JsonObject, canonical_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolExchange


@define(eq=False)
class RetainedMessages:
    """What stays of the messages before a place, which moves forward only; each message is looked at once.

    These stay: the system messages and the summary that the conversation begins with; the user's message that opened the
    turn in which the place stands, so that what follows has its question; and the last user's message before the place, unless
    a user's message follows.

    Attributes:
        place: how many messages are passed.
        leading: how many of them belong to the beginning that always stays.
    """

    place: int = 0
    leading: int = 0
    _opening: int | None = None
    _latest: int | None = None

    def move(self, messages: Sequence[Message]) -> None:
        """Pass one more message of this conversation."""
        place, message = self.place, messages[self.place]
        if self.leading == place and (message.role == "system" or SUMMARY in message.metadata):
            self.leading += 1
        elif message.role == "user":
            if place == self.leading or not _continues(messages[place - 1]):
                self._opening = place
            self._latest = place
        self.place += 1

    def pinned(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the places of the messages that stay, besides the leading ones, in order."""
        opening, latest = self._opening, self._latest
        if opening is None or latest is None:
            return ()
        if self.place < len(messages) and messages[self.place].role == "user":
            return (opening,) if _continues(messages[self.place - 1]) else ()
        return (opening,) if opening == latest else (opening, latest)

    def kept(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that stay, in order."""
        return [*messages[: self.leading], *[messages[place] for place in self.pinned(messages)]]


def _continues(before: Message) -> bool:
    """Say whether a user's message after this one goes on with a turn instead of opening one."""
    return before.role == "user" or bool(before.exchanges)


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
            key = canonical_json(execution.arguments)
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
