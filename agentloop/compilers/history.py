"""What compilers that show the conversation from its beginning, or from its summary, have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from attrs import define, evolve, field, frozen

from agentloop.compilers.retained import RetainedMessages, without_stale_results
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptTools
from agentloop.contracts.can_compile_messages import CanCompileMessages, CanMarkEpoch
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.values.epochs import NO_EPOCH, Epoch, Summary
from agentloop.values.messages import Message
from agentloop.values.state import AgentState


@frozen(eq=False)
class View:
    """What was compiled when an epoch began; within the epoch all that comes after is shown as it is.

    Attributes:
        settled: the messages of the state when the epoch began.
        history_length: how many of them are of earlier executions, or the input of this one.
        summary: what stands for the first of them.
        head: what the model is shown of them.
        epoch: the epoch.
    """

    settled: tuple[Message, ...]
    history_length: int
    summary: Summary | None
    head: tuple[Message, ...]
    epoch: Epoch


@define(eq=False)
class Kept:
    """What a bound compiler has compiled last, and how far the summarized messages were looked at."""

    messages: tuple[Message, ...] = ()
    view: View | None = None
    passed: RetainedMessages = field(factory=RetainedMessages)
    covered: tuple[Message, ...] = ()

    def serves(self, messages: tuple[Message, ...], history_length: int, summary: Summary | None) -> View | None:
        """Return the view if it is of this conversation; the same objects in a row are compared by identity."""
        view = self.view
        if view is None or view.history_length != history_length or view.summary != summary:
            return None
        if messages is not self.messages and messages[: len(view.settled)] != view.settled:
            return None
        self.messages = messages
        return view


@frozen
class HistoryCompiler(CanCompileMessages, CanMarkEpoch, CanAcceptTools, CanAcceptExecutionScope):
    """Shows the conversation from its beginning, or a summary of its beginning and the rest.

    A new epoch begins with an execution that leaves something out, and with a summary; then, and at no other time, stale
    results are replaced by notices. A subclass says what is left out of earlier executions.
    """

    _tools: Tools = field(default=NO_TOOLS, repr=False, eq=False)
    _kept: Kept | None = field(default=None, repr=False, eq=False)

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that knows which results of these tools later calls make stale."""
        return evolve(self, tools=tools)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:  # noqa: ARG002  # only the lifetime is needed
        """Return a copy that keeps what it compiled of the history for the length of one execution."""
        return evolve(self, kept=Kept())

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return what the model is shown of the conversation."""
        view = self._view(state)
        return view.head + state.messages[len(view.settled) :]

    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch that this state stands in."""
        return self._view(state).epoch

    @abstractmethod
    def of_history(self, history: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return those messages of earlier executions that are shown."""

    def _view(self, state: AgentState) -> View:
        messages, summary = state.messages, Summary.of(state)
        length = state.execution.history_length if state.execution is not None else len(messages)
        length = min(length, len(messages))
        kept = self._kept if self._kept is not None else Kept()
        view = kept.serves(messages, length, summary)
        if view is None:
            view = kept.view = self._made(messages, length, summary, kept)
            kept.messages = messages
        return view

    def _made(self, messages: tuple[Message, ...], length: int, summary: Summary | None, kept: Kept) -> View:
        covers, at = (summary.covers, summary.at) if summary is not None else (0, 0)
        end = max(length, at)
        settled = messages[:end]
        shown = (*self.of_history(messages[covers:length]), *messages[max(covers, length) : end])
        stubs = without_stale_results(shown, self._tools)
        if stubs:
            shown = tuple([stubs.get(place, message) for place, message in enumerate(shown)])
        if summary is None:
            return View(settled, length, None, shown, _epoch("another execution has begun", settled, shown, stubs))
        lead = _remains(settled, covers, kept)
        head = (*lead[0], summary.message, *lead[1], *shown)
        reason = "the conversation was summarized" if at >= length else "another execution has begun"
        return View(settled, length, summary, head, _epoch(reason, settled, head[1:], stubs))


def _epoch(reason: str, settled: tuple[Message, ...], shown: tuple[Message, ...], stubs: dict[int, Message]) -> Epoch:
    dropped = len(settled) - len(shown)
    return Epoch(reason, dropped, len(shown), len(stubs)) if dropped or stubs else NO_EPOCH


def _remains(settled: tuple[Message, ...], covers: int, kept: Kept) -> tuple[list[Message], list[Message]]:
    """Return what stays of the messages that a summary covers: before the summary, and after it."""
    if kept.passed.place > covers or settled[: len(kept.covered)] != kept.covered:
        kept.passed = RetainedMessages()
    passed, kept.covered = kept.passed, settled[:covers]
    while passed.place < covers:
        passed.move(settled)
    whole = passed.kept(settled)
    return whole[: passed.leading], whole[passed.leading :]


@frozen
class ConversationWithCurrentToolTrace(HistoryCompiler):
    """Shows the whole conversation, with the tool calls of the current execution and without those of earlier ones.

    Messages of earlier executions that hold tool exchanges are left out whole; questions and answers stay. A new epoch
    begins with each execution and with each summary, at no other time.
    """

    def of_history(self, history: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages of earlier executions that hold no tool exchanges."""
        return _without_trace(history)


def _without_trace(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple([message for message in messages if not message.exchanges])


@frozen
class WholeConversation(HistoryCompiler):
    """Shows every message of the conversation, the tool calls of earlier executions included.

    Requests extend each other also from one execution to the next, unless a result has become stale or the beginning of
    the conversation was summarized.
    """

    def of_history(self, history: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return all messages of earlier executions."""
        return history
