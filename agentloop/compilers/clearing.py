"""A compiler that clears the results of old tool calls and keeps the calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from attrs import define, evolve, field, frozen

from agentloop.compilers.shortening import ShortenedConversation, ShorteningCompiler, SizeCache
from agentloop.compilers.stale import ResultIndex, stub_stale_results
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.tools import Tools
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
    then, too, those of excluded tools and the newest ones included. Results that the model has not seen
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
        reason = f"the conversation exceeded {self.above} tokens"
        superseded = inner.superseded + len({index for index, _ in clearing.stale})
        return Epoch(reason, inner.dropped, len(clearing.head), superseded, len(clearing.cleared), parts)

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
        return _Clearing(known, self, self.estimate(Message.system(prompt)) if prompt else 0, self._tools)


@define(eq=False)
class _Clearing(ShortenedConversation):
    """What is cleared of one conversation; each message is measured once, and again when results of it are cleared.

    An epoch begins only if it saves at least a minimum, so the number of epochs, and of the messages that are written anew, is
    bounded by the size of the whole conversation.

    Attributes:
        compiler: the settings.
        reserved: the tokens of the system prompt.
        tools: the tools, which define what is stale.
        cleared: the places of results that were cleared: the indexes of the message and of the part.
        stale: the places of results that later calls made stale.
    """

    compiler: ClearOldResults
    reserved: int
    tools: Tools
    cleared: set[ResultIndex] = field(factory=set)
    stale: set[ResultIndex] = field(factory=set)
    _newest: deque[ResultIndex] = field(factory=deque)
    _old: dict[int, dict[int, ToolExchange]] = field(factory=dict)
    _savings: int = 0

    def __attrs_post_init__(self) -> None:
        self._size = self.reserved

    @property
    def settings(self) -> int:
        """The tokens of the system prompt: those of the compiler stay the same."""
        return self.reserved

    def extend(self, messages: tuple[Message, ...]) -> None:
        """Read the rest of a conversation of which the first messages were read before."""
        for index in range(len(self.messages), len(messages)):
            size = self.known.size_of(messages[index], self.compiler.estimate)
            self._sizes.append(size)
            self._size += size
            self._age(messages, index)
            if self._size > self.compiler.above and self._savings >= self._minimum:
                self._clear(messages, index + 1)
        self.messages = messages

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
            if (old_index, place) in self.stale:
                continue
            part = messages[old_index].parts[place]
            assert isinstance(part, ToolExchange)  # noqa: S101  # only those are added
            cleared, estimate = self.compiler.clear(part), self.compiler.estimate
            saving = 0 if cleared is part else estimate(Message.assistant(part)) - estimate(Message.assistant(cleared))
            if saving > 0:
                self._old.setdefault(old_index, {})[place] = cleared
                self._savings += saving
        self._newest.extend(added)

    def _clear(self, messages: tuple[Message, ...], end: int) -> None:
        """Begin an epoch before message `end`: replace stale results, and clear the other old ones."""
        shown = [*self.head, *messages[self.epoch_start : end]]
        stubs = stub_stale_results(shown, self.tools)
        for index in sorted({*self._old, *stubs}):
            former, old = shown[index].parts, self._old.get(index, {})
            parts = list(stubs[index].parts if index in stubs else former)
            for place, part in enumerate(former):
                if parts[place] is not part:
                    self.stale.add((index, place))
                    self.cleared.discard((index, place))
                elif place in old:
                    parts[place] = old[place]
                    self.cleared.add((index, place))
            shown[index] = shown[index].with_parts(parts)
            size = self.compiler.estimate(shown[index])
            self._size += size - self._sizes[index]
            self._sizes[index] = size
        self._old, self._savings = {}, 0
        self.begin_epoch(end, shown)
