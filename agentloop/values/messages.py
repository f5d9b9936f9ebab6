"""Messages, the elements of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from agentloop.errors.kinds import ContractViolation
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.labels import ATTACHMENT, CLEAN, UNKNOWN, Label, SourceKind, foreign
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolCall, ToolExchange, ToolExecution
from agentloop.values.value import EncodeOnce

Role: TypeAlias = Literal["user", "assistant", "system"]
"""Who a message is from."""
Part: TypeAlias = Text | Image | Audio | Document | Reasoning | ToolExchange | ProviderPart
"""A part of a message. A tool call is only allowed together with its execution, as a `ToolExchange`."""
ResponsePart: TypeAlias = Text | Reasoning | ToolCall | ProviderPart
"""A part of a model's response."""

OF_TOOLS: Mapping[str, bool] = {"agentloop.of_tools": True}
"""The metadata of a message of the user that a mode has made of the results of tools, for the wire formats."""
LAST_ANSWER: Mapping[str, bool] = {"agentloop.last_answer": True}
"""The metadata of a message that announces the last answer; modes that ask for it by a schema leave the message out."""
REJECTED_ANSWER: Mapping[str, bool] = {"agentloop.rejected_answer": True}
"""The metadata of a message that tells a model why its answer does not have the requested form."""
ATTACHED = "agentloop.attached"
"""The key of the metadata of a user's message for the number of characters at the beginning of its text that are not the user's
own words: the text of attached files, and text that was piped into a command."""
_CONTENT = frozenset({Text, Image, Audio, Document})
_ALLOWED: Mapping[str, frozenset[type]] = {
    "user": _CONTENT,
    "system": frozenset({Text}),
    "assistant": _CONTENT | {Reasoning, ToolExchange, ProviderPart},
}


def _as_parts(parts: str | Part | Iterable[str | Part]) -> tuple[Part, ...]:
    # A tuple without strings is kept as it is: most messages are rebuilt from the parts of another message.
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
    """One message of a conversation. It cannot hold a tool call without its execution (law 2).

    `Message.user("What is this?", image)`, `Message.assistant(…)` and `Message.system(…)` create messages from their content;
    `Message(role, parts)` is for a role that is only known at run time. As in chat formats, a role is a text, and so may the
    parts be. Methods that replace a collection, here and in requests, responses and states, take it as one argument.

    Attributes:
        role: `user`, `assistant` or `system`.
        parts: the content, in order; strings become `Text`. User messages hold text and media, system messages hold text,
            assistant messages may also hold reasoning, tool exchanges and provider parts.
        metadata: JSON for the application's use; it is never sent to a model.
        label: who had a part in its text; None where that is not known, which `origin` reads.

    Raises:
        ContractViolation: if the role is unknown, or a part is not allowed in a message of this role.
    """

    role: Role
    parts: tuple[Part, ...] = field(converter=_as_parts)
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    label: Label | None = field(default=None, repr=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        allowed = _ALLOWED.get(self.role)
        if allowed is None:
            raise ContractViolation(f"a message's role is user, assistant or system, not {self.role!r}")
        for part in self.parts:
            if type(part) not in allowed:
                raise ContractViolation(_describe_violation(self.role, part))

    @classmethod
    def user(
        cls, *content: str | ContentPart, metadata: Mapping[str, object] = EMPTY_OBJECT, label: Label | None = None
    ) -> Message:
        """Create a user message of text and media; with a label if somebody else wrote it."""
        return cls("user", _as_parts(content), freeze_object(metadata), label=label)

    @classmethod
    def assistant(
        cls, *content: str | Part, metadata: Mapping[str, object] = EMPTY_OBJECT, label: Label | None = None
    ) -> Message:
        """Create an assistant message."""
        return cls("assistant", _as_parts(content), freeze_object(metadata), label=label)

    @classmethod
    def system(
        cls, *content: str | Text, metadata: Mapping[str, object] = EMPTY_OBJECT, label: Label | None = None
    ) -> Message:
        """Create a system message inside the conversation, in addition to the system prompt of the context."""
        return cls("system", _as_parts(content), freeze_object(metadata), label=label)

    @classmethod
    def of_response(
        cls, parts: Sequence[ResponsePart], executions: Sequence[ToolExecution], label: Label | None = None
    ) -> Message:
        """Create the assistant message of a response by joining each call to its execution.

        Args:
            parts: the parts of the response.
            executions: the execution of each call, in call order.
            label: who had a part in what the model had read.

        Raises:
            ContractViolation: if the number of executions differs from the number of calls.
        """
        calls = sum(type(part) is ToolCall for part in parts)
        if calls != len(executions):
            raise ContractViolation(
                f"{calls} tool calls need {calls} executions, there are {len(executions)} (laws 1 and 2)"
            )
        # By position, not by id: providers may send the same id twice, or none.
        remaining = iter(executions)
        joined: list[str | Part] = [ToolExchange(p, next(remaining)) if isinstance(p, ToolCall) else p for p in parts]
        return cls("assistant", joined, label=label)

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def attached(self) -> int:
        """The number of characters at the beginning of a user's text that somebody else wrote."""
        count = self.metadata.get(ATTACHED, 0)
        return count if isinstance(count, int) and count > 0 else 0

    @cached_property
    def exchanges(self) -> tuple[ToolExchange, ...]:
        """The tool exchanges, in call order."""
        return tuple([part for part in self.parts if type(part) is ToolExchange])

    @property
    def origin(self) -> Label:
        """Who else than the user, the developer and those who decide about calls had a part in the message.

        A user's text without a label is the user's own, and a system message the developer's. Files, images and piped text of a user's
        message are foreign, and so are an answer of a model and a result without a label.
        """
        return self.encoded(Label, _origin_of_message)

    def with_parts(self, parts: Iterable[str | Part]) -> Message:
        """Return a copy with these parts instead."""
        return Message(self.role, _as_parts(parts), self.metadata, label=self.label)

    def with_metadata(self, **entries: object) -> Message:
        """Return a copy with these entries of metadata added or replaced."""
        return Message(self.role, self.parts, self.metadata.plus(**entries), label=self.label)


def _origin_of_message(message: Message) -> Label:
    label = message.label
    if label is None:
        label = CLEAN
        if message.role == "assistant":
            label = UNKNOWN
        elif message.attached or any(type(part) is not Text for part in message.parts):
            label = ATTACHMENT
    for exchange in message.exchanges:
        label |= exchange.execution.origin
    return label


def label_of_parts(parts: Iterable[object]) -> Label:
    """Return who had a part in an answer of a model, besides what the model had read: what its provider has fetched."""
    label = CLEAN
    for part in parts:
        if type(part) is ProviderPart:
            label |= foreign(part.wire_format, kind=SourceKind.SERVER)
    return label


def origin_of(messages: Iterable[Message]) -> Label:
    """Return who had a part in any of these messages."""
    label = CLEAN
    for message in messages:
        label |= message.origin
    return label


def _describe_violation(role: str, part: Any) -> str:
    if isinstance(part, ToolCall):
        return (
            f"a message cannot hold the bare tool call {part.name!r}: give it together with its execution as a "
            "ToolExchange (law 2)"
        )
    kinds = ", ".join(sorted(kind.__name__ for kind in _ALLOWED[role]))
    return f"a message of role {role} holds {kinds}; not {type(part).__name__}"
