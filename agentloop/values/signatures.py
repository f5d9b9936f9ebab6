"""What functions of programs take."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def parameter_count(function: Callable[..., object]) -> int:
    """Return how many positional arguments a function has to get; one for a function without a signature, or that needs none.

    The count is 0 for a function that cannot be called with a positional argument alone: it takes none, or needs others by name.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # as some functions of the language have
        return 1
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        return 0
    positional = [each for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
    required = sum(each.default is each.empty for each in positional)
    takes_more = bool(positional) or any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return max(required, 1) if takes_more else 0
