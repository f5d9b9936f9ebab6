"""Toy tools with known behavior, for kits and tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

from attrs import field, frozen
from hypothesis import strategies as st

from agentloop.contracts.tool import DEFAULT_POLICY, CanAccessAgentState, CanUseThread, Tool, ToolPolicy
from agentloop.interception.interceptor import Interceptor
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import Effect, ToolCall

_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0},
        "seconds": {"type": "number", "minimum": 0},
        "key": {"type": "string"},
    },
    "required": ["value"],
    "additionalProperties": False,
}
PARAMETERS: JsonObject = freeze_object(_PARAMETERS)
"""The schema of every toy tool: a required integer `value` >= 0, and optional `seconds` and `key`."""


@frozen
class Ledger:
    """A record of the calls that toy tools really ran, independent of the code under test.

    Attributes:
        calls: the name and the arguments of each call, in the order in which the calls started.
    """

    calls: list[tuple[str, dict[str, Any]]] = field(factory=list)

    def record(self, name: str, arguments: dict[str, Any]) -> None:
        """Add a call that has just started."""
        self.calls.append((name, dict(arguments)))


def toy_tools(ledger: Ledger, effect: Effect = Effect.EFFECT) -> list[Tool]:
    """Return one toy tool of each kind, all with this declared effect.

    | Name | Behavior |
    |---|---|
    | `echo` | returns its `value` |
    | `plain` | returns its `value`; runs in a thread |
    | `whoami` | returns the id of the agent |
    | `fail` | raises `RuntimeError` |
    | `stop` | raises `AgentStop` |
    | `broken` | returns a value that has no JSON form |
    | `alone` | is sequential: no other call of the batch runs at the same time |
    | `keyed` | runs one call at a time for each value of its argument `key` |
    | `hasty` | has a timeout of one second |
    """
    return [
        ToyTool("echo", ledger, _echo, effect=effect),
        ThreadedToyTool("plain", ledger, _echo, effect=effect),
        ToyTool("whoami", ledger, lambda _, state: state.agent_id if state is not None else "", effect=effect),
        ToyTool("fail", ledger, _fail, effect=effect),
        ToyTool("stop", ledger, _stop, effect=effect),
        ToyTool("broken", ledger, lambda _, __: object(), effect=effect),
        ToyTool("alone", ledger, _echo, ToolPolicy(sequential=True), effect=effect),
        ToyTool("keyed", ledger, _echo, ToolPolicy(key=lambda arguments: arguments.get("key", "")), effect=effect),
        ToyTool("hasty", ledger, _echo, ToolPolicy(timeout=1.0), effect=effect),
    ]


def toy_call(name: str, value: object = 0, *, id: str = "", **arguments: object) -> ToolCall:  # noqa: A002  # names the field
    """Return a call of a toy tool.

    Args:
        name: the name of the tool, which need not exist.
        value: its argument `value`, which need not be valid.
        id: the id of the call.
        **arguments: further arguments, as JSON values.
    """
    return ToolCall(id, name, json.dumps({"value": value, **arguments}))


class _Toy(Tool, CanAccessAgentState):
    """Properties and state shared by the toys that run in the event loop and in threads.

    Args:
        name: the tool's name.
        ledger: receives each call that starts.
        function: returns the result for the argument `value` and the agent's state; it may raise.
        policy: how the tool wants to be executed.
        effect: the effect that it declares.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        function: Callable[[int, AgentState | None], Any],
        policy: ToolPolicy = DEFAULT_POLICY,
        *,
        effect: Effect = Effect.EFFECT,
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._function = function
        self._policy = policy
        self._effect = effect
        self._state: AgentState | None = None

    @property
    def name(self) -> str:
        """The tool's name."""
        return self._name

    @property
    def description(self) -> str:
        """A description made from the name."""
        return f"A toy that serves to {self._name}."

    @property
    def parameters(self) -> JsonObject:
        """`PARAMETERS`, the schema of all toys."""
        return PARAMETERS

    @property
    def effect(self) -> Effect:
        """`Effect.EFFECT` by default: the ledger changes."""
        return self._effect

    @property
    def policy(self) -> ToolPolicy:
        """How the tool wants to be executed."""
        return self._policy

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that passes this state to its function."""
        bound = type(self)(self._name, self._ledger, self._function, self._policy, effect=self._effect)
        bound._state = state  # noqa: SLF001  # of the same class
        return bound

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"


class ToyTool(_Toy):
    """A tool that records its call in a ledger, sleeps for `seconds`, and calls a function.

    Args:
        name: the tool's name.
        ledger: receives each call that starts.
        function: returns the result for the argument `value` and the agent's state; it may raise.
        policy: how the tool wants to be executed.
    """

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Record the call, sleep, and return the function's result."""
        self._ledger.record(self._name, arguments)
        if arguments.get("seconds"):
            await asyncio.sleep(arguments["seconds"])
        return self._function(arguments["value"], self._state)


class ThreadedToyTool(_Toy, CanUseThread):
    """A toy tool that runs in a thread. It does not sleep: the event loop's virtual time ignores threads."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Do the same as `use_in_thread`."""
        return self.use_in_thread(**arguments)

    def use_in_thread(self, **arguments: Any) -> Any:
        """Record the call, and return the function's result."""
        self._ledger.record(self._name, arguments)
        return self._function(arguments["value"], self._state)


def _echo(value: int, _: AgentState | None) -> int:
    return value


def _fail(value: int, _: AgentState | None) -> int:
    raise RuntimeError(f"the toy fails on {value}")


def _stop(value: int, _: AgentState | None) -> int:
    raise AgentStop(f"the toy stops at {value}")


# Batches of calls, for property tests.

_NAMES = ("echo", "whoami", "fail", "stop", "broken", "alone", "keyed", "hasty")
_ASYNC_CALLS = st.builds(
    toy_call,
    st.sampled_from(_NAMES),
    st.integers(0, 30),
    id=st.sampled_from(["", "call_1", "call_2"]),
    seconds=st.sampled_from([0, 0.5, 2, 3]),
    key=st.sampled_from(["a", "b"]),
)
_THREADED_CALLS = st.builds(toy_call, st.sampled_from(["plain", "echo", "alone"]), st.integers(0, 30))
_INVALID_CALLS = st.one_of(
    st.builds(toy_call, st.sampled_from(["ekko", "", "no such tool"]), st.integers(0, 5)),
    st.builds(toy_call, st.just("echo"), st.sampled_from(["text", -1, None, 1.5, [1]])),
    st.builds(toy_call, st.just("echo"), st.just(1), surplus=st.booleans()),
    st.builds(
        ToolCall,
        st.just("x"),
        st.just("echo"),
        st.sampled_from(['{"value": 1', "[1]", '"text"', "nonsense", "NaN", '{"value": NaN}', "", "null", "{} {}"]),
    ),
)


def _mostly(valid: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[ToolCall]:
    """Draw four valid calls for each invalid one."""
    return st.integers(0, 4).flatmap(lambda roll: _INVALID_CALLS if roll == 0 else valid)


BATCHES = st.lists(_mostly(_ASYNC_CALLS), max_size=8)
"""Batches of valid and invalid calls of toy tools; sleeping takes virtual time only."""
THREADED_BATCHES = st.lists(_mostly(_THREADED_CALLS), max_size=6)
"""Batches with calls that run in threads."""


class Gatekeeper(Interceptor):
    """Blocks, answers, suspends and edits calls depending on their argument `value`, and counts calls in the state."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block 3, answer 4, suspend 5, and change 6 to 60."""
        seen = point.state.context.metadata.get("seen", 0)
        point = point.with_state(point.state.with_metadata(seen=seen + 1))
        value = point.arguments["value"]
        if value == 3:  # noqa: PLR2004  # any numbers will do, as long as they differ
            return point.block("three is not allowed")
        if value == 4:  # noqa: PLR2004
            return point.answer(44)
        if value == 5:  # noqa: PLR2004
            return point.suspend("five needs a decision")
        return point.with_arguments({**point.arguments, "value": 60}) if value == 6 else point  # noqa: PLR2004

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Replace the result 7."""
        return point.with_value("changed") if point.execution.value == 7 else point  # noqa: PLR2004
