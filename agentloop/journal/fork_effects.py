"""What becomes of calls with effects in a fork."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from attrs import define, evolve, field

from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.run_log import CallAnswer, CanAnswerCalls
from agentloop.errors import MalformedArguments, ToolBlocked, ToolInDoubt
from agentloop.journal import bodies
from agentloop.journal.deltas import is_same_json
from agentloop.values.batches import key_place
from agentloop.values.json import parse_json
from agentloop.values.records import CallIntent, JournalRecord, RecordedCall, RecordKind
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolExecution, ToolStatus, parse_arguments

_AGENTS = re.compile(r"(/\d+/\d+/agent(-\d+)?)+")
"""What the ids of agents below an execution have after its own."""


class ForkPolicy(StrEnum):
    """What becomes, in a fork, of calls that are not `pure`.

    `REUSE`: a call equal to one that the original run made after the fork's step is given what came of that one, each outcome
    once, in order; other calls run. `SIMULATE`: none runs; one that is equal to no such call is answered that it was
    simulated. `FORBID`: none runs; each is blocked, and the model is told so.
    """

    REUSE = "reuse"
    SIMULATE = "simulate"
    FORBID = "forbid"


@define(eq=False)
class ForkEffects(CanAnswerCalls):
    """Answers the calls of a fork, and of the agents that serve them, as its policy says.

    Attributes:
        told: what the record of the fork tells of it, as plain JSON data.
        policy: what becomes of calls with effects.
        outcomes: what came of the calls that the original run made after the fork's step and that no call of the fork has
            been given yet, in order.
    """

    told: Mapping[str, Any]
    policy: ForkPolicy
    outcomes: list[RecordedCall] = field(factory=list)

    @classmethod
    async def loaded(cls, journal: CanJournal, execution_id: str, told: Mapping[str, Any]) -> ForkEffects:
        """Read what a fork, or an agent that serves a call of one, has to know of the run that it was forked from.

        Args:
            journal: where both are recorded.
            execution_id: the execution.
            told: what its record tells of the fork.

        Raises:
            JournalCorrupt: when a record cannot be read.
        """
        policy, root = ForkPolicy(told["effects"]), str(told.get("root", execution_id))
        whole = {**told, "root": root}
        if policy is ForkPolicy.FORBID:
            return cls(whole, policy)
        used = [source for _, _, source in await _calls_under(journal, root) if source]
        return cls(whole, policy, _unused(await _made_after(journal, told), used))

    def answer(self, intent: CallIntent, *, delegates: bool) -> CallAnswer | None:
        """Return what is to come of a call; None when its tool is to run."""
        if intent.effect is Effect.PURE:
            return None
        if self.policy is not ForkPolicy.FORBID:
            known = next((call for call in self.outcomes if _serves(call, intent, delegates=delegates)), None)
            if known is not None:
                self.outcomes = [call for call in self.outcomes if not _is_below(call.intent.key, known.intent.key)]
                return CallAnswer(_outcome_of(known, intent), "reused", known.intent.key)
        if delegates or self.policy is ForkPolicy.REUSE:
            return None
        return _simulated(intent) if self.policy is ForkPolicy.SIMULATE else _forbidden(intent)


def _serves(known: RecordedCall, intent: CallIntent, *, delegates: bool) -> bool:
    """Say whether what came of a call can be given to this one; an agent that has not ended is rather run anew."""
    return is_same_call(known.intent.call, intent.call) and not (delegates and known.execution is None)


def _is_below(key: str, known: str) -> bool:
    """Say whether a call is this one, or one of an agent that served it."""
    return key == known or key.startswith(f"{known}/")


def _unused(calls: Iterable[RecordedCall], used: Sequence[str]) -> list[RecordedCall]:
    return [call for call in calls if not any(_is_below(call.intent.key, one) for one in used)]


def is_same_call(one: ToolCall, other: ToolCall) -> bool:
    """Say whether two calls are of one tool and have equal arguments, however these are written."""
    if one.name != other.name:
        return False
    if one.arguments_json == other.arguments_json:
        return True
    try:
        return is_same_json(parse_arguments(one.arguments_json), parse_arguments(other.arguments_json))
    except MalformedArguments:
        return False


def _outcome_of(known: RecordedCall, intent: CallIntent) -> ToolExecution:
    """Return the outcome of another call as that of this one; nobody knows it of a call that has begun and not ended."""
    if known.execution is not None:
        return evolve(known.execution, id=intent.id, key=intent.key, call=intent.call)
    why = (
        f"this run is a fork, and the run that it was forked from has begun the same call, {known.intent.key}; it is not known "
        "whether that has had its effect"
    )
    return intent.ended(ToolStatus.IN_DOUBT, error=ErrorInfo(ToolInDoubt.__name__, why), may_have_run=True)


def _simulated(intent: CallIntent) -> CallAnswer:
    value = f"Simulated: this run is a fork that has no effects, so {intent.call.name} was not run. Take it as done."
    return CallAnswer(intent.ended(ToolStatus.SUCCEEDED, value=value), "simulated")


def _forbidden(intent: CallIntent) -> CallAnswer:
    why = f"this run is a fork that may have no effects, so {intent.call.name} is not run; go on without it"
    return CallAnswer(intent.ended(ToolStatus.BLOCKED, error=ErrorInfo(ToolBlocked.__name__, why)), "forbidden")


# --- what the original run did ----------------------------------------------------------------------------------------


async def _made_after(journal: CanJournal, told: Mapping[str, Any]) -> list[RecordedCall]:
    """Return the calls with effects that a run, and the agents below it, made after a step; of a fork also what it did not get to."""
    of, step = str(told["of"]), int(told["step"])
    calls = await _calls_under(journal, of)
    made = [
        call
        for place, call, _ in calls
        if place > step and call.intent.effect is not Effect.PURE and call.pending is None
    ]
    records = await journal.read(of)
    above = _origin(records).get("fork")
    if above is not None and "of" in above:
        made += _unused(await _made_after(journal, above), [source for _, _, source in calls if source])
    return made


async def _calls_under(journal: CanJournal, root: str) -> list[tuple[int, RecordedCall, str]]:
    """Return the calls of an execution and of the agents below it, each with its step in that execution and its source."""
    found: list[tuple[str, int, int, RecordedCall, str]] = []
    below = [head.execution_id for head in await journal.list() if head.execution_id.startswith(f"{root}/")]
    for execution_id in [root, *[one for one in below if _AGENTS.fullmatch(one.removeprefix(root))]]:
        within = execution_id.removeprefix(root).strip("/").split("/", 1)[0]
        for at, call, source in _calls_in(await journal.read(execution_id)):
            own = (key_place(call.intent.key) or (0, 0))[0]
            place = int(within) if within.isdecimal() else own
            found.append((call.intent.at.isoformat(), place, at, call, source))
    return [(place, call, source) for _, place, _, call, source in sorted(found, key=lambda one: one[:3])]


def _calls_in(records: Sequence[JournalRecord]) -> Iterator[tuple[int, RecordedCall, str]]:
    """Return the calls of an execution as their last intents tell them, with the number of that record and their source."""
    known: dict[str, tuple[int, RecordedCall, str]] = {}
    for record in records:
        body = parse_json(record.body)
        if record.kind is RecordKind.CALL_INTENT:
            call = bodies.read_intent(body)
            known[call.intent.key] = (record.sequence, call, "")
        elif record.kind is RecordKind.CALL_OUTCOME:
            key = body["execution"]["key"]
            begun = known.get(key)
            ended = bodies.read_outcome(body, None if begun is None else begun[1])
            known[key] = (begun[0] if begun is not None else record.sequence, ended, str(body.get("source", "")))
        elif record.kind is RecordKind.CALL_SUSPENDED and (key := body["pending"]["key"]) in known:
            at, begun_call, source = known[key]
            known[key] = (at, bodies.read_suspension(body, begun_call), source)
    yield from known.values()


def _origin(records: Iterable[JournalRecord]) -> Mapping[str, Any]:
    first = next(iter(records), None)
    return parse_json(first.body) if first is not None else {}
