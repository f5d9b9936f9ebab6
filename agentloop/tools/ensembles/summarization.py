"""Condensing texts: by choosing their most telling sentences, or by whatever the program gives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from itertools import chain
from typing import Annotated, TypeAlias

from agentloop.errors import ToolFailed
from agentloop.tools.decorator import tool
from agentloop.tools.ensembles.ensemble import Ensemble, makes_ensemble
from agentloop.tools.schema import Bounds

Summarize: TypeAlias = Callable[[str, int], Awaitable[str] | str]
"""A function, plain or async, of a text and the most sentences of the answer; it may ask a model."""

_MOST_CHARACTERS = 1_000_000
_SHORTEST_WORD = 4
_SAID_ALREADY = 0.3
_SENTENCE_END = re.compile(
    "(?<=[.!?\u2026])\\s+"
    "|(?<=[.!?\u2026][\"')\\]\u201d\u2019])\\s+"  # after a sentence in quotes or brackets
    "|(?<=[\u3002\uff01\uff1f])\\s*"  # full stops of Chinese and Japanese, after which there is no space
    "|\n\\s*\n"
)
_WORD = re.compile(r"\w+")

LongText: TypeAlias = Annotated[str, "the text to condense", Bounds(max_length=_MOST_CHARACTERS)]
Sentences: TypeAlias = Annotated[int, "the most sentences of the summary", Bounds(ge=1, le=100)]


def key_sentences(text: str, most: int) -> list[str]:
    """Return the sentences that share most words with the rest of the text, in the order of the text.

    A sentence's score is how often its words of four letters and more come elsewhere, per word; one that says again what a chosen one
    says counts for less. Nothing is rewritten, so nothing is invented; what a sentence refers to may be missing.

    Args:
        text: the text.
        most: the most sentences.
    """
    sentences = [found for part in _SENTENCE_END.split(text) if (found := " ".join(part.split()))]
    if len(sentences) <= most:
        return sentences
    words = [[word for word in _WORD.findall(one.lower()) if len(word) >= _SHORTEST_WORD] for one in sentences]
    weight: dict[str, float] = {word: count - 1.0 for word, count in Counter(chain(*words)).items()}
    chosen: list[int] = []
    left = set(range(len(sentences)))
    while left and len(chosen) < most:
        best = max(left, key=lambda place: (_score(words[place], weight), -place))
        chosen.append(best)
        left.remove(best)
        for word in set(words[best]):
            weight[word] *= _SAID_ALREADY
    return [sentences[place] for place in sorted(chosen)]


def _score(words: list[str], weight: Mapping[str, float]) -> float:
    return sum(weight[word] for word in words) / (len(words) + 3) if words else 0.0


@tool(effect="pure")
def condense(text: LongText, sentences: Sentences = 5) -> str:
    """Shorten a long text to its most telling sentences, word for word and in their order."""
    return " ".join(key_sentences(text, sentences))


@makes_ensemble
def summarization() -> Ensemble:
    """Make the ensemble that condenses texts by choosing sentences."""
    return Ensemble("summarization", [condense], description="Texts made shorter by choosing their sentences.")


def summarization_by(summarize: Summarize) -> Ensemble:
    """Make the ensemble that condenses texts by a function of the program's.

    Args:
        summarize: is given the text and the most sentences, and returns the summary.
    """

    async def condense(text: LongText, sentences: Sentences = 5) -> str:
        """Shorten a long text to a summary of a few sentences."""
        made = summarize(text, sentences)
        summary = await made if isawaitable(made) else made
        if not str(summary).strip():
            raise ToolFailed("no summary came of the text")
        return str(summary)

    return Ensemble("summarization", [tool(effect="pure")(condense)], description="Texts made shorter.")
