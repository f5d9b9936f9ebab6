"""The choice of a mode for a model, and a model that is called in a mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import lru_cache
from typing import Self

from attrs import evolve, frozen

from agentloop.contracts.can_infer import CanInfer, CanNameModel, CanReportRetries, RetryReport
from agentloop.contracts.can_use_mode import CanRenderRequest, CanUseMode
from agentloop.errors import ConfigurationError, suggest
from agentloop.inference.model_capabilities import capabilities
from agentloop.inference.model_rows import Capabilities, CapabilityRow
from agentloop.modes.native import NativeMode
from agentloop.modes.program import ProgramMode
from agentloop.modes.strict import StrictFormatStream, strict_format
from agentloop.modes.structured import StructuredMode
from agentloop.modes.text import TextMode
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse


def select_mode(mode: CanUseMode | str, inference: CanInfer, rows: Sequence[CapabilityRow] = ()) -> CanUseMode:
    """Return the mode in which a model is called.

    Args:
        mode: a mode, its name, or `auto` for the mode that suits the model.
        inference: the model. One that does not report its name is assumed to have all capabilities.
        rows: capabilities of models; they take precedence over those of the published models.

    Raises:
        ConfigurationError: no mode has this name.
    """
    if isinstance(mode, CanUseMode):
        return mode
    if mode == PROGRAM_MODE:
        return _program_mode(select_mode("auto", inference, rows))
    if not isinstance(inference, CanNameModel) or not inference.model_name:
        return _create_mode(mode, _ALL_CAPABILITIES)
    return _select_mode(mode, inference.model_name, inference.wire_format_name, tuple(rows))


def get_mode(name: str) -> CanUseMode:
    """Return the mode of this name for a model that has all capabilities.

    Raises:
        ConfigurationError: no mode has this name.
    """
    return _program_mode(NativeMode()) if name == PROGRAM_MODE else _create_mode(name, _ALL_CAPABILITIES)


PROGRAM_MODE = "program"
"""The name of the mode in which tools are called by programs."""


@lru_cache(maxsize=16)
def _program_mode(form: CanUseMode) -> CanUseMode:
    return ProgramMode(form=form)


# Scripted models and custom ones often report no name; they are expected to do whatever the mode requires.
_ALL_CAPABILITIES = Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")


@lru_cache(maxsize=256)
def _select_mode(mode: str, model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> CanUseMode:
    return _create_mode(mode, capabilities(model, wire_format=wire_format, rows=rows))


@lru_cache(maxsize=256)
def _create_mode(name: str, known: Capabilities) -> CanUseMode:
    name = known.mode if name == "auto" else name
    if name == "native":
        return NativeMode(output="format" if known.structured_output == "json_schema" else "tool")
    if name == "structured":
        return StructuredMode(variant="json_object" if known.structured_output == "json_object" else "json_schema")
    if name in {"validated", "parsed"}:
        return TextMode(reprompts=name == "validated")
    known_names = ("auto", "native", "structured", "validated", "parsed", PROGRAM_MODE)
    raise ConfigurationError(
        f"there is no tool-calling mode {name!r}{suggest(name, known_names)}; known are {', '.join(known_names)}"
    )


@frozen(eq=False)
class ModeInference(CanInfer, CanReportRetries, CanRenderRequest):
    """A model that is called in a mode: translates its requests, and its responses back.

    Attributes:
        inference: the model.
        mode: the mode.
    """

    inference: CanInfer
    mode: CanUseMode

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy whose model reports failed attempts."""
        if not isinstance(self.inference, CanReportRetries):
            return self
        return evolve(self, inference=self.inference.with_retry_report(report))

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return a request as the model receives it."""
        offered = self.mode.render_request(request)
        answer_format = strict_format(offered, request)
        return offered if answer_format is None else offered.with_response_format(answer_format.sent)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Call the model in its mode.

        Raises:
            InferenceError: the call of the model failed.
        """
        offered = self.mode.render_request(request)
        answer_format = strict_format(offered, request)
        if answer_format is None:
            return self.mode.parse_response(await self.inference.infer(offered), request)
        response = await self.inference.infer(offered.with_response_format(answer_format.sent))
        return answer_format.read(self.mode.parse_response(response, request))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Call the model in its mode and translate the deltas of its response.

        Raises:
            InferenceError: the call of the model failed.
        """
        offered = self.mode.render_request(request)
        answer_format = strict_format(offered, request)
        translation = self.mode.stream(request)
        if answer_format is not None:
            offered = offered.with_response_format(answer_format.sent)
            translation = StrictFormatStream(translation)
        stream = self.inference.stream(offered)
        try:
            async for item in stream:
                if isinstance(item, InferenceDelta):
                    for delta in translation.feed(item):
                        yield delta
                else:
                    response = self.mode.parse_response(item, request)
                    response = response if answer_format is None else answer_format.read(response)
                    for delta in translation.close(response):
                        yield delta
                    yield response
        finally:
            # A consumer that stops early must not leave the connection open until garbage collection.
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
