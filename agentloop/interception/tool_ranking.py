"""Tools by how well they fit some words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import log

from attrs import frozen

from agentloop.values.tool_spec import ToolSpec

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
"""The words of a text, also where a name writes several together: `readFile`, `read_file`, `HTTPStatus`."""
_SAYS_NOTHING = frozenset(
    [
        "a",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "do",
        "for",
        "from",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "me",
        "my",
        "not",
        "of",
        "on",
        "or",
        "please",
        "so",
        "some",
        "that",
        "the",
        "them",
        "then",
        "these",
        "this",
        "those",
        "to",
        "tool",
        "use",
        "used",
        "uses",
        "using",
        "want",
        "was",
        "what",
        "when",
        "which",
        "with",
        "you",
        "your",
    ]
)
_ENDINGS = ("ing", "ies", "ed", "es", "s", "e", "y")
_SHORTEST_STEM = 3
_NAME, _DESCRIPTION, _PARAMETER = 3.0, 1.0, 0.5
"""What a word counts where it stands in a tool's name, its description, the name or description of a parameter."""
_SATURATION, _LENGTH_SHARE = 1.2, 0.75
"""The constants k1 and b of BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009)."""


@frozen
class ToolRanking:
    """Tools, made ready to be searched by words, with the weights of BM25.

    Attributes:
        specs: the tools.
        words: what each word of each tool counts.
        rarity: what each word tells, by how few tools have it.
        length: how much the tools say on average.
    """

    specs: tuple[ToolSpec, ...]
    words: tuple[Mapping[str, float], ...]
    rarity: Mapping[str, float]
    length: float

    @classmethod
    def of(cls, specs: Iterable[ToolSpec]) -> ToolRanking:
        """Read what tools say of themselves."""
        kept = tuple(specs)
        words = tuple([_weighted(spec) for spec in kept])
        having = Counter(word for one in words for word in one)
        rarity = {word: log(1 + (len(kept) - count + 0.5) / (count + 0.5)) for word, count in having.items()}
        length = sum(sum(one.values()) for one in words) / len(kept) if kept else 0.0
        return cls(kept, words, rarity, length)

    def best(self, query: str, most: int) -> list[ToolSpec]:
        """Return the tools that fit best, the best first; those that fit equally well in their own order.

        Args:
            query: words, in any order; a tool's whole name finds that tool first.
            most: how many to return at most.
        """
        wanted = sorted(set(_stems(query)))
        called = query.strip()
        scores = [
            float("inf") if spec.name == called else self._score(words, wanted)
            for spec, words in zip(self.specs, self.words, strict=True)
        ]
        fitting = [place for place, score in enumerate(scores) if score > 0]
        return [self.specs[place] for place in sorted(fitting, key=lambda place: -scores[place])[:most]]

    def _score(self, words: Mapping[str, float], wanted: Iterable[str]) -> float:
        length = sum(words.values()) / self.length if self.length else 1.0
        damping = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length)
        return sum(
            self.rarity[word] * words[word] * (_SATURATION + 1) / (words[word] + damping)
            for word in wanted
            if word in words
        )


def _weighted(spec: ToolSpec) -> Mapping[str, float]:
    counted: Counter[str] = Counter()
    for weight, text in _texts(spec):
        for stem in _stems(text):
            counted[stem] += weight  # type: ignore[assignment]  # typeshed knows whole counts only
    return counted


def _texts(spec: ToolSpec) -> Iterator[tuple[float, str]]:
    yield _NAME, spec.name
    yield _DESCRIPTION, spec.description
    properties = spec.parameters.get("properties")
    if isinstance(properties, Mapping):
        for name, schema in properties.items():
            yield _PARAMETER, name
            told = schema.get("description") if isinstance(schema, Mapping) else None
            if isinstance(told, str):
                yield _PARAMETER, told


def _stems(text: str) -> Iterator[str]:
    for found in _WORDS.findall(text):
        word = found.lower()
        if word not in _SAYS_NOTHING:
            yield _stem(word)


def _stem(word: str) -> str:
    """Take off an ending, so that `files` finds `file` and `searching` finds `search`."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            return word.removesuffix(ending)
    return word
