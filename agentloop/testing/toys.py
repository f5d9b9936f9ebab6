"""Toy tools with known behavior, for kits and tests."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

from hypothesis import strategies as st

from agentloop.contracts.tool import (
    DEFAULT_POLICY,
    CanAccessAgentState,
    CanAccessToolContext,
    CanUseThread,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.errors import ToolFailed
from agentloop.interception.interceptor import Interceptor
from agentloop.values.decisions import (
    Answer,
    CallSuspended,
    Decision,
    Deny,
    Edit,
    PendingCall,
    answer,
    approve,
    deny,
    edit,
)
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolStatus

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

CANCELLATIONS: tuple[float, ...] = (0.4871, 1.5127, 2.5073)
"""The seconds after which what runs toys is cancelled: between their ends, and where no other wait is likely to end, since what
begins in the very instant of a cancellation is not late."""


RICH_TEXTS: tuple[str, ...] = (
    "done",
    "Straße, naïve, 東京, שלום, 👩‍👩‍👧",
    "e\u0301 and \u00e9, \u2028, \ufeff",
    "  two lines,\n\tand spaces around  ",
    "A" * 70_000,
    "Ünïcode " * 1_000,
)
"""Texts that are long, or have characters outside of ASCII or white space that is easily lost."""

RICH_RESULTS: tuple[object, ...] = (
    *RICH_TEXTS,
    "",
    None,
    True,
    0.1,
    -0.0,
    2**70,
    [],
    [[1, [2, [3, {"four": [None, False]}]]]],
    {"b": 1, "a": {"Ä": "ä", "": [1.5, "1.5"]}, "long": "x" * 2_000},
    [{"row": number, "text": "é" * number} for number in range(150)],
)
"""Results of every form that JSON has, long, nested and empty ones."""


class Ledger:
    """A record of the calls that toy tools really ran, independent of the code under test.

    Args:
        calls: the list to add to; a new one by default.
    """

    def __init__(self, calls: list[tuple[str, dict[str, Any]]] | None = None) -> None:
        self._calls = [] if calls is None else calls

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The name and the arguments of each call, in the order in which the calls started."""
        return self._calls

    @property
    def values(self) -> list[Any]:
        """The argument `value` of each call, in the same order."""
        return [arguments.get("value") for _, arguments in self.calls]

    def record(self, name: str, arguments: dict[str, Any]) -> None:
        """Add a call that has just started."""
        self._calls.append((name, dict(arguments)))

    def clear(self) -> None:
        """Forget the calls so far."""
        self._calls.clear()


class FileLedger(Ledger):
    """A ledger in a file, for toys that run in another process: both processes make one of the same path.

    Args:
        path: the file; it is made with the first call.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
        self._start = 0

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls that were added since the last `clear`, by any process."""
        if not self._path.exists():
            return []
        lines = self._path.read_bytes()[self._start :].splitlines()
        return [(name, arguments) for name, arguments in map(json.loads, lines)]

    def record(self, name: str, arguments: dict[str, Any]) -> None:
        """Add a line to the file; lines of several processes follow each other."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, json.dumps([name, arguments]).encode() + b"\n")
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Skip the calls so far; what other processes add is not lost."""
        self._start = self._path.stat().st_size if self._path.exists() else 0


def toy_tools(ledger: Ledger, effect: Effect = Effect.EFFECT, *, second: float = 1.0) -> list[Tool]:
    """Return one toy tool of each kind, all with this declared effect.

    - `echo`: returns its `value`
    - `plain`: returns its `value`; runs in a thread
    - `whoami`: returns the id of the agent
    - `fail`: raises `RuntimeError`
    - `stop`: raises `AgentStop`
    - `broken`: raises `ToolFailed`, as for a result that cannot be used
    - `alone`: is sequential: no other call of the batch runs at the same time
    - `keyed`: runs one call at a time for each value of its argument `key`
    - `hasty`: has a timeout of one second
    - `tell`: returns one of `RICH_RESULTS`
    - `count`: returns how many calls have begun when it begins
    - `defer`: suspends its call once, with its `value` as progress; then returns the progress that it gets back

    Args:
        ledger: receives each call that starts.
        effect: the effect that the tools declare.
        second: how long their seconds are; a fraction of one where they run in real time.
    """
    hasty = ToolPolicy(timeout=1.0 * second)
    toys = [
        ToyTool("echo", ledger, _echo),
        ThreadedToyTool("plain", ledger, _echo),
        ToyTool("whoami", ledger, lambda _, state: state.agent_id if state is not None else ""),
        ToyTool("fail", ledger, _fail),
        ToyTool("stop", ledger, _stop),
        ToyTool("broken", ledger, _break),
        ToyTool("alone", ledger, _echo, ToolPolicy(sequential=True)),
        ToyTool("keyed", ledger, _echo, ToolPolicy(key=lambda arguments: arguments.get("key", ""))),
        ToyTool("hasty", ledger, _echo, hasty),
        ToyTool("tell", ledger, lambda value, _: RICH_RESULTS[value % len(RICH_RESULTS)]),
        CountingToyTool("count", ledger, _echo),
        DeferringToyTool("defer", ledger, _echo),
    ]
    return [toy.adapted(effect, second) for toy in toys]


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
        self._second = 1.0
        self._state: AgentState | None = None

    def adapted(self, effect: Effect, second: float) -> Self:
        """Return a copy with this effect and this length of a second."""
        toy = copy(self)
        toy._effect, toy._second = effect, second  # noqa: SLF001  # of the same class
        return toy

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
        bound = copy(self)
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
            await asyncio.sleep(arguments["seconds"] * self._second)
        return self._function(arguments["value"], self._state)


class CountingToyTool(_Toy):
    """A toy tool whose result tells one run from another, even of equal calls."""

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Record the call, sleep, and return the number of calls when it began."""
        self._ledger.record(self._name, arguments)
        count = len(self._ledger.calls)
        if arguments.get("seconds"):
            await asyncio.sleep(arguments["seconds"] * self._second)
        return count


class DeferringToyTool(_Toy, CanAccessToolContext):
    """A toy tool that suspends its call when it is called for the first time."""

    _context: ToolContext | None = None

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy with the context of the call."""
        bound = copy(self)
        bound._context = context  # noqa: SLF001  # of the same class
        return bound

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Record the call, and suspend it, or return what was kept when it was suspended.

        Raises:
            CallSuspended: when the call begins.
        """
        self._ledger.record(self._name, arguments)
        resumed = None if self._context is None else self._context.resumed
        if resumed is None:
            raise CallSuspended("the toy asks", progress=arguments["value"])
        return resumed.progress


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


def _break(value: int, _: AgentState | None) -> int:
    raise ToolFailed(f"the result of the toy cannot be used for {value}")


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
RICH_BATCHES = st.lists(
    st.builds(
        toy_call,
        st.sampled_from(["tell", "tell", "count", "count", "hasty", "stop", "broken"]),
        st.sampled_from([*range(len(RICH_RESULTS)), *[0] * 8]),
        id=st.sampled_from(["", "call_1", "CALL_1", "call%1", "c" * 64, "c" * 65]),
        seconds=st.sampled_from([0, 0, 0.5, 3]),
    ),
    min_size=1,
    max_size=5,
)
"""Batches of calls with rich results, of results that count and so differ for equal calls, and of ids that are nearly equal."""
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


# Calls that wait for decisions. A call whose `value` is a multiple of five waits, and what is decided depends on the value.

_WAITS = 5
_REASON = "the toys are not allowed"


class Doorkeeper(Interceptor):
    """Suspends each call whose `value` is a multiple of five."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Suspend the call, or let it run."""
        return point.suspend("a decision is needed") if point.arguments["value"] % _WAITS == 0 else point


def decide_toys(pending: Sequence[PendingCall]) -> dict[str, Decision]:
    """Return a decision about each pending call that waits for one, by key; `find_disobedience` knows what follows."""
    waiting = [call for call in pending if not call.waits_for or call.begun]
    return {call.key: approve() if call.begun else _decision(call.call.arguments["value"]) for call in waiting}


def _decision(value: int) -> Decision:
    options = (approve(), deny(_REASON), answer(f"answered {value}"), edit({"value": value + 1}))
    return options[value // _WAITS % len(options)]


def find_disobedience(call: ToolCall, execution: ToolExecution, ran: Sequence[int] | None) -> str:
    """Return in which way the outcome of a call is not what was decided about it; empty if it is.

    Args:
        call: the call as the model made it. No other call of the run has its value, nor the next one.
        execution: its outcome.
        ran: the values of the calls that ran; None if that is not known.
    """
    value = call.arguments["value"]
    decision = _decision(value) if value % _WAITS == 0 else approve()
    runs = 1 + (call.name == "defer")  # it is begun, and resumed
    expected: tuple[object, object, Mapping[int, int]]
    match decision:
        case Deny():
            expected = ToolStatus.BLOCKED, None, {value: 0}
        case Answer(value=given):
            expected = ToolStatus.SUCCEEDED, given, {value: 0}
        case Edit(arguments=arguments):
            expected = ToolStatus.SUCCEEDED, arguments["value"], {value: 0, arguments["value"]: runs}
        case _:
            expected = ToolStatus.SUCCEEDED, value, {value: runs}
    runs_of = expected[2] if ran is None else {each: ran.count(each) for each in expected[2]}
    actual = execution.status, execution.value, runs_of
    if actual == expected:
        return ""
    return (
        f"{decision!r} was decided about {call!r}, which gives {expected}; the call has {actual} (status, value, runs)"
    )
