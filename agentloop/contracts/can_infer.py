"""The contracts of inferences: sending requests to a model, reporting retries and delays, naming the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self, TypeAlias

from attrs import frozen

from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.value import Value


class CanInfer(ABC):
    """Sends requests to a model.

    An implementation keeps these laws:

    - The request is not changed (law 3).
    - The usage of the response counts this inference, with all requests that it sends; counts that the provider did not report
      are None (law 6).
    - A stream ends with the response that `infer` would have returned (law 7). The deltas before it are provisional.
    - An option of the request replaces that of the inference (law 33).
    - No API key or other secret appears in an error, a repr or a response (law 18).
    """

    @abstractmethod
    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Send a request and return the complete response.

        Raises:
            InferenceError: the request failed; the subclass names the kind of failure.
        """

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        """Send a request and yield any number of deltas, then the complete response.

        The default implementation yields the response alone. A caller that stops early closes the iterator (`aclose`), which
        ends the inference.

        Raises:
            InferenceError: the request failed, possibly after some deltas; the subclass names the kind of failure.
        """
        yield await self.infer(request)


@frozen(eq=False, repr=False)
class FailedAttempt(Value):
    """A failed attempt that will be retried.

    Attributes:
        attempt: the 1-based number of the failed attempt.
        error: the error.
        delay: seconds until the next attempt.
        instead: the name of the inference that is used next, if it differs; else empty.
    """

    attempt: int
    error: Exception
    delay: float
    instead: str = ""


RetryReport: TypeAlias = Callable[[FailedAttempt], None]
"""What an inference calls before each retry."""


class CanReportRetries(ABC):
    """An inference that retries failed attempts and reports each; its driver emits them as events."""

    @abstractmethod
    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that calls `report` before each retry."""


@frozen(eq=False, repr=False)
class DelayedRequest(Value):
    """A request that waits before it is sent.

    Attributes:
        reason: what it waits for, such as "60 requests per minute".
        ahead: the number of requests that wait before it.
        delay: seconds until it can be sent, at the earliest; 0 if that depends on other requests.
    """

    reason: str
    ahead: int = 0
    delay: float = 0.0


DelayReport: TypeAlias = Callable[[DelayedRequest], None]
"""What an inference calls with each request that has to wait."""


class CanReportDelays(ABC):
    """An inference whose requests may have to wait for each other, and that reports it; its driver emits that as an event."""

    @abstractmethod
    def with_delay_report(self, report: DelayReport) -> Self:
        """Return a copy that calls `report` with each request that has to wait."""


@frozen(eq=False, repr=False)
class LeftOutTool(Value):
    """A tool that a request is sent without, since the provider would refuse the whole request.

    Attributes:
        name: the name of the tool.
        reason: why the provider does not accept it.
    """

    name: str
    reason: str


OmissionReport: TypeAlias = Callable[[LeftOutTool], None]
"""What an inference calls with each tool that it leaves out."""


class CanReportOmissions(ABC):
    """An inference that leaves out tools which its provider does not accept, and reports each; its driver emits that as an event."""

    @abstractmethod
    def with_omission_report(self, report: OmissionReport) -> Self:
        """Return a copy that calls `report` with each tool that is left out, once per execution."""


@frozen(eq=False, repr=False)
class ChosenModel(Value):
    """The model that a request is passed to.

    Attributes:
        name: the name under which it can be chosen.
        reason: why it was chosen; empty where nothing says so.
        requests: the number of requests that were sent to find out.
    """

    name: str
    reason: str = ""
    requests: int = 0


RouteReport: TypeAlias = Callable[[ChosenModel], None]
"""What an inference calls when it has chosen the model of a request."""


class CanReportRoutes(ABC):
    """An inference that chooses one of several models for a request, and reports which; its driver emits that as an event."""

    @abstractmethod
    def with_route_report(self, report: RouteReport) -> Self:
        """Return a copy that calls `report` before each request."""


class CanAskServer(ABC):
    """An inference that can ask its server what that can do with the model, before the tool API is used."""

    @property
    @abstractmethod
    def asks_server(self) -> bool:
        """Whether the server is one of the user's, which is asked; constant, and read without I/O."""


class CanNameModel(ABC):
    """An inference that names its model, so that the model's capabilities can be looked up before a request.

    An implementation keeps this law:

    - The properties are constant for the life of the object, and reading them does no I/O.
    """

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The model, as `provider:model` or by its bare name; empty if unknown."""

    @property
    @abstractmethod
    def wire_format_name(self) -> str:
        """The name of the wire format, such as `anthropic-messages`; empty if unknown."""

    @property
    def is_makers_api(self) -> bool:
        """Whether requests go to the API of the model's maker. Other services may leave the calls of a model in its text."""
        return False


class CanCombineModels(ABC):
    """An inference that passes its requests to one of several models, each of which may be called in a mode of its own.

    An implementation keeps this law:

    - A request is sent to a model as that model is given, without a change of its own.
    """

    @property
    @abstractmethod
    def models(self) -> tuple[CanInfer, ...]:
        """The models, in order of preference."""

    @abstractmethod
    def with_models(self, models: Sequence[CanInfer]) -> Self:
        """Return a copy with these models in place of its own, in the same order."""
