"""Compilers that show a window of the newest messages, by number or by tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from agentloop.compilers.history import SUPERSEDED
from agentloop.compilers.retained import RetainedMessages
from agentloop.compilers.shortening import ShortenedConversation, ShorteningCompiler, SizeCache
from agentloop.compilers.stale import StaleResults
from agentloop.errors import ConfigurationError
from agentloop.values.epochs import NO_EPOCH, Epoch
from agentloop.values.estimates import message_tokens
from agentloop.values.messages import Message
from agentloop.values.state import AgentState


@frozen(kw_only=True)
class WindowCompiler(ShorteningCompiler["_Window"]):
    """The base class of compilers that show a window of what another compiler shows.

    A subclass defines how messages are measured.
    """

    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch of this state."""
        return self.shorten(state).epoch(self.inner_epoch(state))

    @abstractmethod
    def capacity(self, state: AgentState) -> WindowCapacity:
        """Return how much the window holds."""

    def begin(self, state: AgentState, known: SizeCache) -> _Window:
        """Return an empty window."""
        return _Window(known, StaleResults.of(self._tools), self.capacity(state))


@frozen
class SlidingWindow(WindowCompiler):
    """Shows the newest messages, up to a maximum number; messages that are left out stay in the state.

    When there are too many, the oldest are dropped until `keep` remain, and a new epoch begins; from then on requests extend
    each other until there are too many again. A new question is shown with the answer before it, and the question of that
    answer, if they fit: from a maximum of 3 on. These messages always stay, even beyond the maximum: system messages and a
    summary at the beginning, the question that the rest belongs to, the last user's message before the window, and the newest
    message.

    Attributes:
        messages: the maximum number of messages.
        keep: how many remain when there are too many; by default half. With more of them, the model sees more and the
            provider's prompt cache is invalidated more often.
        inner: the compiler whose messages are shown; by default that of the whole conversation.
    """

    messages: int = field(kw_only=False)
    keep: int | None = None

    def __attrs_post_init__(self) -> None:
        _validate_keep(self.messages, self.keep, "messages")

    def capacity(self, state: AgentState) -> WindowCapacity:  # noqa: ARG002  # the same for every state
        """Count messages."""
        keep = _validate_keep(self.messages, self.keep, "messages")
        return WindowCapacity(_count_one, self.messages, keep, 0, f"the window of {self.messages} messages was full")


@frozen
class TokenWindow(WindowCompiler):
    """Shows the newest messages, up to a maximum number of tokens; messages that are left out stay in the state.

    When they exceed the maximum, the oldest messages are dropped until `keep` tokens remain, and a new epoch begins; from then on
    requests extend each other until the maximum is exceeded again. Stale results are replaced by notices at once. A new question is shown with the answer before it, and the question of that answer, if they fit. These messages always stay, even beyond
    the maximum: system messages and a summary at the beginning, the question that the rest belongs to, the last user's message
    before the window, and the newest message.

    Attributes:
        tokens: the maximum number of tokens of system prompt and messages together, without offered tools and the answer.
        keep: how many tokens remain when there are too many; by default half.
        estimate: estimates the tokens of a message, once for each message; by default by its length.
        inner: the compiler whose messages are shown; by default that of the whole conversation.
    """

    tokens: int = field(kw_only=False)
    keep: int | None = None
    estimate: Callable[[Message], int] = field(default=message_tokens, repr=False)

    def __attrs_post_init__(self) -> None:
        _validate_keep(self.tokens, self.keep, "tokens")

    def capacity(self, state: AgentState) -> WindowCapacity:
        """Count tokens; those of the system prompt are not available to messages."""
        keep = _validate_keep(self.tokens, self.keep, "tokens")
        prompt = state.context.system_prompt
        reserved = self.estimate(Message.system(prompt)) if prompt else 0
        reason = f"the budget of {self.tokens} tokens was spent"
        return WindowCapacity(self.estimate, self.tokens, keep, reserved, reason)


def _count_one(_: Message) -> int:
    return 1


def _validate_keep(maximum: int, keep: int | None, unit: str) -> int:
    """Return how much remains of a full window: `keep`, or half.

    Raises:
        ConfigurationError: when the maximum is below 1, or `keep` is not between 1 and the maximum.
    """
    if maximum < 1:
        raise ConfigurationError(f"a window holds at least 1 of the {unit}, not {maximum}")
    keep = max(1, maximum // 2) if keep is None else keep
    if not 1 <= keep <= maximum:
        raise ConfigurationError(
            f"a window of {maximum} {unit} keeps between 1 and {maximum} of them when it is full, not {keep}"
        )
    return keep


# --- the window -------------------------------------------------------------------------------------------------


@frozen
class WindowCapacity:
    """How much a window holds.

    Attributes:
        measure: returns the size of one message.
        maximum: the maximum size of everything that is shown.
        keep: the size that remains when the window was full.
        reserved: the size that is not available to messages.
        reason: why an epoch begins when the window is full, in words.
    """

    measure: Callable[[Message], int]
    maximum: int
    keep: int
    reserved: int
    reason: str


@define(eq=False)
class _Window(ShortenedConversation):
    """A window over one conversation; each message is measured once, and again if its results are replaced by notices.

    A message that exceeds the maximum shrinks the window to `keep`, not only by one message: so there are many steps between
    two epochs, and the provider's prompt cache serves the requests in between. The newest message is never dropped, nor are
    the retained messages. The answer before a new question is dropped only if it does not fit into the maximum.

    Attributes:
        capacity: how much it holds.
        stubs: the messages of `head` with notices in place of stale results, by index.
    """

    capacity: WindowCapacity
    stubs: dict[int, Message] = field(factory=dict)
    _leading_size: int = 0
    _retained: RetainedMessages = field(factory=RetainedMessages)

    def __attrs_post_init__(self) -> None:
        self._size = self.capacity.reserved

    @property
    def settings(self) -> WindowCapacity:
        """How much it holds."""
        return self.capacity

    def measure(self, message: Message) -> int:
        """Return the size of a message."""
        return self.capacity.measure(message)

    def read(self, messages: tuple[Message, ...], index: int) -> None:
        """Only its size counts."""

    def replace(self, messages: tuple[Message, ...], end: int, changed: Sequence[int]) -> None:
        """Begin an epoch before message `end` if one of these messages, which have stale results, is shown."""
        assert self.stale is not None  # noqa: S101  # it has found the results
        is_changed = False
        # What stays of the messages before the window has no results.
        for index in [index for index in changed if index >= self._retained.position]:
            shown = self.stubs.get(index, messages[index])
            stub = self.stale.stub(index, shown)
            if stub is not shown:
                self.stubs[index], is_changed = stub, True
                self.resize(index, stub)
        if is_changed:
            self._begin(messages, end, SUPERSEDED)

    def shorten(self, messages: tuple[Message, ...], end: int) -> None:
        """Begin an epoch before message `end` if the window is full."""
        if self._size > self.capacity.maximum:
            self._shrink(messages, end)

    def epoch(self, inner: Epoch) -> Epoch:
        """Return the epoch of the window.

        Args:
            inner: the epoch of the inner compiler.
        """
        # A window that was never full shows what the inner compiler shows.
        if not self.epoch_start:
            return inner
        kept, superseded = len(self.head), len(self.stubs) + inner.superseded
        parts = (inner,) if inner != NO_EPOCH else ()
        dropped = inner.dropped + self.epoch_start - kept
        return Epoch(self.reason, dropped, kept, superseded, inner.cleared, parts)

    def _shrink(self, messages: tuple[Message, ...], end: int) -> None:
        """Begin an epoch before message `end`, and drop the oldest messages."""
        retained, sizes = self._retained, self._sizes
        rest_size, question = sum(sizes[retained.position : end]), _question_start(messages, end)
        while (size := self._retained_size(messages) + rest_size) > self.capacity.keep and retained.position < end - 1:
            # A question without the answer before it is out of context, so this one is dropped only if it does not fit.
            if retained.position == question - 1 and size <= self.capacity.maximum:
                break
            rest_size -= sizes[retained.position]
            self.stubs.pop(retained.position, None)
            leading = retained.leading
            retained.advance(messages)
            self._leading_size += sum(sizes[leading : retained.leading])
        self._size = self._retained_size(messages) + rest_size
        self._begin(messages, end, self.capacity.reason)

    def _begin(self, messages: tuple[Message, ...], end: int, reason: str) -> None:
        rest = [self.stubs.get(index, messages[index]) for index in range(self._retained.position, end)]
        self.begin_epoch(end, [*self._retained.select(messages), *rest], reason)

    def _retained_size(self, messages: tuple[Message, ...]) -> int:
        """Return the size of the messages that stay, with what is reserved."""
        pinned = sum([self._sizes[index] for index in self._retained.pinned(messages)])
        return self.capacity.reserved + self._leading_size + pinned


def _question_start(messages: Sequence[Message], end: int) -> int:
    """Return the index of the first of the user's messages directly before `end`; `end` if there is none."""
    start = end
    while start > 0 and messages[start - 1].role == "user":
        start -= 1
    return start
