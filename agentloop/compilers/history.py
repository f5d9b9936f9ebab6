"""Compilers that show the conversation from its beginning, or from a summary of its beginning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Final, Self

from attrs import define, evolve, field, frozen

from agentloop.compilers.retained import RetainedMessages
from agentloop.compilers.stale import StaleResults
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptTools
from agentloop.contracts.can_compile_messages import CanCompileMessages, CanMarkEpoch
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.values.epochs import NO_EPOCH, Epoch, Summary
from agentloop.values.messages import Message
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class HistoryCompiler(Value, CanCompileMessages, CanMarkEpoch, CanAcceptTools, CanAcceptExecutionScope):
    """The base class of compilers that show the conversation, or a summary of its beginning and the rest.

    A new epoch begins with an execution for which something is left out, with a summary, and with each call that makes results
    stale: the next request has notices in their place. Within an epoch, requests extend each other. A subclass selects what is shown
    of earlier executions.
    """

    _tools: Tools = field(default=NO_TOOLS, repr=False, eq=False)
    _cache: _Cache | None = field(default=None, repr=False, eq=False)

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that knows which results of these tools later calls make stale."""
        return evolve(self, tools=tools)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:  # noqa: ARG002  # only the lifetime matters
        """Return a copy that caches the compiled history for one execution."""
        return evolve(self, cache=_Cache())

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the messages that the model sees."""
        compiled, messages = self._compiled(state), state.context.messages
        if compiled.visible is compiled.source:  # nothing is put together in each turn of a long conversation
            return messages
        return compiled.visible + messages[len(compiled.source) :]

    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch of this state."""
        return self._compiled(state).epoch

    @abstractmethod
    def of_history(self, history: tuple[Message, ...], unfinished: Collection[str]) -> tuple[Message, ...]:
        """Return those messages of earlier executions that are shown.

        Args:
            history: the messages of earlier executions, without those that a summary covers.
            unfinished: the ids of the executions among them that did not complete.
        """

    def _compiled(self, state: AgentState) -> _CompiledHistory:
        cache = self._cache if self._cache is not None else _Cache()
        if cache.compiled is not None and cache.state is state:
            return cache.compiled
        messages, summary, unfinished = state.context.messages, Summary.of(state), state.unfinished_executions
        history_length = state.execution.history_length if state.execution is not None else len(messages)
        # An interceptor may have removed messages since the execution started.
        history_length = min(history_length, len(messages))
        compiled = cache.get(state.context, history_length, summary, unfinished)
        if compiled is None:
            compiled = cache.compiled = self._compile(messages, history_length, summary, unfinished, cache)
            cache.messages = messages
        if cache.stale is not None:
            compiled = cache.compiled = cache.follow(compiled, cache.stale, messages)
        cache.state = state
        return compiled

    def _compile(
        self,
        messages: tuple[Message, ...],
        history_length: int,
        summary: Summary | None,
        unfinished: tuple[str, ...],
        cache: _Cache,
    ) -> _CompiledHistory:
        covered, summarized_at = (summary.covers, summary.at) if summary is not None else (0, 0)
        # Messages since the later of both are shown unchanged, so that each request extends the previous one.
        end = max(history_length, summarized_at)
        source = messages[:end]
        history = self.of_history(messages[covered:history_length], unfinished)
        visible = (*history, *messages[max(covered, history_length) : end])
        visible, superseded = cache.read(visible, end, StaleResults.of(self._tools))
        if summary is None:
            epoch = _epoch("another execution has begun", source, visible, superseded)
            visible = source if visible == source else visible
            return _CompiledHistory(source, history_length, None, unfinished, visible, epoch)
        leading, pinned = cache.retained_messages(source, covered)
        visible = (*leading, summary.message, *pinned, *visible)
        summarizes = summarized_at >= history_length
        reason = "the conversation was summarized" if summarizes else "another execution has begun"
        # The message of the summary is not one of the conversation.
        epoch = _epoch(reason, source, visible[1:], superseded)
        return _CompiledHistory(source, history_length, summary, unfinished, visible, epoch)


@frozen(eq=False, repr=False)
class WholeConversation(HistoryCompiler):
    """Shows every message of the conversation, the tool calls of earlier executions included. This is the default.

    Requests extend each other also from one execution to the next, unless a result has become stale or the beginning of
    the conversation was summarized.
    """

    def of_history(self, history: tuple[Message, ...], unfinished: Collection[str]) -> tuple[Message, ...]:  # noqa: ARG002  # shows them all
        """Return all messages of earlier executions."""
        return history


@frozen(eq=False, repr=False)
class ConversationWithCurrentToolTrace(HistoryCompiler):
    """Shows the conversation without the tool calls of earlier executions, once the model has answered from their results.

    Messages of completed executions that contain tool calls are left out as a whole; questions and answers stay. The calls
    of an execution that did not complete are always shown: the model has not answered from their results yet, and without
    them it would repeat the calls. A new epoch begins with each execution for which something is left out, and with each
    summary.
    """

    def of_history(self, history: tuple[Message, ...], unfinished: Collection[str]) -> tuple[Message, ...]:
        """Return the messages of earlier executions without the tool calls of those that completed."""
        shown = set(unfinished) | _unanswered_executions(history)
        return tuple([message for message in history if not message.exchanges or _execution_id(message) in shown])


SUPERSEDED: Final = "a call has made earlier results stale"
"""Why an epoch begins with such a call."""

# --- details ----------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class _CompiledHistory(ShownByField):
    """What was compiled when an epoch began; later messages of the epoch are shown unchanged after it.

    Attributes:
        source: the messages of the state that were compiled.
        history_length: how many of them are of earlier executions, or the input of this one.
        summary: the summary of the first of them.
        unfinished: the ids of earlier executions that did not complete.
        visible: what the model sees of them; `source` itself if that is all of them, unchanged.
        epoch: the epoch.
    """

    source: tuple[Message, ...]
    history_length: int
    summary: Summary | None
    unfinished: tuple[str, ...]
    visible: tuple[Message, ...]
    epoch: Epoch


@define(eq=False, repr=False)
class _Cache(ShownByField):
    """The last compiled history of one execution, and how far the summarized messages were read.

    Attributes:
        state: the state for which the history was asked last, since a step asks for it several times.
        messages: the messages of the conversation then.
        compiled: the history; None before the first.
        stale: the stale results among the messages that were read; None if no tool makes results stale.
        position: the number of messages of the conversation that were read for stale results.
    """

    state: AgentState | None = field(default=None, repr=False)
    messages: tuple[Message, ...] = ()
    compiled: _CompiledHistory | None = None
    stale: StaleResults | None = None
    position: int = 0
    _retained: RetainedMessages = field(factory=RetainedMessages)
    _summarized: tuple[Message, ...] = ()

    def get(
        self, context: AgentContext, history_length: int, summary: Summary | None, unfinished: tuple[str, ...]
    ) -> _CompiledHistory | None:
        """Return the compiled history if it is of this conversation."""
        compiled = self.compiled
        if compiled is None or compiled.history_length != history_length:
            return None
        if compiled.summary != summary or compiled.unfinished != unfinished:
            return None
        if not context.continues(self.messages) and (self.stale is not None or not context.continues(compiled.source)):
            return None
        self.messages = context.messages
        return compiled

    def read(
        self, visible: tuple[Message, ...], end: int, stale: StaleResults | None
    ) -> tuple[tuple[Message, ...], int]:
        """Read what is shown when an epoch begins; return it with notices in place of stale results, and how many messages have some.

        Args:
            visible: the messages.
            end: the number of messages of the conversation that they are taken from.
            stale: finds their stale results; None if no tool makes results stale.
        """
        self.stale, self.position = stale, end
        return (visible, 0) if stale is None else (stale.read_all(visible), len(stale.stubbed))

    def follow(
        self, compiled: _CompiledHistory, stale: StaleResults, messages: tuple[Message, ...]
    ) -> _CompiledHistory:
        """Read the messages since then; return the history with a new epoch at each call that has made results stale."""
        for index in range(self.position, len(messages)):
            changed = stale.read(messages[index])
            if not changed:
                continue
            source = messages[: index + 1]
            visible = [*compiled.visible, *source[len(compiled.source) :]]
            first = len(visible) - stale.position  # of the messages that are read for stale results
            stubs = {first + place: stale.stub(place, visible[first + place]) for place in changed}
            if any(visible[place] is not stub for place, stub in stubs.items()):
                shown = tuple([stubs.get(place, message) for place, message in enumerate(visible)])
                dropped = compiled.epoch.dropped
                epoch = Epoch(SUPERSEDED, dropped, len(source) - dropped, len(stale.stubbed))
                compiled = evolve(compiled, source=source, visible=shown, epoch=epoch)
        self.position = len(messages)
        return compiled

    def retained_messages(self, source: tuple[Message, ...], covered: int) -> tuple[list[Message], list[Message]]:
        """Return the summarized messages that are still shown: those before the summary, and those after it."""
        # A summary that covers less, or another conversation: start reading again.
        if self._retained.position > covered or source[: len(self._summarized)] != self._summarized:
            self._retained = RetainedMessages()
        retained, self._summarized = self._retained, source[:covered]
        while retained.position < covered:
            retained.advance(source)
        messages = retained.select(source)
        return messages[: retained.leading], messages[retained.leading :]


def _execution_id(message: Message) -> str:
    """Return the id of the execution that made the calls of a message."""
    return message.exchanges[0].execution.key.rsplit("/", 2)[0]


def _unanswered_executions(messages: tuple[Message, ...]) -> set[str]:
    """Return the ids of the executions whose last calls are not followed by an answer before the next question."""
    # The state knows how its own executions ended. This is for conversations that were put together from elsewhere.
    unanswered: set[str] = set()
    latest = ""
    for message in messages:
        if message.exchanges:
            latest = _execution_id(message)
            unanswered.add(latest)
        elif message.role == "assistant":
            unanswered.discard(latest)
        elif message.role == "user":
            latest = ""
    return unanswered


def _epoch(reason: str, source: tuple[Message, ...], visible: tuple[Message, ...], superseded: int) -> Epoch:
    dropped = len(source) - len(visible)
    return Epoch(reason, dropped, len(visible), superseded) if dropped or superseded else NO_EPOCH
