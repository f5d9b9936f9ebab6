"""What is said when a limit is reached."""

from __future__ import annotations

from agentloop.interception.budgeting.amounts import DOLLAR
from agentloop.values.json_value import JsonObject
from agentloop.values.stop import AgentStop, StopReason, StopSignal


def reached(
    reason: StopReason, limit: float, *, last: bool = False, estimated: bool = False, **counts: int
) -> StopSignal:
    """Return the signal for a limit.

    Args:
        reason: which limit.
        limit: how much it allows; money in dollars, time in seconds.
        last: whether it is so near that the last answer is due.
        estimated: whether the counts are estimates.
        **counts: how far the execution has come, by name.
    """
    number = str(limit) if isinstance(limit, int) else f"{limit:g}"
    amount = f"{number} {_UNITS[reason]}{'' if limit == 1 else 's'}"
    used = _used(reason, counts, estimated=estimated)
    message = f"the limit of {amount} is {'nearly ' if last else ''}reached{used}"
    known: dict[str, object] = {"estimated": estimated} if reason in _MEASURED else {}
    if "cost" in counts:
        return StopSignal(reason, message, context=JsonObject(limit=limit, cost=counts["cost"] / DOLLAR, **known))
    return StopSignal(reason, message, context=JsonObject(limit=limit, **counts, **known))


def refused(reason: StopReason, missing: str) -> StopSignal:
    """Return the signal for what cannot be counted and may not be estimated."""
    return StopSignal(reason, f"{missing}, so the limit cannot be kept", context=JsonObject(missing=missing))


def stop_by(signal: StopSignal) -> AgentStop:
    """Return the exception that stops an execution by this signal."""
    return AgentStop(signal.message, reason=signal.reason, context=signal.context)


def _used(reason: StopReason, counts: dict[str, int], *, estimated: bool) -> str:
    about = "about " if estimated else ""
    if reason is StopReason.TOKEN_LIMIT:
        return f": {about}{counts['tokens']} used"
    if reason is StopReason.COST_LIMIT:
        return f": {about}{counts['cost'] / DOLLAR:.4g} used"
    return ""


_UNITS = {
    StopReason.STEP_LIMIT: "step",
    StopReason.TOOL_CALL_LIMIT: "tool call",
    StopReason.TOKEN_LIMIT: "token",
    StopReason.COST_LIMIT: "dollar",
    StopReason.TIME_LIMIT: "second",
}
_MEASURED = frozenset({StopReason.TOKEN_LIMIT, StopReason.COST_LIMIT})
