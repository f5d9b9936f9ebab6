"""The choice of a mode for a model, and a model that is called in a mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import lru_cache, partial
from typing import Self

from attrs import evolve, field, frozen

from agentloop._shielding import LONG_TEXT, compute_in_thread, compute_on_text
from agentloop.contracts.can_infer import (
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
from agentloop.contracts.can_use_mode import CanRenderRequest, CanUseMode, ModeLike, ModeStream
from agentloop.drivers.mode_choices import mode_choice
from agentloop.drivers.structural_mode import as_mode_or_name
from agentloop.errors import ConfigurationError, ToolsNotSupported
from agentloop.errors.hints import suggest
from agentloop.models.model_capabilities import UNKNOWN_MODEL, capabilities, find_row, service_capabilities
from agentloop.models.modes.native import AnswerForm, AssumedMode, NativeMode, WrittenCalls
from agentloop.models.modes.strict import StrictFormat, StrictFormatStream, strict_format
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.capabilities import Capabilities, CapabilityRow
from agentloop.values.inference import (
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ModeChoice,
    ToolChoice,
    within_bounds,
)
from agentloop.values.messages import Message
from agentloop.values.state import AgentState

_SLICE = 1_000
"""The characters of pieces that are read before other tasks have a turn."""


def select_mode(
    mode: ModeLike | str,
    inference: CanInfer,
    rows: Sequence[CapabilityRow] = (),
    *,
    state: AgentState | None = None,
) -> CanUseMode:
    """Return the mode in which a model is called.

    Args:
        mode: a mode, its name, or `auto` for the mode that suits the model.
        inference: the model. One that does not report its name is assumed to have all capabilities.
        rows: capabilities of models; they take precedence over those of the published models.
        state: the state of the execution, with the modes that it has chosen; None before an execution.

    Raises:
        ConfigurationError: no mode has this name.
        TypeError: it is neither a name nor an object with the methods of a mode.
    """
    mode = as_mode_or_name(mode)
    if isinstance(mode, CanUseMode):
        return mode
    if mode == PROGRAM_MODE:
        return _program_mode(select_mode("auto", inference, rows, state=state))
    if not isinstance(inference, CanNameModel) or not (name := inference.model_name):
        return _create_mode(mode, _ALL_CAPABILITIES)
    chosen = mode_choice(state, name) if state is not None and mode == "auto" else None
    assumed = "" if chosen is None else chosen.mode
    # Only the maker's own API is known to separate calls from text.
    written: WrittenCalls = "shown" if inference.is_makers_api else "read"
    return _select_mode(mode, name, inference.wire_format_name, tuple(rows), chosen=assumed, written=written)


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
    from agentloop.models.modes.program import ProgramMode

    return ProgramMode(form=form)


def form_of(mode: CanUseMode) -> CanUseMode:
    """Return the mode in which a model writes its programs, or the mode itself if it writes none."""
    if mode.name != PROGRAM_MODE:
        return mode
    from agentloop.models.modes.program import ProgramMode

    return mode.form if isinstance(mode, ProgramMode) else mode


def with_form(mode: CanUseMode, form: CanUseMode) -> CanUseMode:
    """Return the mode of programs that are written in another form, or the form itself in place of any other mode."""
    return form if form_of(mode) is mode else _program_mode(form)


# Scripted models and custom ones often report no name; they are expected to do whatever the mode requires.
_ALL_CAPABILITIES = Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")


@lru_cache(maxsize=256)
def _select_mode(
    mode: str, model: str, wire_format: str, rows: tuple[CapabilityRow, ...], *, chosen: str, written: WrittenCalls
) -> CanUseMode:
    known = capabilities(model, wire_format=wire_format, rows=rows)
    if mode == "auto" and chosen:
        return _create_mode(chosen, known, written)
    if mode == "auto" and known.is_assumed and known.mode == "native":
        return AssumedMode(model=model, enforces_schemas=known.structured_output == "json_schema")
    return _create_mode(mode, known, written, _is_enforced_late(model, wire_format, rows))


def _is_enforced_late(model: str, wire_format: str, rows: tuple[CapabilityRow, ...]) -> bool:
    """Whether a model is at a server that constrains the answers of any model to a schema, but perhaps not beside tools."""
    if find_row(model, wire_format=wire_format, rows=rows)[0] in rows:  # the user says what it can do
        return False
    service = service_capabilities(model, wire_format)
    return service is not None and service.is_assumed and service.structured_output == "json_schema"


@lru_cache(maxsize=256)
def _create_mode(
    name: str,
    known: Capabilities,
    written: WrittenCalls = "refused",
    is_enforced_late: bool = False,  # noqa: FBT001, FBT002  # cached
) -> CanUseMode:
    name = known.mode if name == "auto" else name
    if name == "native":
        output: AnswerForm = "late_format" if is_enforced_late else "tool"
        output = "format" if known.structured_output == "json_schema" else output
        return NativeMode(output=output, written_calls=written)
    if name == "structured":
        from agentloop.models.modes.structured import StructuredMode

        return StructuredMode(variant="json_object" if known.structured_output == "json_object" else "json_schema")
    if name in {"validated", "parsed"}:
        from agentloop.models.modes.text import TextMode

        return TextMode(reprompts=name == "validated")
    known_names = ("auto", "native", "structured", "validated", "parsed", PROGRAM_MODE)
    raise ConfigurationError(
        f"there is no tool-calling mode {name!r}{suggest(name, known_names)}; known are {', '.join(known_names)}"
    )


# --- the choices of an execution ------------------------------------------------------------------------------------


def explain_mode(name: str, *, wire_format: str = "", rows: Sequence[CapabilityRow] = ()) -> ModeChoice:
    """Return the mode that `auto` chooses for a model, and why.

    Args:
        name: `provider:model`, or the model alone.
        wire_format: the name of the wire format; by default, the provider's.
        rows: capabilities of models; they take precedence over those of the published models.
    """
    row, reason = find_row(name, wire_format=wire_format, rows=rows)
    known = UNKNOWN_MODEL if row is None else row.capabilities
    if known.is_assumed and known.mode == "native":
        reason += "; its tool API is tried first"
    return ModeChoice(name, known.mode, reason)


class _Translation:
    """Translates deltas with a new stream of the mode for each attempt: what a failed one has written is void."""

    def __init__(self, new_stream: Callable[[], ModeStream]) -> None:
        self._new_stream = new_stream
        self._stream = new_stream()
        self._attempt = 1

    def restart(self, report: RetryReport, failed: FailedAttempt) -> None:
        """Begin anew before a retry, and report it."""
        self._stream = self._new_stream()
        report(failed)

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        # Models that repeat requests report that, or number the deltas.
        if delta.attempt != self._attempt:
            self._stream, self._attempt = self._new_stream(), delta.attempt
        return self._stream.feed(delta)

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        return [delta.with_attempt(self._attempt) for delta in self._stream.close(response)]


@frozen(eq=False, repr=False)
class ModeInference(CanInfer, CanReportRetries, CanReportDelays, CanReportOmissions, CanRenderRequest):
    """A model that is called in a mode: translates its requests, and its responses back.

    If the provider refuses tools and the mode has a fallback, the request is sent again in that mode, as a further attempt.
    The response then has the fallback as its `mode_choice`.

    Attributes:
        inference: the model.
        mode: the mode.
        asks_for_answer: whether the model is asked for an answer without calls, because those that it makes bring nothing new.
            A call that it makes nevertheless is read as always.
    """

    inference: CanInfer
    mode: CanUseMode
    asks_for_answer: bool = field(default=False, kw_only=True)
    _bounds: Bounds = field(default=DEFAULT_BOUNDS, kw_only=True)
    _report: RetryReport | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        return repr(self.inference)

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that reports failed attempts, also those of its model."""
        return evolve(self, report=report)

    def with_delay_report(self, report: DelayReport) -> Self:
        """Return a copy whose model reports requests that wait."""
        if not isinstance(self.inference, CanReportDelays):
            return self
        return evolve(self, inference=self.inference.with_delay_report(report))

    def with_omission_report(self, report: OmissionReport) -> Self:
        """Return a copy whose model reports tools that it leaves out."""
        if not isinstance(self.inference, CanReportOmissions):
            return self
        return evolve(self, inference=self.inference.with_omission_report(report))

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return a request as the model receives it."""
        return self._prepare(request)[0]

    def _prepare(self, request: InferenceRequest) -> tuple[InferenceRequest, StrictFormat | None]:
        """Return a request as it is sent, and the form of its answer if the provider gets a strict one in its place."""
        offered = self._offer(request)
        answer_format = strict_format(offered, request)
        return (offered if answer_format is None else offered.with_response_format(answer_format.sent)), answer_format

    def _offer(self, request: InferenceRequest) -> InferenceRequest:
        offered = self.mode.render_request(request)
        # A choice of the user's stays; without tools, the request asks for an answer in any case.
        if not (self.asks_for_answer and request.tools and request.tool_choice.kind == "auto"):
            return offered
        asking = self.mode.render_request(request.with_tool_choice(ToolChoice.none()))
        if self.mode.streams_calls:
            return asking
        # Whatever is said, the request extends the one before it (law 13).
        if asking.response_format is not None and asking.response_format.schema is not None:
            return offered.with_response_format(asking.response_format)
        return offered.with_messages([*offered.messages, _question_again(request)])

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Call the model in its mode.

        Raises:
            InferenceError: the call of the model failed.
        """
        sent, answer_format = self._prepare(request)
        try:
            response = await self._reporting(self._report).infer(sent)
        except ToolsNotSupported as error:
            fallback = self._fall_back(error, sent)
            return _with_choice(await fallback.infer(request), self._choice(fallback, error))
        return await self._read(response, request, answer_format)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Call the model in its mode and translate the deltas of its response.

        Raises:
            InferenceError: the call of the model failed.
        """
        sent, answer_format = self._prepare(request)
        stream, fallback, has_started = self._stream_in_mode(request, sent, answer_format), None, False
        try:
            async for item in stream:
                has_started = True
                yield item
        except ToolsNotSupported as error:
            # A provider refuses a request before it answers; an error behind the first deltas is something else.
            if has_started:
                raise
            fallback = self._fall_back(error, sent)
            choice = self._choice(fallback, error)
        finally:
            await stream.aclose()
        if fallback is None:
            return
        stream = fallback.stream(request)
        try:
            async for item in stream:
                yield _with_choice(item, choice) if isinstance(item, InferenceResponse) else item
        finally:
            await stream.aclose()

    async def _stream_in_mode(
        self, request: InferenceRequest, sent: InferenceRequest, answer_format: StrictFormat | None
    ) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        translation, report = _Translation(partial(self._mode_stream, request, answer_format)), self._report
        stream = self._reporting(None if report is None else partial(translation.restart, report)).stream(sent)
        read = 0
        try:
            async for item in stream:
                if isinstance(item, InferenceDelta):
                    is_long = len(item.text) > LONG_TEXT
                    read += len(item.text)
                    if read > _SLICE:  # many pieces may have arrived at once
                        await asyncio.sleep(0)
                        read = 0
                    for delta in await compute_in_thread(translation.feed, item) if is_long else translation.feed(item):
                        yield delta
                else:
                    response = await self._read(item, request, answer_format)
                    for delta in translation.close(response):
                        yield delta
                    yield response
        finally:
            # A consumer that stops early must not leave the connection open until garbage collection.
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    async def _read(
        self, response: InferenceResponse, request: InferenceRequest, answer_format: StrictFormat | None
    ) -> InferenceResponse:
        """Return a response as its mode reads it; a long text is read in a thread, so that other tasks go on meanwhile."""

        def read() -> InferenceResponse:
            parsed = within_bounds(self.mode.parse_response(response, request), self._bounds)
            return parsed if answer_format is None else answer_format.read(parsed)

        return await compute_on_text(response.text, read)

    def _mode_stream(self, request: InferenceRequest, answer_format: StrictFormat | None) -> ModeStream:
        stream = self.mode.stream(request)
        return stream if answer_format is None else StrictFormatStream(stream)

    def _reporting(self, report: RetryReport | None) -> CanInfer:
        inference = self.inference
        if report is None or not isinstance(inference, CanReportRetries):
            return inference
        return inference.with_retry_report(report)

    def _fall_back(self, error: ToolsNotSupported, sent: InferenceRequest) -> ModeInference:
        """Report a refusal of tools, and return the model in the fallback of its mode; raise the error if there is none."""
        fallback = self.mode.fallback
        # A request without tools was refused for another reason, whatever the message says.
        if fallback is None or not sent.tools:
            raise error
        if self._report is not None:
            self._report(FailedAttempt(1, error, 0.0))
        return evolve(self, mode=fallback)

    def _choice(self, fallback: ModeInference, error: ToolsNotSupported) -> ModeChoice:
        model = self.inference.model_name if isinstance(self.inference, CanNameModel) else ""
        return ModeChoice(model, form_of(fallback.mode).name, f"the provider refused the tools: {error}")


_LONGEST_QUESTION = 2_000


def _question_again(request: InferenceRequest) -> Message:
    """Return the message that asks for the answer: a weak model repeats whatever else it says, and not a question."""
    asked = (message.text for message in reversed(request.messages) if message.role == "user" and message.text.strip())
    question = next(asked, "")
    if not question or len(question) > _LONGEST_QUESTION:
        return Message.user("Answer my question with these results, without another call.")
    return Message.user(f"Answer my question with these results, without another call: {question}")


def _with_choice(response: InferenceResponse, choice: ModeChoice) -> InferenceResponse:
    return evolve(response, mode_choice=choice)
