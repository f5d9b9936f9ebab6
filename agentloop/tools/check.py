"""Problems of tool definitions, found without running a tool."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from attrs import frozen

from agentloop.contracts.tool import Tool
from agentloop.errors import ToolDefinitionError
from agentloop.tools.signature import Signature, SignatureReader
from agentloop.tools.typed_tool import TypedTool, read_typed_tool
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json import EMPTY_OBJECT

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


_TOLD = ("name", "description", "parameters")
"""What a model is told of a tool."""


class ToolProblems(list[str]):
    """What is wrong with tool definitions, one line per problem, and apart from that what is merely unwise.

    Attributes:
        warnings: one line for each thing that makes tools hard to choose by their descriptions; nothing is warned of in a
            definition that is wrong.
    """

    def __init__(self, problems: Iterable[str] = (), warnings: Iterable[str] = ()) -> None:
        super().__init__(problems)
        self.warnings: tuple[str, ...] = tuple(warnings)


def check_tools(subject: Any) -> ToolProblems:
    """List what is wrong with tool definitions.

    Args:
        subject: a module (its tools and tool classes), a class (its public methods, as would-be tools, or itself if it is
            a tool class), a function (as a would-be tool), a tool, or an iterable of these.

    Returns:
        One line per problem; empty when there is none. Its `warnings` are no problems: descriptions that are too vague to
        choose a tool by.
    """
    problems: list[str] = []
    sound: list[ToolText] = []
    for one in _subjects(subject):
        found = _problems(one)
        problems += found
        if not found:
            sound.append(_text_of(one))
    return ToolProblems(problems, vagueness(sound))


def warnings_of_each(subjects: Iterable[Any]) -> list[list[str]]:
    """Return the warnings of `check_tools` about all of these together, for each of them.

    Args:
        subjects: tools, tool classes and functions in which nothing is wrong.
    """
    return vagueness_of_each([_text_of(one) for one in subjects])


def _subjects(subject: Any) -> Iterator[Any]:
    if isinstance(subject, ModuleType):
        members = vars(subject).values()
        yield from (one for one in members if isinstance(one, Tool) or _is_tool_class_of(one, subject))
    elif isinstance(subject, type) and not issubclass(subject, Tool):
        names = [name for name in dir(subject) if not name.startswith("_")]
        yield from (method for name in names if (method := _method(subject, name)) is not None)
    elif isinstance(subject, Iterable) and not isinstance(subject, str | Tool | type):
        for one in subject:
            yield from _subjects(one)
    else:
        yield subject


def _problems(subject: Any) -> list[str]:
    try:
        if isinstance(subject, Tool):
            return _tool_problems(subject)
        if isinstance(subject, type):
            return _class_problems(subject)
        if not callable(subject):
            return [f"{subject!r} is neither a tool nor a function"]
    except ToolDefinitionError as error:
        return [str(error)]
    reader = SignatureReader(subject)
    reader.read()
    return [f"{reader.label} cannot be a tool: {problem}" for problem in reader.problems]


def _tool_problems(tool: Tool) -> list[str]:
    return _told_problems(tool.name, tool.description, tool.parameters)


def _told_problems(name: object, description: object, parameters: object) -> list[str]:
    """Return what is wrong with what a model is told, as far as that is known."""
    label = f"the tool {name!r}"
    problems = []
    if isinstance(description, str) and not description.strip():
        problems.append(f"{label} has no description: say what it does and when to use it")
    if isinstance(parameters, Mapping):
        try:
            SchemaValidator(parameters, f"the parameter schema of {label}")
        except ToolDefinitionError as error:
            problems.append(str(error))
    return problems


def _class_problems(cls: type) -> list[str]:
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        return [f"the tool class {cls.__qualname__} does not define {', '.join(missing)}"]
    if issubclass(cls, TypedTool):
        read_typed_tool(cls)
    name, *others = [inspect.getattr_static(cls, attribute) for attribute in _TOLD]
    return _told_problems(name if isinstance(name, str) else cls.__qualname__, *others)


def _text_of(subject: Any) -> ToolText:
    """Return what a model is told of a tool, a tool class or a would-be tool in which nothing is wrong."""
    if isinstance(subject, Tool):
        return _told_of(f"the tool {subject.name!r}", subject, ToolText("", "", "", EMPTY_OBJECT))
    if not isinstance(subject, type):
        label, signature = SignatureReader(subject).label, Signature.of(subject)
        return ToolText(label, signature.name, *signature.documented)
    read = read_typed_tool(subject).documented if issubclass(subject, TypedTool) else ("", EMPTY_OBJECT)
    in_class = {one: inspect.getattr_static(subject, one) for one in _TOLD}
    label = f"the tool class {subject.__qualname__}"
    return _told_of(label, SimpleNamespace(**in_class), ToolText(label, subject.__name__, *read))


def _told_of(label: str, subject: Any, otherwise: ToolText) -> ToolText:
    """Return what a tool, or a class that holds the same names, tells as far as it is of the right type."""
    name, description, parameters = [getattr(subject, one) for one in _TOLD]
    return ToolText(
        label,
        name if isinstance(name, str) else otherwise.name,
        description if isinstance(description, str) else otherwise.description,
        parameters if isinstance(parameters, Mapping) else otherwise.parameters,
    )


def _is_tool_class_of(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, Tool) and value.__module__ == module.__name__


def _method(cls: type, name: str) -> Any:
    """Return a method as it looks from an object of the class; None for what is no method."""
    found = inspect.getattr_static(cls, name)
    if isinstance(found, staticmethod | classmethod):
        return getattr(cls, name)
    return found.__get__(object()) if inspect.isfunction(found) else None
