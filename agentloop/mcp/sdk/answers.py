"""The answers to calls on their way to the SDK, which refuses a whole answer for one imperfect part, after the call ran."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from attrs import define, field
from mcp.shared.message import SessionMessage

from agentloop.errors import ToolDefinitionError
from agentloop.mcp.answers import readable_answer
from agentloop.mcp.sdk.names import content_of, types
from agentloop.tools.validation import SchemaValidator

_MAX_VALIDATORS = 1_000
_CALL = "tools/call"


@define(eq=False)
class Answers:
    """The calls of one connection whose answers are awaited, and the output schemas that its server declares."""

    _calls: set[str | int] = field(factory=set, init=False)
    _schemas: dict[str, Any] = field(factory=dict, init=False)
    _validators: dict[str, SchemaValidator | None] = field(factory=dict, init=False)

    def watch(self, message: SessionMessage) -> None:
        """Note a message to the server: the answer to a call is read in another way than others."""
        content = content_of(message.message)
        if isinstance(content, types.JSONRPCRequest) and content.method == _CALL:
            self._calls.add(content.id)

    def read(self, content: types.JSONRPCResponse) -> None:
        """Make an answer to a call readable for the SDK, and take the output schemas out of a list of tools."""
        if content.id in self._calls:
            self._calls.discard(content.id)
            content.result = readable_answer(content.result)

    def take_output_schema(self, tool: Any) -> Any:
        """Return a tool of a list without its output schema, by which the SDK would withhold answers."""
        if not isinstance(tool, Mapping) or not isinstance(name := tool.get("name"), str):
            return tool
        schema = tool.get("outputSchema")
        if self._schemas.get(name) != schema:
            self._validators.pop(name, None)
        self._schemas[name] = schema
        return {key: value for key, value in tool.items() if key != "outputSchema"}

    def output_schema(self, name: str) -> Any:
        """Return the output schema that the server declared for a tool; None if it declared none."""
        return self._schemas.get(name)

    def must_compile(self, name: str) -> bool:
        """Return whether the output schema of a tool has to be compiled before an answer is compared with it."""
        return isinstance(self._schemas.get(name), Mapping) and name not in self._validators

    def find_mismatch(self, name: str, response: Mapping[str, Any]) -> str:
        """Return how an answer does not fit the output schema of its tool; empty if it does."""
        schema = self._schemas.get(name)
        if not isinstance(schema, Mapping):
            return ""
        if response.get("structuredContent") is None:
            return "the tool declares an output schema, and its answer has no structured content"
        if name not in self._validators:
            if len(self._validators) >= _MAX_VALIDATORS:
                self._validators.clear()
            self._validators[name] = _validator(schema, name)
        validator = self._validators[name]
        problems = [] if validator is None else validator.problems(response["structuredContent"])
        listing = "; ".join(f"at {path}: {message}" for path, message in problems)
        return listing and f"the structured content does not fit the output schema that the tool declares: {listing}"


def _validator(schema: Mapping[str, Any], name: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(schema, f"the output schema of the tool {name!r}")
    except ToolDefinitionError:
        return None  # nothing can be said about answers


class WatchedStream:
    """A stream of messages to a server that the answers are told about.

    Args:
        answers: the answers.
        stream: the stream.
    """

    def __init__(self, answers: Answers, stream: Any) -> None:
        self._answers = answers
        self._stream = stream

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        self._answers.watch(item)
        await self._stream.send(item)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
