"""No secret leaves by HTTP: neither one that the journal was told about, nor a key that an agent has."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from agentloop import AgentLoop, tool
from agentloop.contracts import CanInfer
from agentloop.durable import MemoryJournal, Redaction
from agentloop.interception import RequireApproval
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Reasoning, Text, ToolCall
from agentloop.values.json import thaw
from agentloop.values.secrets import Secret
from tests.service.server.front import DEADLINE, all_events, serving, settled, start

KEY = "declared-secret-8812"


class TalkativeModel(CanInfer):
    """Writes its key in pieces when it may, calls a tool with it, and writes it again.

    Args:
        key: its key.
        pieces: what it writes.
    """

    def __init__(self, key: Secret | None, pieces: Sequence[str]) -> None:
        self.key = key
        self.pieces = pieces
        self.gate = asyncio.Event()

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        raise NotImplementedError  # the loops of these tests stream

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        await self.gate.wait()
        for kind in ("reasoning", "text"):
            for piece in self.pieces:
                yield InferenceDelta(kind, piece)
        text = "".join(self.pieces)
        calls = () if request.messages[-1].exchanges else (ToolCall("1", "repeat", json.dumps({"text": text})),)
        yield InferenceResponse((Reasoning(text), Text(text), *calls))


@tool(effect="pure")
def repeat(text: str) -> dict[str, str]:
    """Repeat a text in several spellings."""
    if text.endswith("!"):
        raise ValueError(f"401 for Bearer {text}")
    return {
        "plain": text,
        "url": quote(text, safe=""),
        "hex": text.encode().hex(),
        "b64": b64encode(text.encode()).decode(),
    }


def _agent(
    pieces: Sequence[str], *, key: Secret | None, declared: Sequence[str], **options: Any
) -> tuple[AgentLoop, TalkativeModel]:
    model = TalkativeModel(key, pieces)
    loop = AgentLoop.for_model(
        model, tools=[repeat], journal=MemoryJournal(secrets=declared), streaming=True, **options
    )
    return loop, model


async def _raw_stream(client: httpx.AsyncClient, path: str, begun: asyncio.Event) -> str:
    """Return all that a stream sends until its end."""
    text = ""
    async with client.stream("GET", path) as response:
        async for chunk in response.aiter_text():
            text += chunk
            begun.set()
    return text


async def _all_exits(client: httpx.AsyncClient, model: TalkativeModel, name: str) -> dict[str, str]:
    """Run an execution that is followed in all ways, and return what came out of each."""
    await start(client, id=name)
    path = f"/executions/ada:{name}"
    streams = {exit_: asyncio.Event() for exit_ in ("events", "events?format=ag-ui", "trace/events")}
    following = {
        exit_: asyncio.create_task(_raw_stream(client, f"{path}/{exit_}", begun)) for exit_, begun in streams.items()
    }
    async with asyncio.timeout(DEADLINE):
        for begun in streams.values():
            await begun.wait()
        model.gate.set()
        await settled(client, f"ada:{name}")
        found = {exit_: await task for exit_, task in following.items()}
    for exit_ in ("", "/state", "/trace", "/events", "/events?format=ag-ui", f"/trace/comparison?with=ada:{name}"):
        found[f"GET {exit_}"] = (await client.get(path + exit_)).text
    found["list"] = (await client.get("/executions")).text
    found["fork"] = (await client.post(f"{path}/forks", json={"at_step": 1})).text
    return found


_CUTS = [
    ["the key is ", KEY, ", no more"],
    ["the key is ", *KEY, ""],
    *[["so ", KEY[:place], KEY[place:], "."] for place in (1, 4, 10, len(KEY) - 1)],
    ["a", KEY],
    [KEY[:10], KEY[10:] + "!"],
    ["in Base64 ", *b64encode(f"u:{KEY}".encode()).decode(), " and ", *KEY.encode().hex()],
    [f"{KEY[:5]}{KEY[:5]}", KEY[5:] + KEY[:7]],
]


@pytest.mark.parametrize("pieces", _CUTS, ids=range(len(_CUTS)))
@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "the key of the agent"])
async def test_no_answer_and_no_event_has_a_secret(pieces: list[str], *, is_declared: bool) -> None:
    """Wherever a model cuts its text: deltas, AG-UI, traces, states, lists and forks hold the secret in no spelling."""
    key, declared = (None, [KEY]) if is_declared else (Secret(KEY), [])
    loop, model = _agent(pieces, key=key, declared=declared)
    redaction = Redaction([KEY])
    async with serving(loop) as client:
        found = await _all_exits(client, model, "talk")
    for name, text in found.items():
        assert redaction.mask_document(text) == text, name
        # The pieces of a text, put together as a client does.
        events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
        for member in ("text", "delta"):
            whole = "".join([event[member] for event in events if isinstance(event.get(member), str)])
            assert redaction.mask_document(whole) == whole, (name, member)
    assert '"text_delta"' in found["events"]
    assert "***" in found["events"]
    assert "TEXT_MESSAGE_CONTENT" in found["events?format=ag-ui"]


async def test_a_text_over_ag_ui_is_written_once_although_a_part_is_masked() -> None:
    """The masked pieces and the masked record are one message."""
    loop, model = _agent(["the key is ", KEY[:4], KEY[4:], ", no more"], key=None, declared=[KEY])
    async with serving(loop) as client:
        found = await _all_exits(client, model, "talk")
    for name in ("events?format=ag-ui", "GET /events?format=ag-ui"):
        events = [
            json.loads(line.removeprefix("data: ")) for line in found[name].splitlines() if line.startswith("data: ")
        ]
        written = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
        assert "".join(written) == "the key is ***, no more" * 2
        assert [event["type"] for event in events].count("TEXT_MESSAGE_START") == 2


async def test_without_secrets_deltas_are_the_pieces_of_the_model() -> None:
    """Where nothing is masked, nothing is held back."""
    pieces = ["the ", "key", " is ", KEY, ""]
    loop, model = _agent(pieces, key=None, declared=[])
    async with serving(loop) as client:
        found = await _all_exits(client, model, "talk")
    events = [
        json.loads(line.removeprefix("data: ")) for line in found["events"].splitlines() if line.startswith("data: ")
    ]
    deltas = [event["text"] for event in events if event["type"] == "text_delta" and event["step"] == 1]
    assert deltas == pieces


async def test_a_refusal_names_no_secret() -> None:
    """The text of a problem can quote the arguments of a call."""
    loop, model = _agent(["pay ", KEY], key=Secret(KEY), declared=[], interceptors=[RequireApproval("repeat")])
    model.gate.set()
    async with serving(loop) as client:
        await start(client, id="bill")
        [call] = (await settled(client, "ada:bill"))["pending"]
        assert "***" in call["arguments"]
        body = {"decisions": {call["key"]: {"kind": "approve", "digest": "0" * 64}}}
        refused = await client.post("/executions/ada:bill/decisions", json=body)
        assert refused.status_code == 409
        assert KEY not in refused.text
        # The digest of the pending call is that of the call as it is, which runs.
        body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
        assert (await client.post("/executions/ada:bill/decisions", json=body)).status_code == 200
        assert (await settled(client, "ada:bill"))["status"] == "completed"
        events = await all_events(client, "/executions/ada:bill/events")
        assert not [event for event in events if KEY in json.dumps(event.data)]
    outcome = (await loop.journal.state("ada:bill")).steps[0].executions[0]  # type: ignore[union-attr]  # a MemoryJournal
    assert thaw(outcome.value)["plain"] == f"pay {KEY}"
