"""Tests of the limits of a model, which all agents of a process share."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import httpx
import pytest
from attrs import define, field

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.contracts.can_infer import DelayedRequest
from agentloop.errors import ConfigurationError, ProviderUnavailable, RateLimited
from agentloop.events import InferenceDelayed
from agentloop.models import FallbackInference, HttpInference, LLMConfig, ModelLimits, RecordingInference
from agentloop.testing import run_in_virtual_time
from agentloop.values import InferenceOptions, InferenceRequest, Message
from agentloop.values.policies import RetryPolicy
from tests.limits import LONGEST
from tests.models.chat_stream import stream_text
from tests.models.loopback import completion, loopback, respond_text
from tests.models.loopback_inference import NO_WAIT, QUESTION

FINE = completion("fine")


@define
class Provider:
    """A provider in virtual time, with the times and the tokens of its requests.

    Attributes:
        seconds: how long a request takes.
        tokens: the usage that it reports; None for none.
        replies: the status and the headers of the first responses; all others are fine.
    """

    seconds: float = 0.0
    tokens: int | None = None
    replies: list[tuple[int, Mapping[str, str]]] = field(factory=list)
    times: list[float] = field(factory=list)
    questions: list[str] = field(factory=list)
    running: int = 0
    most_running: int = 0

    async def _respond(self, request: httpx.Request) -> httpx.Response:
        self.times.append(asyncio.get_running_loop().time())
        self.questions.append(json.loads(request.content)["messages"][-1]["content"])
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.replies:
            status, headers = self.replies.pop(0)
            return httpx.Response(status, headers=dict(headers), content=b"{}")
        body = json.loads(FINE)
        body["usage"] = None
        if self.tokens is not None:
            body["usage"] = {"prompt_tokens": self.tokens - 1, "completion_tokens": 1, "total_tokens": self.tokens}
        return httpx.Response(200, json=body)

    def inference(self, limits: ModelLimits | None, model: str = "openai:m", **settings: Any) -> HttpInference:
        """Return an inference of its own, as each agent has one."""
        settings = {"retry": NO_WAIT, "base_url": "http://provider", "api_key": "k", **settings}
        config = LLMConfig.parse(model, limits=limits, **settings)
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._respond))
        return HttpInference(config, client=client, jitter=lambda: 1.0)

    def most_in(self, seconds: float) -> int:
        """Return the most requests in any span of this length."""
        return max(sum(start <= other < start + seconds for other in self.times) for start in self.times)


def ask(text: str, **options: Any) -> InferenceRequest:
    """Return a request."""
    return InferenceRequest((Message.user(text),), options=InferenceOptions(**options))


async def gather_agents(provider: Provider, count: int, limits: ModelLimits, **settings: Any) -> None:
    """Run this many agents at once, each with a loop of its own."""
    loops = [AgentLoop(ToolCallingDriver(provider.inference(limits, **settings))) for _ in range(count)]
    states = await asyncio.gather(*[loop.execute(f"question {n}") for n, loop in enumerate(loops)])
    assert {state.final_text for state in states} == {"fine"}


def test_a_hundred_agents_never_exceed_the_requests_per_minute() -> None:
    """In any 60 seconds, there are as many requests as allowed, and they are sent in the order of arrival."""
    provider = Provider(seconds=1)
    run_in_virtual_time(gather_agents(provider, 100, ModelLimits(requests_per_minute=30)))
    assert (len(provider.times), provider.most_in(60)) == (100, 30)
    assert provider.times[-1] == 180
    assert provider.questions == [f"question {n}" for n in range(100)]


def test_a_hundred_agents_never_exceed_the_concurrency() -> None:
    """A request starts when another one ends."""
    provider = Provider(seconds=2)
    run_in_virtual_time(gather_agents(provider, 100, ModelLimits(concurrency=7)))
    assert provider.most_running == 7
    assert provider.times[-1] == 2 * (100 // 7)


def test_a_hundred_agents_never_exceed_the_tokens_per_minute() -> None:
    """Requests count with their reported usage, which is far above the estimate here."""
    provider = Provider(seconds=1, tokens=100)
    run_in_virtual_time(gather_agents(provider, 100, ModelLimits(tokens_per_minute=1000, concurrency=1)))
    assert provider.most_in(60) == 10


def test_an_estimate_that_was_too_high_is_corrected() -> None:
    """`max_tokens` is reserved until the usage is known; without a usage it remains reserved."""

    async def run(tokens: int | None) -> Sequence[float]:
        provider = Provider(tokens=tokens)
        inference = provider.inference(ModelLimits(tokens_per_minute=1000))
        for _ in range(3):
            await inference.infer(ask("hello?", max_tokens=900))
        return provider.times

    assert run_in_virtual_time(run(20)) == [0, 0, 0]
    assert run_in_virtual_time(run(None)) == [0, 60, 120]


def test_a_correction_lets_those_who_wait_go_on() -> None:
    """The second request need not wait for the minute of the first one's estimate."""
    provider = Provider(seconds=5, tokens=20)

    async def run() -> None:
        inference = provider.inference(ModelLimits(tokens_per_minute=1000))
        await asyncio.gather(*[inference.infer(ask("hello?", max_tokens=900)) for _ in range(2)])

    run_in_virtual_time(run())
    assert provider.times == [0, 5]


def test_a_request_above_the_limit_of_tokens_is_sent_alone() -> None:
    """It waits until the minute is free, and is not refused: the provider decides."""
    provider = Provider()

    async def run() -> None:
        inference = provider.inference(ModelLimits(tokens_per_minute=1000))
        await inference.infer(ask("small"))
        await inference.infer(ask("big " * 4000))
        await inference.infer(ask("small"))

    run_in_virtual_time(run())
    assert provider.times == [0, 60, 120]


def test_a_request_to_wait_pauses_all_who_share_the_limit() -> None:
    """The error of one agent saves the others from the same error."""
    provider = Provider(seconds=1, replies=[(429, {"retry-after": "20"})])

    async def run() -> None:
        limits = ModelLimits(concurrency=10)
        first = asyncio.create_task(provider.inference(limits).infer(ask("first")))
        await asyncio.sleep(5)
        await asyncio.gather(first, *[provider.inference(limits).infer(ask("other")) for _ in range(3)])

    run_in_virtual_time(run())
    assert provider.times == [0, 21, 21, 21, 21]


@pytest.mark.parametrize("waits_already", [True, False])
def test_a_pause_above_the_longest_wait_is_an_error_for_all(*, waits_already: bool) -> None:
    """An agent that finds the model paused for longer than it may wait raises at once."""
    provider = Provider(seconds=1, replies=[(429, {"retry-after": "3600"})])

    async def run() -> float:
        limits = ModelLimits(concurrency=1)
        first = asyncio.create_task(provider.inference(limits).infer(QUESTION))
        await asyncio.sleep(0 if waits_already else 10)
        with pytest.raises(RateLimited, match=r"asked another request to wait 3\d{3} seconds") as caught:
            await provider.inference(limits).infer(QUESTION)
        assert caught.value.retry_after == (3600 if waits_already else 3591)
        with pytest.raises(RateLimited):
            await first
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == (1 if waits_already else 10)
    assert len(provider.times) == 1


def test_a_paused_model_is_left_for_the_next_one() -> None:
    """A fallback needs no request to find out that a model is paused."""
    paused, other = Provider(replies=[(429, {"retry-after": "3600"})]), Provider()

    async def run() -> None:
        models = [paused.inference(ModelLimits(), "openai:a"), other.inference(ModelLimits(), "openai:b")]
        for _ in range(3):
            await FallbackInference(models).infer(QUESTION)

    run_in_virtual_time(run())
    assert (len(paused.times), len(other.times)) == (1, 3)


def test_failed_attempts_count_and_wait_again() -> None:
    """Each attempt is a request; the wait between attempts holds no place."""
    provider = Provider(replies=[(503, {}), (503, {})])

    async def run() -> None:
        retry = RetryPolicy(max_attempts=3, initial_wait=1)
        await provider.inference(ModelLimits(requests_per_minute=2), retry=retry).infer(QUESTION)

    run_in_virtual_time(run())
    assert provider.times == [0, 1, 60]


def test_a_cancelled_wait_makes_room_for_the_next() -> None:
    """A request that is cancelled while it waits, or while it runs, holds up nobody."""
    provider = Provider(seconds=100)

    async def run() -> float:
        limits = ModelLimits(concurrency=1)
        tasks = [asyncio.create_task(provider.inference(limits).infer(ask(str(n)))) for n in range(4)]
        await asyncio.sleep(10)
        tasks[1].cancel()
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [True, True, False, False]
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == 210
    assert provider.questions == ["0", "2", "3"]


@pytest.mark.parametrize(("deadline", "ended"), [(30, 30), (None, 60), (float("inf"), 60)])
def test_a_wait_counts_against_the_deadline_of_the_configuration(deadline: float | None, ended: float) -> None:
    """It does not count against the bounds of a loop, as the waits between attempts do not."""
    provider = Provider()

    async def run() -> float:
        inference = provider.inference(ModelLimits(requests_per_minute=1), deadline=deadline)
        await inference.infer(QUESTION)
        if ended < 60:
            with pytest.raises(ProviderUnavailable, match="within 30 seconds; raise deadline"):
                await inference.infer(QUESTION)
        else:
            await inference.infer(QUESTION)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == ended


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_stream_holds_its_place_until_its_end(*, is_read: bool) -> None:
    """The next request starts when the stream ends, or is closed before its end."""
    async with loopback(stream_text("a", "b", "c"), respond_text("other")) as server:
        config = LLMConfig.parse("openai:m", base_url=server.url, api_key="k", limits=ModelLimits(concurrency=1))
        stream = HttpInference(config).stream(QUESTION)
        await anext(stream)
        waits = asyncio.Event()
        reporting = HttpInference(config).with_delay_report(lambda _: waits.set())
        other = asyncio.create_task(reporting.infer(QUESTION))
        await waits.wait()
        assert len(server.requests) == 1
        if is_read:
            assert [item async for item in stream]
        await stream.aclose()
        assert (await other).text == "other"


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_user_sees_that_a_request_waits(tmp_path: Path, *, is_recorded: bool) -> None:
    """An event tells the reason, the requests ahead and the time, if that is known; also while the run is recorded."""
    provider = Provider()
    seen: list[tuple[str, int, float]] = []

    def inference() -> CanInfer:
        model = provider.inference(ModelLimits(requests_per_minute=2))
        return RecordingInference(model, tmp_path / "run.json") if is_recorded else model

    async def run() -> None:
        loops = [AgentLoop(ToolCallingDriver(inference())) for _ in range(4)]
        for loop in loops:
            loop.on(InferenceDelayed, lambda event: seen.append((event.reason, event.ahead, event.delay)))
        await asyncio.gather(*[loop.execute("hello?") for loop in loops])

    run_in_virtual_time(run())
    assert seen == [("2 requests per minute", 0, 60.0), ("2 requests per minute", 1, 0.0)]


def test_each_reason_is_reported() -> None:
    """A limit, a pause and earlier requests are told apart; nothing is reported without a wait."""
    reports: list[DelayedRequest] = []
    provider = Provider(seconds=1)

    async def infer(**limits: Any) -> None:
        await provider.inference(ModelLimits(**limits)).with_delay_report(reports.append).infer(QUESTION)

    async def run() -> None:
        await infer(tokens_per_minute=20)
        await asyncio.gather(infer(concurrency=1), infer(concurrency=1), infer())
        provider.replies.append((429, {"retry-after": "5"}))
        with pytest.raises(RateLimited):
            await provider.inference(ModelLimits(), retry=RetryPolicy(max_attempts=1)).infer(QUESTION)
        await infer()
        await infer(tokens_per_minute=20)

    run_in_virtual_time(run())
    assert reports == [
        DelayedRequest("1 request at once", 0, 0.0),
        DelayedRequest("earlier requests", 1, 0.0),
        DelayedRequest("a pause that the provider asked for", 0, 5.0),
        DelayedRequest("20 tokens per minute", 0, reports[-1].delay),
    ]


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        ({}, {}, True),
        ({}, {"model": "openai:other"}, False),
        ({}, {"api_key": "other"}, False),
        ({}, {"base_url": "http://other"}, False),
        ({"shared_as": "tier 1"}, {"shared_as": "tier 1", "model": "openai:other"}, True),
    ],
)
def test_an_account_belongs_to_a_model_at_an_address_with_a_key(
    first: dict[str, str], second: dict[str, str], *, is_shared: bool
) -> None:
    """A name makes several models share one account."""
    provider = Provider()

    async def run() -> None:
        for settings in (first, second):
            limits = ModelLimits(requests_per_minute=1, shared_as=settings.pop("shared_as", ""))
            await provider.inference(limits, **settings).infer(QUESTION)

    run_in_virtual_time(run())
    assert provider.times == [0, 60 if is_shared else 0]


def test_each_configuration_has_its_own_limits_on_the_common_account() -> None:
    """A background agent may leave room for others."""
    provider = Provider()

    async def run() -> None:
        for _ in range(3):
            await provider.inference(ModelLimits(requests_per_minute=10)).infer(ask("foreground"))
        await provider.inference(ModelLimits(requests_per_minute=2)).infer(ask("background"))

    run_in_virtual_time(run())
    assert provider.times == [0, 0, 0, 60]


async def never_a_key(asked: asyncio.Event) -> str:
    """Set the event, and let the request wait for its key."""
    asked.set()
    await asyncio.Event().wait()
    raise AssertionError


async def test_event_loops_in_threads_share_the_limits() -> None:
    """A request of an event loop in another thread waits for one of this loop, and is awakened by its end."""
    asked, waits = asyncio.Event(), threading.Event()
    async with loopback(respond_text("one")) as server:
        limits = ModelLimits(concurrency=1, shared_as="threads")
        config = LLMConfig.parse("openai:m", base_url=server.url, api_key="k", limits=limits)
        holder = asyncio.create_task(
            HttpInference(config.with_settings(api_key=partial(never_a_key, asked))).infer(QUESTION)
        )
        await asked.wait()
        reporting = HttpInference(config).with_delay_report(lambda _: waits.set())
        other = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(reporting.infer(QUESTION))))
        assert await asyncio.to_thread(waits.wait, LONGEST)
        assert not server.requests
        holder.cancel()
        assert (await other).text == "one"


async def test_a_stopped_event_loop_holds_up_nobody() -> None:
    """A request that waits in an event loop that was stopped is passed over, and waits again when the loop goes on."""
    asked = asyncio.Event()
    async with loopback(respond_text("one"), respond_text("two")) as server:
        limits = ModelLimits(concurrency=1, shared_as="stopped loop")
        config = LLMConfig.parse("openai:m", base_url=server.url, api_key="k", limits=limits)
        holder = asyncio.create_task(
            HttpInference(config.with_settings(api_key=partial(never_a_key, asked))).infer(QUESTION)
        )
        await asked.wait()
        with closing(asyncio.new_event_loop()) as stopped:

            def start_and_stop() -> asyncio.Task[Any]:
                reporting = HttpInference(config).with_delay_report(lambda _: stopped.stop())
                task = stopped.create_task(reporting.infer(QUESTION))
                stopped.run_forever()
                return task

            task = await asyncio.to_thread(start_and_stop)
            holder.cancel()
            assert (await HttpInference(config).infer(QUESTION)).text == "one"
            assert (await asyncio.to_thread(stopped.run_until_complete, task)).text == "two"


def test_accounts_that_are_as_good_as_new_are_removed() -> None:
    """A program that makes a key for each of its users does not keep an account of each of them."""
    provider = Provider()
    limits = ModelLimits(requests_per_minute=1)
    keys: WeakSet[Any] = WeakSet()

    async def infer() -> None:
        async def key() -> str:
            return "k"

        keys.add(key)
        await provider.inference(limits, api_key=key).infer(QUESTION)

    async def run() -> int:
        for _ in range(1100):
            await infer()
            await asyncio.sleep(1)
        gc.collect()
        return len(keys)

    assert run_in_virtual_time(run()) < 200


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "60"])
@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute", "concurrency"])
def test_an_invalid_limit_is_refused(name: str, value: Any) -> None:
    """The error names the limit."""
    with pytest.raises((TypeError, ValueError), match=name):
        ModelLimits(**{name: value})


def test_limits_of_another_type_are_refused() -> None:
    """The error names the class to use."""
    with pytest.raises(ConfigurationError, match="the limits of LLMConfig has to be a ModelLimits"):
        LLMConfig.parse("ollama:m", limits={"requests_per_minute": 1})
