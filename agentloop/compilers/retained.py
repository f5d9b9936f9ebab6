"""What is still shown of messages that are left out, and notices in place of stale results."""

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

# --- retained messages ------------------------------------------------------------------------------------------


@define(eq=False)
class RetainedMessages:
    """Selects what stays of the messages before a position; the position only advances, and each message is read once.

    These messages stay: the system messages and the summary at the beginning of the conversation; the user's message that
    opened the turn at the position, so that what follows has its question; and the last user's message before the position,
    unless a user's message follows.

    Attributes:
        position: how many messages were read.
        leading: how many of them are at the beginning and always stay.
    """

    position: int = 0
    leading: int = 0
    _opening: int | None = None
    _latest: int | None = None

    def advance(self, messages: Sequence[Message]) -> None:
        """Read one more message of this conversation."""
        index, message = self.position, messages[self.position]
        # Leading only while nothing else has come before.
        if self.leading == index and (message.role == "system" or SUMMARY in message.metadata):
            self.leading += 1
        elif message.role == "user":
            if index == self.leading or not _is_continued_by_user(messages[index - 1]):
                self._opening = index
            self._latest = index
        self.position += 1

    def pinned(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the indexes of the messages that stay, without the leading ones, in order."""
        opening, latest = self._opening, self._latest
        if opening is None or latest is None:
            return ()
        # When a user's message comes next, it is the question; an earlier one belongs to it only in the same turn.
        if self.position < len(messages) and messages[self.position].role == "user":
            return (opening,) if _is_continued_by_user(messages[self.position - 1]) else ()
        return (opening,) if opening == latest else (opening, latest)

    def select(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that stay, in order."""
        return [*messages[: self.leading], *[messages[index] for index in self.pinned(messages)]]


def _is_continued_by_user(message: Message) -> bool:
    """Return whether a user's message after this one continues the turn instead of opening a new one."""
    return message.role == "user" or bool(message.exchanges)


# --- stale results ----------------------------------------------------------------------------------------------

STUB: Final = "superseded by a later call"
"""What a model sees in place of a stale result."""

_ResultIndex: TypeAlias = tuple[int, int]
_CurrentCalls: TypeAlias = dict[str, tuple[JsonObject, list[_ResultIndex]]]


def stub_stale_results(messages: Sequence[Message], tools: Tools) -> dict[int, Message]:
    """Return the messages with stale results, by index, with notices in place of these results.

    A result is stale when a later successful call of its tool supersedes it, according to the tool's policy. Results that
    are shorter than the notice are not replaced.
    """
    rules = {tool.name: rule for tool in tools if (rule := tool.policy.supersedes) is not None}
    if not rules:
        return {}
    current: dict[str, _CurrentCalls] = defaultdict(dict)
    stale: dict[int, set[int]] = defaultdict(set)
    for index, message in enumerate(messages):
        for part_index, part in enumerate(message.parts):
            if not isinstance(part, ToolExchange):
                continue
            execution = part.execution
            # A failed call supersedes nothing: the older result is still the best one.
            rule = rules.get(execution.name)
            if rule is None or not execution.succeeded:
                continue
            calls = current[execution.name]
            key = canonical_json(execution.arguments)
            for superseded in _superseded_keys(calls, key, execution.arguments, rule):
                for stale_index, stale_part in calls.pop(superseded)[1]:
                    stale[stale_index].add(stale_part)
            calls.setdefault(key, (execution.arguments, []))[1].append((index, part_index))
    stubbed = {index: _with_stubs(messages[index], part_indexes) for index, part_indexes in stale.items()}
    # A message whose results are all shorter than the notice is unchanged.
    return {index: message for index, message in stubbed.items() if message is not messages[index]}


def _superseded_keys(calls: _CurrentCalls, key: str, arguments: JsonObject, rule: Supersedes) -> Iterable[str]:
    """Return the keys of the earlier calls that a call supersedes."""
    if rule == "same arguments":
        return [key] if key in calls else []
    if rule == "same tool":
        return list(calls)
    return [earlier for earlier, (earlier_arguments, _) in calls.items() if rule(earlier_arguments, arguments)]


def _with_stubs(message: Message, part_indexes: set[int]) -> Message:
    parts = [_stub(part) if index in part_indexes else part for index, part in enumerate(message.parts)]
    is_changed = any(stub is not part for stub, part in zip(parts, message.parts, strict=True))
    return message.with_parts(parts) if is_changed else message


def _stub(part: Part) -> Part:
    if not isinstance(part, ToolExchange):
        return part
    shown = part.execution.parts
    if all(isinstance(content, Text) for content in shown) and len(part.execution.text) <= len(STUB):
        return part
    return evolve(part, execution=evolve(part.execution, content=(Text(STUB),)))
