"""Tools written as classes, read from the signature of their method `use`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from inspect import cleandoc, iscoroutinefunction
from itertools import takewhile
from typing import Any

from attrs import evolve

from agentloop.contracts.tool import CanDescribeDefaults, CanPrepareArguments, CanPresentResult, Tool
from agentloop.errors import ToolDefinitionError
from agentloop.tools.presentation import Presenter, presenter
from agentloop.tools.signature import Signature
from agentloop.values.json import JsonObject
from agentloop.values.tool_calls import ToolResult, ToolSpec


class TypedTool(Tool, CanPrepareArguments, CanDescribeDefaults, CanPresentResult):
    """A tool with state: subclass it and write `use` with typed parameters and a docstring.

    The name is the class name in snake case, the description the docstring of `use` or of the class, and the parameters
    come from the type hints of `use`. A class attribute overrides each of them.

        class FindOrder(TypedTool):
            def __init__(self, orders: Orders) -> None:
                self.orders = orders

            async def use(self, number: int) -> dict[str, str]:
                \"\"\"Find an order by its number.\"\"\"
                return await self.orders.find(number)
    """

    @property
    def name(self) -> str:
        """The name of the class in snake case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def description(self) -> str:
        """The text of the docstring of `use`, or of the class."""
        return read_typed_tool(type(self)).definition[0]

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of the parameters of `use`."""
        return read_typed_tool(type(self)).definition[1]

    @property
    def spec(self) -> ToolSpec:
        """Name, description and parameters as one value; equal specs are the same object."""
        spec = super().spec
        return _intern(evolve(spec, strict=True) if read_typed_tool(type(self)).is_strict else spec)

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Convert arguments that satisfy the schema to the annotated types.

        Raises:
            InvalidArguments: when a value cannot be converted to its type.
        """
        return read_typed_tool(type(self)).prepare(arguments)

    def describe_defaults(self, arguments: Mapping[str, Any]) -> JsonObject:
        """Return the values that `use` gives to what a call leaves out, by path."""
        return read_typed_tool(type(self)).describe_defaults(arguments)

    def present(self, result: Any) -> ToolResult:
        """Check the result against the declared return type and convert it to JSON.

        Raises:
            ToolFailed: when it does not match the type, or has no JSON form.
        """
        return _presenter(type(self))(result)


@cache
def read_typed_tool(cls: type[TypedTool]) -> Signature:
    """Read the signature of `use` of a class.

    Raises:
        ToolDefinitionError: when something that a model needs is missing; lists all problems.
    """
    if not iscoroutinefunction(cls.use):
        raise ToolDefinitionError(f"{cls.__qualname__}.use is not async; write it as async def, or use @tool")
    # A class that sets `description` needs no docstring; this placeholder is never shown.
    description = "" if cls.description is TypedTool.description else cls.__name__
    # Bound to any object: only the signature without `self` is read.
    use = cls.use.__get__(object())
    signature = Signature.of(use, description=description, name=cls.__name__, documentation=_documentation(cls))
    if signature.injected:
        name, kind = next(iter(signature.injected.items()))
        raise ToolDefinitionError(
            f"{cls.__qualname__}.use cannot have {name!r} injected: only @tool injects; a class that needs the "
            f"{kind.__name__} implements CanAccessAgentState, CanAccessToolCall or CanAccessToolContext"
        )
    return signature


def _documentation(cls: type[TypedTool]) -> str:
    """Return the docstring of `use`, else of the class; docstrings of TypedTool and its bases describe no tool."""
    classes = list(takewhile(lambda kind: kind is not TypedTool, cls.__mro__))
    of_use = [vars(kind)["use"].__doc__ for kind in classes if "use" in vars(kind)]
    return cleandoc(next(filter(None, [*of_use, *[vars(kind).get("__doc__") for kind in classes]]), ""))


@cache
def _presenter(cls: type[TypedTool]) -> Presenter:
    return presenter(read_typed_tool(cls).returns)


@lru_cache(maxsize=1024)
def _intern(spec: ToolSpec) -> ToolSpec:
    """Return the first of equal specs, which stores its encoded forms and its validator."""
    return spec
