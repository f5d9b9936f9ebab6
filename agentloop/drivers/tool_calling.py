"""The driver for models that call tools."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from agentloop.drivers.args_leak import without_leaked_arguments
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.drivers.step_draft import StepDraft
from agentloop.values.inference_request import DEFAULT_OPTIONS, InferenceOptions, InferenceRequest, ToolChoice
from agentloop.values.message import Message, ResponsePart


@frozen(kw_only=True)
class ToolCallingDriver(InferringDriver):
    """Asks the model once per step, with the tools on offer, and has executed what it calls.

    Text that only repeats the arguments of a call as JSON is dropped: some models write their calls twice.

    Attributes:
        inference: the model.
        tool_choice: whether and which tool the model has to call.
        parallel_tool_calls: whether several calls may come in one answer; None leaves it to the provider.
        options: model, sampling and limits of every inference.
        max_inferences_per_step: how often the model is asked in one step, at most.
    """

    tool_choice: ToolChoice = field(factory=ToolChoice.auto)
    parallel_tool_calls: bool | None = None
    options: InferenceOptions = DEFAULT_OPTIONS

    @property
    def max_inferences_per_step(self) -> int:
        """One."""
        return 1

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Ask the model."""
        response = await self.infer(draft, self.request(draft, messages))
        return without_leaked_arguments(response.parts)

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
