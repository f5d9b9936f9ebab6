"""Values refuse what could be written as JSON and not be read back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop.values import (
    InferenceOptions,
    InferenceResponse,
    Message,
    ToolCall,
    ToolChoice,
    ToolExecution,
    ToolStatus,
)
from agentloop.values.state import AgentContext
from agentloop.values.time_and_ids import SystemClock


def _execution(content: object) -> ToolExecution:
    now, call = SystemClock().now(), ToolCall("1", "pay")
    return ToolExecution(
        id="e",
        key="k",
        call=call,
        status=ToolStatus.SUCCEEDED,
        content=content,  # type: ignore[arg-type]
        started_at=now,
        ended_at=now,
    )


INVALID: dict[str, Callable[[], object]] = {
    "text among parts": lambda: InferenceResponse(("x",)),  # type: ignore[arg-type]
    "message among parts": lambda: InferenceResponse((Message.user("x"),)),  # type: ignore[arg-type]
    "None among calls": lambda: InferenceResponse((), quoted_calls=(None,)),  # type: ignore[arg-type]
    "number among repairs": lambda: ToolCall("1", "pay", repairs=(1,)),  # type: ignore[arg-type]
    "number among stop texts": lambda: InferenceOptions(stop=("a", 1)),  # type: ignore[arg-type]
    "text among messages": lambda: AgentContext("", ("x",)),  # type: ignore[arg-type]
    "text as content": lambda: _execution(("x",)),
    "unknown choice": lambda: ToolChoice("any"),  # type: ignore[arg-type]
    "unknown effort": lambda: InferenceOptions(reasoning_effort="huge"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", INVALID.values(), ids=INVALID)
def test_items_and_options_are_checked(make: Callable[[], object]) -> None:
    """An item of another type and an unknown option raise TypeError, also after valid values of the class."""
    InferenceResponse((ToolCall("1", "pay", repairs=("a",)),), quoted_calls=(ToolCall("1", "pay"),))
    with pytest.raises(TypeError, match=" is "):
        make()
