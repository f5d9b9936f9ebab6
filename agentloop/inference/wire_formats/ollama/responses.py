"""Whole answers of Ollama's own chat API.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-a-chat-completion
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.inference.wire_formats.ollama.answers import AnswerReader
from agentloop.inference.wire_formats.response_builder import ResponseBuilder
from agentloop.inference.wire_formats.whole_answer import read_whole_answer
from agentloop.values.inference_response import InferenceResponse


def decode_response(status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
    """Read an answer.

    Raises:
        InferenceError: typed by status and body.
    """
    return read_whole_answer(
        status, headers, body, failure=lambda data: data if has_failed(data) else None, read=_read, what="a chat answer"
    )


def _read(data: Any) -> InferenceResponse:
    reader = AnswerReader(ResponseBuilder())
    reader.take(data)
    return reader.response()


def has_failed(data: Any) -> bool:
    """Say whether this tells an error instead of an answer."""
    return isinstance(data, dict) and bool(data.get("error"))
