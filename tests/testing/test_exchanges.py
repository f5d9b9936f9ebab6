"""Exchanges with providers over real sockets: with faults, recorded without secrets, and replayed without a network."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop
from agentloop.errors import ConfigurationError, ExecutionFailed, InvalidResponse, ProviderUnavailable
from agentloop.models import HttpInference, LLMConfig
from agentloop.testing import Fault, FaultPlan, faulty_client, recorded_exchanges, replayed_exchanges
from agentloop.values.policies import RetryPolicy
from tests.models.chat_stream import stream_text
from tests.models.loopback import KEY, Loopback, Reply, loopback, respond_json, respond_text
from tests.models.loopback_inference import QUESTION, config_for

ONCE = RetryPolicy(max_attempts=1)


async def ask(plan: FaultPlan, server: Loopback, **settings: Any) -> str:
    async with faulty_client(plan) as client:
        return (await HttpInference(config_for(server, **settings), client=client).infer(QUESTION)).text


async def test_an_answer_is_cut_after_some_bytes() -> None:
    """The client sees a connection that closes in the middle of a body."""
    async with loopback(respond_text("hello")) as server:
        plan = FaultPlan(Fault.cut(size=20))
        with pytest.raises(InvalidResponse, match="broke off"):
            await ask(plan, server, retry=ONCE)
        plan.assert_complete()


@pytest.mark.parametrize(("when", "requests"), [("before", 0), ("after", 1)])
async def test_a_connection_drops(when: Any, requests: int) -> None:
    """Before the request the server sees nothing; after it the server has answered, and nobody knows."""
    async with loopback(respond_text("hello")) as server:
        with pytest.raises(ProviderUnavailable):
            await ask(FaultPlan(Fault.drop("http", when=when)), server, retry=ONCE)
        assert len(server.requests) == requests


async def test_a_request_that_fails_once_is_sent_again() -> None:
    """Each attempt is a passage, so that the second one reaches the server."""
    async with loopback(respond_text("hello")) as server:
        plan = FaultPlan(Fault.drop("http", number=1))
        assert await ask(plan, server) == "hello"
        assert len(plan.occurred) == len(server.requests) == 1


async def test_a_request_hangs_until_the_timeout() -> None:
    """A hang is ended by the limits of the client."""
    async with loopback(respond_text("hello")) as server:
        with pytest.raises(ProviderUnavailable, match=r"no response from .* for 0.05 seconds"):
            await ask(FaultPlan(Fault.hang("http")), server, retry=ONCE, timeout=0.05)


async def converse(url: str, *, streaming: bool = False, key: str = KEY, question: str = "How are you?") -> str:
    config = LLMConfig.parse("openai:loopback", base_url=url, api_key=key, retry=ONCE)
    loop = AgentLoop.for_model(config, streaming=streaming)
    return await loop.run(question)


async def test_what_was_recorded_is_replayed_without_a_server(tmp_path: Path) -> None:
    """The recording has every request and answer, and serves them when nothing listens any more."""
    path = tmp_path / "exchanges" / "hello.json"
    async with loopback(respond_text("hello"), respond_text("again")) as server:
        url = server.url
        with recorded_exchanges(path):
            answers = [await converse(url), await converse(url, question="And now?")]
    with replayed_exchanges(path):
        assert [await converse(url, key="another"), await converse(url, question="And now?")] == answers
        with pytest.raises(Exception, match=r"all answers of .*hello\.json have been used") as raised:
            await converse(url)
    assert "ContractViolation" in repr((raised.value, raised.value.__cause__))


async def test_a_streamed_answer_is_replayed(tmp_path: Path) -> None:
    """Server-sent events are recorded as text and read again."""
    async with loopback(stream_text("hello there")) as server:
        url = server.url
        with recorded_exchanges(tmp_path / "stream.json"):
            answer = await converse(url, streaming=True)
    assert '"text": "data: {' in (tmp_path / "stream.json").read_text()
    with replayed_exchanges(tmp_path / "stream.json"):
        assert await converse(url, streaming=True) == answer == "hello there"


@pytest.mark.parametrize("reply", [respond_text(f"your key is {KEY}"), respond_json(401, {"error": {"message": KEY}})])
async def test_no_secret_is_recorded(tmp_path: Path, reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of the requests, and those of the environment, are masked wherever they occur; nobody else can read the file."""
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "t0p-secret-token")
    path = tmp_path / "secret.json"
    async with loopback(reply) as server:
        with recorded_exchanges(path), suppress(ExecutionFailed):  # the provider may refuse
            await converse(server.url, question=f"Is it {KEY} or t0p-secret-token?")
    text = path.read_text()
    assert KEY not in text
    assert "t0p-secret-token" not in text
    assert text.count("***") >= 3
    assert "authorization" not in text.lower()
    assert path.stat().st_mode & 0o077 == 0
    assert len(json.loads(text)["exchanges"]) == 1


@pytest.mark.parametrize("password", ["t0p-secret", "9876543210"])
async def test_a_request_whose_secret_was_masked_is_replayed(
    tmp_path: Path, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the secret is another one; what differs beside it is named."""
    monkeypatch.setenv("SHOP_PASSWORD", password)
    async with loopback(respond_text("hello")) as server:
        url = server.url
        with recorded_exchanges(tmp_path / "masked.json"):
            await converse(url, question=f"I am [Ada]?\nMy password is {password}.")
    with replayed_exchanges(tmp_path / "masked.json"):
        with pytest.raises(Exception, match=r"differs at request\.json\.messages\[0\]"):
            await converse(url, question="I am [Bob]?\nMy password is another.")
        assert await converse(url, question="I am [Ada]?\nMy password is another.") == "hello"


async def test_half_of_a_character_in_an_answer_is_recorded(tmp_path: Path) -> None:
    """The file has its escape, and the other exchanges."""
    async with loopback(respond_text("hello \ud83d")) as server:
        url = server.url
        with recorded_exchanges(tmp_path / "half.json"):
            answer = await converse(url)
    with replayed_exchanges(tmp_path / "half.json"):
        assert await converse(url) == answer == "hello \ud83d"


async def test_a_request_that_was_not_recorded_is_an_error_that_names_the_difference(tmp_path: Path) -> None:
    """A changed prompt does not get the answer to another one."""
    async with loopback(respond_text("hello")) as server:
        url = server.url
        with recorded_exchanges(tmp_path / "one.json"):
            await converse(url)
    with (
        replayed_exchanges(tmp_path / "one.json"),
        pytest.raises(Exception, match=r"differs at request\.json\.messages\[0\]"),
    ):
        await converse(url, question="Who are you?")


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    """A missing file and one of another form are named."""
    with (
        pytest.raises(ConfigurationError, match="is missing; record the exchanges"),
        replayed_exchanges(tmp_path / "no"),
    ):
        pass
    (tmp_path / "bad").write_text("[]")
    with (
        pytest.raises(ConfigurationError, match="is no file of recorded exchanges"),
        replayed_exchanges(tmp_path / "bad"),
    ):
        pass
