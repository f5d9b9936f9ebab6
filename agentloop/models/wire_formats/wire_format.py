"""The contract of wire formats: how a family of providers encodes requests and responses, without I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.models.config import LLMConfig
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.json import EMPTY_OBJECT, replace_lone_surrogates
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class EncodedRequest(Value):
    """A request as it is sent, without the API key.

    Attributes:
        path: the path of the endpoint, relative to the base URL.
        body: the request body; lone surrogates in it are replaced by U+FFFD.
        headers: the headers that the wire format requires.
        tool_names: the original names of the tools that are sent under another name, by that name.
    """

    path: str
    # A body may contain megabytes of media, so its representation is its size.
    body: bytes = field(converter=replace_lone_surrogates, repr=lambda body: f"<{len(body)} bytes>")
    headers: Mapping[str, str] = field(factory=dict)
    tool_names: Mapping[str, str] = field(factory=dict)

    @classmethod
    def of_clean(cls, path: str, body: bytes, tool_names: Mapping[str, str]) -> EncodedRequest:
        """Return a request whose body is known to have no lone surrogates, so that a long one is not searched for them."""
        request = cls(path, b"", tool_names=tool_names)
        object.__setattr__(request, "body", body)
        return request


class WireFormat(ABC):
    """Encodes neutral requests as bytes and decodes bytes to neutral responses.

    An implementer keeps these laws:

    - It does no I/O, and keeps no state between calls except cached encodings of immutable values.
    - No encoded request contains a tool call without its result (law 2).
    - Within an epoch, the bytes for tools, system prompt and messages extend those of the previous request (law 13).
    - An option of the request is encoded or refused, and overrides the same option of the configuration (law 33). Within one
      `InferenceOptions`, an entry of `extra` overrides the option that it names.
    - Bytes that are not a valid response raise a typed error and no other exception, in time and memory linear in their
      length.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name, such as `openai-chat`."""

    def for_execution(self) -> WireFormat:
        """Return the format for the requests of one execution.

        They usually extend each other, so that a format may keep what it has encoded of the last one. By default, the
        format itself.
        """
        return self

    @abstractmethod
    def encode_request(self, request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
        """Encode a request.

        Args:
            request: the request.
            config: the model and how to reach it.
            stream: whether to request a streamed response.

        Raises:
            BadRequest: when the format has no encoding for something in the request, or `options.extra` repeats an entry of
                the body that is not an option, such as the messages; names the part.
        """

    @abstractmethod
    def decode_response(self, status: int, headers: Mapping[str, str], body: bytes) -> InferenceResponse:
        """Decode a complete response.

        Args:
            status: the HTTP status.
            headers: the HTTP headers, by lower-case names.
            body: the complete body.

        Raises:
            InferenceError: typed by status and body: an error that the provider reports, or `InvalidResponse`.
        """

    @abstractmethod
    def stream_decoder(self, headers: Mapping[str, str] = EMPTY_OBJECT) -> StreamDecoder:
        """Return a decoder for one streamed response with a success status.

        Args:
            headers: the HTTP headers, by lower-case names.
        """


class StreamDecoder(ABC):
    """Decodes one streamed response.

    An implementer keeps these laws:

    - The deltas do not depend on chunk boundaries, which may fall inside a character. The exception is an error, which
      discards the deltas of its chunk.
    - The response equals the one that `WireFormat.decode_response` returns for the same response in one piece.
    - Bytes that are not a valid response, and errors reported inside the stream, raise typed errors. Time and memory are
      linear in the length of the stream.

    Attributes:
        is_done: whether the service has said that the response is complete, so that the end of the stream need not come.
    """

    is_done: bool = False

    @abstractmethod
    def feed(self, data: bytes) -> list[InferenceDelta]:
        """Add bytes and return the deltas that they complete.

        Raises:
            InferenceError: for an error that the provider reports, or an invalid stream.
        """

    @abstractmethod
    def close(self) -> InferenceResponse:
        """End the stream and return the complete response.

        Raises:
            InferenceError: for an error that the provider reports, or an invalid stream: `InvalidResponse` also when the
                stream ended too early.
        """


WIRE_FORMATS: Mapping[str, str] = {
    "anthropic-messages": "agentloop.models.wire_formats.anthropic_messages:AnthropicMessages",
    "bedrock-converse": "agentloop.models.wire_formats.bedrock_converse:BedrockConverse",
    "cohere-v2": "agentloop.models.wire_formats.cohere_v2:CohereV2",
    "gemini": "agentloop.models.wire_formats.gemini:Gemini",
    "ollama": "agentloop.models.wire_formats.ollama:Ollama",
    "openai-chat": "agentloop.models.wire_formats.openai_chat:OpenAIChat",
    "openai-responses": "agentloop.models.wire_formats.openai_responses:OpenAIResponses",
}
"""The module and the class of each wire format, by its name.

A format whose services all have a tool API also needs a row in `model_rows.SERVICE_ROWS`: without one, tools are offered as text
to models that no other row names. `presets.PRESETS` has the services that use a format.
"""


def wire_format(name: str) -> WireFormat:
    """Return the wire format with this name, of this package or of another distribution.

    Raises:
        ConfigurationError: for an unknown name, or an invalid format of another distribution.
    """
    location = WIRE_FORMATS.get(name)
    if location is None:
        return _installed_format(name)
    # Each format has some hundred lines, which are loaded only when it is used.
    module, _, attribute = location.partition(":")
    instance = getattr(import_module(module), attribute)()
    assert isinstance(instance, WireFormat)  # noqa: S101  # the table above lists wire formats
    return instance


def _installed_format(name: str) -> WireFormat:
    from agentloop.models.plugins import known_names, load_plugin, wrong_kind, wrong_name

    loaded = load_plugin(name, WIRE_FORMATS)
    if loaded is None:
        raise ConfigurationError(
            f"there is no wire format {name!r}{suggest(name, WIRE_FORMATS)}; the known ones are {known_names(WIRE_FORMATS)}"
        )
    if not (isinstance(loaded, type) and issubclass(loaded, WireFormat)):
        raise wrong_kind(name, loaded, "a subclass of WireFormat")
    try:
        instance = loaded()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"the wire format {name!r} cannot be created without arguments: {reason}") from error
    if instance.name != name:
        raise wrong_name(name, instance.name)
    return instance
