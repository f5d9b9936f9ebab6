"""The loop of an agent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from attrs import evolve, frozen

from agentloop.contracts.can_handle_events import E, Listener, Subscription
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CanAnswerCalls, RunLog
from agentloop.contracts.tool import DEFAULT_POLICY, Tool, ToolContext, ToolPolicy
from agentloop.errors import ConfigurationError, ContractViolation, DecisionError
from agentloop.loop.inbox import Inbox
from agentloop.loop.parts import LoopParts
from agentloop.values.decisions import Decision
from agentloop.values.event import Event
from agentloop.values.messages import Message
from agentloop.values.records import InDoubt
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect

if TYPE_CHECKING:
    from agentloop.loop.event_stream import EventStream
    from agentloop.loop.run import Run


@frozen(eq=False)
class LoopSurroundings(LoopParts):
    """A loop with its listeners, its inboxes and what it holds open."""

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
            from agentloop.loop.resources import hold_groups

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


@frozen(eq=False)
class LoopAsTool(LoopSurroundings):
    """What a loop can do for other loops."""

    @abstractmethod
    async def execute(
        self, state: AgentState, /, *, execution_id: str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Run to the end."""

    @abstractmethod
    async def resume(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState:
        """Go on with a suspended execution."""

    @abstractmethod
    async def recover(
        self, execution_id: str, *, in_doubt: InDoubt | str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Go on with an execution that was interrupted."""

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        input_type: Any = None,
        parameters: Mapping[str, Any] | None = None,
        tools_allowed: Iterable[str] | None = None,
        tools_denied: Iterable[str] = (),
        max_depth: int = 3,
        budget_share: float = 0.5,
        effect: Effect = Effect.EFFECT,
        policy: ToolPolicy = DEFAULT_POLICY,
    ) -> Tool:
        """Return a tool of other loops that has this one do what a call asks for; its answer is the result.

        Args:
            name: the name by which a model calls it.
            description: what the agent does and when to call it, for the model.
            input_type: a class whose fields are the parameters; the agent gets them as JSON. When left out, a text `task`.
            parameters: the same as a JSON Schema of type object.
            tools_allowed: the names, or patterns as in `read_*`, of the tools that it may use; None for all.
            tools_denied: those that it may not.
            max_depth: how many agents may stand below each other, this one included.
            budget_share: how much of what is left in the calling agent's `Budget` is lent to each call.
            effect: what it does to the world, with all that it calls.
            policy: timeout, order and whatever else a tool may ask for.

        Raises:
            ToolDefinitionError: when the parameters are no object, or a tool named is none of this loop.
        """
        from agentloop.loop.agent_tool import AgentTool, limits_on_tools, parameters_of

        return AgentTool(
            name=name,
            description=description,
            loop=self.with_interceptors(*limits_on_tools(self.tools, tools_allowed, tools_denied)),
            parameters=parameters_of(input_type, parameters),
            max_depth=max_depth,
            budget_share=budget_share,
            effect=Effect(effect),
            policy=policy,
        )

    def serving(self, context: ToolContext, *interceptors: CanIntercept) -> Self:
        """Return a copy that runs within the execution whose tool has this context.

        It has the clock of that execution and ids that are derived from the call, shares what it has open, and tells its
        events to the listeners of both loops. What that execution is written down in, it is too.
        """
        from agentloop.events.bus import joined

        log = context.scope.log
        return evolve(
            self,
            journal=log.journal if log is not None else self.journal,
            in_doubt=log.in_doubt if log is not None else self.in_doubt,
            events=self.events if context.events is None else joined(context.events, self.events),
            clock=context.scope.clock,
            ids=context.ids(),
            interceptors=(*self.interceptors, *interceptors),
            above=context.scope,
        )

    @property
    def _answers(self) -> CanAnswerCalls | None:
        """What answers calls in place of their tools, in the execution whose call this loop serves."""
        log = self._above.log if self._above is not None else None
        return log.answers if log is not None else None


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
        from agentloop.values.batches import apply_decisions, ready_calls

        log: RunLog | None = None
        if self.journal is not None:
            from agentloop.loop.recovery import suspended

            going, log = await suspended(
                self.journal, state, decisions, self.in_doubt, self.clock, answers=self._answers
            )
            if log is None:
                return going
        elif isinstance(state, str):
            raise ConfigurationError("an execution is resumed by its id with a journal only: AgentLoop(…, journal=…)")
        else:
            going = apply_decisions(state, decisions)
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
        from agentloop.loop.recovery import interrupted

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
        from agentloop.loop.settlement import with_output_read

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
        from agentloop.loop.handoff import Handoffs
        from agentloop.loop.run import Run

        own, above = Resources(), self._above
        if log is None and self.journal is not None:
            from agentloop.journal.recorder import JournalLog
            from agentloop.loop.binding import composition_of

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
