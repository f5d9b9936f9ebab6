"""What a model decides in one step of the ReAct pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

from attrs import field, fields_dict, frozen

from agentloop.errors import AgentLoopError, InvalidArguments, MalformedArguments
from agentloop.modes.strict import NotStrict, strict_schema
from agentloop.tools.conversion import problems, structure
from agentloop.tools.fields import fields_of
from agentloop.tools.schema import SchemaBuilder, object_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.inference import InferenceRequest, ResponseFormat
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object, thaw
from agentloop.values.messages import Message, Part, ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange

NOTATION = "react"
"""Names the provider part that holds what a decision has besides thought, calls and answer."""

D = TypeVar("D", bound="ReActDecision")


class InvalidDecision(AgentLoopError):
    """A decision does not have what its class asks for; the message says what and where."""


@frozen
class ReActCall:
    """One call of a decision.

    Attributes:
        tool: the name of the tool.
        args: its arguments.
    """

    tool: str
    args: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


@frozen
class ReActDecision:
    """A thought, and then calls of tools or the answer.

    A subclass may have more fields, each of a type that has a JSON form: the model is told of them, and what it gives is kept
    with the message, from where `decision_of` reads it again. Decorate it with `attrs.frozen(kw_only=True)`.

    Attributes:
        thought: what the model thought.
        type: whether it calls or answers.
        tool: the tool that it calls, the first one of several; empty when it answers.
        args: the arguments of that call.
        answer: the answer; empty when it calls.
        calls: the calls, when there are several; empty when there is one or none.
    """

    thought: str = ""
    type: Literal["tool", "final"] = "final"
    tool: str = ""
    args: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    answer: str = ""
    calls: tuple[ReActCall, ...] = field(default=(), converter=tuple[ReActCall, ...])

    @property
    def all_calls(self) -> tuple[ReActCall, ...]:
        """The calls, whether one or several."""
        if self.calls:
            return self.calls
        return (ReActCall(self.tool, self.args),) if self.tool else ()


def further_schema(kind: type[ReActDecision]) -> Mapping[str, Any]:
    """Return the JSON Schema of the fields that a class of decisions has of its own: an object, possibly without properties.

    Raises:
        ToolDefinitionError: when a field's type has no JSON form.
    """
    known: Any = kind  # a class can be hashed, which mypy does not see
    return _further_schema(known)


@lru_cache(maxsize=64)
def _further_schema(kind: Any) -> Mapping[str, Any]:
    own = [one for one in fields_of(kind) or () if one.name not in fields_dict(ReActDecision)]
    builder = SchemaBuilder()
    properties = {one.name: builder.schema(one.hint, f"{kind.__name__}.{one.name}") for one in own}
    return builder.finished(object_schema(properties, [one.name for one in own if one.required]))


def further_names(kind: type[ReActDecision]) -> tuple[str, ...]:
    """Return the names of the fields that a class of decisions has of its own."""
    return tuple(further_schema(kind)["properties"]) if kind is not ReActDecision else ()


def decision_of(decided: Message | Sequence[Part | ResponsePart], kind: type[D]) -> D:
    """Return the decision that a response or a message of an assistant stands for, whatever made it.

    Args:
        decided: the message, or its parts.
        kind: the class of the decision.

    Raises:
        InvalidDecision: when fields that the class has of its own are missing or of another form.
    """
    parts = decided.parts if isinstance(decided, Message) else decided
    calls = [_call(part) for part in parts if isinstance(part, ToolCall | ToolExchange)]
    first = calls[0] if calls else ReActCall("")
    return kind(
        thought="\n\n".join([part.text for part in parts if isinstance(part, Reasoning) and part.text]),
        type="tool" if calls else "final",
        tool=first.tool,
        args=first.args,
        answer="".join([part.text for part in parts if isinstance(part, Text)]) if not calls else "",
        calls=calls if len(calls) > 1 else (),
        **_further(further_values(parts), kind),
    )


def further_values(parts: Sequence[Part | ResponsePart]) -> dict[str, Any]:
    """Return what parts hold for the further fields of a decision, as plain JSON data."""
    held: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, ProviderPart) and part.wire_format == NOTATION and isinstance(part.payload, Mapping):
            held.update(thaw(part.payload))
    return held


def _further(values: dict[str, Any], kind: type[ReActDecision]) -> dict[str, Any]:
    if kind is ReActDecision:
        return {}
    known: Any = kind  # a class can be hashed, which mypy does not see
    try:
        _validator(known).validate(values)
    except InvalidArguments as error:
        raise InvalidDecision(str(error)) from error
    made: dict[str, Any] = {}
    for one in fields_of(kind) or ():
        if one.name in values:
            try:
                made[one.name] = structure(values[one.name], one.hint)
            except Exception as error:  # whatever a class of the user raises
                told = "; ".join(f"at {path}: {message}" for path, message in problems(error, f"$.{one.name}"))
                raise InvalidDecision(told) from error
    return made


@lru_cache(maxsize=64)
def _validator(kind: Any) -> SchemaValidator:
    return SchemaValidator(freeze_object(further_schema(kind)), f"the schema of {kind.__name__}")


def _call(part: ToolCall | ToolExchange) -> ReActCall:
    call = part if isinstance(part, ToolCall) else part.call
    try:
        return ReActCall(call.name, call.arguments)
    except MalformedArguments:
        return ReActCall(call.name)


_TEXT: Final = {"type": "string"}


def decision_format(request: InferenceRequest, kind: type[ReActDecision]) -> ResponseFormat:
    """Return the form of a decision: in the strict subset where all that it holds can be expressed there."""
    try:
        return ResponseFormat(_strict(request, kind), name="decision")
    except NotStrict:
        return ResponseFormat(_open(request, kind), name="decision", strict=False)


def _strict(request: InferenceRequest, kind: type[ReActDecision]) -> dict[str, Any]:
    branches, definitions = [], dict[str, Any]()
    for spec in request.tools:
        made, inner = strict_schema(spec.parameters, f"{spec.name}.")
        branches.append(made)
        definitions |= inner
    args = {"anyOf": [*branches, {"type": "null"}]}
    name: dict[str, Any] = {"type": "string", "enum": [spec.name for spec in request.tools]}
    answer: dict[str, Any] = dict(_TEXT)
    if request.response_format is not None and request.response_format.schema is not None:
        answer, inner = strict_schema(request.response_format.schema, "answer.")
        definitions |= inner
    further, inner = strict_schema(further_schema(kind), "decision.")
    properties = {
        "thought": _TEXT,
        **further["properties"],
        "type": {"type": "string", "enum": ["tool", "final"]},
        "tool": {"anyOf": [name, {"type": "null"}]},
        "args": args,
        "calls": {"anyOf": [{"type": "array", "items": _closed({"tool": name, "args": args})}, {"type": "null"}]},
        "answer": {"anyOf": [answer, {"type": "null"}]},
    }
    if request.parallel_tool_calls is False:
        del properties["calls"]
    definitions |= inner
    return {**_closed(properties), **({"$defs": definitions} if definitions else {})}


def _open(request: InferenceRequest, kind: type[ReActDecision]) -> dict[str, Any]:
    name = {"type": "string", "enum": [spec.name for spec in request.tools]}
    call = {"tool": name, "args": {"type": "object"}}
    answer: Mapping[str, Any] = _TEXT
    if request.response_format is not None and request.response_format.schema is not None:
        answer = {}
    own = further_schema(kind)
    properties = {
        "thought": _TEXT,
        **own["properties"],
        "type": {"type": "string", "enum": ["tool", "final"]},
        **call,
        "calls": {"type": "array", "items": {"type": "object", "properties": call, "required": ["tool", "args"]}},
        "answer": answer,
    }
    if request.parallel_tool_calls is False:
        del properties["calls"]
    made = {"type": "object", "properties": properties, "required": ["thought", "type", *own.get("required", ())]}
    return {**made, "$defs": own["$defs"]} if "$defs" in own else made


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
