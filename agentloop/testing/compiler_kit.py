"""The law suite of message compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptTools
from agentloop.contracts.can_compile_messages import CanCompileMessages, CanMarkEpoch
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import ToolLike
from agentloop.errors import ToolFailed
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.clocks import CountingIds, ManualClock, run_in_virtual_time
from agentloop.testing.driver_kit import find_unpaired
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.testing.other_time import another_time
from agentloop.testing.samples import NESTED
from agentloop.testing.scenario import SCENARIOS, Scenario, ScriptedTurn
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.tools.decorator import collect_tools, tool
from agentloop.values.epochs import NO_EPOCH, Epoch
from agentloop.values.messages import Message
from agentloop.values.serialization import from_json, to_json
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall, ToolExchange

_CONVERSATIONS = st.lists(SCENARIOS, min_size=1, max_size=3)


class CompilerKit(Kit):
    """Checks a compiler against the laws of `CanCompileMessages`, on conversations of one to three executions with toy tools.

    Args:
        factory: creates a new compiler. The kit binds it to tools and to a scope if it accepts them, once for each execution.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (2, 3, 8, 9, 10, 13)

    def __init__(self, factory: Callable[[], CanCompileMessages], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanCompileMessages] = checked_factory(factory)

    def _for_executions(self, check: Callable[[list[AgentState]], None]) -> None:
        """Run a check on the states of each execution of generated conversations."""

        def holds(scenarios: list[Scenario]) -> None:
            for states in run_in_virtual_time(_converse(scenarios)):
                check(states)

        self.for_all(_CONVERSATIONS, holds)
        for states in run_in_virtual_time(_converse([_RICH, _RICH], tools=_rich_tools())):
            check(states)

    def _bound(self) -> CanCompileMessages:
        compiler = self.factory()
        if isinstance(compiler, CanAcceptTools):
            compiler = compiler.with_tools(collect_tools(toy_tools(Ledger())))
        if isinstance(compiler, CanAcceptExecutionScope):
            compiler = compiler.with_execution_scope(ExecutionScope(clock=ManualClock(), ids=CountingIds()))
        return compiler

    def law_2(self) -> None:
        """Messages are kept or dropped as a whole: none has lost a part of its calls, and every call has its execution."""

        def holds(states: list[AgentState]) -> None:
            compiler = self._bound()
            for state in states:
                groups = {keys for message in state.messages if (keys := _keys_of(message))}
                compiled = tuple(compiler.compile(state))
                torn = [keys for message in compiled if (keys := _keys_of(message)) and keys not in groups]
                require(2, not torn, f"the message with the calls {torn} has other calls in the conversation")
                bare = _find_bare(compiled, state)
                require(2, not bare, f"of messages with calls, only the rest is shown: {bare}")
                unpaired = find_unpaired(compiled)
                require(2, not unpaired, f"an encoded request holds the unpaired calls {unpaired}")

        self._for_executions(holds)

    def law_3(self) -> None:
        """Compiling does not change the state."""

        def holds(states: list[AgentState]) -> None:
            compiler = self._bound()
            for state in states:
                before = to_json(state)
                compiler.compile(state)
                require(3, to_json(state) == before, "the state was changed")

        self._for_executions(holds)

    def law_8(self) -> None:
        """Equal states give equal messages, also a state that was stored, and whatever was compiled before."""

        def holds(states: list[AgentState]) -> None:
            compiler = self._bound()
            for state in states:
                first = tuple(compiler.compile(state))
                require(8, first == tuple(compiler.compile(state)), "the same state gives other messages again")
                copy = from_json(to_json(state), AgentState)
                require(8, first == tuple(self._bound().compile(copy)), "an equal state gives other messages")
                other = self._bound()
                with another_time(other):
                    later = tuple(other.compile(state))
                require(8, first == later, "the same state gives other messages at another time of day")
            self._require_any_order(states)

        self._for_executions(holds)

    def _require_any_order(self, states: list[AgentState]) -> None:
        """Check that states can be compiled in any order, as after a resumption, and that what was returned does not change."""
        used, kept = self._bound(), []
        for state in (*states[::-1], *states):
            alone, shown = tuple(self._bound().compile(state)), used.compile(state)
            kept.append((shown, tuple(shown)))
            require(8, tuple(shown) == alone, "after a later state, an earlier one gives other messages")
        changed = [shown for shown, before in kept if tuple(shown) != before]
        require(8, not changed, "messages that were returned changed when another state was compiled")

    def law_9(self) -> None:
        """A compiler that serves two executions in turn compiles each as it would alone."""

        def holds(scenarios: list[Scenario]) -> None:
            conversations = [run_in_virtual_time(_converse(scenarios, agent)) for agent in ("agent-ada", "agent-bob")]
            shared = self._bound()
            for states in zip(conversations[0][-1], conversations[1][-1], strict=True):
                for state in states:
                    alone = tuple(self._bound().compile(state))
                    require(9, tuple(shared.compile(state)) == alone, "another execution changes the messages of one")

        self.for_all(_CONVERSATIONS, holds)

    def law_10(self) -> None:
        """A result that is shown is that of its call: none has another status, or the result of another call."""

        def holds(states: list[AgentState]) -> None:
            compiler = self._bound()
            for state in states:
                known = {each.execution.key: each.execution for message in state.messages for each in message.exchanges}
                for message in compiler.compile(state):
                    for each in message.exchanges:
                        shown, own = each.execution, known.get(each.execution.key)
                        same = own is None or (shown.status is own.status and shown.error == own.error)
                        require(10, same, f"{own!r:.300} is shown as {shown!r:.300}")
                        strange = [
                            key for key, other in known.items() if key != shown.key and other.value == shown.value
                        ]
                        swapped = own is not None and own.succeeded and shown.value != own.value and strange
                        require(10, not swapped, f"{own!r:.300} is shown with the result of {strange}: {shown!r:.300}")

        self._for_executions(holds)

    def law_13(self) -> None:
        """Within an execution and an epoch, the messages after a step extend those before it."""

        def holds(states: list[AgentState]) -> None:
            compiler = self._bound()
            compiled = [(_epoch_of(compiler, state), tuple(compiler.compile(state))) for state in states]
            left: list[Epoch] = []
            for (epoch, earlier), (next_epoch, later) in pairwise(compiled):
                same = epoch != next_epoch or later[: len(earlier)] == earlier
                require(13, same, "messages that the model has seen changed, and no new epoch says so")
                if epoch != next_epoch:
                    left.append(epoch)
                    require(13, next_epoch not in left, f"the epoch {next_epoch} has begun before in this execution")

        self._for_executions(holds)


@tool(effect="pure")
async def report(number: int) -> str:
    """Return a long text."""
    return f"Report {number}, größe: {'x' * _LONG} end of report {number}"


@tool(effect="pure")
async def describe(number: int) -> dict[str, Any]:
    """Return nested data."""
    return {"number": number, **NESTED}


@tool(effect="pure")
async def refuse(number: int) -> str:
    """Fail."""
    raise ToolFailed(f"number {number} is refused: {'y' * _LONG}")


def _rich_tools() -> list[ToolLike]:
    return [report, describe, refuse]


_LONG = 3_000
_RICH = Scenario(
    turns=[
        *[
            ScriptedTurn(
                calls=tuple(
                    [ToolCall("", name).with_arguments({"number": 2 * step + at}) for at, name in enumerate(names)]
                )
            )
            for step, names in enumerate((("report", "describe"), ("refuse", "report"), ("describe",), ("report",)))
        ],
        ScriptedTurn("done"),
    ]
)
"""Calls with long and nested results and errors."""


async def _converse(
    scenarios: list[Scenario], agent: str = "agent", tools: Sequence[ToolLike] | None = None
) -> list[list[AgentState]]:
    """Return the states of successive executions of one agent, each with those before and after its steps."""
    state = AgentState.start(agent_id=agent, system_prompt="Play.", clock=ManualClock())
    executions: list[list[AgentState]] = []
    for number, scenario in enumerate(scenarios, 1):
        loop = AgentLoop(scenario.driver(), tools or toy_tools(Ledger()), clock=ManualClock(), ids=CountingIds())
        asked = state.with_message(f"{scenario.question} ({agent}, {number})")
        states = [after async for after in loop.iterate(asked, execution_id=f"{agent}-{number}")]
        started = asked.with_execution_started(f"{agent}-{number}", asked.updated_at)
        executions.append([started, *states[:-1]])
        state = states[-1]
    return executions


def _keys_of(message: Message) -> tuple[str, ...]:
    return tuple([exchange.execution.key for exchange in message.exchanges])


def _find_bare(compiled: Iterable[Message], state: AgentState) -> list[Message]:
    """Return the messages that are those of the conversation without their calls; texts of the compiler's own are none."""
    whole = [message.parts for message in state.messages]
    rests: list[object] = [tuple([part for part in parts if not isinstance(part, ToolExchange)]) for parts in whole]
    bare = [message for message in compiled if message.parts and message.parts in rests]
    return [message for message in bare if message.parts not in whole]


def _epoch_of(compiler: CanCompileMessages, state: AgentState) -> Epoch:
    return compiler.epoch(state) if isinstance(compiler, CanMarkEpoch) else NO_EPOCH
