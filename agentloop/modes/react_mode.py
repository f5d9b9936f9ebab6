"""The modes of the ReAct pattern: a decision as a JSON object, or in labeled lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Literal

from attrs import evolve, frozen

from agentloop.contracts.can_infer import CanInfer, CanNameModel
from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.errors import ConfigurationError
from agentloop.inference.model_capabilities import capabilities
from agentloop.inference.model_rows import CapabilityRow, StructuredOutput
from agentloop.modes.answer_stream import AnswerSearch, LabelSearch, PlainSearch, ReActStream, may_be_decision
from agentloop.modes.calls import validate_call
from agentloop.modes.react_decision import ReActDecision, decision_format
from agentloop.modes.react_prompt import ReActPrompt, json_prompt, tell_as_json, tell_as_text, text_prompt, told_end
from agentloop.modes.react_reading import (
    ParsedDecision,
    has_labels,
    read_json_decision,
    read_text_decision,
    split_thoughts,
)
from agentloop.values.inference import InferenceRequest, InferenceResponse, ResponseFormat, ToolChoice
from agentloop.values.messages import Message
from agentloop.values.tool_calls import ToolCall, ToolSpec
from agentloop.values.value import encode_each


@frozen(kw_only=True)
class ReActMode(CanUseMode):
    """What both notations have in common. A request without tools asks for a plain answer.

    Attributes:
        decision_type: the class of the decisions.
        prompt: makes the system prompt of a request that has tools; None for the one of the notation.
    """

    decision_type: type[ReActDecision] = ReActDecision
    prompt: ReActPrompt | None = None

    @property
    def asks_again(self) -> bool:
        """Yes."""
        return True

    @abstractmethod
    def tell(self, request: InferenceRequest) -> Sequence[Message]:
        """Return the conversation in the notation."""

    @abstractmethod
    def instruct(self, request: InferenceRequest) -> str:
        """Return the system prompt of a request that has tools."""

    @abstractmethod
    def form(self, request: InferenceRequest) -> ResponseFormat | None:
        """Return the form that the model's text has to have."""

    @abstractmethod
    def decided(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Read a decision out of a text."""

    @abstractmethod
    def search(self) -> AnswerSearch:
        """Return what looks for the answer in a text that is being written."""

    def offer(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools and the notation in the prompt, and its conversation in the notation."""
        told = evolve(
            request,
            messages=tuple(self.tell(request)),
            tools=(),
            tool_choice=ToolChoice.auto(),
            parallel_tool_calls=None,
        )
        if not request.tools:
            return told.with_system_prompt(told_end(request))
        prompt = self.prompt or self.instruct
        return evolve(told, system_prompt=prompt(request), response_format=self.form(request))

    def read(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the thought as reasoning, the calls as calls and the answer as text."""
        if response.tool_calls:
            return response
        if request.tools:
            return self.decided(response.text, request).response(response)
        if not _may_decide(request) or not may_be_decision(response.text):
            return response
        found = self.decided(response.text, request)
        return response if found.problem or found.calls or not found.answer else found.response(response)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Say whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return what translates a streamed answer: the answer is shown from where it certainly is one."""
        return ReActStream(self.search if request.tools else PlainSearch)


@frozen(kw_only=True)
class ReActJsonMode(ReActMode):
    """A decision as one JSON object.

    Attributes:
        constrain: what the provider is asked to keep the text to: the decision's schema, any JSON object, or nothing.
    """

    constrain: Literal["json_schema", "json_object"] | None = "json_schema"

    @property
    def name(self) -> str:
        """`react-json`."""
        return "react-json"

    def tell(self, request: InferenceRequest) -> Sequence[Message]:
        """Return the conversation with decisions as JSON objects."""
        return tuple(chain.from_iterable(encode_each(request.messages, "decisions as JSON", tell_as_json)))

    def instruct(self, request: InferenceRequest) -> str:
        """Return the prompt that asks for JSON objects."""
        return json_prompt(request, self.decision_type)

    def form(self, request: InferenceRequest) -> ResponseFormat | None:
        """Return the schema of decisions, as far as the provider is asked for it."""
        if self.constrain is None:
            return None
        return decision_format(request, self.decision_type) if self.constrain == "json_schema" else ResponseFormat()

    def decided(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Read a JSON object, or labeled lines where there is none."""
        found = read_json_decision(text, request, self.decision_type)
        if not found.problem or not has_labels(text):
            return found
        lines = read_text_decision(text, request.tools, self.decision_type)
        return found if lines.problem else lines

    def search(self) -> AnswerSearch:
        """Return what waits for the whole object."""
        return AnswerSearch()


@frozen(kw_only=True)
class ReActTextMode(ReActMode):
    """A decision as `Thought:`, `Action:`, `Action Input:` and `Final Answer:`, for models that cannot write JSON reliably."""

    @property
    def name(self) -> str:
        """`react-text`."""
        return "react-text"

    def tell(self, request: InferenceRequest) -> Sequence[Message]:
        """Return the conversation with decisions in labeled lines."""
        return tuple(chain.from_iterable(encode_each(request.messages, "decisions as text", tell_as_text)))

    def instruct(self, request: InferenceRequest) -> str:
        """Return the prompt that asks for labeled lines."""
        return text_prompt(request, self.decision_type)

    def form(self, request: InferenceRequest) -> ResponseFormat | None:  # noqa: ARG002  # text has no form
        """Return None."""
        return None

    def decided(self, text: str, request: InferenceRequest) -> ParsedDecision:
        """Read labeled lines, or a JSON object where that is what the text is."""
        is_json = split_thoughts(text)[1].lstrip().startswith(("{", "```"))
        if is_json:
            found = read_json_decision(text, request, self.decision_type)
            if not found.problem:
                return found
        return read_text_decision(text, request.tools, self.decision_type)

    def search(self) -> AnswerSearch:
        """Return what looks for `Final Answer:`."""
        return LabelSearch()


def _may_decide(request: InferenceRequest) -> bool:
    """Say whether a model that is asked for a plain answer has seen decisions, which it may go on writing."""
    return request.response_format is None and any(message.role == "assistant" for message in request.messages)


def react_mode_for(
    output: CanUseMode | str,
    inference: CanInfer,
    rows: Sequence[CapabilityRow] = (),
    *,
    decision_type: type[ReActDecision] = ReActDecision,
    prompt: ReActPrompt | None = None,
) -> CanUseMode:
    """Return the mode to ask a model in: JSON where its answers can be kept to it, else text, when it is left to `auto`.

    Args:
        output: a mode, `json`, `text` or `auto`.
        inference: the model.
        rows: what models are able to do, before what is known of the published ones.
        decision_type: the class of the decisions.
        prompt: makes the system prompt; None for the one of the notation.

    Raises:
        ConfigurationError: for an output of another name.
    """
    if isinstance(output, CanUseMode):
        return output
    if output not in {"auto", "json", "text"}:
        raise ConfigurationError(f"there is no output {output!r} of ReAct decisions; known are auto, json, text")
    able = _structured_output(inference, rows)
    if output == "text" or (output == "auto" and able is None):
        return ReActTextMode(decision_type=decision_type, prompt=prompt)
    return ReActJsonMode(decision_type=decision_type, prompt=prompt, constrain=able)


def _structured_output(inference: CanInfer, rows: Sequence[CapabilityRow]) -> StructuredOutput | None:
    """Say what a model's answers can be kept to; of one that does not tell its name the best is thought."""
    if not isinstance(inference, CanNameModel) or not inference.model_name:
        return "json_schema"
    return _looked_up(inference.model_name, inference.wire_format_name, tuple(rows))


@lru_cache(maxsize=256)
def _looked_up(model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> StructuredOutput | None:
    return capabilities(model, wire_format=wire_format, rows=rows).structured_output
