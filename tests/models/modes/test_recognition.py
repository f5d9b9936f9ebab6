"""A token of a known notation is never a plain final answer, in any mode: law 39."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentloop.contracts import CanUseMode
from agentloop.models import TextMode, get_mode
from agentloop.models.modes.native import NativeMode
from agentloop.models.modes.selection import select_mode
from agentloop.models.text_calls import DEFAULT_FORMATS
from agentloop.values import InferenceRequest, InferenceResponse, Message, Text
from tests.drivers.test_mode_choice import Named
from tests.models.text_calls.mutations import TOOLS

MODES: dict[str, CanUseMode] = {
    **{name: get_mode(name) for name in ("native", "structured", "validated", "parsed")},
    "native, read": NativeMode(written_calls="read"),
    "native, shown": NativeMode(written_calls="shown"),
    "auto": select_mode("auto", Named()),
}


def texts() -> Iterator[str]:
    """Yield a token of each notation, next to the name of a tool: all that a server has left of a call."""
    for opening in dict.fromkeys(opening for each in DEFAULT_FORMATS for opening, _ in each.tags):
        yield f"{opening}pay"


def is_told(mode: CanUseMode, text: str) -> bool:
    """Whether somebody is told that a text has a token: by a call, a rejection or a quotation."""
    request = InferenceRequest((Message.user("Go on."),), "", TOOLS)
    parsed = mode.parse_response(InferenceResponse((Text(text),)), request)
    return bool(parsed.tool_calls or parsed.problem or parsed.quoted_calls or parsed.quoted_texts)


@pytest.mark.parametrize("name", MODES)
def test_a_token_of_a_notation_is_no_plain_answer(name: str) -> None:
    """It is a call, a rejection with its reason, or a quotation with an event."""
    assert [text for text in texts() if not is_told(MODES[name], text)] == []


class TakesTokensForText(TextMode):
    """Breaks law 39: what is no whole call is the answer."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response as it came if it has no calls."""
        parsed = super().parse_response(response, request)
        return parsed if any(not call.rejection for call in parsed.tool_calls) else response


def test_a_mode_that_breaks_the_law_is_noticed() -> None:
    """The check can fail."""
    assert not any(is_told(TakesTokensForText(), text) for text in texts())
