"""Functions that find out whether a call of a tool that was interrupted has run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

from attrs import evolve, field, frozen

from agentloop.errors import ContractViolation, ToolDefinitionError
from agentloop.tools.signature import Signature
from agentloop.tools.signature_reader import INJECTED, Injected, hints_of
from agentloop.values.in_doubt import Probed


@frozen(eq=False)
class Prober:
    """A function that is asked what became of a call.

    Attributes:
        function: the function, plain or async.
        names: the tool's parameters that it takes.
        injected: the parameters that are injected, with what into each.
    """

    function: Callable[..., Any]
    names: frozenset[str]
    injected: Mapping[str, Injected]
    _given: Mapping[str, object] = field(factory=dict, repr=False)

    @classmethod
    def of(cls, function: Callable[..., Any], signature: Signature) -> Prober:
        """Read a function.

        Args:
            function: the function; it takes any of the tool's parameters by their names, and what a tool has injected.
            signature: the tool's.

        Raises:
            ToolDefinitionError: when it takes a parameter that the tool does not have.
        """
        if not callable(function):
            raise ToolDefinitionError(f"the probe of {signature.name!r} has to be a function, not {function!r:.100}")
        hints = hints_of(function)
        names, injected = set[str](), dict[str, Injected]()
        for name, parameter in inspect.signature(function).parameters.items():
            kind = next((one for one in INJECTED if hints.get(name) is one or one in get_args(hints.get(name))), None)
            if kind is not None:
                injected[name] = kind
            elif name in signature.hints:
                names.add(name)
            elif parameter.default is parameter.empty:
                raise ToolDefinitionError(
                    f"the probe of {signature.name!r} takes {name!r}, which the tool has no parameter for"
                )
        return cls(function, frozenset(names), injected)

    def giving(self, kind: Injected, value: object) -> Prober:
        """Return a copy that injects this where a parameter wants it."""
        wanted = {name: value for name, injected in self.injected.items() if injected is kind}
        return evolve(self, given={**self._given, **wanted}) if wanted else self

    async def ask(self, arguments: Mapping[str, Any]) -> Probed:
        """Ask about the call with these arguments.

        Raises:
            ContractViolation: when the function returns nothing that it may.
            Exception: whatever it raises.
        """
        taken = {name: value for name, value in arguments.items() if name in self.names}
        if inspect.iscoroutinefunction(self.function):
            found = await self.function(**taken, **self._given)
        else:
            found = await asyncio.to_thread(self.function, **taken, **self._given)
        if not isinstance(found, Probed):
            raise ContractViolation(
                f"the probe returned {found!r:.100}; it returns happened(value), did_not_happen() or cannot_tell(reason)"
            )
        return found
