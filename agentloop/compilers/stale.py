"""Results that later calls have made stale, and the notices that a model sees in their place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeAlias

from attrs import define, evolve, field

from agentloop.contracts.tool import Supersedes, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.values.json import JsonObject, canonical_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Text
from agentloop.values.reprs import ShownByField
from agentloop.values.tool_calls import Effect, ToolExchange, ToolExecution

STUB: Final = "superseded by a later call"
"""What a model sees in place of a stale result."""

ResultIndex: TypeAlias = tuple[int, int]
"""The position of a result: the index of its message, and of its part in the message."""

_Calls: TypeAlias = dict[str, tuple[JsonObject, list[ResultIndex]]]


@define(eq=False, repr=False)
class _CurrentResults(ShownByField):
    """The results that no later call has superseded so far, by tool and by resource.

    Attributes:
        stale: the parts with superseded results, by the index of their message.
        changed: the indexes of the messages of which results were superseded since somebody has asked.
    """

    stale: dict[int, set[int]] = field(factory=lambda: defaultdict(set))
    changed: set[int] = field(factory=set)
    _by_tool: dict[str, _Calls] = field(factory=lambda: defaultdict(dict))
    _by_resource: dict[str, list[ResultIndex]] = field(factory=lambda: defaultdict(list))
    _current_resources: dict[ResultIndex, int] = field(factory=dict)

    def add(self, execution: ToolExecution, policy: ToolPolicy, index: ResultIndex) -> None:
        """Read the next result: drop those that it supersedes, and add it."""
        resources, rule = policy.resources(execution.arguments), policy.supersedes
        if rule == "same resource":
            self._supersede_resources(resources)
        elif rule is not None:
            self._supersede_calls(execution, rule, index)
        if resources:
            self._current_resources[index] = len(resources)
        for resource in resources:
            self._by_resource[resource].append(index)

    def add_inner(self, execution: ToolExecution, policy: ToolPolicy) -> None:
        """Read a call of a program, whose result no model has seen: drop the results about the resources that it supersedes."""
        if policy.supersedes == "same resource":
            self._supersede_resources(policy.resources(execution.arguments))

    def _supersede_resources(self, resources: Iterable[str]) -> None:
        for resource in resources:
            for index in self._by_resource.pop(resource, ()):
                self._current_resources[index] -= 1
                # What a result says about its other resources is still the newest.
                if not self._current_resources[index]:
                    self._drop(index)

    def _supersede_calls(self, execution: ToolExecution, rule: Supersedes, index: ResultIndex) -> None:
        calls, key = self._by_tool[execution.name], canonical_json(execution.arguments)
        for superseded in _superseded_keys(calls, key, execution.arguments, rule):
            for earlier in calls.pop(superseded)[1]:
                self._drop(earlier)
        calls.setdefault(key, (execution.arguments, []))[1].append(index)

    def _drop(self, index: ResultIndex) -> None:
        message_index, part_index = index
        self.stale[message_index].add(part_index)
        self.changed.add(message_index)


@define(eq=False, repr=False)
class StaleResults(ShownByField):
    """Finds the stale results of a conversation, whose messages are read one after the other.

    A result is stale when a later successful call supersedes it, according to the policies of their tools. A result about several
    resources is stale when all of them were superseded, by one call or by several. Results that are shorter than the notice are
    not replaced. A call of a program supersedes the results about its resources if it is not pure: what it wrote is known by now,
    and what it read is not, since no model sees its result.

    Attributes:
        position: the number of messages that were read.
        stubbed: the indexes of the messages that have notices.
    """

    _tools: Tools
    _current: _CurrentResults = field(factory=_CurrentResults)
    position: int = 0
    stubbed: set[int] = field(factory=set)

    @classmethod
    def of(cls, tools: Tools) -> StaleResults | None:
        """Return the results of an empty conversation; None if none of the tools makes results stale."""
        return None if all(tool.policy.supersedes is None for tool in tools) else cls(tools)

    def read(self, message: Message) -> list[int]:
        """Read the next message; return the indexes of the messages of which it has made further results stale."""
        index, current, tools = self.position, self._current, self._tools
        self.position += 1
        for part_index, part in enumerate(message.parts):
            if not isinstance(part, ToolExchange):
                continue
            for inner in part.execution.inner:
                tool = tools.get(inner.name)
                if inner.succeeded and tool is not None and tool.effect is not Effect.PURE:
                    current.add_inner(inner, tool.policy)
            # A failed call supersedes nothing: the older result is still the best one.
            tool = tools.get(part.execution.name)
            if tool is not None and part.execution.succeeded:
                current.add(part.execution, tool.policy, (index, part_index))
        changed, current.changed = sorted(current.changed), set()
        return changed

    def read_all(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Read the first messages of a conversation; return them with notices in place of stale results."""
        shown = list(messages)
        for message in messages:
            for index in self.read(message):
                shown[index] = self.stub(index, shown[index])
        return tuple(shown)

    def stub(self, index: int, message: Message) -> Message:
        """Return a message with notices in place of its stale results; the message itself if they are all shorter than the notice."""
        stub = _with_stubs(message, self._current.stale[index])
        if stub is not message:
            self.stubbed.add(index)
        return stub

    def is_stale(self, index: int, part_index: int) -> bool:
        """Return whether a part has a stale result."""
        return part_index in self._current.stale.get(index, ())


def _superseded_keys(calls: _Calls, key: str, arguments: JsonObject, rule: Supersedes) -> Iterable[str]:
    """Return the keys of the earlier calls of a tool that its next call supersedes."""
    if rule == "same arguments":
        return [key] if key in calls else []
    if rule == "same tool":
        return list(calls)
    assert callable(rule)  # noqa: S101  # the only other rule is about resources
    return [earlier for earlier, (earlier_arguments, _) in calls.items() if rule(earlier_arguments, arguments)]


def _with_stubs(message: Message, part_indexes: Collection[int]) -> Message:
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
