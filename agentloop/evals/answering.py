"""The worlds of one trial: asked about each call in place of its tool, with a ledger of what they have answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from attrs import define, evolve, field

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.run_log import CallAnswer, CanAnswerCalls
from agentloop.durable.fork_effects import read_calls_under
from agentloop.errors.kinds import MalformedArguments
from agentloop.evals.cases import Case
from agentloop.evals.worlds import KnownOutcome, LedgerEntry, World, WorldAnswer, WorldCall, signature_of
from agentloop.values.inference import Usage
from agentloop.values.json import freeze_object, thaw
from agentloop.values.records import AGENT, CallIntent, RecordedCall
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.tool_calls import (
    Effect,
    ErrorInfo,
    ToolCall,
    ToolExecution,
    ToolStatus,
    parse_arguments,
)

WORLD: Final = "agentloop.world"
"""The attachment of an answered call that says which world has answered it."""

Known = Mapping[str, Sequence[KnownOutcome]]
"""What is known about calls, by their signatures."""


async def known_outcomes(case: Case, recordings: CanJournal | None) -> Known:
    """Return what is known about the calls of a case: of `Case.calls`, and of the execution that it was made from.

    Raises:
        JournalCorrupt: a record cannot be read.
    """
    known: dict[str, list[KnownOutcome]] = {}
    for position, call in enumerate(case.calls):
        source = f"case/{position}"
        error = ErrorInfo("RecordedFailure", call.error) if call.error else None
        status = ToolStatus.FAILED if call.error else ToolStatus.SUCCEEDED
        answer = WorldAnswer(value=call.value, status=status, error=error, source=source)
        known.setdefault(signature_of(call.name, call.arguments), []).append(KnownOutcome(source=source, answer=answer))
    if case.origin is None or recordings is None:
        return known
    for recorded in await read_calls_under(recordings, case.origin.execution_id):
        execution = recorded.call.execution
        if execution is None or recorded.call.redacted:
            continue
        answer = WorldAnswer(outcome=execution, source=execution.key)
        outcome = KnownOutcome(source=execution.key, answer=answer, is_after=recorded.step > case.origin.at_step)
        known.setdefault(signature_of(execution.name, arguments_of(execution.call)), []).append(outcome)
    return known


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as plain data; empty where they cannot be read."""
    try:
        return dict(parse_arguments(call.arguments_json))
    except MalformedArguments:
        return {}


@define(eq=False)
class TrialWorlds(CanAnswerCalls):
    """The worlds of one trial.

    Attributes:
        worlds: the worlds in their order; the last one answers every call.
        case: the case.
        seed: the seed of the trial.
        known: what is known about calls.
        ledger: the answered calls, in order. An entry of a call that runs its tool gets its outcome when the trial has ended.
        counts: for each world, the number of calls that it has answered.
        played: the models that have played tools, each with the tokens of one call.
        has_agents: whether an agent has served a call.
    """

    worlds: Sequence[World]
    case: Case
    seed: int
    known: Known = field(factory=dict)
    ledger: list[LedgerEntry] = field(factory=list)
    counts: Counter[str] = field(factory=Counter)
    played: list[tuple[str, Usage]] = field(factory=list)
    has_agents: bool = False
    _states: dict[str, object] = field(factory=dict)
    _asked: Counter[str] = field(factory=Counter)

    def answer(self, intent: CallIntent, *, delegates: bool) -> CallAnswer | Awaitable[CallAnswer | None] | None:
        """Return the outcome of a call in this trial; None when its tool runs."""
        self.has_agents = self.has_agents or delegates
        call = self._call(intent, is_agent=delegates)
        for place, world in enumerate(self.worlds):
            given = self._ask(world, call)
            if isinstance(given, WorldAnswer):
                return self._settle(intent, call, world, given)
            if given is not None:
                return self._await(intent, call, place, given)
        return None

    async def _await(
        self, intent: CallIntent, call: WorldCall, place: int, given: Awaitable[WorldAnswer | None]
    ) -> CallAnswer | None:
        """Return the outcome of a call whose world takes its time; the next ones are asked when it has none."""
        waiting: WorldAnswer | Awaitable[WorldAnswer | None] | None = given
        for world in self.worlds[place:]:
            made = waiting if isinstance(waiting, WorldAnswer) or waiting is None else await _answer_of(waiting)
            if made is not None:
                return self._settle(intent, call, world, made)
            place += 1
            waiting = self._ask(self.worlds[place], call) if place < len(self.worlds) else None
        return None

    def _call(self, intent: CallIntent, *, is_agent: bool) -> WorldCall:
        arguments = arguments_of(intent.call)
        signature = signature_of(intent.call.name, arguments)
        occurrence = self._asked[signature]
        self._asked[signature] += 1
        return WorldCall(
            name=intent.call.name,
            arguments=arguments,
            effect=intent.effect,
            key=intent.key,
            case=self.case,
            seed=self.seed,
            ledger=self.ledger,
            known=self.known.get(signature, ()),
            occurrence=occurrence,
            is_agent=is_agent,
        )

    def _ask(self, world: World, call: WorldCall) -> WorldAnswer | Awaitable[WorldAnswer | None] | None:
        if world.name not in self._states:
            self._states[world.name] = world.open(self.case, self.seed)
        call.state = self._states[world.name]
        try:
            return world.answer(call)
        except Exception as error:  # noqa: BLE001  # of the tool that the world plays
            return WorldAnswer.failed(error)

    def _settle(self, intent: CallIntent, call: WorldCall, world: World, answer: WorldAnswer) -> CallAnswer | None:
        if answer.runs and call.is_agent:
            return None
        self.counts[world.name] += 1
        if answer.runs:
            self.ledger.append(_entry(call, world.name, None))
            return None
        if answer.outcome is not None:
            execution = answer.outcome.with_key(intent.key, intent.id, intent.call)
        else:
            execution = intent.to_execution(answer.status, value=answer.value, error=answer.error)
        self.ledger.append(_entry(call, world.name, execution, answer.source))
        note: dict[str, Any] = {"name": world.name, "effect": intent.effect.value, "source": answer.source}
        if answer.usage is not None:
            self.played.append((answer.model, answer.usage))
            note |= {"model": answer.model, "usage": to_plain(answer.usage)}
        how = "reused" if answer.source else "forbidden" if answer.status is ToolStatus.BLOCKED else "simulated"
        source = answer.source if answer.outcome is not None else ""
        return CallAnswer(execution, how, source, {WORLD: note})

    # --- after the run ------------------------------------------------------------------------------------------

    def settle_runs(self, executions: Mapping[str, ToolExecution]) -> None:
        """Give the calls whose tools ran the outcomes that they had.

        Args:
            executions: the outcomes of the trial by the keys of the calls.
        """
        self.ledger[:] = [
            evolve(entry, status=execution.status, value=execution.value)
            if not entry.is_settled and (execution := executions.get(entry.key)) is not None
            else entry
            for entry in self.ledger
        ]

    # --- interrupted trials -------------------------------------------------------------------------------------

    async def restore(self, journal: CanJournal, execution_id: str) -> None:
        """Take over what an earlier process has recorded of the trial, so that its worlds go on where they were.

        Args:
            journal: holds the records.
            execution_id: the execution of the trial.

        Raises:
            JournalCorrupt: a record cannot be read.
        """
        calls = [each.call for each in await read_calls_under(journal, execution_id)]
        outer = {key.rpartition("/program/")[0] for call in calls if "/program/" in (key := call.intent.key)}
        for recorded in calls:
            if AGENT in recorded.attachments or recorded.intent.key in outer:
                self.has_agents = True
                self._call(recorded.intent, is_agent=True)  # counted as a call that was made
            elif WORLD in recorded.attachments:
                await self._restore_answer(recorded, thaw(recorded.attachments[WORLD]))
            elif not recorded.is_answered:
                self._restore_run(recorded)

    async def _restore_answer(self, recorded: RecordedCall, note: dict[str, Any]) -> None:
        intent = evolve(recorded.intent, effect=Effect(note["effect"]))
        call, name = self._call(intent, is_agent=False), note["name"]
        world = next((world for world in self.worlds if world.name == name and world.repeats()), None)
        if world is not None:
            given = self._ask(world, call)
            if given is not None and not isinstance(given, WorldAnswer):
                await _answer_of(given)  # for its state; what it answered is recorded
        self.counts[name] += 1
        self.ledger.append(_entry(call, name, recorded.execution, note["source"]))
        if "usage" in note:
            self.played.append((note["model"], from_plain(note["usage"], Usage)))

    def _restore_run(self, recorded: RecordedCall) -> None:
        call = self._call(recorded.intent, is_agent=False)
        for world in self.worlds:
            given = self._ask(world, call)
            if isinstance(given, WorldAnswer) and given.runs:
                self.counts[world.name] += 1
                self.ledger.append(_entry(call, world.name, None))
                return
            if asyncio.iscoroutine(given):
                given.close()


async def _answer_of(given: Awaitable[WorldAnswer | None]) -> WorldAnswer | None:
    try:
        return await given
    except asyncio.CancelledError as cancelled:
        if is_task_cancelled():
            raise
        return WorldAnswer.failed(RuntimeError(f"the world was cancelled: {cancelled}"))
    except Exception as error:  # noqa: BLE001  # of the tool that the world plays
        return WorldAnswer.failed(error)


def _entry(call: WorldCall, world: str, execution: ToolExecution | None, source: str = "") -> LedgerEntry:
    return LedgerEntry(
        key=call.key,
        name=call.name,
        arguments=freeze_object(call.arguments),
        effect=call.effect,
        world=world,
        status=None if execution is None else execution.status,
        value=None if execution is None else execution.value,
        source=source,
    )
