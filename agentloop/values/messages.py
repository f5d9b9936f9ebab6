"""Messages: what a conversation is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from agentloop.errors import ContractViolation
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExchange, ToolExecution
from agentloop.values.value import EncodeOnce

Role: TypeAlias = Literal["user", "assistant", "system"]
Part: TypeAlias = Text | Image | Audio | Document | Reasoning | ToolExchange | ProviderPart
"""What a message may hold. A bare call is not among them."""
ResponsePart: TypeAlias = Text | Reasoning | ToolCall | ProviderPart
"""What a response of a model may hold."""

_CONTENT = frozenset({Text, Image, Audio, Document})
_ALLOWED: Mapping[str, frozenset[type]] = {
    "user": _CONTENT,
    "system": frozenset({Text}),
    "assistant": _CONTENT | {Reasoning, ToolExchange, ProviderPart},
}


def _as_parts(parts: str | Part | Iterable[str | Part]) -> tuple[Part, ...]:
    if isinstance(parts, tuple):
        for part in parts:
            if type(part) is str:
                break
        else:
            return parts
    if isinstance(parts, str):
        return (Text(parts),)
    if isinstance(parts, Iterable):
        return tuple([Text(part) if isinstance(part, str) else part for part in parts])
    return (parts,)


@frozen(eq=False, repr=False)
class Message(EncodeOnce):
    """One message of a conversation; immutable, and unable to hold a tool call without its execution (law 2).

    Attributes:
        role: `user`, `assistant` or `system`.
        parts: the content in the order it came. A user's message holds text and media, a system message text, an
            assistant's also reasoning, tool exchanges and provider parts.
        metadata: JSON of yours; the model never sees it.
    """

    role: Role
    parts: tuple[Part, ...] = field(converter=_as_parts)
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    def __attrs_post_init__(self) -> None:
        allowed = _ALLOWED.get(self.role)
        if allowed is None:
            raise ContractViolation(f"a message's role is user, assistant or system, not {self.role!r}")
        for part in self.parts:
            if type(part) not in allowed:
                raise ContractViolation(_why_not(self.role, part))

    @classmethod
    def user(cls, *content: str | ContentPart, metadata: Mapping[str, object] = EMPTY_OBJECT) -> Message:
        """Make a user's message of text and media."""
        return cls("user", _as_parts(content), freeze_object(metadata))

    @classmethod
    def assistant(cls, *content: str | Part, metadata: Mapping[str, object] = EMPTY_OBJECT) -> Message:
        """Make an assistant's message."""
        return cls("assistant", _as_parts(content), freeze_object(metadata))

    @classmethod
    def system(cls, *content: str | Text, metadata: Mapping[str, object] = EMPTY_OBJECT) -> Message:
        """Make a system message that stands in the conversation, beside the system prompt of the context."""
        return cls("system", _as_parts(content), freeze_object(metadata))

    @classmethod
    def of_response(cls, parts: Sequence[ResponsePart], executions: Sequence[ToolExecution]) -> Message:
        """Make the assistant's message of a response, each call of which is joined to its execution, by position.

        Raises:
            ContractViolation: when there are not as many executions as calls.
        """
        calls = sum(type(part) is ToolCall for part in parts)
        if calls != len(executions):
            raise ContractViolation(
                f"{calls} tool calls need {calls} executions, there are {len(executions)} (laws 1 and 2)"
            )
        left = iter(executions)
        joined: list[str | Part] = [ToolExchange(p, next(left)) if isinstance(p, ToolCall) else p for p in parts]
        return cls("assistant", joined)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def exchanges(self) -> tuple[ToolExchange, ...]:
        """The tool exchanges, in call order."""
        return tuple([part for part in self.parts if type(part) is ToolExchange])

    def with_parts(self, parts: Iterable[str | Part]) -> Message:
        """Return a copy with other parts."""
        return Message(self.role, _as_parts(parts), self.metadata)

    def with_metadata(self, **entries: object) -> Message:
        """Return a copy with these entries of metadata added or replaced."""
        return Message(self.role, self.parts, self.metadata.plus(**entries))


def _why_not(role: str, part: Any) -> str:
    if isinstance(part, ToolCall):
        return (
            f"a message cannot hold the bare tool call {part.name!r}: give it together with its execution as a "
            "ToolExchange (law 2)"
        )
    kinds = ", ".join(sorted(kind.__name__ for kind in _ALLOWED[role]))
    return f"a message of role {role} holds {kinds}; not {type(part).__name__}"
