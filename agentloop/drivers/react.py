"""The driver of the ReAct pattern: thought, action, observation, and so on until the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

from attrs import field, frozen

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.driver import StepDraft
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.drivers.rejections import Unusable, asked_again, refused_output, tell_unusable
from agentloop.errors import DecisionExtractionError, DecisionValidationError
from agentloop.inference.model_rows import CapabilityRow
from agentloop.modes.calls import validate_call
from agentloop.modes.react_decision import InvalidDecision, ReActDecision, decision_of, extra_fields_schema
from agentloop.modes.react_mode import select_react_mode
from agentloop.modes.react_prompt import AS_WRITTEN, ReActPrompt
from agentloop.modes.selection import ModeInference
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse
from agentloop.values.json import format_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning
from agentloop.values.tool_calls import EXTRACTION, VALIDATION, ErrorInfo, ToolCall, ToolExecution, ToolSpec, ToolStatus

DecisionValidator: TypeAlias = Callable[[ReActDecision, Sequence[ToolCall], Sequence[ToolSpec]], Unusable | None]
"""Says what is wrong with a decision, of its calls as the model made them and of the tools on offer; None when nothing is."""


def validate_decision(
    decision: ReActDecision,  # noqa: ARG001  # for validators that look further
    calls: Sequence[ToolCall],
    tools: Sequence[ToolSpec],
) -> Unusable | None:
    """Say for each call whether it names an offered tool, with arguments that satisfy its schema."""
    errors = tuple([validate_call(call, tools).error_message for call in calls])
    return Unusable(errors=errors) if any(errors) else None


def given_up(
    draft: StepDraft, response: InferenceResponse, wrong: Unusable, scope: ExecutionScope
) -> DecisionExtractionError | DecisionValidationError:
    """Return the error that ends an execution, and let the step hold what the model wrote, as a call that failed.

    Args:
        draft: the step; it gets the call.
        response: the model's last answer.
        wrong: what is wrong with it.
        scope: where id and time come from.
    """
    error: DecisionExtractionError | DecisionValidationError
    if wrong.problem:
        error = DecisionExtractionError(wrong.problem, response.text)
        call = ToolCall("", EXTRACTION, _json({"text": response.text}))
    else:
        problems = (wrong.output,) if wrong.output else tuple([one for one in wrong.errors if one])
        error = DecisionValidationError(problems)
        made = [{"tool": one.name, "args": one.arguments_json} for one in response.tool_calls]
        call = ToolCall("", VALIDATION, _json({"calls": made, "text": response.text}))
    draft.parts = (*[part for part in response.parts if isinstance(part, Reasoning)], call)
    draft.calls = ToolCalls.of([call], draft.state)
    now = scope.clock.now()
    execution = ToolExecution.of(
        call,
        ToolStatus.FAILED,
        key=draft.calls.keys[0],
        id=scope.ids.new_id("tool_execution"),
        at=now,
        error=ErrorInfo.of(error),
    )
    draft.outcome = ToolExecutions((execution,), (), draft.state)
    return error


def _json(data: dict[str, object]) -> str:
    return format_json(data).decode()


Judge: TypeAlias = Callable[[InferenceResponse], Unusable | None]
"""Says what is wrong with an answer; None when it can be used."""

_NOTHING = "it names no tool to call and gives no answer"


@frozen(kw_only=True)
class ReActDriver(InferringDriver):
    """Asks the model for one decision per step, a thought with calls or with the answer, and has executed what it calls.

    A decision that cannot be read or used is shown to the model with what is wrong with it. When it has been asked for in vain,
    the execution fails, with a step that holds a failed execution of `decision_extraction` or of `decision_validation`.

    Attributes:
        inference: the model.
        max_retries: how often the model is asked again in one step when its decision cannot be used.
        final_via_inference: whether the answer is asked for by one more inference without tools, once the model has decided to
            answer; so it is also when there is a `final_inference`.
        decision_type: the class of the decisions; `agentloop.drivers.decision_of` reads one again out of a message.
        output: how decisions are written: `json` or `text`, a mode, or `auto` for what suits the model.
        prompt: makes the system prompt of a request with tools; None for the one of the notation.
        validator: says what is wrong with a decision that could be read.
        tool_choice: whether and which tool the model has to call, in words.
        parallel_tool_calls: False asks for one call at a time, in words.
        options: model, sampling and limits of every inference.
        models: what models are able to do, for `auto`; goes before what is known of the published ones.
        max_inferences_per_step: how often models are asked in one step, at most.
    """

    final_via_inference: bool = False
    decision_type: type[ReActDecision] = ReActDecision
    output: CanUseMode | Literal["auto", "json", "text"] = "auto"
    prompt: ReActPrompt | None = field(default=None, repr=False)
    validator: DecisionValidator = field(default=validate_decision, repr=False)
    models: Sequence[CapabilityRow] = ()

    def __attrs_post_init__(self) -> None:
        self.mode_of(self.inference)
        if self.decision_type is not ReActDecision:
            extra_fields_schema(self.decision_type)

    @property
    def max_inferences_per_step(self) -> int:
        """One, one more for each time the model is asked again, and those for the final answer."""
        asked = 1 + self.max_retries
        if self.final_inference is None and not self.final_via_inference:
            return asked
        return asked + 1 + (self.max_retries if self.output_check is not None else 0)

    @property
    def _last(self) -> CanInfer | None:
        """The model that is asked for the answer, when the answer is asked for: not again where no tools are on offer anyway."""
        if self.final_inference is not None:
            return self.final_inference
        return self.inference if self.final_via_inference and self.tools.specs else None

    def mode_of(self, inference: CanInfer) -> CanUseMode:
        """Return the mode that a model is asked in.

        Raises:
            ConfigurationError: when `output` is not one of those there are.
        """
        return select_react_mode(
            self.output, inference, self.models, decision_type=self.decision_type, prompt=self.prompt
        )

    def asked_as(self, inference: CanInfer) -> CanInfer:
        """Return a model as it is asked for decisions."""
        return ModeInference(inference, self.mode_of(inference))

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Ask the model for a decision, again while it cannot be used, and for the answer if that is asked for.

        Raises:
            DecisionExtractionError: when no decision could be read, as often as it was asked for.
            DecisionValidationError: when none that was read could be used.
        """
        request = self.request(draft, messages)
        response = await self._asked(draft, request, self.inference, self._judge)
        wrong = self._wrong(response)
        if wrong is not None:
            raise given_up(draft, response, wrong, self.scope)
        last = self._last
        if last is not None and self._is_final(response):
            judge = partial(refused_output, check=self.output_check)
            response = await self._asked(draft, request.with_tools(), last, judge)
        if response.wants_to_continue:
            draft.state = draft.state.with_continuation_requested()
        return response.parts

    async def _asked(
        self, draft: StepDraft, request: InferenceRequest, inference: CanInfer, judge: Judge
    ) -> InferenceResponse:
        """Ask a model, again while its answer cannot be used and it may be asked again, and return the last answer."""
        response = await self.infer(draft, request, inference=inference)
        for attempt in range(1, self.max_retries + 2):
            wrong = judge(response)
            if wrong is None:
                break
            await tell_unusable(self.events, draft, response, wrong, attempt=attempt)
            if attempt <= self.max_retries:
                request = _shown(request, response, wrong)
                response = await self.infer(draft, request, inference=inference)
        return response

    def _judge(self, response: InferenceResponse) -> Unusable | None:
        wrong = self._wrong(response)
        if wrong is None and self._last is None and self._is_final(response):
            return refused_output(response, self.output_check)
        return wrong

    def _wrong(self, response: InferenceResponse) -> Unusable | None:
        """Say what is wrong with a decision."""
        if response.problem:
            return Unusable(response.problem)
        if not self.tools.specs or response.wants_to_continue:
            return None
        try:
            decision = decision_of(response.parts, self.decision_type)
        except InvalidDecision as error:
            return Unusable(output=str(error))
        wrong = self.validator(decision, response.tool_calls, self.tools.specs)
        if wrong is not None or response.tool_calls or response.text:
            return wrong
        needs_answer = self._last is None or response.finish_reason is FinishReason.TOOL_CALLS
        return Unusable(output=_NOTHING) if needs_answer else None

    def _is_final(self, response: InferenceResponse) -> bool:
        return not response.tool_calls and not response.wants_to_continue


def _shown(request: InferenceRequest, response: InferenceResponse, wrong: Unusable) -> InferenceRequest:
    """Return the request that shows a model its decision and what is wrong with it; what cannot be read, as it wrote it."""
    again = asked_again(request, response, wrong)
    known = len(request.messages)
    shown = [one.with_metadata(**{AS_WRITTEN: True}) if wrong.problem else one for one in again.messages[known:]]
    return again.with_messages(*request.messages, *shown)
