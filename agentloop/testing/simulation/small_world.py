"""A small world in which every order of events is tried: two drivers, one storage, one call with an effect, and what people decide.

`explore` visits all states of a world and says what is wrong in them. The drivers follow the documented protocol, whose parts can be switched off
one by one. It checks two things: that the protocol keeps its promises, and that the rules of `agentloop.durable.record_rules` accept every history
that the protocol can write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

from attrs import evolve, frozen

from agentloop.durable.record_rules import ExecutionModel, Move, Stage, WaitingCall, advance
from agentloop.values.records import RecordKind

CALLER = "a"
PARENT_CALL = "a/1/0"
AGENT = "a/1/0/agent"
AGENT_CALL = "a/1/0/agent/1/0"
_MESSAGE = "hello"
_DOUBT = "doubt"


@frozen
class SmallProtocol:
    """The parts of the protocol, each of which can be left out.

    Attributes:
        fences: whether the storage refuses the appends of a claim that is not the newest.
        intent_first: whether the intent is durable before the effect.
        binds_decisions: whether a decision is recorded with the resumption that uses it, for one suspension.
        remembers_commands: whether the id of a command is recorded with its message.
        takes_all: whether an execution completes only when no message waits for it.
        tells: whether a call in doubt is told of in the step.
        asks_outside: whether the caller of an agent waits for the decision about the agent's call.
        checks_below: whether a deletion is refused while an execution below is claimed.
        reuses_once: whether a fork reuses each outcome once.
    """

    fences: bool = True
    intent_first: bool = True
    binds_decisions: bool = True
    remembers_commands: bool = True
    takes_all: bool = True
    tells: bool = True
    asks_outside: bool = True
    checks_below: bool = True
    reuses_once: bool = True


@frozen
class SmallBounds:
    """How much may happen in a world.

    Attributes:
        crashes: how many drivers die.
        expiries: how many claims end while their driver runs.
        lost_answers: how many appends are stored although their driver is told that they failed.
        commands: how many messages are posted.
        approvals: how many decisions people make.
        deletions: how often somebody tries to delete the execution.
        needs_approval: whether the call waits for a decision before it runs.
        has_agent: whether an agent serves the call of a caller, and makes the call with the effect.
        has_fork: whether the execution is a fork that may reuse one outcome of its source, and calls twice.
        suspends_doubt: whether a call in doubt waits for a decision; otherwise the model is told of it.
    """

    crashes: int = 1
    expiries: int = 1
    lost_answers: int = 1
    commands: int = 0
    approvals: int = 0
    deletions: int = 0
    needs_approval: bool = False
    has_agent: bool = False
    has_fork: bool = False
    suspends_doubt: bool = False


History: TypeAlias = tuple[Move, ...]


@frozen
class SmallDriver:
    """A process that may drive the executions.

    Attributes:
        token: the token of its claim; 0 without one.
        seen: the records as it knows them, of each execution.
        doing: what it does next; empty to decide by what it knows.
    """

    token: int = 0
    seen: tuple[History, ...] = ()
    doing: str = ""


@frozen
class SmallWorld:
    """A state of the world.

    Attributes:
        drivers: the drivers.
        chains: the stored records of each execution; None for a deleted one.
        holder: the driver whose claim the storage knows; -1 for none.
        token: the newest token.
        commands: the ids of posted commands that are not finished.
        posted: how many commands were posted.
        effects: how often the effect has happened.
        answered: how often an outcome was taken from the source of a fork.
        decisions: how many decisions are offered and not used.
        made: how many decisions people have made.
        crashes, expiries, lost_answers, deletions: how many of them there were.
        is_deleted: whether the execution was deleted.
    """

    drivers: tuple[SmallDriver, ...]
    chains: tuple[History, ...]
    holder: int = -1
    token: int = 0
    commands: tuple[str, ...] = ()
    posted: int = 0
    effects: int = 0
    answered: int = 0
    decisions: int = 0
    made: int = 0
    crashes: int = 0
    expiries: int = 0
    lost_answers: int = 0
    deletions: int = 0
    is_deleted: bool = False


@frozen
class Exploration:
    """What was found in all states of a world.

    Attributes:
        states: the number of different states.
        moves: the number of moves between them.
        ends: the number of states in which the execution has ended.
        problems: each problem that was found, with the number of moves that lead to it.
    """

    states: int
    moves: int
    ends: int
    problems: dict[str, int]


def explore(protocol: SmallProtocol, bounds: SmallBounds, *, limit: int = 400_000) -> Exploration:
    """Visit every state that a world can reach.

    Args:
        protocol: what the drivers do.
        bounds: what may happen.
        limit: the maximum number of states.

    Raises:
        RuntimeError: there are more states than the limit.
    """
    first = SmallWorld((SmallDriver(), SmallDriver()), ((),) * (2 if bounds.has_agent else 1))
    depths, queue = {first: 0}, deque([first])
    problems, moves, ends = dict[str, int](), 0, 0
    rules = _Rules()
    while queue:
        world = queue.popleft()
        ends += _has_ended(world.chains[0])
        found = tuple(_problems(world, bounds, rules))
        for problem in found:
            problems.setdefault(problem, depths[world])
        if found:
            continue  # what comes after it would be wrong as well, and without end
        for after in _moves(world, protocol, bounds):
            moves += 1
            if after not in depths:
                depths[after] = depths[world] + 1
                queue.append(after)
        if len(depths) > limit:
            raise RuntimeError(f"the world has more than {limit:,} states")
    return Exploration(len(depths), moves, ends, problems)


# --- what is wrong in a state -----------------------------------------------------------------------------------------


class _Rules:
    """The model of the records after a history, computed once for each."""

    def __init__(self) -> None:
        self._known: dict[History, tuple[ExecutionModel, tuple[str, ...]]] = {(): (ExecutionModel(), ())}

    def judge(self, history: History) -> tuple[ExecutionModel, tuple[str, ...]]:
        """Return the model after a history, and every rule that it breaks."""
        if history not in self._known:
            model, problems = self.judge(history[:-1])
            after, broken = advance(model, history[-1])
            self._known[history] = after, (*problems, *broken)
        return self._known[history]


def _problems(world: SmallWorld, bounds: SmallBounds, rules: _Rules) -> Iterator[str]:
    for chain in world.chains:
        yield from rules.judge(chain)[1]
    working = world.chains[-1]
    permitted = sum(move.kind is RecordKind.DECISION_USED and move.permits for move in working)
    allowed = permitted if bounds.needs_approval else 1 + permitted
    if world.effects > allowed:
        yield "the effect has happened more often than anybody has permitted"
    if permitted > world.made:
        yield "a decision is used that nobody has made"
    if world.answered > 1:
        yield "two calls reuse one outcome"
    if _has_ended(working):
        ends = [move for move in working if move.kind is RecordKind.CALL_OUTCOME and not move.answered]
        outcomes = sum(move.name != _DOUBT for move in ends)
        if world.effects and not ends:
            yield "an effect of which nobody is told"
        if outcomes > world.effects:
            yield "an outcome without an effect"
    taken = sum(len(move.messages) for move in world.chains[0] if move.kind is RecordKind.MESSAGES_TAKEN)
    if taken > world.posted:
        yield "a message is taken twice"
    if world.is_deleted and any(driver.doing == "act" and driver.token == world.token for driver in world.drivers):
        yield "an effect is about to happen in a deleted execution"


def _has_ended(chain: History) -> bool:
    return bool(chain) and chain[-1].kind is RecordKind.EXECUTION_ENDED


# --- what can happen --------------------------------------------------------------------------------------------------


def _moves(world: SmallWorld, protocol: SmallProtocol, bounds: SmallBounds) -> Iterator[SmallWorld]:
    yield from _surroundings(world, protocol, bounds)
    for index, driver in enumerate(world.drivers):
        step = _Step(world, index, driver, protocol, bounds)
        if driver.token and world.crashes < bounds.crashes:
            yield step.gone(crashes=world.crashes + 1)
        yield from step.next()


def _surroundings(world: SmallWorld, protocol: SmallProtocol, bounds: SmallBounds) -> Iterator[SmallWorld]:
    """Yield what others do: the storage, senders, people, somebody who deletes."""
    if world.holder >= 0 and world.expiries < bounds.expiries:
        yield evolve(world, holder=-1, expiries=world.expiries + 1)
    if world.posted < bounds.commands and not _has_ended(world.chains[0]) and not world.is_deleted:
        posted = (*world.commands, f"c{world.posted}")
        yield evolve(world, commands=posted, posted=world.posted + 1)
    if world.made < bounds.approvals and not world.decisions and _is_suspended(world.chains[0]):
        yield evolve(world, decisions=1, made=world.made + 1)
    if world.deletions < bounds.deletions and world.chains[0] and not world.is_deleted:
        refused = world.holder >= 0 and protocol.checks_below
        chains = world.chains if refused else ((),) * len(world.chains)
        yield evolve(world, deletions=world.deletions + 1, is_deleted=not refused, chains=chains)


def _is_suspended(chain: History) -> bool:
    return bool(chain) and chain[-1].kind is RecordKind.EXECUTION_SUSPENDED


@frozen
class _Step:
    """What one driver may do next.

    Attributes:
        world: the world.
        index: the number of the driver.
        driver: the driver.
        protocol: what it follows.
        bounds: what may happen.
    """

    world: SmallWorld
    index: int
    driver: SmallDriver
    protocol: SmallProtocol
    bounds: SmallBounds

    def next(self) -> Iterator[SmallWorld]:
        """Yield the worlds after each thing that the driver may do."""
        world, driver = self.world, self.driver
        if not driver.token:
            if world.holder < 0 and not _has_ended(world.chains[0]) and not world.is_deleted:
                yield self.claimed()
            return
        if driver.doing == "act":
            after = "late intent" if not self.protocol.intent_first else "outcome"
            yield self.put(evolve(driver, doing=after), effects=world.effects + 1)
        elif driver.doing == "finish":
            yield self.put(evolve(driver, doing=""), commands=world.commands[1:])
        else:
            yield from self.work()

    def claimed(self) -> SmallWorld:
        """Return the world in which the driver has claimed the execution, and has read it."""
        world, token = self.world, self.world.token + 1
        return self.put(SmallDriver(token, world.chains), holder=self.index, token=token)

    def gone(self, **changes: int) -> SmallWorld:
        """Return the world without the driver: its claim ends with it."""
        holder = -1 if self.world.holder == self.index else self.world.holder
        return self.put(SmallDriver(), holder=holder, **changes)

    def put(self, driver: SmallDriver, **changes: Any) -> SmallWorld:
        """Return the world with a changed driver."""
        drivers = tuple([driver if place == self.index else each for place, each in enumerate(self.world.drivers)])
        return evolve(self.world, drivers=drivers, **changes)

    def append(self, chain: int, *moves: Move, doing: str = "", **changes: Any) -> Iterator[SmallWorld]:
        """Yield what comes of an append: stored, stored with a lost answer, or refused."""
        world, driver = self.world, self.driver
        held = world.holder == self.index and driver.token == world.token
        follows = world.chains[chain] == driver.seen[chain]
        if self.protocol.fences and not (held and follows):
            yield self.gone()
            return
        chains = _replace(world.chains, chain, world.chains[chain] + moves)
        seen = _replace(driver.seen, chain, driver.seen[chain] + moves)
        yield self.put(evolve(driver, seen=seen, doing=doing), chains=chains, **changes)
        if world.lost_answers < self.bounds.lost_answers:
            stored = evolve(self, world=evolve(world, chains=chains, **changes))
            yield stored.gone(lost_answers=world.lost_answers + 1)

    # --- the work ---------------------------------------------------------------------------------------------------

    def work(self) -> Iterator[SmallWorld]:
        """Yield what the driver does by what it knows."""
        top = self.driver.seen[0]
        if not top:
            yield from self.append(0, Move(kind=RecordKind.EXECUTION_STARTED))
        elif _has_ended(top):
            yield self.gone()
        elif self.bounds.has_agent:
            yield from self.work_as_caller()
        else:
            yield from self.work_in(0, CALLER)

    def work_as_caller(self) -> Iterator[SmallWorld]:
        """Yield what the driver does with a caller whose only call an agent serves."""
        top, below = self.driver.seen
        model = _model(top)
        if model.stage is Stage.SUSPENDED:
            yield from self.resume(0, AGENT_CALL, model)
        elif model.call(PARENT_CALL) is None:
            yield from self.append(0, _intent(PARENT_CALL, "agent"))
        elif not below:
            yield from self.append(1, Move(kind=RecordKind.EXECUTION_STARTED))
        elif _has_ended(below):
            yield from self.settle_caller(model)
        elif not _is_suspended(below):
            yield from self.work_in(1, AGENT)
        elif (
            (waiting := model.waiting_call(AGENT_CALL)) is not None and waiting.decided
        ) or not self.protocol.asks_outside:
            # The agent resumes with the decision that is recorded for its caller.
            used = self.decided(AGENT_CALL, _model(below))
            yield from self.append(1, used, Move(kind=RecordKind.EXECUTION_RESUMED))
        else:
            waits = (WaitingCall(PARENT_CALL, "outer", inner=_model(below).waiting),)
            yield from self.append(0, Move(kind=RecordKind.EXECUTION_SUSPENDED, step=1, waiting=waits))

    def settle_caller(self, model: ExecutionModel) -> Iterator[SmallWorld]:
        """Yield the end of a caller whose agent has ended."""
        call = model.call(PARENT_CALL)
        if call is not None and not call.has_outcome:
            yield from self.append(0, Move(kind=RecordKind.CALL_OUTCOME, key=PARENT_CALL))
        else:
            yield from self.append(0, _end(PARENT_CALL))

    def decided(self, key: str, model: ExecutionModel) -> Move:
        """Return the record of a decision to run the call that waits."""
        waiting = model.waiting_call(key)
        digest = "" if waiting is None else waiting.digest
        return Move(kind=RecordKind.DECISION_USED, key=key, digest=digest, permits=True)

    def work_in(self, chain: int, execution_id: str) -> Iterator[SmallWorld]:
        """Yield what the driver does with the execution that makes the call with the effect."""
        model, history = _model(self.driver.seen[chain]), self.driver.seen[chain]
        key = f"{execution_id}/1/0"
        if model.stage is Stage.SUSPENDED:
            yield from self.resume(chain, key, model)
            return
        if self.driver.doing == "outcome":
            yield from self.append(chain, Move(kind=RecordKind.CALL_OUTCOME, key=key))
            return
        if self.driver.doing == "late intent":
            yield from self.append(chain, _intent(key, "pay"), doing="outcome")
            return
        if chain == 0 and self.bounds.commands:
            yield from self.take_messages(model)
        yield from self.go_on(chain, key, model, history)

    def resume(self, chain: int, key: str, model: ExecutionModel) -> Iterator[SmallWorld]:
        """Yield the resumption of a suspended execution, once somebody has decided."""
        if not self.world.decisions:
            return
        used = self.decided(key, model)
        left = 0 if self.protocol.binds_decisions else self.world.decisions
        yield from self.append(chain, used, Move(kind=RecordKind.EXECUTION_RESUMED), decisions=left)

    def take_messages(self, model: ExecutionModel) -> Iterator[SmallWorld]:
        """Yield the delivery of a command: its message is recorded, and then it is finished."""
        if not self.world.commands:
            return
        command = self.world.commands[0]
        if command in model.commands and self.protocol.remembers_commands:
            yield self.put(evolve(self.driver, doing="finish"))
        else:
            known = command if self.protocol.remembers_commands else ""
            sent = Move(kind=RecordKind.MESSAGES_SENT, messages=(_MESSAGE,), command=known)
            yield from self.append(0, sent, doing="finish")

    def go_on(self, chain: int, key: str, model: ExecutionModel, history: History) -> Iterator[SmallWorld]:
        """Yield the next record of an execution that runs."""
        call, kinds = model.call(key), {move.kind for move in history}
        if model.messages and self.protocol.takes_all:
            yield from self.append(chain, Move(kind=RecordKind.MESSAGES_TAKEN, messages=model.messages[:1]))
        elif self.bounds.has_fork and (reused := self.key_to_reuse(model)):
            reuse = Move(kind=RecordKind.CALL_OUTCOME, key=reused, answered=True)
            yield from self.append(chain, reuse, answered=self.world.answered + 1)
        elif call is not None and call.has_outcome:
            yield from self.append(chain, _end(*[each.key for each in model.calls]))
        elif call is not None:
            yield from self.after_interruption(chain, key)
        elif self.bounds.needs_approval and RecordKind.EXECUTION_RESUMED not in kinds:
            waiting = (WaitingCall(key, "first"),)
            yield from self.append(chain, Move(kind=RecordKind.EXECUTION_SUSPENDED, step=1, waiting=waiting))
        elif self.protocol.intent_first:
            yield from self.append(chain, _intent(key, "pay"), doing="act")
        else:
            yield self.put(evolve(self.driver, doing="act"))

    def key_to_reuse(self, model: ExecutionModel) -> str:
        """Return the key of the call of a fork that takes the outcome of its source; empty for none."""
        keys = [f"{CALLER}/1/1", *([] if self.protocol.reuses_once else [f"{CALLER}/1/0"])]
        return next((key for key in keys if model.call(key) is None), "")

    def after_interruption(self, chain: int, key: str) -> Iterator[SmallWorld]:
        """Yield what becomes of a call that has started and whose outcome nobody knows."""
        if self.bounds.suspends_doubt and self.world.made < self.bounds.approvals:
            waiting = (WaitingCall(key, f"doubt {len(self.driver.seen[chain])}"),)
            yield from self.append(chain, Move(kind=RecordKind.EXECUTION_SUSPENDED, step=1, waiting=waiting))
        elif self.protocol.tells:
            doubt = evolve(Move(kind=RecordKind.CALL_OUTCOME, key=key, answered=False), name=_DOUBT)
            yield from self.append(chain, doubt)
        else:
            yield from self.append(chain, _end())


def _intent(key: str, name: str) -> Move:
    return Move(kind=RecordKind.CALL_INTENT, key=key, name=name, effect="effect")


def _end(*settled: str) -> Move:
    return Move(kind=RecordKind.EXECUTION_ENDED, step=1, settled=frozenset(settled), is_complete=True)


def _replace(chains: tuple[History, ...], place: int, chain: History) -> tuple[History, ...]:
    return tuple([chain if index == place else each for index, each in enumerate(chains)])


_MODELS: dict[History, ExecutionModel] = {(): ExecutionModel()}


def _model(history: History) -> ExecutionModel:
    if history not in _MODELS:
        _MODELS[history] = advance(_model(history[:-1]), history[-1])[0]
    return _MODELS[history]
