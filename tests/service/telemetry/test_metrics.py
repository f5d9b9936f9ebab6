"""The metrics of executions."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, tool
from agentloop.values import InferenceResponse, Text, Usage
from tests.service.telemetry.observed import Watch

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "unknown", "gen_ai.response.model": "scripted"}


@tool(effect="pure")
def broken() -> str:
    """Fail."""
    raise ValueError("no")


@tool(effect="pure")
def fine() -> str:
    """Succeed."""
    return "yes"


async def test_tokens_are_counted_by_kind() -> None:
    """Each inference adds to the histogram of its kind of token, and to the counters; unknown counts are left out."""
    usage = Usage(100, 20, cached_input_tokens=40, cache_write_tokens=0, reasoning_tokens=7)
    watch = Watch()
    loop = watch.observe(AgentLoop.for_model(ScriptedInference("One.", usage=usage)))
    await loop.execute("Go.")
    await watch.observe(AgentLoop.for_model(ScriptedInference("One.", usage=Usage()))).execute("Go.")
    assert watch.metric("gen_ai.client.token.usage") == [
        ({**CHAT, "gen_ai.token.type": "input"}, 100, 1),
        ({**CHAT, "gen_ai.token.type": "output"}, 20, 1),
    ]
    counters = {"input": 100, "output": 20, "cache_read.input": 40, "reasoning.output": 7}
    for name, count in counters.items():
        found = watch.metric(f"gen_ai.client.inference.usage.{name}_tokens")
        assert found == [({**CHAT, "gen_ai.token.modality": "unknown"}, count, 0)], name
    assert watch.metric("gen_ai.client.inference.usage.cache_write.input_tokens") == []


async def test_durations_are_those_of_the_spans() -> None:
    """The metrics of inferences, calls and executions have the sums of their spans, with the type of an error."""
    watch = Watch(agent_name="shop")
    calls = [ToolCall("1", "broken"), ToolCall("2", "fine"), ToolCall("3", "fine")]
    await watch.observe(AgentLoop.for_model(ScriptedInference(calls, "Done."), tools=[broken, fine])).execute("Go.")

    def seconds(name: str) -> Any:
        return pytest.approx(sum((span.end_time or 0) - (span.start_time or 0) for span in watch.named(name)) / 1e9)

    labels: dict[str, Any] = {"gen_ai.operation.name": "execute_tool", "gen_ai.agent.name": "shop"}
    found = {
        labels["gen_ai.tool.name"]: (labels, total, count)
        for labels, total, count in watch.metric("gen_ai.execute_tool.duration")
    }
    broken_labels = {**labels, "gen_ai.tool.name": "broken", "error.type": "ValueError"}
    assert found["broken"] == (broken_labels, seconds("execute_tool broken"), 1)
    assert found["fine"] == ({**labels, "gen_ai.tool.name": "fine"}, seconds("execute_tool fine"), 2)
    ((chat, total, count),) = watch.metric("gen_ai.client.operation.duration")
    assert (chat, total, count) == (CHAT, seconds("chat"), 2)
    ((agent, total, count),) = watch.metric("gen_ai.invoke_agent.duration")
    assert (agent, total, count) == ({"gen_ai.agent.name": "shop"}, seconds("invoke_agent shop"), 1)


async def test_the_time_to_the_first_chunk_is_measured_for_streams_alone() -> None:
    """A streamed inference has one measurement, however many chunks it has."""
    watch = Watch()
    for streaming in (False, True):
        loop = AgentLoop.for_model(ScriptedInference("One two three."), streaming=streaming)
        await watch.observe(loop).execute("Go.")
    ((_, seconds, count),) = watch.metric("gen_ai.client.operation.time_to_first_chunk")
    assert (count, seconds >= 0) == (1, True)


async def test_what_was_not_asked_is_not_counted() -> None:
    """An answer of an interceptor costs no tokens, and calls that did not run have no duration."""

    class Answering(Interceptor):
        def before_inference(self, point: Any) -> Any:
            if len(point.request.messages) > 1:
                return point.answer(InferenceResponse((Text("Hello."),), usage=Usage(5, 5)))
            return point

        def before_tool_use(self, point: Any) -> Any:
            return point.block("no")

    watch = Watch()
    model = ScriptedInference(ToolCall("1", "fine"))
    await watch.observe(AgentLoop.for_model(model, tools=[fine], interceptors=[Answering()])).execute("Go.")
    assert [total for _, total, _ in watch.metric("gen_ai.client.token.usage")] == [10, 5]
    assert watch.metric("gen_ai.execute_tool.duration") == []
