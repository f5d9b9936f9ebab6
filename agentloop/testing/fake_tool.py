"""Tools that do nothing but return what a test says, and know how they were called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Self, TypeAlias

from attrs import frozen

from agentloop.contracts.tool import DEFAULT_POLICY, CanAccessToolContext, Tool, ToolContext, ToolFromSpec, ToolPolicy
from agentloop.tools.decorator import collect_tools
from agentloop.values.json import freeze_object
from agentloop.values.tool_calls import Effect, EgressLike, ToolSpec
from agentloop.values.value import Value

_ANYTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}

Reply: TypeAlias = Any
"""What a call gets: a result, an error to raise, or a function of the arguments that returns either."""


@frozen(eq=False, repr=False)
class FakeCall(Value):
    """A call of a fake tool.

    Attributes:
        arguments: its arguments.
        key: its idempotency key; empty outside of an execution.
        attempt: the 1-based attempt.
    """

    arguments: Mapping[str, Any]
    key: str = ""
    attempt: int = 1


class FakeTool(ToolFromSpec, CanAccessToolContext):
    """A tool that returns what a test says, and keeps its calls. It runs in this process, whatever the executor.

        search = FakeTool("search", returns=["a lamp", TimeoutError("slow")])
        pay = FakeTool(real_pay, returns="paid")

    The executor validates the arguments as those of any tool.

    Args:
        tool: a name; or a tool or a function, which is not called, but whose name, description, schema, effect, egress and
            policy the fake has.
        returns: what each call gets. Of a list, each call gets the next element, and those behind the last one get that one.
        parameters: for a name: a JSON Schema of its arguments; by default any are accepted.
        effect: for a name: the effect that it declares.
        egress: for a name: whether data can leave by a call, as in `@tool(egress=…)`.

    Attributes:
        calls: the calls so far, of all executions.
    """

    def __init__(
        self,
        tool: str | Tool | Callable[..., Any],
        *,
        returns: Reply | Sequence[Reply] = "done",
        parameters: Mapping[str, Any] = _ANYTHING,
        effect: Effect | str = Effect.EFFECT,
        egress: EgressLike = False,
    ) -> None:
        self._policy = DEFAULT_POLICY
        if isinstance(tool, str):
            self._spec = ToolSpec(tool, f"A fake of {tool}.", freeze_object(parameters), Effect(effect), egress=egress)
        else:
            (real,) = collect_tools([tool])
            self._spec, self._policy = real.spec, real.policy
        self._replies = list(returns) if isinstance(returns, list | tuple) else [returns]
        self._context: ToolContext | None = None
        self.calls: list[FakeCall] = []

    def __repr__(self) -> str:
        return f"FakeTool({self.name!r}: {len(self.calls)} calls)"

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return self._spec

    @property
    def policy(self) -> ToolPolicy:
        """How executors run it."""
        return self._policy

    @property
    def is_local(self) -> bool:
        """True: its calls are kept in this process."""
        return True

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves the call of this context; both have the same list of calls."""
        bound = copy(self)
        bound._context = context  # noqa: SLF001  # of this class
        return bound

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Keep the call, and return what it gets.

        Raises:
            Exception: what it gets is an error.
        """
        context = self._context
        number = len(self.calls)
        known = ("", 1) if context is None else (context.idempotency_key, context.attempt)
        self.calls.append(FakeCall(arguments, *known))
        reply = self._replies[min(number, len(self._replies) - 1)] if self._replies else None
        if callable(reply):
            reply = reply(**arguments)
        if isinstance(reply, Exception):
            raise reply
        return reply

    # --- assertions -------------------------------------------------------------------------------------------------

    def assert_called(self, *, times: int | None = None) -> None:
        """Check that it was called, or how often.

        Raises:
            AssertionError: it was not; shows the calls.
        """
        if times is None and not self.calls:
            raise AssertionError(f"{self.name} was not called")
        if times is not None and len(self.calls) != times:
            raise AssertionError(f"{self.name} was called {len(self.calls)} times, not {times}\n{self._listed()}")

    def assert_called_with(self, **arguments: Any) -> None:
        """Check that some call had exactly these arguments.

        Raises:
            AssertionError: none had; shows the calls.
        """
        if not any(dict(call.arguments) == arguments for call in self.calls):
            raise AssertionError(f"{self.name} was not called with {arguments}\n{self._listed()}")

    def assert_called_once_with(self, **arguments: Any) -> None:
        """Check that it was called once, with exactly these arguments.

        Raises:
            AssertionError: it was not; shows the calls.
        """
        self.assert_called(times=1)
        self.assert_called_with(**arguments)

    def assert_not_called(self) -> None:
        """Check that it was not called.

        Raises:
            AssertionError: it was; shows the calls.
        """
        self.assert_called(times=0)

    def _listed(self) -> str:
        return "\n".join(["the calls:", *[f"  {dict(call.arguments)}" for call in self.calls]])
