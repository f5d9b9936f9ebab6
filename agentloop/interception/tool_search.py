"""Many tools, of which a model is offered those that it has searched for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import log
from typing import Any

from attrs import field, frozen
from attrs.validators import ge, min_len

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool, ToolGroup
from agentloop.contracts.tools import Tools
from agentloop.errors import ToolDefinitionError
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.tool_selection import with_tools_offered
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.messages import Message
from agentloop.values.points import BeforeInference
from agentloop.values.tool_calls import Effect, ToolExchange, ToolSpec
from agentloop.values.value import encode_each

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


_PARAMETERS = freeze_object(
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What the tool should do, in a few words; or its name."},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
)


@frozen(eq=False)
class SearchTools(Tool):
    """The tool by which a model searches.

    Attributes:
        name: the name by which a model calls it.
        specs: what is searched.
        most: how many tools are found at most.
    """

    name: str
    specs: tuple[ToolSpec, ...] = field(repr=lambda specs: f"<{len(specs)} tools>")
    most: int

    @property
    def description(self) -> str:
        """What it does, for the model."""
        return (
            f"Search {len(self.specs)} more tools that are not listed here, by what they do. The tools that are found can be "
            "called from your next answer on. Search before you say that something cannot be done."
        )

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of what a model gives."""
        return _PARAMETERS

    @property
    def effect(self) -> Effect:
        """It changes nothing."""
        return Effect.PURE

    @cached_property
    def _ranking(self) -> ToolRanking:
        return ToolRanking.of(self.specs)

    async def use(self, *_: Any, query: str, **__: Any) -> dict[str, Any]:
        """Return the tools that fit best, by name and description."""
        found = self._ranking.best(query, self.most)
        if not found:
            return {"tools": [], "note": "No tool says anything of this. Try other words for it, or more general ones."}
        return {"tools": [{"name": spec.name, "description": spec.description} for spec in found]}


@frozen(eq=False)
class OfferFoundTools(Interceptor):
    """Offers, of the tools that can be searched, those that the conversation has found or called.

    What is offered follows from the messages of the state alone, so it is the same after the state was stored, in another
    process, in a replay.

    Attributes:
        search: the name of the tool that searches.
        names: the names of the tools that can be searched.
        priority: where it stands among the interceptors.
    """

    search: str
    names: frozenset[str] = field(repr=lambda names: f"<{len(names)} names>")
    priority: int = field(default=500, kw_only=True)

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Take the tools that were not found from the request, and put those that were behind the others."""
        tools = point.request.tools
        mine = {spec.name: spec for spec in tools if spec.name in self.names}
        if not mine:
            return point
        known = encode_each(point.state.messages, (OfferFoundTools, self.search), self._known)
        found = dict.fromkeys(name for names in known for name in names if name in mine)
        others = [spec for spec in tools if spec.name not in mine]
        return with_tools_offered(point, [*others, *[mine[name] for name in found]])

    def _known(self, message: Message) -> tuple[str, ...]:
        return tuple([name for exchange in message.exchanges for name in _names(exchange, self.search)])


def _names(exchange: ToolExchange, search: str) -> Iterable[str]:
    """Return the tools that an exchange makes known: the one that was called, or those that a search found."""
    execution = exchange.execution
    if execution.name != search:
        return (execution.name,)
    found = execution.value.get("tools") if isinstance(execution.value, Mapping) else None
    listed = found if isinstance(found, Sequence) and not isinstance(found, str) else ()
    told = [one.get("name") for one in listed if isinstance(one, Mapping)]
    return [name for name in told if isinstance(name, str)]


def _as_tools(tools: Tools | Iterable[Tool | ToolGroup]) -> Tools:
    return Tools.of(tools)


@frozen(eq=False)
class ToolSearch(ToolGroup):
    """Tools that a model finds by searching, so that a request carries few of many.

    It stands in a list of tools in place of those it is made of, and adds one to them by which the model searches. A tool that
    was found is offered from the next step on, and stays so for as long as the conversation tells of it. As with
    `ToolSelection`, a call of a tool that was not found is run all the same.

        AgentLoop(driver, [read_file, ToolSearch([*two_hundred_tools, an_ensemble])])

    Attributes:
        tools: what can be searched: single tools, and groups, which are started and stopped as usual.
        most: how many tools one search finds at most.
        name: the name of the tool that searches, and of this group.

    Raises:
        ToolDefinitionError: when two tools have the same name.
        TypeError: when something is not a tool.
        ValueError: when `most` is less than one, or the name is empty.
    """

    tools: Tools = field(converter=_as_tools, repr=lambda tools: f"<{len(tools)} tools>")
    most: int = field(default=5, kw_only=True, validator=ge(1))
    name: str = field(default="search_tools", kw_only=True, validator=min_len(1))

    def __attrs_post_init__(self) -> None:
        if self.name in self.tools:
            raise ToolDefinitionError(
                f"a tool that can be searched is named {self.name!r} as the one that searches; pass another name=…"
            )

    @cached_property
    def offered(self) -> tuple[Tool, ...]:
        """The tool that searches, and those that can be searched."""
        return (SearchTools(self.name, self.tools.specs, self.most), *self.tools)

    @cached_property
    def interceptors(self) -> tuple[CanIntercept, ...]:
        """What offers the tools that were found, and what the groups that can be searched do besides."""
        theirs = [interceptor for group in self.tools.groups for interceptor in group.interceptors]
        return (OfferFoundTools(self.name, frozenset(self.tools.names)), *theirs)

    async def hold(self) -> None:
        """Have the groups started until `release`."""
        held: list[ToolGroup] = []
        try:
            for group in self.tools.groups:
                await group.hold()
                held.append(group)
        except BaseException:
            for group in reversed(held):
                await group.release()
            raise

    async def release(self) -> None:
        """Need them no more."""
        for group in reversed(self.tools.groups):
            await group.release()
