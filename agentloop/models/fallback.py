"""Fallback to other models when a model fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import (
    CanCombineModels,
    CanInfer,
    CanNameModel,
    CanReportDelays,
    CanReportOmissions,
    CanReportRetries,
    DelayReport,
    FailedAttempt,
    OmissionReport,
    RetryReport,
)
from agentloop.contracts.can_use_mode import CanRenderRequest
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError, InferenceError
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse


def _as_inferences(inferences: Sequence[CanInfer]) -> tuple[CanInfer, ...]:
    if not inferences:
        raise ConfigurationError("a FallbackInference needs at least one inference")
    for inference in inferences:
        if not isinstance(inference, CanInfer):
            raise TypeError(f"{inference!r} is not an inference; subclass CanInfer")
    return tuple(inferences)


@frozen(eq=False)
class FallbackInference(
    CanInfer,
    CanAcceptExecutionScope,
    CanReportRetries,
    CanReportDelays,
    CanReportOmissions,
    CanNameModel,
    CanCombineModels,
    CanRenderRequest,
):
    """Calls the first of several models, and the next one when it fails.

    Each model first makes the retries that it is configured for. Each fallback emits `InferenceRetried`, which names the next
    model. Without a retry report, the error of a model that has started to stream is raised without a fallback, since a
    consumer has already seen part of its response. A driver that chooses the mode itself chooses it for each model.

    Attributes:
        inferences: the models, in order of preference.
        on: the errors after which to call the next model.

    Raises:
        ConfigurationError: when `inferences` is empty.
        TypeError: when an item is not an inference.
    """

    inferences: tuple[CanInfer, ...] = field(converter=_as_inferences)
    on: tuple[type[InferenceError], ...] = field(
        default=(InferenceError,), kw_only=True, converter=tuple[type[InferenceError], ...]
    )
    _report: RetryReport | None = field(default=None, kw_only=True, repr=False)

    @property
    def model_name(self) -> str:
        """The name of the first model."""
        first = self.inferences[0]
        return first.model_name if isinstance(first, CanNameModel) else ""

    @property
    def wire_format_name(self) -> str:
        """The wire format of the first model."""
        first = self.inferences[0]
        return first.wire_format_name if isinstance(first, CanNameModel) else ""

    @property
    def is_makers_api(self) -> bool:
        """Whether all models are called at the APIs of their makers."""
        return all(isinstance(each, CanNameModel) and each.is_makers_api for each in self.inferences)

    @property
    def models(self) -> tuple[CanInfer, ...]:
        """The models, in order of preference."""
        return self.inferences

    def with_models(self, models: Sequence[CanInfer]) -> Self:
        """Return a copy with these models in place of its own, in the same order."""
        return evolve(self, inferences=tuple(models))

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request as the first model receives it."""
        first = self.inferences[0]
        return first.render_request(request) if isinstance(first, CanRenderRequest) else request

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose models are bound to the scope."""
        bound = [
            # Each inference of the driver begins with the first model.
            inference.with_execution_scope(scope if index == 0 else scope.without_inferences())
            if isinstance(inference, CanAcceptExecutionScope)
            else inference
            for index, inference in enumerate(self.inferences)
        ]
        return evolve(self, inferences=bound)

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that reports its fallbacks and the retries of its models."""
        reporting = [
            inference.with_retry_report(report) if isinstance(inference, CanReportRetries) else inference
            for inference in self.inferences
        ]
        return evolve(self, inferences=reporting, report=report)

    def with_delay_report(self, report: DelayReport) -> Self:
        """Return a copy whose models report requests that wait."""
        reporting = [
            inference.with_delay_report(report) if isinstance(inference, CanReportDelays) else inference
            for inference in self.inferences
        ]
        return evolve(self, inferences=reporting)

    def with_omission_report(self, report: OmissionReport) -> Self:
        """Return a copy whose models report tools that they leave out."""
        reporting = [
            inference.with_omission_report(report) if isinstance(inference, CanReportOmissions) else inference
            for inference in self.inferences
        ]
        return evolve(self, inferences=reporting)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Call the models in order until one succeeds.

        Raises:
            InferenceError: the error of the last model, with the errors of the others as notes.
        """
        errors: list[InferenceError] = []
        for inference in self.inferences:
            self._report_fallback(errors, inference)
            try:
                return await inference.infer(request)
            except self.on as error:
                errors.append(error)
        raise _with_notes(errors)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Call the models in order until one succeeds, or has started to stream when there is no retry report.

        Raises:
            InferenceError: the error of the last model, or of the model that had started to stream.
        """
        errors: list[InferenceError] = []
        for inference in self.inferences:
            self._report_fallback(errors, inference)
            # Set with the first item, which may also be the complete response.
            has_started = False
            stream = inference.stream(request)
            try:
                async for item in stream:
                    has_started = True
                    yield item
            except self.on as error:
                # Only a consumer that learns from the report that the deltas so far are void can go on.
                if has_started and self._report is None:
                    raise
                errors.append(error)
            else:
                return
            finally:
                # Contracts require an async iterator only, which need not have `aclose`.
                if isinstance(stream, AsyncGenerator):
                    await stream.aclose()
        raise _with_notes(errors)

    def _report_fallback(self, errors: Sequence[InferenceError], inference: CanInfer) -> None:
        if errors and self._report is not None:
            self._report(FailedAttempt(len(errors), errors[-1], 0.0, instead=repr(inference)))


def _with_notes(errors: Sequence[InferenceError]) -> InferenceError:
    """Return the last error, with the others as notes."""
    *earlier, last = errors
    for number, error in enumerate(earlier, 1):
        last.add_note(f"model {number} of {len(errors)} failed before: {type(error).__name__}: {error}")
    return last
