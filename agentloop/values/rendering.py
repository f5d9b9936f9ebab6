"""Tool calls as text for people: whole, in order, and never alike for two different calls.

Whatever shows a call to a person takes its text from here, so that a call looks the same in a terminal, on a page and in an answer
of a server. Values are rendered as JSON on one line. Characters that a person cannot see, or cannot tell from others, are written
as JSON escapes, so that a rendered value can be pasted back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256

from agentloop.errors.kinds import MalformedArguments
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, format_json
from agentloop.values.tool_calls import ToolCall
from agentloop.values.visible_text import quote_text, render_text

# --- calls ----------------------------------------------------------------------------------------------------------

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_MIN_SHOWN = 40


DEFAULT_MARK = " (default)"
"""Follows the value of a parameter that a call leaves out."""
_NO_ARGUMENTS = "without arguments"


def render_call(call: ToolCall, *, defaults: JsonObject = EMPTY_OBJECT, max_length: int | None = None) -> str:
    """Render a call as one would write it by hand: `find(name="Ada", limit=3)`.

    Args:
        call: the call; arguments that are no JSON object are rendered as the text that the model sent.
        defaults: what its tool adds to the arguments, as in `PendingCall.defaults`.
        max_length: the number of characters after which the text is cut; a cut text ends in the number of the characters that
            are missing, and in a digest of the whole text.
    """
    listed = ", ".join([f"{name}={value}" if name else value for name, value in render_arguments(call, defaults)])
    rendered = f"{render_name(call.name)}({listed})"
    return rendered if max_length is None else shorten(rendered, max_length)


def render_arguments(call: ToolCall, defaults: JsonObject = EMPTY_OBJECT) -> list[tuple[str, str]]:
    """Render the arguments of a call one by one, as pairs of name and value, in the order in which the model sent them.

    Arguments that are no JSON object are one pair, with an empty name and the text that the model sent. The values of parameters
    that the call leaves out follow, and are marked as defaults.

    Args:
        call: the call.
        defaults: what its tool adds to the arguments, as in `PendingCall.defaults`.
    """
    try:
        pairs = [(render_name(name), render_value(value)) for name, value in call.arguments.items()]
    except MalformedArguments:
        pairs = [("", render_text(call.arguments_json))]
    # Right-to-left letters stand beside the mark.
    return [*pairs, *[(_render_path(path), f"{render_item(value)}{DEFAULT_MARK}") for path, value in defaults.items()]]


def render_lines(call: ToolCall, defaults: JsonObject = EMPTY_OBJECT) -> list[str]:
    """Render a call whole, as lines: its tool, then each argument and each default, indented.

    This is the text of a call wherever a person decides about it. No value has a line break.

    Args:
        call: the call.
        defaults: what its tool adds to the arguments, as in `PendingCall.defaults`.
    """
    pairs = render_arguments(call, defaults) or [("", _NO_ARGUMENTS)]
    return [render_tool_name(call), *[f"  {name} = {value}" if name else f"  {value}" for name, value in pairs]]


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
    return render_name(call.name)


def render_name(name: str) -> str:
    """Render the name of a tool or of an argument; one of unusual characters is quoted."""
    return name if _PLAIN_NAME.fullmatch(name) else quote_text(name, is_alone=False)


# --- values ---------------------------------------------------------------------------------------------------------


def render_value(value: JsonValue) -> str:
    """Render a JSON value on one line, as JSON in which everything is visible."""
    # Terminals show right-to-left texts beside each other in reverse order: items, or a name and its value.
    return render_text(value) if isinstance(value, str) else render_item(value)


def render_item(value: JsonValue) -> str:
    """Render a JSON value like `render_value`, for a line that has other text: right-to-left letters are escaped."""
    pieces: list[str] = []
    _write(value, pieces)
    return "".join(pieces)


def _write(value: JsonValue, pieces: list[str]) -> None:
    if isinstance(value, str):
        pieces.append(quote_text(value, is_alone=False))
    elif isinstance(value, Mapping):
        pieces.append("{")
        for index, (name, item) in enumerate(value.items()):
            pieces.append(f"{', ' if index else ''}{quote_text(name, is_alone=False)}: ")
            _write(item, pieces)
        pieces.append("}")
    elif isinstance(value, tuple | list):
        pieces.append("[")
        for index, item in enumerate(value):
            pieces.append(", " if index else "")
            _write(item, pieces)
        pieces.append("]")
    else:
        pieces.append(format_json(value).decode())


# --- paths ----------------------------------------------------------------------------------------------------------

EACH_ITEM = "*"
"""The step of a path that stands for each item of a list, and for each value of an object whose names are not known."""


def path_below(path: str, name: str) -> str:
    """Return the path of something inside of what a path leads to, such as `payment/currency`: a JSON Pointer without its first slash.

    Args:
        path: the path around it; empty for the arguments themselves.
        name: its name; one that is `EACH_ITEM` is escaped as `~2`.
    """
    escaped = name.replace("~", "~0").replace("/", "~1").replace(EACH_ITEM, "~2")
    return f"{path}/{escaped}" if path else escaped


def parameter_of(path: str) -> str:
    """Return the name of the parameter that a path begins with."""
    return _name_of(path.partition("/")[0])


def _render_path(path: str) -> str:
    return "/".join([step if step == EACH_ITEM else render_name(_name_of(step)) for step in path.split("/")])


def _name_of(step: str) -> str:
    return step.replace("~2", EACH_ITEM).replace("~1", "/").replace("~0", "~")
