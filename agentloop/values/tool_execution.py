"""What came of a tool call, and the one record that holds a call together with its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from attrs import evolve, field, frozen
from attrs.converters import optional

from agentloop.errors import MalformedArguments
from agentloop.values.json_text import format_json
from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, JsonValue, freeze
from agentloop.values.parts import Audio, Document, Image, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.value import Value

ContentPart: TypeAlias = Text | Image | Audio | Document
"""A part that a user or a tool can put before a model."""


def as_content(content: Iterable[ContentPart]) -> tuple[ContentPart, ...]:
    """Convert to a tuple; a converter with a type that checkers can see."""
    return tuple(content)


class ToolStatus(StrEnum):
    """How a tool call ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    IN_DOUBT = "in_doubt"


@frozen(eq=False, repr=False)
class ErrorInfo(Value):
    """An error as data: never an exception, so it can be stored and sent.

    Attributes:
        type: the name of the error class.
        message: what was wrong, for a model and for a person.
        path: where in the arguments or the result, as a JSON path; may be empty.
    """

    type: str
    message: str
    path: str = ""

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        """Describe an exception; one that cannot tell its message is told by its class."""
        path = getattr(error, "path", "")
        try:
            message = str(error)
        except Exception:  # noqa: BLE001  # an error in the message of an error must not hide the error
            message = ""
        return cls(type(error).__name__, message or type(error).__name__, path if isinstance(path, str) else "")


@frozen(eq=False, repr=False, kw_only=True)
class ToolExecution(Value):
    """The outcome of one tool call.

    Attributes:
        id: the id of this execution.
        key: the idempotency key, `<execution id>/<step number>/<call index>`.
        call: the call as it ran; an interceptor or an approver may have changed it.
        status: how it ended.
        value: what the tool returned, as JSON; None unless it succeeded.
        content: what the model is shown instead of `value`, when that differs: pictures, or a shortened result.
        error: what went wrong; None when it succeeded.
        may_have_run: true where an effect on the world cannot be excluded although the call did not succeed.
        started_at: when the tool was started, or when the call was settled without starting it.
        ended_at: when it ended.
    """

    id: str
    key: str
    call: ToolCall
    status: ToolStatus = field(converter=ToolStatus)
    value: JsonValue = field(default=None, converter=freeze)
    content: tuple[ContentPart, ...] | None = field(default=None, converter=optional(as_content))
    error: ErrorInfo | None = None
    may_have_run: bool = False
    started_at: datetime
    ended_at: datetime

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.call.name

    @property
    def arguments(self) -> JsonObject:
        """The arguments it ran with; empty when they were malformed, in which case it did not run."""
        try:
            return self.call.arguments
        except MalformedArguments:
            return EMPTY_OBJECT

    @property
    def result(self) -> JsonValue:
        """What the tool returned, as JSON."""
        return self.value

    @property
    def succeeded(self) -> bool:
        """Whether the tool ran and returned."""
        return self.status is ToolStatus.SUCCEEDED

    @property
    def has_error(self) -> bool:
        """Whether it ended in any other way than by returning."""
        return self.status is not ToolStatus.SUCCEEDED

    @property
    def error_message(self) -> str:
        """What went wrong; empty when nothing did."""
        return self.error.message if self.error else ""

    @property
    def was_blocked(self) -> bool:
        """Whether an interceptor or an ordering rule kept it from running."""
        return self.status is ToolStatus.BLOCKED

    @property
    def duration_ms(self) -> float:
        """Milliseconds from start to end."""
        return (self.ended_at - self.started_at).total_seconds() * 1000

    @property
    def text(self) -> str:
        """What the model is told, as text: the result (JSON unless it is text), or the error."""
        if self.content is not None:
            return "".join(part.text for part in self.content if isinstance(part, Text))
        if self.error is not None:
            return f"{self.error.type}: {self.error.message}"
        return self.value if isinstance(self.value, str) else format_json(self.value).decode()

    @property
    def parts(self) -> tuple[ContentPart, ...]:
        """What the model is shown, as parts: `content` where there is any, else `text` as one part."""
        return self.content if self.content is not None else (Text(self.text),)

    def with_value(self, value: object, content: Sequence[ContentPart] | None = None) -> ToolExecution:
        """Return it as a success with this value, and with this content for the model in place of the value if given.

        Raises:
            NotJson: when the value has no JSON form.
        """
        return evolve(self, status=ToolStatus.SUCCEEDED, value=value, content=content, error=None, may_have_run=False)

    def with_error(self, error: ErrorInfo, status: ToolStatus = ToolStatus.FAILED) -> ToolExecution:
        """Return it as having ended with this error."""
        return evolve(self, status=status, value=None, content=None, error=error)


@frozen(eq=False, repr=False)
class ToolExchange(Value):
    """A tool call with its execution: the only form in which a message holds a call.

    Attributes:
        call: the call as the model made it.
        execution: its outcome; `execution.call` is the call as it ran.
    """

    call: ToolCall
    execution: ToolExecution
