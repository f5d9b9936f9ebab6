"""The gate of a provider: the tools of a request in the form that its API accepts, before the request is sent.

One tool that an API refuses costs the whole request, and with it all other tools. What can be translated is: drafts of JSON Schema,
keys, boolean schemas. What cannot be translated costs its tool, and is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from attrs import evolve, field, frozen

from agentloop.contracts.can_infer import LeftOutTool, OmissionReport
from agentloop.errors import BadRequest
from agentloop.models.tool_keys import KeyTranslation
from agentloop.models.tool_limits import ToolLimits
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ToolChoice
from agentloop.values.messages import Message, Part
from agentloop.values.schema_drafts import Schema, each_schema, modern_schema, schema_problem
from agentloop.values.tool_calls import ANSWER_TOOL, ToolCall, ToolExchange, ToolSpec
from agentloop.values.value import encode_each

_LOG = logging.getLogger("agentloop.inference")


@frozen(eq=False)
class _GatedTool:
    """A tool at the gate of an API.

    Attributes:
        spec: the tool as it is sent; None if it cannot be.
        keys: the translation of its keys; None if they need none.
        reason: why it cannot be sent.
    """

    spec: ToolSpec | None
    keys: KeyTranslation | None = None
    reason: str = ""


@frozen(eq=False)
class PassedTools:
    """The tools of a request behind the gate.

    Attributes:
        tools: the tools as they are sent.
        keys: the translations of their keys, by the name of the tool; empty in most requests.
        left_out: the tools that are not sent.
    """

    tools: tuple[ToolSpec, ...]
    keys: Mapping[str, KeyTranslation] = field(factory=dict)
    left_out: tuple[LeftOutTool, ...] = ()

    def request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request as it is sent, in which the calls of the conversation have the keys of the provider, too.

        Raises:
            BadRequest: the model has to call a tool that is left out.
        """
        if self.tools is request.tools:
            return request
        choice = request.tool_choice
        for tool in self.left_out:
            if choice.kind == "specific" and tool.name == choice.name:
                raise BadRequest(f"the model has to call {tool.name!r}, which cannot be offered to it: {tool.reason}")
        if choice.is_forced and not self.tools:
            choice = ToolChoice.auto()
        messages = request.messages
        if self.keys:
            # The values keep the translations alive by whose identity what is translated is stored.
            fingerprint = ("keys of the provider", *self.keys.items())
            messages = tuple(encode_each(messages, fingerprint, self._message))
        return evolve(request, tools=self.tools, tool_choice=choice, messages=messages)

    def response(self, response: InferenceResponse) -> InferenceResponse:
        """Return a response in which the arguments of calls have the keys of their tools."""
        if not self.keys:
            return response
        return response.with_parts(
            [self._call(part) if isinstance(part, ToolCall) else part for part in response.parts]
        )

    def _call(self, call: ToolCall) -> ToolCall:
        keys = self.keys.get(call.name)
        return call if keys is None else evolve(call, arguments_json=keys.from_provider(call.arguments_json))

    def _message(self, message: Message) -> Message:
        if not any(exchange.call.name in self.keys for exchange in message.exchanges):
            return message
        return evolve(message, parts=[self._part(part) for part in message.parts])

    def _part(self, part: Part) -> Part:
        keys = self.keys.get(part.call.name) if isinstance(part, ToolExchange) else None
        if keys is None or not isinstance(part, ToolExchange):
            return part
        return evolve(part, call=evolve(part.call, arguments_json=keys.to_provider(part.call.arguments_json)))

    def stream(self) -> PassedStream | None:
        """Return a translator of the deltas of one response; None if there is nothing to translate."""
        return PassedStream(self.keys) if self.keys else None


class PassedStream:
    """Gives the arguments in deltas the keys of their tools.

    Args:
        keys: the translations of keys, by the name of the tool.
    """

    __slots__ = ("_keys", "_names", "_readers")

    def __init__(self, keys: Mapping[str, KeyTranslation]) -> None:
        self._keys = keys
        self._names: dict[int, str] = {}
        self._readers: dict[int, Any] = {}

    def feed(self, deltas: list[InferenceDelta]) -> list[InferenceDelta]:
        """Return deltas with the original names of their tools, translated; a key is held back until it is complete."""
        fed = [self._feed(delta) for delta in deltas]
        return [delta for delta in fed if delta is not None]

    def close(self) -> list[InferenceDelta]:
        """Return the beginnings of keys that were held back."""
        rests = [(index, reader.close()) for index, reader in self._readers.items() if reader is not None]
        return [InferenceDelta("arguments", rest, index) for index, rest in rests if rest]

    def _feed(self, delta: InferenceDelta) -> InferenceDelta | None:
        if delta.kind == "tool_call":
            before = self._names.get(delta.index, "")
            # The pieces of a name; some services send the whole name again.
            self._names[delta.index] = delta.name if delta.name == before else before + delta.name
            return delta
        if delta.kind != "arguments":
            return delta
        if delta.index not in self._readers:
            keys = self._keys.get(self._names.get(delta.index, ""))
            self._readers[delta.index] = None if keys is None else keys.reader()
        reader = self._readers[delta.index]
        if reader is None:
            return delta
        text = reader.feed(delta.arguments)
        return evolve(delta, arguments=text) if text else None


class ToolGate:
    """Holds the requests of one execution to what an API accepts in tools.

    What becomes of a tool is stored with its definition, and that of all tools with the last request, so that a request with the same
    tools costs one comparison.

    Args:
        limits: what the API accepts; None if that is unknown, so that everything passes.
    """

    __slots__ = ("_limits", "_passed", "_reported", "_seen")

    def __init__(self, limits: ToolLimits | None) -> None:
        self._limits = limits
        self._seen: tuple[object, ...] = ()
        self._passed: PassedTools | None = None
        self._reported: set[tuple[str, str]] = set()

    def pass_tools(self, request: InferenceRequest, hosted: int, report: OmissionReport | None) -> PassedTools:
        """Return the tools of a request behind the gate.

        Args:
            request: the request.
            hosted: the number of tools of the provider in the request, which count.
            report: called with each tool that is left out, once per execution; it is logged in any case.
        """
        choice = request.tool_choice.name if request.tool_choice.kind == "specific" else ""
        passed = self._passed
        if passed is None or self._seen[0] is not request.tools or self._seen[1:] != (hosted, choice):
            passed = self._passed = self._pass(request.tools, hosted, choice)
            self._seen = (request.tools, hosted, choice)
        for tool in passed.left_out:
            if (tool.name, tool.reason) not in self._reported:
                self._reported.add((tool.name, tool.reason))
                _LOG.warning("the tool %.200r is not offered to the model: %s", tool.name, tool.reason)
                if report is not None:
                    report(tool)
        return passed

    def _pass(self, tools: tuple[ToolSpec, ...], hosted: int, choice: str) -> PassedTools:
        limits = self._limits
        if limits is None or not tools:
            return PassedTools(tools)
        gated = encode_each(tools, ("gate", limits.name), partial(gate_tool, limits=limits))
        left_out = [
            LeftOutTool(tool.name, each.reason) for tool, each in zip(tools, gated, strict=True) if each.spec is None
        ]
        kept = [(tool.name, each) for tool, each in zip(tools, gated, strict=True) if each.spec is not None]
        excess = len(kept) + hosted - limits.max_tools if limits.max_tools else 0
        if excess > 0:
            # The last ones go, except those that the model needs to answer at all.
            dropped = [name for name, _ in kept if name not in {choice, ANSWER_TOOL}][-excess:]
            left_out += [LeftOutTool(name, f"{limits.name} accepts {limits.max_tools} tools") for name in dropped]
            names = set(dropped)
            kept = [(name, each) for name, each in kept if name not in names]
        sent = tuple([each.spec for _, each in kept if each.spec is not None])
        keys = {name: each.keys for name, each in kept if each.keys is not None}
        is_same = len(sent) == len(tools) and all(new is old for new, old in zip(sent, tools, strict=True))
        return PassedTools(tools if is_same else sent, keys, tuple(left_out))


def gate_tool(spec: ToolSpec, limits: ToolLimits) -> _GatedTool:
    """Return a tool as an API accepts it, or why it does not."""
    try:
        schema: Schema = modern_schema(spec.parameters).schema
        problem = schema_problem(schema)
        if problem:
            return _GatedTool(None, reason=f"its parameters are not a JSON Schema: {problem}")
        if not limits.has_boolean_schemas:
            schema = each_schema(schema, _without_booleans)
        accepted = limits.accepted_keys
        keys = None if accepted is None else KeyTranslation.of(schema, accepted, limits.max_key_length)
        if keys is not None:
            unknown = keys.unknown_references()
            if unknown:
                return _GatedTool(
                    None, reason=f"the reference {unknown[0]!r} in its parameters leads to no place in them"
                )
            schema = keys.sent_schema()
    except RecursionError:
        return _GatedTool(None, reason="its parameters are nested too deeply")
    description = _shortened(spec, limits)
    if schema is spec.parameters and description is spec.description:
        return _GatedTool(spec)
    return _GatedTool(evolve(spec, parameters=schema, description=description), keys)


_BOOLEANS: Final[Mapping[bool, Schema]] = {True: {}, False: {"not": {}}}


def _without_booleans(node: Schema) -> Schema:
    properties = node.get("properties")
    if not isinstance(properties, Mapping) or not any(isinstance(item, bool) for item in properties.values()):
        return node
    written = {key: _BOOLEANS[item] if isinstance(item, bool) else item for key, item in properties.items()}
    return {**node, "properties": written}


def _shortened(spec: ToolSpec, limits: ToolLimits) -> str:
    limit = limits.max_description
    if not limit or len(spec.description) <= limit:
        return spec.description
    _LOG.warning("the description of the tool %.200r is cut: %s accepts %d characters", spec.name, limits.name, limit)
    return spec.description[: limit - 1] + "…"
