"""Whole answers of generateContent.

Source: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.gemini.answers import AnswerReader
from agentloop.inference.wire_formats.http_errors import error_in_answer, error_of, not_an_answer
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_text import parse_json

_OK = range(200, 300)


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer: an object, or the array of chunks that a stream is when it is not asked for as events.

    Raises:
        InferenceError: typed by status and body.
    """
    if status not in _OK:
        raise error_of(status, headers, body)
    try:
        data = parse_json(body)
    except ValueError as error:
        raise not_an_answer(f"the answer is not JSON ({error})", status, headers, body) from error
    chunks = data if isinstance(data, list) else [data]
    failed = next((chunk for chunk in chunks if has_failed(chunk)), None)
    if failed is not None:
        raise error_in_answer(failed, status, headers)
    try:
        reader = _read(chunks)
        if reader.has_begun and (reader.has_ended or not isinstance(data, list)):
            return reader.response()
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise not_an_answer("the answer has not the shape of generated content", status, headers, body) from error
    raise not_an_answer("the answer holds no candidate, or ends before it does", status, headers, body)


def has_failed(data: Any) -> bool:
    """Say whether this tells an error instead of an answer."""
    return isinstance(data, dict) and bool(data.get("error")) and not data.get("candidates")


def _read(chunks: list[Any]) -> AnswerReader:
    reader = AnswerReader(ResponseBuilder())
    for chunk in chunks:
        reader.take(chunk)
    return reader
