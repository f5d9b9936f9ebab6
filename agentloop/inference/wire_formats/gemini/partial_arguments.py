"""Arguments of a call that come in fragments, each with the path to where it belongs.

Sources: https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling, RFC 9535 (JSONPath)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from agentloop.values.json_text import parse_json
from agentloop.values.json_value import MOST_LEVELS

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>[0-9]{1,9})\]|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\["(?P<double>(?:[^"\\]|\\.)*)"\]"""
)
_VALUES = ("numberValue", "boolValue")


class PartialArguments:
    """Puts the fragments of a call's arguments together.

    A text may come in several fragments, one after the other under the same path; any other value comes whole.
    """

    __slots__ = ("_open", "_pieces", "_whole")

    def __init__(self) -> None:
        self._whole: dict[str, Any] = {}
        self._open: str | None = None
        self._pieces: list[str] = []

    def take(self, fragment: Mapping[str, Any]) -> None:
        """Take a fragment.

        Raises:
            ValueError: when its path leads nowhere.
            KeyError: when it has none.
            TypeError: when its path is no text.
        """
        path = fragment["jsonPath"]
        if not isinstance(path, str):
            raise TypeError("a path is a text")
        if path != self._open:
            self._settle()
        text = fragment.get("stringValue")
        if isinstance(text, str):
            self._open = path
            self._pieces.append(text)
            if not fragment.get("willContinue"):
                self._settle()
        elif "nullValue" in fragment:
            self._put(path, None)
        else:
            for name in _VALUES:
                if name in fragment:
                    self._put(path, fragment[name])

    def add(self, arguments: Mapping[str, Any]) -> None:
        """Take arguments that came whole."""
        self._whole.update(arguments)

    def finished(self) -> dict[str, Any]:
        """Return the arguments."""
        self._settle()
        return self._whole

    def _settle(self) -> None:
        if self._open is not None:
            path, text = self._open, "".join(self._pieces)
            self._open, self._pieces = None, []
            self._put(path, text)

    def _put(self, path: str, value: object) -> None:
        steps = _steps(path)
        held: Any = self._whole
        for step, following in pairwise(steps):
            held = _entered(held, step, [] if isinstance(following, int) else {})
        _entered(held, steps[-1], None)
        held[steps[-1]] = value


def _entered(held: Any, step: str | int, fresh: Any) -> Any:
    """Return what stands at a step, put there when nothing does; the elements of an array come in order."""
    if isinstance(held, list) and isinstance(step, int):
        if step == len(held):
            held.append(fresh)
        if step < len(held):
            return held[step]
    if isinstance(held, dict) and isinstance(step, str):
        return held.setdefault(step, fresh)
    raise ValueError(f"the path to {step!r} leads nowhere")


def _steps(path: str) -> list[str | int]:
    """Read a path such as `$.lines[0].text`."""
    steps: list[str | int] = []
    place = 1
    while place < len(path) and len(steps) < MOST_LEVELS:
        found = _STEP.match(path, place)
        if found is None:
            break
        steps.append(_step(found))
        place = found.end()
    if path[:1] != "$" or place < len(path) or not steps:
        raise ValueError(f"the path {path[:200]!r} leads nowhere")
    return steps


def _step(found: re.Match[str]) -> str | int:
    if found["index"] is not None:
        return int(found["index"])
    if found["name"] is not None:
        return found["name"]
    quoted = found["double"]
    if quoted is None:
        quoted = re.sub(r'\\\'|"', lambda mark: "'" if mark[0] == "\\'" else '\\"', found["single"])
    text = parse_json(f'"{quoted}"')
    assert isinstance(text, str)  # noqa: S101  # a quoted text
    return text
