"""What drivers that ask a model have in common."""

from __future__ import annotations

from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.driver import Driver
from agentloop.drivers.step_draft import StepDraft
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse


@frozen(kw_only=True)
class InferringDriver(Driver):
    """A driver that asks a model: every inference passes the interceptor points and emits the events.

    Attributes:
        inference: the model.
        streaming: whether answers are taken while they are written, so that `InferenceDeltaReceived` tells their pieces; what
            comes of a run is the same.
    """

    inference: CanInfer = field(kw_only=False)
    streaming: bool = False

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses this clock, these ids and these resources, and whose model does too."""
        bound = super().with_execution_scope(scope)
        if not isinstance(self.inference, CanAcceptExecutionScope):
            return bound
        return evolve(bound, inference=self.inference.with_execution_scope(scope))

    async def infer(self, draft: StepDraft, request: InferenceRequest) -> InferenceResponse:
        """Ask the model through the points `before_inference`, `around_inference` and `after_inference`.

        Args:
            draft: the step; its state becomes what the interceptors made of it, and the tokens are counted in it: those of
                every time the model was asked, and what an interceptor's own answer says it used.
            request: what to ask.

        Returns:
            The response, final.

        Raises:
            Exception: whatever the inference or an interceptor raises.
        """
        from agentloop.drivers.asking import Asking

        return await Asking(draft, self.inference, self.interceptor, self.events, self.streaming).ask(request)
