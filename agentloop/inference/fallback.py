"""Several models, of which the next is asked when one fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer, CanNameModel, CanReportRetries, FailedAttempt, RetryReport
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError, InferenceError
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse


def _nobody(_: FailedAttempt) -> None:
    """Take reports that nobody wants."""


def _as_inferences(inferences: Sequence[CanInfer]) -> tuple[CanInfer, ...]:
    if not inferences:
        raise ConfigurationError("a FallbackInference needs at least one inference to ask")
    for inference in inferences:
        if not isinstance(inference, CanInfer):
            raise TypeError(f"{inference!r} is not an inference; subclass CanInfer")
    return tuple(inferences)


@frozen(eq=False)
class FallbackInference(CanInfer, CanAcceptExecutionScope, CanReportRetries, CanNameModel):
    """Asks the first of several models, and the next one when it fails.

    Each of them first tries again as it is configured to. Once a model has begun to stream, what goes wrong is raised: a
    reader has seen a part of its answer. `InferenceRetried` tells each change, with what is asked instead.

    Attributes:
        inferences: the models, in the order in which they are asked.
        on: the errors after which the next one is asked.

    Raises:
        ConfigurationError: when there are none.
        TypeError: when something is not an inference.
    """

    inferences: tuple[CanInfer, ...] = field(converter=_as_inferences)
    on: tuple[type[InferenceError], ...] = field(
        default=(InferenceError,), kw_only=True, converter=tuple[type[InferenceError], ...]
    )
    _report: RetryReport = field(default=_nobody, kw_only=True, repr=False)

    @property
    def model_name(self) -> str:
        """The first of the models, which the others stand in for."""
        first = self.inferences[0]
        return first.model_name if isinstance(first, CanNameModel) else ""

    @property
    def wire_format_name(self) -> str:
        """The wire format of the first of the models."""
        first = self.inferences[0]
        return first.wire_format_name if isinstance(first, CanNameModel) else ""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose models are bound to this execution."""
        bound = [
            inference.with_execution_scope(scope) if isinstance(inference, CanAcceptExecutionScope) else inference
            for inference in self.inferences
        ]
        return evolve(self, inferences=bound)

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that tells of failed attempts, its own and its models'."""
        told = [
            inference.with_retry_report(report) if isinstance(inference, CanReportRetries) else inference
            for inference in self.inferences
        ]
        return evolve(self, inferences=told, report=report)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the models, one after the other, until one answers.

        Raises:
            InferenceError: that of the last model; the errors of those before are its notes.
        """
        errors: list[InferenceError] = []
        for inference in self.inferences:
            self._tell(errors, inference)
            try:
                return await inference.infer(request)
            except self.on as error:
                errors.append(error)
        raise _with_notes(errors)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Ask the models, one after the other, until one begins to answer.

        Raises:
            InferenceError: that of the last model, or of the one that had begun to answer.
        """
        errors: list[InferenceError] = []
        for inference in self.inferences:
            self._tell(errors, inference)
            begun = False
            stream = inference.stream(request)
            try:
                async for piece in stream:
                    begun = True
                    yield piece
            except self.on as error:
                if begun:
                    raise
                errors.append(error)
            else:
                return
            finally:
                if isinstance(stream, AsyncGenerator):
                    await stream.aclose()
        raise _with_notes(errors)

    def _tell(self, errors: Sequence[InferenceError], inference: CanInfer) -> None:
        if errors:
            self._report(FailedAttempt(len(errors), errors[-1], 0.0, instead=repr(inference)))


def _with_notes(errors: Sequence[InferenceError]) -> InferenceError:
    """Return the last error, with those before as notes."""
    *before, last = errors
    for number, error in enumerate(before, 1):
        last.add_note(f"model {number} of {len(errors)} failed before: {type(error).__name__}: {error}")
    return last
