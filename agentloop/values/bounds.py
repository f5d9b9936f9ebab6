"""Bounds on the work that one answer, tool, server or schema can cause."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from attrs import Attribute, field, fields, frozen

from agentloop.values.value import Value


def _positive(_: object, attribute: Attribute[Any], value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0:  # type: ignore[operator]  # a number
        raise ValueError(f"Bounds.{attribute.name} has to be a number above 0, not {value!r}")


def _bound(default: float) -> Any:
    return field(default=default, validator=_positive)


@frozen(eq=False, repr=False, kw_only=True)
class Bounds(Value):
    """Bounds on the work that untrusted input can cause. Pass changed ones as `AgentLoop(…, bounds=Bounds(threads=8))`.

    What exceeds a bound ends in a typed outcome that names the bound: a rejected call, an `InferenceError`, a
    `BoundExceeded`, or for `slow_tool_seconds` and `blocked_seconds` an event. `float("inf")` lifts a bound. Parts with
    a parameter of their own for the same quantity, such as `LLMConfig.max_response_bytes`, use the parameter if it is
    set; parts that are used outside of a loop use `DEFAULT_BOUNDS`.

    Attributes:
        calls_per_answer: the number of tool calls in one answer of a model; if there are more, none of them runs.
        threads: the number of threads of an execution that run plain functions at once; further calls wait.
        slow_tool_seconds: seconds after which a running tool call is reported as slow; it runs on.
        blocked_seconds: seconds for which some code may keep the event loop from going on before the code is reported; it runs
            on. By default nothing watches the event loop. A warning comes at the latest after 1.5 times the bound.
        first_byte_seconds: seconds until the first byte of a response of a model.
        idle_seconds: seconds between two bytes of a response of a model.
        inference_seconds: seconds of an inference, from its start to its last byte, without waits between attempts.
        response_bytes: bytes of a response, after decompression.
        message_bytes: bytes of a message between an MCP client and server, after decompression.
        tools_per_server: the number of tools of an MCP server.
        definition_bytes: bytes of all tool definitions of an MCP server, as JSON.
        schema_bytes: bytes of a JSON Schema.
        schema_depth: the depth of a JSON Schema, and of the references that a check of it follows.
        schema_steps: the steps of a check of a value against a schema: a keyword that is evaluated, 8 elements of a long value, or
            16 characters that a pattern is matched with. A step takes about 2 µs.
        text_characters: characters of an answer that are read for tool calls.
        text_steps_per_character: steps per character that reading an answer for tool calls takes.
        file_bytes: bytes of a file that a file tool writes.
        file_folders: the number of folders that a call of a file tool creates.
        document_bytes: bytes of a file that describes tools or agents.

    Raises:
        ValueError: for a bound that is not a number above 0.
    """

    calls_per_answer: float = _bound(128)
    threads: float = _bound(64)
    slow_tool_seconds: float = _bound(60.0)
    blocked_seconds: float = _bound(math.inf)
    first_byte_seconds: float = _bound(600.0)
    idle_seconds: float = _bound(120.0)
    inference_seconds: float = _bound(1800.0)
    response_bytes: float = _bound(16 * 1024 * 1024)
    message_bytes: float = _bound(16 * 1024 * 1024)
    tools_per_server: float = _bound(1_000)
    definition_bytes: float = _bound(4_000_000)
    schema_bytes: float = _bound(1_000_000)
    schema_depth: float = _bound(64)
    schema_steps: float = _bound(30_000)
    text_characters: float = _bound(128 * 1024)
    text_steps_per_character: float = _bound(64)
    file_bytes: float = _bound(16 * 1024 * 1024)
    file_folders: float = _bound(32)
    document_bytes: float = _bound(1_000_000)

    def within(self, other: Bounds) -> Bounds:
        """Return the stricter one of each bound of these and of others."""
        if other == self:
            return self
        names = [each.name for each in fields(Bounds)]
        return Bounds(**{name: min(getattr(self, name), getattr(other, name)) for name in names})


DEFAULT_BOUNDS = Bounds()

_CURRENT: ContextVar[Bounds] = ContextVar("agentloop_bounds", default=DEFAULT_BOUNDS)


def current_bounds() -> Bounds:
    """Return the bounds of the loop that starts a group of tools or lists its tools; outside of one, `DEFAULT_BOUNDS`."""
    return _CURRENT.get()


@contextmanager
def apply_bounds(bounds: Bounds) -> Iterator[None]:
    """Make these the current bounds in the block, and in the tasks that start there."""
    token = _CURRENT.set(bounds)
    try:
        yield
    finally:
        _CURRENT.reset(token)
