"""Tools written as classes, read from their signature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from inspect import cleandoc, iscoroutinefunction
from itertools import takewhile
from typing import Any

from agentloop.contracts.tool import CanPrepareArguments, CanPresentResult, Tool
from agentloop.errors import ToolDefinitionError
from agentloop.tools.presentation import Presenter, presenter
from agentloop.tools.signature import Signature
from agentloop.values.json import JsonObject
from agentloop.values.tool_calls import ToolResult, ToolSpec


class TypedTool(Tool, CanPrepareArguments, CanPresentResult):
    """A tool with state of its own: subclass it and write `use` with typed parameters and a docstring.

    Name, description and parameters are read from the class: its name in snake case, the docstring of `use` (or of the
    class), the hints of `use`. Each may be overridden by a class attribute.

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
        return read_typed_tool(type(self)).documented[0]

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of the parameters of `use`."""
        return read_typed_tool(type(self)).documented[1]

    @property
    def spec(self) -> ToolSpec:
        """What a model sees; the same value every time for one class."""
        return _same(super().spec)

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Structure arguments that satisfy the schema into the annotated types.

        Raises:
            InvalidArguments: when one does not fit its type after all.
        """
        return read_typed_tool(type(self)).prepare(arguments)

    def present(self, result: Any) -> ToolResult:
        """Check the result against the declared return type and turn it into JSON.

        Raises:
            ToolFailed: when it does not fit, or has no JSON form.
        """
        return _presenter(type(self))(result)


@cache
def read_typed_tool(cls: type[TypedTool]) -> Signature:
    """Read the `use` of a class, once.

    Raises:
        ToolDefinitionError: when it lacks what a model needs; lists all problems.
    """
    if not iscoroutinefunction(cls.use):
        raise ToolDefinitionError(f"{cls.__qualname__}.use is not async; write it as async def, or use @tool")
    given = (
        "" if cls.description is TypedTool.description else cls.__name__
    )  # a description of its own needs no docstring
    use = cls.use.__get__(object())
    signature = Signature.of(use, description=given, name=cls.__name__, documentation=_documentation(cls))
    if signature.injected:
        name, kind = next(iter(signature.injected.items()))
        raise ToolDefinitionError(
            f"{cls.__qualname__}.use cannot be given {name!r}: only @tool injects; a class that wants the {kind.__name__} "
            "implements CanAccessAgentState, CanAccessToolCall or CanAccessToolContext"
        )
    return signature


def _documentation(cls: type[TypedTool]) -> str:
    """Return the docstring of `use`, else of the class; not those that say what any tool is."""
    own = list(takewhile(lambda kind: kind is not TypedTool, cls.__mro__))
    of_use = [vars(kind)["use"].__doc__ for kind in own if "use" in vars(kind)]
    return cleandoc(next(filter(None, [*of_use, *[vars(kind).get("__doc__") for kind in own]]), ""))


@cache
def _presenter(cls: type[TypedTool]) -> Presenter:
    return presenter(read_typed_tool(cls).returns)


@lru_cache(maxsize=1024)
def _same(spec: ToolSpec) -> ToolSpec:
    """Return the first of equal specs, which keeps its encoded forms and its validator."""
    return spec
