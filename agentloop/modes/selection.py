"""A model that is asked in a tool-calling mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import lru_cache
from typing import Self

from attrs import evolve, frozen

from agentloop.contracts.can_infer import CanInfer, CanNameModel, CanReportRetries, RetryReport
from agentloop.contracts.can_use_mode import CanRenderRequest, CanUseMode
from agentloop.errors import ConfigurationError
from agentloop.inference.model_capabilities import capabilities
from agentloop.inference.model_rows import Capabilities, CapabilityRow
from agentloop.modes.native import NativeMode
from agentloop.modes.strict import FormStream, strict_form
from agentloop.modes.structured import StructuredMode
from agentloop.modes.text import TextMode
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse


@frozen(eq=False)
class ModeInference(CanInfer, CanReportRetries, CanRenderRequest):
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


_ABLE = Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")
"""What is taken for granted of an inference that does not tell its model."""


def mode_for(mode: CanUseMode | str, inference: CanInfer, rows: Sequence[CapabilityRow] = ()) -> CanUseMode:
    """Return the mode to ask a model in: the one that is given, or for `auto` the one that suits the model.

    Args:
        mode: a mode, or the name of one.
        inference: the model.
        rows: what models are able to do, before what is known of the published ones.

    Raises:
        ConfigurationError: for a name that is none.
    """
    if isinstance(mode, CanUseMode):
        return mode
    if not isinstance(inference, CanNameModel) or not inference.model_name:
        return _made(mode, _ABLE)
    return _chosen(mode, inference.model_name, inference.wire_format_name, tuple(rows))


def mode_named(name: str) -> CanUseMode:
    """Return the mode of this name, for a model that is able to do whatever the mode asks of it.

    Raises:
        ConfigurationError: when there is none.
    """
    return _made(name, _ABLE)


@lru_cache(maxsize=256)
def _chosen(mode: str, model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> CanUseMode:
    return _made(mode, capabilities(model, wire_format=wire_format, rows=rows))


@lru_cache(maxsize=256)
def _made(name: str, known: Capabilities) -> CanUseMode:
    name = known.mode if name == "auto" else name
    if name == "native":
        return NativeMode(output="format" if known.structured_output == "json_schema" else "tool")
    if name == "structured":
        return StructuredMode(variant="json_object" if known.structured_output == "json_object" else "json_schema")
    if name in {"validated", "parsed"}:
        return TextMode(asks_again=name == "validated")
    raise ConfigurationError(
        f"there is no tool-calling mode {name!r}; known are auto, native, structured, validated, parsed"
    )
