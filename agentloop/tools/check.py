"""Problems of tool definitions, found without running a tool."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from agentloop.contracts.tool import Tool
from agentloop.errors import ToolDefinitionError
from agentloop.tools.signature import Signature
from agentloop.tools.signature_reader import SignatureReader
from agentloop.tools.typed_tool import TypedTool, read_typed_tool
from agentloop.tools.vagueness import ToolText, vagueness, vagueness_of_each
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json_value import EMPTY_OBJECT

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
