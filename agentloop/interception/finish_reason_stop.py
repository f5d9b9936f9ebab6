"""Stopping by the model's finish reason."""

from __future__ import annotations

from collections.abc import Iterable

from agentloop.interception.interceptor import Interceptor
from agentloop.values.inference_response import FinishReason
from agentloop.values.json_value import JsonObject
from agentloop.values.points import AfterStep
from agentloop.values.stop import StopReason


class FinishReasonStop(Interceptor):
    """Stops an execution after a step whose model stopped writing for one of these reasons.

    The signal is soft: a requested continuation goes over it.

    Args:
        reasons: the finish reasons to stop at; when none is given, `length` and `content_filter`.
        priority: where it stands among the interceptors.
    """

    def __init__(
        self,
        reasons: Iterable[FinishReason | str] = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER),
        *,
        priority: int = 0,
    ) -> None:
        self.reasons: frozenset[FinishReason] = frozenset(FinishReason(reason) for reason in reasons)
        self.priority = priority

    def after_step(self, point: AfterStep) -> AfterStep:
        """Stop at one of the reasons."""
        step = point.state.last_step
        if step is None or step.finish_reason not in self.reasons:
            return point
        return point.stop(
            f"the model stopped writing: {step.finish_reason.value}",
            reason=StopReason.FINISH_REASON,
            context=JsonObject(finish_reason=step.finish_reason.value),
        )

    def __repr__(self) -> str:
        return f"FinishReasonStop({sorted(reason.value for reason in self.reasons)})"
