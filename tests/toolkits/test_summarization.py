"""The summarization toolkit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import ScriptedInference
from agentloop.toolkits.summarization import condense, key_sentences, summarization, summarization_by
from agentloop.values import InferenceRequest, Message, ToolStatus
from tests.toolkits.running import run_call

TEXT = (
    "The bridge across the river was closed today. Engineers found cracks in the bridge. "
    "My aunt likes marmalade. Repairs of the bridge across the river will take a month."
)


def test_key_sentences_are_chosen_in_their_order() -> None:
    """The chosen sentences share words with the rest of the text; an aside is left out."""
    assert condense(TEXT, 2) == (
        "The bridge across the river was closed today. Repairs of the bridge across the river will take a month."
    )
    assert "marmalade" not in condense(TEXT, 3)


@given(
    st.lists(st.text(alphabet="abcde fg", min_size=1, max_size=30).filter(str.strip), max_size=12), st.integers(1, 5)
)
def test_sentences_are_quoted_in_order(parts: list[str], max_sentences: int) -> None:
    """Sentences are not rewritten or reordered, and there are no more than the maximum."""
    sentences = [" ".join(f"{part}.".split()) for part in parts]
    chosen = key_sentences(" ".join(sentences), max_sentences)
    assert len(chosen) == min(max_sentences, len(sentences))
    remaining = iter(sentences)
    assert all(sentence in remaining for sentence in chosen)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("One", ["One"]),
        ("Is it? It is! Well…  Yes.", ["Is it?", "It is!", "Well…", "Yes."]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        ("Version 1.5 is out. Good.", ["Version 1.5 is out.", "Good."]),
        ("A title\n\nA text\nof two lines.", ["A title", "A text of two lines."]),
        ("今日は晴れ。明日は雨。", ["今日は晴れ。", "明日は雨。"]),
    ],
)
def test_texts_are_split_into_sentences(text: str, sentences: list[str]) -> None:
    """Sentences end at a full stop before a space, at an empty line, and at the full stops of scripts without spaces."""
    assert key_sentences(text, 100) == sentences


async def test_a_model_condenses_a_text() -> None:
    """The tool works in a loop."""
    assert (await run_call([summarization()], "condense", text=TEXT, sentences=1)).value == condense(TEXT, 1)


async def test_the_program_can_summarize() -> None:
    """The function is plain or async, such as a call of a model; an empty summary is a failure."""
    model = ScriptedInference("Short.")

    async def summarize(text: str, sentences: int) -> str:
        question = Message.user(f"Summarize in {sentences} sentences: {text}")
        return (await model.infer(InferenceRequest(messages=(question,)))).text

    assert (await run_call([summarization_by(summarize)], "condense", text=TEXT, sentences=2)).value == "Short."
    assert "Summarize in 2 sentences" in model.requests[0].messages[0].text
    assert (
        await run_call([summarization_by(lambda text, max_sentences: text[:max_sentences])], "condense", text=TEXT)
    ).value == "The b"
    failed = await run_call([summarization_by(lambda text, max_sentences: " ")], "condense", text=TEXT)
    assert (failed.status, failed.error_message) == (ToolStatus.FAILED, "the summary is empty")
