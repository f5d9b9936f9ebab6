"""Whole answers of generateContent.

Source: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.gemini.answers import AnswerReader
from agentloop.inference.wire_formats.http_errors import not_an_answer
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.inference.wire_formats.whole_answer import read_whole_answer
from agentloop.values.inference_response import InferenceResponse


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer: an object, or the array of chunks that a stream is when it is not asked for as events.

    Raises:
        InferenceError: typed by status and body.
    """

    def read(data: Any) -> InferenceResponse:
        reader = _read(_chunks(data))
        if not reader.has_begun or (isinstance(data, list) and not reader.has_ended):
            raise not_an_answer("the answer holds no candidate, or ends before it does", status, headers, body)
        return reader.response()

    return read_whole_answer(status, headers, body, failure=_failure, read=read, what="generated content")


def has_failed(data: Any) -> bool:
    """Say whether this tells an error instead of an answer."""
    return isinstance(data, dict) and bool(data.get("error")) and not data.get("candidates")


def _chunks(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _failure(data: Any) -> Any:
    return next((chunk for chunk in _chunks(data) if has_failed(chunk)), None)


def _read(chunks: list[Any]) -> AnswerReader:
    reader = AnswerReader(ResponseBuilder())
    for chunk in chunks:
        reader.take(chunk)
    return reader
