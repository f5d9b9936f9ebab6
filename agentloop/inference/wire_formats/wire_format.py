"""How a provider family spells requests and responses: pure code, no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.stream_decoder import StreamDecoder
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class EncodedRequest(Value):
    """A request as it goes over the wire, without the key.

    Attributes:
        path: the path of the endpoint, after the base URL.
        body: the body.
        headers: headers that belong to the wire format.
        tool_names: for tools that go by another name on the wire, that name and their own.
    """

    path: str
    body: bytes = field(repr=lambda body: f"<{len(body)} bytes>")
    headers: Mapping[str, str] = field(factory=dict)
    tool_names: Mapping[str, str] = field(factory=dict)


class WireFormat(ABC):
    """Turns neutral requests into bytes and bytes into neutral responses.

    An implementer keeps these laws:

    - It does no I/O, and keeps nothing between calls but what it encoded of immutable values.
    - No encoded request holds a call without its execution (law 2).
    - Within an epoch, the bytes for tools, system prompt and messages extend those of the request before (law 13).
    - Bytes that are not an answer raise a typed error, in time and memory that grow with their length (never another
      exception).
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name, such as `openai-chat`."""

    @abstractmethod
    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Spell a request.

        Args:
            request: the request.
            config: the model and how to reach it.
            stream: whether the answer is to come in pieces.

        Raises:
            BadRequest: when the request holds what the format cannot carry; names the part.
        """

    @abstractmethod
    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Read an answer.

        Args:
            status: the HTTP status.
            headers: the HTTP headers, by names in lower case.
            body: the whole body.

        Raises:
            InferenceError: typed by status and body: an error the provider tells, or `InvalidResponse`.
        """

    @abstractmethod
    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a reader of one streamed answer, which came with a status of success.

        Args:
            headers: the HTTP headers, by names in lower case.
        """


_FORMATS: Mapping[str, str] = {
    "anthropic-messages": "agentloop.inference.wire_formats.anthropic_messages:AnthropicMessages",
    "gemini": "agentloop.inference.wire_formats.gemini:Gemini",
    "ollama": "agentloop.inference.wire_formats.ollama:Ollama",
    "openai-chat": "agentloop.inference.wire_formats.openai_chat:OpenAIChat",
    "openai-responses": "agentloop.inference.wire_formats.openai_responses:OpenAIResponses",
}


def wire_format(name: str) -> WireFormat:
    """Return the wire format of this name.

    Raises:
        ConfigurationError: when there is none.
    """
    home = _FORMATS.get(name)
    if home is None:
        raise ConfigurationError(f"there is no wire format {name!r}; known are {', '.join(_FORMATS)}")
    module, _, attribute = home.partition(":")
    made = getattr(import_module(module), attribute)()
    assert isinstance(made, WireFormat)  # noqa: S101  # the table above lists wire formats
    return made
