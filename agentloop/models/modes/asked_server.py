"""A model at a server that is asked what it can do before the tool API is used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Self, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_infer import (
    CanInfer,
    CanReportDelays,
    CanReportRetries,
    DelayReport,
    FailedAttempt,
    RetryReport,
)
from agentloop.contracts.can_use_mode import CanRenderRequest
from agentloop.drivers.mode_choices import mode_choice
from agentloop.errors import BadRequest, InferenceError, InvalidResponse, ToolsNotSupported
from agentloop.models.http_inference import HttpInference
from agentloop.models.model_capabilities import capabilities, find_row, service_capabilities
from agentloop.models.modes.native import AssumedMode, NativeMode
from agentloop.models.modes.program import ProgramMode
from agentloop.models.modes.selection import ModeInference
from agentloop.models.modes.structured import StructuredMode
from agentloop.models.modes.text import TextMode
from agentloop.models.server_abilities import ServerAbilities
from agentloop.values.capabilities import CapabilityRow
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ModeChoice, Usage
from agentloop.values.json import format_json
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.tool_calls import ToolSpec

_Answer: TypeAlias = tuple[list[InferenceDelta], InferenceResponse]

_MOST_CHARACTERS: Final = 6
"""The characters of a token, at most, on the average of a text or of the definitions of tools."""
_FEW_CHARACTERS: Final = 300
_LEFT_OUT: Final = (
    "the server has left out the tools: the prompt has {} tokens, and the text and the tools need {} at least"
)


def asked_inference(called: CanInfer, rows: Sequence[CapabilityRow], state: AgentState) -> CanInfer:
    """Return a model that asks its server before it is called by the tool API; as it is called, if that is known or not chosen.

    Args:
        called: the model in the mode that suits it by what is known.
        rows: capabilities of models; what a row says of a model is not asked.
        state: the state of the execution, with the modes that it has chosen.
    """
    server = called.inference if isinstance(called, ModeInference) else None
    if not isinstance(called, ModeInference) or not isinstance(server, HttpInference):
        return called
    name, wire_format = server.model_name, server.wire_format_name
    form = called.mode.form if isinstance(called.mode, ProgramMode) else called.mode
    if form.name != "native" or mode_choice(state, name) is not None:
        return called
    if find_row(name, wire_format=wire_format, rows=rows)[0] in rows:
        return called
    known, service = capabilities(name, wire_format=wire_format), service_capabilities(name, wire_format)
    is_local = service is not None and service.is_assumed
    return AskedInference(
        called,
        server,
        enforces_schemas=service is not None and service.structured_output == "json_schema",
        counts_tokens=is_local or known.is_assumed,
    )


@frozen(eq=False, repr=False)
class AskedInference(CanInfer, CanReportRetries, CanReportDelays, CanRenderRequest):
    """A model that is called by the tool API, unless its server has none for it.

    The server is asked before a request with tools. If it has no tools for the model, or leaves them out of the prompt, the request
    is sent in `structured`, where a schema is enforced, and else in `validated`. The first answer shows whether the schema is
    enforced. The response has the mode as its `mode_choice`.

    Attributes:
        native: the model in the mode that calls it by the tool API.
        server: the model at its server.
        enforces_schemas: whether the server is assumed to constrain answers to a schema, where it does not say it.
        counts_tokens: whether the tokens of a prompt tell whether it has the tools; a gateway may leave out those of its cache.
    """

    native: ModeInference
    server: HttpInference
    enforces_schemas: bool = False
    counts_tokens: bool = True
    _report: RetryReport | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        return repr(self.native)

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that reports failed attempts, also those of its model."""
        return evolve(self, native=self.native.with_retry_report(report), report=report)

    def with_delay_report(self, report: DelayReport) -> Self:
        """Return a copy whose model reports requests that wait."""
        return evolve(self, native=self.native.with_delay_report(report))

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return a request as the model receives it by the tool API."""
        return self.native.render_request(request)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Call the model in the mode that its server allows.

        Raises:
            InferenceError: the call of the model failed.
        """
        abilities = await self._ask(request)
        if abilities is not None and abilities.has_tools is False:
            return (await self._call_without_tools(request, abilities, streaming=False))[1]
        response = await self.native.infer(request)
        if not self._may_lack_tools(request, abilities, response):
            return response
        return (await self._call_without_tools(request, abilities, response, streaming=False))[1]

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Call the model in the mode that its server allows, and give the deltas of its response.

        The first response in another mode is given when it is complete and known to be in its form.

        Raises:
            InferenceError: the call of the model failed.
        """
        abilities, response = await self._ask(request), None
        if abilities is None or abilities.has_tools is not False:
            stream = self.native.stream(request)
            try:
                async for item in stream:
                    # Without a report, nobody would learn that the deltas so far are void.
                    is_told = self._report is not None
                    if (
                        isinstance(item, InferenceResponse)
                        and is_told
                        and self._may_lack_tools(request, abilities, item)
                    ):
                        response = item
                    else:
                        yield item
            finally:
                await stream.aclose()
            if response is None:
                return
        deltas, answer = await self._call_without_tools(request, abilities, response, streaming=True)
        for delta in deltas:
            yield delta
        yield answer

    async def _ask(self, request: InferenceRequest) -> ServerAbilities | None:
        return await self.server.ask_server() if request.tools else None

    def _may_lack_tools(
        self, request: InferenceRequest, abilities: ServerAbilities | None, response: InferenceResponse
    ) -> bool:
        """Whether a server that does not say it has dropped the tools of a request."""
        if not self.counts_tokens or (abilities is not None and abilities.has_tools is not None):
            return False
        is_other = response.tool_calls or response.mode_choice or response.problem or request.tool_choice.kind == "none"
        return not is_other and not self.native.asks_for_answer and bool(self._left_out(request, response))

    def _left_out(self, request: InferenceRequest, response: InferenceResponse) -> str:
        return _tools_left_out(self.render_request(request), response)

    async def _call_without_tools(
        self,
        request: InferenceRequest,
        abilities: ServerAbilities | None,
        native: InferenceResponse | None = None,
        *,
        streaming: bool,
    ) -> _Answer:
        """Return the first response, and its deltas, that is in the form of its mode, and that mode as its choice.

        Args:
            request: the request.
            abilities: what the server says.
            native: the response to the request by the tool API, if it was sent.
            streaming: whether the response is streamed.
        """
        says_tools = abilities is not None and abilities.has_tools is False
        reason = abilities.reason if abilities is not None and says_tools else ""
        usage = NO_USAGE if native is None else native.usage
        if native is not None:
            reason = self._left_out(request, native)
            self._tell(ToolsNotSupported(reason))
        if self.enforces_schemas if abilities is None else abilities.enforces_schemas:
            try:
                deltas, response = await self._call(StructuredMode(), request, streaming=streaming)
            except BadRequest as error:
                self._tell(error)
                reason += f"; the server refuses a schema: {error}"
            else:
                usage += response.usage
                if not response.problem or response.finish_reason.is_incomplete:
                    return deltas, self._chosen(response, StructuredMode(), reason, usage)
                self._tell(InvalidResponse(response.problem))
                reason += f"; the first answer has shown that no schema is enforced: {response.problem}"
        mode = TextMode()
        deltas, response = await self._call(mode, request, streaming=streaming)
        return deltas, self._chosen(response, mode, reason, usage + response.usage)

    async def _call(self, mode: StructuredMode | TextMode, request: InferenceRequest, *, streaming: bool) -> _Answer:
        before = self.native.mode
        native = before.form if isinstance(before, ProgramMode) else before
        mode = mode.with_bounds(native.bounds) if isinstance(native, NativeMode | AssumedMode) else mode
        form = evolve(before, form=mode) if isinstance(before, ProgramMode) else mode
        inference, deltas = evolve(self.native, mode=form), list[InferenceDelta]()
        if not streaming:
            return deltas, await inference.infer(request)
        stream = inference.stream(request)
        try:
            async for item in stream:
                if isinstance(item, InferenceResponse):
                    return deltas, item
                deltas.append(item)
        finally:
            await stream.aclose()
        raise InvalidResponse("the stream ended without a response")

    def _tell(self, error: InferenceError) -> None:
        if self._report is not None:
            self._report(FailedAttempt(1, error, 0.0))

    def _chosen(
        self, response: InferenceResponse, mode: StructuredMode | TextMode, reason: str, usage: Usage
    ) -> InferenceResponse:
        choice = ModeChoice(self.server.model_name, mode.name, reason)
        return evolve(response, mode_choice=choice, usage=usage)


def _tools_left_out(request: InferenceRequest, response: InferenceResponse) -> str:
    """Return that a prompt was too short to have the tools of its request; empty if it was not, or its tokens are unknown.

    Args:
        request: the request as it was sent.
        response: the response.
    """
    tokens = response.usage.input_tokens
    if not tokens or not request.tools:
        return ""
    tools = sum([spec.encoded("characters of a definition", _characters) for spec in request.tools])
    texts: Sequence[str] = [request.system_prompt, *[message.text for message in request.messages]]
    least = sum(map(len, texts)) // _MOST_CHARACTERS
    needed = least + tools // _MOST_CHARACTERS
    # A count that is too low for the texts alone says nothing, and few tokens may be those of a template.
    is_known = tokens >= least and tools >= _FEW_CHARACTERS
    return _LEFT_OUT.format(tokens, needed) if is_known and tokens < needed else ""


def _characters(spec: ToolSpec) -> int:
    return len(format_json({"name": spec.name, "description": spec.description, "parameters": spec.parameters}))
