"""A model that is asked in a tool-calling mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Self

from attrs import evolve, frozen

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_report_retries import CanReportRetries, RetryReport
from agentloop.contracts.can_use_mode import CanTellOffer, CanUseMode
from agentloop.drivers.modes.strict_form import FormStream, strict_form
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse


@frozen(eq=False)
class ModeInference(CanInfer, CanReportRetries, CanTellOffer):
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

    def offered(self, request: InferenceRequest) -> InferenceRequest:
        """Return a request as the model gets it."""
        offered = self.mode.offer(request)
        form = strict_form(offered, request)
        return offered if form is None else offered.with_response_format(form.sent)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model in its mode.

        Raises:
            InferenceError: as the model does.
        """
        offered = self.mode.offer(request)
        form = strict_form(offered, request)
        if form is None:
            return self.mode.read(await self.inference.infer(offered), request)
        response = await self.inference.infer(offered.with_response_format(form.sent))
        return form.read(self.mode.read(response, request))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Ask the model in its mode, and translate the pieces of its answer.

        Raises:
            InferenceError: as the model does.
        """
        offered = self.mode.offer(request)
        form = strict_form(offered, request)
        if form is not None:
            offered = offered.with_response_format(form.sent)
        translated = self.mode.stream(request) if form is None else FormStream(self.mode.stream(request))
        stream = self.inference.stream(offered)
        try:
            async for piece in stream:
                if isinstance(piece, InferenceDelta):
                    for delta in translated.feed(piece):
                        yield delta
                else:
                    response = self.mode.read(piece, request)
                    response = response if form is None else form.read(response)
                    for delta in translated.close(response):
                        yield delta
                    yield response
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
