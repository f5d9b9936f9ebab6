"""A window over a conversation, whose beginning moves in leaps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from attrs import define, evolve, field, frozen

from agentloop.compilers.history import ConversationWithCurrentToolTrace
from agentloop.compilers.retained import RetainedMessages, without_stale_results
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptTools
from agentloop.contracts.can_compile_messages import CanCompileMessages, CanMarkEpoch
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.errors import ConfigurationError
from agentloop.values.epochs import NO_EPOCH, Epoch
from agentloop.values.estimates import message_tokens
from agentloop.values.messages import Message
from agentloop.values.state import AgentState


@frozen
class Measure:
    """How much a window holds.

    Attributes:
        weigh: what one message takes.
        most: what all that is shown may take.
        keep: what is left of it, at most, when the window was full.
        base: what is taken already, whatever is shown.
        reason: why an epoch begins when the window is full, in words.
    """

    weigh: Callable[[Message], int]
    most: int
    keep: int
    base: int
    reason: str


@define(eq=False)
class Window:
    """A window over one conversation, as far as it was read; each message is weighed once, and again as a notice.

    When a message makes it too full, stale results become notices, and messages are dropped from its beginning until no more
    is left than is to be kept: so there are many steps between two such breaks, and in between what is shown only grows.
    The newest message is never dropped, nor what `Passed` says stays. A window depends on nothing but the conversation.

    Attributes:
        measure: how much it holds.
        tools: the tools, which know what is stale.
        read: the conversation so far.
        since: how much of it was there when the epoch began.
        head: what is shown of that.
        stubs: the messages among these that have notices in place of stale results, by place.
    """

    measure: Measure
    tools: Tools
    read: tuple[Message, ...] = ()
    since: int = 0
    head: tuple[Message, ...] = ()
    stubs: dict[int, Message] = field(factory=dict)
    _weights: list[int] = field(factory=list)
    _taken: int = field(init=False)
    _leading: int = 0
    _passed: RetainedMessages = field(factory=RetainedMessages)

    def __attrs_post_init__(self) -> None:
        self._taken = self.measure.base

    def read_on(self, messages: tuple[Message, ...]) -> None:
        """Read the rest of a conversation that begins with what was read."""
        for place in range(len(self.read), len(messages)):
            weight = self.measure.weigh(messages[place])
            self._weights.append(weight)
            self._taken += weight
            if self._taken > self.measure.most:
                self._break(messages, place + 1)
        self.read = messages

    @property
    def shown(self) -> tuple[Message, ...]:
        """What is shown of the conversation."""
        return self.head + self.read[self.since :]

    def epoch(self, before: Epoch) -> Epoch:
        """Return the epoch that the window stands in.

        Args:
            before: the epoch of what the window looks at.
        """
        if not self.since:
            return before
        kept, superseded = len(self.head), len(self.stubs) + before.superseded
        return Epoch(self.measure.reason, before.dropped + self.since - kept, kept, superseded)

    def _break(self, messages: tuple[Message, ...], end: int) -> None:
        passed, weights, keep = self._passed, self._weights, self.measure.keep
        for place, stub in without_stale_results(messages[passed.place : end], self.tools).items():
            at = passed.place + place
            self.stubs[at], weights[at] = stub, self.measure.weigh(stub)
        tail = sum(weights[passed.place : end])
        while self._always(messages) + tail > keep and passed.place < end - 1:
            tail -= weights[passed.place]
            self.stubs.pop(passed.place, None)
            leading = passed.leading
            passed.move(messages)
            self._leading += sum(weights[leading : passed.leading])
        rest = [self.stubs.get(place, messages[place]) for place in range(passed.place, end)]
        self._taken = self._always(messages) + tail
        self.since, self.head = end, (*passed.kept(messages), *rest)

    def _always(self, messages: tuple[Message, ...]) -> int:
        """What is taken by all that stands before the rest of the conversation."""
        return (
            self.measure.base + self._leading + sum([self._weights[place] for place in self._passed.pinned(messages)])
        )


@define(eq=False)
class WindowCache:
    """The window of one execution, and the state that it was moved to last."""

    window: Window | None = None
    state: AgentState | None = None


@frozen(kw_only=True)
class WindowCompiler(CanCompileMessages, CanMarkEpoch, CanAcceptTools, CanAcceptExecutionScope):
    """Shows a window of what another compiler shows. A subclass says how the window is measured.

    Attributes:
        of: shows what the window is over.
    """

    of: CanCompileMessages = field(factory=ConversationWithCurrentToolTrace)
    _tools: Tools = field(default=NO_TOOLS, repr=False, eq=False)
    _kept: WindowCache | None = field(default=None, repr=False, eq=False)

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that knows which results of these tools later calls make stale."""
        of = self.of.with_tools(tools) if isinstance(self.of, CanAcceptTools) else self.of
        return evolve(self, of=of, tools=tools)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that keeps its window for the length of one execution, and reads new messages only."""
        of = self.of.with_execution_scope(scope) if isinstance(self.of, CanAcceptExecutionScope) else self.of
        return evolve(self, of=of, kept=WindowCache())

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the newest part of the conversation."""
        return self._window(state).shown

    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch that this state stands in."""
        before = self.of.epoch(state) if isinstance(self.of, CanMarkEpoch) else NO_EPOCH
        return self._window(state).epoch(before)

    @abstractmethod
    def measure(self, state: AgentState) -> Measure:
        """Return how much the window holds."""

    def _window(self, state: AgentState) -> Window:
        kept = self._kept if self._kept is not None else WindowCache()
        window = kept.window
        if window is not None and kept.state is state:
            return window
        messages, measure = tuple(self.of.compile(state)), self.measure(state)
        if window is None or window.measure != measure or messages[: len(window.read)] != window.read:
            window = Window(measure, self._tools)
        window.read_on(messages)
        kept.window, kept.state = window, state
        return window


def kept_of(most: int, keep: int | None, unit: str) -> int:
    """Return how much a full window keeps: as much as is said, or half.

    Raises:
        ConfigurationError: when it cannot hold or keep that much.
    """
    if most < 1:
        raise ConfigurationError(f"a window holds at least 1 of the {unit}, not {most}")
    kept = max(1, most // 2) if keep is None else keep
    if not 1 <= kept <= most:
        raise ConfigurationError(
            f"a window of {most} {unit} keeps between 1 and {most} of them when it is full, not {kept}"
        )
    return kept


def _one(_: Message) -> int:
    return 1


@frozen
class SlidingWindow(WindowCompiler):
    """Shows the newest messages, at most so many; what was left out stays in the state.

    When there are too many, the oldest are dropped until `keep` are left, and an epoch begins; then requests only grow until
    there are too many again. Kept in any case: system messages and a summary at the beginning, the question that the rest
    belongs to, the last message before the window that is the user's, and the newest message, although these be more.

    Attributes:
        messages: the most messages that are shown.
        keep: how many are left when there are too many; half when left out. The more, the more is seen and the more often the
            provider's cache is lost.
        of: shows what the window is over; without the tool trace of earlier executions when left out.
    """

    messages: int = field(kw_only=False)
    keep: int | None = None

    def __attrs_post_init__(self) -> None:
        kept_of(self.messages, self.keep, "messages")

    def measure(self, state: AgentState) -> Measure:  # noqa: ARG002  # the same for every state
        """Count messages."""
        keep = kept_of(self.messages, self.keep, "messages")
        return Measure(_one, self.messages, keep, 0, f"the window of {self.messages} messages was full")


@frozen
class TokenWindow(WindowCompiler):
    """Shows the newest messages, as many as fit into so many tokens; what was left out stays in the state.

    When they do not fit any more, stale results become notices, the oldest messages are dropped until `keep` tokens are left,
    and an epoch begins; then requests only grow until the budget is spent again. Kept in any case: system messages and a
    summary at the beginning, the question that the rest belongs to, the last message before the window that is the user's,
    and the newest message, although these be more.

    Attributes:
        tokens: the most tokens of system prompt and messages together. The tools on offer and the answer are not among them.
        keep: how many tokens are left when there are too many; half when left out.
        estimate: says how many tokens a message takes; by its length when left out. It is asked once for each message.
        of: shows what the window is over; without the tool trace of earlier executions when left out.
    """

    tokens: int = field(kw_only=False)
    keep: int | None = None
    estimate: Callable[[Message], int] = field(default=message_tokens, repr=False)

    def __attrs_post_init__(self) -> None:
        kept_of(self.tokens, self.keep, "tokens")

    def measure(self, state: AgentState) -> Measure:
        """Count tokens, those of the system prompt first."""
        keep = kept_of(self.tokens, self.keep, "tokens")
        prompt = state.context.system_prompt
        base = self.estimate(Message.system(prompt)) if prompt else 0
        return Measure(self.estimate, self.tokens, keep, base, f"the budget of {self.tokens} tokens was spent")
