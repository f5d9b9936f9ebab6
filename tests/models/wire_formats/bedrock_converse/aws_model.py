"""The service model of Bedrock that botocore ships: which requests are valid, and how answers and streams are read."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.eventstream import EventStream
from botocore.parsers import RestJSONParser
from botocore.session import Session
from botocore.validate import ParamValidator

_SERVICE = Session().get_service_model("bedrock-runtime")
_CONVERSE = _SERVICE.operation_model("Converse")
_STREAM = _SERVICE.operation_model("ConverseStream")


def problems(body: Mapping[str, Any]) -> list[str]:
    """Return what AWS would refuse about a request: by botocore's validation, and by enums, patterns and limits of the model."""
    shape = _CONVERSE.input_shape
    params = {"modelId": "anthropic.claude", **_decoded(shape, body)}
    report = ParamValidator().validate(params, shape)
    found = [report.generate_report()] if report.has_errors() else []
    return found or list(_constraints(shape, params, ""))


def _decoded(shape: Any, value: Any) -> Any:
    """Return a body with the bytes that botocore expects in place of base64."""
    if shape.type_name == "structure" and isinstance(value, dict) and not shape.is_document_type:
        return {k: _decoded(shape.members[k], v) if k in shape.members else v for k, v in value.items()}
    if shape.type_name == "list" and isinstance(value, list):
        return [_decoded(shape.member, item) for item in value]
    return base64.b64decode(value, validate=True) if shape.type_name == "blob" else value


def _constraints(shape: Any, value: Any, path: str) -> Iterator[str]:
    """Yield the places that have none of the values, do not match the pattern, or exceed the limit that the model documents."""
    limits = shape.metadata
    if shape.type_name == "structure" and not shape.is_document_type:
        for name, item in value.items():
            yield from _constraints(shape.members[name], item, f"{path}.{name}")
    elif shape.type_name == "list":
        for index, item in enumerate(value):
            yield from _constraints(shape.member, item, f"{path}[{index}]")
    elif shape.type_name == "string":
        if "enum" in limits and value not in limits["enum"]:
            yield f"{path}: {value!r} is none of {limits['enum']}"
        if "pattern" in limits and not re.fullmatch(limits["pattern"], value):
            yield f"{path}: {value!r} does not match {limits['pattern']}"
        if "max" in limits and len(value) > limits["max"]:
            yield f"{path}: {value!r} is longer than {limits['max']}"


def read_answer(body: bytes) -> dict[str, Any]:
    """Return a complete answer as boto3 returns it."""
    response = {"body": body, "status_code": 200, "headers": {}}
    parsed: dict[str, Any] = RestJSONParser().parse(response, _CONVERSE.output_shape)
    return parsed


def read_stream(data: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream as boto3 returns them.

    Raises:
        EventStreamError: for an exception in the stream.
        ParserError: for a stream with a wrong checksum.
    """
    shape = _STREAM.output_shape.members["stream"]
    parser = RestJSONParser()._event_stream_parser  # as botocore itself does
    return list(EventStream(_Chunks(data), shape, parser, "ConverseStream"))


class _Chunks:
    """The body of an HTTP response, as urllib3 has it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> Iterator[bytes]:
        """Yield the body in pieces."""
        for start in range(0, len(self._data), 13):
            yield self._data[start : start + 13]

    def close(self) -> None:
        """Do nothing."""


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return text, reasoning, calls, stop reason and usage of the events of a stream, as a user of boto3 collects them."""
    text = reasoning = end = ""
    calls: dict[int, list[str]] = {}
    usage: dict[str, Any] = {}
    for event in events:
        start = event.get("contentBlockStart", {})
        if "toolUse" in start.get("start", {}):
            call = start["start"]["toolUse"]
            calls[start["contentBlockIndex"]] = [call["toolUseId"], call["name"], ""]
        fragment = event.get("contentBlockDelta", {})
        delta = fragment.get("delta", {})
        text += delta.get("text", "")
        reasoning += delta.get("reasoningContent", {}).get("text", "")
        if "toolUse" in delta:
            calls[fragment["contentBlockIndex"]][2] += delta["toolUse"]["input"]
        end = event.get("messageStop", {}).get("stopReason", end)
        usage = event.get("metadata", {}).get("usage", usage)
    parsed = [(id_, name, json.loads(arguments or "{}")) for id_, name, arguments in calls.values()]
    return {"text": text, "reasoning": reasoning, "calls": parsed, "end": end, "usage": usage}
