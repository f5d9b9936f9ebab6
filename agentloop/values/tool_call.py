"""What a model asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from agentloop.errors import MalformedArguments, NotJson
from agentloop.values.json_text import format_json, parse_json
from agentloop.values.json_value import EMPTY_OBJECT, MOST_LEVELS, JsonObject, freeze, freeze_object
from agentloop.values.value import Value

_SHOWN = 200


def _as_tuple(repairs: Sequence[str]) -> tuple[str, ...]:
    return tuple(repairs)


@frozen(eq=False, repr=False)
class ToolCall(Value):
    """One call of a tool, as the model made it.

    Attributes:
        id: the provider's id of the call; unique within one answer only, and empty when the provider gives none.
        name: the name of the tool.
        arguments_json: the arguments as JSON text, exactly as the model sent them, so that history is byte-stable.
        provider_data: what a wire format must send back with the call, by the wire format's name.
        repairs: what had to be mended to read the call out of a text, in words; empty for calls of a tool API.
    """

    id: str
    name: str
    arguments_json: str = "{}"
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, kw_only=True)
    repairs: tuple[str, ...] = field(default=(), converter=_as_tuple, kw_only=True)

    @property
    def arguments(self) -> JsonObject:
        """The arguments as a read-only mapping, parsed at each access; no text at all counts as no arguments.

        Raises:
            MalformedArguments: when the text is not a JSON object.
        """
        parsed = parse_arguments(self.arguments_json)
        try:
            return freeze_object(parsed)
        except NotJson as error:
            raise _unusable(error) from error

    def with_arguments(self, arguments: Mapping[str, object]) -> ToolCall:
        """Return the same call with other arguments.

        Raises:
            NotJson: when the arguments have no JSON form.
        """
        return self.with_arguments_json(format_json(freeze_object(arguments)).decode())

    def with_arguments_json(self, arguments_json: str) -> ToolCall:
        """Return the same call with other arguments, given as JSON text."""
        return ToolCall(self.id, self.name, arguments_json, provider_data=self.provider_data, repairs=self.repairs)


def parse_arguments(arguments_json: str) -> dict[str, object]:
    """Parse the arguments of a call to plain data that a tool may keep.

    Raises:
        MalformedArguments: when the text is not JSON, is cut off, is JSON but not an object, or is nested too deeply.
    """
    if not arguments_json.strip():
        return {}
    try:
        parsed = parse_json(arguments_json)
    except ValueError as error:
        what = "are cut off" if _is_cut_off(arguments_json) else "are not valid JSON"
        raise MalformedArguments(
            f"the arguments {what} ({error}): {_shortened(arguments_json)}; send one complete JSON object"
        ) from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise MalformedArguments(
            f"the arguments are a JSON {_kind(parsed)}, not an object: {_shortened(arguments_json)}; "
            "send one JSON object with the arguments by name"
        )
    if arguments_json.count("{") + arguments_json.count("[") > MOST_LEVELS:
        try:
            freeze(parsed)  # what a tool gets can also be kept as a value
        except NotJson as error:
            raise _unusable(error) from error
    return parsed


def _unusable(error: NotJson) -> MalformedArguments:
    return MalformedArguments(f"the arguments cannot be used: {error}")


def _is_cut_off(text: str) -> bool:
    """Say whether the JSON could be completed: it is well-formed up to its end, but an object or array is left open."""
    closers: list[str] = []
    in_text = escaped = False
    for character in text:
        if in_text:
            in_text = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_text = True
        elif character in "{[":
            closers.append("}" if character == "{" else "]")
        elif character in "}]" and (not closers or closers.pop() != character):
            return False
    return bool(closers) or in_text


def _kind(value: object) -> str:
    return {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}[type(value)]


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
