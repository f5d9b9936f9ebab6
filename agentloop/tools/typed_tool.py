"""Tools written as classes, read from their signature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from inspect import iscoroutinefunction
from typing import Any

from agentloop.contracts.tool import CanPrepareArguments, CanPresentResult, Tool
from agentloop.errors import ToolDefinitionError
from agentloop.tools.presentation import Presenter, presenter
from agentloop.tools.signature import Signature
from agentloop.values.json_value import JsonObject
from agentloop.values.tool_result import ToolResult
from agentloop.values.tool_spec import ToolSpec


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
        return _read(type(self)).documented[0]

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of the parameters of `use`."""
        return _read(type(self)).documented[1]

    @property
    def spec(self) -> ToolSpec:
        """What a model sees; the same value every time for one class."""
        return _same(super().spec)

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Structure arguments that satisfy the schema into the annotated types.

        Raises:
            InvalidArguments: when one does not fit its type after all.
        """
        return _read(type(self)).prepare(arguments)

    def present(self, result: Any) -> ToolResult:
        """Check the result against the declared return type and turn it into JSON.

        Raises:
            ToolFailed: when it does not fit, or has no JSON form.
        """
        return _presenter(type(self))(result)


@cache
def _read(cls: type[TypedTool]) -> Signature:
    if not iscoroutinefunction(cls.use):
        raise ToolDefinitionError(f"{cls.__qualname__}.use is not async; write it as async def, or use @tool")
    own = (cls.use.__doc__ or "") if "use" in vars(cls) else ""
    text = "" if own else vars(cls).get("__doc__") or ""
    bound = cls.use.__get__(object.__new__(cls))
    return Signature.of(bound, description=text, name=cls.__name__)


@cache
def _presenter(cls: type[TypedTool]) -> Presenter:
    return presenter(_read(cls).returns)


@cache
def _same(spec: ToolSpec) -> ToolSpec:
    """Return the first of equal specs, which keeps its encoded forms and its validator."""
    return spec
