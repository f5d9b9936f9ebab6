"""A model at a server that is asked what it can do before the tool API is used."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeAlias

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
from agentloop.models.model_capabilities import first_row, service_capabilities
from agentloop.models.modes.native import AssumedMode, NativeMode
from agentloop.models.modes.selection import ModeInference, form_of, with_form
from agentloop.models.server_abilities import ServerAbilities
from agentloop.values.capabilities import CapabilityRow
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ModeChoice, Usage
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.tool_calls import ToolSpec

if TYPE_CHECKING:
    from agentloop.models.modes.structured import StructuredMode
    from agentloop.models.modes.text import TextMode

_Answer: TypeAlias = tuple[list[InferenceDelta], InferenceResponse]

_MOST_CHARACTERS: Final = 6
"""The characters of a token, at most, on the average of a text."""
_LEFT_OUT: Final = (
    "the server has left out the tools: the prompt has {} tokens, where its text and that of the tools need {} at least, "
    "and the tools as a part of the text made it {}"
)


def asked_inference(called: CanInfer, rows: Sequence[CapabilityRow], state: AgentState) -> CanInfer:
    """Return a model that asks its server before it is called by the tool API.

    The model is returned as it is if it is not called by the tool API, or if a row or the execution already says how to call it.

    Args:
        called: the model in the mode that suits it by what is known.
        rows: capabilities of models; what a row says of a model is not asked.
        state: the state of the execution, with the modes that it has chosen.
    """
    server = called.inference if isinstance(called, ModeInference) else None
    if not isinstance(called, ModeInference) or not isinstance(server, HttpInference):
        return called
    name, wire_format = server.model_name, server.wire_format_name
    if form_of(called.mode).name != "native" or mode_choice(state, name) is not None:
        return called
    if rows and first_row(rows, name, wire_format) is not None:
        return called
    service = service_capabilities(name, wire_format)
    is_local = service is not None and service.is_assumed
    return AskedInference(
        called,
        server,
        enforces_schemas=service is not None and service.structured_output == "json_schema",
        # Gateways may count in another way than the server of the model. Ollama says itself whether a model has tools.
        counts_tokens=is_local and server.config.provider != "ollama",
    )


@frozen(eq=False, repr=False)
class AskedInference(CanInfer, CanReportRetries, CanReportDelays, CanRenderRequest):
    """A model that is called by the tool API, unless its server has none for it.

    The server is asked before a request with tools. If it has no tools for the model, the request is sent in `structured`, where a
    schema is enforced, and else in `validated`. The first answer shows whether the schema is enforced. The response has the mode as
    its `mode_choice`.

    A server that does not say whether it has tools may leave them out. That is assumed if all of this is so:

    - The model has called no tool by the tool API, neither in the conversation nor at this address before.
    - It answers without a call.
    - The prompt has fewer tokens than the texts and the tools of the request need.
    - The same request with the tools in its text has as many more tokens as the tools need, so the server does count its prompts.

    Otherwise the first answer stands, and the server is not tested again.

    Attributes:
        native: the model in the mode that calls it by the tool API.
        server: the model at its server.
        enforces_schemas: whether the server is assumed to constrain answers to a schema, if it does not say so.
        counts_tokens: whether the tokens of a prompt may tell whether it has the tools.
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
        return (await self._test(request, abilities, response, streaming=False))[1]

    def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Call the model in the mode that its server allows, and give the deltas of its response.

        The first response in another mode is given when it is complete and known to be in its form.

        Raises:
            InferenceError: the call of the model failed.
        """
        # Without tools there is nothing to ask, and each delta would pass another generator.
        return self._stream_asked(request) if request.tools else self.native.stream(request)

    async def _stream_asked(
        self, request: InferenceRequest
    ) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        abilities, response = await self._ask(request), None
        # Without a report, nobody would learn that the deltas so far are void.
        tells = self._report is not None
        if abilities is None or abilities.has_tools is not False:
            stream = self.native.stream(request)
            try:
                async for item in stream:
                    if tells and isinstance(item, InferenceResponse) and self._may_lack_tools(request, abilities, item):
                        response = item
                    else:
                        yield item
            finally:
                await stream.aclose()
            if response is None:
                return
        if response is None:
            deltas, answer = await self._call_without_tools(request, abilities, streaming=True)
        else:
            deltas, answer = await self._test(request, abilities, response, streaming=True)
        for delta in deltas:
            yield delta
        yield answer

    async def _ask(self, request: InferenceRequest) -> ServerAbilities | None:
        return await self.server.ask_server() if request.tools else None

    def _may_lack_tools(
        self, request: InferenceRequest, abilities: ServerAbilities | None, response: InferenceResponse
    ) -> bool:
        """Return whether the server may have left out the tools of a request; if a call proves otherwise, note that."""
        if not request.tools or (abilities is not None and abilities.has_tools is not None):
            return False
        if response.tool_calls:
            self.server.note_abilities(abilities, "its model has called a tool by the tool API", has_tools=True)
            return False
        is_other = response.mode_choice or response.problem or response.finish_reason.is_incomplete
        if not self.counts_tokens or is_other or self.native.asks_for_answer:
            return False
        if request.tool_choice.kind == "none" or any(message.exchanges for message in request.messages):
            return False
        texts, tools = _least_tokens(self.render_request(request))
        # A count that is too low for the texts alone says nothing. Some servers do not count tokens that were in a cache.
        count = response.usage.input_tokens or 0
        return texts <= count and count + (response.usage.cached_input_tokens or 0) < texts + tools

    async def _test(
        self,
        request: InferenceRequest,
        abilities: ServerAbilities | None,
        native: InferenceResponse,
        *,
        streaming: bool,
    ) -> _Answer:
        """Send a request again with the tools in its text, and return the answer if its tokens show that the server left out the tools.

        Args:
            request: the request.
            abilities: what the server says.
            native: the answer by the tool API, which is returned otherwise.
            streaming: whether the answer is streamed.
        """
        before, (texts, tools) = native.usage.input_tokens or 0, _least_tokens(self.render_request(request))
        try:
            # Failures of the test are not reported, since the first answer may stand.
            untold = evolve(self, report=None)
            deltas, response = await untold._call_without_tools(request, abilities, streaming=streaming)  # noqa: SLF001
        except InferenceError as error:
            self.server.note_abilities(abilities, f"no test whether it leaves out tools: {error}", has_tools=True)
            return [], native
        choice = response.mode_choice
        sent = (response.usage.input_tokens or 0) // max(response.usage.requests or 1, 1)
        usage = native.usage + response.usage
        if choice is None or sent < before + tools:
            self.server.note_abilities(abilities, "its tokens do not tell whether it leaves out tools", has_tools=True)
            return [], evolve(native, usage=usage)
        reason = _LEFT_OUT.format(before, texts + tools, sent) + choice.reason
        self._tell(ToolsNotSupported(reason))
        self.server.note_abilities(abilities, reason, has_tools=False)
        return deltas, evolve(response, mode_choice=evolve(choice, reason=reason), usage=usage)

    async def _call_without_tools(
        self, request: InferenceRequest, abilities: ServerAbilities | None, *, streaming: bool
    ) -> _Answer:
        """Return the response in the first mode in whose form the model answers, with its deltas; the mode is its `mode_choice`.

        Args:
            request: the request.
            abilities: what the server says.
            streaming: whether the response is streamed.
        """
        # Loaded here: most servers have a tool API, and reading calls in text needs many modules.
        from agentloop.models.modes.structured import StructuredMode
        from agentloop.models.modes.text import TextMode

        reason, usage, enforces_schemas = "", NO_USAGE, self.enforces_schemas
        if abilities is not None:
            reason = abilities.reason if abilities.has_tools is False else ""
            enforces_schemas = abilities.enforces_schemas
        if enforces_schemas:
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
        native = form_of(before)
        mode = mode.with_bounds(native.bounds) if isinstance(native, NativeMode | AssumedMode) else mode
        inference, deltas = evolve(self.native, mode=with_form(before, mode)), list[InferenceDelta]()
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


def _least_tokens(request: InferenceRequest) -> tuple[int, int]:
    """Return the tokens that the texts of a request have at least, and those of its tools.

    Of a tool, the names and the descriptions count: any template shows these, and each shows the rest in another form.
    """
    tools = sum([spec.encoded("characters that any template shows", _characters) for spec in request.tools])
    texts: Sequence[str] = [request.system_prompt, *[message.text for message in request.messages]]
    return sum(map(len, texts)) // _MOST_CHARACTERS, tools // _MOST_CHARACTERS


def _characters(spec: ToolSpec) -> int:
    properties = spec.parameters.get("properties")
    found = properties if isinstance(properties, Mapping) else {}
    described = [inner.get("description", "") for inner in found.values() if isinstance(inner, Mapping)]
    return sum([len(str(text)) for text in (spec.name, spec.description, *found, *described)])
