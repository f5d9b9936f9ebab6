"""Validation of request bodies against the types of OpenAI's package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter

REQUEST_TYPES: Mapping[str, tuple[Any, Any]] = {
    "openai-chat": (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
    "openai-responses": (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ),
}


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the cached validator of a type."""
    return TypeAdapter(kind)


def check_request(wire_format: str, body: Mapping[str, Any]) -> None:
    """Check that a body has the published type of a request, and no unknown entries.

    Raises:
        pydantic.ValidationError: when it does not have that type.
    """
    kind = REQUEST_TYPES[wire_format][bool(body.get("stream"))]
    unknown = body.keys() - get_type_hints(kind).keys()
    assert not unknown, unknown
    walk(adapter(kind).validate_python(body))


def walk(value: Any) -> None:
    """Iterate over nested values, since pydantic validates iterables lazily."""
    if isinstance(value, Mapping):
        for item in value.values():
            walk(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            walk(item)
