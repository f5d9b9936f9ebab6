"""The rules that the records of an execution follow, as a model: states and moves, and which move is allowed in which state.

The model knows neither how records are written nor how they are stored, so that it can judge both. A `Move` is what one record says
in the words of the model, and `advance` returns the state after it, with the rules that it breaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from attrs import evolve, frozen

from agentloop.values.batches import parse_key
from agentloop.values.records import RecordKind, outer_key


class Stage(StrEnum):
    """Where an execution is in its life."""

    NEW = "new"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"


@frozen
class WaitingCall:
    """A call that waits in a suspended execution.

    Attributes:
        key: the key of the call.
        digest: the digest of this suspension.
        waits_for: the key of the call that has to be settled first; empty if it waits for a decision.
        inner: the calls that wait inside of it.
        decided: whether a decision about this suspension was used.
        permitted: whether that decision lets the call run.
    """

    key: str
    digest: str = ""
    waits_for: str = ""
    inner: tuple[WaitingCall, ...] = ()
    decided: bool = False
    permitted: bool = False

    @property
    def may_run(self) -> bool:
        """Whether its tool may run when the execution is resumed."""
        return self.permitted or bool(self.waits_for) or any(call.decided or call.may_run for call in self.inner)

    def find(self, key: str) -> WaitingCall | None:
        """Return the call of this key: this one, or one inside of it."""
        if self.key == key:
            return self
        return next((found for call in self.inner if (found := call.find(key)) is not None), None)

    def decide(self, key: str, *, permits: bool) -> WaitingCall:
        """Return the call with a decision about it, or about a call inside of it."""
        if self.key == key:
            return evolve(self, decided=True, permitted=permits)
        return evolve(self, inner=tuple([call.decide(key, permits=permits) for call in self.inner]))


@frozen
class OpenCall:
    """A call of the step that is not complete, whose start or outcome is recorded.

    Attributes:
        key: its key.
        name: the name of its tool.
        effect: the effect that its newest intent declares; empty without an intent.
        epoch: the epoch of its newest intent: how often the execution had been started, resumed or recovered.
        starts: how many intents are recorded.
        permissions: how many of them a decision has permitted.
        has_outcome: whether its outcome is recorded.
        is_suspended: whether its tool has suspended it.
    """

    key: str
    name: str = ""
    effect: str = ""
    epoch: int = 0
    starts: int = 0
    permissions: int = 0
    has_outcome: bool = False
    is_suspended: bool = False


@frozen
class ExecutionModel:
    """What the records of an execution say so far.

    Attributes:
        stage: where it is.
        epoch: how often it was started, resumed or recovered.
        steps: the number of complete steps; the suspended one counts.
        calls: the calls of the step that is not complete.
        waiting: the calls that wait in the suspended step, until its next record.
        messages: the messages that were sent and not taken, as text.
        commands: the ids of the commands that brought messages.
    """

    stage: Stage = Stage.NEW
    epoch: int = 0
    steps: int = 0
    calls: tuple[OpenCall, ...] = ()
    waiting: tuple[WaitingCall, ...] = ()
    messages: tuple[str, ...] = ()
    commands: frozenset[str] = frozenset()

    @property
    def current_step(self) -> int:
        """The number of the step whose calls may start."""
        return self.steps if self.waiting else self.steps + 1

    def call(self, key: str) -> OpenCall | None:
        """Return a call of the incomplete step."""
        return next((call for call in self.calls if call.key == key), None)

    def waiting_call(self, key: str) -> WaitingCall | None:
        """Return a call that waits, also one inside of another."""
        return next((found for call in self.waiting if (found := call.find(key)) is not None), None)

    def with_call(self, call: OpenCall) -> ExecutionModel:
        """Return the model with a new or changed call."""
        return evolve(self, calls=(*[each for each in self.calls if each.key != call.key], call))


@frozen(kw_only=True)
class Move:
    """What one record says.

    Attributes:
        kind: the kind of the record.
        key: the key of its call; empty for a record that is about none.
        name: the name of the tool of an intent.
        effect: the declared effect of an intent.
        answered: whether the outcome is one of the policy of a fork.
        digest: the digest that a decision names.
        permits: whether a decision lets the call run.
        step: the number of the newest step of the state, in a record that has one.
        settled: the keys of the calls that the newest step has settled.
        waiting: the calls that wait in the state.
        is_complete: whether the end is one by completion.
        messages: the messages that were sent or taken, as text.
        command: the id of the command that has brought a message; empty for none.
    """

    kind: RecordKind
    key: str = ""
    name: str = ""
    effect: str = ""
    answered: bool = False
    digest: str = ""
    permits: bool = False
    step: int = 0
    settled: frozenset[str] = frozenset()
    waiting: tuple[WaitingCall, ...] = ()
    is_complete: bool = False
    messages: tuple[str, ...] = ()
    command: str = ""


def advance(model: ExecutionModel, move: Move) -> tuple[ExecutionModel, tuple[str, ...]]:
    """Return the state after a move, and the rules that the move breaks; it goes on behind a broken rule.

    Args:
        model: the state.
        move: the move.
    """
    return _after(model, move), tuple(_problems(model, move))


# --- the rules --------------------------------------------------------------------------------------------------------

_STAGES = {
    RecordKind.EXECUTION_STARTED: {Stage.NEW},
    RecordKind.EXECUTION_RESUMED: {Stage.SUSPENDED},
    RecordKind.DECISION_USED: {Stage.SUSPENDED},
}
_STATES = frozenset(
    {
        RecordKind.STEP_COMPLETED,
        RecordKind.EXECUTION_SUSPENDED,
        RecordKind.EXECUTION_ENDED,
    }
)


def _problems(model: ExecutionModel, move: Move) -> Iterator[str]:
    allowed = _STAGES.get(move.kind, {Stage.RUNNING})
    if model.stage not in allowed:
        yield f"{move.kind.value} while the execution is {model.stage.value}"
    match move.kind:
        case RecordKind.CALL_INTENT:
            yield from _problems_of_intent(model, move)
        case RecordKind.CALL_OUTCOME | RecordKind.CALL_SUSPENDED | RecordKind.CALL_ATTACHED:
            yield from _problems_of_outcome(model, move)
        case RecordKind.DECISION_USED:
            yield from _problems_of_decision(model, move)
        case RecordKind.MESSAGES_SENT if move.command and move.command in model.commands:
            yield f"the command {move.command} delivers its message twice"
        case RecordKind.MESSAGES_TAKEN:
            left = list(model.messages)
            for message in move.messages:
                if message not in left:
                    yield "a step takes a message that was not sent, or was taken before"
                else:
                    left.remove(message)
        case _ if move.kind in _STATES:
            yield from _problems_of_step(model, move)


def _problems_of_intent(model: ExecutionModel, move: Move) -> Iterator[str]:
    place = parse_key(move.key)
    if place is not None and place[0] != model.current_step:
        yield f"the call {move.key} starts in step {model.current_step}"
    call, waiting = model.call(move.key), model.waiting_call(move.key)
    if call is not None and call.has_outcome:
        yield f"the call {move.key} starts although its outcome is recorded"
    if call is not None and call.epoch == model.epoch:
        yield f"the call {move.key} starts twice without an interruption"
    if (call is None or call.is_suspended) and waiting is not None and not waiting.may_run:
        yield f"the call {move.key} starts without a decision that lets it run"


def _problems_of_outcome(model: ExecutionModel, move: Move) -> Iterator[str]:
    call = model.call(move.key)
    what = {"call_outcome": "ends", "call_suspended": "is suspended"}.get(move.kind.value, "has an attachment")
    if not move.answered and (call is None or not call.starts):
        yield f"the call {move.key} {what} and has not started"
    if call is not None and call.has_outcome:
        yield f"the call {move.key} {what} although its outcome is recorded"


def _problems_of_decision(model: ExecutionModel, move: Move) -> Iterator[str]:
    waiting = model.waiting_call(move.key)
    if waiting is None:
        yield f"a decision about the call {move.key}, which does not wait"
    elif waiting.decided:
        yield f"a second decision about one suspension of the call {move.key}"
    elif waiting.digest != move.digest:
        yield f"a decision about another suspension of the call {move.key}"


def _problems_of_step(model: ExecutionModel, move: Move) -> Iterator[str]:
    waits = {key for call in move.waiting for key in _keys(call)}
    for call in model.calls:
        if not {call.key, outer_key(call.key)} & (move.settled | waits):
            yield f"the call {call.key} has started, and the step does not tell how it ended"
        elif call.has_outcome and call.key in waits and call.key not in move.settled:
            yield f"the call {call.key} waits although its outcome is recorded"
    if move.kind is RecordKind.EXECUTION_SUSPENDED and not move.waiting:
        yield "the execution is suspended, and no call waits"
    if move.kind is RecordKind.EXECUTION_ENDED and move.waiting:
        yield "the execution has ended while calls wait"
    first = model.steps if model.stage is Stage.RUNNING else 0
    if move.step < first or (move.kind is RecordKind.STEP_COMPLETED and move.step > first + 1):
        yield f"step {move.step} follows step {model.steps}"
    if move.is_complete and model.messages:
        yield "the execution is complete, and a message that was sent to it was not taken"


def _keys(call: WaitingCall) -> Iterator[str]:
    yield call.key
    for inner in call.inner:
        yield from _keys(inner)


# --- the states -------------------------------------------------------------------------------------------------------


def _after(model: ExecutionModel, move: Move) -> ExecutionModel:  # noqa: PLR0911  # one for each kind of move
    match move.kind:
        case RecordKind.EXECUTION_STARTED:
            stage = Stage.SUSPENDED if move.waiting else Stage.RUNNING
            return evolve(model, stage=stage, epoch=1, steps=move.step, waiting=move.waiting)
        case RecordKind.EXECUTION_RECOVERED:
            return evolve(model, epoch=model.epoch + 1)
        case RecordKind.EXECUTION_RESUMED:
            return evolve(model, stage=Stage.RUNNING, epoch=model.epoch + 1)
        case RecordKind.DECISION_USED:
            waiting = [call.decide(move.key, permits=move.permits) for call in model.waiting]
            return evolve(model, waiting=tuple(waiting))
        case RecordKind.MESSAGES_SENT:
            commands = model.commands | ({move.command} if move.command else set())
            return evolve(model, messages=(*model.messages, *move.messages), commands=commands)
        case RecordKind.MESSAGES_TAKEN:
            return evolve(model, messages=_without(model.messages, move.messages))
        case RecordKind.CALL_INTENT | RecordKind.CALL_OUTCOME | RecordKind.CALL_SUSPENDED:
            return model.with_call(_call_after(model, move))
        case _ if move.kind in _STATES:
            return _after_step(model, move)
    return model


def _call_after(model: ExecutionModel, move: Move) -> OpenCall:
    call = model.call(move.key) or OpenCall(move.key)
    match move.kind:
        case RecordKind.CALL_INTENT:
            waiting = model.waiting_call(move.key)
            permissions = call.permissions + (waiting is not None and waiting.permitted)
            started = evolve(call, name=move.name, effect=move.effect, epoch=model.epoch, starts=call.starts + 1)
            return evolve(started, permissions=permissions, is_suspended=False)
        case RecordKind.CALL_OUTCOME:
            return evolve(call, has_outcome=True)
        case _:
            return evolve(call, is_suspended=True)


def _after_step(model: ExecutionModel, move: Move) -> ExecutionModel:
    stages = {RecordKind.EXECUTION_SUSPENDED: Stage.SUSPENDED, RecordKind.EXECUTION_ENDED: Stage.ENDED}
    stage = stages.get(move.kind, Stage.RUNNING)
    return evolve(model, stage=stage, steps=move.step, calls=(), waiting=move.waiting)


def _without(messages: tuple[str, ...], taken: tuple[str, ...]) -> tuple[str, ...]:
    left = list(messages)
    for message in taken:
        if message in left:
            left.remove(message)
    return tuple(left)
