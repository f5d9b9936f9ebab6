"""Replays: unchanged code shows no divergence, and nothing of the world is touched."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from agentloop import Interceptor, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.errors import UnknownExecution
from agentloop.interception import BeforeStep
from agentloop.journal import MemoryJournal
from agentloop.replay import replay
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse
from tests.replay.bench import Ledger, loop_of, recorded


class Untouchable(CanInfer):
    """A model that must not be asked."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Fail."""
        raise AssertionError(f"a replay has asked a model: {request!r:.100}")

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Fail."""
        yield await self.infer(request)


async def test_unchanged_code_shows_no_divergence() -> None:
    """Every step, inference and call is compared, and none differs; no model is asked and no tool runs."""
    journal, ledger = await recorded(), Ledger()
    before = await journal.read("run")
    found = await replay(journal, "run", loop_of(driver=ToolCallingDriver(Untouchable()), ledger=ledger))
    assert found.divergence is None, found.explain()
    assert (found.is_complete, found.end_reason, found.steps, found.inferences, found.calls) == (True, "", 4, 4, 4)
    assert ledger.done == []
    assert await journal.read("run") == before


async def test_listeners_of_the_loop_are_told_nothing() -> None:
    """Nobody who counts runs counts a replay."""
    journal, loop = await recorded(), loop_of()
    seen: list[object] = []
    loop.wiretap(seen.append)
    assert (await replay(journal, "run", loop)).is_equal
    assert seen == []


async def test_an_unknown_execution_is_refused() -> None:
    """There has to be a record."""
    with pytest.raises(UnknownExecution):
        await replay(MemoryJournal(), "run", loop_of())


async def test_what_interceptors_make_of_a_run_is_made_again() -> None:
    """Their changes are not recorded as such: they do their work again, and come to the same."""

    class Counts(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(steps=point.state.step_count))

    journal = await recorded(interceptors=[Counts()])
    state = await journal.state("run")
    assert state.context.metadata["steps"] == 3
    found = await replay(journal, "run", loop_of(interceptors=[Counts()]))
    assert found.is_equal, found.explain()
