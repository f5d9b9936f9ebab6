"""Inferences that call the scripted provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from agentloop.contracts import ExecutionScope
from agentloop.contracts.can_infer import FailedAttempt
from agentloop.contracts.execution_scope import Resources
from agentloop.models import HttpInference, LLMConfig
from agentloop.values import InferenceRequest, Message
from agentloop.values.policies import RetryPolicy
from tests.models.loopback import KEY, Loopback

NO_WAIT = RetryPolicy(initial_wait=0)
QUESTION = InferenceRequest((Message.user("How are you?"),))


def config_for(server: Loopback | str, **settings: Any) -> LLMConfig:
    """Return a configuration for the server, with retries that do not wait."""
    url = server if isinstance(server, str) else server.url
    return LLMConfig.parse("openai:loopback", base_url=url, api_key=KEY, **{"retry": NO_WAIT, **settings})


def inference_for(server: Loopback | str, *, client: Any = None, **settings: Any) -> HttpInference:
    """Return an inference that calls the server."""
    return HttpInference(config_for(server, **settings), client=client, jitter=lambda: 0.0)


def reporting_to(attempts: list[FailedAttempt], inference: HttpInference) -> HttpInference:
    """Return a copy of the inference that appends failed attempts to a list."""
    return inference.with_retry_report(attempts.append)


@asynccontextmanager
async def client_signaling_heads(received: asyncio.Event) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client that sets the event when it receives the head of a response."""

    async def signal(_: httpx.Response) -> None:
        received.set()

    async with httpx.AsyncClient(event_hooks={"response": [signal]}) as client:
        yield client


@asynccontextmanager
async def bound(*inferences: HttpInference) -> AsyncIterator[Sequence[HttpInference]]:
    """Bind inferences to one execution scope of a loop, both of which are closed on exit."""
    resources = Resources()
    scope = ExecutionScope(local_resources=resources, shared_resources=resources, kept_resources=resources)
    try:
        yield [inference.with_execution_scope(scope) for inference in inferences]
    finally:
        await resources.aclose()
