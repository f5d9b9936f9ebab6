"""Compilers, modes, tools and listeners that break one law each: on rich texts, in another order, at another time, after a cancellation."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve

from agentloop import Message
from agentloop.contracts import CanCompileMessages
from agentloop.testing import NOTATIONS, CompilerKit, ListenerKit, ModeKit, ToolKit
from agentloop.values import AgentState, Event, InferenceRequest, InferenceResponse, ToolCall, ToolExchange
from agentloop.values.tool_calls import ToolExecution, ToolSpec
from tests.testing.zoo.others import PlainMode, Toy
from tests.testing.zoo.zoo import Member


def _with_executions(message: Message, change: Callable[[ToolExecution], ToolExecution]) -> Message:
    parts = [
        evolve(part, execution=change(part.execution)) if isinstance(part, ToolExchange) else part
        for part in message.parts
    ]
    return evolve(message, parts=tuple(parts))


class ShortensOldResults(CanCompileMessages):
    """Breaks law 13: results that are not the newest are cut, and no epoch says so."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        def cut(execution: ToolExecution) -> ToolExecution:
            return evolve(execution, value=execution.value[:80]) if isinstance(execution.value, str) else execution

        return [*[_with_executions(each, cut) for each in state.messages[:-1]], *state.messages[-1:]]


class TellsTheDate(CanCompileMessages):
    """Breaks law 8: the first message has the date of the system."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return [Message.user(f"It is {datetime.now():%A, %x}."), *state.messages]  # noqa: DTZ005  # the fault


class AddsWhatIsNew(CanCompileMessages):
    """Breaks law 8: a state is taken for the one after the state that was compiled last."""

    def __init__(self) -> None:
        self.shown: list[Message] = []
        self.count = 0

    def compile(self, state: AgentState) -> Sequence[Message]:
        self.shown += state.messages[self.count :]
        self.count = max(self.count, len(state.messages))
        return list(self.shown)


class ReturnsItsOwnList(CanCompileMessages):
    """Breaks law 8: what was returned changes with the next state."""

    def __init__(self) -> None:
        self.shown: list[Message] = []

    def compile(self, state: AgentState) -> Sequence[Message]:
        self.shown[:] = state.messages
        return self.shown


class HidesErrors(CanCompileMessages):
    """Breaks law 10: a call that failed is shown as one that succeeded."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        def hide(each: ToolExecution) -> ToolExecution:
            return evolve(each, status="succeeded", error=None, value="ok", may_have_run=False) if each.error else each

        return [_with_executions(each, hide) for each in state.messages]


def _compiler(law: int, compiler: Callable[[], CanCompileMessages]) -> Member:
    return Member(compiler, law, lambda examples: CompilerKit(compiler, examples=examples))


# --- modes ------------------------------------------------------------------------------------------------------------


class FlattensArguments(PlainMode):
    """Breaks law 12: arguments that are no scalars are texts."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        parsed = super().parse_response(response, request)
        return parsed.with_parts([_flat(part) if isinstance(part, ToolCall) else part for part in parsed.parts])


def _flat(call: ToolCall) -> ToolCall:
    flat = {name: str(value) if isinstance(value, tuple | dict) else value for name, value in call.arguments.items()}
    return call.with_arguments(flat)


class KeepsParsedByLength(PlainMode):
    """Breaks law 9: responses of one length are taken for one."""

    def __init__(self) -> None:
        super().__init__()
        self.parsed: dict[int, InferenceResponse] = {}

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        if len(response.text) not in self.parsed:
            self.parsed[len(response.text)] = super().parse_response(response, request)
        return self.parsed[len(response.text)]


class AcceptsEveryCall(PlainMode):
    """Breaks law 17: every call is valid."""

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> Any:
        return evolve(self.inner.validate(call, tools), is_valid=True)


class CutsResults(PlainMode):
    """Breaks law 44: of a result, 200 characters are rendered."""

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        def cut(execution: ToolExecution) -> ToolExecution:
            return evolve(execution, value=execution.value[:200]) if isinstance(execution.value, str) else execution

        return super().render_request(request.with_messages([_with_executions(each, cut) for each in request.messages]))


def _mode(law: int, mode: Any) -> Member:
    return Member(mode, law, lambda examples: ModeKit(mode, NOTATIONS["validated"], examples=examples))


# --- tools and listeners ----------------------------------------------------------------------------------------------

ROWS: list[int] = []
BUSY: list[bool] = []


class InsertsAgain(Toy):
    """Breaks law 14: a call that says it is idempotent inserts its rows again."""

    effect: Any = "idempotent"

    async def use(self, *_: Any, items: list[int]) -> Any:
        ROWS.extend(items)
        return len(items)


class StaysBusy(Toy):
    """Breaks law 34: a call that is cancelled keeps the others out."""

    effect: Any = "pure"

    async def use(self, *_: Any, items: list[int]) -> Any:
        if BUSY:
            raise RuntimeError("another call has not ended")
        BUSY.append(True)
        await asyncio.sleep(0)
        BUSY.clear()
        return len(items)


class SleepsInTheLoop(Toy):
    """Breaks law 45: the event loop waits with the tool."""

    async def use(self, *_: Any, items: list[int]) -> Any:
        time.sleep(0.001)  # noqa: ASYNC251  # the fault
        return len(items)


class WaitsForAProgram(Toy):
    """Breaks law 45: the event loop waits until a program has ended."""

    async def use(self, *_: Any, items: list[int]) -> Any:
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)  # noqa: ASYNC221  # the fault
        return len(items)


def sleeps_in_the_loop(event: Event) -> None:
    """Breaks law 45: every event stops the event loop for a moment."""
    time.sleep(0.0001)


def _tool(law: int, subject: type[Toy], observe: Callable[[], object] | None = None) -> Member:
    def make(examples: int) -> ToolKit:
        BUSY.clear()
        return ToolKit(subject, [{"items": [1, 2]}, {"items": [3]}], observe=observe, examples=min(examples, 4))

    return Member(subject, law, make)


TRANSLATIONS: tuple[Member, ...] = (
    _compiler(8, TellsTheDate),
    _compiler(8, AddsWhatIsNew),
    _compiler(8, ReturnsItsOwnList),
    _compiler(10, HidesErrors),
    _compiler(13, ShortensOldResults),
    _mode(9, KeepsParsedByLength),
    _mode(12, FlattensArguments),
    _mode(17, AcceptsEveryCall),
    _mode(44, CutsResults),
    _tool(14, InsertsAgain, lambda: list(ROWS)),
    _tool(34, StaysBusy),
    _tool(45, SleepsInTheLoop),
    _tool(45, WaitsForAProgram),
    Member(sleeps_in_the_loop, 45, lambda examples: ListenerKit(lambda: sleeps_in_the_loop, examples=examples)),
)
