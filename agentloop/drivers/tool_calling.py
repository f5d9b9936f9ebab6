"""The driver for models that call tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from attrs import field, frozen
from attrs.validators import ge

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.drivers.args_leak import without_leaked_arguments
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.drivers.step_draft import StepDraft
from agentloop.values.inference_request import DEFAULT_OPTIONS, InferenceOptions, InferenceRequest, ToolChoice
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.message import Message, ResponsePart

ModeName: TypeAlias = Literal["auto", "native", "structured", "validated", "parsed"]


@frozen(kw_only=True)
class ToolCallingDriver(InferringDriver):
    """Asks the model once per step, with the tools on offer, and has executed what it calls.

    Text that only repeats the arguments of a call as JSON is dropped: some models write their calls twice.

    Attributes:
        inference: the model.
        tool_choice: whether and which tool the model has to call.
        parallel_tool_calls: whether several calls may come in one answer; None leaves it to the provider.
        options: model, sampling and limits of every inference.
        mode: how tools are offered and calls are read: a mode, its name, or `auto` for the one that suits the model.
        max_retries: how often the model is asked again in one step when its answer cannot be used, in a mode that does so.
        max_inferences_per_step: how often models are asked in one step, at most.
    """

    tool_choice: ToolChoice = field(factory=ToolChoice.auto)
    parallel_tool_calls: bool | None = None
    options: InferenceOptions = DEFAULT_OPTIONS
    mode: CanUseMode | ModeName = "auto"
    max_retries: int = field(default=2, validator=ge(0))

    @property
    def max_inferences_per_step(self) -> int:
        """One, one more for each time the model is asked again, and one for the final model."""
        mode = self.mode_of(self.inference)
        return 1 + (self.max_retries if mode.asks_again else 0) + (self.final_inference is not None)

    def mode_of(self, inference: CanInfer) -> CanUseMode:
        """Return the mode that a model is asked in.

        Raises:
            ConfigurationError: when the mode's name is none.
        """
        from agentloop.drivers.modes.choosing import mode_for

        return mode_for(self.mode, inference)

    def asked_as(self, inference: CanInfer) -> CanInfer:
        """Return a model as it is asked in its mode."""
        mode = self.mode_of(inference)
        if mode.name == "native":
            return inference
        from agentloop.drivers.modes.mode_inference import ModeInference

        return ModeInference(inference, mode)

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Ask the model, again if its answer cannot be used and the mode says so."""
        request = self.request(draft, messages)
        response = await self.infer(draft, request)
        mode = self.mode_of(self.inference)
        if mode.asks_again:
            response = await self._usable(draft, request, response, mode)
        response = await self.answer(draft, request, response)
        if response.wants_to_continue:
            draft.state = draft.state.with_continuation_requested()
        return without_leaked_arguments(response.parts)

    async def _usable(
        self, draft: StepDraft, request: InferenceRequest, response: InferenceResponse, mode: CanUseMode
    ) -> InferenceResponse:
        from agentloop.drivers.asking_again import asked_again, tell_unusable, unusable

        for attempt in range(1, self.max_retries + 1):
            wrong = unusable(response, self.tools.specs, mode)
            if wrong is None:
                break
            await tell_unusable(self.events, draft, response, wrong, attempt=attempt)
            request = asked_again(request, response, wrong)
            response = await self.infer(draft, request)
        return response

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
