"""Descriptions that are too vague to choose a tool by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from attrs import frozen

_WITHOUT_SPACES = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORDS = re.compile(rf"[{_WITHOUT_SPACES}]|[^\W_{_WITHOUT_SPACES}]+")
"""The words of a text; in scripts that put no spaces between words, each character."""
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
"""The words that a name writes together: `readFile`, `read_file`."""
_FEWEST_WORDS = 3
_SAYS_NOTHING: Final = frozenset(
    [
        "a",
        "an",
        "the",
        "this",
        "that",
        "it",
        "its",
        "is",
        "are",
        "be",
        "for",
        "of",
        "to",
        "in",
        "on",
        "with",
        "and",
        "or",
        "by",
        "from",
        "as",
        "at",
        "my",
        "your",
        "our",
        "some",
        "any",
        "all",
        "etc",
        "do",
        "does",
        "doing",
        "did",
        "make",
        "makes",
        "perform",
        "performs",
        "execute",
        "executes",
        "run",
        "runs",
        "call",
        "calls",
        "use",
        "uses",
        "used",
        "using",
        "useful",
        "handle",
        "handles",
        "process",
        "processes",
        "work",
        "works",
        "help",
        "helps",
        "helper",
        "util",
        "utils",
        "utility",
        "tool",
        "tools",
        "function",
        "functions",
        "method",
        "methods",
        "stuff",
        "thing",
        "things",
        "something",
        "anything",
        "everything",
        "various",
        "misc",
        "generic",
        "general",
        "main",
        "test",
        "todo",
        "tbd",
        "fixme",
        "description",
        "desc",
        "docstring",
        "placeholder",
        "none",
        "null",
        "na",
        "foo",
        "bar",
        "baz",
        "task",
        "tasks",
        "operation",
        "operations",
        "action",
        "actions",
        "job",
        "jobs",
    ]
)


@frozen
class ToolText:
    """What a model is told of a tool.

    Attributes:
        label: the tool, in a sentence.
        name: its name.
        description: its description.
        parameters: the JSON Schema of its parameters.
    """

    label: str
    name: str
    description: str
    parameters: Mapping[str, Any]


def vagueness(texts: Iterable[ToolText]) -> list[str]:
    """Return what makes these tools hard to choose between, one line for each thing."""
    texts = list(texts)
    warnings = [warning for text in texts for warning in _warnings(text)]
    return [*warnings, *filter(None, _twins(texts))]


def vagueness_of_each(texts: Iterable[ToolText]) -> list[list[str]]:
    """Return the same for each of these tools; of two with the same description, the later one is spoken of."""
    texts = list(texts)
    return [[*_warnings(text), *([twin] if twin else [])] for text, twin in zip(texts, _twins(texts), strict=True)]


def _warnings(text: ToolText) -> Iterator[str]:
    words = [word.lower() for word in _WORDS.findall(text.description)]
    if words:
        named = {part.lower() for part in _PARTS.findall(text.name)} | {text.name.lower()}
        telling = [word for word in words if word not in _SAYS_NOTHING]
        if not telling:
            yield f"the description of {text.label} says nothing: {_shown(text)}; say what it does and when to use it"
        elif named.issuperset(telling):
            yield f"the description of {text.label} says no more than its name: {_shown(text)}; say when to use it"
        elif len(words) < _FEWEST_WORDS:
            yield f"the description of {text.label} is short: {_shown(text)}; say what it does and when to use it"
    properties = text.parameters.get("properties")
    if isinstance(properties, Mapping) and len(properties) > 1:
        silent = [name for name, schema in properties.items() if not _is_described(schema)]
        if silent:
            listed = ", ".join(map(repr, silent))
            yield f"{text.label} has {len(properties)} parameters, of which {listed} have no description"


def _is_described(schema: Any) -> bool:
    told = schema.get("description") if isinstance(schema, Mapping) else None
    return isinstance(told, str) and bool(told.strip())


def _twins(texts: Iterable[ToolText]) -> Iterator[str]:
    """Yield for each tool that it has the description of an earlier one; an empty text when it has not."""
    first_of: dict[tuple[str, ...], ToolText] = {}
    for text in texts:
        words = tuple(word.lower() for word in _WORDS.findall(text.description))
        first = first_of.setdefault(words, text)
        if words and first is not text and first.name != text.name:
            yield (
                f"{text.label} has the same description as {first.label}: {_shown(text)}; say when to use which of them"
            )
        else:
            yield ""


def _shown(text: ToolText) -> str:
    told = " ".join(text.description.split())
    return repr(told if len(told) <= 60 else f"{told[:60]}…")  # noqa: PLR2004  # what fits on a line
