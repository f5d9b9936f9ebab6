"""Inference over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import (
    CanAskServer,
    CanInfer,
    CanNameModel,
    CanReportDelays,
    CanReportOmissions,
    CanReportRetries,
    DelayReport,
    OmissionReport,
    RetryReport,
)
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError, InvalidParameter
from agentloop.models.config import LLMConfig
from agentloop.models.server_abilities import ServerAbilities, is_asked
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.estimates import RequestSize
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.reprs import ShownByField
from agentloop.values.secrets import KeyFunction, Secret, as_key
from agentloop.values.value import copier

if TYPE_CHECKING:
    from agentloop.models.endpoint import Endpoint, InferenceTerms
    from agentloop.models.tool_gate import ToolGate
    from agentloop.models.wire_formats.wire_format import WireFormat


def inference_of(
    model: str | ModelConfig | CanInfer,
    *,
    base_url: str | None = None,
    api_key: str | Secret | KeyFunction | None = None,
    timeout: float | None = None,
) -> CanInfer:
    """Return the inference of a model string or a configuration; an inference is returned as it is.

    Args:
        model: a model string such as `openai:gpt-5`, a configuration, or an inference.
        base_url: for a model string: the URL of the API; None for the provider's.
        api_key: for a model string: the key, or a function that returns it; None for the provider's environment variable.
        timeout: for a model string or a configuration: `LLMConfig.timeout`, in seconds; None for its own.

    Raises:
        ConfigurationError: if the model string is invalid, its key is missing, or a setting cannot apply to the model.
        TypeError: if the model is none of these types.
    """
    api_key = as_key(api_key)  # tracebacks show local variables, and the repr of a `Secret` hides it
    if isinstance(model, str):
        model = LLMConfig.parse(model, base_url=base_url, api_key=api_key)
    elif not isinstance(model, LLMConfig | CanInfer):
        raise InvalidParameter(f"a model is a string, an LLMConfig or a CanInfer, not {type(model).__name__}")
    elif base_url is not None or api_key is not None:
        raise ConfigurationError(
            f"base_url and api_key belong to a model string; this {type(model).__name__} has its own"
        )
    if isinstance(model, LLMConfig):
        return HttpInference(model if timeout is None else model.with_settings(timeout=timeout))
    if timeout is not None:
        raise ConfigurationError(
            f"timeout belongs to a model string or an LLMConfig; set it where this {type(model).__name__} is made"
        )
    return model


@frozen(eq=False, repr=False)
class HttpInference(
    ShownByField,
    CanInfer,
    CanAcceptExecutionScope,
    CanReportRetries,
    CanReportDelays,
    CanReportOmissions,
    CanAskServer,
    CanNameModel,
):
    """Calls a model over HTTP, and retries when the provider is unavailable or asks to wait.

    Connections are reused by all executions of one event loop: up to ten idle ones remain per address, for 30 seconds.

    Attributes:
        config: the model and how to reach it.
        wire_format: the encoding of requests and responses; by default, the one that the configuration names.
        client: an `httpx.AsyncClient`, or a client with the same interface, which you close. The headers and timeouts of the
            configuration override those of the client. A client belongs to one event loop.
        jitter: returns a number from 0 to 1 at each call, which spreads the waits between attempts; by default,
            `random.random`.
    """

    config: LLMConfig
    wire_format: WireFormat | None = field(default=None, kw_only=True, repr=False)
    client: Any = field(default=None, kw_only=True, repr=False)
    jitter: Callable[[], float] | None = field(default=None, kw_only=True, repr=False)
    _endpoint: Endpoint | None = field(default=None, kw_only=True, repr=False)
    _report: RetryReport | None = field(default=None, kw_only=True, repr=False)
    _delay_report: DelayReport | None = field(default=None, kw_only=True, repr=False)
    _omission_report: OmissionReport | None = field(default=None, kw_only=True, repr=False)
    _size: RequestSize | None = field(default=None, kw_only=True, repr=False)
    _encoder: WireFormat | None = field(default=None, kw_only=True, repr=False)
    _gate: ToolGate | None = field(default=None, kw_only=True, repr=False)

    @property
    def model_name(self) -> str:
        """The model that the configuration selects."""
        # `options.model` overrides the model of the configuration in requests.
        model = self.config.options.model
        return self.config.name if model is None else self.config.with_settings(model=model).name

    @property
    def wire_format_name(self) -> str:
        """The name of the wire format of the requests."""
        return self.config.wire_format if self.wire_format is None else self.wire_format.name

    @property
    def is_makers_api(self) -> bool:
        """Whether requests go to the API of the model's maker, and to no gateway or server of others."""
        return self.config.is_makers_api

    @property
    def asks_server(self) -> bool:
        """Whether `ask_server` asks: for a server of the user's, over connections of its own and in a wire format of this package."""
        is_own = self.client is None and self.wire_format is None
        return is_own and is_asked(self.config.provider, self.config.base_url, self.config.wire_format)

    async def ask_server(self) -> ServerAbilities | None:
        """Return what the server says that it can do with the model; None if it does not say it.

        A server is asked once in the life of the process, and at most for one second.
        """
        if not self.asks_server:
            return None
        from agentloop.models.server_questions import ask_server

        return await ask_server(self.config, self.config.options.model or self.config.model)

    def note_abilities(self, said: ServerAbilities | None, reason: str, *, has_tools: bool) -> None:
        """Keep what was seen of the server, in place of its answer, for the life of the process.

        Args:
            said: what the server says; None if it says nothing.
            reason: what was seen, as a sentence without its point.
            has_tools: whether the model is called by the tool API.
        """
        from agentloop.models.server_questions import note_abilities

        enforces = said is None or said.enforces_schemas
        seen = ServerAbilities("" if said is None else said.server, has_tools, enforces, reason)
        note_abilities(self.config, self.config.options.model or self.config.model, seen)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose endpoint is shared within the scope, and closed with it."""
        # Copies with the same configuration share an endpoint, which keeps the objects alive whose ids are the key.
        key = (HttpInference, id(self.config), id(self.wire_format), id(self.client), scope.bounds)
        open_endpoint = partial(self._open_endpoint, scope.bounds)
        endpoint = scope.shared_resources.open(key, open_endpoint, lambda endpoint: endpoint.aclose())
        endpoint.leave_idle_connections_to(scope.kept_resources)
        # Requests of one execution extend each other, so that only what is new has to be measured and encoded.
        encoder = endpoint.wire_format.for_execution()
        return evolve(self, endpoint=endpoint, size=RequestSize(), encoder=encoder, gate=endpoint.open_gate())

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that reports failed attempts before it repeats them."""
        return _copy_with_report(self, report)

    def with_delay_report(self, report: DelayReport) -> Self:
        """Return a copy that reports requests that wait for the limits of the model."""
        return _copy_with_delay_report(self, report)

    def with_omission_report(self, report: OmissionReport) -> Self:
        """Return a copy that reports tools which the provider does not accept."""
        return _copy_with_omission_report(self, report)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Send the request and wait for the complete response.

        Raises:
            AuthenticationError: when the provider refuses the key.
            RateLimited: when the provider still asks to wait after the last attempt, or for longer than `retry.max_wait`.
            ContextLengthExceeded: when the conversation is too long for the model.
            BadRequest: when the provider refuses the request.
            ProviderUnavailable: when the provider is unreachable or fails, still after the last attempt, or at the deadline.
            InvalidResponse: when the response cannot be decoded.
        """
        # A bound copy uses the shared endpoint; an unbound inference opens one for this request only.
        if self._endpoint is not None:
            return await self._endpoint.infer(request, self._terms())
        endpoint = self._open_endpoint()
        try:
            return await endpoint.infer(request, self._terms())
        finally:
            await endpoint.aclose()

    def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Send the request and yield deltas as they arrive, then the complete response.

        Raises:
            InferenceError: as `infer` does. Errors after the first delta are retried only with a retry report, from which the
                consumer learns that the deltas so far are void.
        """
        if self._endpoint is None:
            return self._stream_unscoped(request)
        return self._endpoint.stream(request, self._terms())

    async def _stream_unscoped(
        self, request: InferenceRequest
    ) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        endpoint = self._open_endpoint()
        stream = endpoint.stream(request, self._terms())
        try:
            async for item in stream:
                yield item
        finally:
            await stream.aclose()
            await endpoint.aclose()

    def _terms(self) -> InferenceTerms:
        from agentloop.models.endpoint import InferenceTerms

        return InferenceTerms(
            self.jitter,
            self._report,
            self._delay_report,
            self._size,
            self._encoder,
            self._gate,
            self._omission_report,
        )

    def _open_endpoint(self, bounds: Bounds = DEFAULT_BOUNDS) -> Endpoint:
        # The HTTP stack doubles the import time of the library, so it is loaded with the first request.
        from agentloop.models.endpoint import Endpoint

        return Endpoint.open(self.config, self.wire_format, self.client, bounds)


_copy_with_report = copier(HttpInference, "report")
_copy_with_delay_report = copier(HttpInference, "delay_report")
_copy_with_omission_report = copier(HttpInference, "omission_report")
