"""Several models behind one inference."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.contracts import CanInfer, FailedAttempt
from agentloop.errors import BadRequest, ConfigurationError, InvalidResponse, RateLimited
from agentloop.events import InferenceRetried
from agentloop.inference import FallbackInference, ScriptedInference
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse
from tests.inference.loopback import loopback, respond_json, respond_text
from tests.inference.loopback_inference import QUESTION, bound, inference_for


class Breaks(CanInfer):
    """Says one word and fails."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        raise InvalidResponse("broken")

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        yield InferenceDelta("text", "so")
        raise InvalidResponse("broken")


async def test_the_next_model_is_asked_when_one_fails() -> None:
    """The first answer counts, and each failure before it is told with what is asked instead."""
    told: list[FailedAttempt] = []
    models = FallbackInference([ScriptedInference(RateLimited("later")), Breaks(), ScriptedInference("here")])
    response = await models.with_retry_report(told.append).infer(QUESTION)
    assert response.text == "here"
    assert [(failed.attempt, str(failed.error)) for failed in told] == [(1, "later"), (2, "broken")]
    assert told[1].instead == "ScriptedInference(1 lines)"


async def test_when_all_fail_the_last_error_tells_of_those_before() -> None:
    """Nothing of what went wrong is lost."""
    models = FallbackInference([ScriptedInference(RateLimited("later")), Breaks()])
    with pytest.raises(InvalidResponse, match="broken") as caught:
        await models.infer(QUESTION)
    assert caught.value.__notes__ == ["model 1 of 2 failed before: RateLimited: later"]


async def test_only_the_errors_that_are_named_lead_to_the_next_model() -> None:
    """A request that is wrong is not repeated elsewhere, if that is what was asked for."""
    models = FallbackInference([ScriptedInference(BadRequest("wrong")), ScriptedInference("never")], on=(RateLimited,))
    with pytest.raises(BadRequest):
        await models.infer(QUESTION)


async def test_a_stream_falls_back_before_its_first_piece_only() -> None:
    """What a reader has seen cannot be taken back."""
    models = FallbackInference([ScriptedInference(RateLimited("later")), ScriptedInference("a b")])
    *deltas, response = [piece async for piece in models.stream(QUESTION)]
    assert [delta.text for delta in deltas if isinstance(delta, InferenceDelta)] == ["a ", "b"]
    assert isinstance(response, InferenceResponse)
    told = []
    with pytest.raises(InvalidResponse):  # noqa: PT012  # the piece before the error is the point
        async for piece in FallbackInference([Breaks(), ScriptedInference("never")]).stream(QUESTION):
            told.append(piece)  # noqa: PERF401  # a comprehension would lose what came before the error
    assert told == [InferenceDelta("text", "so")]


async def test_models_are_bound_to_the_execution_and_their_changes_are_events() -> None:
    """In a loop, connections are the execution's, and `InferenceRetried` tells what is asked instead."""
    events: list[InferenceRetried] = []
    async with loopback(respond_json(400, {})) as broken, loopback(respond_text("from the second")) as server:
        models = FallbackInference([inference_for(broken), inference_for(server)])
        loop = AgentLoop(ToolCallingDriver(models))
        loop.on(InferenceRetried, events.append)
        assert (await loop.execute("hello?")).final_text == "from the second"
        await broken.all_closed()
        await server.all_closed()
    assert [(event.attempt, event.error.type) for event in events] == [(1, "BadRequest")]
    assert "loopback" in events[0].instead


async def test_bound_models_share_connections() -> None:
    """Binding binds every model."""
    async with loopback(respond_text("a"), respond_text("b")) as server, bound(inference_for(server)) as (inference,):
        models = FallbackInference([inference])
        await models.infer(QUESTION)
        await models.infer(QUESTION)
        assert server.connections == 1


def test_no_models_and_things_that_are_none_are_refused() -> None:
    """What cannot be asked is told at once."""
    with pytest.raises(ConfigurationError, match="at least one"):
        FallbackInference([])
    with pytest.raises(TypeError, match="'gpt' is not an inference"):
        FallbackInference(["gpt"])  # type: ignore[list-item]
