"""Decisions of the ReAct pattern: what a model decides in one step, and the schema for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

from attrs import field, fields_dict, frozen

from agentloop.errors import AgentLoopError, InvalidArguments, MalformedArguments
from agentloop.models.modes.strict import NotStrict, closed_object, strict_schema
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
"""The wire format of the provider part that stores the extra fields of a decision."""

WRAPPED = "decision"
"""The key of the object around a decision, where a provider enforces its schema."""

D = TypeVar("D", bound="ReActDecision")


class InvalidDecision(AgentLoopError):
    """A decision lacks fields of its class or has them in another form; the message states which and where."""


@frozen
class ReActCall:
    """One call of a decision.

    Attributes:
        tool: the name of the tool.
        args: the arguments.
    """

    tool: str
    args: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


@frozen
class ReActDecision:
    """A thought, followed by tool calls or the answer.

    A subclass may add fields of types with a JSON form. The prompt describes them to the model, their values are stored with
    the message, and `decision_of` restores them. Decorate a subclass with `attrs.frozen(kw_only=True)`.

    Attributes:
        thought: the model's reasoning.
        type: `tool` for calls, `final` for the answer.
        tool: the name of the first tool to call; empty for an answer.
        args: the arguments of that call.
        answer: the answer; empty for calls.
        calls: all calls if there are several; else empty.
    """

    thought: str = ""
    type: Literal["tool", "final"] = "final"
    tool: str = ""
    args: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    answer: str = ""
    calls: tuple[ReActCall, ...] = field(default=(), converter=tuple[ReActCall, ...])

    @property
    def all_calls(self) -> tuple[ReActCall, ...]:
        """The calls, whether there is one or several."""
        if self.calls:
            return self.calls
        return (ReActCall(self.tool, self.args),) if self.tool else ()


def decision_of(message: Message | Sequence[Part | ResponsePart], decision_type: type[D]) -> D:
    """Return the decision that an assistant's message or a response represents, whichever driver created it.

    Args:
        message: the message, or the parts of a message or response.
        decision_type: the class of the decision.

    Raises:
        InvalidDecision: extra fields of the class are missing or have another form.
    """
    parts = message.parts if isinstance(message, Message) else message
    calls = [_react_call(part) for part in parts if isinstance(part, ToolCall | ToolExchange)]
    first = calls[0] if calls else ReActCall("")
    return decision_type(
        thought="\n\n".join([part.text for part in parts if isinstance(part, Reasoning) and part.text]),
        type="tool" if calls else "final",
        tool=first.tool,
        args=first.args,
        answer="".join([part.text for part in parts if isinstance(part, Text)]) if not calls else "",
        calls=calls if len(calls) > 1 else (),
        **_structure_extra_fields(extra_values(parts), decision_type),
    )


def _react_call(part: ToolCall | ToolExchange) -> ReActCall:
    call = part if isinstance(part, ToolCall) else part.call
    try:
        return ReActCall(call.name, call.arguments)
    except MalformedArguments:  # the validation of the call reports them
        return ReActCall(call.name)


def extra_values(parts: Sequence[Part | ResponsePart]) -> dict[str, Any]:
    """Return the values of a decision's extra fields that parts contain, as plain JSON data."""
    values: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, ProviderPart) and part.wire_format == NOTATION and isinstance(part.payload, Mapping):
            values.update(thaw(part.payload))
    return values


def _structure_extra_fields(values: dict[str, Any], decision_type: type[ReActDecision]) -> dict[str, Any]:
    """Convert the values of extra fields to the fields' types."""
    if decision_type is ReActDecision:
        return {}
    hashable_type: Any = decision_type  # mypy does not know that classes can be hashed
    try:
        _validator(hashable_type).validate(values)
    except InvalidArguments as error:
        raise InvalidDecision(str(error)) from error
    structured: dict[str, Any] = {}
    for item in fields_of(decision_type) or ():
        if item.name in values:
            try:
                structured[item.name] = structure(values[item.name], item.hint)
            except Exception as error:  # a class of the user may raise anything
                details = "; ".join(f"at {path}: {text}" for path, text in problems(error, f"$.{item.name}"))
                raise InvalidDecision(details) from error
    return structured


@lru_cache(maxsize=64)
def _validator(decision_type: Any) -> SchemaValidator:
    return SchemaValidator(freeze_object(extra_fields_schema(decision_type)), f"the schema of {decision_type.__name__}")


def extra_fields_schema(decision_type: type[ReActDecision]) -> Mapping[str, Any]:
    """Return the JSON Schema of the fields that a subclass adds: an object, with no properties if it adds none.

    Raises:
        ToolDefinitionError: the type of a field has no JSON form.
    """
    hashable_type: Any = decision_type  # mypy does not know that classes can be hashed
    return _extra_fields_schema(hashable_type)


@lru_cache(maxsize=64)
def _extra_fields_schema(decision_type: Any) -> Mapping[str, Any]:
    extra = [item for item in fields_of(decision_type) or () if item.name not in fields_dict(ReActDecision)]
    builder = SchemaBuilder()
    properties = {item.name: builder.schema(item.hint, f"{decision_type.__name__}.{item.name}") for item in extra}
    return builder.finish(object_schema(properties, [item.name for item in extra if item.required]))


def extra_field_names(decision_type: type[ReActDecision]) -> tuple[str, ...]:
    """Return the names of the fields that a subclass adds."""
    return tuple(extra_fields_schema(decision_type)["properties"]) if decision_type is not ReActDecision else ()


def decision_format(request: InferenceRequest, decision_type: type[ReActDecision]) -> ResponseFormat:
    """Return the response format of a decision: strict if the strict subset can express everything in it."""
    try:
        return ResponseFormat(_strict_decision_schema(request, decision_type), name="decision")
    except NotStrict:
        return ResponseFormat(_lenient_decision_schema(request, decision_type), name="decision", strict=False)


_TEXT: Final = {"type": "string"}
_TOOL_TYPE: Final = {"type": "string", "enum": ["tool"]}
_FINAL_TYPE: Final = {"type": "string", "enum": ["final"]}
_TYPE: Final = {"type": "string", "enum": ["tool", "final"]}


def _strict_decision_schema(request: InferenceRequest, decision_type: type[ReActDecision]) -> dict[str, Any]:
    """Return the schema of one decision, which is one of several whole objects: no key contradicts another one, and none is empty.

    Providers require an object at the root, so that the choice is one of its properties.
    """
    choice, definitions = request.tool_choice, dict[str, Any]()
    extra, inner = strict_schema(extra_fields_schema(decision_type), "decision.")
    definitions |= inner
    calls = []
    for spec in request.tools:
        args, inner = strict_schema(spec.parameters, f"{spec.name}.")
        if choice.allows(spec.name):
            definitions |= inner
            calls.append({"tool": {"type": "string", "enum": [spec.name]}, "args": args})
    decisions: list[dict[str, Any]] = [{"type": _TOOL_TYPE, **call} for call in calls]
    if calls and request.parallel_tool_calls is not False:
        items = {"anyOf": [closed_object(call) for call in calls]}
        decisions.append({"type": _TOOL_TYPE, "calls": {"type": "array", "items": items}})
    if not (choice.is_forced and calls):
        answer: dict[str, Any] = dict(_TEXT)
        if request.response_format is not None and request.response_format.schema is not None:
            answer, inner = strict_schema(request.response_format.schema, "answer.")
            definitions |= inner
        decisions.append({"type": _FINAL_TYPE, "answer": answer})
    # The thought comes first, so that the model reasons before it decides.
    branches = [closed_object({"thought": _TEXT, **extra["properties"], **decision}) for decision in decisions]
    schema = closed_object({WRAPPED: {"anyOf": branches}})
    return {**schema, **({"$defs": definitions} if definitions else {})}


def _lenient_decision_schema(request: InferenceRequest, decision_type: type[ReActDecision]) -> dict[str, Any]:
    name = {"type": "string", "enum": [spec.name for spec in request.tools]}
    call = {"tool": name, "args": {"type": "object"}}
    # Without enforcement, the schema only guides the model: arguments and answer are checked when they arrive.
    answer: Mapping[str, Any] = _TEXT
    if request.response_format is not None and request.response_format.schema is not None:
        answer = {}
    extra = extra_fields_schema(decision_type)
    properties = {
        "thought": _TEXT,
        **extra["properties"],
        "type": _TYPE,
        **call,
        "calls": {"type": "array", "items": {"type": "object", "properties": call, "required": ["tool", "args"]}},
        "answer": answer,
    }
    if request.parallel_tool_calls is False:
        del properties["calls"]
    required = ["thought", "type", *extra.get("required", ())]
    schema = {"type": "object", "properties": properties, "required": required}
    return {**schema, "$defs": extra["$defs"]} if "$defs" in extra else schema
