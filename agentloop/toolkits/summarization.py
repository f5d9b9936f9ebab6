"""A toolkit that condenses texts: by choosing their key sentences, or by a function of the program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from itertools import chain
from typing import Annotated, TypeAlias

from agentloop.errors import ToolFailed
from agentloop.toolkits.ensemble import Ensemble, ensemble_factory
from agentloop.tools.constraints import Range
from agentloop.tools.decorator import tool

Summarize: TypeAlias = Callable[[str, int], Awaitable[str] | str]
"""A function, plain or async, from a text and the maximum number of sentences to a summary; it may call a model."""

_MAX_CHARACTERS = 1_000_000
_MIN_WORD_LENGTH = 4
_REPETITION_FACTOR = 0.3
_SENTENCE_END = re.compile(
    "(?<=[.!?\u2026])\\s+"
    "|(?<=[.!?\u2026][\"')\\]\u201d\u2019])\\s+"  # after a sentence in quotes or brackets
    "|(?<=[\u3002\uff01\uff1f])\\s*"  # full stops of Chinese and Japanese, after which there is no space
    "|\n\\s*\n"
)
_WORD = re.compile(r"\w+")

LongText: TypeAlias = Annotated[str, "the text to condense", Range(max_length=_MAX_CHARACTERS)]
Sentences: TypeAlias = Annotated[int, "maximum number of sentences of the summary", Range(ge=1, le=100)]


def key_sentences(text: str, max_sentences: int) -> list[str]:
    """Return the sentences that share the most words with the rest of the text, in the order of the text.

    The score of a sentence is the number of times its words of four or more letters occur elsewhere, per word. A sentence
    that repeats a chosen one counts for less. Sentences are quoted, not rewritten, so a reference may have lost its target.

    Args:
        text: the text.
        max_sentences: the maximum number of sentences.
    """
    sentences = [sentence for part in _SENTENCE_END.split(text) if (sentence := " ".join(part.split()))]
    if len(sentences) <= max_sentences:
        return sentences
    words = [
        [word for word in _WORD.findall(sentence.lower()) if len(word) >= _MIN_WORD_LENGTH] for sentence in sentences
    ]
    weights: dict[str, float] = {word: count - 1.0 for word, count in Counter(chain(*words)).items()}
    chosen: list[int] = []
    remaining = set(range(len(sentences)))
    while remaining and len(chosen) < max_sentences:
        best = max(remaining, key=lambda index: (_score(words[index], weights), -index))
        chosen.append(best)
        remaining.remove(best)
        for word in set(words[best]):
            weights[word] *= _REPETITION_FACTOR
    return [sentences[index] for index in sorted(chosen)]


def _score(words: list[str], weights: Mapping[str, float]) -> float:
    # The constant keeps very short sentences from winning by a single frequent word.
    return sum(weights[word] for word in words) / (len(words) + 3) if words else 0.0


@tool(effect="pure")
def condense(text: LongText, sentences: Sentences = 5) -> str:
    """Shorten a long text to its key sentences, word for word and in their order."""
    return " ".join(key_sentences(text, sentences))


@ensemble_factory
def summarization() -> Ensemble:
    """Create an ensemble that condenses texts by choosing sentences."""
    return Ensemble("summarization", [condense], description="Texts made shorter by choosing their sentences.")


def summarization_by(summarize: Summarize) -> Ensemble:
    """Create an ensemble that condenses texts by a function of the program.

    Args:
        summarize: returns a summary of the text with at most this number of sentences.
    """

    async def condense(text: LongText, sentences: Sentences = 5) -> str:
        """Shorten a long text to a summary of a few sentences."""
        outcome = summarize(text, sentences)
        summary = await outcome if isawaitable(outcome) else outcome
        if not str(summary).strip():
            raise ToolFailed("the summary is empty")
        return str(summary)

    return Ensemble("summarization", [tool(effect="pure")(condense)], description="Texts made shorter.")
