"""Refusal of calls to tools that keep failing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agentloop.contracts import ExecutionScope, ToolPolicy
from agentloop.events import EventBus
from agentloop.events.resilience import (
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    ToolCallDecided,
    ToolCallShortCircuited,
)
from agentloop.interception import AroundToolUse
from agentloop.interception.stack import InterceptorStack
from agentloop.policies import CircuitBreaker, MemoryStore
from agentloop.policies.resilience.circuit_breaker import Circuit, CircuitStatus
from agentloop.testing import ManualClock, run_in_virtual_time
from agentloop.testing.clocks import VirtualTimeLoop
from agentloop.testing.executor_bench import started_state
from agentloop.values import CircuitPolicy, Event, ToolCall, ToolExecution, ToolSpec, ToolStatus
from tests.generated import examples
from tests.policies.resilience.worker import Run, Worker, create_loop, observe, run_loop, work

SPEC = ToolSpec("work", "Works.", {"type": "object"})
STATE = started_state("agent", "run")


@define(eq=False)
class OpenCall:
    """A running call: its task, the future that ends it, and the period of the model in which it was admitted."""

    task: asyncio.Task[ToolExecution]
    outcome_status: asyncio.Future[ToolStatus]
    period: int


class CircuitBreakerMachine(RuleBasedStateMachine):
    """Compares the layer with a model, for calls that start and end in any order."""

    @initialize(failures=st.integers(1, 3), probes=st.integers(1, 3))
    def create(self, failures: int, probes: int) -> None:
        self.policy = CircuitPolicy(failures, 10.0, probes=probes)
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.clock = ManualClock()
        self.decisions: list[Event] = []
        bus = EventBus(clock=self.clock)
        bus.wiretap(lambda event: self.decisions.append(event) if isinstance(event, ToolCallDecided) else None)
        stack = InterceptorStack.of([CircuitBreaker(self.policy)])
        self.stack = stack.bind(bus, ExecutionScope(clock=self.clock))
        self.open_calls: list[OpenCall] = []
        self.status, self.streak, self.opened_at, self.probes, self.successes, self.period = "closed", 0, 0.0, 0, 0, 0
        self.probed_at = 0.0
        self.expected: list[type[Event]] = []

    def change_status(self, status: str) -> None:
        """Change the status of the model."""
        self.status, self.period = status, self.period + 1
        self.streak = self.probes = self.successes = 0
        if status == "open":
            self.opened_at = self.clock.monotonic()
        kinds: dict[str, type[Event]] = {"open": CircuitOpened, "half": CircuitHalfOpened, "closed": CircuitClosed}
        self.expected.append(kinds[status])

    @rule()
    def call(self) -> None:
        """A call is admitted if and only if the model admits it."""
        if self.status == "open" and self.clock.monotonic() - self.opened_at >= self.policy.seconds:
            self.change_status("half")
        if self.status == "half" and self.clock.monotonic() - self.probed_at >= self.policy.seconds:
            self.probes = 0  # those without an outcome may be lost
        is_admitted = self.status == "closed" or (self.status == "half" and self.probes < self.policy.probes)
        if self.status == "half" and is_admitted:
            self.probes, self.probed_at = self.probes + 1, self.clock.monotonic()
        if not is_admitted:
            self.expected.append(ToolCallShortCircuited)
        started = self.runner.run(self._start())
        assert (started is not None) is is_admitted
        self.check()

    async def _start(self) -> OpenCall | None:
        outcome_status: asyncio.Future[ToolStatus] = asyncio.get_running_loop().create_future()
        has_started: list[bool] = []
        point = AroundToolUse(STATE, ToolCall("", "work", "{}"), SPEC, "run/1/0", "id", self.clock.now())

        async def proceed() -> ToolExecution:
            has_started.append(True)
            status = await outcome_status
            return point.succeed(1) if status is ToolStatus.SUCCEEDED else point.fail("no", status=status)

        task = asyncio.create_task(self.stack.around(point, proceed))
        await asyncio.sleep(0.001)  # in virtual time: until every task waits
        if not has_started:
            outcome = task.result()
            assert outcome.status is ToolStatus.BLOCKED
            assert outcome.error is not None
            assert outcome.error.type == "CircuitOpen"
            return None
        started = OpenCall(task, outcome_status, self.period)
        self.open_calls.append(started)
        return started

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data(), status=st.sampled_from(ToolStatus))
    def end(self, data: st.DataObject, status: ToolStatus) -> None:
        """The outcome of a call counts in the period in which it was admitted."""
        ended = self.open_calls.pop(data.draw(st.integers(0, len(self.open_calls) - 1)))
        self.runner.run(self._end(ended, status))
        if ended.period == self.period:
            self._count(status)
        self.check()

    async def _end(self, ended: OpenCall, status: ToolStatus) -> None:
        ended.outcome_status.set_result(status)
        assert (await ended.task).status is status

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A cancelled call is neither a success nor a failure, and another probe may take the place of a cancelled one."""
        ended = self.open_calls.pop(data.draw(st.integers(0, len(self.open_calls) - 1)))
        ended.task.cancel()
        self.runner.run(self._wait_until_cancelled(ended.task))
        if ended.period == self.period:
            self._count(ToolStatus.CANCELLED)
        self.check()

    async def _wait_until_cancelled(self, task: asyncio.Task[Any]) -> None:
        await asyncio.wait([task])
        assert task.cancelled()

    def _count(self, status: ToolStatus) -> None:
        failed = status in {ToolStatus.FAILED, ToolStatus.TIMED_OUT}
        if status is ToolStatus.SUCCEEDED:
            self.streak, self.successes = 0, self.successes + 1
            if self.status == "half" and self.successes == self.policy.probes:
                self.change_status("closed")
        elif failed:
            self.streak += 1
            if self.status == "half" or self.streak >= self.policy.failures:
                self.change_status("open")
        elif self.status == "half":
            self.probes = max(self.probes - 1, 0)

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.5, 10.0, 30.0]))
    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.advance(seconds)

    def check(self) -> None:
        """Every change of status and every refusal is an event, in order."""
        assert [type(event) for event in self.decisions] == self.expected

    def teardown(self) -> None:
        """End the running calls."""
        if hasattr(self, "runner"):
            for call in self.open_calls:
                call.task.cancel()
            self.runner.run(asyncio.sleep(0))
            self.runner.close()


TestBreaker = CircuitBreakerMachine.TestCase
TestBreaker.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_tools_that_share_a_dependency_share_its_circuit() -> None:
    """After failures of one tool, calls of the other tools of its dependency are refused; another dependency is not affected."""

    def fail(run: Run) -> None:
        raise ConnectionError(str(run.value))

    crm = ToolPolicy(circuit=CircuitPolicy(2, 60, dependency="crm"))
    other = ToolPolicy(circuit=CircuitPolicy(2, 60))
    tools = [
        Worker(fail, tool_name="read", declared_policy=crm),
        Worker(tool_name="write", declared_policy=crm),
        Worker(tool_name="mail", declared_policy=other),
    ]
    run = run_loop(tools, [CircuitBreaker()], [work(1, "read"), work(2, "read")], [work(3, "write"), work(4, "mail")])
    assert run.statuses == ["failed", "failed", "blocked", "succeeded"]
    assert "(crm)" in run.outcomes[2].error_message
    assert "60.0 seconds" in run.outcomes[2].error_message
    assert [type(event).__name__ for event in run.events_of(CircuitOpened, ToolCallShortCircuited)] == [
        "CircuitOpened",
        "ToolCallShortCircuited",
    ]


def test_a_tool_that_recovers_runs_again() -> None:
    """After some time a probe is admitted, and after its success all calls are."""

    def recover(run: Run) -> Any:
        if run.at < 5:
            raise ConnectionError("down")
        return run.value

    tools = [
        Worker(recover, declared_policy=ToolPolicy(circuit=CircuitPolicy(1, 10))),
        Worker(tool_name="wait", seconds=10),
    ]
    run = run_loop(tools, [CircuitBreaker()], [work(1)], [work(2)], [work(0, "wait")], [work(3)], [work(4), work(5)])
    assert run.statuses == ["failed", "blocked", "succeeded", "succeeded", "succeeded", "succeeded"]
    kinds = (CircuitOpened, CircuitHalfOpened, CircuitClosed)
    assert [type(event) for event in run.events_of(*kinds)] == list(kinds)


def test_no_late_outcome_counts_in_a_later_period() -> None:
    """A call that was admitted in any earlier period neither opens nor closes a circuit, whatever became of that since."""
    policy = CircuitPolicy(1, 10.0)
    closed = Circuit()
    opened = closed.with_failure(policy, closed.period, now=0.0)
    probing = opened.with_request(policy, now=10.0)
    healed = probing.with_success(policy, probing.period)
    periods = [closed, opened, probing, healed]
    assert [each.status for each in periods] == [
        CircuitStatus.CLOSED,
        CircuitStatus.OPEN,
        CircuitStatus.HALF_OPEN,
        CircuitStatus.CLOSED,
    ]
    for index, current in enumerate(periods):
        for earlier in periods[:index]:
            assert current.with_success(policy, earlier.period) is current
            assert current.with_failure(policy, earlier.period, now=20.0) is current
            assert current.with_no_verdict(earlier.period) is current


def test_another_probe_takes_the_place_of_one_without_a_verdict() -> None:
    """A circuit whose probe was cancelled does not stay half-open forever."""
    policy = CircuitPolicy(1, 10.0)
    opened = Circuit().with_failure(policy, 0, now=0.0)
    probing = opened.with_request(policy, now=10.0)
    assert not probing.admits(policy, now=11.0)
    without_verdict = probing.with_no_verdict(probing.period)
    assert without_verdict.admits(policy, now=11.0)
    assert not without_verdict.with_request(policy, now=11.0).admits(policy, now=12.0)


@pytest.mark.parametrize("probes", [1, 3])
def test_probes_of_a_process_that_died_make_room_for_others(probes: int) -> None:
    """When the time of the circuit has passed since the last one; before, calls are refused."""
    store, policy = MemoryStore(), CircuitPolicy(1, 10, probes=probes)

    def behave(run: Run) -> Any:
        if run.at == 0:
            raise ConnectionError("down")
        return run.value

    async def die_and_go_on() -> list[list[str]]:
        worker = Worker(behave, declared_policy=ToolPolicy(circuit=policy))
        dying = Worker(seconds=1_000, declared_policy=ToolPolicy(circuit=policy))
        statuses = [(await observe(create_loop(worker, [CircuitBreaker(store=store)], [work(1)]))).statuses]
        await asyncio.sleep(10)
        lost = create_loop(dying, [CircuitBreaker(store=store)], [work(2)] * probes).execute("go")
        probing = asyncio.create_task(lost)
        for _ in range(2):
            await asyncio.sleep(9)
            calls = [work(3)] * probes
            statuses.append((await observe(create_loop(worker, [CircuitBreaker(store=store)], calls))).statuses)
        probing.cancel()
        return statuses

    assert run_in_virtual_time(die_and_go_on()) == [["failed"], ["blocked"] * probes, ["succeeded"] * probes]


@pytest.mark.parametrize("probes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("last", ["succeeds", "fails"])
def test_a_circuit_closes_after_the_success_of_its_last_probe(probes: int, last: str) -> None:
    """Until then one failure opens it again, however many probes have succeeded."""

    def behave(run: Run) -> Any:
        if run.value == "fails":
            raise ConnectionError("down")
        return run.value

    tools = [
        Worker(behave, declared_policy=ToolPolicy(circuit=CircuitPolicy(2, 10, probes=probes))),
        Worker(tool_name="wait", seconds=10),
    ]
    values = [*["succeeds"] * (probes - 1), last, "fails"]
    run = run_loop(
        tools,
        [CircuitBreaker()],
        [work("fails"), work("fails")],
        [work(0, "wait")],
        *[[work(value)] for value in values],
    )
    events = run.events_of(CircuitOpened, CircuitHalfOpened, CircuitClosed, ToolCallShortCircuited)
    assert [(type(event).__name__, event.step_number) for event in events] == [
        ("CircuitOpened", 1),
        ("CircuitHalfOpened", 3),
        *([("CircuitClosed", 2 + probes)] if last == "succeeds" else []),
        *([("CircuitOpened", 2 + probes), ("ToolCallShortCircuited", 3 + probes)] if last == "fails" else []),
    ]


@pytest.mark.parametrize("failures", [1, 2, 3, 5])
def test_a_circuit_opens_after_the_last_of_its_consecutive_failures(failures: int) -> None:
    """A success in between makes the counting begin anew."""

    def behave(run: Run) -> Any:
        if run.value == "fails":
            raise ConnectionError("down")
        return run.value

    worker = Worker(behave, declared_policy=ToolPolicy(circuit=CircuitPolicy(failures, 10)))
    values = [*["fails"] * (failures - 1), "succeeds", *["fails"] * failures, "succeeds"]
    run = run_loop(worker, [CircuitBreaker()], *[[work(value)] for value in values])
    assert [attempt.value for attempt in worker.runs] == values[:-1]
    assert run.statuses[-2:] == ["failed", "blocked"]
