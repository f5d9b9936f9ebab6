"""The driver for models that call tools."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, Literal, Self, TypeAlias, TypedDict, Unpack, cast, get_args

from attrs import field, frozen

from agentloop._shielding import compute_on_text
from agentloop.contracts.can_accept import CanAddTools, OutputCheck
from agentloop.contracts.can_infer import CanAskServer, CanCombineModels, CanInfer, CanNameModel
from agentloop.contracts.can_provide_models import ModelConfig, models
from agentloop.contracts.can_use_mode import CanUseMode, ModeLike
from agentloop.contracts.tools import Tools
from agentloop.drivers.driver import StepDraft
from agentloop.drivers.inferring_driver import InferringDriver, name_of
from agentloop.drivers.mode_choices import CHOICES, mode_choice
from agentloop.drivers.rejections import Rejection, check_response, missing_call
from agentloop.drivers.repetition import keeps_repeating, repeats_calls
from agentloop.drivers.structural_mode import as_mode_or_name
from agentloop.errors import BoundExceeded, ConfigurationError, DecisionExtractionError, MalformedArguments
from agentloop.values.capabilities import CapabilityRow
from agentloop.values.inference import (
    InferenceRequest,
    InferenceResponse,
    ModeChoice,
    OptionsLike,
    ToolChoice,
    check_keywords,
)
from agentloop.values.json import canonical_json, parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Text
from agentloop.values.secrets import KeyFunction, Secret
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall, parse_arguments
from agentloop.values.value import instance_of

ModeName: TypeAlias = Literal["auto", "native", "structured", "validated", "parsed", "program"]
MODE_NAMES: Final[tuple[str, ...]] = get_args(ModeName)


def _as_mode(mode: ModeLike | ModeName) -> CanUseMode | ModeName:
    return cast("CanUseMode | ModeName", as_mode_or_name(mode))  # a name stays the same


class DriverSettings(TypedDict, total=False):
    """The attributes of a `ToolCallingDriver` that depend on its model; the class describes them."""

    options: OptionsLike
    tool_choice: ToolChoice | Literal["auto", "required", "none"]
    parallel_tool_calls: bool | None
    mode: ModeLike | ModeName
    max_retries: int
    streaming: bool
    eager: bool


@frozen(eq=False, repr=False, kw_only=True)
class ToolCallingDriver(InferringDriver, CanAddTools):
    """Calls the model once per step with the tools on offer, and executes the tool calls of its response.

    Text that only repeats the arguments of a call as JSON is dropped: some models write their calls twice.

    Attributes:
        inference: the model.
        tool_choice: whether, and which, tool the model must call.
        parallel_tool_calls: whether a response may contain several calls; None for the provider's default.
        options: model, sampling and limits of every inference: an `InferenceOptions`, or its attributes as a mapping.
        mode: how tools are offered and calls are parsed: a mode, its name, or `auto` for the mode that suits the model. With
            `program`, the model calls tools by programs, and the driver adds the tool that runs them if it is missing.
        models: capabilities of models, for `auto`; they take precedence over those of the published models.
        max_retries: how often the model may be called again in one step because its response cannot be used. Invalid calls are
            retried in the modes that do so; empty and invalid final answers in every mode.
        max_inferences_per_step: the maximum number of inferences in one step.
        eager: whether calls of pure tools start as soon as a streamed answer holds them whole. State, events and records are
            those of a run without it. It needs `streaming`, a mode in which the provider's API has the calls, and interceptors
            that allow it.

    Raises:
        ConfigurationError: no mode has the name that `mode` gives, or `eager` is set without `streaming`.
    """

    mode: CanUseMode | ModeName = field(default="auto", converter=_as_mode)
    models: Sequence[CapabilityRow] = ()
    eager: bool = field(default=False, validator=instance_of(bool))
    # Created anew for each copy, so that a mode is kept only for the parts that it was bound to.
    _kept_mode: list[_KeptMode] = field(factory=list, repr=False, init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        # An unknown name is reported where the driver is created; a known one does not load its mode yet.
        if self.mode not in MODE_NAMES and not isinstance(self.mode, CanUseMode):
            models().get_mode(str(self.mode))
        if self.eager and not self.streaming:
            raise ConfigurationError(
                "eager=True starts calls while an answer is streamed, and this driver does not stream: add streaming=True"
            )

    @classmethod
    def for_model(
        cls,
        model: str | ModelConfig | CanInfer,
        *,
        base_url: str | None = None,
        api_key: str | Secret | KeyFunction | None = None,
        timeout: float | None = None,
        **settings: Unpack[DriverSettings],
    ) -> Self:
        """Create the driver of a model, with some of the attributes above; `ModelOptions` describes the parameters.

        Raises:
            ConfigurationError: if the model string or a setting is invalid, a key is missing, or a setting cannot apply.
            TypeError: if the model or a setting has a wrong type.
        """
        check_keywords("ToolCallingDriver.for_model()", settings, DriverSettings.__annotations__)
        return cls(models().inference_of(model, base_url=base_url, api_key=api_key, timeout=timeout), **settings)

    @property
    def max_inferences_per_step(self) -> int:
        """The maximum number of inferences in one step: the first one, its retries, and those of the final model."""
        # An empty answer is requested again in every mode.
        count = 1 + self.max_retries
        return count if self.final_inference is None else 2 * count

    def add_tools(self, tools: Tools) -> Tools:
        """Return the tools with those that the mode needs, such as the one that runs programs."""
        if self.mode in MODE_NAMES and self.mode != "program":
            return tools  # without loading the mode
        return self.mode_for(self.inference).add_tools(tools)

    def mode_for(self, inference: CanInfer, state: AgentState | None = None) -> CanUseMode:
        """Return the mode in which a model is called.

        Args:
            inference: the model.
            state: the state of the execution, with the modes that it has chosen; None before an execution.

        Raises:
            ConfigurationError: no mode has the name that `mode` gives.
        """
        name = inference.model_name if isinstance(inference, CanNameModel) else ""
        if self._kept_mode and self._kept_mode[0].suits(inference, name, state):
            return self._kept_mode[0].mode
        mode = models().select_mode(self.mode, inference, self.models, state=state)
        mode = mode.with_bounds(self.scope.bounds).with_tools(self.tools)
        self._kept_mode[:] = [_KeptMode(inference, name, state, mode)]
        return mode

    @property
    def chooses_modes(self) -> bool:
        """Whether the mode, or the form of the mode `program`, is the one that suits the model."""
        return self.mode in ("auto", "program")  # a mode of a program need not be hashable

    def explain_mode(self, inference: CanInfer, state: AgentState) -> ModeChoice:
        """Return the mode in which a model is called, and why."""
        if not self.chooses_modes:
            return ModeChoice(name_of(inference), self.mode_for(inference).name, "it is the driver's `mode`")
        if not isinstance(inference, CanNameModel) or not inference.model_name:
            return ModeChoice(
                "", self.mode_for(inference).name, "the model has no name and is assumed to have a tool API"
            )
        name = inference.model_name
        chosen = mode_choice(state, name)
        return chosen or models().explain_mode(name, wire_format=inference.wire_format_name, rows=self.models)

    def wrap_inference(self, inference: CanInfer, state: AgentState) -> CanInfer:
        """Return the model as it is called in its mode; a typed final answer needs the strict form that providers accept."""
        mode = self.mode_for(inference, state)
        # A model with a tool API may poll; others repeat a call because they do not know how to end.
        repeats = keeps_repeating if mode.streams_calls else repeats_calls
        is_stuck = len(state.steps) > 1 and repeats(state.steps, self.tools)
        asks = self.chooses_modes and isinstance(inference, CanAskServer) and inference.asks_server
        if not (mode.translates or self.output_check is not None or is_stuck or asks):
            return inference
        called = models().in_mode(inference, mode, self.scope.bounds, asks_for_answer=is_stuck)
        return models().asked(called, self.models, state) if asks else called

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Call the model, and the final model for the answer if there is one.

        Raises:
            BoundExceeded: the answer exceeds a bound on texts that are read for calls.
            DecisionExtractionError: the answer is empty, or has a call that cannot be read, after all allowed attempts.
            IncompleteAnswer: the answer did not end normally.
        """
        request, final = self.request(draft, messages), self.final_inference
        output_check = self.output_check if final is None else None
        response = await self._infer_valid(draft, request, self.inference, output_check)
        # Without tools, the final model can only answer.
        if final is not None and not response.tool_calls and not response.wants_to_continue:
            response = await self._infer_valid(draft, request.with_tools(()), final, self.output_check)
        self.conclude(draft, response)
        # The response is neither a call nor an answer, such as a pause of the provider: the loop takes another step.
        if response.wants_to_continue:
            draft.state = draft.state.with_continuation_requested()
        return without_leaked_arguments(response.parts)

    def _starts_calls(self, inference: CanInfer, state: AgentState) -> bool:
        if not self.eager:
            return False
        if isinstance(inference, CanCombineModels):
            return all(self._starts_calls(model, state) for model in inference.models)
        return self.mode_for(inference, state).streams_calls

    async def _infer_valid(
        self, draft: StepDraft, request: InferenceRequest, inference: CanInfer, output_check: OutputCheck | None
    ) -> InferenceResponse:
        attempts, problem, read = 0, "", None

        async def check(response: InferenceResponse) -> Rejection | None:
            nonlocal attempts, problem, read
            attempts += 1
            # The response may have changed the mode of its model.
            mode = self.mode_for(inference, draft.state)
            read = response
            if not (response.tool_calls or mode.translates or self.output_check):
                read = await compute_on_text(response.text, partial(mode.parse_response, response, request))
            rejection = check_response(read, self.tools.specs, mode, output_check)
            problem = "" if rejection is None else rejection.problem
            if rejection is None and self.tool_choice.is_forced:
                missing = missing_call(draft.exchanges, read)
                rejection = Rejection(output_error=missing) if missing else None
            # The executor rejects what is still wrong with the calls of the last response, and the loop checks the type of an answer.
            is_last = attempts > self.max_retries
            return rejection if problem or not is_last else None

        response = await self.infer_until_valid(draft, request, inference, check, check_last=True)
        if response.exceeded:
            limit = getattr(self.scope.bounds, response.exceeded)
            is_read = response.exceeded == "calls_per_answer"
            excess = "has far too many tool calls" if is_read else "cannot be read for tool calls"
            raise BoundExceeded(response.exceeded, limit, f"the answer of the model {excess}")
        if read is not None and read is not response and (read.quoted_calls or read.quoted_texts):
            await self.emit_quotations(draft, read)
        # That an answer was cut off says more than what a reader misses in it, and what may be shown is so in the end.
        if problem and not response.finish_reason.is_incomplete and not response.quoted_texts:
            draft.parts = response.parts
            raise DecisionExtractionError(problem, response.text)
        return response


class _KeptMode:
    """The mode that was selected last: the requests of an execution ask for it twice per step."""

    __slots__ = ("_choices", "_execution_id", "_inference", "_name", "mode")

    def __init__(self, inference: CanInfer, name: str, state: AgentState | None, mode: CanUseMode) -> None:
        self._inference, self._name, self.mode = inference, name, mode
        self._choices, self._execution_id = _choices_of(state)

    def suits(self, inference: CanInfer, name: str, state: AgentState | None) -> bool:
        """Return whether the mode is that of this model in this state, which keeps the modes that its execution has chosen."""
        if inference is not self._inference or name != self._name:
            return False
        choices, execution_id = _choices_of(state)
        return choices is self._choices and execution_id == self._execution_id


def _choices_of(state: AgentState | None) -> tuple[object, str]:
    if state is None:
        return None, ""
    return state.extensions.get(CHOICES), "" if state.execution is None else state.execution.id


_FENCE = "```"


def without_leaked_arguments(parts: tuple[ResponsePart, ...]) -> tuple[ResponsePart, ...]:
    """Return the parts without texts that only repeat the arguments of a call as JSON, bare or in a code fence."""
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if not calls or not any(isinstance(part, Text) for part in parts):
        return parts
    leaked = {canonical_json(arguments) for arguments in map(_arguments, calls) if arguments}
    return tuple([part for part in parts if not (isinstance(part, Text) and _repeats(part.text, leaked))])


def _arguments(call: ToolCall) -> dict[str, object]:
    try:
        return parse_arguments(call.arguments_json)
    except MalformedArguments:
        return {}


def _repeats(text: str, leaked: AbstractSet[str]) -> bool:
    bare = text.strip()
    if bare.startswith(_FENCE) and bare.endswith(_FENCE):
        bare = bare.strip("`").removeprefix("json").strip()
    if not bare.startswith("{"):
        return False
    # Compared as values: models repeat arguments with other spaces and in another order.
    try:
        repeated: object = parse_json(bare)
    except ValueError:
        return False
    return isinstance(repeated, dict) and canonical_json(repeated) in leaked
