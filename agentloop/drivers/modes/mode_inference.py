"""A model that is asked in a tool-calling mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Self

from attrs import evolve, frozen

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_report_retries import CanReportRetries, RetryReport
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse


@frozen(eq=False)
class ModeInference(CanInfer, CanReportRetries):
    """Translates requests on their way to a model, and its answers on their way back.

    Attributes:
        inference: the model.
        mode: the translator.
    """

    inference: CanInfer
    mode: CanUseMode

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy whose model tells of failed attempts."""
        if not isinstance(self.inference, CanReportRetries):
            return self
        return evolve(self, inference=self.inference.with_retry_report(report))

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model in its mode.

        Raises:
            InferenceError: as the model does.
        """
        return self.mode.read(await self.inference.infer(self.mode.offer(request)), request)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Ask the model in its mode, and translate the pieces of its answer.

        Raises:
            InferenceError: as the model does.
        """
        translated = self.mode.stream(request)
        stream = self.inference.stream(self.mode.offer(request))
        try:
            async for piece in stream:
                if isinstance(piece, InferenceDelta):
                    for delta in translated.feed(piece):
                        yield delta
                else:
                    response = self.mode.read(piece, request)
                    for delta in translated.close(response):
                        yield delta
                    yield response
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
