"""Tools made of functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, ParamSpec, Self, TypeAlias, TypeVar, cast, get_args

from attrs import evolve, field, frozen

from agentloop.contracts.tool import (
    DEFAULT_POLICY,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanPrepareArguments,
    CanPresentResult,
    CanReconcileCall,
    CanUseThread,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.errors import ContractViolation, ToolDefinitionError, ToolFailed
from agentloop.tools.presentation import Presenter
from agentloop.tools.signature import INJECTED, Injected, Signature, hints_of
from agentloop.values.json import JsonObject
from agentloop.values.parts import Media, Text
from agentloop.values.records import CannotTell, Reconciliation
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ContentPart, Effect, ToolCall, ToolResult, ToolSpec


@frozen(eq=False)
class Reconciler:
    """The function behind `reconcile`: it finds out whether an interrupted call has run.

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
    def of(cls, function: Callable[..., Any], signature: Signature) -> Reconciler:
        """Read a function.

        Args:
            function: the function; it takes any of the tool's parameters by their names, and what a tool has injected.
            signature: the tool's.

        Raises:
            ToolDefinitionError: when it takes a parameter that the tool does not have.
        """
        if not callable(function):
            raise ToolDefinitionError(f"reconcile of {signature.name!r} has to be a function, not {function!r:.100}")
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
                    f"the reconcile function of {signature.name!r} takes {name!r}, which the tool has no parameter for"
                )
        return cls(function, frozenset(names), injected)

    def giving(self, kind: Injected, value: object) -> Reconciler:
        """Return a copy that injects this where a parameter wants it."""
        wanted = {name: value for name, injected in self.injected.items() if injected is kind}
        return evolve(self, given={**self._given, **wanted}) if wanted else self

    async def reconcile(self, arguments: Mapping[str, Any]) -> Reconciliation:
        """Find out whether the call with these arguments has run.

        Raises:
            ContractViolation: when the function returns something else than a `Reconciliation`.
            Exception: whatever it raises.
        """
        taken = {name: value for name, value in arguments.items() if name in self.names}
        if inspect.iscoroutinefunction(self.function):
            found = await self.function(**taken, **self._given)
        else:
            found = await asyncio.to_thread(self.function, **taken, **self._given)
        if not isinstance(found, Reconciliation):
            raise ContractViolation(
                f"the reconcile function returned {found!r:.100}; it returns happened(value), did_not_happen() or cannot_tell(reason)"
            )
        return found


P = ParamSpec("P")
R = TypeVar("R")


@frozen(eq=False)
class FunctionTool(
    Tool,
    CanPrepareArguments,
    CanPresentResult,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanReconcileCall,
    Generic[P, R],
):
    """An async function as a tool; made by `@tool`, and still callable as the function it was.

    Attributes:
        function: the function.
        signature: what was read from it.
    """

    function: Callable[P, R]
    signature: Signature = field(repr=False)
    _effect: Effect = field(repr=False)
    _present: Presenter = field(repr=False)
    _schema: JsonObject | None = field(default=None, repr=False)
    _policy: ToolPolicy = field(default=DEFAULT_POLICY, repr=False)
    _reconciler: Reconciler | None = field(default=None, repr=False)
    _given: Mapping[str, object] = field(factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The name by which a model calls it."""
        return self.signature.name

    @property
    def description(self) -> str:
        """What it does and when to use it."""
        return self.spec.description

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of what a model gives."""
        return self.spec.parameters

    @property
    def effect(self) -> Effect:
        """What calling it does to the world."""
        return self._effect

    @property
    def policy(self) -> ToolPolicy:
        """How it wants to be run."""
        return self._policy

    @cached_property
    def spec(self) -> ToolSpec:
        """What a model sees; the same value every time, made when it is first asked for."""
        description, parameters = self.signature.documented
        return ToolSpec(self.name, description, self._schema or parameters, self._effect)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as another tool or a test does: nothing is validated or injected."""
        return self.function(*args, **kwargs)

    async def use(self, /, *_: Any, **arguments: Any) -> Any:
        """Await the function with these arguments and what was injected."""
        return await cast("Awaitable[Any]", self._called(arguments))

    async def reconcile(self, /, **arguments: Any) -> Reconciliation:
        """Call the function `reconcile` of the decorator.

        Raises:
            Exception: whatever it raises.
        """
        return CannotTell() if self._reconciler is None else await self._reconciler.reconcile(arguments)

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Structure arguments that satisfy the schema into the annotated types.

        Raises:
            InvalidArguments: when one does not fit its type after all, or is injected by the program.
        """
        return self.signature.prepare(arguments)

    def present(self, result: Any) -> ToolResult:
        """Check the result against the declared return type and turn it into JSON.

        Raises:
            ToolFailed: when it does not fit, or has no JSON form.
        """
        return self._present(result)

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that injects this state where a parameter wants it."""
        return self._giving(AgentState, state)

    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that injects this call where a parameter wants it."""
        return self._giving(ToolCall, call)

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that injects this context where a parameter wants it."""
        return self._giving(ToolContext, context)

    def _giving(self, kind: Injected, value: object) -> Self:
        wanted = {name: value for name, injected in self.signature.injected.items() if injected is kind}
        reconciler = None if self._reconciler is None else self._reconciler.giving(kind, value)
        if not wanted and reconciler is self._reconciler:
            return self
        return evolve(self, given={**self._given, **wanted}, reconciler=reconciler)

    def _called(self, arguments: Mapping[str, Any]) -> Any:
        call = cast("Callable[..., Any]", self.function)
        return call(**arguments, **self._given)


@frozen(eq=False)
class PlainFunctionTool(FunctionTool[P, R], CanUseThread):
    """A plain function as a tool; an executor runs it in a thread."""

    async def use(self, /, *_: Any, **arguments: Any) -> Any:
        """Run the function in a thread of asyncio's."""
        return await asyncio.to_thread(self._called, arguments)

    def use_in_thread(self, /, **arguments: Any) -> Any:
        """Call the function with these arguments and what was injected."""
        return self._called(arguments)


Shown: TypeAlias = str | ContentPart | Sequence[str | ContentPart]
"""What a model can be shown: text, a part, or several of them."""
Show: TypeAlias = Callable[[Any], Shown]
"""A function of what a tool returned."""


def showing(show: Show, present: Presenter) -> Presenter:
    """Return a presenter whose results stand whole in the state, while the model is shown what the function makes of them."""

    def shown(result: Any) -> ToolResult:
        whole = present(result)
        try:
            return ToolResult(whole.value, _parts(show(result)))
        except Exception as error:
            raise ToolFailed(f"the tool ran, but what to show of its result could not be told: {error}") from error

    return shown


def _parts(shown: Shown) -> list[ContentPart]:
    given = [shown] if isinstance(shown, str | Text | Media) else list(shown)
    parts = [Text(one) if isinstance(one, str) else one for one in given]
    for part in parts:
        if not isinstance(part, Text | Media):
            raise TypeError(f"a model is shown text and media, not {type(part).__name__}")
    return parts
