"""The loop of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen

from agentloop.contracts.execution_log import RunLog
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.errors import ConfigurationError, ContractViolation, DecisionError
from agentloop.loop.loop_as_tool import LoopAsTool
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.in_doubt import InDoubt
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

        Each yielded state is whole: it can be stored, and given to `execute` or `iterate` to go on from; with a journal, it
        has been written down. Arguments and errors are those of `execute`.
        """
        run = self._begun(input, execution_id, dependencies)
        async with aclosing(run.states()) as states:
            async for state in states:
                if run.log is not None:
                    await run.log.flush()
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
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState:
        """Go on with a suspended execution.

        Args:
            state: a state whose status is `suspended`; with a journal, the id of its execution will do.
            decisions: for the keys of pending calls: `approve()`, `deny("why")`, `answer(value)` or `edit(arguments)`. Calls
                without a decision stay pending.
            dependencies: as for `execute`.

        Returns:
            The next final state, which may be suspended again.

        Raises:
            DecisionError: when a decision is for no pending call, or was made about another tool or other arguments; with a
                journal also when it was used before.
            JournalConflict: when somebody else drives the execution.
            UnknownExecution: when no execution of this id is recorded.
        """
        from agentloop.drivers.open_turns import decided, ready_calls

        log: RunLog | None = None
        if self.journal is not None:
            from agentloop.loop.recovering import suspended

            going, log = await suspended(
                self.journal, state, decisions, self.in_doubt, self.clock, answers=self._answers
            )
            if log is None:
                return going
        elif isinstance(state, str):
            raise ConfigurationError("an execution is resumed by its id with a journal only: AgentLoop(…, journal=…)")
        else:
            going = decided(state, decisions)
            if going.open_turn is None or not len(ready_calls(going.open_turn)):
                return state
        going = going.with_execution_resumed(self.clock.now())
        return await _last(self._run(going, dependencies, resumed=True, log=log))

    async def recover(
        self, execution_id: str, *, in_doubt: InDoubt | str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Go on with an execution that was interrupted, as by a crash, from what the journal holds of it.

        Recorded inferences and outcomes are used again. A call that had begun, and of which no outcome is recorded, is run
        again when it is `pure` or `idempotent`; one with an effect is asked about where its tool can find out, and else is
        settled as `in_doubt`.

        Args:
            execution_id: the execution. One that has ended or is suspended is not run: its state is returned.
            in_doubt: what becomes of calls that nobody can be asked about; as the loop says when left out.
            dependencies: as for `execute`.

        Returns:
            The final state: completed, stopped, failed or suspended.

        Raises:
            UnknownExecution: when no execution of this id is recorded.
            JournalConflict: when somebody else drives it.
            JournalCorrupt: when its records are not as they were written.
            ConfigurationError: when the loop has no journal.
        """
        if self.journal is None:
            raise ConfigurationError(
                "there is nothing to recover from: give the loop a journal, AgentLoop(…, journal=…)"
            )
        from agentloop.loop.recovering import interrupted

        policy = self.in_doubt if in_doubt is None else InDoubt(in_doubt)
        state, log = await interrupted(self.journal, execution_id, policy, self.clock, self._answers)
        if log is None:
            return self._typed(state)
        return await _last(self._run(state, dependencies, resumed=True, starts=state.step_count == 0, log=log))

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

    def _state_of(self, given: Input) -> AgentState:
        if isinstance(given, AgentState):
            return given
        if not isinstance(given, str | Message):
            raise TypeError(f"an execution begins with a text, a Message or an AgentState, not {type(given).__name__}")
        return AgentState.start(given, system_prompt=self.system_prompt, clock=self.clock, ids=self.ids)

    def _typed(self, state: AgentState) -> AgentState:
        """Return a final state with its answer in the type that was asked for."""
        if self.output_form is None:
            return state
        from agentloop.loop.ending import with_output_read

        return with_output_read(state, self.output_form.read)

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
            return self._run(state, dependencies, resumed=True, starts=state.step_count == 0)
        if self._output is not None:
            state = state.with_response_format(self._output.response_format)
        state = state.with_execution_begun(execution_id or self.ids.new_id("execution"), self.clock.now())
        return self._run(state, dependencies, resumed=False, starts=True)

    def _run(
        self,
        state: AgentState,
        dependencies: Any,
        *,
        resumed: bool,
        starts: bool = False,
        log: RunLog | None = None,
    ) -> Run:
        """Bind the parts; what runs an execution is loaded with the first one."""
        from agentloop.loop.handing_over import Handoffs
        from agentloop.loop.run import Run

        own, above = Resources(), self._above
        if log is None and self.journal is not None:
            from agentloop.journal.journal_log import JournalLog
            from agentloop.loop.composition import composition_of

            origin = {"loop": composition_of(self, state)}
            log = JournalLog(self.journal, self.in_doubt, self.clock, answers=self._answers, origin=origin)
        scope = ExecutionScope(
            clock=self.clock,
            ids=self.ids,
            dependencies=dependencies,
            own=own,
            shared=self._entered.resources() or (own if above is None else above.shared),
            depth=0 if above is None else above.depth + 1,
            log=log,
        )
        handoffs = Handoffs(self, self.events.for_execution(), scope)
        state, parts = handoffs.begun(state)
        return Run(
            state=state, parts=parts, handoffs=handoffs, inboxes=self._inboxes, resumed=resumed, starts=starts, log=log
        )


async def _last(run: Run) -> AgentState:
    states: AsyncIterator[AgentState] = run.states()
    async for _ in states:
        pass
    return run.state
