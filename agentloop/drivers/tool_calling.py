"""The driver for models that call tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import frozen

from agentloop.contracts.can_accept import OutputCheck
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.drivers.driver import StepDraft
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.errors import MalformedArguments
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall, parse_arguments

if TYPE_CHECKING:
    from agentloop.inference.model_rows import CapabilityRow


_FENCE = "```"


def without_leaked_arguments(parts: tuple[ResponsePart, ...]) -> tuple[ResponsePart, ...]:
    """Drop text parts that are nothing but the arguments of one of the calls, as JSON, bare or fenced."""
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if not calls or not any(isinstance(part, Text) for part in parts):
        return parts
    leaked = [arguments for arguments in map(_arguments, calls) if arguments]
    return tuple([part for part in parts if not (isinstance(part, Text) and _repeats(part.text, leaked))])


def _repeats(text: str, leaked: list[dict[str, object]]) -> bool:
    bare = text.strip()
    if bare.startswith(_FENCE) and bare.endswith(_FENCE):
        bare = bare.strip("`").removeprefix("json").strip()
    if not bare.startswith("{"):
        return False
    try:
        return parse_json(bare) in leaked
    except ValueError:
        return False


def _arguments(call: ToolCall) -> dict[str, object]:
    try:
        return parse_arguments(call.arguments_json)
    except MalformedArguments:
        return {}


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
        models: what models are able to do, for `auto`; goes before what is known of the published ones.
        max_retries: how often the model is asked again in one step when its answer cannot be used, in a mode that does so.
        max_inferences_per_step: how often models are asked in one step, at most.
    """

    mode: CanUseMode | ModeName = "auto"
    models: Sequence[CapabilityRow] = ()

    @property
    def max_inferences_per_step(self) -> int:
        """One, one more for each time the model is asked again, and one for the final model."""
        asks_again = self.mode_of(self.inference).asks_again or self.output_check is not None
        asked = 1 + (self.max_retries if asks_again else 0)
        if self.final_inference is None:
            return asked
        return asked + 1 + (self.max_retries if self.output_check is not None else 0)

    def mode_of(self, inference: CanInfer) -> CanUseMode:
        """Return the mode that a model is asked in.

        Raises:
            ConfigurationError: when the mode's name is none.
        """
        from agentloop.modes.selection import select_mode

        return select_mode(self.mode, inference, self.models)

    def asked_as(self, inference: CanInfer) -> CanInfer:
        """Return a model as it is asked in its mode; for an answer of a type, in the strict form that providers accept."""
        mode = self.mode_of(inference)
        if not mode.translates and self.output_check is None:
            return inference
        from agentloop.modes.selection import ModeInference

        return ModeInference(inference, mode)

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Ask the model, again if its answer cannot be used and the mode says so."""
        request, final = self.request(draft, messages), self.final_inference
        check = self.output_check if final is None else None
        response = await self._usable(draft, request, self.inference, check)
        if final is not None and not response.tool_calls and not response.wants_to_continue:
            response = await self._usable(draft, request.with_tools(), final, self.output_check)
        if response.wants_to_continue:
            draft.state = draft.state.with_continuation_requested()
        return without_leaked_arguments(response.parts)

    async def _usable(
        self, draft: StepDraft, request: InferenceRequest, inference: CanInfer, check: OutputCheck | None
    ) -> InferenceResponse:
        """Ask a model, and again when its answer cannot be used, as often as is allowed."""
        response = await self.infer(draft, request, inference=inference)
        mode = self.mode_of(inference)
        if check is None and not mode.asks_again:
            return response
        from agentloop.drivers.rejections import asked_again, tell_unusable, unusable

        for attempt in range(1, self.max_retries + 1):
            wrong = unusable(response, self.tools.specs, mode, check)
            if wrong is None:
                break
            await tell_unusable(self.events, draft, response, wrong, attempt=attempt)
            request = asked_again(request, response, wrong)
            response = await self.infer(draft, request, inference=inference)
        return response
