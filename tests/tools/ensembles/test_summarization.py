"""Condensed texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import ScriptedInference
from agentloop.tools.ensembles.summarization import condense, key_sentences, summarization, summarization_by
from agentloop.values import InferenceRequest, Message, ToolStatus
from tests.tools.ensembles.running import called

TEXT = (
    "The bridge across the river was closed today. Engineers found cracks in the bridge. "
    "My aunt likes marmalade. Repairs of the bridge across the river will take a month."
)


def test_the_most_telling_sentences_are_chosen_in_their_order() -> None:
    """Those that share words with the rest; an aside is left out."""
    assert condense(TEXT, 2) == (
        "The bridge across the river was closed today. Repairs of the bridge across the river will take a month."
    )
    assert "marmalade" not in condense(TEXT, 3)


@given(
    st.lists(st.text(alphabet="abcde fg", min_size=1, max_size=30).filter(str.strip), max_size=12), st.integers(1, 5)
)
def test_every_sentence_stands_in_the_text(parts: list[str], most: int) -> None:
    """Nothing is rewritten, nothing is moved, and there are no more than asked for."""
    sentences = [" ".join(f"{part}.".split()) for part in parts]
    chosen = key_sentences(" ".join(sentences), most)
    assert len(chosen) == min(most, len(sentences))
    rest = iter(sentences)
    assert all(one in rest for one in chosen)


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
def test_sentences_are_told_apart(text: str, sentences: list[str]) -> None:
    """At full stops followed by space, at empty lines, and at the full stops of scripts without spaces."""
    assert key_sentences(text, 100) == sentences


async def test_a_model_uses_it() -> None:
    """Through a loop."""
    assert (await called([summarization()], "condense", text=TEXT, sentences=1)).value == condense(TEXT, 1)


async def test_the_program_may_give_another_way() -> None:
    """A plain function, or an async one that asks a model; an empty summary is a failure."""
    model = ScriptedInference("Short.")

    async def ask(text: str, sentences: int) -> str:
        question = Message.user(f"Summarize in {sentences} sentences: {text}")
        return (await model.infer(InferenceRequest(messages=(question,)))).text

    assert (await called([summarization_by(ask)], "condense", text=TEXT, sentences=2)).value == "Short."
    assert "Summarize in 2 sentences" in model.requests[0].messages[0].text
    assert (await called([summarization_by(lambda text, most: text[:most])], "condense", text=TEXT)).value == "The b"
    failed = await called([summarization_by(lambda text, most: " ")], "condense", text=TEXT)
    assert (failed.status, failed.error_message) == (ToolStatus.FAILED, "no summary came of the text")
