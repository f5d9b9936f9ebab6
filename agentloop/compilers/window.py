"""A window over a conversation, whose beginning moves in leaps."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field, frozen

from agentloop.compilers.passed import Passed
from agentloop.compilers.superseded import without_stale_results
from agentloop.contracts.tools import Tools
from agentloop.values.epoch import Epoch
from agentloop.values.message import Message


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
    _passed: Passed = field(factory=Passed)

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
