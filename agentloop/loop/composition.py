"""What a loop is made of, in few words, so that a record can tell it and a replay compare it."""

from __future__ import annotations

from typing import Any

from agentloop.interception.interceptor import name_of
from agentloop.loop.loop_parts import LoopParts
from agentloop.values.agent_state import AgentState


def composition_of(loop: LoopParts, state: AgentState) -> dict[str, Any]:
    """Return what a loop is made of, as plain JSON data: names only, nothing that could be secret.

    Args:
        loop: the loop.
        state: the state with which an execution begins; it is told whether its instructions are the loop's own.
    """
    driver = loop.driver
    mode = getattr(driver, "mode", None) or getattr(driver, "output", None)
    told = mode if isinstance(mode, str) else getattr(mode, "name", None)
    return {
        "driver": type(driver).__name__,
        **({"mode": told} if isinstance(told, str) else {}),
        "compiler": type(loop.compiler or getattr(driver, "compiler", None)).__name__,
        "executor": type(loop.executor).__name__,
        "tools": list(loop.tools.names),
        "interceptors": [name_of(layer) for layer in loop.stack.layers],
        "own_prompt": state.execution_count == 1 and state.context.system_prompt == loop.system_prompt,
        "typed": loop.output_form is not None,
    }
