"""What a model can see in a Chat Completions request: the calls so far, with their results."""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen


@frozen
class SeenCall:
    """A tool call, and what came of it.

    Attributes:
        name: the tool.
        result: what the tool message says.
    """

    name: str
    result: str


@frozen
class ConversationSeen:
    """The tool calls of a conversation, in order.

    Attributes:
        calls: the calls.
    """

    calls: tuple[SeenCall, ...]

    @classmethod
    def in_request(cls, body: bytes) -> ConversationSeen:
        """Read the calls and their results from the body of a request.

        They are paired by position: the results of a turn follow its calls in order, while ids may come again in a later turn.
        """
        messages: list[dict[str, Any]] = json.loads(body)["messages"]
        names = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        return cls(tuple(map(SeenCall, names, results)))

    def has(self, name: str) -> bool:
        """Say whether this tool was called."""
        return any(call.name == name for call in self.calls)

    def results(self, name: str) -> list[str]:
        """Return the results of this tool's calls, in order."""
        return [call.result for call in self.calls if call.name == name]

    def found(self, name: str) -> Any:
        """Return what the last call of this tool returned, parsed."""
        return json.loads(self.results(name)[-1])
