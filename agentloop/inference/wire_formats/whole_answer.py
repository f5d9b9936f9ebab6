"""Answers that come in one piece: from status and body to a response or a typed error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentloop.inference.wire_formats.http_errors import error_in_answer, error_of, not_an_answer
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_text import parse_json

OTHER_SHAPE = (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError)
"""What comes of looking for something where it is not."""

_OK = range(200, 300)


def read_whole_answer(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    failure: Callable[[Any], object],
    read: Callable[[Any], InferenceResponse],
    what: str,
) -> InferenceResponse:
    """Read an answer.

    Args:
        status: the HTTP status.
        headers: the HTTP headers, by names in lower case.
        body: the whole body.
        failure: finds in the JSON what tells an error; None or something empty when nothing does.
        read: reads the JSON of an answer; what is not of its shape may raise whatever comes of looking for it.
        what: what an answer is called, for errors.

    Raises:
        InferenceError: typed by status and body.
    """
    if status not in _OK:
        raise error_of(status, headers, body)
    try:
        data = parse_json(body)
    except ValueError as error:
        raise not_an_answer(f"the answer is not JSON ({error})", status, headers, body) from error
    failed = failure(data)
    if failed:
        raise error_in_answer(failed, status, headers)
    try:
        return read(data)
    except OTHER_SHAPE as error:
        raise not_an_answer(f"the answer has not the shape of {what}", status, headers, body) from error
