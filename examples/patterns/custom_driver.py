"""A driver of your own: it decides what a step does; states, tools, interceptors and events are those of the loop."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from agentloop import AgentLoop, Driver, Message, ToolCall, tool
from agentloop.drivers import StepDraft
from agentloop.values import InferenceResponse, ResponsePart, Text


@tool(effect="pure")
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@frozen(kw_only=True)
class Counting(Driver):
    """Counts the words of each line of the question, without any model."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        last = messages[-1]
        if last.exchanges:
            counts = [exchange.execution.text for exchange in last.exchanges]
            parts: tuple[ResponsePart, ...] = (Text(f"words: {', '.join(counts)}"),)
        else:
            lines = last.text.splitlines()
            parts = tuple([ToolCall("", "count_words").with_arguments({"text": line}) for line in lines])
        draft.add_response(InferenceResponse(parts))
        return parts


loop = AgentLoop(Counting(), [count_words], max_steps=3)
loop.wiretap(lambda event: print(event.sequence, type(event).__name__))
print(loop.execute_sync("a lamp of the sea\nand a rug").final_text)
