"""What a model can see in a Chat Completions request: the question, and the calls so far with their results."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from attrs import frozen
from shop.notations import called_tools, parse_json_or_none, results_in, text_of


@frozen
class CallResult:
    """A tool call and its result.

    Attributes:
        name: the name of the tool.
        result: the result, as the model sees it.
    """

    name: str
    result: str


@frozen
class Conversation:
    """The last question that the script knows, and the tool calls since then, in order.

    Attributes:
        question: the question; empty when the script knows none of the questions.
        calls: the calls.
    """

    question: str
    calls: tuple[CallResult, ...]

    @classmethod
    def of(cls, request: Mapping[str, Any], questions: Container[str]) -> Conversation:
        """Read a request.

        Calls and results are paired by position: the results of a turn follow its calls in order, while the ids of calls may
        repeat in a later turn.

        Args:
            request: the body of the request.
            questions: the questions that the script knows.
        """
        question, names, results = "", list[str](), list[str]()
        for message in request["messages"]:
            if message["role"] == "user" and text_of(message).strip() in questions:
                question, names, results = text_of(message).strip(), [], []
            elif message["role"] == "assistant":
                names += called_tools(message)
            elif message["role"] in {"user", "tool"}:
                results += results_in(message)
        return cls(question, tuple(map(CallResult, names, results)))

    def has_called(self, name: str) -> bool:
        """Return whether a tool was called."""
        return any(call.name == name for call in self.calls)

    def results_of(self, name: str) -> list[str]:
        """Return the results of a tool's calls, in order."""
        return [call.result for call in self.calls if call.name == name]

    def values_of(self, name: str) -> list[Any]:
        """Return the parsed results of a tool's successful calls, in order."""
        parsed = [parse_json_or_none(result) for result in self.results_of(name)]
        return [value for value in parsed if isinstance(value, dict | list)]
