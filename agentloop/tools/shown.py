"""What a model is shown of a tool's result, where the tool has a say in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from agentloop.errors import ToolFailed
from agentloop.tools.presentation import Presenter
from agentloop.values.parts import Media, Text
from agentloop.values.tool_execution import ContentPart
from agentloop.values.tool_result import ToolResult

Shown: TypeAlias = str | ContentPart | Sequence[str | ContentPart]
"""What a model can be shown: text, a part, or several of them."""
Show: TypeAlias = Callable[[Any], Shown]
"""A function of what a tool returned."""


def showing(show: Show, present: Presenter) -> Presenter:
    """Return a presenter whose results stand whole in the state, while the model is shown what the function makes of them."""

    def shown(result: Any) -> ToolResult:
        whole = present(result)
        try:
            return ToolResult(whole.value, _parts(show(result)))
        except Exception as error:
            raise ToolFailed(f"the tool ran, but what to show of its result could not be told: {error}") from error

    return shown


def _parts(shown: Shown) -> list[ContentPart]:
    given = [shown] if isinstance(shown, str | Text | Media) else list(shown)
    parts = [Text(one) if isinstance(one, str) else one for one in given]
    for part in parts:
        if not isinstance(part, Text | Media):
            raise TypeError(f"a model is shown text and media, not {type(part).__name__}")
    return parts
