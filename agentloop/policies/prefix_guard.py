"""Compares each request with the one before it, and finds out who broke the prefix that a provider has cached."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from hashlib import blake2b
from operator import is_
from typing import Any, Final, Self, TypeAlias

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept, CanWatchRequests
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ContractViolation
from agentloop.events.bus import emit_soon
from agentloop.events.inference import PrefixBroken
from agentloop.interception.interceptor import Interceptor
from agentloop.values.epochs import Epoch, PrefixBreak
from agentloop.values.estimates import BYTES_PER_TOKEN, length, message_tokens, tools_length
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import format_json, thaw
from agentloop.values.messages import Message
from agentloop.values.parts import Media, ProviderPart, Reasoning, Text
from agentloop.values.points import BeforeInference, StatePoint
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec

_MAX_AGENTS: Final = 100
_MAX_BREAKS: Final = 1_000


@frozen(eq=False)
class PrefixGuard(Interceptor, CanWatchRequests, CanAcceptExecutionScope, CanAcceptLifecycle):
    """Reports requests that do not extend the one before them, as `PrefixBroken` (law 13).

    A provider reads the beginning of a request from its cache if it is that of an earlier one: tools, then system prompt, then
    messages. A clock in the system prompt, tools in another order or an edited message make the whole rest of the request be
    paid anew. What an epoch of the compiler announces is no break, and neither is a repetition of an inference in its step.

    Requests to one model are compared within an execution, and with those of the execution before it if the conversation goes
    on. For that, the guard keeps the last request of the last hundred agents.

    Attributes:
        expected: the names of interceptors whose breaks are intended, such as `ToolSelection`; they are not reported.
        breaks: collects the breaks of all executions, the last thousand by default.
    """

    expected: Collection[str] = ()
    breaks: deque[PrefixBreak] = field(factory=lambda: deque(maxlen=_MAX_BREAKS), kw_only=True, repr=False)
    _agents: dict[str, _Trail] = field(factory=dict, kw_only=True, repr=False)
    _trail: _Trail | None = field(default=None, kw_only=True, repr=False)
    _events: CanHandleEvents | None = field(default=None, kw_only=True, repr=False)
    writes = ()  # type: tuple[str, ...]  # an annotation would be a field

    def with_execution_scope(self, scope: ExecutionScope) -> Self:  # noqa: ARG002  # only the lifetime matters
        """Return a copy that watches the requests of one execution."""
        return evolve(self, trail=_Trail())

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that emits the breaks to this bus."""
        return evolve(self, events=events)

    def check(self) -> None:
        """Raise if any request so far has broken the prefix.

        Raises:
            ContractViolation: one has; the message lists the breaks.
        """
        if self.breaks:
            listed = "\n".join(map(str, self.breaks))
            raise ContractViolation(
                f"{len(self.breaks)} requests do not extend the one before them (law 13):\n{listed}"
            )

    def begin_epoch(self, epoch: Epoch) -> None:  # noqa: ARG002  # that it begins is enough
        """Expect that the next request has other messages."""
        if self._trail is not None:
            self._trail.epoch += 1

    def begin_request(self, inference: object, request: InferenceRequest, state: AgentState) -> None:
        """Note a request as the driver has made it."""
        trail = self._trail
        if trail is None:
            return
        if trail.state is None and state.agent_id in self._agents:
            trail.continue_from(self._agents[state.agent_id], state)
        trail.begin(inference, request, state)

    def watch_layer(self, layer: str, before: StatePoint, after: StatePoint) -> None:
        """Note what an interceptor made of the request, and who changed the system prompt in the state."""
        trail = self._trail
        if trail is None:
            return
        if before is not after and before.state.context.system_prompt != after.state.context.system_prompt:
            trail.prompt_writer = layer
        if isinstance(after, BeforeInference):
            trail.versions.append((layer, after.request))

    def end_request(self, request: InferenceRequest) -> None:
        """Compare the request with the one before it, and report a break."""
        trail, state = self._trail, None if self._trail is None else self._trail.state
        if trail is None or state is None:
            return
        found = trail.end(request, state)
        # The least recently used agent is forgotten.
        self._agents.pop(state.agent_id, None)
        self._agents[state.agent_id] = trail
        if len(self._agents) > _MAX_AGENTS:
            del self._agents[next(iter(self._agents))]
        if found is None or found.name in self.expected:
            return
        self.breaks.append(found)
        if self._events is not None:
            emit_soon(self._events, PrefixBroken, state, None, found)


# --- the requests of an execution -----------------------------------------------------------------------------------

_Versions: TypeAlias = list[tuple[str, InferenceRequest]]
"""A request as the driver made it, and after each interceptor, with the name of the interceptor."""


@frozen(eq=False)
class _SentRequest:
    """A request that was sent, and how it came about."""

    request: InferenceRequest
    versions: _Versions
    step: tuple[str, int]
    epoch: int


@define(eq=False)
class _Trail:
    """The last requests of one execution, by model.

    Attributes:
        state: the state of the latest request; None before the first.
        epoch: the number of the epoch.
        versions: the request that is being made.
        prompt_writer: the interceptor that changed the system prompt in the state; empty if none did.
    """

    state: AgentState | None = None
    epoch: int = 0
    versions: _Versions = field(factory=list)
    prompt_writer: str = ""
    _models: list[object] = field(factory=list)
    _model: int = 0
    _latest: dict[int, _SentRequest] = field(factory=dict)

    def continue_from(self, earlier: _Trail, state: AgentState) -> None:
        """Compare the first requests with those of an earlier execution, if the conversation is the same or a longer one."""
        before = earlier.state
        # In the same execution, a handoff has put another loop in place of the first, and announced that.
        if before is None or before.execution_id == state.execution_id:
            return
        if state.context.continues(before.messages):
            self._latest, self.epoch = dict(earlier._latest), self.epoch + earlier.epoch  # of this class

    def begin(self, inference: object, request: InferenceRequest, state: AgentState) -> None:
        """Begin a request. Models are told apart by the order in which an execution first uses them."""
        index = next((index for index, known in enumerate(self._models) if known is inference), None)
        if index is None:
            index = len(self._models)
            self._models.append(inference)
        self._model, self.state, self.versions = index, state, [("", request)]

    def end(self, request: InferenceRequest, state: AgentState) -> PrefixBreak | None:
        """End the request, and return how it breaks the prefix; None if it does not."""
        before = self._latest.get(self._model)
        sent = _SentRequest(request, self.versions, (state.execution_id, state.step_count), self.epoch)
        # An inference that is repeated within its step shows the model more, which the next step leaves out again.
        if before is None or before.step != sent.step:
            self._latest[self._model] = sent
        if before is None:
            return None
        position = _find_break(before.request, request, is_new_epoch=before.epoch != sent.epoch)
        return None if position is None else self._describe(position, before, sent)

    def _describe(self, position: _Position, before: _SentRequest, sent: _SentRequest) -> PrefixBreak:
        writer, name = self._find_writer(position, before, sent)
        old, new = _segment(before.request, position), _segment(sent.request, position)
        offset = _first_difference(old, new)
        return PrefixBreak(
            place=_place(position),
            writer=writer,
            name=name,
            offset=offset,
            before=_excerpt(old, offset),
            after=_excerpt(new, offset),
            tokens=_tokens_from(before.request, position),
        )

    def _find_writer(self, position: _Position, before: _SentRequest, sent: _SentRequest) -> tuple[str, str]:
        """Return who wrote what differs: the first stage after which the two requests differ there, or before it."""
        for name, old, new in _stages(before.versions, sent.versions):
            found = _find_break(old, new, is_new_epoch=before.epoch != sent.epoch)
            if found is not None and found <= position:
                return ("interceptor", name) if name else self._origin(found, new)
        return "driver", ""

    def _origin(self, position: _Position, request: InferenceRequest) -> tuple[str, str]:
        """Return who wrote a segment of a request that no interceptor has seen yet."""
        if position[0] == _SYSTEM:
            is_of_state = self.state is not None and request.system_prompt == self.state.context.system_prompt
            return ("prompt", self.prompt_writer) if is_of_state else ("driver", "")
        return {_TOOLS: "tools", _MESSAGES: "compiler"}.get(position[0], "driver"), ""


def _stages(before: _Versions, after: _Versions) -> list[tuple[str, InferenceRequest, InferenceRequest]]:
    """Return two requests side by side, as they were after each interceptor, with the name of the interceptor."""
    names = [name for name, _ in after]
    if names == [name for name, _ in before]:
        return [(name, old, new) for (name, old), (_, new) in zip(before, after, strict=True)]
    # The interceptors are others than before: one that was not there has changed nothing then.
    stages, old, known = [], before[0][1], dict(before)
    for name, new in after:
        old = known.get(name, old)
        stages.append((name, old, new))
    return stages


# --- segments -------------------------------------------------------------------------------------------------------

_Position: TypeAlias = tuple[int, int]
"""A kind of segment, and the index among the segments of that kind; in the order in which providers read a request."""
_MODEL, _TOOLS, _FORMAT, _SYSTEM, _MESSAGES = range(5)
_NAMES: Final = ("model", "tools[{}]", "response format", "system prompt", "messages[{}]")


def _find_break(old: InferenceRequest, new: InferenceRequest, *, is_new_epoch: bool) -> _Position | None:
    """Return the first segment of a request that the next one does not have in this place; None if that extends it."""
    if old is new:
        return None
    head = _find_head_break(old, new)
    if head is not None or is_new_epoch:
        return head
    at = _common(old.messages, new.messages)
    return (_MESSAGES, at) if at < len(old.messages) else None


def _find_head_break(old: InferenceRequest, new: InferenceRequest) -> _Position | None:
    """Return the first segment in front of the messages that two requests do not have in common."""
    if old.options.model != new.options.model:
        return _MODEL, 0
    at = len(old.tools) if old.tools is new.tools else _common(old.tools, new.tools)
    # More tools at the end come before the system prompt, too.
    if at < max(len(old.tools), len(new.tools)):
        return _TOOLS, at
    if old.response_format != new.response_format:
        return _FORMAT, 0
    return (_SYSTEM, 0) if old.system_prompt != new.system_prompt else None


def _common(old: Sequence[Message | ToolSpec], new: Sequence[Message | ToolSpec]) -> int:
    """Return how many segments two sequences have in common at their beginning."""
    same = list(map(is_, old, new))
    if False not in same:
        return len(same)
    # Unchanged segments are the same objects. Of those that were made anew, only hashes are compared, computed once each.
    for index in range(same.index(False), len(same)):
        if not same[index] and _hash(old[index]) != _hash(new[index]):
            return index
    return len(same)


def _hash(segment: Message | ToolSpec) -> bytes:
    return segment.encoded(_HASH, lambda value: blake2b(_bytes(value), digest_size=16).digest())


_HASH: Final = "agentloop.prefix_guard"


def _bytes(segment: Message | ToolSpec) -> bytes:
    """Return what a model sees of a message or a tool, as JSON."""
    if isinstance(segment, ToolSpec):
        return format_json([segment.name, segment.description, thaw(segment.parameters)])
    return format_json([segment.role, *map(_shown, segment.parts)])


def _shown(part: object) -> Any:
    shown: Any = repr(part)
    match part:
        case Text() | Reasoning():
            shown = [type(part).__name__, part.text, thaw(part.provider_data)]
        case ToolCall():
            shown = [part.id, part.name, part.arguments_json, thaw(part.provider_data)]
        case ToolExchange():
            shown = [_shown(part.call), *map(_shown, part.execution.parts)]
        case Media():
            data = "" if part.data is None else blake2b(part.data, digest_size=16).hexdigest()
            shown = [type(part).__name__, part.media_type, part.url, part.file_id, part.name, data]
        case ProviderPart():
            shown = [part.wire_format, thaw(part.payload)]
    return shown


def _segment(request: InferenceRequest, position: _Position) -> bytes:
    """Return the bytes of a segment; empty if the request does not have it."""
    kind, index = position
    if kind in {_TOOLS, _MESSAGES}:
        segments: Sequence[Message | ToolSpec] = request.tools if kind == _TOOLS else request.messages
        return _bytes(segments[index]) if index < len(segments) else b""
    if kind == _SYSTEM:
        return request.system_prompt.encode("utf-8", "surrogatepass")
    if kind == _MODEL:
        return (request.options.model or "").encode()
    form = request.response_format
    return b"" if form is None else format_json([form.name, form.strict, thaw(form.schema)])


def _place(position: _Position) -> str:
    return _NAMES[position[0]].format(position[1])


def _first_difference(old: bytes, new: bytes) -> int:
    shorter = min(len(old), len(new))
    return next((index for index in range(shorter) if old[index] != new[index]), shorter)


_EXCERPT_BYTES: Final = 60


def _excerpt(segment: bytes, offset: int) -> str:
    return segment[offset : offset + _EXCERPT_BYTES].decode("utf-8", "replace")


def _tokens_from(request: InferenceRequest, position: _Position) -> int:
    """Return about how many tokens of a request follow a position."""
    kind, index = position
    tokens = sum(map(message_tokens, request.messages[index if kind == _MESSAGES else 0 :]))
    if kind < _MESSAGES:
        tokens += -(-length(request.system_prompt) // BYTES_PER_TOKEN)
    if kind < _SYSTEM:
        tokens += -(-tools_length(request.tools[index if kind == _TOOLS else 0 :]) // BYTES_PER_TOKEN)
    return tokens
