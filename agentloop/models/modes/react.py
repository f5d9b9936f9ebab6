"""The ReAct pattern: thought, action and observation, until there is an answer. Its modes, its prompts, and its driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal, Self, TypeAlias, cast

from attrs import evolve, field, frozen

from agentloop.contracts.can_infer import CanInfer, CanNameModel
from agentloop.contracts.can_use_mode import CanUseMode, ModeLike, ModeStream, ToolCallValidation
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.driver import StepDraft
from agentloop.drivers.inferring_driver import InferringDriver, name_of
from agentloop.drivers.rejections import Rejection, check_output, missing_call, retry_request
from agentloop.drivers.repetition import keeps_repeating, repeats_calls
from agentloop.drivers.structural_mode import as_mode_or_name
from agentloop.errors import ConfigurationError, DecisionExtractionError, DecisionValidationError
from agentloop.errors.hints import suggest
from agentloop.models.model_capabilities import capabilities, find_row
from agentloop.models.modes.answer_stream import (
    AnswerSearch,
    AnswerStream,
    LabelSearch,
    PlainSearch,
    begins_notation,
    may_continue_notation,
)
from agentloop.models.modes.calls import (
    GO_ON,
    NO_ANSWER,
    SCRATCHPAD,
    ask_for_answer,
    is_last_answer,
    may_call,
    render_messages,
    results_message,
    text_of,
    thought_alone,
    validate_call,
    without_notice,
    without_tools,
)
from agentloop.models.modes.leaked_calls import refuse_in_answer
from agentloop.models.modes.react_reading import (
    ACTION,
    ANSWER,
    DEFAULT_POLICY,
    INPUT,
    OBSERVATION,
    THOUGHT,
    WRAPPED,
    InvalidDecision,
    ParsedDecision,
    ReActDecision,
    ReadingPolicy,
    decision_of,
    extra_fields_schema,
    extra_values,
    has_labels,
    is_json_decision,
    label_of,
    read_json_decision,
    read_text_decision,
)
from agentloop.models.modes.selection import ModeInference
from agentloop.models.modes.strict import NotStrict, closed_object, strict_schema
from agentloop.models.modes.structured import answer_schema, json_text, tool_branches_of
from agentloop.models.modes.text import describe_tool_choice, describe_tools
from agentloop.models.modes.written_calls import RunEmbedded, may_begin_in_reasoning, split_reasoning
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.bounds import Bounds
from agentloop.values.capabilities import CapabilityRow, StructuredOutput
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse, ModeChoice, ResponseFormat
from agentloop.values.messages import Message, Part, ResponsePart
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import (
    EXTRACTION,
    VALIDATION,
    ErrorInfo,
    ToolCall,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
    arguments_object,
)
from agentloop.values.value import instance_of

# --- what a model is told ---------------------------------------------------------------------------------------------

ReActPrompt: TypeAlias = Callable[[InferenceRequest], str]
"""Builds the system prompt of a request with tools; the result must include the request's own system prompt."""

_INSTRUCTIONS: Final = """\
You work in steps. In every step you think, and then either call tools or give the final answer%(form)s.

To call a tool:
%(call)s
%(several)s
To give the final answer, once no call is left to be made:
%(answer)s
"""
_JSON_FORM: Final = {
    "form": ". Write each step as one JSON object and nothing else",
    "call": '{"thought": "why", "type": "tool", "tool": "the tool\'s name", "args": {"the argument\'s name": "its value"}}',
    "several": """\
To call several tools at once, of which none needs the result of another:
{"thought": "why", "type": "tool", "calls": [{"tool": "a name", "args": {}}, {"tool": "a name", "args": {}}]}
""",
    "answer": '{"thought": "why", "type": "final", "answer": "the answer"}',
}
_TEXT_FORM: Final = {
    "form": ", in this notation",
    "call": "Thought: why\nAction: the tool's name\nAction Input: the arguments, as one JSON object",
    "several": "To call several tools at once, write one Action and its Action Input after the other.\n",
    "answer": "Thought: why\nFinal Answer: the answer",
}
_RULES: Final = """\
After a call, stop writing: the results are given to you in the next message, after the word Observation. Never write an \
observation yourself. Call only the tools below, each with arguments that satisfy its JSON Schema.
"""


def _system_prompt(request: InferenceRequest, form: dict[str, str], extra_fields: Sequence[str]) -> str:
    """Return the request's system prompt, followed by the instructions for a form of decisions and the tools."""
    several = "" if request.parallel_tool_calls is False else form["several"]
    sections = [f"{request.system_prompt}\n"] if request.system_prompt else []
    sections += [_INSTRUCTIONS % {**form, "several": several}, *extra_fields, _RULES]
    answer = request.response_format
    if answer is not None:
        required = "is a JSON object" if answer.schema is None else f"satisfies {text_of(answer.schema)}"
        sections.append(f"The final answer is JSON that {required}.\n")
    choice = describe_tool_choice(request.tool_choice)
    if choice:
        sections.append(f"{choice}\n")
    return "\n".join([*sections, describe_tools(request.tools)])


def _plain_answer_prompt(request: InferenceRequest) -> str:
    """Return the system prompt of a request without calls; if its messages contain calls, it asks for a plain answer."""
    if not any(message.exchanges for message in request.messages):
        return request.system_prompt
    form = "" if request.response_format is not None else ", in plain words and without any labels"
    instruction = f"No tool can be called any more. Write your answer now{form}."
    return f"{request.system_prompt}\n\n{instruction}" if request.system_prompt else instruction


def _decision_format(request: InferenceRequest, decision_type: type[ReActDecision]) -> ResponseFormat:
    """Return the response format of a decision: a choice of whole objects, so that no key contradicts another one or stays empty.

    Providers require an object at the root, so the choice is a property of it.
    """
    branches = tool_branches_of(request)
    definitions = {name: schema for branch in branches for name, schema in branch.definitions.items()}
    call_schemas = [branch.schema["properties"] for branch in branches]
    calls = [{"tool": schema["tool"], "args": schema["arguments"]} for schema in call_schemas]
    tool, final = ({"type": "string", "enum": [kind]} for kind in ("tool", "final"))
    decisions: list[dict[str, Any]] = [{"type": tool, **call} for call in calls]
    if calls and request.parallel_tool_calls is not False:
        items = {"anyOf": [closed_object(call) for call in calls]}
        decisions.append({"type": tool, "calls": {"type": "array", "items": items}})
    if not (request.tool_choice.is_forced and calls):
        answer, inner = answer_schema(request.response_format)
        definitions |= inner
        decisions.append({"type": final, "answer": answer})
    # The thought comes first, so that the model reasons before it decides.
    extra, inner = _extra_properties(decision_type)
    lead = {"thought": {"type": "string"}, **extra}
    schema = closed_object({WRAPPED: {"anyOf": [closed_object({**lead, **decision}) for decision in decisions]}})
    definitions |= inner
    return ResponseFormat({**schema, **({"$defs": definitions} if definitions else {})}, name="decision")


def _extra_properties(decision_type: type[ReActDecision]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the strict schemas of the fields that a subclass adds, and their definitions."""
    schema, strict, definitions = extra_fields_schema(decision_type), dict[str, Any](), dict[str, Any]()
    for name, inner in schema["properties"].items():
        try:
            alone, used = strict_schema({**schema, "properties": {name: inner}}, "decision.")
        except NotStrict:
            shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
            strict[name] = json_text({**inner, **shared}, "The text of JSON")
        else:
            strict[name] = alone["properties"][name]
            definitions |= used
    return strict, definitions


# --- how a conversation is shown --------------------------------------------------------------------------------------

AS_WRITTEN: Final = "as_written"
"""Metadata key of a message that is rendered exactly as the model wrote it."""


def _render(format_decision: Callable[[Message], str], message: Message) -> Sequence[Message]:
    """Return a message with its decision in a notation, followed by a user's message with the observations."""
    if message.role != "assistant" or message.metadata.get(AS_WRITTEN):
        return (message,)
    # What cannot be expressed in the notation remains as parts before the text.
    others = [part for part in message.parts if _is_other_part(part)]
    rendered = Message.assistant(*others, format_decision(message))
    exchanges = message.exchanges
    if not exchanges:
        return (rendered, GO_ON) if thought_alone(message) else (rendered,)
    labels = [OBSERVATION]
    if len(exchanges) > 1:
        labels = [f"{OBSERVATION} {number} ({each.call.name})" for number, each in enumerate(exchanges, 1)]
    return rendered, results_message(
        [(f"{label}: {exchange.execution.text}", exchange) for label, exchange in zip(labels, exchanges, strict=True)]
    )


def _is_other_part(part: Part) -> bool:
    # Reasoning with data of the provider is not plain text: the provider requires it back unchanged.
    if isinstance(part, Reasoning):
        return bool(part.provider_data)
    if isinstance(part, ProviderPart):
        return not extra_values([part])
    return not isinstance(part, Text | ToolExchange)


def _thought_of(message: Message) -> str:
    thoughts = [part.text for part in message.parts if isinstance(part, Reasoning) and not part.provider_data]
    if message.exchanges:  # the text next to calls is not an answer
        thoughts.append(message.text)
    return "\n\n".join([thought for thought in thoughts if thought])


# --- the modes --------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ReActMode(CanUseMode):
    """The common part of both notations. A request without tools asks for a plain answer.

    Attributes:
        decision_type: the class of the decisions.
        prompt: builds the system prompt of a request with tools; None for the default of the notation.
        policy: when calls in prose run, and the bounds on texts that are read; a driver sets the bounds of its loop.
    """

    decision_type: type[ReActDecision] = ReActDecision
    prompt: ReActPrompt | None = None
    policy: ReadingPolicy = DEFAULT_POLICY

    @abstractmethod
    def _offer(self, request: InferenceRequest, rendered: InferenceRequest) -> InferenceRequest:
        """Return the rendered request with the prompt for a decision, and with the response format that the provider enforces."""

    @abstractmethod
    def read_decision(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Parse a decision from a text."""

    @abstractmethod
    def _format(self, message: Message) -> str:
        """Return the decision of a message in the notation."""

    def _answer_search(self) -> AnswerSearch:
        """Return a search for the answer in the streamed text of a decision."""
        return AnswerSearch()

    @property
    def reprompts(self) -> bool:
        """Always true: a decision that cannot be used is sent back with the reason."""
        return True

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return self if bounds is self.policy.bounds else evolve(self, policy=evolve(self.policy, bounds=bounds))

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools and the notation in the prompt, and its messages in the notation."""
        rendered = without_tools(render_messages(request, f"decisions of {self.name}", partial(_render, self._format)))
        if not may_call(request):
            return self._ask_for_answer(request, rendered)
        offered = self._offer(request, rendered)
        return offered if self.prompt is None else offered.with_system_prompt(self.prompt(request))

    def _ask_for_answer(self, request: InferenceRequest, rendered: InferenceRequest) -> InferenceRequest:
        """Return the rendered request for an answer without calls, in plain words or in its own form."""
        return without_notice(rendered).with_system_prompt(_plain_answer_prompt(request))

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the thought as reasoning, the calls as calls and the answer as text."""
        if response.tool_calls:
            return response
        if not may_call(request):
            return self._read_answer(response, request)
        decided = self._reader_of(response, request).read_decision(response.text, request).apply_to(response)
        return refuse_in_answer(decided, request, self.policy.bounds)

    def _read_answer(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response to a request without calls. A model that sees its earlier decisions may write another one."""
        is_last = is_last_answer(request)
        if not (is_last or may_continue_notation(request)) or not begins_notation(response.text):
            return response
        decision = self.read_decision(response.text, request)
        if decision.answer and not decision.problem and not decision.calls:
            return decision.apply_to(response)
        is_decision = decision.calls or not decision.problem or is_json_decision(response.text)
        return evolve(response, problem=NO_ANSWER) if is_last and is_decision else response

    def _reader_of(self, response: InferenceResponse, request: InferenceRequest) -> Self:
        """Return this mode, with a policy that knows whether the text of the response may begin in reasoning."""
        if may_begin_in_reasoning(response, request):
            return self
        return evolve(self, policy=evolve(self.policy, begins_in_reasoning=False))

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that emits the answer's text from where it certainly begins."""
        return AnswerStream(self._answer_search() if may_call(request) else PlainSearch())


@frozen(kw_only=True)
class ReActJsonMode(ReActMode):
    """A decision as one JSON object. Where the model may call no tool, it is asked for an object with the answer alone.

    Attributes:
        constrain: what the provider is asked to enforce: the decision's schema, any JSON object, or nothing.
    """

    constrain: StructuredOutput | None = "json_schema"

    @property
    def name(self) -> str:
        """`react-json`."""
        return "react-json"

    def _format(self, message: Message) -> str:
        thought = _thought_of(message)
        if thought_alone(message):
            return text_of({SCRATCHPAD: thought})
        calls = [{"tool": each.call.name, "args": arguments_object(each.call)} for each in message.exchanges]
        decided: dict[str, Any] = {"type": "tool", **calls[0]} if len(calls) == 1 else {"type": "tool", "calls": calls}
        if not calls:
            decided = {"type": "final", "answer": message.text}
        return text_of({"thought": thought, **extra_values(message.parts), **decided})

    def _offer(self, request: InferenceRequest, rendered: InferenceRequest) -> InferenceRequest:
        extra = extra_fields_schema(self.decision_type)
        fields = f"Every such object also has what this JSON Schema asks for:\n{text_of(extra)}\n"
        prompt = _system_prompt(request, _JSON_FORM, [fields] if extra["properties"] else [])
        response_format = None if self.constrain is None else ResponseFormat()
        if self.constrain == "json_schema":
            response_format = _decision_format(request, self.decision_type)
        return evolve(rendered, system_prompt=prompt, response_format=response_format)

    def _ask_for_answer(self, request: InferenceRequest, rendered: InferenceRequest) -> InferenceRequest:
        if is_last_answer(request):
            return ask_for_answer(rendered, self.constrain)
        return super()._ask_for_answer(request, rendered)

    def read_decision(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Parse a JSON object, or labeled lines if there is none."""
        decision = read_json_decision(text, request, self.decision_type, self.policy)
        if not decision.problem or decision.exceeded or not has_labels(text):
            return decision
        labeled = read_text_decision(text, request.tools, self.decision_type, self.policy)
        return decision if labeled.problem else labeled


@frozen(kw_only=True)
class ReActTextMode(ReActMode):
    """A decision as `Thought:`, `Action:`, `Action Input:` and `Final Answer:`, for models that do not write JSON reliably."""

    @property
    def name(self) -> str:
        """`react-text`."""
        return "react-text"

    def _format(self, message: Message) -> str:
        thought = _thought_of(message)
        lines = [f"{THOUGHT}: {thought}"] if thought else []
        lines += [f"{label_of(name)}: {text_of(value)}" for name, value in extra_values(message.parts).items()]
        for exchange in message.exchanges:
            arguments = text_of(arguments_object(exchange.call))
            lines += [f"{ACTION}: {exchange.call.name}", f"{INPUT}: {arguments}"]
        if not message.exchanges and not thought_alone(message):
            lines.append(f"{ANSWER}: {message.text}")
        return "\n".join(lines)

    def _offer(self, request: InferenceRequest, rendered: InferenceRequest) -> InferenceRequest:
        extra = extra_fields_schema(self.decision_type)["properties"]
        lines = [f"`{label_of(name)}: ` and what satisfies {text_of(schema)}" for name, schema in extra.items()]
        prompt = _system_prompt(request, _TEXT_FORM, [f"After every Thought, write a line {line}\n" for line in lines])
        return evolve(rendered, system_prompt=prompt, response_format=None)

    def read_decision(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Parse labeled lines, or a JSON object if the text is one."""
        if split_reasoning(text)[1].lstrip().startswith(("{", "```")):
            decision = read_json_decision(text, request, self.decision_type, self.policy)
            if not decision.problem or decision.exceeded:
                return decision
        return read_text_decision(text, request.tools, self.decision_type, self.policy)

    def _answer_search(self) -> AnswerSearch:
        return LabelSearch()


def select_react_mode(
    output: ModeLike | str,
    inference: CanInfer,
    rows: Sequence[CapabilityRow] = (),
    *,
    decision_type: type[ReActDecision] = ReActDecision,
    prompt: ReActPrompt | None = None,
    run_embedded: RunEmbedded = "pure",
) -> CanUseMode:
    """Return the mode in which a model is asked for decisions.

    Args:
        output: a mode, `json`, `text`, or `auto` for JSON if the provider can enforce it and text otherwise.
        inference: the model.
        rows: capabilities of models; they take precedence over those of the published models.
        decision_type: the class of the decisions.
        prompt: builds the system prompt; None for the default of the notation.
        run_embedded: when calls in prose run.

    Raises:
        ConfigurationError: no output has this name.
        TypeError: it is neither a name nor an object with the methods of a mode.
    """
    output = as_mode_or_name(output)
    if isinstance(output, CanUseMode):
        return output
    known = ("auto", "json", "text")
    if output not in known:
        raise ConfigurationError(
            f"there is no output {output!r} of ReAct decisions{suggest(str(output), known)}; known are {', '.join(known)}"
        )
    policy = DEFAULT_POLICY if run_embedded == "pure" else ReadingPolicy(run_embedded)
    enforceable = _enforceable_output(inference, rows)
    if output == "text" or (output == "auto" and enforceable is None):
        return ReActTextMode(decision_type=decision_type, prompt=prompt, policy=policy)
    return ReActJsonMode(decision_type=decision_type, prompt=prompt, policy=policy, constrain=enforceable)


def _enforceable_output(inference: CanInfer, rows: Sequence[CapabilityRow]) -> StructuredOutput | None:
    """Return what the provider of a model can enforce; a model that does not report its name is assumed to follow schemas."""
    if not isinstance(inference, CanNameModel) or not inference.model_name:
        return "json_schema"
    return _look_up_output(inference.model_name, inference.wire_format_name, tuple(rows))


@lru_cache(maxsize=256)
def _look_up_output(model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> StructuredOutput | None:
    return capabilities(model, wire_format=wire_format, rows=rows).structured_output


# --- the driver -------------------------------------------------------------------------------------------------------

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
        options: model, sampling and limits of every inference: an `InferenceOptions`, or its attributes as a mapping.
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
        """The maximum number of inferences in one step: the first one, its retries, and the inferences of the final answer."""
        count = 1 + self.max_retries
        if self.final_inference is None and not self.final_via_inference:
            return count
        return count + 1 + (self.max_retries if self.output_check is not None else min(self.max_retries, 1))

    @property
    def _answering_inference(self) -> CanInfer | None:
        """The model that gives the final answer in an inference of its own; None if the decision holds the answer."""
        if self.final_inference is not None:
            return self.final_inference
        # Without tools, the first answer was already given without them: calling the same model again gains nothing.
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
        return ModeInference(inference, mode, asks_for_answer=self._is_stuck(mode, state), bounds=self.scope.bounds)

    def _is_stuck(self, mode: CanUseMode, state: AgentState) -> bool:
        """Return whether the calls of the model bring nothing new, so that it is asked for its answer."""
        # Without a schema, only words ask for the answer, and the model may ignore them: so the calls have to repeat more often.
        has_schema = isinstance(mode, ReActJsonMode) and mode.constrain == "json_schema"
        repeats = repeats_calls if has_schema else keeps_repeating
        return len(state.steps) > 1 and repeats(state.steps, self.tools)

    def _asked_for_answer(self, draft: StepDraft) -> bool:
        request = draft.exchanges[-1].request if draft.exchanges else None
        if request is not None and not may_call(request):
            return True
        return self._is_stuck(self.mode_for(self.inference), draft.state)

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
            rejection = self._check_decision(draft, response)
        answering = self._answering_inference
        if rejection is None and answering is not None and _is_final(response):
            check = partial(check_output, output_check=self.output_check)
            response = await self.infer_until_valid(
                draft, request.with_tools(()), answering, check, retry=_retry_as_written, check_last=True
            )
            last = check(response)
            rejection = last if last is not None and last.problem else None
        # For a text that was cut off, the limit is the cause, and not what the reader misses in the text.
        is_cut = rejection is not None and rejection.problem and response.finish_reason.is_incomplete
        if rejection is not None and not is_cut:
            raise fail_decision(draft, response, rejection, self.scope)
        self.conclude(draft, response)
        if response.wants_to_continue:
            draft.state = draft.state.with_continuation_requested()
        return response.parts

    def _check_response(self, draft: StepDraft, response: InferenceResponse) -> Rejection | None:
        """Return why a decision, or the answer that it holds, cannot be used."""
        rejection = self._check_decision(draft, response)
        missing = missing_call(draft.exchanges, response)
        if rejection is None and missing:
            return Rejection(output_error=missing)
        if rejection is None and self._answering_inference is None and _is_final(response):
            return check_output(response, self.output_check)
        return rejection

    def _check_decision(self, draft: StepDraft, response: InferenceResponse) -> Rejection | None:
        """Return why a decision cannot be used."""
        if response.problem:
            return Rejection(response.problem)
        if not self.tools.specs or response.wants_to_continue:
            return None
        try:
            decision = decision_of(response.parts, self.decision_type)
        except InvalidDecision as error:
            # A model that was asked for its answer alone had no place for the fields of a decision.
            is_alone = not response.tool_calls and self._asked_for_answer(draft)
            return None if is_alone else Rejection(output_error=str(error))
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
        call = ToolCall("", EXTRACTION, text_of({"text": response.text}))
    else:
        error = DecisionValidationError(rejection.messages)
        calls = [{"tool": call.name, "args": call.arguments_json} for call in response.tool_calls]
        call = ToolCall("", VALIDATION, text_of({"calls": calls, "text": response.text}))
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
