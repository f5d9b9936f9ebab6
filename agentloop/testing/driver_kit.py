"""The law suite of drivers."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from attrs import evolve, field, fields, frozen, has
from hypothesis import strategies as st

from agentloop.compilers.history import WholeConversation
from agentloop.contracts.can_accept import CanAcceptToolRuntime
from agentloop.contracts.can_compile_messages import CanAcceptMessageCompiler, CanCompileMessages
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.errors import AgentLoopError
from agentloop.events.bus import EventBus
from agentloop.events.grammar import ProtocolMonitor
from agentloop.events.inference import InferenceResponseReceived
from agentloop.events.tool_calls import ToolCallSettled
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.interceptor import FunctionInterceptor, Interceptor
from agentloop.loop.agent_loop import AgentLoop
from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.clocks import CountingIds, LoopClock, ManualClock, run_in_virtual_time
from agentloop.testing.kit import PLACES, Kit, LawNotChecked, checked_factory, find_difference, require
from agentloop.testing.observers import (
    DriverObserver,
    ExecutorObserver,
    ObservedStep,
    RaisingInterceptor,
    Tally,
    require_unbroken,
)
from agentloop.testing.scenario import (
    SCENARIOS,
    Scenario,
    ScriptedTurn,
    overasked,
    waiting_calls,
    waiting_scenarios,
)
from agentloop.testing.surroundings import Surroundings, require_no_trace
from agentloop.testing.toys import (
    CANCELLATIONS,
    RICH_TEXTS,
    Doorkeeper,
    Ledger,
    decide_toys,
    find_disobedience,
    toy_call,
    toy_tools,
)
from agentloop.tools.decorator import collect_tools
from agentloop.values.event import Event
from agentloop.values.inference import FinishReason, InferenceOptions, InferenceRequest, ToolChoice, Usage
from agentloop.values.interruptions import cause_of
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.parts import Reasoning, Text
from agentloop.values.points import AfterInference, AfterToolUse, BeforeInference, StatePoint
from agentloop.values.reprs import format_count
from agentloop.values.serialization import to_json, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE, ExecutionStatus
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution

_MAX_DECISIONS = 12
"""How often an execution of a few calls can be suspended."""
_AGENTS = ("agent-ada", "agent-bob", "agent-cleo")
_PLAIN = Scenario(turns=(ScriptedTurn(calls=(toy_call("echo", 1),)), ScriptedTurn("done")))
"""What every driver can follow: one call, then the answer."""
_BATCHES = waiting_calls("echo", "alone", "keyed").map(
    lambda calls: Scenario(turns=(ScriptedTurn(calls=tuple(calls)), ScriptedTurn("done")))
)


_AFTERWARDS = 60.0
"""How many seconds a driver is watched after the end of an execution."""
_MARK = "(compiled by the loop)"
_KEYS = ("a", "A", "A ", "a_", "a%", "Straße", "STRASSE", "k" * 70, "k" * 71)
_SIMILAR_CALLS = st.lists(
    st.builds(
        toy_call,
        st.sampled_from(["echo", "keyed"]),
        st.integers(1, 2),
        id=st.sampled_from(["", "a", "A"]),
        key=st.sampled_from(_KEYS),
    ),
    min_size=1,
    max_size=4,
).map(lambda calls: Scenario(turns=(ScriptedTurn("Let me look.", calls=(*calls, calls[0])), ScriptedTurn("done"))))
"""Calls that are equal, or differ in the case, the length or the special characters of a text alone."""


class DriverKit(Kit):
    """Checks a driver against the laws of `CanUseTools`, in a loop with toy tools.

    The driver is watched before the loop checks and mends what it returns, so that it has to keep the laws by itself. A step need
    not be a turn of the scenario.

    The model of the scenario has one response for each decision: a call of tools, or the answer. An equal request gets the same
    response again, so that a driver may let the model vote. For what else a driver asks, such as for a plan, it needs a further
    model, which the kit watches, too:

        DriverKit(
            lambda scenario: PlanningDriver(scenario.inference(), planner=scenario.watch(Planner())),
            max_inferences_per_step=2,
        )

    Args:
        factory: creates a new driver that follows a scenario: `lambda scenario: MyDriver(scenario.inference())`.
        examples: the number of examples that are tried for each law.
        breaks_prefix: whether the driver is documented to send requests that do not extend the one before, such as with other tools;
            law 13 looks at what is compiled alone then.
        max_inferences_per_step: the maximum number of inferences that the driver declares for one step, of all of its models.
        scenarios: the model's decisions; None for `SCENARIOS`. Pass `valid_scenarios()` for a driver that asks the model again
            when a call cannot be executed: it needs more responses than a scenario with invalid calls has.
    """

    laws: tuple[int, ...] = (1, 2, 3, 5, 6, 7, 8, 9, 10, 13, 16, 19, 20, 21, 22, 23, 34, 35, 38, YIELDING)

    def __init__(
        self,
        factory: Callable[[Scenario], CanUseTools],
        *,
        examples: int = 100,
        max_inferences_per_step: int = 1,
        scenarios: st.SearchStrategy[Scenario] | None = None,
        breaks_prefix: bool = False,
    ) -> None:
        super().__init__(examples=examples)
        self.breaks_prefix = breaks_prefix
        self.scenarios: st.SearchStrategy[Scenario] = SCENARIOS if scenarios is None else scenarios
        self._asks_once = scenarios is None
        self.factory: Callable[[Scenario], CanUseTools] = checked_factory(factory)
        self.max_inferences_per_step = max_inferences_per_step
        self._first: _Trace | None = None

    def require_working(self) -> None:
        """Check that the model of the scenario is asked once per decision by a driver that makes several inferences in a step.

        This is the first run of the kit, before which a driver has had no chance to remember anything; laws 8 and 9 compare
        later runs with it.

        Raises:
            LawNotChecked: it is asked more often.
        """
        if self._first is None:
            scenario = evolve(_PLAIN)
            self._first = self._trace(scenario)
            if self.max_inferences_per_step > 1 and scenario.is_overasked:
                self._first = None
                raise LawNotChecked(overasked(len(scenario.turns)))

    def _trace(self, scenario: Scenario) -> _Trace:
        """Run a scenario, and return the final state and the requests as plain JSON data."""
        run = self._run(scenario, agent=_AGENTS[0])
        return _Trace(to_plain(run.state), [to_plain(request) for request in scenario.requests])

    def _require_as_at_first(self, law: int) -> None:
        first = self._first
        differs = first.difference(self._trace(evolve(_PLAIN))) if first is not None else ""
        kept = "what it keeps outside of the state reaches other executions"
        require(law, not differs, f"the first execution of the driver and a later one differ, {differs}; {kept}")

    async def run_scenario(
        self,
        scenario: Scenario,
        *,
        driver: CanUseTools | None = None,
        interceptors: Iterable[CanIntercept] = (),
        max_steps: int | None = None,
        agent: str = "agent",
        linger: float = 0.0,
        mark: str = "",
    ) -> ScenarioRun:
        """Run a scenario to its end.

        Args:
            scenario: the model's decisions, and the user's message.
            driver: the driver to use; a new one by default.
            interceptors: the interceptors of the loop.
            max_steps: the step limit; None for no limit.
            agent: the agent's id.
            linger: how many seconds to wait for what comes after the end.
            mark: the text of a message that the compiler adds; empty for none.
        """
        bench = _DriverBench(
            driver or self.factory(scenario), tuple(interceptors), max_steps, compiler=RecordingCompiler(mark)
        )
        start = AgentState.start(scenario.question, agent_id=agent, clock=ManualClock())
        states = [state async for state in bench.loop.iterate(start, execution_id=f"execution of {agent}")]
        await asyncio.sleep(linger)
        compiled = bench.compiler.compiled.get(f"execution of {agent}", [])
        return ScenarioRun(scenario, states[-1], tuple(states), tuple(bench.events), tuple(compiled), bench.steps)

    def _run(self, scenario: Scenario, **options: Any) -> ScenarioRun:
        return run_in_virtual_time(self.run_scenario(scenario, **options))

    def law_1(self) -> None:
        """The calls of the steps are those of the model, in its order, and the text that it wrote beside calls stays beside them."""

        def holds(scenario: Scenario) -> None:
            scenario = evolve(scenario)
            run = self._run(scenario)
            expected = [(call.name, call.arguments) for turn in scenario.turns for call in turn.calls]
            exchanges = [exchange for message in run.state.messages for exchange in message.exchanges]
            actual = [(exchange.call.name, exchange.call.arguments) for exchange in exchanges]
            is_complete = run.state.status is ExecutionStatus.COMPLETED
            require(
                1,
                actual == (expected if is_complete else expected[: len(actual)]),
                f"the model made the calls {expected}, and the steps have {actual}",
            )
            executed = [exchange.execution.name for exchange in exchanges]
            require(1, executed == [name for name, _ in actual], f"the calls {actual} were executed as {executed}")
            acting = [turn for turn in scenario.turns if turn.calls and scenario.has_models]
            for turn, message in zip(acting, [each for each in run.state.messages if each.exchanges], strict=False):
                lost = f"the model wrote {turn.text!r} beside {[call.name for call in turn.calls]}, and the step has"
                require(1, turn.text in _words(message), f"{lost} {_words(message)!r}")

        self.for_all(self.scenarios, holds)
        if self._asks_once:  # otherwise it may ask for another decision where an answer repeats itself
            self.for_all(_SIMILAR_CALLS, holds)

    def law_2(self) -> None:
        """Each call of the model is in the conversation with its execution, and in every encoded request."""

        def holds(scenario: Scenario) -> None:
            run = self._run(scenario)
            for step in run.steps:
                lost = step.outcomes.keys() - step.executions.keys()
                require(2, not lost, f"the driver left out the executions of {', '.join(sorted(lost))}")
            if run.state.status is ExecutionStatus.COMPLETED:
                made = sum(len(turn.calls) for turn in scenario.turns)
                paired = sum(len(message.exchanges) for message in run.state.messages)
                require(2, made == paired, f"the model made {made} calls, and {paired} have an execution")
            for state in run.states:
                unpaired = find_unpaired(state.messages)
                require(2, not unpaired, f"an encoded request holds the unpaired calls {unpaired}")
                # The loop adds calls that a driver leaves out, and reports the driver.
                require_unbroken(2, state)

        self.for_all(self.scenarios, holds)

    def law_3(self) -> None:
        """The state that is passed to the driver, the tools and the dependencies never change."""

        def holds(scenario: Scenario) -> None:
            run_in_virtual_time(self._compare_states(scenario))

        self.for_all(self.scenarios, holds)

    async def _compare_states(self, scenario: Scenario) -> None:
        bench = _DriverBench(self.factory(scenario))
        given = {"by": "the program", "nested": {"list": [1, 2]}}
        start = AgentState.start(scenario.question, agent_id="agent", clock=ManualClock()).with_metadata(given=given)
        states = bench.loop.iterate(start, dependencies=given)
        snapshots = [(state, to_json(state)) async for state in states]
        for step in bench.steps:
            require(3, to_json(step.before) == step.before_json, "the state that was passed to the driver was changed")
        for state, before in snapshots:
            require(3, to_json(state) == before, f"the state after step {state.step_count} was changed later")
        require(3, given == {"by": "the program", "nested": {"list": [1, 2]}}, f"the dependencies became {given!r}")
        names = [tool.name for tool in toy_tools(Ledger())]
        require(3, list(bench.loop.tools.by_name) == names, f"the tools became {list(bench.loop.tools.by_name)}")

    def law_5(self) -> None:
        """Under a limit of n steps there are at most n steps, with no more inferences than declared, and all are counted."""

        def holds(example: tuple[Scenario, int]) -> None:
            scenario, max_steps = example
            run = self._run(scenario, max_steps=max_steps)
            steps, signal = run.state.step_count, run.state.stop_signal
            require(5, steps <= max_steps, f"{steps} steps under a limit of {max_steps}")
            ends = {None, StopReason.COMPLETED, StopReason.STEP_LIMIT}
            reason = None if signal is None else signal.reason
            require(5, reason in ends, f"the execution stopped by {signal}, not by the step limit")
            allowed, inferences = steps * self.max_inferences_per_step, len(run.responses)
            declared = f"with max_inferences_per_step={self.max_inferences_per_step}, {allowed} are declared"
            require(5, inferences <= allowed, f"{inferences} inferences in {format_count(steps, 'step')}; {declared}")
            asked = len(scenario.requests)
            require(5, asked <= allowed, f"{asked} requests to models in {format_count(steps, 'step')}; {declared}")
            sent = run.state.inference_count
            require(
                5,
                asked <= sent,
                f"models got {format_count(asked, 'request')}, and the steps count {sent} (StepDraft.add_requests)",
            )
            counted = run.state.usage.requests
            # A scripted driver works without a model, and emits no responses for the requests that it counts.
            require(5, inferences in {0, counted}, f"{inferences} inferences, but {counted} are counted")

        self.for_all(st.tuples(self.scenarios.map(evolve), st.integers(1, 5)), holds)

    def law_6(self) -> None:
        """The usage of the execution is the sum of the usage of its inferences, whichever model made them; unknown stays unknown."""

        def holds(scenario: Scenario) -> None:
            scenario = evolve(scenario)
            run = self._run(scenario)
            used = [turn.usage for turn in scenario.turns]
            if run.responses:
                missing = Counter([*used, *scenario.watched_usages]) - Counter(run.responses)
                require(6, not missing, f"the models used {list(missing)}, and no event has it")
                used = list(run.responses)
            expected = sum(used, NO_USAGE)
            if not run.responses and not scenario.has_models:
                expected = run.state.usage  # without a model, a driver may count what it decides by itself, or nothing
            require(6, run.state.usage == expected, f"the models used {expected}; the execution has {run.state.usage}")
            by_step = sum([step.usage for step in run.state.steps], NO_USAGE)
            require(6, by_step == expected, f"the models used {expected}, and the steps have {by_step}")

        self.for_all(self.scenarios, holds)

    def law_7(self) -> None:
        """The grammar accepts the event sequence of every run."""

        def holds(example: tuple[Scenario, int]) -> None:
            scenario = evolve(example[0])
            run = self._run(scenario, max_steps=example[1], linger=_AFTERWARDS)
            monitor = ProtocolMonitor()
            for event in run.events:
                monitor(event)
            unfinished = [f"the execution {execution} has not ended" for execution in monitor.unfinished]
            require(7, not [*monitor.violations, *unfinished], "; ".join([*monitor.violations, *unfinished]))
            started = sum(type(event).__name__ == "AgentStepStarted" for event in run.events)
            require(7, started == run.state.step_count, f"{run.state.step_count} steps, but {started} start events")
            asked = len(scenario.requests)
            require(7, run.responses or not asked, f"models got {asked} requests, and no event has a response")

        self.for_all(st.tuples(self.scenarios, st.integers(1, 5)), holds)

    def law_8(self) -> None:
        """The same scenario gives the same state, byte for byte, and the same requests."""

        def holds(scenario: Scenario) -> None:
            traces = [self._trace(evolve(scenario)) for _ in range(2)]
            differs = traces[0].difference(traces[1])
            require(8, not differs, f"two runs of the same scenario differ, {differs}")

        self.for_all(self.scenarios, holds)
        self._require_as_at_first(8)

    def law_9(self) -> None:
        """A driver that serves several executions, at once or in turn, gives each the state that it would have alone."""

        async def run_concurrently(scenario: Scenario) -> list[ScenarioRun]:
            driver = self.factory(scenario)
            return await asyncio.gather(*[self.run_scenario(scenario, driver=driver, agent=agent) for agent in _AGENTS])

        def holds(scenario: Scenario) -> None:
            for run in run_in_virtual_time(run_concurrently(scenario)):
                agent = run.state.agent_id
                alone = self._run(scenario, agent=agent)
                differs = find_difference(to_plain(run.state), to_plain(alone.state))
                require(9, not differs, f"a concurrent execution differs from the same execution alone at {differs}")
                texts = [to_json(state).decode() for state in (run.state, alone.state)]
                others = [other for other in _AGENTS if other != agent]
                require_no_trace(9, texts, others, of=f"the state of the execution of {agent}")

        self.for_all(self.scenarios.map(_with_wait), holds)
        self._require_as_at_first(9)

    def law_10(self) -> None:
        """The driver returns the outcomes that it got from the executor, which are those of the events."""

        def holds(scenario: Scenario) -> None:
            run = self._run(scenario)
            settled = {event.key: event.execution for event in run.events if isinstance(event, ToolCallSettled)}
            for step in run.steps:
                known = {key: step.outcomes.get(key, settled.get(key)) for key in step.executions}
                _require_same_outcomes(known, step.executions, "the executor returned", "the step has")
            executions = {execution.key: execution for step in run.state.steps for execution in step.executions}
            events = {key: settled.get(key) for key in executions}
            _require_same_outcomes(events, executions, "the event has", "the state has")

        self.for_all(self.scenarios, holds)

    def law_13(self) -> None:
        """The compiled messages of a step extend those of the previous step, and the requests to a model begin like the one before.

        A driver may add messages of its own to a request, such as a plan, behind those of the conversation.
        """

        def holds(scenario: Scenario) -> None:
            scenario = evolve(scenario)
            compiled = self._run(scenario).compiled
            for earlier, later in pairwise(compiled):
                require(
                    13, later[: len(earlier)] == earlier, "messages that the model has seen changed within an epoch"
                )
            if self.breaks_prefix:
                return
            for requests in scenario.requests_by_model:
                for before, after in pairwise(requests):
                    _require_prefix(before, after, compiled[-1] if compiled else ())

        self.for_all(self.scenarios, holds)

    def law_16(self) -> None:
        """A call that waits does not run before it is decided, and then it is settled as it was decided."""
        self.for_all(waiting_scenarios(), lambda scenario: run_in_virtual_time(self._check_decisions(scenario)))

    async def _check_decisions(self, scenario: Scenario) -> None:
        scenario = evolve(scenario)
        bench = _DriverBench(self.factory(scenario), (Doorkeeper(),))
        state = await bench.loop.execute(AgentState.start(scenario.question, agent_id="agent", clock=ManualClock()))
        for _ in range(_MAX_DECISIONS):
            if state.status is not ExecutionStatus.SUSPENDED:
                break
            waiting = [call.call.arguments["value"] for call in state.pending if not call.begun]
            early = set(waiting) & set(bench.ledger.values)
            require(16, not early, f"the calls of {sorted(early)} ran before they were decided")
            decisions = decide_toys(state.pending)
            state = await bench.loop.resume(state, decisions)
            ignored = [call.key for call in state.pending if call.key in decisions and not call.begun]
            require(16, not ignored, f"the calls {ignored} were decided, and wait for the same decision again")
        failed = "; ".join(error.message for error in state.errors)
        require(
            16,
            state.status is not ExecutionStatus.FAILED,
            f"the execution failed, so that no decision is left: {failed}",
        )
        left = ", ".join(call.key for call in state.pending)
        ended = f"the execution is {state.status}" + (f", and {left} still wait" if left else "")
        require(16, state.status is ExecutionStatus.COMPLETED, f"all calls were decided, and {ended}")
        require_unbroken(16, state)
        for exchange in [exchange for message in state.messages for exchange in message.exchanges]:
            problem = find_disobedience(_model_call(scenario, exchange), exchange.execution, bench.ledger.values)
            require(16, not problem, problem)

    def law_19(self) -> None:
        """No task or thread outlives an execution, even when the iteration stops early."""

        async def run_some_steps(scenario: Scenario, steps: int) -> None:
            before = Surroundings.now()
            loop = AgentLoop(self.factory(scenario), toy_tools(Ledger()))
            states = loop.iterate(scenario.question)
            for _ in range(steps):
                if await anext(states, None) is None:
                    break
            await states.aclose()
            await before.require_tasks_and_sockets()

        def holds(example: tuple[Scenario, int]) -> None:
            before = Surroundings.now()
            run_in_virtual_time(run_some_steps(*example))
            before.require_threads()

        self.for_all(st.tuples(self.scenarios, st.integers(0, 6)), holds)

    def law_20(self) -> None:
        """A step compiles the conversation no more often than it calls the model."""

        def holds(scenario: Scenario) -> None:
            run = self._run(scenario)
            allowed = run.state.step_count * self.max_inferences_per_step
            require(20, len(run.compiled) <= allowed, f"compiled {len(run.compiled)} times; {allowed} are allowed")

        self.for_all(self.scenarios, holds)

    def law_21(self) -> None:
        """When a batch fails or is cancelled, the driver raises that, and its error carries the step with all outcomes and the usage."""

        def holds(example: tuple[Scenario, str, int, float | None]) -> None:
            scenario, point, index, cancel_after = example
            calls = scenario.turns[0].calls
            value = calls[index % len(calls)].arguments["value"]
            raising = () if cancel_after is not None else (RaisingInterceptor(point, value),)
            run = run_in_virtual_time(self._interrupt(_with_delays(scenario), raising, cancel_after))
            for step in run.steps:
                _require_told(step)
                if step.outcomes:
                    require(21, step.after is not None, f"the error {step.error!r} carries no step")
                    _require_rescued(step, run.responses)

        points = st.sampled_from(["before_tool_use", "around_tool_use", "after_tool_use"])
        times = st.sampled_from([None, None, 0.5, 1.5])
        self.for_all(st.tuples(_BATCHES, points, st.integers(0, 5), times), holds)

    def law_22(self) -> None:
        """What interceptors change in the state is kept, and the conversation grows by the message of the step alone."""

        def holds(scenario: Scenario) -> None:
            tally = Tally()
            run = self._run(scenario, interceptors=[tally])
            require_unbroken(22, run.state)
            loss = tally.find_loss(run.state)
            require(22, not loss, loss)
            for step in run.steps:
                if step.after is not None and step.after.step_count > step.before.step_count:
                    last = step.after.last_step
                    own = (last.message,) if last is not None and last.message is not None else ()
                    added = step.after.messages[len(step.before.messages) :]
                    require(22, added == own, f"the step has the message {own}, and the conversation got {added}")

        self.for_all(self.scenarios, holds)

    def law_23(self) -> None:
        """An answer that was cut off, filtered or not given completes no execution, and the calls of such an answer do not run in part."""

        def holds(example: tuple[Scenario, FinishReason | None, bool]) -> None:
            plain, finish, is_answer = example
            *acting, answer = [evolve(turn, finish=finish, error="" if finish else "no answer") for turn in plain.turns]
            calls, end = (plain.turns[:-1], answer) if is_answer else (acting, plain.turns[-1])
            scenario = evolve(plain, turns=(*calls, end))
            bench = _DriverBench(self.factory(scenario))
            state = run_in_virtual_time(bench.loop.execute(scenario.question))
            if not scenario.requests:
                return  # it asks no model
            received = [event.response for event in bench.events if isinstance(event, InferenceResponseReceived)]
            answers = {response.text.strip() for response in received if not response.finish_reason.is_incomplete}
            said = f"the model ended {'with an error' if finish is None else f'by {finish.value!r}'}"
            is_complete = state.status is ExecutionStatus.COMPLETED
            is_normal = not is_complete or (state.final_text or "").strip() in answers
            require(23, is_normal, f"{said}, and the execution is completed with the answer {state.final_text!r}")
            ran = [] if is_answer else bench.ledger.calls
            require(23, not ran or len(ran) == len(acting[0].calls), f"{said} in its calls, and of them ran {ran}")

        ends = st.sampled_from([*[each for each in FinishReason if each.is_incomplete], None])
        self.for_all(st.tuples(_BATCHES, ends, st.booleans()), holds)

    def law_34(self) -> None:
        """A driver whose task is cancelled raises the cancellation, has no more calls executed, and serves the next as a new one does."""

        def holds(example: tuple[Scenario, float, float]) -> None:
            scenario, cancel_after, wait = example
            run_in_virtual_time(self._check_cancellation(evolve(_with_delays(scenario), wait=wait), cancel_after))

        self.for_all(st.tuples(_BATCHES, st.sampled_from(CANCELLATIONS), st.sampled_from([0, 1])), holds)
        waiting = evolve(_with_delays(_PLAIN), wait=1)
        self.for_each(
            CANCELLATIONS,
            lambda cancel_after: run_in_virtual_time(self._check_cancellation(evolve(waiting), cancel_after, PLACES)),
        )

    async def _check_cancellation(self, scenario: Scenario, cancel_after: float, times: int = 3) -> None:
        """Cancel an execution, in which each answer of the model and each tool takes a while, and use the driver again."""
        driver = self.factory(scenario)
        runs = [await self._interrupt(scenario, (), cancel_after, driver) for _ in range(times)]
        for step in [step for run in runs for step in run.steps]:
            late = [batch for batch in step.batches if batch.is_late]
            require(34, not late, "the driver had calls executed after it was cancelled")
            if step.was_cancelled:
                is_raised = isinstance(step.error, asyncio.CancelledError)
                require(34, is_raised, f"the driver was cancelled, and did not raise that, but gave {step.result}")
        again = [await self.run_scenario(scenario, driver=driver, agent=agent) for agent in ("agent", _AGENTS[0])]
        first = await self.run_scenario(scenario, agent=_AGENTS[0])
        differs = find_difference(to_plain(again[-1].state), to_plain(first.state))
        said = "after executions that were cancelled, a driver gives another one something else than a new driver does"
        require(34, not differs, f"{said}, at {differs}")

    async def _interrupt(
        self,
        scenario: Scenario,
        interceptors: tuple[CanIntercept, ...],
        cancel_after: float | None,
        driver: CanUseTools | None = None,
    ) -> ScenarioRun:
        """Run a scenario whose tools take a while, and cancel it after this many seconds."""
        bench = _DriverBench(driver or self.factory(scenario), interceptors, clock=LoopClock())
        start = AgentState.start(scenario.question, agent_id="agent", clock=LoopClock())
        task = asyncio.ensure_future(bench.loop.execute(start))
        await asyncio.wait([task], timeout=cancel_after)
        task.cancel()
        await asyncio.wait([task])
        state = task.result() if not task.cancelled() and task.exception() is None else start
        return ScenarioRun(scenario, state, (state,), tuple(bench.events), (), bench.steps)

    def law_35(self) -> None:
        """Every request passes the interceptors, is sent as they return it, and no call runs that they took out of an answer."""

        def holds(scenario: Scenario) -> None:
            scenario, editor, tally = evolve(scenario), RequestEditor(), Tally()
            bench = _DriverBench(self.factory(scenario), (editor, tally))
            run_in_virtual_time(bench.loop.execute(scenario.question))
            if scenario.has_models:
                unseen = [request for request in scenario.requests if editor.mark not in to_json(request).decode()]
                counts = f"{len(unseen)} of {len(scenario.requests)} requests"
                require(35, not unseen, f"{counts} reached a model without what an interceptor added")
            passed, answered = tally.counts["before_inference"], tally.counts["after_inference"]
            require(35, passed == answered, f"{passed} requests and {answered} answers passed the interceptors")
            if passed:
                ran = bench.ledger.calls
                require(35, not ran, f"an interceptor took all calls out of the answers, and these ran: {ran}")

        self.for_all(self.scenarios, holds)
        self.for_all(st.sampled_from(RICH_TEXTS), self._require_answer)

    def _require_answer(self, text: str) -> None:
        """Require that the answer of the one model of a driver is the answer of the execution, whatever text it is."""
        scenario = Scenario(turns=(ScriptedTurn(text),))
        state = self._run(scenario).state
        if scenario.has_models and self.max_inferences_per_step == 1 and state.status is ExecutionStatus.COMPLETED:
            answer = state.final_text or ""
            difference = f"the model answered {text!r:.80}, and the execution has {answer!r:.80}"
            same = answer.strip() == text.strip()
            require(35, same, f"{difference} ({len(text)} and {len(answer)} characters)")

    def law_38(self) -> None:
        """A stop signal that a step receives stays in its state, and the settings of the driver are in its requests."""

        def holds(scenario: Scenario) -> None:
            for kind in (AfterInference, AfterToolUse):
                signalled: list[AgentState] = []
                run = self._run(scenario, interceptors=[_stopper(kind, signalled)])
                given = [step.after for step in run.steps if step.after is not None]
                is_kept = not signalled or any(map(_is_signalled, given))
                require(38, is_kept, f"a stop signal that the point {kind.point_name} added is lost")

        self.for_all(self.scenarios, holds)
        for name, value in _SETTINGS.items():
            self._require_setting(name, value)
        self._require_parts()

    def _require_parts(self) -> None:
        """Require that a driver which accepts a compiler and an executor uses those of its loop."""
        scenario = evolve(_PLAIN)
        driver = self.factory(scenario)
        run = self._run(scenario, driver=driver, mark=_MARK)
        if isinstance(driver, CanAcceptMessageCompiler) and scenario.requests:
            compiled = any(_MARK in to_json(request).decode() for request in scenario.requests)
            require(38, compiled, "what the compiler of the loop adds to the messages is in no request")
        if isinstance(driver, CanAcceptToolRuntime):
            executed = [execution.name for step in run.state.steps for execution in step.executions]
            has_batch = any(step.batches for step in run.steps)
            said = f"the executor of the loop got no batch, and these calls were executed: {executed}"
            require(38, has_batch or not executed, said)

    def _require_setting(self, name: str, value: object) -> None:
        """Require that a driver with a setting of this name has it in a request."""
        scenario = evolve(_PLAIN)
        driver: Any = self.factory(scenario)
        if not has(type(driver)) or name not in {each.name for each in fields(type(driver))}:
            return
        requests: list[InferenceRequest] = []

        def note(point: BeforeInference) -> BeforeInference:
            requests.append(point.request)
            return point

        self._run(
            scenario,
            driver=evolve(driver, **{name: value}),
            interceptors=[FunctionInterceptor(BeforeInference, note, 0)],
        )
        applied = [request for request in requests if getattr(request, name) == value]
        require(38, applied or not requests, f"the driver has {name}={value!r}, and no request has it")

    def law_45(self) -> None:
        """The event loop runs while the driver waits."""

        @refuse_blocking
        def holds(scenario: Scenario) -> None:
            self._run(scenario)

        self.for_all(self.scenarios, holds)


@frozen
class _Trace:
    """What one run of a scenario left, as plain JSON data.

    Attributes:
        state: the final state.
        requests: what models were asked.
    """

    state: object
    requests: Sequence[object]

    def difference(self, other: _Trace) -> str:
        """Return where another run differs first; empty for nowhere."""
        in_state = find_difference(self.state, other.state)
        in_requests = "" if in_state else find_difference(self.requests, other.requests)
        return f"in the state at {in_state}" if in_state else f"in the requests at {in_requests}" if in_requests else ""


@frozen
class ScenarioRun:
    """A complete execution of a scenario under a driver.

    Attributes:
        scenario: the model's decisions.
        state: the final state.
        states: the states that the loop yielded, in order.
        events: the events that were emitted, in order.
        compiled: the messages that were compiled for each request, in order.
        steps: the calls of the driver, before the loop checks what they return.
    """

    scenario: Scenario
    state: AgentState = field(repr=False)
    states: tuple[AgentState, ...] = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)
    compiled: tuple[tuple[Message, ...], ...] = field(repr=False)
    steps: Sequence[ObservedStep] = field(default=(), repr=False)

    @property
    def responses(self) -> tuple[Usage, ...]:
        """The usage of each response that an event reported, in order."""
        return tuple([event.response.usage for event in self.events if isinstance(event, InferenceResponseReceived)])


@frozen
class RecordingCompiler(CanCompileMessages):
    """The default compiler, which records what it compiles.

    Attributes:
        mark: the text of a message that it adds; empty for none.
        compiled: the compiled messages of each request, in order, by execution id.
    """

    mark: str = ""
    compiled: dict[str, list[tuple[Message, ...]]] = field(factory=dict)

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Compile the messages of a state, and record them."""
        added = [Message.user(self.mark)] if self.mark else []
        messages = (*added, *WholeConversation().compile(state))
        self.compiled.setdefault(state.execution_id, []).append(messages)
        return messages


@frozen
class _DriverBench:
    """A loop with toy tools around a driver, and all that is known of what happens in it."""

    driver: CanUseTools
    interceptors: tuple[CanIntercept, ...] = ()
    max_steps: int | None = None
    clock: Clock = field(factory=ManualClock)
    ledger: Ledger = field(factory=Ledger)
    events: list[Event] = field(factory=list)
    steps: list[ObservedStep] = field(factory=list)
    compiler: RecordingCompiler = field(factory=RecordingCompiler)
    loop: AgentLoop = field(init=False)

    @loop.default
    def _make_loop(self) -> AgentLoop:
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        return AgentLoop(
            DriverObserver(self.driver, self.steps),
            collect_tools(toy_tools(self.ledger)),
            executor=ExecutorObserver(ToolExecutor(), self.steps),
            interceptors=self.interceptors,
            compiler=self.compiler,
            events=bus,
            max_steps=self.max_steps,
            clock=self.clock,
            ids=CountingIds(),
        )


_SIGNAL = StopSignal(StopReason.STOP_REQUESTED, "the kit")
_SETTINGS: Mapping[str, object] = {
    "tool_choice": ToolChoice.required(),
    "parallel_tool_calls": False,
    "options": InferenceOptions(seed=4711),
}
"""Settings that a request has by the names that drivers use for them."""


def _stopper(kind: type[StatePoint], signalled: list[AgentState]) -> CanIntercept:
    """Return an interceptor that adds a stop signal to the state of a point, once."""

    def stop(point: Any) -> Any:
        if signalled:
            return point
        signalled.append(point.state)
        return point.with_state(point.state.with_stop_signal(_SIGNAL))

    return FunctionInterceptor(kind, stop, 0)


def _is_signalled(state: AgentState) -> bool:
    signals = () if state.execution is None else state.execution.continuation.signals
    return any(signal.message == _SIGNAL.message for signal in signals)  # its source is the interceptor


class RequestEditor(Interceptor):
    """Adds a mark to every request, and takes all calls out of every answer.

    Attributes:
        mark: the text that is added to the system prompt.
    """

    mark = "(seen by an interceptor)"

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Add the mark."""
        return point.with_request(point.request.with_system_prompt(f"{point.request.system_prompt} {self.mark}"))

    def after_inference(self, point: AfterInference) -> AfterInference:
        """Put a text in place of calls."""
        if not point.response.tool_calls:
            return point
        return point.with_response(evolve(point.response, parts=(Text("held"),), finish_reason=FinishReason.STOP))


def _count_equal(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Return with how many equal messages two requests begin."""
    return sum(1 for _ in takewhile(bool, map(operator.eq, first, second)))


def _require_prefix(before: InferenceRequest, after: InferenceRequest, conversation: Sequence[Message]) -> None:
    """Check that of a request, what precedes the messages of the driver itself is the beginning of the next one (law 13)."""
    for name in ("system_prompt", "tools"):
        same = getattr(before, name) == getattr(after, name)
        require(13, same, f"two requests in turn differ in {name}")
    seen = sum(message in conversation for message in before.messages)
    kept = _count_equal(before.messages, after.messages)
    said = f"a request had {seen} messages of the conversation, and the next one begins like it for {kept}"
    require(13, kept >= seen, said)


def _words(message: Message) -> str:
    """Return all that a model wrote for readers in a message, its reasoning included."""
    return "\n".join(part.text for part in message.parts if isinstance(part, Text | Reasoning))


def _require_told(step: ObservedStep) -> None:
    """Check that a driver raises what its batch has raised: an interceptor that fails ends the step, whatever the driver makes of it."""
    failures = [cause_of(batch.error) for batch in step.batches if isinstance(batch.error, Exception)]
    if failures:
        link: BaseException | None = step.error
        while link is not None and cause_of(link) is not failures[-1]:
            link = link.__cause__
        require(21, link is not None, f"a batch failed with {failures[-1]!r}, and the driver gave {step.result}")


def _require_rescued(step: ObservedStep, responses: Sequence[Usage]) -> None:
    """Check that what an interrupted driver gives back has all outcomes and tokens of the step."""
    lost = [key for key, execution in step.outcomes.items() if step.executions.get(key) != execution]
    require(
        21, not lost, f"the batch had outcomes, and the step that the driver gave back lacks those of {', '.join(lost)}"
    )
    last = step.after.last_step if step.after is not None else None
    spent = 0 if last is None else last.usage.requests
    require(
        21, not responses or spent > 0, "the driver was interrupted, and its step lacks the tokens of its inferences"
    )


def _require_same_outcomes(
    known: Mapping[str, ToolExecution | None], actual: Mapping[str, ToolExecution], source: str, place: str
) -> None:
    for key, execution in actual.items():
        if execution != known[key]:
            plain = [None if each is None else to_plain(each) for each in (known[key], execution)]
            differs = f"{source} one outcome and {place} another, at {find_difference(*plain)}"
            require(10, condition=False, reason=f"of {key}, {differs}")


def _with_wait(scenario: Scenario) -> Scenario:
    """Return a scenario whose model takes a second for each decision, so that executions at the same time take turns."""
    return evolve(scenario, wait=1)


def _with_delays(scenario: Scenario) -> Scenario:
    """Return a scenario whose calls take one to three seconds."""
    first, *others = scenario.turns
    calls = [
        call.with_arguments({**call.arguments, "seconds": 1 + index % 3}) for index, call in enumerate(first.calls)
    ]
    return evolve(scenario, turns=(evolve(first, calls=tuple(calls)), *others))


def _model_call(scenario: Scenario, exchange: ToolExchange) -> ToolCall:
    """Return the call of the model that an exchange answers: whatever the driver made of it, its value is unique."""
    calls = [call for turn in scenario.turns for call in turn.calls]
    value = exchange.call.arguments["value"]
    return next((call for call in calls if call.arguments["value"] == value), exchange.call)


def find_unpaired(messages: Sequence[Message]) -> list[str]:
    """Return the ids of calls without a result, and of results without a call, in the encoded request with these messages."""
    request = InferenceRequest(tuple(messages))
    config = LLMConfig(model="any", base_url="http://localhost")
    try:
        body = parse_json(wire_format("openai-chat").encode_request(request, config).body)
    except AgentLoopError as error:
        return [str(error)]
    waiting: list[str] = []
    unpaired: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            is_paired = message["tool_call_id"] in waiting
            (waiting.remove if is_paired else unpaired.append)(message["tool_call_id"])
        else:
            unpaired += waiting
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return unpaired + waiting
