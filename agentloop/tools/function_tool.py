"""Tools made of functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

from attrs import evolve, field, frozen

from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanPrepareArguments,
    CanPresentResult,
    CanProbeCall,
    CanUseThread,
    Tool,
)
from agentloop.contracts.tool_context import ToolContext
from agentloop.contracts.tool_policy import DEFAULT_POLICY, ToolPolicy
from agentloop.tools.presentation import Presenter
from agentloop.tools.probing import Prober
from agentloop.tools.signature import Signature
from agentloop.tools.signature_reader import Injected
from agentloop.values.agent_state import AgentState
from agentloop.values.in_doubt import CannotTell, Probed
from agentloop.values.json_value import JsonObject
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_result import ToolResult
from agentloop.values.tool_spec import Effect, ToolSpec

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
    CanProbeCall,
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
    _prober: Prober | None = field(default=None, repr=False)
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

    async def probe(self, /, **arguments: Any) -> Probed:
        """Ask the function that was given as `probe`.

        Raises:
            Exception: whatever it raises.
        """
        return CannotTell() if self._prober is None else await self._prober.ask(arguments)

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
        prober = None if self._prober is None else self._prober.giving(kind, value)
        if not wanted and prober is self._prober:
            return self
        return evolve(self, given={**self._given, **wanted}, prober=prober)

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
