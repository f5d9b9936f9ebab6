"""The contract of inferences: whatever can be asked as a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Self, TypeAlias

from attrs import frozen

from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.value import Value


class CanInfer(ABC):
    """Asks a model.

    An implementer keeps these laws:

    - The request is not changed (law 3).
    - The response's usage counts this inference; what the provider did not report is None (law 6).
    - No key or other secret appears in an error, a repr or a response (law 18).
    - A streamed answer ends with the response that `infer` would have returned (law 7). What came before it is provisional.
    """

    @abstractmethod
    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model and wait for its whole answer.

        Raises:
            InferenceError: typed by what went wrong.
        """

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        """Ask the model and take its answer while it is written: any number of deltas, then the whole response.

        Whoever cannot answer in pieces answers with the response alone, as here. Whoever stops reading early closes the
        iterator (`aclose`), which ends the inference.

        Raises:
            InferenceError: typed by what went wrong, also after deltas.
        """
        yield await self.infer(request)


@frozen(eq=False, repr=False)
class FailedAttempt(Value):
    """An attempt that failed and is going to be repeated.

    Attributes:
        attempt: its number, from 1.
        error: why it failed.
        delay: seconds until the next attempt.
        instead: what is asked next, when it is not the same again.
    """

    attempt: int
    error: Exception
    delay: float
    instead: str = ""


RetryReport: TypeAlias = Callable[[FailedAttempt], None]


class CanReportRetries(ABC):
    """An inference that repeats failed attempts and tells of each; its driver makes events of that."""

    @abstractmethod
    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that calls `report` before each repetition."""


class CanNameModel(ABC):
    """Tells which model it asks, so that what the model is able to do can be looked up before it is asked.

    An implementer keeps this law:

    - Both answers are the same for the life of the object, and telling them asks nobody.
    """

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The model, as `provider:model` or by its bare name; empty when that is not known."""

    @property
    @abstractmethod
    def wire_format_name(self) -> str:
        """The name of the wire format that it speaks, such as `anthropic-messages`; empty when that is not known."""
