"""Functions that become tools with a hidden first parameter, and that know their call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from agentloop.contracts.tool import ToolContext
from agentloop.errors import ToolDefinitionError
from agentloop.tools import signature
from agentloop.tools.hints import function_hints
from agentloop.values.tool_calls import ToolCall

CONTEXT, CALL = "agentloop_context", "agentloop_call"
"""The parameters that are added to the function, which the executor injects."""


@frozen
class KeyedFunction:
    """A function without its first parameter, and with the context and the call as further ones.

    Attributes:
        function: the function.
        resource: the name of its first parameter.
        hints: its type hints, resolved.
    """

    function: Callable[..., Any]
    resource: str
    hints: Mapping[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any], decorator: str, *, is_async: bool) -> KeyedFunction:
        """Read a function.

        Args:
            function: the function.
            decorator: the name of the decorator, for error messages.
            is_async: whether it has to be a coroutine function; otherwise it may not be one.

        Raises:
            ToolDefinitionError: it is of the other kind, or has no parameter that can be hidden.
        """
        if not inspect.isroutine(function):
            raise ToolDefinitionError(
                f"@{decorator} takes a function, not {function!r:.100}; give its options in parentheses"
            )
        if signature.is_async(function) != is_async:
            kind = "an async function" if is_async else "a plain function, which runs in a thread"
            raise ToolDefinitionError(f"@{decorator} takes {kind}: {function.__qualname__}() is another one")
        names = list(inspect.signature(function).parameters)
        if not names or signature.is_method(function):
            raise ToolDefinitionError(
                f"the first parameter of {function.__qualname__}() has to take what @{decorator} passes to it"
            )
        return cls(function, names[0], function_hints(function))

    def expose(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function that takes `**arguments` the name, the docstring and the parameters that the model sees.

        Args:
            run: takes the arguments of the model, and the context and the call under the names `CONTEXT` and `CALL`.
        """
        own = inspect.signature(self.function)
        shown = [parameter for name, parameter in own.parameters.items() if name != self.resource]
        added = {CONTEXT: ToolContext, CALL: ToolCall}
        kind = inspect.Parameter.KEYWORD_ONLY
        hidden = [inspect.Parameter(name, kind, annotation=hint) for name, hint in added.items()]
        exposed: Any = run
        exposed.__name__, exposed.__qualname__ = self.function.__name__, self.function.__qualname__
        exposed.__doc__, exposed.__module__ = self.function.__doc__, self.function.__module__
        exposed.__annotations__ = {name: hint for name, hint in self.hints.items() if name != self.resource} | added
        exposed.__signature__ = own.replace(parameters=[*shown, *hidden])
        return run
