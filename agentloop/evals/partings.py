"""Partings: the first decision at which two recorded executions differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.fold import state_at
from agentloop.durable.fork_effects import is_same_call
from agentloop.durable.replaying.comparison import first_differences
from agentloop.durable.replaying.divergence import NOTHING, Difference
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ToolCall
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class Parting(Value):
    """Where two executions of one case part.

    Attributes:
        step: the 1-based number of the step whose decisions differ.
        first: what the first execution decides in it, in words.
        second: what the second execution decides in it.
        where: the part that differs, such as `calls[0].arguments.amount`; empty where one of them has ended.
    """

    step: int
    first: str
    second: str
    where: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"step {self.step}{place}: {self.first} | {self.second}"


@frozen(eq=False, repr=False, kw_only=True)
class TwoPaths(Value):
    """What two executions of one case decide, step by step.

    Attributes:
        first: what the first execution decides in each step, in words.
        second: what the second execution decides in each step.
        parting: the first step that differs; None if none does.
    """

    first: tuple[str, ...] = field(converter=tuple[str, ...])
    second: tuple[str, ...] = field(converter=tuple[str, ...])
    parting: Parting | None = None


async def two_paths(journal: CanJournal, first: str, second: str) -> TwoPaths:
    """Read what two executions decide, and where they part; arguments and errors as of `first_parting`."""
    states = [await state_at(journal, first), await state_at(journal, second)]
    words = [[_words(step) for step in _steps(state)] for state in states]
    return TwoPaths(first=words[0], second=words[1], parting=parting_of(*states))


async def first_parting(journal: CanJournal, first: str, second: str) -> Parting | None:
    """Find the first step in which two executions decide differently: other calls, other arguments, or another answer.

    What tools return and what requests look like is not compared: it differs wherever the executions have parted, or has not mattered.

    Args:
        journal: the journal of both.
        first: the id of the one execution.
        second: the id of the other.

    Returns:
        Where they part; None if all their decisions are equal.

    Raises:
        UnknownExecution: one of them is not in the journal.
        JournalCorrupt: records are damaged.
    """
    return parting_of(await state_at(journal, first), await state_at(journal, second))


def parting_of(first: AgentState, second: AgentState) -> Parting | None:
    """Find the first step in which the executions of two states decide differently; see `first_parting`."""
    steps = [_steps(state) for state in (first, second)]
    for number in range(1, max(map(len, steps)) + 1):
        one, two = (each[number - 1] if number <= len(each) else None for each in steps)
        if one is None or two is None:
            return Parting(step=number, first=_words(one), second=_words(two))
        if found := _difference(one, two):
            return Parting(step=number, first=_words(one), second=_words(two), where=found.path)
    return None


def _steps(state: AgentState) -> Sequence[AgentStep]:
    return state.execution.steps if state.execution is not None else ()


def _calls(step: AgentStep) -> Sequence[ToolCall]:
    exchanges = step.message.exchanges if step.message is not None else ()
    calls = [exchange.call for exchange in exchanges]
    return calls or [*[each.call for each in step.executions], *[waiting.call for waiting in step.pending]]


def _text(step: AgentStep) -> str:
    return step.message.text if step.message is not None else ""


def _difference(one: AgentStep, two: AgentStep) -> Difference | None:
    calls = [_calls(step) for step in (one, two)]
    if len(calls[0]) == len(calls[1]) and all(map(is_same_call, *calls)):
        # Words beside calls decide nothing; the answer is what a step without calls decides.
        differ = not calls[0] and (_text(one) != _text(two) or bool(one.errors) != bool(two.errors))
        return Difference("answer", _text(one), _text(two)) if differ else None
    one_plain, two_plain = ([_plain(call) for call in each] for each in calls)
    return next(iter(first_differences(one_plain, two_plain, "calls")), Difference("calls", NOTHING, NOTHING))


def _plain(call: ToolCall) -> Mapping[str, Any]:
    try:
        return {"name": call.name, "arguments": call.arguments}
    except ValueError:
        return {"name": call.name, "arguments": call.arguments_json}


def _words(step: AgentStep | None) -> str:
    if step is None:
        return "has ended"
    if calls := _calls(step):
        return ", ".join([f"calls {call.name}({call.arguments_json})" for call in calls])
    if step.errors:
        return f"fails: {step.errors[0].message}"
    return f"answers: {_text(step)}"
