"""The contracts of tool-calling modes: how tools are offered to a model, and how its calls are parsed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol, Self

from attrs import field, frozen

from agentloop.contracts.tools import Tools
from agentloop.values.bounds import Bounds
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.tool_calls import ToolCall, ToolSpec
from agentloop.values.value import Value

ANSWER_DROPPED: Final = "an answer beside the call dropped"
OBSERVATION_CUT: Final = "an invented observation cut off"
BESIDE_CALLS: Final = frozenset({ANSWER_DROPPED, OBSERVATION_CUT})
"""The repairs that concern what stands behind a call and not the call, which is whole."""


@frozen(eq=False, repr=False)
class ToolCallValidation(Value):
    """The result of validating a call.

    Attributes:
        is_valid: whether the tool was offered and the arguments satisfy its schema.
        error_message: the problem, in words that a model can act on; empty if the call is valid.
        arguments: the arguments if the call is valid, coerced and with the defaults of the parameters that were left out; else
            empty.
    """

    is_valid: bool
    error_message: str = ""
    arguments: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


class CanRenderRequest(ABC):
    """An inference that changes the form of requests before it sends them, and can return that form."""

    @abstractmethod
    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request in the form in which the model receives it. Pure."""


class ModeStream(ABC):
    """Translates the deltas of one streamed response as they arrive.

    When an attempt of the inference has failed, the next one has a stream of its own.
    """

    @abstractmethod
    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Translate a delta; text in which a call may start is held back until that is decided."""

    @abstractmethod
    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas that were held back.

        Args:
            response: the complete response, already translated.
        """


class CanUseMode(ABC):
    """A tool-calling mode: the form in which tools are offered to a model and in which the model calls them.

    An implementation keeps these laws:

    - Its methods are pure, so that executions do not meet in it (law 9).
    - State and interceptors do not depend on the mode: requests are translated on their way to the model, responses on their
      way back (law 12).
    - A translated request has the options of the request (law 33); texts that end the response may be added.
    - No translated request holds a call without its execution (law 2).
    - Within an epoch, the translation of a request extends the translation of the request before it (law 13).
    - No text of a model makes a method raise, and no text is evaluated as code.
    - A call that a model has begun to write is a call, a rejection with its reason, or a quotation that the response has (law 39).
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the mode, such as `validated`."""

    @property
    def reprompts(self) -> bool:
        """Whether an invalid call is returned to the model with the error within the step, instead of being executed."""
        return False

    @property
    def translates(self) -> bool:
        """Whether the mode changes requests and responses; if False, drivers skip the translation."""
        return True

    @property
    def streams_calls(self) -> bool:
        """Whether a call that is complete in the deltas of a stream is a call of the response, as with a provider's tool API."""
        return False

    @property
    def fallback(self) -> CanUseMode | None:
        """The mode in which to call a model whose provider refuses tools; None if the refusal is an error."""
        return None

    def with_bounds(self, bounds: Bounds) -> Self:  # noqa: ARG002  # for modes that read text
        """Return a mode that reads answers within these bounds; a mode that does not search texts for calls needs none."""
        return self

    def with_tools(self, tools: Tools) -> Self:  # noqa: ARG002  # for modes that describe more than a request holds
        """Return a mode that knows the tools of the execution; a mode that needs only what a request holds is the same."""
        return self

    def add_tools(self, tools: Tools) -> Tools:
        """Return the tools with those that the mode needs besides; by default the same."""
        return tools

    @abstractmethod
    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request in the form in which the model receives it."""

    @abstractmethod
    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response in neutral form, with its calls parsed.

        Args:
            response: the model's response to the translated request.
            request: the request before its translation.

        Returns:
            The neutral response. `problem` describes what cannot be parsed; `wants_to_continue` is set if the model neither
            called a tool nor answered. Calls that were found in text but must not run have a `rejection`, and those that
            the text only quotes are in `quoted_calls`.
        """

    @abstractmethod
    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Return whether a call can be executed.

        Args:
            call: the call.
            tools: the offered tools.
        """

    @abstractmethod
    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return the translator of a streamed response.

        Args:
            request: the request before its translation.
        """


class ModeLike(Protocol):
    """An object with the methods of a mode, whether or not its class inherits from `CanUseMode`, which describes them.

    The other members of `CanUseMode`, such as `reprompts`, count where an object has them.
    """

    @property
    def name(self) -> str:
        """The name of the mode."""

    def render_request(self, request: InferenceRequest, /) -> InferenceRequest:
        """Return the request in the form in which the model receives it."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest, /) -> InferenceResponse:
        """Return the response in neutral form, with its calls parsed."""

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec], /) -> ToolCallValidation:
        """Return whether a call can be executed."""

    def stream(self, request: InferenceRequest, /) -> ModeStream:
        """Return the translator of a streamed response."""
