"""Replays: unchanged code does not diverge, and a replay has no side effects."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from agentloop import Interceptor, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.durable import MemoryJournal, replay
from agentloop.errors import UnknownExecution
from agentloop.interception import BeforeStep
from agentloop.toolkits import Ensemble
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse
from tests.durable.replaying.bench import Ledger, loop_of, record_run, tools


class UnreachableModel(CanInfer):
    """A model that must not be called."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Fail."""
        raise AssertionError(f"a replay called a model: {request!r:.100}")

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Fail."""
        yield await self.infer(request)


async def test_unchanged_code_does_not_diverge() -> None:
    """Every step, inference and call is compared and equal; no model is called and no tool runs."""
    journal, ledger = await record_run(), Ledger()
    before = await journal.read("run")
    result = await replay(journal, "run", loop_of(driver=ToolCallingDriver(UnreachableModel()), ledger=ledger))
    assert result.divergence is None, result.explain()
    assert (result.is_complete, result.end_reason, result.steps, result.inferences, result.calls) == (True, "", 4, 4, 4)
    assert ledger.done == []
    assert await journal.read("run") == before


async def test_listeners_of_the_loop_receive_no_events() -> None:
    """A replay emits no events to the listeners of the loop."""
    journal, loop = await record_run(), loop_of()
    seen: list[object] = []
    loop.wiretap(seen.append)
    assert (await replay(journal, "run", loop)).is_equal
    assert seen == []


async def test_a_replay_starts_no_group() -> None:
    """The tools of a group are those of the record, so that nothing has to be there for them."""
    started: list[str] = []

    def group() -> Ensemble:
        return Ensemble("orders", tools(Ledger()), start=lambda: started.append("started"))

    journal = await record_run(tool_list=[group()])
    assert started == ["started"]
    result = await replay(journal, "run", loop_of(tool_list=[group()]))
    assert result.is_equal, result.explain()
    assert started == ["started"]


async def test_an_unknown_execution_is_refused() -> None:
    """Replaying an execution without a record raises `UnknownExecution`."""
    with pytest.raises(UnknownExecution):
        await replay(MemoryJournal(), "run", loop_of())


async def test_interceptors_run_again() -> None:
    """Changes by interceptors are not recorded separately: interceptors run again in a replay, and produce the same states."""

    class Counts(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(steps=point.state.step_count))

    journal = await record_run(interceptors=[Counts()])
    state = await journal.state("run")
    assert state.context.metadata["steps"] == 3
    result = await replay(journal, "run", loop_of(interceptors=[Counts()]))
    assert result.is_equal, result.explain()
