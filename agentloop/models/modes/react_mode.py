"""The modes of the ReAct pattern: decisions as JSON objects or as labeled lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Self

from attrs import evolve, frozen

from agentloop.contracts.can_infer import CanInfer, CanNameModel
from agentloop.contracts.can_use_mode import CanUseMode, ModeLike, ModeStream, ToolCallValidation
from agentloop.drivers.structural_mode import as_mode_or_name
from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.models.model_capabilities import capabilities
from agentloop.models.modes.answer_stream import (
    AnswerSearch,
    AnswerStream,
    LabelSearch,
    PlainSearch,
    begins_notation,
    may_continue_notation,
)
from agentloop.models.modes.calls import render_messages, validate_call
from agentloop.models.modes.leaked_calls import refuse_in_answer
from agentloop.models.modes.react_decision import ReActDecision, decision_format
from agentloop.models.modes.react_prompt import (
    ReActPrompt,
    final_answer_prompt,
    json_prompt,
    render_as_json,
    render_as_text,
    text_prompt,
)
from agentloop.models.modes.react_reading import (
    DEFAULT_POLICY,
    ParsedDecision,
    ReadingPolicy,
    has_labels,
    read_json_decision,
    read_text_decision,
    split_reasoning,
)
from agentloop.models.modes.written_calls import RunEmbedded, may_begin_in_reasoning
from agentloop.values.bounds import Bounds
from agentloop.values.capabilities import CapabilityRow, StructuredOutput
from agentloop.values.inference import InferenceRequest, InferenceResponse, ResponseFormat, ToolChoice
from agentloop.values.tool_calls import ToolCall, ToolSpec


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

    @property
    def reprompts(self) -> bool:
        """Always true: a decision that cannot be used is sent back with the reason."""
        return True

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return self if bounds is self.policy.bounds else evolve(self, policy=evolve(self.policy, bounds=bounds))

    @abstractmethod
    def render(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its messages in the notation."""

    @abstractmethod
    def default_prompt(self, request: InferenceRequest) -> str:
        """Return the notation's system prompt for a request with tools."""

    @abstractmethod
    def response_format(self, request: InferenceRequest) -> ResponseFormat | None:
        """Return the form in which the provider is asked to keep the model's text; None for any."""

    @abstractmethod
    def read_decision(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Parse a decision from a text."""

    @abstractmethod
    def answer_search(self) -> AnswerSearch:
        """Return a search for the answer in a streamed text."""

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools and the notation in the prompt, and its messages in the notation."""
        offered = evolve(self.render(request), tools=(), tool_choice=ToolChoice.auto(), parallel_tool_calls=None)
        if not request.tools:
            return offered.with_system_prompt(final_answer_prompt(request))
        prompt = self.prompt or self.default_prompt
        return evolve(offered, system_prompt=prompt(request), response_format=self.response_format(request))

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the thought as reasoning, the calls as calls and the answer as text."""
        if response.tool_calls:
            return response
        if request.tools:
            decided = self._as_told_by(response, request).read_decision(response.text, request).apply_to(response)
            return refuse_in_answer(decided, request, self.policy.bounds)
        # A model that sees its earlier decisions may write another one although a plain answer is requested.
        if not may_continue_notation(request) or not begins_notation(response.text):
            return response
        decision = self.read_decision(response.text, request)
        is_answer = decision.answer and not decision.problem and not decision.calls
        return decision.apply_to(response) if is_answer else response

    def _as_told_by(self, response: InferenceResponse, request: InferenceRequest) -> Self:
        """Return a mode that knows whether the text may begin in reasoning."""
        if may_begin_in_reasoning(response, request):
            return self
        return evolve(self, policy=evolve(self.policy, begins_in_reasoning=False))

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that emits the answer's text from where it certainly begins."""
        return AnswerStream(self.answer_search() if request.tools else PlainSearch())


@frozen(kw_only=True)
class ReActJsonMode(ReActMode):
    """A decision as one JSON object.

    Attributes:
        constrain: what the provider is asked to enforce: the decision's schema, any JSON object, or nothing.
    """

    constrain: Literal["json_schema", "json_object"] | None = "json_schema"

    @property
    def name(self) -> str:
        """`react-json`."""
        return "react-json"

    def render(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with decisions as JSON objects."""
        return render_messages(request, "decisions as JSON", render_as_json)

    def default_prompt(self, request: InferenceRequest) -> str:
        """Return the prompt that asks for JSON objects."""
        return json_prompt(request, self.decision_type)

    def response_format(self, request: InferenceRequest) -> ResponseFormat | None:
        """Return what the provider is asked to enforce."""
        if self.constrain is None:
            return None
        return decision_format(request, self.decision_type) if self.constrain == "json_schema" else ResponseFormat()

    def read_decision(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Parse a JSON object, or labeled lines if there is none."""
        decision = read_json_decision(text, request, self.decision_type, self.policy)
        if not decision.problem or decision.exceeded or not has_labels(text):
            return decision
        labeled = read_text_decision(text, request.tools, self.decision_type, self.policy)
        return decision if labeled.problem else labeled

    def answer_search(self) -> AnswerSearch:
        """Return a search that finds nothing: an object is parsed when it is complete."""
        return AnswerSearch()


@frozen(kw_only=True)
class ReActTextMode(ReActMode):
    """A decision as `Thought:`, `Action:`, `Action Input:` and `Final Answer:`, for models that do not write JSON reliably."""

    @property
    def name(self) -> str:
        """`react-text`."""
        return "react-text"

    def render(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with decisions as labeled lines."""
        return render_messages(request, "decisions as text", render_as_text)

    def default_prompt(self, request: InferenceRequest) -> str:
        """Return the prompt that asks for labeled lines."""
        return text_prompt(request, self.decision_type)

    def response_format(self, request: InferenceRequest) -> ResponseFormat | None:  # noqa: ARG002  # any text
        """Return None: labeled lines have no schema."""
        return None

    def read_decision(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Parse labeled lines, or a JSON object if the text is one."""
        if split_reasoning(text)[1].lstrip().startswith(("{", "```")):
            decision = read_json_decision(text, request, self.decision_type, self.policy)
            if not decision.problem or decision.exceeded:
                return decision
        return read_text_decision(text, request.tools, self.decision_type, self.policy)

    def answer_search(self) -> AnswerSearch:
        """Return a search for `Final Answer:`."""
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
    if output not in {"auto", "json", "text"}:
        known = ("auto", "json", "text")
        raise ConfigurationError(
            f"there is no output {output!r} of ReAct decisions{suggest(str(output), known)}; known are {', '.join(known)}"
        )
    policy = DEFAULT_POLICY if run_embedded == "pure" else ReadingPolicy(run_embedded)
    enforceable = _enforceable_output(inference, rows)
    if output == "text" or (output == "auto" and enforceable is None):
        return ReActTextMode(decision_type=decision_type, prompt=prompt, policy=policy)
    return ReActJsonMode(decision_type=decision_type, prompt=prompt, policy=policy, constrain=enforceable)


def _enforceable_output(inference: CanInfer, rows: Sequence[CapabilityRow]) -> StructuredOutput | None:
    """Return what the provider of a model can enforce; a model that does not report its name is assumed to have schemas."""
    if not isinstance(inference, CanNameModel) or not inference.model_name:
        return "json_schema"
    return _look_up_output(inference.model_name, inference.wire_format_name, tuple(rows))


@lru_cache(maxsize=256)
def _look_up_output(model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> StructuredOutput | None:
    return capabilities(model, wire_format=wire_format, rows=rows).structured_output
