"""A large number of tools, of which a model is offered those that it has searched for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
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
from agentloop.interception.tool_selection import offer_tools
from agentloop.tools.decorator import collect_tools
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.messages import Message
from agentloop.values.points import BeforeInference
from agentloop.values.tool_calls import Effect, ToolExecution, ToolSpec
from agentloop.values.value import encode_each


@frozen(eq=False)
class ToolSearch(ToolGroup):
    """Tools that a model finds by searching, so that a request contains few of many.

        AgentLoop(driver, [read_file, ToolSearch([*two_hundred_tools, an_ensemble])])

    It takes the place of its tools in a list of tools, and adds one by which the model searches. A discovered tool is offered
    from the next step on, for as long as the conversation contains the search. As with `ToolSelection`, a call of a tool that
    was not discovered runs.

    Attributes:
        tools: the tools to search: single tools, functions, and groups, which are started and stopped as usual.
        max_results: the maximum number of tools that one search returns.
        name: the name of the tool that searches, and of this group.

    Raises:
        ToolDefinitionError: when two tools have the same name.
        TypeError: when something is not a tool.
        ValueError: when `max_results` is less than one, or the name is empty.
    """

    tools: Tools = field(converter=collect_tools, repr=lambda tools: f"<{len(tools)} tools>")
    max_results: int = field(default=5, kw_only=True, validator=ge(1))
    name: str = field(default="search_tools", kw_only=True, validator=min_len(1))

    def __attrs_post_init__(self) -> None:
        # With two tools of one name, the model could call only one of them.
        if self.name in self.tools:
            raise ToolDefinitionError(
                f"a tool that can be searched has the name {self.name!r} of the tool that searches; pass another name=…"
            )

    @cached_property
    def offered(self) -> tuple[Tool, ...]:
        """The tool that searches, and the tools that it searches."""
        return (SearchTool(self.name, self.tools.specs, self.max_results), *self.tools)

    @cached_property
    def interceptors(self) -> tuple[CanIntercept, ...]:
        """The interceptor that offers discovered tools, and those of the groups."""
        of_groups = [interceptor for group in self.tools.groups for interceptor in group.interceptors]
        # Results name the tool that reads them, so it is offered from the first request on.
        searchable = frozenset(tool.name for tool in self.tools if not tool.policy.reads_results)
        return (OfferDiscoveredTools(self.name, searchable), *of_groups)

    async def hold(self) -> None:
        """Hold the groups until `release`."""
        async with AsyncExitStack() as held:
            for group in self.tools.groups:
                await group.hold()
                held.push_async_callback(group.release)
            held.pop_all()  # all groups have started, so none is released

    async def release(self) -> None:
        """Release the groups, in reverse order."""
        for group in reversed(self.tools.groups):
            await group.release()


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
class SearchTool(Tool):
    """The tool by which a model searches.

    Attributes:
        name: its name.
        specs: the tools that it searches.
        max_results: the maximum number of tools that it returns.
    """

    name: str
    specs: tuple[ToolSpec, ...] = field(repr=lambda specs: f"<{len(specs)} tools>")
    max_results: int

    @property
    def description(self) -> str:
        """The description for the model."""
        return (
            f"Search {len(self.specs)} more tools that are not listed here, by what they do. The tools that are found can be "
            "called from your next answer on. Search before you say that something cannot be done."
        )

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of its arguments."""
        return _PARAMETERS

    @property
    def effect(self) -> Effect:
        """Pure."""
        return Effect.PURE

    @property
    def own(self) -> str:
        """All of its result: the model is offered the tools that it describes."""
        return "*"

    @property
    def is_local(self) -> bool:
        """True: it searches the tools of this process."""
        return True

    # Built at the first search: most executions with many tools never search.
    @cached_property
    def _ranking(self) -> ToolRanking:
        return ToolRanking.of(self.specs)

    async def use(self, *_: Any, query: str, **__: Any) -> dict[str, Any]:
        """Return the names and descriptions of the tools that match best."""
        matches = self._ranking.search(query, self.max_results)
        if not matches:
            return {"tools": [], "note": "No tool matches the query. Try other words, or more general ones."}
        return {"tools": [{"name": spec.name, "description": spec.description} for spec in matches]}


@frozen(eq=False)
class OfferDiscoveredTools(Interceptor):
    """Offers, of the tools that can be searched, those that the conversation has discovered or called.

    The offer depends only on the messages of the state, so it is the same in a stored state, another process or a replay.

    Attributes:
        search_name: the name of the tool that searches.
        names: the names of the tools that can be searched.
        priority: the position among other interceptors.
    """

    search_name: str
    names: frozenset[str] = field(repr=lambda names: f"<{len(names)} names>")
    priority: int = field(default=500, kw_only=True)
    writes = ("request.tools",)  # type: tuple[str, ...]  # an annotation would be a field

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Remove tools that were not discovered from the request, and put the discovered ones last."""
        tools = point.request.tools
        searchable = {spec.name: spec for spec in tools if spec.name in self.names}
        if not searchable:
            return point
        # Discovered tools come last, in order of discovery, so that each request extends the tools of the previous one.
        # Each message is read once for the whole conversation, however many steps it has.
        fingerprint = (OfferDiscoveredTools, self.search_name)
        names_by_message = encode_each(point.state.messages, fingerprint, self._names_in_message)
        discovered = dict.fromkeys(name for names in names_by_message for name in names if name in searchable)
        others = [spec for spec in tools if spec.name not in searchable]
        return offer_tools(point, [*others, *[searchable[name] for name in discovered]])

    def _names_in_message(self, message: Message) -> tuple[str, ...]:
        # Programs search and call tools, too.
        executions = [execution for exchange in message.exchanges for execution in exchange.execution.flat]
        return tuple([name for execution in executions for name in _names_in(execution, self.search_name)])


def _names_in(execution: ToolExecution, search_name: str) -> Iterable[str]:
    """Return the tools that a call discovers: the one that was called, or those that a search returned."""
    if execution.name != search_name:
        return (execution.name,)
    # An interceptor may have replaced the result by anything.
    tools = execution.value.get("tools") if isinstance(execution.value, Mapping) else None
    entries = tools if isinstance(tools, Sequence) and not isinstance(tools, str) else ()
    names = [entry.get("name") for entry in entries if isinstance(entry, Mapping)]
    return [name for name in names if isinstance(name, str)]


# --- the ranking ------------------------------------------------------------------------------------------------

_NAME_WEIGHT, _DESCRIPTION_WEIGHT, _PARAMETER_WEIGHT = 3.0, 1.0, 0.5
"""The weight of a word in a tool's name, in its description, and in the name or description of a parameter."""
_K1, _B = 1.2, 0.75
"""The constants of BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009)."""


@frozen
class ToolRanking:
    """An index of tools that ranks them for a query with the weights of BM25.

    Attributes:
        specs: the tools.
        term_weights: the weight of each term for each tool.
        idf: the inverse document frequency of each term.
        average_length: the average of the summed weights of a tool.
    """

    specs: tuple[ToolSpec, ...]
    term_weights: tuple[Mapping[str, float], ...]
    idf: Mapping[str, float]
    average_length: float

    @classmethod
    def of(cls, specs: Iterable[ToolSpec]) -> ToolRanking:
        """Build the index."""
        specs = tuple(specs)
        term_weights = tuple([_weigh_terms(spec) for spec in specs])
        frequency = Counter(term for weights in term_weights for term in weights)
        idf = {term: log(1 + (len(specs) - count + 0.5) / (count + 0.5)) for term, count in frequency.items()}
        length = sum(sum(weights.values()) for weights in term_weights) / len(specs) if specs else 0.0
        return cls(specs, term_weights, idf, length)

    def search(self, query: str, max_results: int) -> list[ToolSpec]:
        """Return the tools that match, best first; equally good ones in their own order.

        Args:
            query: words in any order; a tool's whole name returns that tool first.
            max_results: the maximum number of tools.
        """
        # Sorted, because the order in which floats are added changes the sum, and that of a set varies between processes.
        terms = sorted(set(_stems(query)))
        name = query.strip()
        scores = [
            float("inf") if spec.name == name else self._score(weights, terms)
            for spec, weights in zip(self.specs, self.term_weights, strict=True)
        ]
        # Python's sort is stable, so equally good tools keep their order.
        matches = [index for index, score in enumerate(scores) if score > 0]
        return [self.specs[index] for index in sorted(matches, key=lambda index: -scores[index])[:max_results]]

    def _score(self, weights: Mapping[str, float], terms: Iterable[str]) -> float:
        length = sum(weights.values()) / self.average_length if self.average_length else 1.0
        damping = _K1 * (1 - _B + _B * length)
        return sum(
            self.idf[term] * weights[term] * (_K1 + 1) / (weights[term] + damping) for term in terms if term in weights
        )


def _weigh_terms(spec: ToolSpec) -> Mapping[str, float]:
    weights: Counter[str] = Counter()
    for weight, text in _weighted_texts(spec):
        for stem in _stems(text):
            weights[stem] += weight  # type: ignore[assignment]  # typeshed knows whole counts only
    return weights


def _weighted_texts(spec: ToolSpec) -> Iterator[tuple[float, str]]:
    yield _NAME_WEIGHT, spec.name
    yield _DESCRIPTION_WEIGHT, spec.description
    properties = spec.parameters.get("properties")
    if isinstance(properties, Mapping):
        for name, schema in properties.items():
            yield _PARAMETER_WEIGHT, name
            description = schema.get("description") if isinstance(schema, Mapping) else None
            if isinstance(description, str):
                yield _PARAMETER_WEIGHT, description


# --- words ------------------------------------------------------------------------------------------------------

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
"""The words of a text, also inside a name: `readFile`, `read_file`, `HTTPStatus`."""
_STOP_WORDS = frozenset(
    _WORDS.findall(
        "a an and any are as at be by can do for from has have how i if in into is it its me my not of on or please so some "
        "that the them then these this those to tool use used uses using want was what when which with you your"
    )
)
_ENDINGS = ("ing", "ies", "ed", "es", "s", "e", "y")
_MIN_STEM_LENGTH = 3


def _stems(text: str) -> Iterator[str]:
    for match in _WORDS.findall(text):
        word = match.lower()
        if word not in _STOP_WORDS:
            yield _stem(word)


def _stem(word: str) -> str:
    """Remove an ending, so that `files` matches `file` and `searching` matches `search`."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM_LENGTH:
            return word.removesuffix(ending)
    return word
