"""Inferences written to a file, and answered from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.errors import ConfigurationError, ContractViolation, RateLimited
from agentloop.inference import (
    FallbackInference,
    HttpInference,
    LLMConfig,
    RecordingInference,
    ReplayInference,
    ScriptedInference,
)
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Message, ToolCall
from tests.inference.chat_stream import stream_text
from tests.inference.loopback import KEY, loopback, respond_text
from tests.inference.loopback_inference import QUESTION, inference_for


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def asked(text: str) -> InferenceRequest:
    """Ask this."""
    return InferenceRequest((Message.user(text),))


async def test_a_recorded_run_can_be_replayed_without_a_model(tmp_path: Path) -> None:
    """A loop over the recording makes the same calls and gives the same answer, and asks nobody."""
    script = ScriptedInference([ToolCall("1", "add", '{"a": 1, "b": 2}')], "It is 3.")
    path = tmp_path / "run.json"
    recorded = await AgentLoop(ToolCallingDriver(RecordingInference(script, path)), [add]).execute("1 + 2?")
    again = ReplayInference(path)
    replayed = await AgentLoop(ToolCallingDriver(again), [add]).execute("1 + 2?")
    assert replayed.final_text == recorded.final_text == "It is 3."
    assert [step.executions[0].value for step in replayed.steps[:1]] == [3]
    assert repr(again).endswith("0 of 2 responses left)")


async def test_a_person_can_read_and_edit_the_file(tmp_path: Path) -> None:
    """The documents are indented JSON, one after the other, and what is changed in them is what is answered."""
    path = tmp_path / "run.json"
    recording = RecordingInference(ScriptedInference("Grüße", "zwei"), path)
    await recording.infer(asked("a"))
    await recording.infer(asked("b"))
    text = path.read_text()
    assert '"text": "Grüße"' in text
    path.write_text(text.replace("Grüße", "edited"))
    replay = ReplayInference(path)
    assert (await replay.infer(asked("b"))).text == "zwei"
    assert (await replay.infer(asked("a"))).text == "edited"


async def test_keys_and_named_secrets_are_not_written(tmp_path: Path) -> None:
    """Neither the key of the model nor a text that is declared secret gets into the file."""
    path = tmp_path / "run.json"
    async with loopback(respond_text(f'your key is {KEY}, the word is open"sesame')) as server:
        models = FallbackInference([inference_for(server)])
        await RecordingInference(models, path, secrets=['open"sesame']).infer(asked('open"sesame?'))
    text = path.read_text()
    assert KEY not in text
    assert "sesame" not in text
    assert json.loads(text)["response"]["value"]["parts"]


@pytest.mark.parametrize("key", ["text", "ollama", "id", "type"])
async def test_a_key_that_is_an_everyday_word_leaves_the_file_readable(tmp_path: Path, key: str) -> None:
    """Local servers take any word as a key: it is taken out of what was said, and the form of the file stays."""
    path = tmp_path / "run.json"
    async with loopback(respond_text(f"<{key}>")) as server:
        asking = HttpInference(LLMConfig.parse("openai:ollama-text", base_url=server.url, api_key=key))
        await RecordingInference(asking, path).infer(asked("?"))
    replay = ReplayInference(path)
    assert replay.model_name.endswith("ollama-text")
    assert (await replay.infer(asked("?"))).text == "<***>"


async def test_keys_in_headers_are_not_written(tmp_path: Path) -> None:
    """A header that carries a key, and a model that is recorded twice, keep it out of both files."""
    secret = "hdr-0123456789"
    async with loopback(respond_text(f"you sent {secret}")) as server:
        asking = inference_for(server, headers={"Authorization": f"Bearer {secret}"})
        inner = RecordingInference(asking, tmp_path / "inner.json")
        await RecordingInference(inner, tmp_path / "outer.json").infer(asked("?"))
    assert secret not in (tmp_path / "inner.json").read_text()
    assert secret not in (tmp_path / "outer.json").read_text()


async def test_streamed_answers_are_recorded_when_they_are_whole(tmp_path: Path) -> None:
    """A stream passes through piece by piece, and its response is written down."""
    path = tmp_path / "run.json"
    async with loopback(stream_text("Hel", "lo")) as server:
        *deltas, response = [piece async for piece in RecordingInference(inference_for(server), path).stream(QUESTION)]
        assert [delta.text for delta in deltas if isinstance(delta, InferenceDelta)] == ["Hel", "lo"]
    *pieces, replayed = [piece async for piece in ReplayInference(path).stream(QUESTION)]
    assert (replayed, len(pieces)) == (response, 1)
    assert isinstance(replayed, InferenceResponse)


async def test_what_failed_is_not_written(tmp_path: Path) -> None:
    """An error passes through, and leaves no file."""
    path = tmp_path / "run.json"
    with pytest.raises(RateLimited):
        await RecordingInference(ScriptedInference(RateLimited("later")), path).infer(QUESTION)
    assert not path.exists()


async def test_a_request_that_was_not_recorded_is_told_with_its_first_difference(tmp_path: Path) -> None:
    """Today's code asks something else: the error says where."""
    path = tmp_path / "run.json"
    await RecordingInference(ScriptedInference("yes"), path).infer(asked("a"))
    replay = ReplayInference(path)
    with pytest.raises(ContractViolation, match=r'differs at request.*text: "a" was recorded, "b" is requested'):
        await replay.infer(asked("b"))
    await replay.infer(asked("a"))
    with pytest.raises(ContractViolation, match="all 1 responses"):
        await replay.infer(asked("a"))


async def test_answers_can_be_given_in_order_whatever_is_asked(tmp_path: Path) -> None:
    """A prompt that is being worked on can be run against old answers."""
    path = tmp_path / "run.json"
    await RecordingInference(ScriptedInference("yes"), path).infer(asked("a"))
    assert (await ReplayInference(path, in_order=True).infer(asked("b"))).text == "yes"


@pytest.mark.parametrize("text", ["{", "[]", '{"request": {}}', '{"request": {}, "response": {"kind": "Nothing"}}'])
def test_a_file_that_is_no_recording_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    """The error names file, exchange and line."""
    path = tmp_path / "run.json"
    path.write_text(f"\n\n{text}")
    with pytest.raises(ConfigurationError, match=r"run\.json, exchange 1, line 3: not a recorded exchange"):
        ReplayInference(path)
