"""Problems of tool definitions, found without running a tool."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from agentloop.contracts.tool import Tool
from agentloop.errors import ToolDefinitionError
from agentloop.tools.signature import Signature
from agentloop.tools.validation import SchemaValidator


def check_tools(subject: Any) -> list[str]:
    """List what is wrong with tool definitions.

    Args:
        subject: a module (its tools and tool classes), a class (its public methods, as would-be tools, or itself if it is
            a tool class), a function (as a would-be tool), a tool, or an iterable of these.

    Returns:
        One line per problem; empty when there is none.
    """
    return [problem for one in _subjects(subject) for problem in _problems(one)]


def _subjects(subject: Any) -> Iterator[Any]:
    if isinstance(subject, ModuleType):
        own = [value for value in vars(subject).values() if getattr(value, "__module__", None) == subject.__name__]
        yield from (value for value in own if isinstance(value, Tool) or _is_tool_class(value))
    elif isinstance(subject, type) and not issubclass(subject, Tool):
        methods = inspect.getmembers(subject, inspect.isfunction)
        yield from (_without_self(method) for name, method in methods if not name.startswith("_"))
    elif isinstance(subject, Iterable) and not isinstance(subject, str | Tool | type):
        for one in subject:
            yield from _subjects(one)
    else:
        yield subject


def _problems(subject: Any) -> list[str]:
    try:
        if isinstance(subject, Tool):
            SchemaValidator(subject.parameters, f"the parameters of the tool {subject.name!r}")
        elif isinstance(subject, type):
            return _class_problems(subject)
        elif callable(subject):
            Signature.of(subject)
        else:
            return [f"{subject!r} is neither a tool nor a function"]
    except ToolDefinitionError as error:
        return [str(error)]
    return []


def _class_problems(cls: type) -> list[str]:
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    return [f"the tool class {cls.__qualname__} does not define {', '.join(missing)}"] if missing else []


def _is_tool_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Tool)


def _without_self(method: Any) -> Any:
    return method.__get__(object())
