"""A compiler that clears the results of old tool calls and keeps the calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from attrs import define, evolve, field, frozen

from agentloop.compilers.history import SUPERSEDED
from agentloop.compilers.shortening import ShortenedConversation, ShorteningCompiler, SizeCache
from agentloop.compilers.stale import ResultIndex, StaleResults
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.errors import ConfigurationError
from agentloop.values.epochs import NO_EPOCH, Epoch
from agentloop.values.estimates import length, message_tokens
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolExchange
from agentloop.values.value import instance_of


def _as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@frozen(kw_only=True)
class ClearOldResults(ShorteningCompiler["_Clearing"], CanNameTools):
    """Shows notices in place of old results when the conversation becomes too long; calls and all messages stay.

    When the conversation exceeds `above` tokens and that saves enough, the results of all calls but the newest `keep` are cleared,
    and a new epoch begins; from then on requests extend each other until it is exceeded again. Stale results are replaced by notices
    at once, those of excluded tools and the newest ones included. Results that the model has not seen
    yet are never cleared, nor is a result that is shorter than its notice. The state keeps all results. If the tools contain
    `read_result`, the notice has the reference by which the model reads the result again.

    Attributes:
        above: the number of tokens of system prompt and messages from which on results are cleared.
        keep: the number of the newest results that stay.
        at_least: the minimum number of tokens that an epoch has to save, so that epochs are rare; by default a quarter of `above`.
        exclude: names of tools whose results stay unless they are stale, or patterns such as `read_*`.
        optional: whether the names in `exclude` may match no tool. Otherwise that is an error when an execution begins.
        estimate: estimates the tokens of a message; by default by its length.
        inner: the compiler whose messages are shown; by default that of the whole conversation.

    Raises:
        ConfigurationError: if a number is too small.
    """

    above: int
    keep: int = 3
    at_least: int | None = None
    exclude: tuple[str, ...] = field(default=(), converter=_as_names)
    optional: bool = field(default=False, validator=instance_of(bool))
    estimate: Callable[[Message], int] = field(default=message_tokens, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.above < 1 or self.keep < 0 or (self.at_least is not None and self.at_least < 1):
            raise ConfigurationError(
                f"above and at_least have to be at least 1 and keep at least 0, not above={self.above}, "
                f"at_least={self.at_least}, keep={self.keep}"
            )

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools whose results stay."""
        return [] if self.optional else [ToolReference("ClearOldResults(exclude=…)", name) for name in self.exclude]

    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch of this state."""
        inner, clearing = self.inner_epoch(state), self.shorten(state)
        if not clearing.epoch_start:
            return inner
        parts = (inner,) if inner != NO_EPOCH else ()
        superseded = inner.superseded + len({index for index, _ in clearing.superseded})
        return Epoch(clearing.reason, inner.dropped, len(clearing.head), superseded, len(clearing.cleared), parts)

    def clear(self, exchange: ToolExchange) -> ToolExchange:
        """Return a call with a notice in place of its result; unchanged if its tool is excluded."""
        execution = exchange.execution
        if any(fnmatchcase(execution.name, pattern) for pattern in self.exclude):
            return exchange
        hint = self._tools.reading_hint(execution.key)
        notice = f"[cleared: {length(execution.text):,} bytes{f'; {hint} shows them again' if hint else ''}]"
        return evolve(exchange, execution=evolve(execution, content=(Text(notice),)))

    def begin(self, state: AgentState, known: SizeCache) -> _Clearing:
        """Return an empty conversation."""
        prompt = state.context.system_prompt
        reserved = self.estimate(Message.system(prompt)) if prompt else 0
        return _Clearing(known, StaleResults.of(self._tools), self, reserved)


@define(eq=False)
class _Clearing(ShortenedConversation):
    """What is cleared of one conversation; each message is measured once, and again when results of it are cleared.

    An epoch begins only if it saves at least a minimum, so the number of epochs, and of the messages that are written anew, is
    bounded by the size of the whole conversation.

    Attributes:
        compiler: the settings.
        reserved: the tokens of the system prompt.
        cleared: the places of results that were cleared: the indexes of the message and of the part.
        superseded: the places of stale results that were replaced by notices.
    """

    compiler: ClearOldResults
    reserved: int
    cleared: set[ResultIndex] = field(factory=set)
    superseded: set[ResultIndex] = field(factory=set)
    _newest: deque[ResultIndex] = field(factory=deque)
    _old: dict[int, dict[int, ToolExchange]] = field(factory=dict)
    _savings: int = 0

    def __attrs_post_init__(self) -> None:
        self._size = self.reserved

    @property
    def settings(self) -> int:
        """The tokens of the system prompt: those of the compiler stay the same."""
        return self.reserved

    def measure(self, message: Message) -> int:
        """Return the size of a message."""
        return self.compiler.estimate(message)

    def read(self, messages: tuple[Message, ...], index: int) -> None:
        """Add the results of a message to the newest ones, so that earlier ones become old."""
        self._age(messages, index)

    def replace(self, messages: tuple[Message, ...], end: int, changed: Sequence[int]) -> None:
        """Begin an epoch before message `end` if a result of one of these messages is longer than the notice that it is stale."""
        assert self.stale is not None  # noqa: S101  # it has found the results
        shown = [*self.head, *messages[self.epoch_start : end]]
        is_changed = False
        for index in changed:
            former = shown[index]
            shown[index] = self.stale.stub(index, former)
            for place, (part, before) in enumerate(zip(shown[index].parts, former.parts, strict=True)):
                if part is not before:
                    self.superseded.add((index, place))
                    self.cleared.discard((index, place))
                    is_changed = True
                if self.stale.is_stale(index, place):
                    self._forget(messages, index, place)
            self.resize(index, shown[index])
        if is_changed:
            self.begin_epoch(end, shown, SUPERSEDED)

    def shorten(self, messages: tuple[Message, ...], end: int) -> None:
        """Begin an epoch before message `end` if the conversation is too long, and that saves enough."""
        if self._size > self.compiler.above and self._savings >= self._minimum:
            self._clear(messages, end)

    @property
    def _minimum(self) -> int:
        at_least = self.compiler.at_least
        return max(1, self.compiler.above // 4) if at_least is None else at_least

    def _age(self, messages: Sequence[Message], index: int) -> None:
        """Add the results of a message to the newest ones, and those that are not among these any more to the old ones."""
        added = [(index, place) for place, part in enumerate(messages[index].parts) if isinstance(part, ToolExchange)]
        # Only results of earlier messages: the model has not seen those of this one.
        for _ in range(min(len(self._newest), max(0, len(self._newest) + len(added) - self.compiler.keep))):
            old_index, place = self._newest.popleft()
            if self.stale is not None and self.stale.is_stale(old_index, place):
                continue
            saving, cleared = self._saving(messages, old_index, place)
            if saving > 0:
                self._old.setdefault(old_index, {})[place] = cleared
                self._savings += saving
        self._newest.extend(added)

    def _saving(self, messages: Sequence[Message], index: int, place: int) -> tuple[int, ToolExchange]:
        """Return how much it saves to clear a result, and the call with its result cleared."""
        part = messages[index].parts[place]
        assert isinstance(part, ToolExchange)  # noqa: S101  # only those have results
        cleared, estimate = self.compiler.clear(part), self.compiler.estimate
        saving = 0 if cleared is part else estimate(Message.assistant(part)) - estimate(Message.assistant(cleared))
        return saving, cleared

    def _forget(self, messages: Sequence[Message], index: int, place: int) -> None:
        """Leave out of the old results one that has become stale."""
        if self._old.get(index, {}).pop(place, None) is not None:
            self._savings -= self._saving(messages, index, place)[0]

    def _clear(self, messages: tuple[Message, ...], end: int) -> None:
        """Begin an epoch before message `end`, and clear the old results."""
        shown = [*self.head, *messages[self.epoch_start : end]]
        for index, old in self._old.items():
            parts = list(shown[index].parts)
            for place, exchange in old.items():
                parts[place] = exchange
                self.cleared.add((index, place))
            shown[index] = shown[index].with_parts(parts)
            self.resize(index, shown[index])
        self._old, self._savings = {}, 0
        self.begin_epoch(end, shown, f"the conversation exceeded {self.compiler.above} tokens")
