"""What drivers that ask a model have in common."""

from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_report_retries import CanReportRetries, FailedAttempt
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.driver import Driver
from agentloop.drivers.step_draft import StepDraft
from agentloop.events.inference_events import (
    InferenceFailed,
    InferenceRequestStarted,
    InferenceResponseReceived,
    InferenceRetried,
    TokenUsageReported,
)
from agentloop.values.agent_state import AgentState
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.points import AfterInference, AroundInference, BeforeInference
from agentloop.values.tool_execution import ErrorInfo


@frozen(kw_only=True)
class InferringDriver(Driver):
    """A driver that asks a model: every inference passes the interceptor points and emits the events.

    Attributes:
        inference: the model.
    """

    inference: CanInfer = field(kw_only=False)

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
        response = None
        if "before_inference" in self.interceptor.points:
            before = await self.interceptor.before_inference(BeforeInference(draft.state, request))
            draft.state, request, response = before.state, before.request, before.response
        try:
            if response is None:
                response = await self._asked(draft, request)
            else:
                draft.count(response)
            if "after_inference" in self.interceptor.points:
                after = await self.interceptor.after_inference(AfterInference(draft.state, request, response))
                draft.state, response = after.state, after.response
                draft.response = response
        except BaseException as error:
            await self._tell_failure(draft.state, error)
            raise
        await self._tell_response(draft, response)
        return response

    async def _asked(self, draft: StepDraft, request: InferenceRequest) -> InferenceResponse:
        state = draft.state
        if self.events.due(InferenceRequestStarted):
            await self.events.emit(InferenceRequestStarted(self.events.head(state), request))
        inference = self.inference
        if isinstance(inference, CanReportRetries):
            inference = inference.with_retry_report(lambda failed: self._tell_retry(state, failed))
        if "around_inference" in self.interceptor.points:
            return await self._asked_inside(draft, request, inference)
        response = await inference.infer(request)
        draft.count(response)
        return response

    async def _asked_inside(
        self, draft: StepDraft, request: InferenceRequest, inference: CanInfer
    ) -> InferenceResponse:
        """Ask inside of the layers; each time that one of them proceeds is an inference and counts."""
        counted = draft.usage

        async def proceed() -> InferenceResponse:
            response = await inference.infer(request)
            draft.count(response)
            return response

        response = await self.interceptor.around_inference(AroundInference(draft.state, request), proceed)
        if draft.usage is counted:
            draft.count(response)
        draft.response = response
        return response

    async def _tell_response(self, draft: StepDraft, response: InferenceResponse) -> None:
        if self.events.due(InferenceResponseReceived):
            await self.events.emit(InferenceResponseReceived(self.events.head(draft.state), response))
        if self.events.due(TokenUsageReported):
            total = draft.state.usage + draft.usage
            await self.events.emit(TokenUsageReported(self.events.head(draft.state), response.usage, total))

    async def _tell_failure(self, state: AgentState, error: BaseException) -> None:
        if self.events.due(InferenceFailed):
            await self.events.emit(InferenceFailed(self.events.head(state), ErrorInfo.of(error)))

    def _tell_retry(self, state: AgentState, failed: FailedAttempt) -> None:
        if self.events.due(InferenceRetried):
            head = self.events.head(state)
            told = ErrorInfo.of(failed.error)
            self.events.emit_soon(InferenceRetried(head, failed.attempt, told, failed.delay))
