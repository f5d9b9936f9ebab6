"""Leaving a tool alone that keeps failing."""

from __future__ import annotations

import asyncio
from typing import Any

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
from agentloop.interception.resilience import CircuitBreaker
from agentloop.interception.stack import InterceptorStack
from agentloop.testing import ManualClock
from agentloop.testing.clocks import VirtualTimeLoop
from agentloop.testing.executor_bench import started_state
from agentloop.values import CircuitPolicy, Event, ToolCall, ToolExecution, ToolSpec, ToolStatus
from tests.interception.resilience.at_work import Run, Worker, seen, use

SPEC = ToolSpec("work", "Works.", {"type": "object"})
STATE = started_state("agent", "run")


@define(eq=False)
class Call:
    """A call that was let through and has not ended: what ends it, and the period of the model that it began in."""

    task: asyncio.Task[ToolExecution]
    ending: asyncio.Future[ToolStatus]
    period: int


class BreakerFollowsItsAutomaton(RuleBasedStateMachine):
    """The layer, at work on calls that begin and end in any order, against a model of four variables."""

    @initialize(failures=st.integers(1, 3), probes=st.integers(1, 3))
    def begin(self, failures: int, probes: int) -> None:
        self.policy = CircuitPolicy(failures, 10.0, probes=probes)
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.clock = ManualClock()
        self.told: list[Event] = []
        bus = EventBus(clock=self.clock)
        bus.wiretap(lambda event: self.told.append(event) if isinstance(event, ToolCallDecided) else None)
        stack = InterceptorStack.of([CircuitBreaker(self.policy)])
        self.stack = stack.bind(bus, ExecutionScope(clock=self.clock))
        self.open_calls: list[Call] = []
        self.status, self.streak, self.opened, self.probes, self.good, self.period = "closed", 0, 0.0, 0, 0, 0
        self.expected: list[type[Event]] = []

    def enter(self, status: str) -> None:
        """Let the model change its status."""
        self.status, self.period = status, self.period + 1
        self.streak = self.probes = self.good = 0
        if status == "open":
            self.opened = self.clock.monotonic()
        kinds: dict[str, type[Event]] = {"open": CircuitOpened, "half": CircuitHalfOpened, "closed": CircuitClosed}
        self.expected.append(kinds[status])

    @rule()
    def call(self) -> None:
        """A call is let through exactly when the model says so."""
        if self.status == "open" and self.clock.monotonic() - self.opened >= self.policy.seconds:
            self.enter("half")
        lets = self.status == "closed" or (self.status == "half" and self.probes < self.policy.probes)
        if self.status == "half" and lets:
            self.probes += 1
        if not lets:
            self.expected.append(ToolCallShortCircuited)
        made = self.runner.run(self._begin())
        assert (made is not None) is lets
        self.check()

    async def _begin(self) -> Call | None:
        ending: asyncio.Future[ToolStatus] = asyncio.get_running_loop().create_future()
        begun: list[bool] = []
        point = AroundToolUse(STATE, ToolCall("", "work", "{}"), SPEC, "run/1/0", "id", self.clock.now())

        async def proceed() -> ToolExecution:
            begun.append(True)
            status = await ending
            return point.succeed(1) if status is ToolStatus.SUCCEEDED else point.fail("no", status=status)

        task = asyncio.create_task(self.stack.around(point, proceed))
        await asyncio.sleep(0.001)  # virtual: until nothing can go on
        if not begun:
            outcome = task.result()
            assert outcome.status is ToolStatus.BLOCKED
            assert outcome.error is not None
            assert outcome.error.type == "CircuitOpen"
            return None
        made = Call(task, ending, self.period)
        self.open_calls.append(made)
        return made

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data(), status=st.sampled_from(ToolStatus))
    def end(self, data: st.DataObject, status: ToolStatus) -> None:
        """What comes of a call counts in the period in which it began."""
        ended = self.open_calls.pop(data.draw(st.integers(0, len(self.open_calls) - 1)))
        self.runner.run(self._end(ended, status))
        if ended.period == self.period:
            self._count(status)
        self.check()

    async def _end(self, ended: Call, status: ToolStatus) -> None:
        ended.ending.set_result(status)
        assert (await ended.task).status is status

    @precondition(lambda self: self.open_calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A cancelled call says nothing, and a cancelled probe gives its place back."""
        ended = self.open_calls.pop(data.draw(st.integers(0, len(self.open_calls) - 1)))
        ended.task.cancel()
        self.runner.run(self._ended(ended.task))
        if ended.period == self.period:
            self._count(ToolStatus.CANCELLED)
        self.check()

    async def _ended(self, task: asyncio.Task[Any]) -> None:
        await asyncio.wait([task])
        assert task.cancelled()

    def _count(self, status: ToolStatus) -> None:
        failed = status in {ToolStatus.FAILED, ToolStatus.TIMED_OUT}
        if status is ToolStatus.SUCCEEDED:
            self.streak, self.good = 0, self.good + 1
            if self.status == "half" and self.good == self.policy.probes:
                self.enter("closed")
        elif failed:
            self.streak += 1
            if self.status == "half" or self.streak >= self.policy.failures:
                self.enter("open")
        elif self.status == "half":
            self.probes -= 1

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.5, 10.0, 30.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)

    def check(self) -> None:
        """Every change of status and every refusal was told, in order."""
        assert [type(event) for event in self.told] == self.expected

    def teardown(self) -> None:
        """End what is still open."""
        if hasattr(self, "runner"):
            for call in self.open_calls:
                call.task.cancel()
            self.runner.run(asyncio.sleep(0))
            self.runner.close()


TestBreaker = BreakerFollowsItsAutomaton.TestCase
TestBreaker.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_tools_that_share_a_dependency_share_its_circuit() -> None:
    """When one of them has failed often enough, the others are left alone too; another dependency goes on."""

    def fail(run: Run) -> None:
        raise ConnectionError(str(run.value))

    crm = ToolPolicy(circuit=CircuitPolicy(2, 60, dependency="crm"))
    other = ToolPolicy(circuit=CircuitPolicy(2, 60))
    tools = [
        Worker(fail, tool_name="read", wants=crm),
        Worker(tool_name="write", wants=crm),
        Worker(tool_name="mail", wants=other),
    ]
    run = seen(tools, [CircuitBreaker()], [use(1, "read"), use(2, "read")], [use(3, "write"), use(4, "mail")])
    assert run.statuses == ["failed", "failed", "blocked", "succeeded"]
    assert "(crm)" in run.outcomes[2].error_message
    assert "60.0 seconds" in run.outcomes[2].error_message
    assert [type(event).__name__ for event in run.told(CircuitOpened, ToolCallShortCircuited)] == [
        "CircuitOpened",
        "ToolCallShortCircuited",
    ]


def test_a_tool_that_recovers_is_used_again() -> None:
    """After its time a probe goes through, and its success lets all calls through."""

    def recovering(run: Run) -> Any:
        if run.at < 5:
            raise ConnectionError("down")
        return run.value

    tools = [Worker(recovering, wants=ToolPolicy(circuit=CircuitPolicy(1, 10))), Worker(tool_name="wait", seconds=10)]
    run = seen(tools, [CircuitBreaker()], [use(1)], [use(2)], [use(0, "wait")], [use(3)], [use(4), use(5)])
    assert run.statuses == ["failed", "blocked", "succeeded", "succeeded", "succeeded", "succeeded"]
    kinds = (CircuitOpened, CircuitHalfOpened, CircuitClosed)
    assert [type(event) for event in run.told(*kinds)] == list(kinds)
