"""Tests of recording responses to a file and replaying them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.errors import ConfigurationError, ContractViolation, RateLimited
from agentloop.models import (
    FallbackInference,
    HttpInference,
    LLMConfig,
    RecordingInference,
    ReplayInference,
    ScriptedInference,
)
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Message, ToolCall
from tests.models.chat_stream import stream_text
from tests.models.loopback import KEY, loopback, respond_text
from tests.models.loopback_inference import QUESTION, inference_for


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def question(text: str) -> InferenceRequest:
    """Return a request with this question."""
    return InferenceRequest((Message.user(text),))


async def test_a_recorded_run_can_be_replayed_without_a_model(tmp_path: Path) -> None:
    """A loop over the recording makes the same calls and returns the same answer."""
    script = ScriptedInference([ToolCall("1", "add", '{"a": 1, "b": 2}')], "It is 3.")
    path = tmp_path / "run.json"
    recorded = await AgentLoop(ToolCallingDriver(RecordingInference(script, path)), [add]).execute("1 + 2?")
    replay = ReplayInference(path)
    replayed = await AgentLoop(ToolCallingDriver(replay), [add]).execute("1 + 2?")
    assert replayed.final_text == recorded.final_text == "It is 3."
    assert [step.executions[0].value for step in replayed.steps[:1]] == [3]
    assert repr(replay).endswith("0 of 2 responses left)")


async def test_the_file_can_be_read_and_edited_by_hand(tmp_path: Path) -> None:
    """The documents are indented JSON, and an edited response is returned as edited."""
    path = tmp_path / "run.json"
    recording = RecordingInference(ScriptedInference("Grüße", "zwei"), path)
    await recording.infer(question("a"))
    await recording.infer(question("b"))
    text = path.read_text()
    assert '"text": "Grüße"' in text
    path.write_text(text.replace("Grüße", "edited"))
    replay = ReplayInference(path)
    assert (await replay.infer(question("b"))).text == "zwei"
    assert (await replay.infer(question("a"))).text == "edited"


async def test_keys_and_named_secrets_are_not_written(tmp_path: Path) -> None:
    """Neither the key of the model nor a named secret is written to the file."""
    path = tmp_path / "run.json"
    async with loopback(respond_text(f'your key is {KEY}, the word is open"sesame')) as server:
        models = FallbackInference([inference_for(server)])
        await RecordingInference(models, path, secrets=['open"sesame']).infer(question('open"sesame?'))
    text = path.read_text()
    assert KEY not in text
    assert "sesame" not in text
    assert json.loads(text)["response"]["value"]["parts"]


@pytest.mark.parametrize("key", ["text", "ollama", "id", "type"])
async def test_a_key_that_is_a_common_word_leaves_the_file_valid(tmp_path: Path, key: str) -> None:
    """A short key is masked in texts only, so that the structure of the file is intact."""
    path = tmp_path / "run.json"
    async with loopback(respond_text(f"<{key}>")) as server:
        inference = HttpInference(LLMConfig.parse("openai:ollama-text", base_url=server.url, api_key=key))
        await RecordingInference(inference, path).infer(question("?"))
    replay = ReplayInference(path)
    assert replay.model_name.endswith("ollama-text")
    assert (await replay.infer(question("?"))).text == "<***>"


async def test_keys_in_headers_are_not_written(tmp_path: Path) -> None:
    """Keys in headers are masked, also when one recording wraps another."""
    secret = "hdr-0123456789"
    async with loopback(respond_text(f"you sent {secret}")) as server:
        inference = inference_for(server, headers={"Authorization": f"Bearer {secret}"})
        inner = RecordingInference(inference, tmp_path / "inner.json")
        await RecordingInference(inner, tmp_path / "outer.json").infer(question("?"))
    assert secret not in (tmp_path / "inner.json").read_text()
    assert secret not in (tmp_path / "outer.json").read_text()


async def test_streamed_responses_are_recorded_when_they_are_complete(tmp_path: Path) -> None:
    """A stream passes through unchanged, and its complete response is recorded."""
    path = tmp_path / "run.json"
    async with loopback(stream_text("Hel", "lo")) as server:
        *deltas, response = [item async for item in RecordingInference(inference_for(server), path).stream(QUESTION)]
        assert [delta.text for delta in deltas if isinstance(delta, InferenceDelta)] == ["Hel", "lo"]
    *deltas, replayed = [item async for item in ReplayInference(path).stream(QUESTION)]
    assert (replayed, len(deltas)) == (response, 1)
    assert isinstance(replayed, InferenceResponse)


async def test_failures_are_not_recorded(tmp_path: Path) -> None:
    """An error is raised unchanged, and no file is created."""
    path = tmp_path / "run.json"
    with pytest.raises(RateLimited):
        await RecordingInference(ScriptedInference(RateLimited("later")), path).infer(QUESTION)
    assert not path.exists()


async def test_the_error_for_an_unrecorded_request_names_the_first_difference(tmp_path: Path) -> None:
    """The error says where the request differs from the next recorded one."""
    path = tmp_path / "run.json"
    await RecordingInference(ScriptedInference("yes"), path).infer(question("a"))
    replay = ReplayInference(path)
    with pytest.raises(ContractViolation, match=r'differs at request.*text: "a" was recorded, "b" is requested'):
        await replay.infer(question("b"))
    await replay.infer(question("a"))
    with pytest.raises(ContractViolation, match="all 1 responses"):
        await replay.infer(question("a"))


async def test_responses_can_be_replayed_in_order_whatever_the_requests_are(tmp_path: Path) -> None:
    """With `in_order=True`, requests are not compared."""
    path = tmp_path / "run.json"
    await RecordingInference(ScriptedInference("yes"), path).infer(question("a"))
    assert (await ReplayInference(path, in_order=True).infer(question("b"))).text == "yes"


@pytest.mark.parametrize("text", ["{", "[]", '{"request": {}}', '{"request": {}, "response": {"kind": "Nothing"}}'])
def test_a_file_that_is_not_a_recording_is_refused(tmp_path: Path, text: str) -> None:
    """The error names file, exchange and line."""
    path = tmp_path / "run.json"
    path.write_text(f"\n\n{text}")
    with pytest.raises(ConfigurationError, match=r"run\.json, exchange 1, line 3: not a recorded exchange"):
        ReplayInference(path)
