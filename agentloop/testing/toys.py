"""Tools whose behavior is known: what kits and tests call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

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
"""The schema of every toy: an integer `value` from 0, and optional `seconds` and `key`."""


@frozen
class Ledger:
    """What toys were called with: an account that lies outside of everything that is tested.

    Attributes:
        calls: the name of each toy that ran, with its arguments, in the order in which they began.
    """

    calls: list[tuple[str, dict[str, Any]]] = field(factory=list)

    def record(self, name: str, arguments: dict[str, Any]) -> None:
        """Note that a toy began to run."""
        self.calls.append((name, dict(arguments)))


class ToyTool(Tool, CanAccessAgentState):
    """A tool that notes its call in a ledger, waits, and does what it is made for.

    Args:
        name: its name.
        ledger: where it notes its calls.
        does: makes its result of the value that it is called with and the state; it may raise.
        policy: how it wants to be run.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        does: Callable[[int, AgentState | None], Any],
        policy: ToolPolicy = DEFAULT_POLICY,
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._does = does
        self._policy = policy
        self._state: AgentState | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def description(self) -> str:
        """What it is for."""
        return f"A toy that serves to {self._name}."

    @property
    def parameters(self) -> JsonObject:
        """The schema that all toys have."""
        return PARAMETERS

    @property
    def effect(self) -> Effect:
        """An effect: it is noted in the ledger."""
        return Effect.EFFECT

    @property
    def policy(self) -> ToolPolicy:
        """How it wants to be run."""
        return self._policy

    def with_agent_state(self, state: AgentState) -> ToyTool:
        """Return a copy that may read this state."""
        bound = type(self)(self._name, self._ledger, self._does, self._policy)
        bound._state = state  # noqa: SLF001  # of the same class
        return bound

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Note the call, wait for `seconds`, and do it."""
        self._ledger.record(self._name, arguments)
        if arguments.get("seconds"):
            await asyncio.sleep(arguments["seconds"])
        return self._does(arguments["value"], self._state)

    def __repr__(self) -> str:
        return f"Toy({self._name!r})"


class ThreadedToyTool(ToyTool, CanUseThread):
    """A toy that works in a thread; it does not wait."""

    def use_in_thread(self, **arguments: Any) -> Any:
        """Note the call, and do it."""
        self._ledger.record(self._name, arguments)
        return self._does(arguments["value"], self._state)


def toy_tools(ledger: Ledger) -> list[Tool]:
    """Return one toy of each kind.

    `echo` returns its value, `plain` does so in a thread, `whoami` returns the agent's id; `fail` raises, `stop` raises
    AgentStop, `broken` returns what is not JSON; `alone` is sequential; `keyed` is ordered by its argument `key`; `hasty` has a
    timeout of one second.
    """
    return [
        ToyTool("echo", ledger, _echo),
        ThreadedToyTool("plain", ledger, _echo),
        ToyTool("whoami", ledger, lambda _, state: state.agent_id if state is not None else ""),
        ToyTool("fail", ledger, _fail),
        ToyTool("stop", ledger, _stop),
        ToyTool("broken", ledger, lambda _, __: object()),
        ToyTool("alone", ledger, _echo, ToolPolicy(sequential=True)),
        ToyTool("keyed", ledger, _echo, ToolPolicy(key=lambda arguments: arguments.get("key", ""))),
        ToyTool("hasty", ledger, _echo, ToolPolicy(timeout=1.0)),
    ]


def toy_call(name: str, value: object = 0, *, id: str = "", **arguments: object) -> ToolCall:  # noqa: A002  # names the field
    """Make the call of a toy."""
    return ToolCall(id, name, json.dumps({"value": value, **arguments}))


def _echo(value: int, _: AgentState | None) -> int:
    return value


def _fail(value: int, _: AgentState | None) -> int:
    raise RuntimeError(f"the toy fails on {value}")


def _stop(value: int, _: AgentState | None) -> int:
    raise AgentStop(f"the toy stops at {value}")


_NAMES = ("echo", "whoami", "fail", "stop", "broken", "alone", "keyed", "hasty")
_ASYNC_CALLS = st.builds(
    toy_call,
    st.sampled_from(_NAMES),
    st.integers(0, 30),
    id=st.sampled_from(["", "call_1", "call_2"]),
    seconds=st.sampled_from([0, 0.5, 2, 3]),
    key=st.sampled_from(["a", "b"]),
)
_PLAIN_CALLS = st.builds(toy_call, st.sampled_from(["plain", "echo", "alone"]), st.integers(0, 30))
_BAD_CALLS = st.one_of(
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


def _mostly(good: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[ToolCall]:
    """Draw four good calls for each bad one."""
    return st.integers(0, 4).flatmap(lambda one: _BAD_CALLS if one == 0 else good)


BATCHES = st.lists(_mostly(_ASYNC_CALLS), max_size=8)
"""Batches of good and bad calls of the toys; waiting takes virtual time."""
PLAIN_BATCHES = st.lists(_mostly(_PLAIN_CALLS), max_size=6)
"""Batches that use threads."""


class Gatekeeper(Interceptor):
    """Blocks, answers, suspends and changes calls, each by the value that the call carries; counts in the state."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Give a verdict by the value."""
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
        """Change some outcomes."""
        return point.with_value("changed") if point.execution.value == 7 else point  # noqa: PLR2004
