"""The base class of compilers that show less of a conversation from epoch to epoch, and what they remember of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

from attrs import define, evolve, field, frozen

from agentloop.compilers.history import HistoryCompiler, WholeConversation
from agentloop.compilers.stale import StaleResults
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptTools
from agentloop.contracts.can_compile_messages import CanCompileMessages, CanMarkEpoch
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.values.epochs import NO_EPOCH, Epoch
from agentloop.values.messages import Message
from agentloop.values.state import AgentState


@define(eq=False)
class SizeCache:
    """The sizes of the messages of one execution; each message is measured once, also when an inner compiler begins an epoch."""

    _sizes: dict[int, tuple[Message, int]] = field(factory=dict)

    def size_of(self, message: Message, measure: Callable[[Message], int]) -> int:
        """Return the size of a message by this measure, which is the same for the whole execution."""
        # Found by id, since comparing messages takes longer than measuring them. A stored message keeps its id from being reused.
        known = self._sizes.get(id(message))
        if known is None:
            known = self._sizes[id(message)] = (message, measure(message))
        return known[1]


@define(eq=False)
class ShortenedConversation(ABC):
    """The part of one conversation that a compiler has read, and the messages that it shows; each message is measured once.

    Attributes:
        known: the sizes of messages that were measured before.
        messages: the conversation so far.
        epoch_start: how many messages there were when the epoch began.
        head: the messages that are shown in place of these.
        reason: why the epoch began.
        stale: the stale results among the messages; None if no tool makes results stale.
    """

    known: SizeCache
    stale: StaleResults | None
    messages: tuple[Message, ...] = field(default=(), init=False)
    epoch_start: int = field(default=0, init=False)
    head: tuple[Message, ...] = field(default=(), init=False)
    reason: str = field(default="", init=False)
    _sizes: list[int] = field(factory=list, init=False)
    _size: int = field(default=0, init=False)

    @property
    @abstractmethod
    def settings(self) -> object:
        """What decides how the conversation is shortened, besides its messages."""

    @property
    def visible(self) -> tuple[Message, ...]:
        """The messages that are shown."""
        return self.head + self.messages[self.epoch_start :]

    def extend(self, messages: tuple[Message, ...]) -> None:
        """Read the messages of a conversation that follow the messages read before."""
        for index in range(len(self.messages), len(messages)):
            size = self.known.size_of(messages[index], self.measure)
            self._sizes.append(size)
            self._size += size
            changed = self.stale.read(messages[index]) if self.stale is not None else ()
            self.read(messages, index)
            if changed:
                self.replace(messages, index + 1, changed)
            self.shorten(messages, index + 1)
        self.messages = messages

    @abstractmethod
    def measure(self, message: Message) -> int:
        """Return the size of a message."""

    @abstractmethod
    def read(self, messages: tuple[Message, ...], index: int) -> None:
        """Read message `index`, the first one that was not read before."""

    @abstractmethod
    def replace(self, messages: tuple[Message, ...], end: int, changed: Sequence[int]) -> None:
        """Begin an epoch before message `end` if one of these messages, which have stale results, is shown."""

    @abstractmethod
    def shorten(self, messages: tuple[Message, ...], end: int) -> None:
        """Begin an epoch before message `end` if the conversation is too long."""

    def begin_epoch(self, start: int, head: Sequence[Message], reason: str) -> None:
        """Begin an epoch.

        Args:
            start: how many messages there are.
            head: the messages that are shown in place of these from now on.
            reason: why the epoch begins.
        """
        self.epoch_start, self.head, self.reason = start, tuple(head), reason

    def resize(self, index: int, shown: Message) -> None:
        """Note that message `index` is shown in another form, whose size counts."""
        size = self.measure(shown)
        self._size += size - self._sizes[index]
        self._sizes[index] = size


C = TypeVar("C", bound=ShortenedConversation)


@define(eq=False)
class ConversationCache(Generic[C]):
    """The conversation of one execution as it was read, the state whose messages were read last, and the sizes of messages."""

    sizes: SizeCache = field(factory=SizeCache)
    conversation: C | None = None
    state: AgentState | None = None


@frozen(kw_only=True)
class ShorteningCompiler(CanCompileMessages, CanMarkEpoch, CanAcceptTools, CanAcceptExecutionScope, Generic[C]):
    """The base class of compilers that shorten what another compiler shows.

    Attributes:
        inner: the other compiler.
    """

    inner: CanCompileMessages = field(factory=WholeConversation)
    _tools: Tools = field(default=NO_TOOLS, repr=False, eq=False)
    _cache: ConversationCache[C] | None = field(default=None, repr=False, eq=False)

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that knows these tools, such as which of their results later calls make stale."""
        inner = self.inner
        # The stale results of a history are replaced here: if the history replaced them, all of it would have to be read anew.
        if not isinstance(inner, HistoryCompiler) and isinstance(inner, CanAcceptTools):
            inner = inner.with_tools(tools)
        return evolve(self, inner=inner, tools=tools)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that caches its work for one execution, and then reads new messages only."""
        inner = self.inner
        if isinstance(inner, CanAcceptExecutionScope):
            inner = inner.with_execution_scope(scope)
        return evolve(self, inner=inner, cache=ConversationCache())

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the shortened conversation."""
        return self.shorten(state).visible

    @abstractmethod
    def begin(self, state: AgentState, known: SizeCache) -> C:
        """Return a conversation that has read nothing yet.

        Args:
            state: the state, whose system prompt may count.
            known: the sizes of messages that were measured before.
        """

    def inner_epoch(self, state: AgentState) -> Epoch:
        """Return the epoch of the other compiler."""
        return self.inner.epoch(state) if isinstance(self.inner, CanMarkEpoch) else NO_EPOCH

    def shorten(self, state: AgentState) -> C:
        """Return the conversation of a state, read to its end."""
        cache = self._cache if self._cache is not None else ConversationCache[C]()
        earlier = cache.conversation
        # A driver asks for the messages and the epoch of the same state.
        if earlier is not None and cache.state is state:
            return earlier
        messages, conversation = tuple(self.inner.compile(state)), self.begin(state, cache.sizes)
        # Every message decides what is shown, so the earlier conversation is extended only if it is a prefix of the new one.
        if earlier is not None and earlier.settings == conversation.settings:
            is_prefix = messages[: len(earlier.messages)] == earlier.messages
            conversation = earlier if is_prefix else conversation
        conversation.extend(messages)
        cache.conversation, cache.state = conversation, state
        return conversation
