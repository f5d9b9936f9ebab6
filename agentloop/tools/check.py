"""Problems of tool definitions, found without running a tool."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from attrs import frozen

from agentloop.contracts.tool import Tool
from agentloop.errors import ToolDefinitionError
from agentloop.tools.function_tool import FunctionTool
from agentloop.tools.signature import Signature, SignatureReader
from agentloop.tools.typed_tool import TypedTool, read_typed_tool
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.tool_calls import ALL, Egress, as_decides, as_egress, as_identifiers, as_own


class ToolProblems(list[str]):
    """The problems of tool definitions, one line each.

    Attributes:
        warnings: one line for each thing that makes it hard for a model to choose between the tools; a definition with
            problems has no warnings.
    """

    def __init__(self, problems: Iterable[str] = (), warnings: Iterable[str] = ()) -> None:
        super().__init__(problems)
        self.warnings: tuple[str, ...] = tuple(warnings)


def check_tools(subject: Any) -> ToolProblems:
    """List the problems of tool definitions.

    Args:
        subject: a module (its tools and tool classes), a class (its public methods, as future tools, or the class itself
            when it is a tool class), a function (as a future tool), a tool, or an iterable of these.

    Returns:
        One line per problem; empty when there is none. Its `warnings` are not problems: they name descriptions that are too
        vague to choose a tool by.
    """
    problems: list[str] = []
    valid: list[ToolText] = []
    for definition in _definitions(subject):
        own_problems = _problems(definition)
        problems += own_problems
        # A description that is missing or wrong has its problem already, and no warning in addition.
        if not own_problems:
            valid.append(_text_of(definition))
    return ToolProblems(problems, description_warnings(valid))


def warnings_by_tool(definitions: Iterable[Any]) -> list[list[str]]:
    """Return the warnings of `check_tools` about all of these together, one list for each of them.

    Args:
        definitions: tools, tool classes and functions without problems.
    """
    texts = [_text_of(definition) for definition in definitions]
    duplicates = zip(texts, _duplicate_descriptions(texts), strict=True)
    return [[*_warnings(text), *([duplicate] if duplicate else [])] for text, duplicate in duplicates]


def _definitions(subject: Any) -> Iterator[Any]:
    """Yield the tools, tool classes and functions in a subject."""
    if isinstance(subject, ModuleType):
        members = vars(subject).values()
        yield from (member for member in members if isinstance(member, Tool) or _is_tool_class_of(member, subject))
    elif isinstance(subject, type) and not issubclass(subject, Tool):
        names = [name for name in dir(subject) if not name.startswith("_")]
        yield from (method for name in names if (method := _method(subject, name)) is not None)
    elif isinstance(subject, Iterable) and not isinstance(subject, str | Tool | type):
        for item in subject:
            yield from _definitions(item)
    else:
        yield subject


def _is_tool_class_of(value: object, module: ModuleType) -> bool:
    # A module also holds the tool classes that it imports; those are checked with their own module.
    return isinstance(value, type) and issubclass(value, Tool) and value.__module__ == module.__name__


def _method(cls: type, name: str) -> Any:
    """Return a method as an object of the class has it; None for other attributes."""
    attribute = inspect.getattr_static(cls, name)
    is_wrapped = isinstance(attribute, staticmethod | classmethod)
    method = attribute.__func__ if is_wrapped else attribute
    if isinstance(method, FunctionTool):
        return method.__get__(cls)  # any object will do, as below
    if is_wrapped:
        return getattr(cls, name)
    # Any object will do: only the signature of the bound method is read.
    return attribute.__get__(object()) if inspect.isfunction(attribute) else None


# --- problems ---------------------------------------------------------------------------------------------------

_TEXT_ATTRIBUTES = ("name", "description", "parameters")
"""The attributes of a tool that a model sees."""


def _problems(definition: Any) -> list[str]:
    try:
        if isinstance(definition, Tool):
            text = _text_problems(definition.name, definition.description, definition.parameters)
            declared = {about: getattr(definition, about) for about in (*_OF_ARGUMENTS, *_OF_RESULTS)}
            return [*text, *_data_problems(definition.name, declared, definition.parameters)]
        if isinstance(definition, type):
            return _class_problems(definition)
        if not callable(definition):
            return [f"{definition!r} is neither a tool nor a function"]
    except ToolDefinitionError as error:
        return [str(error)]
    reader = SignatureReader(definition)
    reader.read()
    return [f"{reader.label} cannot be a tool: {problem}" for problem in reader.problems]


def _class_problems(cls: type) -> list[str]:
    # A class is checked without an instance, since its constructor may need arguments.
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        return [f"the tool class {cls.__qualname__} does not define {', '.join(missing)}"]
    typed = read_typed_tool(cls).definition if issubclass(cls, TypedTool) else None
    name, description, parameters = [inspect.getattr_static(cls, attribute) for attribute in _TEXT_ATTRIBUTES]
    label = name if isinstance(name, str) else cls.__qualname__
    declared = {about: inspect.getattr_static(cls, about) for about in (*_OF_ARGUMENTS, *_OF_RESULTS)}
    return [
        *_text_problems(label, description, parameters),
        *_data_problems(label, declared, parameters if typed is None else typed[1]),
    ]


def _text_problems(name: object, description: object, parameters: object) -> list[str]:
    """Return the problems of what a model sees. A property of a class has no value yet and is not checked."""
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


_OF_ARGUMENTS: Mapping[str, Callable[[Any], Egress]] = {"egress": as_egress, "decides": as_decides}
_OF_RESULTS: Mapping[str, Callable[[Any], Egress]] = {"own": as_own, "identifiers": as_identifiers}


def _data_problems(name: str, declared: Mapping[str, Any], parameters: object) -> Iterator[str]:
    """Yield the problems of what a tool declares about its data. A property of a class has no value yet."""
    known = parameters.get("properties") if isinstance(parameters, Mapping) else None
    for about, read in (*_OF_ARGUMENTS.items(), *_OF_RESULTS.items()):
        if isinstance(declared[about], property):
            continue
        try:
            names = read(declared[about])
        except ToolDefinitionError as error:
            yield f"the tool {name!r}: {error}"
            continue
        if known and about in _OF_ARGUMENTS and not isinstance(names, bool) and names != ALL:
            unknown = [key for key in names if key not in known]
            yield from [
                f"{about} of the tool {name!r} names {key!r}, which is none of its parameters" for key in unknown
            ]


@frozen
class ToolText:
    """The text of a tool that a model sees.

    Attributes:
        label: the tool, for messages.
        name: its name.
        description: its description.
        parameters: the JSON Schema of its parameters.
    """

    label: str
    name: str
    description: str
    parameters: Mapping[str, Any]


def _text_of(definition: Any) -> ToolText:
    """Return the text of a tool, a tool class or a function without problems."""
    if isinstance(definition, Tool):
        return _read_text(f"the tool {definition.name!r}", definition, ToolText("", "", "", EMPTY_OBJECT))
    if not isinstance(definition, type):
        label, signature = SignatureReader(definition).label, Signature.of(definition)
        return ToolText(label, signature.name, *signature.definition)
    is_typed = issubclass(definition, TypedTool)
    from_signature = read_typed_tool(definition).definition if is_typed else ("", EMPTY_OBJECT)
    attributes = {name: inspect.getattr_static(definition, name) for name in _TEXT_ATTRIBUTES}
    label = f"the tool class {definition.__qualname__}"
    return _read_text(label, SimpleNamespace(**attributes), ToolText(label, definition.__name__, *from_signature))


def _read_text(label: str, source: Any, default: ToolText) -> ToolText:
    """Read the attributes of a tool or of a class; the default replaces those of another type, such as properties."""
    name, description, parameters = [getattr(source, attribute) for attribute in _TEXT_ATTRIBUTES]
    return ToolText(
        label,
        name if isinstance(name, str) else default.name,
        description if isinstance(description, str) else default.description,
        parameters if isinstance(parameters, Mapping) else default.parameters,
    )


# --- warnings ---------------------------------------------------------------------------------------------------

_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
"""The words of a text; in scripts without spaces between words, each character."""
_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
"""The words of a name: `readFile` and `read_file` have two each."""
_MIN_WORDS = 3
_MAX_SHOWN = 60
# fmt: off
_MEANINGLESS: Final = frozenset([
    "a", "an", "the", "this", "that", "it", "its", "is", "are", "be", "for", "of", "to", "in", "on", "with", "and",
    "or", "by", "from", "as", "at", "my", "your", "our", "some", "any", "all", "etc", "do", "does", "doing", "did",
    "make", "makes", "perform", "performs", "execute", "executes", "run", "runs", "call", "calls", "use", "uses",
    "used", "using", "useful", "handle", "handles", "process", "processes", "work", "works", "help", "helps", "helper",
    "util", "utils", "utility", "tool", "tools", "function", "functions", "method", "methods", "stuff", "thing",
    "things", "something", "anything", "everything", "various", "misc", "generic", "general", "main", "test", "todo",
    "tbd", "fixme", "description", "desc", "docstring", "placeholder", "none", "null", "na", "foo", "bar", "baz",
    "task", "tasks", "operation", "operations", "action", "actions", "job", "jobs",
])
# fmt: on
"""Words that say nothing about what a tool does."""


def description_warnings(texts: Iterable[ToolText]) -> list[str]:
    """Return one line for each thing that makes it hard for a model to choose between these tools."""
    texts = list(texts)
    warnings = [warning for text in texts for warning in _warnings(text)]
    return [*warnings, *filter(None, _duplicate_descriptions(texts))]


def _warnings(text: ToolText) -> Iterator[str]:
    words = [word.lower() for word in _WORDS.findall(text.description)]
    if words:
        name_words = {part.lower() for part in _NAME_PARTS.findall(text.name)} | {text.name.lower()}
        meaningful = [word for word in words if word not in _MEANINGLESS]
        if not meaningful:
            yield f"the description of {text.label} says nothing: {_shorten(text)}; say what it does and when to use it"
        elif name_words.issuperset(meaningful):
            yield f"the description of {text.label} says no more than its name: {_shorten(text)}; say when to use it"
        elif len(words) < _MIN_WORDS:
            yield f"the description of {text.label} is short: {_shorten(text)}; say what it does and when to use it"
    properties = text.parameters.get("properties")
    # The only parameter of a tool is usually clear from the description of the tool.
    if isinstance(properties, Mapping) and len(properties) > 1:
        undescribed = [name for name, schema in properties.items() if not _is_described(schema)]
        if undescribed:
            listing = ", ".join(map(repr, undescribed))
            yield f"{text.label} has {len(properties)} parameters, of which {listing} have no description"


def _is_described(schema: Any) -> bool:
    description = schema.get("description") if isinstance(schema, Mapping) else None
    return isinstance(description, str) and bool(description.strip())


def _duplicate_descriptions(texts: Iterable[ToolText]) -> Iterator[str]:
    """Yield a warning for each tool that has the description of an earlier one, and an empty text for each other tool."""
    first_by_words: dict[tuple[str, ...], ToolText] = {}
    for text in texts:
        words = tuple(word.lower() for word in _WORDS.findall(text.description))
        first = first_by_words.setdefault(words, text)
        if words and first is not text and first.name != text.name:
            yield (
                f"{text.label} has the same description as {first.label}: {_shorten(text)}; say when to use which of "
                "them"
            )
        else:
            yield ""


def _shorten(text: ToolText) -> str:
    description = " ".join(text.description.split())
    return repr(description if len(description) <= _MAX_SHOWN else f"{description[:_MAX_SHOWN]}…")
