"""The calls with effects in a fork: reused, simulated or forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.run_log import CallAnswer, CanAnswerCalls
from agentloop.durable import bodies
from agentloop.durable.deltas import is_same_json
from agentloop.durable.trees import list_below
from agentloop.errors import MalformedArguments, ToolBlocked, ToolInDoubt, UnknownExecution
from agentloop.values.batches import parse_key
from agentloop.values.json import parse_json
from agentloop.values.records import AGENT, CallIntent, JournalRecord, RecordedCall, RecordKind
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolExecution, ToolStatus, parse_arguments


class ForkPolicy(StrEnum):
    """What happens to calls in a fork that are not `pure`.

    `REUSE`: a call that is equal to one which the source made after the fork's step gets the outcome of that call, each outcome
    once, in order; other calls run. `SIMULATE`: no call runs; one without an equal call is answered as simulated. `FORBID`: no
    call runs; each is blocked, with an error for the model.
    """

    REUSE = "reuse"
    SIMULATE = "simulate"
    FORBID = "forbid"


@define(eq=False)
class ForkEffects(CanAnswerCalls):
    """Answers the calls of a fork, and of the agents that serve them, by its policy.

    Attributes:
        origin: what the first record of the fork says about the fork, as plain JSON data.
        policy: what happens to calls with effects.
        outcomes: the calls that the source made after the fork's step and that no call of the fork has reused yet, in order.
    """

    origin: Mapping[str, Any]
    policy: ForkPolicy
    outcomes: list[RecordedCall] = field(factory=list)

    @classmethod
    async def load(cls, journal: CanJournal, execution_id: str, origin: Mapping[str, Any]) -> ForkEffects:
        """Read the calls that a fork, or an agent that serves a call of one, can reuse.

        Args:
            journal: the journal of the fork and its source.
            execution_id: the execution.
            origin: what its first record says about the fork.

        Raises:
            UnknownExecution: the source, or an agent that served a call of it, is not recorded any more.
            JournalCorrupt: a record cannot be read.
        """
        policy, root = ForkPolicy(origin["effects"]), str(origin.get("root", execution_id))
        rooted = {**origin, "root": root}
        if policy is ForkPolicy.FORBID:
            return cls(rooted, policy)
        # An outcome is reused once by the fork and all agents below it, also after a restart.
        used = [call.source for call in await read_calls_under(journal, root) if call.source]
        return cls(rooted, policy, _without_used(await _read_calls_after(journal, origin), used))

    def answer(self, intent: CallIntent, *, delegates: bool) -> CallAnswer | None:
        """Return the outcome of a call; None when its tool has to run."""
        if intent.effect is Effect.PURE:
            return None
        if self.policy is not ForkPolicy.FORBID:
            match = next((call for call in self.outcomes if _can_serve(call, intent, delegates=delegates)), None)
            if match is not None:
                # Calls of an agent that served the reused call are used up with it.
                self.outcomes = [call for call in self.outcomes if not _is_below(call.intent.key, match.intent.key)]
                return CallAnswer(_outcome_for(intent, match), "reused", match.intent.key)
        if delegates or self.policy is ForkPolicy.REUSE:
            return None
        return _simulate(intent) if self.policy is ForkPolicy.SIMULATE else _forbid(intent)


def is_same_call(call: ToolCall, other: ToolCall) -> bool:
    """Return whether two calls name the same tool and have equal arguments, however these are written."""
    if call.name != other.name:
        return False
    if call.arguments_json == other.arguments_json:
        return True
    try:
        return is_same_json(parse_arguments(call.arguments_json), parse_arguments(other.arguments_json))
    except MalformedArguments:
        return False


def _can_serve(recorded: RecordedCall, intent: CallIntent, *, delegates: bool) -> bool:
    """Return whether a recorded call answers this one; an agent without an outcome is run again instead."""
    return is_same_call(recorded.intent.call, intent.call) and not (delegates and recorded.execution is None)


def _is_below(key: str, ancestor: str) -> bool:
    """Return whether a key is that of a call, or of a call of an agent that served it."""
    return key == ancestor or key.startswith(f"{ancestor}/")


def _without_used(calls: Iterable[RecordedCall], used: Sequence[str]) -> list[RecordedCall]:
    """Return the calls that are not below any of these keys."""
    return [call for call in calls if not any(_is_below(call.intent.key, key) for key in used)]


def _outcome_for(intent: CallIntent, recorded: RecordedCall) -> ToolExecution:
    """Return the outcome of a recorded call as that of this one; in doubt when it started and has no outcome."""
    if recorded.execution is not None:
        return recorded.execution.with_key(intent.key, intent.id, intent.call)
    reason = (
        f"this execution is a fork, and its source started the same call, {recorded.intent.key}; it is not known whether that "
        "call had its effect"
    )
    return intent.to_execution(ToolStatus.IN_DOUBT, error=ErrorInfo(ToolInDoubt.__name__, reason), may_have_run=True)


def _simulate(intent: CallIntent) -> CallAnswer:
    value = f"Simulated: this run is a fork that has no effects, so {intent.call.name} was not run. Take it as done."
    return CallAnswer(intent.to_execution(ToolStatus.SUCCEEDED, value=value), "simulated")


def _forbid(intent: CallIntent) -> CallAnswer:
    reason = f"this run is a fork that may not have effects, so {intent.call.name} is not run; continue without it"
    return CallAnswer(
        intent.to_execution(ToolStatus.BLOCKED, error=ErrorInfo(ToolBlocked.__name__, reason)), "forbidden"
    )


# --- the calls of the source ------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class SourceCall:
    """A recorded call of an execution, or of an agent below it.

    Attributes:
        call: the call.
        sequence: the sequence number of its last intent, or of its outcome when it has no intent.
        source: the key of the call whose outcome it reused; empty when it reused none.
        step: the step of the topmost execution that it belongs to.
    """

    call: RecordedCall
    sequence: int
    source: str = ""
    step: int = 0


async def _read_calls_after(journal: CanJournal, origin: Mapping[str, Any]) -> list[RecordedCall]:
    """Return the calls with effects that the source of a fork, and the agents below it, made after the fork's step.

    When the source is a fork itself, the calls follow that it could have reused and did not.

    Raises:
        UnknownExecution: the source, or an agent that served a call of it, is not recorded any more.
    """
    source_id, step = str(origin["of"]), int(origin["step"])
    calls = await read_calls_under(journal, source_id)
    served = [str(agent["execution"]) for call in calls if (agent := call.call.attachments.get(AGENT)) is not None]
    for needed_id in (source_id, *served):
        # Without its records, calls that it made would be made again.
        if await journal.head(needed_id) is None:
            raise UnknownExecution(
                f"the fork reuses the effects of execution {needed_id!r}, which is not recorded any more; fork its original with "
                "another policy, or an execution that is recorded"
            )
    after = [
        call.call
        for call in calls
        # A call that is still suspended has no outcome to reuse.
        if call.step > step and call.call.intent.effect is not Effect.PURE and call.call.pending is None
    ]
    source_origin = _read_origin(await journal.read(source_id)).get("fork")
    if source_origin is not None and "of" in source_origin:
        used = [call.source for call in calls if call.source]
        after += _without_used(await _read_calls_after(journal, source_origin), used)
    return after


async def read_calls_under(journal: CanJournal, root: str) -> list[SourceCall]:
    """Return the calls of an execution and of the agents below it, in the order in which they started."""
    agents = [head.execution_id for head in await list_below(journal, root)]
    calls: list[SourceCall] = []
    for execution_id in [root, *agents]:
        # The id of an agent names the step of the call that it serves: `<root>/<step>/<index>/agent`.
        root_step = execution_id.removeprefix(root).strip("/").split("/", 1)[0]
        for call in _iter_calls(await journal.read(execution_id)):
            step = int(root_step) if root_step.isdecimal() else (parse_key(call.call.intent.key) or (0, 0))[0]
            calls.append(evolve(call, step=step))
    # Agents run concurrently: only the time orders calls of different executions.
    return sorted(calls, key=lambda call: (call.call.intent.at.isoformat(), call.step, call.sequence))


def _iter_calls(records: Sequence[JournalRecord]) -> Iterator[SourceCall]:
    """Yield the calls of an execution, each with its last intent."""
    calls: dict[str, SourceCall] = {}
    for record in records:
        body = parse_json(record.body)
        if record.kind is RecordKind.CALL_INTENT:
            call = bodies.read_intent(body)
            calls[call.intent.key] = SourceCall(call=call, sequence=record.sequence)
        elif record.kind is RecordKind.CALL_OUTCOME:
            key = body["execution"]["key"]
            started = calls.get(key)
            calls[key] = SourceCall(
                call=bodies.read_outcome(body, None if started is None else started.call),
                sequence=record.sequence if started is None else started.sequence,
                source=str(body.get("source", "")),
            )
        elif record.kind is RecordKind.CALL_SUSPENDED and (key := body["pending"]["key"]) in calls:
            calls[key] = evolve(calls[key], call=bodies.read_suspension(body, calls[key].call))
    yield from calls.values()


def _read_origin(records: Iterable[JournalRecord]) -> Mapping[str, Any]:
    """Return the body of the first record; empty when there is none."""
    first = next(iter(records), None)
    return parse_json(first.body) if first is not None else {}
