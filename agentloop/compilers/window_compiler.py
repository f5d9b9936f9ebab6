"""What compilers that show the newest part of a conversation have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from attrs import define, evolve, field, frozen

from agentloop.compilers.conversation import ConversationWithCurrentToolTrace
from agentloop.compilers.window import Measure, Window
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptTools
from agentloop.contracts.can_compile_messages import CanCompileMessages, CanTellEpoch
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.errors import ConfigurationError
from agentloop.values.agent_state import AgentState
from agentloop.values.epoch import NO_EPOCH, Epoch
from agentloop.values.message import Message


@define(eq=False)
class KeptWindow:
    """The window of one execution, and the state that it was moved to last."""

    window: Window | None = None
    state: AgentState | None = None


@frozen(kw_only=True)
class WindowCompiler(CanCompileMessages, CanTellEpoch, CanAcceptTools, CanAcceptExecutionScope):
    """Shows a window of what another compiler shows. A subclass says how the window is measured.

    Attributes:
        of: shows what the window is over.
    """

    of: CanCompileMessages = field(factory=ConversationWithCurrentToolTrace)
    _tools: Tools = field(default=NO_TOOLS, repr=False, eq=False)
    _kept: KeptWindow | None = field(default=None, repr=False, eq=False)

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that knows which results of these tools later calls make stale."""
        of = self.of.with_tools(tools) if isinstance(self.of, CanAcceptTools) else self.of
        return evolve(self, of=of, tools=tools)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that keeps its window for the length of one execution, and reads new messages only."""
        of = self.of.with_execution_scope(scope) if isinstance(self.of, CanAcceptExecutionScope) else self.of
        return evolve(self, of=of, kept=KeptWindow())

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the newest part of the conversation."""
        return self._window(state).shown

    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch that this state stands in."""
        before = self.of.epoch(state) if isinstance(self.of, CanTellEpoch) else NO_EPOCH
        return self._window(state).epoch(before)

    @abstractmethod
    def measure(self, state: AgentState) -> Measure:
        """Return how much the window holds."""

    def _window(self, state: AgentState) -> Window:
        kept = self._kept if self._kept is not None else KeptWindow()
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
