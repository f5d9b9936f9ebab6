"""The form of an answer as providers accept it for strict output: an object in the strict subset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from agentloop.contracts.can_use_mode import ModeStream
from agentloop.drivers.modes.strict_schema import NotStrict, strict_schema, without_nulls
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_request import InferenceRequest, ResponseFormat
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_text import format_json, json_in_text
from agentloop.values.parts import Text

_VALUE = "answer"
_SHARED = ("$defs", "definitions")


@frozen
class StrictForm:
    """The form that is asked of an answer, and the strict one that is sent in its place.

    What is no object stands under one property of one, since providers refuse other roots. What may be left out may be null
    instead. A schema that the strict subset cannot express is sent as it is, without asking the provider to enforce it.

    Attributes:
        wanted: the form that is asked for.
        sent: the form that is sent.
        is_wrapped: whether the answer stands under a property of the one that comes.
    """

    wanted: ResponseFormat
    sent: ResponseFormat
    is_wrapped: bool

    def read(self, response: InferenceResponse) -> InferenceResponse:
        """Return the response with the answer in the form that was asked for; what has another form stays as it is."""
        if response.tool_calls or not response.text:
            return response
        try:
            data = json_in_text(response.text)
        except ValueError:
            return response
        found = data
        if self.is_wrapped and isinstance(found, dict) and found.keys() == {_VALUE}:
            found = found[_VALUE]
        if self.sent.strict:
            found = without_nulls(found, self.wanted.schema or {})
        if found is data or found == data:
            return response
        kept = [part for part in response.parts if not isinstance(part, Text)]
        return evolve(response, parts=(*kept, Text(format_json(found).decode())))


class FormStream(ModeStream):
    """Holds the text of a streamed answer back until it is whole, since it may come in another form than is asked for.

    Args:
        translated: what translates the pieces before.
    """

    def __init__(self, translated: ModeStream) -> None:
        self._translated = translated

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return what the piece means, apart from text."""
        return _without_text(self._translated.feed(delta))

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return what was held back, and the text."""
        held = _without_text(self._translated.close(response))
        return [*held, InferenceDelta("text", response.text)] if response.text else held


def _without_text(deltas: list[InferenceDelta]) -> list[InferenceDelta]:
    return [delta for delta in deltas if delta.kind != "text"]


def strict_form(offered: InferenceRequest, asked: InferenceRequest) -> StrictForm | None:
    """Return the strict form of an answer for which the provider is asked by a strict schema; None when nothing is to be done.

    Args:
        offered: the request as the model gets it.
        asked: the request before it was translated; a mode that asks for a form of its own has seen to it.
    """
    wanted = offered.response_format
    if wanted is None or wanted is not asked.response_format or wanted.schema is None or not wanted.strict:
        return None
    is_wrapped = wanted.schema.get("type") != "object"
    schema, shared, is_strict = _expressed(wanted.schema)
    if is_wrapped:
        schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE], "additionalProperties": False}
    sent = ResponseFormat({**schema, **shared}, wanted.name, is_strict)
    return None if sent == wanted else StrictForm(wanted, sent, is_wrapped)


def _expressed(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return a schema without its definitions, those, and whether they are in the strict subset."""
    try:
        strict, definitions = strict_schema(schema)
    except NotStrict:
        shared = {name: one for name, one in schema.items() if name in _SHARED}
        return {name: one for name, one in schema.items() if name not in _SHARED}, shared, False
    return strict, {"$defs": definitions} if definitions else {}, True
