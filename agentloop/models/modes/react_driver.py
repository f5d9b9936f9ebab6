"""The driver of the ReAct pattern: thought, action and observation, until there is an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, cast

from attrs import field, frozen

from agentloop.contracts.can_infer import CanInfer, CanNameModel
from agentloop.contracts.can_use_mode import CanUseMode, ModeLike
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.driver import StepDraft
from agentloop.drivers.inferring_driver import InferringDriver, name_of
from agentloop.drivers.rejections import Rejection, check_output, missing_call, retry_request
from agentloop.drivers.repetition import keeps_repeating, repeats_calls
from agentloop.drivers.structural_mode import as_mode_or_name
from agentloop.errors import DecisionExtractionError, DecisionValidationError
from agentloop.models.model_capabilities import find_row
from agentloop.models.modes.calls import validate_call
from agentloop.models.modes.react_decision import InvalidDecision, ReActDecision, decision_of, extra_fields_schema
from agentloop.models.modes.react_mode import ReActJsonMode, select_react_mode
from agentloop.models.modes.react_prompt import AS_WRITTEN, ReActPrompt
from agentloop.models.modes.selection import ModeInference
from agentloop.models.modes.written_calls import RunEmbedded
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.capabilities import CapabilityRow
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse, ModeChoice
from agentloop.values.json import format_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import EXTRACTION, VALIDATION, ErrorInfo, ToolCall, ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import instance_of

DecisionValidator: TypeAlias = Callable[[ReActDecision, Sequence[ToolCall], Sequence[ToolSpec]], Rejection | None]
"""Returns why a decision cannot be used, or None. Receives the decision, its calls as the model made them, and the tools."""

_EMPTY_DECISION = "it names no tool to call and gives no answer"


def validate_decision(
    decision: ReActDecision,  # noqa: ARG001  # of the signature; other validators read it
    calls: Sequence[ToolCall],
    tools: Sequence[ToolSpec],
) -> Rejection | None:
    """Reject calls of tools that are not on offer, or with arguments that do not match the schema."""
    errors = tuple([validate_call(call, tools).error_message for call in calls])
    return Rejection(call_errors=errors) if any(errors) else None


OutputName: TypeAlias = Literal["auto", "json", "text"]
"""The names of the notations of decisions; `auto` is the one that suits the model."""


def _as_mode(output: ModeLike | OutputName) -> CanUseMode | OutputName:
    return cast("CanUseMode | OutputName", as_mode_or_name(output))  # a name stays the same


@frozen(eq=False, repr=False, kw_only=True)
class ReActDriver(InferringDriver):
    """Gets one decision per step from the model, a thought with calls or with the answer, and executes its calls.

    A decision that cannot be parsed or used is shown to the model together with the error. If there is no usable decision after
    `max_retries`, the execution fails, with a step that holds a failed execution named `decision_extraction` or
    `decision_validation`; a text that was cut off stops it, as under every driver.

    Attributes:
        inference: the model.
        max_retries: how often the model may be called again in one step because its decision cannot be used.
        final_via_inference: whether one more inference, without tools, gives the answer after the model has decided to answer.
            A `final_inference` implies it.
        decision_type: the class of the decisions; `agentloop.models.decision_of` parses one from a message.
        output: the notation of decisions: `json`, `text`, a mode, or `auto` for the notation that suits the model.
        prompt: creates the system prompt of a request with tools; None for the prompt of the notation.
        validator: returns why a parsed decision cannot be used.
        tool_choice: whether, and which, tool the model must call; stated in the prompt.
        parallel_tool_calls: False for one call at a time; stated in the prompt.
        options: model, sampling and limits of every inference.
        models: capabilities of models, for `auto`; they take precedence over those of the published models.
        run_embedded: when calls in prose run: `pure` if every call of the answer is of a tool with the effect `pure`, `always`
            or `never`; otherwise the model is asked for its decision alone. Not used for an `output` that is a mode.
        max_inferences_per_step: the maximum number of inferences in one step.
    """

    final_via_inference: bool = field(default=False, validator=instance_of(bool))
    decision_type: type[ReActDecision] = ReActDecision
    output: CanUseMode | OutputName = field(default="auto", converter=_as_mode)
    prompt: ReActPrompt | None = field(default=None, repr=False)
    validator: DecisionValidator = field(default=validate_decision, repr=False)
    models: Sequence[CapabilityRow] = ()
    run_embedded: RunEmbedded = "pure"

    def __attrs_post_init__(self) -> None:
        # Both raise ConfigurationError: an invalid driver is reported where it is created, not in its first step.
        self.mode_for(self.inference)
        if self.decision_type is not ReActDecision:
            extra_fields_schema(self.decision_type)

    @property
    def max_inferences_per_step(self) -> int:
        """The maximum number of inferences in one step: the first one, its retries, and those of the final answer."""
        count = 1 + self.max_retries
        if self.final_inference is None and not self.final_via_inference:
            return count
        return count + 1 + (self.max_retries if self.output_check is not None else min(self.max_retries, 1))

    @property
    def _answering_inference(self) -> CanInfer | None:
        """The model that gives the final answer in an inference of its own; None if the decision holds the answer."""
        if self.final_inference is not None:
            return self.final_inference
        # Without tools, the decision was already made without them: calling the same model again gains nothing.
        return self.inference if self.final_via_inference and self.tools.specs else None

    def mode_for(self, inference: CanInfer) -> CanUseMode:
        """Return the mode in which a model is called.

        Raises:
            ConfigurationError: `output` names no notation.
        """
        mode = select_react_mode(
            self.output,
            inference,
            self.models,
            decision_type=self.decision_type,
            prompt=self.prompt,
            run_embedded=self.run_embedded,
        )
        return mode.with_bounds(self.scope.bounds)

    @property
    def chooses_modes(self) -> bool:
        """Whether the notation is the one that suits the model."""
        return self.output == "auto"

    def explain_mode(self, inference: CanInfer, state: AgentState) -> ModeChoice:  # noqa: ARG002  # it never changes
        """Return the notation of decisions, and why it was chosen."""
        mode, name = self.mode_for(inference).name, name_of(inference)
        if not self.chooses_modes:
            return ModeChoice(name, mode, "it is the driver's `output`")
        if not isinstance(inference, CanNameModel) or not name:
            return ModeChoice("", mode, "the model has no name and is assumed to follow a schema")
        _, reason = find_row(name, wire_format=inference.wire_format_name, rows=self.models)
        return ModeChoice(name, mode, reason)

    def wrap_inference(self, inference: CanInfer, state: AgentState) -> CanInfer:
        """Return the model as it is called for decisions."""
        mode = self.mode_for(inference)
        # Without a schema, words have to say it, so that more has to be known.
        repeats = (
            repeats_calls if isinstance(mode, ReActJsonMode) and mode.constrain == "json_schema" else keeps_repeating
        )
        is_stuck = len(state.steps) > 1 and repeats(state.steps, self.tools)
        return ModeInference(inference, mode, asks_for_answer=is_stuck, bounds=self.scope.bounds)

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Get a decision from the model, and the final answer if it takes an inference of its own.

        Raises:
            DecisionExtractionError: no decision could be parsed.
            DecisionValidationError: no parsed decision could be used.
            IncompleteAnswer: the text without a decision was filtered, or ended in an error.
        """
        request = self.request(draft, messages)
        # The last rejection is emitted as well, because it ends the execution.
        response = await self.infer_until_valid(
            draft,
            request,
            self.inference,
            partial(self._check_response, draft),
            retry=_retry_as_written,
            check_last=True,
        )
        rejection = self._check_response(draft, response)
        if rejection is not None and rejection.output_error:
            # An answer of the wrong type ends the execution by the loop's own check; a decision ends it here.
            rejection = self._check_decision(response)
        answering = self._answering_inference
        if rejection is None and answering is not None and _is_final(response):
            check = partial(check_output, output_check=self.output_check)
            response = await self.infer_until_valid(
                draft, request.with_tools(()), answering, check, retry=_retry_as_written, check_last=True
            )
            last = check(response)
            rejection = last if last is not None and last.problem else None
        # That the text was cut off says more than what the reader misses in it.
        is_cut = rejection is not None and rejection.problem and response.finish_reason.is_incomplete
        if rejection is not None and not is_cut:
            raise fail_decision(draft, response, rejection, self.scope)
        self.conclude(draft, response)
        if response.wants_to_continue:
            draft.state = draft.state.with_continuation_requested()
        return response.parts

    def _check_response(self, draft: StepDraft, response: InferenceResponse) -> Rejection | None:
        """Return why a decision, or the answer that it holds, cannot be used."""
        rejection = self._check_decision(response)
        missing = missing_call(draft.exchanges, response)
        if rejection is None and missing:
            return Rejection(output_error=missing)
        if rejection is None and self._answering_inference is None and _is_final(response):
            return check_output(response, self.output_check)
        return rejection

    def _check_decision(self, response: InferenceResponse) -> Rejection | None:
        """Return why a decision cannot be used."""
        if response.problem:
            return Rejection(response.problem)
        if not self.tools.specs or response.wants_to_continue:
            return None
        try:
            decision = decision_of(response.parts, self.decision_type)
        except InvalidDecision as error:
            return Rejection(output_error=str(error))
        rejection = self.validator(decision, response.tool_calls, self.tools.specs)
        if rejection is not None or response.tool_calls or response.text:
            return rejection
        # The decision to answer may be empty if another inference gives the answer, or the loop accepts an empty one.
        chooses_tool = response.finish_reason is FinishReason.TOOL_CALLS
        may_be_empty = self._answering_inference is not None or self._accepts(response)
        return None if may_be_empty and not chooses_tool else Rejection(output_error=_EMPTY_DECISION)

    def _accepts(self, response: InferenceResponse) -> bool:
        return self.output_check is not None and check_output(response, self.output_check) is None


def fail_decision(
    draft: StepDraft, response: InferenceResponse, rejection: Rejection, scope: ExecutionScope
) -> DecisionExtractionError | DecisionValidationError:
    """Put the response into the step as a failed call, and return the error that ends the execution.

    Args:
        draft: the step; it gets the call and its outcome.
        response: the last response of the model.
        rejection: why it cannot be used.
        scope: the source of id and time.
    """
    error: DecisionExtractionError | DecisionValidationError
    if rejection.problem:
        error = DecisionExtractionError(rejection.problem, response.text)
        call = ToolCall("", EXTRACTION, _json({"text": response.text}))
    else:
        error = DecisionValidationError(rejection.messages)
        calls = [{"tool": call.name, "args": call.arguments_json} for call in response.tool_calls]
        call = ToolCall("", VALIDATION, _json({"calls": calls, "text": response.text}))
    # The step holds a call with its outcome, so that the conversation stays valid and can be continued.
    draft.parts = (*[part for part in response.parts if isinstance(part, Reasoning)], call)
    draft.calls = ToolCalls.of([call], draft.state)
    execution = ToolExecution.of(
        call,
        ToolStatus.FAILED,
        key=draft.calls.keys[0],
        id=scope.ids.new_id("tool_execution"),
        at=scope.clock.now(),
        error=ErrorInfo.of(error),
    )
    draft.outcome = ToolExecutions((execution,), (), draft.state)
    return error


def _json(data: dict[str, object]) -> str:
    return format_json(data).decode()


def _is_final(response: InferenceResponse) -> bool:
    return not response.tool_calls and not response.wants_to_continue


def _retry_as_written(request: InferenceRequest, response: InferenceResponse, rejection: Rejection) -> InferenceRequest:
    """Return the request that follows a rejected decision; one that cannot be parsed is shown exactly as it was written."""
    retry = retry_request(request, response, rejection)
    if not rejection.problem:
        return retry
    count = len(request.messages)
    written = [message.with_metadata(**{AS_WRITTEN: True}) for message in retry.messages[count:]]
    return retry.with_messages([*request.messages, *written])
