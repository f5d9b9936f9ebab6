"""The contract of tool-calling modes: how tools are offered to a model, and how its calls are read back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from attrs import field, frozen

from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.tool_calls import ToolCall, ToolSpec
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class ToolCallValidation(Value):
    """Whether a call can be executed.

    Attributes:
        is_valid: whether the tool was offered and the arguments satisfy its schema.
        error_message: why not, in words that a model can act on; empty when it can.
        arguments: the arguments, when it can.
    """

    is_valid: bool
    error_message: str = ""
    arguments: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


class CanRenderRequest(ABC):
    """A model that is asked in another way than it is given, and can tell how. It is pure."""

    @abstractmethod
    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return a request as the model gets it."""


class ModeStream(ABC):
    """Translates the pieces of one streamed answer while they come."""

    @abstractmethod
    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Take a piece as the model wrote it, and return what it means; text in which a call may begin is held back."""

    @abstractmethod
    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Take the whole answer, translated, and return the pieces that were held back."""


class CanUseMode(ABC):
    """A way in which a model is offered tools and calls them. It is pure, and usable by itself.

    An implementer keeps these laws:

    - What is stored and what interceptors see does not depend on it: requests are translated on their way to the model,
      responses on their way back (law 12).
    - No translated request holds a call without its execution (law 2).
    - Within an epoch, the translation of a request extends that of the request before (law 13).
    - No text of a model makes it raise, and nothing of it is evaluated.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name, such as `validated`."""

    @property
    def reprompts(self) -> bool:
        """Whether a call that cannot be executed is answered with the error and asked for again, instead of being executed."""
        return False

    @property
    def translates(self) -> bool:
        """Whether requests and responses look otherwise to the model; one that never translates costs nothing."""
        return True

    @abstractmethod
    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request as the model gets it in this mode."""

    @abstractmethod
    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls that the model made.

        Args:
            response: what the model answered to the translated request.
            request: the request before it was translated.

        Returns:
            The response in neutral form. Its `problem` says what cannot be read; `wants_to_continue` that the model has
            neither called nor answered yet.
        """

    @abstractmethod
    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Say whether a call can be executed."""

    @abstractmethod
    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return what translates a streamed answer to this request, before it was translated."""
