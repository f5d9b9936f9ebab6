"""Tool calls as text for people: whole, in order, and never alike for two different calls.

Values are rendered as JSON on one line. Characters that a person cannot see, or cannot tell from others, are written as JSON
escapes, so that a rendered value can be pasted back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256

from agentloop.errors import MalformedArguments
from agentloop.values.json import JsonValue, format_json
from agentloop.values.tool_calls import ToolCall
from agentloop.values.visible_text import quote_text, render_text

# --- calls ----------------------------------------------------------------------------------------------------------

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_MIN_SHOWN = 40


def render_call(call: ToolCall, *, max_length: int | None = None) -> str:
    """Render a call as one would write it by hand: `find(name="Ada", limit=3)`.

    Args:
        call: the call; arguments that are no JSON object are rendered as the text that the model sent.
        max_length: the number of characters after which the text is cut; a cut text ends in the number of the characters that
            are missing, and in a digest of the whole text.
    """
    try:
        arguments = call.arguments
    except MalformedArguments:
        rendered = f"{_render_name(call.name)}({render_text(call.arguments_json)})"
    else:
        listed = ", ".join([f"{_render_name(name)}={render_value(value)}" for name, value in arguments.items()])
        rendered = f"{_render_name(call.name)}({listed})"
    return rendered if max_length is None else shorten(rendered, max_length)


def render_arguments(call: ToolCall) -> list[tuple[str, str]]:
    """Render the arguments of a call one by one, as pairs of name and value, in the order in which the model sent them.

    Arguments that are no JSON object are one pair, with an empty name and the text that the model sent.
    """
    try:
        arguments = call.arguments
    except MalformedArguments:
        return [("", render_text(call.arguments_json))]
    return [(_render_name(name), render_value(value)) for name, value in arguments.items()]


def shorten(rendered: str, max_length: int) -> str:
    """Cut a rendered text that is longer, and append how much is missing and a digest of the whole.

    Args:
        rendered: the text.
        max_length: the maximum number of its characters that are kept.
    """
    if len(rendered) <= max_length:
        return rendered
    kept = max(max_length, _MIN_SHOWN)
    digest = sha256(rendered.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{rendered[:kept]}… [{len(rendered) - kept:,} more characters, sha256 {digest}]"


def render_tool_name(call: ToolCall) -> str:
    """Render the name of the tool of a call; a name of unusual characters is quoted."""
    return _render_name(call.name)


def _render_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote_text(name, is_alone=False)


# --- values ---------------------------------------------------------------------------------------------------------


def render_value(value: JsonValue) -> str:
    """Render a JSON value on one line, as JSON in which everything is visible."""
    # Terminals show right-to-left texts beside each other in reverse order: items, or a name and its value.
    return render_text(value) if isinstance(value, str) else "".join(_pieces(value))


def _pieces(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield quote_text(value, is_alone=False)
    elif isinstance(value, Mapping):
        yield "{"
        for index, (name, item) in enumerate(value.items()):
            yield f"{', ' if index else ''}{quote_text(name, is_alone=False)}: "
            yield from _pieces(item)
        yield "}"
    elif isinstance(value, tuple | list):
        yield "["
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(item)
        yield "]"
    else:
        yield format_json(value).decode()
