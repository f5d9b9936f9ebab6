"""Second attempts at a call: an effect that may have taken place does not take place again, unless code says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.errors import ContractViolation
from agentloop.values.forms import shorten
from agentloop.values.points import AroundPoint, AroundToolUse
from agentloop.values.tool_calls import Effect, ToolExecution

_MAX_SHOWN = 1_000
PROCEEDED_AGAIN = "proceeded again with a call of"
"""By these words of the message, a law suite finds what was refused."""


def check_second_attempt(
    layer: CanIntercept, point: AroundPoint[Any], outcomes: Sequence[object], *, is_running: bool
) -> None:
    """Refuse that a layer proceeds again with a call that may have run.

    A layer may proceed again while the tool has not begun, if the tool is pure or idempotent, if the tool declares retries
    (`@tool(retry=…)`), and if the layer declares `repeats_effects`.

    Args:
        layer: the layer.
        point: the point at which it proceeds again.
        outcomes: the outcomes of its earlier attempts.
        is_running: whether an earlier attempt of the layer is still running, so that it is unknown whether the tool will begin.

    Raises:
        ContractViolation: the call may have run.
    """
    if not isinstance(point, AroundToolUse) or point.tool.effect is not Effect.EFFECT:
        return
    if not (is_running or point.may_have_run) or point.policy.retry is not None:
        return
    if getattr(layer, "repeats_effects", False):
        return
    before = outcomes[-1] if outcomes else None
    ended = (
        f"; the attempt before ended so: {shorten(before.text, _MAX_SHOWN)}"
        if isinstance(before, ToolExecution)
        else ""
    )
    raise ContractViolation(
        f"the interceptor {layer.name} {PROCEEDED_AGAIN} {point.call.name!r} that may have run, and the tool has "
        "an effect: return the outcome of the first proceed(), or say in code that the call may be repeated, by "
        "effect='idempotent' or retry=… of the tool, or by repeats_effects = True of the interceptor"
        f"{ended}"
    )
