"""Whole answers of Ollama's own chat API.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-chat-completion
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.http_errors import error_in_answer, error_of, not_an_answer
from agentloop.inference.wire_formats.ollama.answers import AnswerReader
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_text import parse_json

_OK = range(200, 300)


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    if status not in _OK:
        raise error_of(status, headers, body)
    try:
        data = parse_json(body)
    except ValueError as error:
        raise not_an_answer(f"the answer is not JSON ({error})", status, headers, body) from error
    if has_failed(data):
        raise error_in_answer(data, status, headers)
    try:
        reader = AnswerReader(ResponseBuilder())
        reader.take(data)
        return reader.response()
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise not_an_answer("the answer has not the shape of a chat answer", status, headers, body) from error


def has_failed(data: Any) -> bool:
    """Say whether this tells an error instead of an answer."""
    return isinstance(data, dict) and bool(data.get("error"))
