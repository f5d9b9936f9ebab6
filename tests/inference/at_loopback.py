"""Asking the scripted provider: short words for what most tests of inference do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from agentloop.contracts import ExecutionScope, FailedAttempt, Resources
from agentloop.inference import HttpInference, LLMConfig, Patience
from agentloop.values import InferenceRequest, Message
from tests.inference.loopback import KEY, Loopback

QUICK = Patience(first_wait=0)
QUESTION = InferenceRequest((Message.user("How are you?"),))


def config_for(server: Loopback | str, **settings: Any) -> LLMConfig:
    """Configure a model at the server, to be asked again without waiting."""
    url = server if isinstance(server, str) else server.url
    return LLMConfig.parse("openai:loopback", base_url=url, api_key=KEY, **{"patience": QUICK, **settings})


def inference_for(server: Loopback | str, *, client: Any = None, **settings: Any) -> HttpInference:
    """Make an inference that asks the server."""
    return HttpInference(config_for(server, **settings), client=client, jitter=lambda: 0.0)


def reporting_to(attempts: list[FailedAttempt], inference: HttpInference) -> HttpInference:
    """Have failed attempts noted in a list."""
    return inference.with_retry_report(attempts.append)


@asynccontextmanager
async def heads_noted(begun: asyncio.Event) -> AsyncIterator[httpx.AsyncClient]:
    """Make a client that tells when the head of an answer has come."""

    async def note(_: httpx.Response) -> None:
        begun.set()

    async with httpx.AsyncClient(event_hooks={"response": [note]}) as client:
        yield client


@asynccontextmanager
async def bound(*inferences: HttpInference) -> AsyncIterator[Sequence[HttpInference]]:
    """Bind inferences to one execution scope, which is closed at the end."""
    resources = Resources()
    scope = ExecutionScope(own=resources, shared=resources)
    try:
        yield [inference.with_execution_scope(scope) for inference in inferences]
    finally:
        await resources.aclose()
