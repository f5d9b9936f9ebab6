"""A hundred agents at once share the rate limit of one model; here in virtual time, so that minutes take no time."""

from __future__ import annotations

import asyncio
import json

import httpx

from agentloop import AgentLoop, HttpInference, LLMConfig
from agentloop.events import InferenceDelayed
from agentloop.models import ModelLimits
from agentloop.testing import run_in_virtual_time

LIMITS = ModelLimits(requests_per_minute=40, tokens_per_minute=50_000, concurrency=8)
ANSWER = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}], "usage": {"total_tokens": 12}}
counts = {"now": 0, "most": 0}


async def respond(_: httpx.Request) -> httpx.Response:
    """Stand for the provider: answer after two seconds."""
    counts["now"] += 1
    counts["most"] = max(counts.values())
    await asyncio.sleep(2)
    counts["now"] -= 1
    return httpx.Response(200, content=json.dumps(ANSWER))


async def main() -> None:
    config = LLMConfig.parse("openai:gpt-4.1-mini", api_key="-", limits=LIMITS)
    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
        loop = AgentLoop.for_model(HttpInference(config, client=client))
        delayed: list[InferenceDelayed] = []
        loop.on(InferenceDelayed, delayed.append)
        start = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*[loop.run(f"Is {number} a number?") for number in range(100)])
        minutes = (asyncio.get_running_loop().time() - start) / 60
    print(f"{len(answers)} answers in {minutes:.1f} minutes, at most {counts['most']} requests at once")
    print(f"{len(delayed)} requests had to wait")


if __name__ == "__main__":
    run_in_virtual_time(main())
