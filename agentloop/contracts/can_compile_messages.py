"""The contract of message compilers, and compilers composed of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

from attrs import define, evolve, field, frozen
from attrs.validators import min_len

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptTools
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.values.epochs import NO_EPOCH, SUMMARY, Epoch, compose_epochs
from agentloop.values.messages import Message
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState
from agentloop.values.value import Value


class CanCompileMessages(ABC):
    """Selects the messages of a state that a model sees.

    An implementation keeps these laws:

    - Compiling is pure: equal states give equal messages, and the state is not changed (laws 3 and 8).
    - Messages are kept or dropped as a whole, so that a call is never separated from its result or its reasoning (law 2).
    - Within an execution, the messages after a step extend those before it, except where a new epoch starts; the
      documentation of the compiler says when that is (law 13).

    `one | other` composes compilers: each one sees a state whose conversation is what the one before shows. `principal_of(state)`
    returns who asks for the execution.
    """

    @abstractmethod
    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the messages for the next inference, without the system prompt.

        Raises:
            Exception: any error fails the step.
        """

    def __or__(self, other: CanCompileMessages) -> CompilerPipeline:
        if not isinstance(other, CanCompileMessages):
            return NotImplemented
        return CompilerPipeline((*_stages_of(self), *_stages_of(other)))


class CanMarkEpoch(ABC):
    """A compiler that reports its epochs, so that a driver can announce a new one.

    An implementation keeps these laws:

    - While the epochs of two states of an execution are equal, the messages of the later state extend those of the earlier
      one (law 13).
    - A new epoch differs from all earlier epochs of the execution.
    """

    @abstractmethod
    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch of a state."""


class CanAcceptMessageCompiler(ABC):
    """Accepts the message compiler of the loop; implemented by drivers, and by interceptors that measure what a model sees."""

    @abstractmethod
    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        """Return a copy that uses the messages of this compiler."""


@frozen(eq=False, repr=False)
class CompilerPipeline(Value, CanCompileMessages, CanMarkEpoch, CanAcceptTools, CanAcceptExecutionScope):
    """Compilers one after the other, made by `one | other`.

    Each stage gets a state whose conversation is what the stage before shows. A summary is shown by the first stage alone. A new
    epoch of any stage is a new epoch of the whole; a stage that drops or changes messages and is no `CanMarkEpoch` begins epochs
    that are not announced.

    Attributes:
        stages: the compilers, in their order.
    """

    stages: tuple[CanCompileMessages, ...] = field(validator=min_len(1))
    _cache: _Cache | None = field(default=None, eq=False)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.stages))

    @property
    def interceptors(self) -> tuple[CanIntercept, ...]:
        """The stages that act between steps, such as one that summarizes; each measures what the stages before it show."""
        return tuple(
            [self._acting(index) for index, stage in enumerate(self.stages) if isinstance(stage, CanIntercept)]
        )

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy whose stages know these tools."""
        stages = [stage.with_tools(tools) if isinstance(stage, CanAcceptTools) else stage for stage in self.stages]
        return evolve(self, stages=tuple(stages))

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose stages are bound to one execution."""
        stages = [
            # A stage that acts between steps is bound with the interceptors of the loop.
            stage.with_execution_scope(scope)
            if isinstance(stage, CanAcceptExecutionScope) and not isinstance(stage, CanIntercept)
            else stage
            for stage in self.stages
        ]
        return evolve(self, stages=tuple(stages), cache=_Cache())

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return what the last stage shows."""
        return self._compiled(state).shown

    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch of a state, which tells the epochs of all stages."""
        return self._compiled(state).epoch

    def _compiled(self, state: AgentState) -> _Cache:
        cache = self._cache if self._cache is not None else _Cache()
        if cache.state is not state:
            seen = list(self._passed(state))
            epochs = [stage.epoch(before) if isinstance(stage, CanMarkEpoch) else NO_EPOCH for stage, before, _ in seen]
            cache.shown, cache.epoch, cache.state = seen[-1][2], compose_epochs(epochs), state
        return cache

    def _passed(self, state: AgentState) -> Iterator[tuple[CanCompileMessages, AgentState, tuple[Message, ...]]]:
        """Yield each stage with the state that it gets and the messages that it shows."""
        for stage in self.stages:
            shown = tuple(stage.compile(state))
            yield stage, state, shown
            state = _showing(state, shown)

    def _acting(self, index: int) -> CanIntercept:
        stage = self.stages[index]
        assert isinstance(stage, CanIntercept)  # noqa: S101  # the caller has checked it
        before = self.stages[:index]
        return (
            stage.with_compiler(CompilerPipeline(before))
            if before and isinstance(stage, CanAcceptMessageCompiler)
            else stage
        )


@define(eq=False, repr=False)
class _Cache(ShownByField):
    """What was compiled last: a driver asks for the messages and the epoch of the same state."""

    state: AgentState | None = None
    shown: tuple[Message, ...] = ()
    epoch: Epoch = NO_EPOCH


def _stages_of(compiler: CanCompileMessages) -> tuple[CanCompileMessages, ...]:
    return compiler.stages if isinstance(compiler, CompilerPipeline) else (compiler,)


def _showing(state: AgentState, shown: tuple[Message, ...]) -> AgentState:
    """Return the state as the next stage sees it."""
    execution = state.execution
    if shown is state.messages:
        return state
    if execution is not None:
        # What is left out is old, so what is shown ends with the messages of this execution.
        current = len(state.messages) - execution.history_length
        execution = evolve(execution, history_length=max(0, len(shown) - current))
    showing = evolve(state.with_messages(shown), execution=execution)
    return showing.with_extension(SUMMARY, None) if showing.extension(SUMMARY) is not None else showing
