"""Simulated runs: one seed, its faults, and what the model of records and the ledger of effects say about the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

from agentloop.durable.journal import Journal
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.durable.record_check import RecordHistory, check_trees
from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.testing.simulation.event_loop import Stuck, dropping_quietly
from agentloop.testing.simulation.faults import FAULTS_BY_STORAGE, PlannedFault, plan_faults, shrink
from agentloop.testing.simulation.scenarios import PURE, SCENARIOS, SimulatedScenario
from agentloop.testing.simulation.world import SimulatedWorld
from agentloop.values.tool_calls import ToolExecution

STORAGES = tuple(FAULTS_BY_STORAGE)
_POSTGRES_STEPS = 3
"""How many times more steps a run takes with connections to a database server, about."""


@frozen
class SimulatedRun:
    """What came of one seed.

    Attributes:
        seed: the seed.
        plan: what was to go wrong.
        problems: what is wrong; empty when nothing is.
        hits: how often each fault occurred, by kind and place.
        executions: the number of executions that were recorded.
        records: the number of their records.
        effects: how often tools had their effect.
        steps: the number of steps of the event loop.
        seconds: the virtual time that it took.
        digest: the hash of the log: equal for equal runs.
        log: what has happened, one line for each event.
    """

    seed: int
    plan: tuple[PlannedFault, ...]
    problems: tuple[str, ...]
    hits: Mapping[tuple[str, str], int]
    executions: int
    records: int
    effects: int
    steps: int
    seconds: float
    digest: str
    log: tuple[str, ...] = field(repr=False)


def simulate(
    seed: int,
    scenario: str | type[SimulatedScenario] = "recovery",
    *,
    storage: str = "memory",
    plan: Sequence[PlannedFault] | None = None,
) -> SimulatedRun:
    """Run one seed of a scenario, and check what came of it.

    Args:
        seed: decides about everything: the same seed gives the same run.
        scenario: the name of a scenario of the package, or a class of your own.
        storage: `memory`, a journal on a server; `sqlite`, one file on one computer; or `postgres`, a simulated PostgreSQL server,
            which the shipped journal uses.
        plan: what goes wrong; the seed decides about it by default.

    Raises:
        ConfigurationError: there is no such scenario or storage.
    """
    kind = _scenario_of(scenario)
    if storage not in STORAGES:
        raise ConfigurationError(f"the storage is {', '.join(STORAGES)}, not {storage!r}")
    if plan is None:
        gap = kind.fault_gap * (_POSTGRES_STEPS if storage == "postgres" else 1)
        plan = plan_faults(seed, kinds=FAULTS_BY_STORAGE[storage], gap=gap)
    with dropping_quietly():
        return _simulate(seed, kind, storage, plan)


def _simulate(seed: int, kind: type[SimulatedScenario], storage: str, plan: Sequence[PlannedFault]) -> SimulatedRun:
    world = SimulatedWorld(seed, plan, storage=storage)
    running = kind(world)
    histories = dict[str, RecordHistory]()

    async def run() -> None:
        try:
            await running.main()
        finally:
            world.halt()
            histories.update(await _read(world.open_store()))

    try:
        world.run(run())
    except Stuck as stuck:
        world.problems.append(str(stuck))
    found = (*world.problems, *running.problems(), *_problems(histories, world, running))
    return SimulatedRun(
        seed=seed,
        plan=tuple(plan),
        problems=tuple(dict.fromkeys(found)),
        hits=dict(world.hits),
        executions=len(histories),
        records=sum(history.head.record_count for history in histories.values()),
        effects=world.ledger.effects.total(),
        steps=world.loop.steps,
        seconds=world.loop.time(),
        digest=world.digest(),
        log=tuple(world.log),
    )


def shrink_run(run: SimulatedRun, scenario: str | type[SimulatedScenario], *, storage: str = "memory") -> SimulatedRun:
    """Return the run of the same seed with the fewest faults that still shows a problem."""

    def fails(plan: tuple[PlannedFault, ...]) -> bool:
        return bool(simulate(run.seed, scenario, storage=storage, plan=plan).problems)

    return simulate(run.seed, scenario, storage=storage, plan=shrink(run.plan, fails))


def _scenario_of(scenario: str | type[SimulatedScenario]) -> type[SimulatedScenario]:
    if not isinstance(scenario, str):
        return scenario
    if scenario not in SCENARIOS:
        raise ConfigurationError(
            f"there is no scenario {scenario!r}{suggest(scenario, SCENARIOS)}; there are {', '.join(SCENARIOS)}"
        )
    return SCENARIOS[scenario]


# --- what is wrong ----------------------------------------------------------------------------------------------------


async def _read(store: Journal) -> Mapping[str, RecordHistory]:
    histories = dict[str, RecordHistory]()
    for head in await store.list():
        history = histories[head.execution_id] = RecordHistory(head)
        history.found = [finding.problem for finding in history.check(await store.read(head.execution_id))]
    if not isinstance(store, MemoryJournal):
        await store.aclose()
    return histories


def _problems(
    histories: Mapping[str, RecordHistory], world: SimulatedWorld, running: SimulatedScenario
) -> Iterator[str]:
    for execution_id, history in histories.items():
        yield from [f"{execution_id}: {problem}" for problem in history.found]
    yield from [f"{finding.execution_id}: {finding.problem}" for finding in check_trees(histories)]
    starts: Counter[str] = sum((history.starts for history in histories.values()), Counter())
    permissions: Counter[str] = sum((history.permissions for history in histories.values()), Counter())
    outcomes, ledger = _outcomes(histories), world.ledger
    for key, count in ledger.effects.items():
        if any(key.startswith(f"{execution_id}/") for execution_id in histories):  # its execution was not deleted
            yield from (
                []
                if ledger.names[key] in running.repeatable
                else _problems_of_effect(
                    key, count, starts[key] + _further_starts(running, key, ledger.names[key]), ledger.names[key]
                )
            )
            yield from [] if ledger.names[key] in PURE else _untold(key, outcomes)
    for history in histories.values():
        for key, name in history.names.items():
            if name in running.unrepeatable and starts[key] - permissions[key] > 1:
                yield f"the call {key} of {name} starts {starts[key]} times, and {permissions[key]} were permitted"
            outcome = outcomes.get(key)
            # A person may have told the result of a call about which somebody has decided.
            is_claimed = outcome is not None and outcome.succeeded and key not in history.decided
            if is_claimed and running.has_ledger and name in running.unrepeatable and not ledger.effects[key]:
                yield f"the call {key} of {name} has succeeded, and never had its effect"


def _further_starts(running: SimulatedScenario, key: str, name: str) -> int:
    return 0 if name in running.unrepeatable else running.further_starts(key)


def _problems_of_effect(key: str, count: int, starts: int, name: str) -> Iterator[str]:
    if count > starts:
        yield f"the call {key} of {name} had its effect {count} times, and started {starts} times"


def _untold(key: str, outcomes: Mapping[str, ToolExecution]) -> Iterator[str]:
    outcome = outcomes.get(key)
    if outcome is not None:
        if not (outcome.succeeded or outcome.may_have_run):
            yield f"the call {key} had its effect, and its outcome {outcome.status.value} denies it"
        return
    # The call of an agent that did not end is told of by the call that the agent serves.
    above = [known for at, known in outcomes.items() if key.startswith(f"{at}/")]
    if not any(known.succeeded or known.may_have_run for known in above):
        yield f"the call {key} had its effect, and nobody is told"


def _outcomes(histories: Mapping[str, RecordHistory]) -> Mapping[str, ToolExecution]:
    return {
        execution.key: execution
        for history in histories.values()
        if history.state is not None
        for step in history.state.steps
        for settled in step.executions
        for execution in settled.flat
    }
