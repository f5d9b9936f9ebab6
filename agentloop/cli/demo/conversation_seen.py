"""What a model can see in a Chat Completions request: the question, and the calls so far with their results."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from attrs import frozen

from agentloop.cli.demo.reading import json_in, names_called, results_told, text_of


@frozen
class SeenCall:
    """A tool call, and what came of it.

    Attributes:
        name: the tool.
        result: what the model is told of the result.
    """

    name: str
    result: str


@frozen
class ConversationSeen:
    """The last question that the model knows, and the tool calls since, in order.

    Attributes:
        question: the question; empty when it knows none of them.
        calls: the calls.
    """

    question: str
    calls: tuple[SeenCall, ...]

    @classmethod
    def in_request(cls, request: Mapping[str, Any], known: Container[str]) -> ConversationSeen:
        """Read a request.

        Calls and results are paired by position: the results of a turn follow its calls in order, while ids may come again
        in a later turn.

        Args:
            request: the body of the request.
            known: the questions that the model knows.
        """
        question, names, results = "", list[str](), list[str]()
        for message in request["messages"]:
            if message["role"] == "user" and text_of(message).strip() in known:
                question, names, results = text_of(message).strip(), [], []
            elif message["role"] == "assistant":
                names += names_called(message)
            elif message["role"] in {"user", "tool"}:
                results += results_told(message)
        return cls(question, tuple(map(SeenCall, names, results)))

    def has(self, name: str) -> bool:
        """Say whether this tool was called."""
        return any(call.name == name for call in self.calls)

    def results(self, name: str) -> list[str]:
        """Return the results of this tool's calls, in order."""
        return [call.result for call in self.calls if call.name == name]

    def found(self, name: str) -> list[Any]:
        """Return what the calls of this tool found, parsed, in order; without those that found nothing."""
        parsed = [json_in(result) for result in self.results(name)]
        return [one for one in parsed if isinstance(one, dict | list)]
