"""The loop of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from attrs import frozen

from agentloop.contracts.can_handle_events import E, Listener, Subscription
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.errors import ContractViolation, DecisionError
from agentloop.loop.inbox import Inbox
from agentloop.loop.loop_as_tool import LoopAsTool
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision
from agentloop.values.event import Event
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.message import Message

if TYPE_CHECKING:
    from agentloop.loop.event_stream import EventStream
    from agentloop.loop.run import Run

Input: TypeAlias = str | Message | AgentState
"""What an execution begins with: a question, a message, or a state to go on from."""


@frozen(eq=False)
class AgentLoop(LoopAsTool):
    """Binds a driver, tools and an executor over an immutable state, and decides when to stop.

    A loop is immutable too: its `with_…` methods return a changed copy that keeps every other part. One loop serves any
    number of executions at the same time. Every way to end is a state with a reason; `state.raise_for_failure()` makes an
    exception of a failure.

    Connections are opened, and groups of tools started, for each execution and closed at its end; `async with loop` keeps
    them open between executions.
    """

    async def execute(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Any = None,
    ) -> AgentState:
        """Run to the end.

        Args:
            input: a text, a message, or a state. A state whose execution is in progress goes on; any other begins its next.
            execution_id: the id of a new execution; drawn when left out.
            dependencies: objects of yours that tools get as `ToolContext.dependencies`; never stored.

        Returns:
            The final state: completed, stopped, failed or suspended.

        Raises:
            ToolDefinitionError: when a tool's parameters are not a valid JSON Schema.
            DecisionError: when the state waits for decisions; see `resume`.
            asyncio.CancelledError: when cancelled; the last state is its attribute `agent_state`.
        """
        return await _last(self._begun(input, execution_id, dependencies))

    async def iterate(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Any = None,
    ) -> AsyncGenerator[AgentState, None]:
        """Run step by step: yield the state after each step, and the final one.

        Each yielded state is whole: it can be stored, and given to `execute` or `iterate` to go on from. Arguments and
        errors are those of `execute`.
        """
        async with aclosing(self._begun(input, execution_id, dependencies).states()) as states:
            async for state in states:
                yield state

    def stream(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Any = None,
    ) -> EventStream:
        """Run as a stream of events, those of agents that serve this one included; the final state is its `state`.

            async for event in loop.stream("…"):
                print(event)

        Arguments are those of `execute`.
        """
        from agentloop.loop.event_stream import EventStream

        state = self._state_of(input)
        return EventStream(
            state.agent_id,
            self.events,
            lambda: self.execute(state, execution_id=execution_id, dependencies=dependencies),
        )

    async def resume(
        self, state: AgentState, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState:
        """Go on with a suspended execution.

        Args:
            state: a state whose status is `suspended`.
            decisions: for the keys of pending calls: `approve()`, `deny("why")`, `answer(value)` or `edit(arguments)`. Calls
                without a decision stay pending.
            dependencies: as for `execute`.

        Returns:
            The next final state, which may be suspended again.

        Raises:
            DecisionError: when a decision is for no pending call, or was made about another tool or other arguments.
        """
        from agentloop.drivers.open_turns import decided, ready_calls

        going = decided(state, decisions)
        if going.open_turn is None or not len(ready_calls(going.open_turn)):
            return state
        going = going.with_execution_resumed(self.clock.now())
        return await _last(self._run(going, dependencies, resumed=True))

    def execute_sync(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Any = None,
    ) -> AgentState:
        """Run to the end from a program that has no event loop, as often as it likes; as `execute`.

        Raises:
            RuntimeError: inside a running event loop, where `await loop.execute(…)` is the way.
        """
        from agentloop.loop.sync import run_sync

        return run_sync(lambda: self.execute(input, execution_id=execution_id, dependencies=dependencies))

    def iterate_sync(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Any = None,
    ) -> Iterator[AgentState]:
        """Run step by step from a program that has no event loop; as `iterate`.

        Raises:
            RuntimeError: inside a running event loop, where `async for state in loop.iterate(…)` is the way.
        """
        from agentloop.loop.sync import states_sync

        return states_sync(lambda: self.iterate(input, execution_id=execution_id, dependencies=dependencies))

    def inbox(self, execution_id: str) -> Inbox:
        """Return where messages for one execution are put, before it begins or while it runs: `inbox(id).send("…")`."""
        return Inbox(execution_id, self._inboxes)

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Tell the listener, plain or async, every event of this loop and its changed copies; cancel the subscription to end."""
        return self.events.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Tell the listener, plain or async, the events of one class; cancel the subscription to end."""
        return self.events.on(kind, listener)

    async def __aenter__(self) -> Self:
        resources = self._entered.enter()
        if self.tools.groups:
            from agentloop.loop.groups import hold_groups

            try:
                await hold_groups(self.tools.groups, resources)
            except BaseException:  # a loop that could not be entered is not left by anybody else
                await self._entered.leave()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._entered.leave()

    async def aclose(self) -> None:
        """Close what this loop and its changed copies hold open in the running event loop."""
        await self._entered.close()

    def _state_of(self, given: Input) -> AgentState:
        if isinstance(given, AgentState):
            return given
        if not isinstance(given, str | Message):
            raise TypeError(f"an execution begins with a text, a Message or an AgentState, not {type(given).__name__}")
        return AgentState.start(given, system_prompt=self.system_prompt, clock=self.clock, ids=self.ids)

    def _begun(self, given: Input, execution_id: str | None, dependencies: Any) -> Run:
        """Return the run that goes on with the state's execution, or begins its next."""
        state = self._state_of(given)
        if state.status is ExecutionStatus.SUSPENDED:
            keys = ", ".join(call.key for call in state.pending)
            raise DecisionError(f"this state waits for decisions about {keys}; pass them to AgentLoop.resume")
        if state.status is ExecutionStatus.IN_PROGRESS:
            if execution_id not in {None, state.execution_id}:
                raise ContractViolation(
                    f"this state is in the middle of execution {state.execution_id}; it keeps that id"
                )
            return self._run(state, dependencies, resumed=True)
        if self._output is not None:
            state = state.with_response_format(self._output.response_format)
        state = state.with_execution_begun(execution_id or self.ids.new_id("execution"), self.clock.now())
        return self._run(state, dependencies, resumed=False)

    def _run(self, state: AgentState, dependencies: Any, *, resumed: bool) -> Run:
        """Bind the parts; what runs an execution is loaded with the first one."""
        from agentloop.loop.handing_over import Handoffs
        from agentloop.loop.run import Run

        own, above = Resources(), self._above
        scope = ExecutionScope(
            clock=self.clock,
            ids=self.ids,
            dependencies=dependencies,
            own=own,
            shared=self._entered.resources() or (own if above is None else above.shared),
            depth=0 if above is None else above.depth + 1,
        )
        handoffs = Handoffs(self, self.events.for_execution(), scope)
        state, parts = handoffs.begun(state)
        return Run(state, parts, handoffs, self._inboxes, resumed)


async def _last(run: Run) -> AgentState:
    states: AsyncIterator[AgentState] = run.states()
    async for _ in states:
        pass
    return run.state
