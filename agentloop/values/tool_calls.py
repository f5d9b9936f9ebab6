"""Tool calls: what a tool offers, the calls of a model, and their outcomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from attrs import evolve, field, frozen
from attrs.converters import optional

from agentloop.errors.kinds import MalformedArguments, NotJson, ToolDefinitionError
from agentloop.values.forms import freeze_any
from agentloop.values.json import (
    EMPTY_OBJECT,
    MAX_DEPTH,
    JsonObject,
    JsonValue,
    TooManyEntries,
    duplicate_key,
    format_json,
    freeze,
    freeze_object,
    is_truncated_json,
    parse_json,
    replace_lone_surrogates,
)
from agentloop.values.labels import Label, SourceKind, foreign
from agentloop.values.parts import Audio, Document, Image, Text
from agentloop.values.value import UNCHECKED, EncodeOnce, Value, check_types


class Effect(StrEnum):
    """The effect of a tool on the outside world, which determines whether a call may be repeated.

    `PURE` changes nothing. `IDEMPOTENT` changes something, but a second call with the same idempotency key changes nothing
    more. `EFFECT`, the default, runs once and is never repeated without an explicit decision or policy.
    """

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    EFFECT = "effect"


Egress: TypeAlias = bool | tuple[str, ...]
"""Whether data can leave by a call: False if it cannot; the names of the arguments that carry the addresses to which it goes,
sorted; True if nothing says where it goes."""
EgressLike: TypeAlias = bool | str | Iterable[str]
"""An `Egress`, or the names of the arguments in one text, such as `url`, or in any order."""


def as_egress(value: EgressLike) -> Egress:
    """Read the declaration of a tool.

    Raises:
        ToolDefinitionError: if it is neither a bool nor the names of arguments.
    """
    if isinstance(value, bool):
        return value
    given: object = value.split() if isinstance(value, str) else value
    names: list[object] = list(given) if isinstance(given, Iterable) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ToolDefinitionError(
            f"egress is True, False, or the names of the arguments that carry an address, as in egress='url'; not {value!r:.100}"
        )
    return tuple(sorted({str(name) for name in names}))


NamesLike: TypeAlias = str | Iterable[str]
"""Names, in one text such as `id sent_at` or in any order; `*` for all."""
ALL: Final = ("*",)


def as_own(names: NamesLike) -> tuple[str, ...]:
    """Read the names of the fields of a result for which a service vouches.

    Raises:
        ToolDefinitionError: if they are not texts.
    """
    return _as_names(names, "own is the names of fields of a result, as in own='id sent_at', or '*'")


def as_identifiers(names: NamesLike) -> tuple[str, ...]:
    """Read the names of the fields of a result that name things of a service.

    Raises:
        ToolDefinitionError: if they are not texts.
    """
    return _as_names(names, "identifiers is the names of fields of a result, as in identifiers='channel', or '*'")


def as_decides(names: NamesLike) -> tuple[str, ...]:
    """Read the names of the arguments that decide what a call does.

    Raises:
        ToolDefinitionError: if they are not texts.
    """
    return _as_names(names, "decides is the names of arguments, as in decides='to amount', or '*'")


def _as_names(names: NamesLike, meaning: str) -> tuple[str, ...]:
    given: object = names.split() if isinstance(names, str) else names
    listed: list[object] = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(name, str) and name for name in listed):
        raise ToolDefinitionError(f"{meaning}; not {names!r:.100}")
    return ALL if "*" in listed else tuple(sorted({str(name) for name in listed}))


@frozen(eq=False, repr=False)
class ToolSpec(EncodeOnce):
    """The definition of a tool, as it is offered to a model.

    Attributes:
        name: the name by which a model calls it.
        description: what it does and when to use it, for the model.
        parameters: a JSON Schema of type object.
        effect: its effect on the outside world; not sent to the model.
        definition: a hash of the definition if another program defines the tool, such as an MCP server; else empty.
        pinned: the hash of the definition that was first seen or last approved; a call waits for a decision while the current
            definition is another one.
        strict: whether arguments that do not satisfy the schema are never coerced; not sent to the model.
        egress: whether data can leave by a call, and by which arguments; not sent to the model. This and the next three matter where
            it is known who wrote what a model has read, as with `approve="untrusted"`.
        own: the names of the fields of a result, at any depth, whose words the service vouches for, such as `id` or `sent_at`; `*` for
            all of them. Everything else in a result may be the words of somebody else.
        identifiers: the names of fields whose words somebody else may have chosen, and which name a thing of the service, such as
            the name of a channel. A program may pass such a field on as a whole argument; as a text it is foreign.
        decides: the names of the arguments that decide whom and what a call reaches; `*` for all of them, and empty for none. The others
            are contents, which may be the words of somebody else.

    Raises:
        ToolDefinitionError: if `egress` is neither a bool nor the names of arguments, or one of the others has no names.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect = field(default=Effect.EFFECT, converter=Effect)
    definition: str = field(default="", kw_only=True)
    pinned: str = field(default="", kw_only=True)
    strict: bool = field(default=False, kw_only=True)
    egress: Egress = field(default=False, converter=as_egress, metadata=UNCHECKED, kw_only=True)
    own: tuple[str, ...] = field(default=(), converter=as_own, metadata=UNCHECKED, kw_only=True)
    identifiers: tuple[str, ...] = field(default=(), converter=as_identifiers, metadata=UNCHECKED, kw_only=True)
    decides: tuple[str, ...] = field(default=ALL, converter=as_decides, metadata=UNCHECKED, kw_only=True)

    __attrs_post_init__ = check_types

    def does_decide(self, argument: str) -> bool:
        """Return whether an argument decides whom and what a call reaches."""
        return argument in self.decides or self.decides == ALL

    def may_carry(self, argument: str) -> bool:
        """Return whether data can leave by an argument."""
        return self.egress if isinstance(self.egress, bool) else argument in self.egress


ANSWER_TOOL = "give_final_answer"
"""The name of the tool with which a model gives a structured answer if its API enforces no schema for answers."""


@frozen(eq=False, repr=False)
class ToolCall(Value):
    """One call of a tool by a model.

    Attributes:
        id: the provider's id of the call; unique within one response only, and empty if the provider sends none.
        name: the name of the tool.
        arguments_json: the arguments as JSON text, exactly as the model sent them, so that the history is byte-stable.
        provider_data: data that a wire format must send back with the call, by the name of the wire format.
        repairs: the repairs that were needed to parse the call from text, and to coerce its arguments to the types of the
            schema; empty for a call that runs as a tool API has sent it.
        rejection: why the call must not run although it was found, in words for the model; empty for an ordinary call. An
            executor rejects such a call, whatever interceptors make of its arguments.
    """

    id: str
    name: str
    arguments_json: str = "{}"
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, kw_only=True)
    repairs: tuple[str, ...] = field(default=(), converter=tuple[str, ...], kw_only=True)
    rejection: str = field(default="", kw_only=True)

    __attrs_post_init__ = check_types

    @property
    def arguments(self) -> JsonObject:
        """The arguments as an immutable mapping, parsed on each access; empty text stands for no arguments.

        Raises:
            MalformedArguments: if the text is not a JSON object.
        """
        parsed = parse_arguments(self.arguments_json)
        try:
            return freeze_object(parsed)
        except NotJson as error:
            raise _malformed(error) from error

    def matches(self, other: ToolCall) -> bool:
        """Return whether another call names the same tool and has equal arguments; its id may be another one."""
        if self is other or (self.name, self.arguments_json) == (other.name, other.arguments_json):
            return True
        try:
            return self.name == other.name and self.arguments == other.arguments
        except MalformedArguments:
            return False

    def with_arguments(self, arguments: Mapping[str, object]) -> ToolCall:
        """Return a copy with these arguments instead.

        Raises:
            NotJson: if the arguments have no JSON form.
        """
        return self.with_arguments_json(format_json(freeze_object(arguments)).decode())

    def with_arguments_json(self, arguments_json: str) -> ToolCall:
        """Return a copy with these arguments, as JSON text, instead."""
        return evolve(self, arguments_json=arguments_json)


def parse_arguments(arguments_json: str) -> dict[str, object]:
    """Parse the arguments of a call to plain data, which the caller may change.

    Raises:
        MalformedArguments: if the text is not JSON, is cut off, is not an object, contains a key twice, has more than 100,000
            entries in its lists and objects, or is nested too deeply.
    """
    if not arguments_json.strip():
        return {}
    try:
        parsed = parse_json(arguments_json, _MAX_ENTRIES)
    except TooManyEntries as error:
        raise MalformedArguments(
            f"the JSON of the arguments {error}: {_shorten(arguments_json)}; send fewer at once"
        ) from error
    except ValueError as error:
        what = "are cut off" if is_truncated_json(arguments_json) else "are not valid JSON"
        raise MalformedArguments(
            f"the arguments {what} ({error}): {_shorten(arguments_json)}; send one complete JSON object"
        ) from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise MalformedArguments(
            f"the arguments are a JSON {_kind(parsed)}, not an object: {_shorten(arguments_json)}; "
            "send one JSON object with the arguments by name"
        )
    # Only text with that many brackets can exceed the limit, so that usual arguments are not frozen twice.
    if arguments_json.count("{") + arguments_json.count("[") > MAX_DEPTH:
        try:
            freeze(parsed)  # arguments that a tool receives must also have an immutable form
        except NotJson as error:
            raise _malformed(error) from error
    _refuse_duplicate_key(parsed, arguments_json)
    return parsed


_MAX_ENTRIES: Final = 100_000
"""The entries of the lists and objects in the arguments of a call, which are read, checked and recorded one after the other."""

JSON_FROM_TEXT: Final = "text read as JSON"
RAW_CONTROLS: Final = "unescaped control characters"


def repair_arguments(arguments_json: str) -> tuple[str, str] | None:
    """Return the JSON object that malformed arguments stand for, and the repair that it takes; None if they stand for none.

    Models write an object into a JSON text, and leave out the escapes of line breaks, tabs and other control characters.
    """
    text = _escape_controls(arguments_json)
    try:
        value, repair = parse_json(text, _MAX_ENTRIES), RAW_CONTROLS
        if isinstance(value, str):
            text, repair = _escape_controls(value), JSON_FROM_TEXT
            value = parse_json(text, _MAX_ENTRIES)
        parse_arguments(text)
    except (ValueError, MalformedArguments):
        return None
    return (text, repair) if isinstance(value, dict) else None


# A text without its end is matched, too: the search would go on at each quote in it, and look for the end again.
_JSON_STRING: Final = re.compile(r'"(?>[^"\\]|\\.)*+"?', re.DOTALL)
_ESCAPES: Final = re.compile(r"((?>\\.)++)", re.DOTALL)
_CONTROLS: Final = {code: f"\\u{code:04x}" for code in range(0x20)}


def _escape_controls(text: str) -> str:
    """Return JSON text with the control characters in its strings as escapes; behind a backslash, they mean nothing and stay."""
    return _JSON_STRING.sub(_escape_string, text)


def _escape_string(string: re.Match[str]) -> str:
    parts = _ESCAPES.split(string[0])
    parts[::2] = [part.translate(_CONTROLS) for part in parts[::2]]
    return "".join(parts)


def _malformed(error: NotJson) -> MalformedArguments:
    return MalformedArguments(f"the arguments cannot be used: {error}")


def _refuse_duplicate_key(parsed: dict[str, object], arguments_json: str) -> None:
    # Every key has a colon, and colons are counted much faster than keys are compared; others are in texts.
    if arguments_json.count(":") <= _count_keys(parsed):
        return
    key = duplicate_key(arguments_json)
    if key is not None:
        raise MalformedArguments(
            f"the arguments contain {key!r} twice: {_shorten(arguments_json)}; send each argument once"
        )


def _count_keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum([_count_keys(item) for item in value.values() if isinstance(item, dict | list)])
    return sum([_count_keys(item) for item in value if isinstance(item, dict | list)])


def _kind(value: object) -> str:
    return {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}[type(value)]


def _shorten(text: str, max_length: int = 200) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}… ({len(text)} characters)"


ContentPart: TypeAlias = Text | Image | Audio | Document
"""A part of a user message or of a tool's result."""


MAY_HAVE_RUN: Final = " [The call may have taken effect; find out before you make it again.]"
"""The end of the text of a call that did not succeed and may have run."""


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
    """An error as data, which can be stored and sent to a model.

    Attributes:
        type: the name of the error class.
        message: the message, for models and people.
        path: the JSON path in the arguments or the result; may be empty.
        exception: the exception, in the process that raised it. It is neither compared nor stored: None after loading,
            copying or pickling, and in the outcomes of tools.
    """

    type: str
    message: str
    path: str = ""
    exception: BaseException | None = field(default=None, eq=False, repr=False, kw_only=True)

    def __reduce__(self) -> tuple[Callable[..., ErrorInfo], tuple[str, str, str]]:
        """Copy and pickle without the exception, which may hold anything."""
        return ErrorInfo, (self.type, self.message, self.path)

    __attrs_post_init__ = check_types

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        """Describe an exception and refer to it; an empty or failing message is replaced by the name of its class.

        The message of a group has those of its exceptions, and notes follow the message that they were added to.
        """
        path = getattr(error, "path", "")
        try:
            message = _message_of(error)
        except Exception:  # noqa: BLE001  # an error in the message of an error must not hide the error
            message = ""
        name = type(error).__name__
        return cls(name, message or name, path if isinstance(path, str) else "", exception=error)


def _message_of(error: BaseException) -> str:
    lines = [str(error), *getattr(error, "__notes__", ())]
    if isinstance(error, BaseExceptionGroup):
        lines += [f"{type(inner).__name__}: {_message_of(inner)}" for inner in error.exceptions[:_MAX_IN_GROUP]]
    return "\n".join(lines)


_MAX_IN_GROUP = 10


def _as_executions(executions: Iterable[ToolExecution]) -> tuple[ToolExecution, ...]:
    return tuple(executions)


@frozen(eq=False, repr=False, kw_only=True)
class ToolExecution(Value):
    """The outcome of one tool call.

    Attributes:
        id: the id of this execution.
        key: the idempotency key, `<execution id>/<step number>/<call index>`; of a call that a program makes, the key of the
            call that runs the program, followed by `/program/<number>`.
        call: the call as it ran; an interceptor or a reviewer may have changed it.
        status: how it ended.
        value: the result as JSON; None unless it succeeded.
        content: what the model sees in place of `value`, if that differs: images, or a part of a result that does not fit.
        uncut: the content before it was cut because it did not fit; empty if the value was cut, None if nothing was.
        error: the error; None if it succeeded.
        may_have_run: whether the call may have had an effect although it did not succeed.
        started_at: when the tool started, or when the call was settled without running it.
        ended_at: when it ended.
        inner: the outcomes of the calls that the tool made itself, such as those of a program, in order.
        label: who had a part in the value; None where that is not known, so that it counts as foreign.
        endorsed: the arguments whose values the person who approved the call counts as his own (`Approve.endorse`).
    """

    id: str
    key: str
    call: ToolCall
    status: ToolStatus = field(converter=ToolStatus)
    value: JsonValue = field(default=None, converter=freeze)
    content: tuple[ContentPart, ...] | None = field(default=None, converter=optional(tuple[ContentPart, ...]))
    uncut: tuple[ContentPart, ...] | None = field(default=None, converter=optional(tuple[ContentPart, ...]))
    error: ErrorInfo | None = None
    may_have_run: bool = False
    started_at: datetime
    ended_at: datetime
    inner: tuple[ToolExecution, ...] = field(default=(), converter=_as_executions)
    label: Label | None = field(default=None, repr=False)
    endorsed: tuple[str, ...] = field(default=(), converter=tuple[str, ...], repr=False)

    __attrs_post_init__ = check_types

    @classmethod
    def of(
        cls,
        call: ToolCall,
        status: ToolStatus,
        *,
        key: str,
        id: str,  # noqa: A002  # names the field
        at: datetime,
        value: object = None,
        content: Sequence[ContentPart] | None = None,
        error: ErrorInfo | None = None,
        may_have_run: bool = False,
        inner: Iterable[ToolExecution] = (),
    ) -> ToolExecution:
        """Return the outcome of a call that started and ended at one time, such as one that did not run.

        Args:
            call: the call.
            status: how it ended.
            key: the idempotency key of the call.
            id: the id of the execution.
            at: when it was settled.
            value: the result as JSON.
            content: what the model sees in place of the value.
            error: the error; None if it succeeded.
            may_have_run: whether the call may have had an effect although it did not succeed.
            inner: the outcomes of the calls that the tool made itself.
        """
        return cls(
            id=id,
            key=key,
            call=call,
            status=status,
            value=value,
            content=content,
            error=error,
            may_have_run=may_have_run,
            started_at=at,
            ended_at=at,
            inner=inner,
        )

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.call.name

    @property
    def flat(self) -> tuple[ToolExecution, ...]:
        """The outcome, followed by those of the calls inside it."""
        return (self, *self.inner)

    @property
    def arguments(self) -> JsonObject:
        """The arguments of the call; empty if they were malformed, in which case it did not run."""
        try:
            return self.call.arguments
        except MalformedArguments:
            return JsonObject()

    @property
    def result(self) -> JsonValue:
        """The result as JSON; the same as `value`."""
        return self.value

    @property
    def succeeded(self) -> bool:
        """Whether the tool ran and returned."""
        return self.status is ToolStatus.SUCCEEDED

    @property
    def origin(self) -> Label:
        """Who had a part in the outcome; one without a label is that of its tool."""
        return foreign(self.name, kind=SourceKind.TOOL, key=self.key) if self.label is None else self.label

    @property
    def has_error(self) -> bool:
        """Whether it did not succeed."""
        return self.status is not ToolStatus.SUCCEEDED

    @property
    def error_message(self) -> str:
        """The message of the error; empty if there is none."""
        return self.error.message if self.error else ""

    @property
    def was_blocked(self) -> bool:
        """Whether an interceptor or an ordering rule prevented the call."""
        return self.status is ToolStatus.BLOCKED

    @property
    def duration_ms(self) -> float:
        """The duration in milliseconds."""
        return (self.ended_at - self.started_at).total_seconds() * 1000

    @property
    def text(self) -> str:
        """What the model sees, as text: the result (JSON unless it is a string), or the error, and whether the call may have run."""
        if self.content is not None:
            return "".join(part.text for part in self.content if isinstance(part, Text))
        if self.error is not None:
            return f"{self.error.type}: {self.error.message}{MAY_HAVE_RUN if self.may_have_run else ''}"
        return self.value if isinstance(self.value, str) else format_json(self.value).decode()

    @property
    def parts(self) -> tuple[ContentPart, ...]:
        """What the model sees, as parts: `content`, or else `text` as a single part."""
        return self.content if self.content is not None else (Text(self.text),)

    def with_value(self, value: object, content: Sequence[ContentPart] | None = None) -> ToolExecution:
        """Return a copy that succeeded with this value.

        Args:
            value: the result as JSON.
            content: what the model sees in place of the value; None to show the value.

        Raises:
            NotJson: if the value has no JSON form.
        """
        return evolve(
            self,
            status=ToolStatus.SUCCEEDED,
            value=value,
            content=content,
            uncut=None,
            error=None,
            may_have_run=False,
        )

    def with_error(self, error: ErrorInfo, status: ToolStatus = ToolStatus.FAILED) -> ToolExecution:
        """Return a copy that ended with this error."""
        return evolve(self, status=status, value=None, content=None, uncut=None, error=error)

    def with_cut(self, content: Sequence[ContentPart]) -> ToolExecution:
        """Return a copy of which the model sees this content, a part of what it saw before. The rest stays readable."""
        return evolve(self, content=content, uncut=() if self.content is None else self.content)

    def with_key(self, key: str, id: str, call: ToolCall) -> ToolExecution:  # noqa: A002  # names the field
        """Return the outcome as that of another call; a reference to the rest of a cut result names that call.

        The calls that its program made have their places below that call; their ids are their keys.
        """
        content = self.content
        if self.uncut is not None and content is not None:
            old, new = reference_argument(self.key), reference_argument(key)
            content = tuple([Text(part.text.replace(old, new)) if isinstance(part, Text) else part for part in content])
        keys = [f"{key}{inner.key.removeprefix(self.key)}" for inner in self.inner]
        moved = [inner.with_key(new, new, inner.call) for inner, new in zip(self.inner, keys, strict=True)]
        return evolve(self, key=key, id=id, call=call, content=content, inner=moved)


def reference_argument(key: str) -> str:
    """Return the argument by which a model reads the whole result of a call."""
    return f"reference={format_json(key).decode()}"


@frozen(eq=False, repr=False)
class ToolExchange(Value):
    """A tool call with its execution: the only form in which a message holds a call.

    Attributes:
        call: the call as the model made it.
        execution: its outcome; `execution.call` is the call as it ran.
    """

    call: ToolCall
    execution: ToolExecution

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class ToolResult(Value):
    """The result of a tool, with separate content for the model. Tools may return one themselves.

    Attributes:
        value: the result as JSON; a value of any other kind becomes its form.
        content: what the model sees in place of the value; None to show the value.
        label: who else had a part in the value, in addition to what the tool declares; None for nobody.
    """

    value: JsonValue = field(default=None, converter=freeze_any)
    content: tuple[ContentPart, ...] | None = field(default=None, converter=optional(tuple[ContentPart, ...]))
    label: Label | None = field(default=None, repr=False, kw_only=True)


MALFORMED = "malformed_arguments"
"""The key under which malformed arguments are sent back to the model that wrote them."""


def arguments_text(call: ToolCall) -> str:
    """Return the arguments as JSON text that any provider accepts; an object is returned as the model sent it.

    Providers that parse the history refuse the whole conversation for one malformed call, so its arguments are repaired, or
    wrapped in an object.
    """
    text = call.arguments_json
    try:
        parse_arguments(text)
    except MalformedArguments:
        repaired = repair_arguments(text)
        if repaired is None:
            return format_json({MALFORMED: text}).decode()
        text = repaired[0]
    text = text.strip()
    if "\\ud" in text or "\\uD" in text:
        text = replace_lone_surrogates(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    return text if text.startswith("{") else "{}"


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Return the arguments as an object that any provider accepts; malformed arguments are repaired, or wrapped."""
    try:
        return parse_arguments(call.arguments_json)
    except MalformedArguments:
        repaired = repair_arguments(call.arguments_json)
        return {MALFORMED: call.arguments_json} if repaired is None else parse_arguments(repaired[0])


EXTRACTION, VALIDATION = "decision_extraction", "decision_validation"
"""The names of the pseudo-calls with which a step stores a decision that could not be parsed, or not be used."""
