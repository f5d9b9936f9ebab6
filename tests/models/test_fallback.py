"""Tests of `FallbackInference`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.contracts.can_infer import FailedAttempt
from agentloop.errors import BadRequest, ConfigurationError, InvalidResponse, RateLimited
from agentloop.events import InferenceRetried
from agentloop.models import FallbackInference, ScriptedInference
from agentloop.models.connections import close_idle_connections
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse
from tests.models.loopback import loopback, respond_json, respond_text
from tests.models.loopback_inference import QUESTION, bound, inference_for


class FailsWhileStreaming(CanInfer):
    """Streams one word and fails."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        raise InvalidResponse("broken")

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        yield InferenceDelta("text", "so")
        raise InvalidResponse("broken")


async def test_the_next_model_is_called_when_one_fails() -> None:
    """The first success counts, and each failure before it is reported together with the next model."""
    reports: list[FailedAttempt] = []
    models = FallbackInference(
        [ScriptedInference(RateLimited("later")), FailsWhileStreaming(), ScriptedInference("here")]
    )
    response = await models.with_retry_report(reports.append).infer(QUESTION)
    assert response.text == "here"
    assert [(failed.attempt, str(failed.error)) for failed in reports] == [(1, "later"), (2, "broken")]
    assert reports[1].instead == "ScriptedInference(1 line)"


async def test_when_all_models_fail_the_last_error_has_the_others_as_notes() -> None:
    """No error is lost when all models fail."""
    models = FallbackInference([ScriptedInference(RateLimited("later")), FailsWhileStreaming()])
    with pytest.raises(InvalidResponse, match="broken") as caught:
        await models.infer(QUESTION)
    assert caught.value.__notes__ == ["model 1 of 2 failed before: RateLimited: later"]


async def test_only_the_listed_errors_cause_a_fallback() -> None:
    """An error that `on` does not list is raised at once."""
    models = FallbackInference([ScriptedInference(BadRequest("wrong")), ScriptedInference("never")], on=(RateLimited,))
    with pytest.raises(BadRequest):
        await models.infer(QUESTION)


async def test_a_stream_without_a_report_falls_back_before_its_first_delta_only() -> None:
    """An error after the first delta is raised, since a consumer has already seen part of the response."""
    models = FallbackInference([ScriptedInference(RateLimited("later")), ScriptedInference("a b")])
    *deltas, response = [item async for item in models.stream(QUESTION)]
    assert [delta.text for delta in deltas if isinstance(delta, InferenceDelta)] == ["a ", "b"]
    assert isinstance(response, InferenceResponse)
    streamed = []
    with pytest.raises(InvalidResponse):  # noqa: PT012  # the delta before the error matters
        async for item in FallbackInference([FailsWhileStreaming(), ScriptedInference("never")]).stream(QUESTION):
            streamed.append(item)  # noqa: PERF401  # a comprehension would lose the items before the error
    assert streamed == [InferenceDelta("text", "so")]


async def test_a_stream_with_a_report_falls_back_after_deltas() -> None:
    """The report tells the consumer to discard the deltas so far."""
    attempts: list[FailedAttempt] = []
    models = FallbackInference([FailsWhileStreaming(), ScriptedInference("b")]).with_retry_report(attempts.append)
    *_, response = [item async for item in models.stream(QUESTION)]
    assert isinstance(response, InferenceResponse)
    assert (response.text, [type(attempt.error) for attempt in attempts]) == ("b", [InvalidResponse])


async def test_models_are_bound_to_the_execution_and_fallbacks_are_events() -> None:
    """In a loop, the connections of all models are idle after the execution, and `InferenceRetried` names the next model."""
    events: list[InferenceRetried] = []
    async with loopback(respond_json(400, {})) as broken, loopback(respond_text("from the second")) as server:
        models = FallbackInference([inference_for(broken), inference_for(server)])
        loop = AgentLoop(ToolCallingDriver(models))
        loop.on(InferenceRetried, events.append)
        assert (await loop.execute("hello?")).final_text == "from the second"
        await close_idle_connections()
        await broken.all_closed()
        await server.all_closed()
    assert [(event.attempt, event.error.type) for event in events] == [(1, "BadRequest")]
    assert "loopback" in events[0].instead


async def test_bound_models_share_connections() -> None:
    """Binding a fallback binds all of its models."""
    async with loopback(respond_text("a"), respond_text("b")) as server, bound(inference_for(server)) as (inference,):
        models = FallbackInference([inference])
        await models.infer(QUESTION)
        await models.infer(QUESTION)
        assert server.connections == 1


def test_no_models_and_objects_that_are_not_inferences_are_refused() -> None:
    """Construction raises for an empty list and for an item that is not an inference."""
    with pytest.raises(ConfigurationError, match="at least one"):
        FallbackInference([])
    with pytest.raises(TypeError, match="'gpt' is not an inference"):
        FallbackInference(["gpt"])  # type: ignore[list-item]
