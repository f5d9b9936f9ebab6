"""Errors that were recorded, raised again."""

from __future__ import annotations

from agentloop import errors
from agentloop.errors import InferenceError
from agentloop.values.tool_execution import ErrorInfo


def recorded_error(recorded: ErrorInfo | None) -> Exception:
    """Return an error of the recorded class with the recorded message: one of agentloop's where it is one, else one like it."""
    if recorded is None:
        return InferenceError("the recorded inference failed")
    known: object = getattr(errors, recorded.type, None)
    if isinstance(known, type) and issubclass(known, InferenceError):
        return known(recorded.message)
    like_it: type[InferenceError] = type(recorded.type, (InferenceError,), {})
    return like_it(recorded.message)
