"""What drivers that ask a model have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from attrs import evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptOutputCheck, OutputCheck
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.driver import Driver
from agentloop.drivers.step_draft import StepDraft
from agentloop.values.inference_request import DEFAULT_OPTIONS, InferenceOptions, InferenceRequest, ToolChoice
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.message import Message


@frozen(kw_only=True)
class InferringDriver(Driver, CanAcceptOutputCheck):
    """A driver that asks a model: every inference passes the interceptor points and emits the events.

    Attributes:
        inference: the model.
        streaming: whether answers are taken while they are written, so that `InferenceDeltaReceived` tells their pieces; what
            comes of a run is the same.
        final_inference: the model that gives the final answer, after the other has decided that nothing is left to be called;
            None for the same one.
        output_check: reads final answers, when they have a form; a loop with an `output_type` binds it.
        tool_choice: whether and which tool the model has to call.
        parallel_tool_calls: whether several calls may come in one answer; None leaves it to the provider.
        options: model, sampling and limits of every inference.
        max_retries: how often the model is asked again in one step when its answer cannot be used, by a driver that does so.
    """

    inference: CanInfer = field(kw_only=False)
    streaming: bool = False
    final_inference: CanInfer | None = None
    output_check: OutputCheck | None = field(default=None, repr=False)
    tool_choice: ToolChoice = field(factory=ToolChoice.auto)
    parallel_tool_calls: bool | None = None
    options: InferenceOptions = DEFAULT_OPTIONS
    max_retries: int = field(default=2, validator=ge(0))

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses this clock, these ids and these resources, and whose model does too."""
        bound = super().with_execution_scope(scope)
        final = self.final_inference
        return evolve(
            bound,
            inference=_bound(self.inference, scope),
            final_inference=None if final is None else _bound(final, scope),
        )

    def with_output_check(self, check: OutputCheck) -> Self:
        """Return a copy that asks again for a final answer which the check refuses."""
        return evolve(self, output_check=check)

    def asked_as(self, inference: CanInfer) -> CanInfer:
        """Return a model as it is asked; a driver that speaks to it in its own way wraps it here."""
        return inference

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        """Return what the model is asked."""
        context = draft.state.context
        return InferenceRequest(
            tuple(messages),
            context.system_prompt,
            self.tools.specs,
            self.tool_choice,
            self.parallel_tool_calls,
            context.response_format,
            self.options,
        )

    async def infer(
        self, draft: StepDraft, request: InferenceRequest, *, inference: CanInfer | None = None
    ) -> InferenceResponse:
        """Ask the model through the points `before_inference`, `around_inference` and `after_inference`.

        Args:
            draft: the step; its state becomes what the interceptors made of it, and the tokens are counted in it: those of
                every time the model was asked, and what an interceptor's own answer says it used.
            request: what to ask.
            inference: another model to ask.

        Returns:
            The response, final.

        Raises:
            Exception: whatever the inference or an interceptor raises.
        """
        from agentloop.drivers.asking import Asking

        asked = self.asked_as(inference or self.inference)
        asking = Asking(draft, asked, self.interceptor, self.events, self.streaming, self.scope.log)
        return await asking.ask(request)


def _bound(inference: CanInfer, scope: ExecutionScope) -> CanInfer:
    return inference.with_execution_scope(scope) if isinstance(inference, CanAcceptExecutionScope) else inference
