"""The law suite of interceptors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from attrs import define, evolve, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import ToolLike
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.errors import ConfigurationError, ContractViolation, InterceptorFailed
from agentloop.events.bus import EventBus
from agentloop.events.execution import InterceptorRan
from agentloop.events.tool_calls import ToolCallSettled
from agentloop.interception.interceptor import FunctionInterceptor
from agentloop.interception.second_attempts import PROCEEDED_AGAIN
from agentloop.loop.agent_loop import AgentLoop
from agentloop.policies.prefix_guard import PrefixGuard
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.clocks import CountingIds, LoopClock, ManualClock, run_in_virtual_time
from agentloop.testing.kit import PLACES, Kit, LawNotChecked, checked_factory, find_difference, require
from agentloop.testing.observers import Tally
from agentloop.testing.scenario import SCENARIOS, Scenario, ScriptedTurn, scenarios_of
from agentloop.testing.surroundings import Surroundings, require_no_trace
from agentloop.testing.toys import CANCELLATIONS, Ledger, toy_call, toy_tools
from agentloop.tools.decorator import collect_tools
from agentloop.values.event import Event
from agentloop.values.points import POINTS, AroundPoint, AroundToolUse, Point, Proceed, StatePoint
from agentloop.values.serialization import to_json, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)

_AGENT = "agent-of-the-kit"
_AGENTS = ("agent-ada", "agent-bob", "agent-cleo")
_MANY = 5
"""How often an interceptor serves one agent in turn."""
_NO_TOOL = "tool_that_nobody_has"
_OUTSIDE, _INSIDE = 10**9, -(10**9)


class InterceptorKit(Kit):
    """Checks an interceptor against the laws of `CanIntercept`, in a loop with toy tools.

    All toys have an effect, and the arguments `value` (an integer from 0 to 30), `seconds` and `key`. An interceptor that needs
    other arguments or other tools, to do anything, gets tools and calls of yours:

        InterceptorKit(LimitPayments, tools=[pay], calls=[ToolCall("", "pay", '{"amount": 5}'), ToolCall("", "pay", '{"amount": 500}')])

    The interceptor serves up to five executions in turn. One that counts over executions, such as a quota of calls for a day, gets a
    limit that they do not reach.

    An interceptor that raises at a point in every execution which reaches it keeps no law by that: none is checked then.

    Args:
        factory: creates a new interceptor.
        examples: the number of examples that are tried for each law.
        breaks_prefix: whether the interceptor is documented to send requests that do not extend the one before, as one that
            selects the tools of a request; law 13 is not checked then.
        tools: the tools in place of the toys. The same call has to have the same outcome each time, and the kit runs in virtual
            time, in which a tool that runs in a thread must not block.
        calls: the calls that the model makes, of these tools.
        naming: creates the interceptor for the tools of a name, as in `lambda name: RequireApproval([name])`; law 38 is checked
            with it. None for an interceptor that names no tools, for which the law has nothing to check.
    """

    laws: tuple[int, ...] = (3, 8, 9, 13, 14, 19, 22, 25, 34, 38, YIELDING)

    def __init__(
        self,
        factory: Callable[[], CanIntercept],
        *,
        examples: int = 100,
        breaks_prefix: bool = False,
        tools: Iterable[ToolLike] = (),
        calls: Sequence[ToolCall] = (),
        naming: Callable[[str], CanIntercept] | None = None,
    ) -> None:
        super().__init__(examples=examples)
        self.naming: Callable[[str], CanIntercept] | None = naming
        self.factory: Callable[[], CanIntercept] = checked_factory(factory)
        self.breaks_prefix = breaks_prefix
        own = tuple(tools)
        self.calls: tuple[ToolCall, ...] = tuple(calls)
        if bool(own) is not bool(self.calls):
            raise ConfigurationError(
                "tools need calls of them, and calls their tools: tools=[pay], calls=[ToolCall(…)]"
            )
        self.tools: tuple[ToolLike, ...] = own or tuple(toy_tools(Ledger()))
        self._scenarios = scenarios_of(self.calls) if self.calls else SCENARIOS

    def require_working(self) -> None:
        """Check that there is no point at which the interceptor raises in every execution that reaches it.

        Raises:
            LawNotChecked: there is one.
        """
        reached: dict[str, int] = {}
        failures: dict[str, list[str]] = {}
        for scenario in _plain_scenarios(self.calls):
            bench = self._bench(evolve(scenario))
            state = run_in_virtual_time(bench.run(_AGENT))
            name = bench.interceptors[0].name
            failed = _find_failure(state, name)
            passed = {
                each.point for each in bench.events if isinstance(each, InterceptorRan) and each.interceptor == name
            }
            for point in passed | failed.keys():
                reached[point] = reached.get(point, 0) + 1
            for point, message in failed.items():
                failures.setdefault(point, []).append(message)
        for point, messages in failures.items():
            if len(messages) == reached[point]:
                raise LawNotChecked(
                    f"{messages[0]}; so it did in all {len(messages)} executions that reached this point, so that nothing was "
                    f"checked. {'The calls are yours' if self.calls else _TOYS}"
                )

    def _bench(self, scenario: Scenario, *others: CanIntercept, clock: Clock | None = None) -> _InterceptorBench:
        return _InterceptorBench(scenario, (self.factory(), *others), self.tools, clock or ManualClock())

    def _run(self, scenario: Scenario, *others: CanIntercept, agent: str = _AGENT) -> AgentState:
        return run_in_virtual_time(self._bench(scenario, *others).run(agent))

    def law_3(self) -> None:
        """The interceptor changes no state of a point in place, and nothing besides the writes that it declares."""

        def holds(scenario: Scenario) -> None:
            snapshots: list[tuple[AgentState, bytes]] = []
            state = self._run(scenario, *_recorders(snapshots))
            undeclared = [error.message for error in state.errors if _law_of(error) == _WRITES]
            require(3, not undeclared, "; ".join(undeclared), sentence=_DECLARED)
            for state, before in snapshots:
                require(3, to_json(state) == before, "the state of a point was changed")

        self.for_all(self._scenarios, holds)

    def law_8(self) -> None:
        """The same scenario gives the same state and the same requests, byte for byte."""

        def holds(scenario: Scenario) -> None:
            runs = [evolve(scenario), evolve(scenario)]
            differs = find_difference(*[to_plain(self._run(each)) for each in runs])
            require(8, not differs, f"the states after two runs of the same scenario differ at {differs}")
            differs = find_difference(*[list(map(to_plain, each.requests)) for each in runs])
            require(8, not differs, f"the requests of two runs of the same scenario differ at {differs}")

        self.for_all(self._scenarios, holds)

    def law_9(self) -> None:
        """An interceptor that serves several executions, at once or in turn, gives each what it would have alone."""

        async def run_concurrently(scenario: Scenario) -> list[AgentState]:
            shared = self.factory()
            return await asyncio.gather(
                *[_InterceptorBench(scenario, (shared,), self.tools).run(agent) for agent in _AGENTS]
            )

        def holds(scenario: Scenario) -> None:
            for state in run_in_virtual_time(run_concurrently(scenario)):
                alone = evolve(scenario)
                after = self._run(alone, agent=state.agent_id)
                differs = find_difference(to_plain(state), to_plain(after))
                require(9, not differs, f"a concurrent execution differs from the same execution alone at {differs}")
                texts = [to_json(value).decode() for value in (state, after)]
                texts += [to_json(request).decode() for request in alone.requests[-1:]]  # with all messages
                others = [other for other in (*_AGENTS, _AGENT) if other != state.agent_id]
                require_no_trace(9, texts, others, of=f"an execution of {state.agent_id}")

        # Its model takes a second for each decision, so that executions at the same time take turns.
        self.for_all(self._scenarios.map(lambda scenario: evolve(scenario, wait=1)), holds)
        self.for_each(_plain_scenarios(self.calls), self._require_same_again)

    def _require_same_again(self, scenario: Scenario) -> None:
        """Check that an interceptor gives an agent the same, however often it has served that agent before."""

        async def run_in_turn() -> list[AgentState]:
            shared = self.factory()
            runs = [_InterceptorBench(evolve(scenario), (shared,), self.tools) for _ in range(_MANY)]
            return [await each.run(_AGENT) for each in runs]

        first, *others = map(to_plain, run_in_virtual_time(run_in_turn()))
        for place, other in enumerate(others, 2):
            differs = find_difference(first, other)
            require(9, not differs, f"the first execution of an agent and the {place}th differ at {differs}")

    def law_13(self) -> None:
        """Each request extends the one before it, unless an epoch was announced."""
        if self.breaks_prefix:
            return

        def holds(scenario: Scenario) -> None:
            guard = PrefixGuard()
            self._run(scenario, guard)
            require(13, not guard.breaks, "\n".join(map(str, guard.breaks)))

        self.for_all(self._scenarios, holds)

    def law_14(self) -> None:
        """A call with an effect does not run again after it has succeeded, nor after it may have run."""

        def holds(scenario: Scenario) -> None:
            inside = Passages(_INSIDE)
            state = self._run(scenario, inside)
            refused = [error.message for error in state.errors if PROCEEDED_AGAIN in error.message]
            require(14, not refused, "; ".join(refused))
            succeeded: set[str] = set()
            for passage in inside.of_calls:
                require(14, passage.key not in succeeded, f"the call {passage.key} has succeeded, and ran again")
                if isinstance(passage.outcome, ToolExecution) and passage.outcome.succeeded:
                    succeeded.add(passage.key)

        self.for_all(self._scenarios, holds)

    def law_19(self) -> None:
        """No task or thread of the interceptor outlives an execution, even one that is cancelled."""

        async def run_tidily(scenario: Scenario, cancel_after: float | None) -> None:
            before = Surroundings.now()
            await self._bench(scenario, clock=LoopClock()).run_cancelled(cancel_after)
            await before.require_tasks_and_sockets()

        def holds(example: tuple[Scenario, float | None]) -> None:
            before = Surroundings.now()
            run_in_virtual_time(run_tidily(*example))
            before.require_threads()

        self.for_all(st.tuples(self._scenarios, st.sampled_from([None, 0, 0.5, 1.5])), holds)

    def law_22(self) -> None:
        """The state that the interceptor returns continues the one that it got, with the changes of others."""

        def holds(scenario: Scenario) -> None:
            tally = Tally()
            state = self._run(scenario, tally)
            _require_allowed(22, state)
            # An interceptor may raise, and then the point has not happened, with what others changed at it.
            if state.status is ExecutionStatus.COMPLETED and not state.errors:
                loss = tally.find_loss(state)
                require(22, not loss, loss)

        self.for_all(self._scenarios, holds)

    def law_25(self) -> None:
        """Calls are those of the model, each exchange was settled by the executor, and outcomes keep their facts."""

        def holds(scenario: Scenario) -> None:
            inside, outside = Passages(_INSIDE), Passages(_OUTSIDE)
            bench = self._bench(scenario, inside, outside)
            state = run_in_virtual_time(bench.run(_AGENT))
            exchanges = [exchange for message in state.messages for exchange in message.exchanges]
            made = Counter(call.name for turn in scenario.turns for call in turn.calls)
            forged = Counter(exchange.call.name for exchange in exchanges) - made
            require(25, not forged, f"no answer of the model has these calls: {', '.join(forged)}")
            settled = {event.key for event in bench.events if isinstance(event, ToolCallSettled)}
            unknown = [exchange.execution.key for exchange in exchanges if exchange.execution.key not in settled]
            require(25, not unknown, f"the conversation has exchanges that no executor settled: {', '.join(unknown)}")
            _require_facts(inside, outside)
            _require_allowed(25, state)

        self.for_all(self._scenarios, holds)

    def law_34(self) -> None:
        """A cancellation that reaches the interceptor leaves it, it does not go on to the next layer, and it serves others as before."""

        async def run_again(bench: _InterceptorBench, cancel_after: float, times: int) -> AgentState:
            await bench.run_cancelled(cancel_after)
            again = evolve(bench, interceptors=bench.interceptors[:1])
            for _ in range(times - 1):
                await again.run_cancelled(cancel_after)
            await again.run(_AGENT)
            return await evolve(again, clock=ManualClock(), events=[]).run(_AGENTS[0])

        def holds(example: tuple[Scenario, float, float], times: int = 3) -> None:
            scenario, cancel_after = evolve(example[0], wait=example[2]), example[1]
            inside, outside = Passages(_INSIDE), Passages(_OUTSIDE)
            bench = self._bench(scenario, inside, outside, clock=LoopClock())
            state = run_in_virtual_time(run_again(bench, cancel_after, times))
            differs = find_difference(to_plain(state), to_plain(self._run(scenario, agent=_AGENTS[0])))
            said = "after executions that were cancelled, another one differs from the same execution alone"
            require(34, not differs, f"{said} at {differs}")
            require(34, not inside.late, f"the interceptor was cancelled, and let these points pass: {inside.late}")
            for passage in inside.operations:
                if isinstance(passage.outcome, asyncio.CancelledError) and passage.ended_at >= cancel_after:
                    outer = next(each for each in outside.operations if each.is_same(passage))
                    is_raised = isinstance(outer.outcome, asyncio.CancelledError)
                    require(34, is_raised, f"the cancellation of {passage.name} did not leave the interceptor")

        times = st.sampled_from(CANCELLATIONS), st.sampled_from([0, 1])
        self.for_all(st.tuples(self._scenarios, *times), holds)
        together = _plain_scenarios(self.calls)[-1]
        self.for_each(CANCELLATIONS, lambda cancel_after: holds((together, cancel_after, 1), PLACES))

    def law_38(self) -> None:
        """A name that no tool has is refused before an execution begins, and the name of a tool is not."""
        if self.naming is None:
            return
        naming = self.naming

        def run(name: str) -> AgentState | None:
            (scenario, *_) = _plain_scenarios(self.calls)
            try:
                bench = _InterceptorBench(scenario, (naming(name),), self.tools)
                return run_in_virtual_time(bench.run(_AGENT))
            except ConfigurationError:
                return None

        known = collect_tools(self.tools).names[0]
        require(38, run(known) is not None, f"the name {known!r} is refused, and there is such a tool")
        state = run(_NO_TOOL)
        refused = "no tool is named so, and the interceptor does not refuse it: implement CanNameTools"
        require(38, state is None or state.status is ExecutionStatus.FAILED, f"{_NO_TOOL!r} names nothing: {refused}")

    def law_45(self) -> None:
        """The event loop runs while the interceptor waits."""

        @refuse_blocking
        def holds(scenario: Scenario) -> None:
            self._run(scenario)

        self.for_all(self._scenarios, holds)


@define(eq=False, repr=False)
class LayerPassage:
    """One operation that passed a side of the interceptor under test.

    Attributes:
        point: the point.
        outcome: what came out: a value or an error; None as long as it runs.
        ended_at: when it came out, in seconds of the event loop.
    """

    point: AroundPoint[Any]
    outcome: object = None
    ended_at: float = 0.0

    @property
    def key(self) -> str:
        """The key of the call; empty for an inference."""
        return self.point.key if isinstance(self.point, AroundToolUse) else ""

    @property
    def name(self) -> str:
        """The call or the inference, for messages."""
        return f"the call {self.key}" if self.key else "an inference"

    def is_same(self, other: LayerPassage) -> bool:
        """Return whether the other is the passage of the same operation through the other side."""
        same_step = self.point.state.step_count == other.point.state.step_count
        return same_step and self.point.point_name == other.point.point_name and self.key == other.key


@frozen
class Passages(CanIntercept):
    """Notes what passes one side of the interceptor under test, and changes nothing.

    Attributes:
        priority: the side.
        operations: the operations, in the order in which they began.
        late: the points that were passed in a task that was cancelled before.
    """

    priority: int
    operations: list[LayerPassage] = field(factory=list, repr=False, init=False)
    late: list[str] = field(factory=list, repr=False, init=False)
    points: frozenset[str] = field(default=frozenset(POINTS), init=False, repr=False)
    name: str = field(default="Passages", init=False)
    allows_eager_start: bool = field(default=True, init=False)

    @property
    def of_calls(self) -> list[LayerPassage]:
        """The passages of calls, in the order in which they began."""
        return [passage for passage in self.operations if passage.key]

    def handle(self, point: S) -> S:
        """Note a point that should not be reached any more."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() and point.point_name.startswith("before_"):
            self.late.append(point.point_name)
        return point

    async def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> T:
        """Note the operation and what comes out of it."""
        passage = LayerPassage(point)
        self.operations.append(passage)
        try:
            outcome = await proceed()
        except BaseException as error:
            passage.outcome = error
            raise
        else:
            passage.outcome = outcome
        finally:
            passage.ended_at = asyncio.get_running_loop().time()
        return outcome


@frozen
class _InterceptorBench:
    """A loop with tools around interceptors."""

    scenario: Scenario
    interceptors: tuple[CanIntercept, ...]
    tools: Sequence[ToolLike]
    clock: Clock = field(factory=ManualClock)
    events: list[Event] = field(factory=list)

    async def run(self, agent: str) -> AgentState:
        """Run the scenario to its end."""
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        driver, interceptors = ToolCallingDriver(self.scenario.inference()), self.interceptors
        loop = AgentLoop(driver, self.tools, interceptors=interceptors, events=bus, clock=self.clock, ids=CountingIds())
        question = f"{self.scenario.question} asks {agent}"
        start = AgentState.start(question, agent_id=agent, clock=self.clock)
        return await loop.execute(start, execution_id=f"execution of {agent}")

    async def run_cancelled(self, cancel_after: float | None) -> None:
        """Run the scenario, and cancel it after this many seconds if it has not ended; None to let it end."""
        task = asyncio.ensure_future(self.run(_AGENT))
        await asyncio.wait([task], timeout=cancel_after)
        task.cancel()
        await asyncio.wait([task])


def _plain_scenarios(calls: Sequence[ToolCall]) -> list[Scenario]:
    """Return conversations with ordinary calls: one without any, one with each call alone, and one with several turns.

    Args:
        calls: the calls; none for those of toys.
    """
    known = list(calls) or [
        toy_call(name, value) for value, name in enumerate(["echo", "whoami", "alone", "fail", "keyed"])
    ]
    answer = ScriptedTurn("done")
    alone = [Scenario(turns=(ScriptedTurn(calls=(call,)), answer)) for call in known]
    together = Scenario(
        turns=(ScriptedTurn("Let me look.", calls=tuple(known)), ScriptedTurn(calls=(known[-1],)), answer)
    )
    return [Scenario(turns=(answer,)), *alone, together]


def _find_failure(state: AgentState, interceptor: str) -> dict[str, str]:
    """Return what an interceptor raised, by the name of the point. What the loop refuses is judged by the laws."""
    return {
        error.exception.point: error.message
        for error in state.errors
        if isinstance(error.exception, InterceptorFailed)
        and error.exception.interceptor == interceptor
        and _refusal_of(error) is None
    }


def _refusal_of(error: ErrorInfo) -> ContractViolation | None:
    """Return what the loop, or a method of a point, refused to an interceptor; None for another error."""
    raised = error.exception
    refused = raised.__cause__ if isinstance(raised, InterceptorFailed) else raised
    return refused if isinstance(refused, ContractViolation) else None


_WRITES, _IDENTITY, _FACTS = 3, 22, 25
_DECLARED = "Declared writes: an interceptor with `writes` changes what it declares there, and nothing else."
_TOYS = (
    "The toys have the arguments `value`, `seconds` and `key`, and the effect `effect`: an interceptor that needs other arguments "
    "or tools gets them by tools=… and calls=…"
)


def _law_of(error: ErrorInfo) -> int:
    """Return the law that an interceptor broke by what the loop refused; 0 for another error."""
    refused = _refusal_of(error)
    if refused is None:
        return 0
    if "its declared writes" in str(refused):
        return _WRITES
    if any(said in str(refused) for said in ("keeps its facts", "the outcome of another call")):
        return _FACTS
    return _IDENTITY if refused is error.exception else 0


def _require_allowed(law: int, state: AgentState) -> None:
    """Check that the loop refused nothing that the interceptor returned, as far as the law is about it.

    Raises:
        LawViolation: it did.
    """
    refused = [error.message for error in state.errors if _law_of(error) == law]
    require(law, not refused, "; ".join(refused))


def _recorders(snapshots: list[tuple[AgentState, bytes]]) -> list[CanIntercept]:
    """Return interceptors that record the state of every point, before and after all other interceptors."""

    def record(point: Point) -> Point:
        snapshots.append((point.state, to_json(point.state)))
        return point

    kinds = [kind for kind in POINTS.values() if issubclass(kind, StatePoint)]
    return [FunctionInterceptor(kind, record, priority) for kind in kinds for priority in (_OUTSIDE, _INSIDE)]


def _require_facts(inside: Passages, outside: Passages) -> None:
    """Check that outcomes leave the interceptor with the facts that they had inside."""
    last = {passage.key: passage.outcome for passage in inside.of_calls}
    for passage in outside.of_calls:
        before, after = last.get(passage.key), passage.outcome
        if not isinstance(before, ToolExecution) or not isinstance(after, ToolExecution):
            continue
        for name in ("id", "key", "call"):
            same = getattr(before, name) == getattr(after, name)
            require(25, same, f"the {name} of the call {passage.key} was changed")
        hidden = before.may_have_run and after.has_error and not after.may_have_run
        require(25, not hidden, f"the call {passage.key} may have run, and its outcome says that it has not")
