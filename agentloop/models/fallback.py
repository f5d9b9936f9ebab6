"""Fallback to other models when a model fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_infer import CanInfer, FailedAttempt, RetryReport
from agentloop.errors import InferenceError
from agentloop.models.combined import CombinedInference, as_inferences
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse


def _as_inferences(inferences: Sequence[CanInfer]) -> tuple[CanInfer, ...]:
    return as_inferences(inferences, "FallbackInference")


@frozen(eq=False)
class FallbackInference(CombinedInference):
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
    def models(self) -> tuple[CanInfer, ...]:
        """The models, in order of preference."""
        return self.inferences

    def with_models(self, models: Sequence[CanInfer]) -> Self:
        """Return a copy with these models in place of its own, in the same order."""
        return evolve(self, inferences=tuple(models))

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that reports its fallbacks and the retries of its models."""
        return evolve(super().with_retry_report(report), report=report)

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
