"""Layers around calls: only hooks that a class overrides are called, and a layer that passes everything on changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from attrs import evolve

from agentloop import ToolCall, tool
from agentloop.contracts import Tool
from agentloop.executors import standard_layers
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import Attempt, CallLayer, CallOutcome, Cut, RunCall, UseTool
from agentloop.testing import ExecutorBench, run_in_virtual_time
from agentloop.values import ToolExecution, ToolExecutions


class PassesOn(CallLayer):
    """Overrides every hook, passes everything on, and notes the names of the hooks."""

    def __init__(self, noted: list[str]) -> None:
        self.noted = noted

    async def admit(self) -> None:
        self.noted.append("admit")

    async def keep(self, refused: str) -> None:
        self.noted.append(f"keep {refused}")

    async def run(self, proceed: RunCall) -> CallOutcome:
        self.noted.append("run")
        return await proceed()

    async def around(self, started_at: datetime, proceed: Attempt) -> ToolExecution:
        self.noted.append("around")
        return await proceed()

    async def attempt(self, proceed: Attempt) -> ToolExecution:
        self.noted.append("attempt")
        return await proceed()

    def bind(self, tool: Tool) -> Tool:
        self.noted.append("bind")
        return tool

    async def use(self, proceed: UseTool) -> Any:
        self.noted.append("use")
        return await proceed()

    def disowns(self, error: BaseException) -> bool:
        self.noted.append("disowns")
        return False

    def so_far(self, outcome: CallOutcome) -> CallOutcome:
        return outcome

    def unrun(self, so_far: CallOutcome, reason: str) -> CallOutcome:
        self.noted.append("unrun")
        return so_far

    def cut(self, so_far: CallOutcome, cut: Cut, settle: Callable[[], CallOutcome]) -> CallOutcome:
        self.noted.append("cut")
        return settle()

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        self.noted.append("end")
        return outcome

    async def settle(self, grace: float | None) -> None:
        self.noted.append("settle")

    def drop(self) -> asyncio.Task[Any] | None:
        self.noted.append("drop")
        return None


class Feature(CanLayerCalls):
    """Lays a layer around every call."""

    def __init__(self, layer: Callable[[Call], CallLayer]) -> None:
        self.layer = layer

    def open(self, call: Call, batch: Admission) -> CallLayer:
        return self.layer(call)


@pytest.fixture
def lay_around(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Call], CallLayer]], None]:
    """Return a function that adds a layer inside of those that executions need."""
    usual = standard_layers.standard_features

    def add(layer: Callable[[Call], CallLayer]) -> None:
        def with_layer(*args: Any) -> standard_layers.Features:
            features = usual(*args)
            return evolve(features, inside=(*features.inside, Feature(layer)))

        monkeypatch.setattr(standard_layers, "standard_features", with_layer)

    return add


@tool(effect="effect")
async def half(number: int) -> float:
    """Half a number."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    await asyncio.sleep(number)
    return number / 2


def run_calls(bench: ExecutorBench) -> ToolExecutions:
    """Run calls of which one succeeds, one fails, one has wrong arguments and one has no tool."""
    numbers = ["4", "3", '"x"']
    calls = [ToolCall(f"c{number}", "half", f'{{"number": {number}}}') for number in numbers]
    return run_in_virtual_time(bench.run(*calls, ToolCall("c9", "quarter", "{}")))


def test_a_layer_has_the_hooks_that_its_class_overrides() -> None:
    """A layer without hooks has none and wraps no tool; one that acts around the tool gets a task for its call."""

    class Admits(CallLayer):
        async def admit(self) -> None: ...

    class Uses(Admits):
        async def use(self, proceed: UseTool) -> Any:
            return await proceed()

    assert (CallLayer().hooks, CallLayer().wraps_tool) == (frozenset(), False)
    assert (Admits().hooks, Admits().wraps_tool) == (frozenset({"admit"}), False)
    assert (Uses().hooks, Uses().wraps_tool) == (frozenset({"admit", "use"}), True)


def test_a_layer_that_passes_everything_on_changes_nothing(
    lay_around: Callable[[Callable[[Call], CallLayer]], None],
) -> None:
    """Outcomes and events of a batch are the same with the layer as without it."""
    plain, layered = ExecutorBench([half]), ExecutorBench([half])
    expected, noted = run_calls(plain), dict[str, list[str]]()
    lay_around(lambda call: PassesOn(noted.setdefault(call.call.id, [])))
    assert run_calls(layered) == expected
    assert layered.events == plain.events
    tried = ["admit", "run", "around", "attempt", "use", "bind"]
    assert noted["c4"] == [*tried, "end", "settle"]
    assert noted["c3"] == [*tried, "disowns", "end", "settle"]
    assert noted['c"x"'] == noted["c9"] == ["end", "settle"]


def test_a_layer_is_asked_how_a_call_ends_that_is_cut_off(
    lay_around: Callable[[Callable[[Call], CallLayer]], None],
) -> None:
    """A cancelled batch asks what a call did before and how it ends, and settles it like any other call."""
    noted: list[str] = []
    lay_around(lambda _: PassesOn(noted))

    async def run() -> None:
        bench = ExecutorBench([half])
        task = asyncio.create_task(bench.run(ToolCall("c1", "half", '{"number": 4}')))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()

    run_in_virtual_time(run())
    assert noted == ["admit", "run", "around", "attempt", "use", "bind", "unrun", "cut", "end", "settle"]


def test_an_error_of_a_layer_before_the_attempt_interrupts_the_batch(
    lay_around: Callable[[Callable[[Call], CallLayer]], None],
) -> None:
    """What a layer raises before its tool runs is no outcome of the tool: every call is settled, and the error is raised."""

    class Refuses(CallLayer):
        async def attempt(self, proceed: Attempt) -> ToolExecution:
            raise OSError("the disk is full")

    lay_around(lambda _: Refuses())
    bench = ExecutorBench([half])
    with pytest.raises(Exception, match="the disk is full") as caught:
        run_calls(bench)
    executions = caught.value.executions.executions  # type: ignore[attr-defined]
    assert [execution.status for execution in executions] == ["failed", "failed", "rejected", "rejected"]
    assert not any(execution.may_have_run for execution in executions)


def test_a_disowned_error_is_no_outcome_of_the_call(lay_around: Callable[[Callable[[Call], CallLayer]], None]) -> None:
    """An error of a tool that a layer disowns interrupts the batch, as if a layer had raised it."""

    class Disowns(CallLayer):
        def disowns(self, error: BaseException) -> bool:
            return isinstance(error, ValueError)

    lay_around(lambda _: Disowns())
    with pytest.raises(Exception, match="3 is odd") as caught:
        run_calls(ExecutorBench([half]))
    assert isinstance(caught.value.__cause__, ValueError)


async def test_an_outcome_that_was_replaced_meanwhile_stays() -> None:
    """A layer that takes long to note an end does not undo what others have made of the outcome in the meantime."""
    noting = asyncio.Event()

    class Notes(CallLayer):
        async def end(self, outcome: CallOutcome) -> CallOutcome:
            await noting.wait()
            return outcome

    call = Call(step_number=1, index=0, key="run/1/0", id="e1", call=ToolCall("c1", "half", "{}"), layers=(Notes(),))
    ending = asyncio.create_task(call.end())
    await asyncio.sleep(0)
    call.outcome = masked = evolve(call.outcome, may_have_run=True)
    noting.set()
    await ending
    assert call.outcome is masked
