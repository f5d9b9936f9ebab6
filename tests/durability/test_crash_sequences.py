"""Random sequences of crashes, cancellations, decisions and recoveries: laws 14, 15, 16 and 18."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentloop import AgentLoop, AgentState, AgentStop, Interceptor, to_json
from agentloop.durable import verify_records
from agentloop.durable.fold import fold_records
from agentloop.errors import DecisionError, JournalConflict
from agentloop.events import AgentStepStarted, ToolCallCompleted, ToolCallRecovered
from agentloop.interception import BeforeStep
from agentloop.values import (
    Decision,
    Event,
    InDoubt,
    JournalRecord,
    RecordKind,
    ToolExecution,
    ToolStatus,
    answer,
    approve,
    deny,
    edit,
)
from agentloop.values.json import parse_json
from agentloop.values.secrets import MASK
from tests.durability.world import RUN, SECRET, MortalJournal, ProcessKilled, Turn, World, make_loop, run_alone
from tests.generated import examples

NAMES = ("pure", "idempotent", "effect", "approved", "reconciled")
TEXTS = st.sampled_from(["a", "b", 'é\n"\\'])


def turns(*names: str) -> st.SearchStrategy[list[Turn]]:
    calls = st.tuples(st.sampled_from(names), TEXTS)
    return st.lists(st.lists(calls, min_size=1, max_size=3), min_size=1, max_size=3)


PROCESSES = st.tuples(st.sampled_from(["ends", "killed", "killed after storing", "cancelled"]), st.integers(0, 9))
"""How a process ends, and after how many appends."""


class StopBeforeStep(Interceptor):
    """Stops every execution before its first step."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        raise AgentStop("no more")


class CrashSequences(RuleBasedStateMachine):
    """One execution in a sequence of simulated processes."""

    has_secret = False

    @initialize(
        outer=turns(*NAMES, "agent"),
        inner=turns(*NAMES),
        policy=st.sampled_from(InDoubt),
        send_at=st.sets(st.integers(1, 4)),
    )
    def start(self, outer: list[Turn], inner: list[Turn], policy: InDoubt, send_at: set[int]) -> None:
        self.world, self.policy, self.send_at = World(), policy, send_at
        self.script = [self.with_secret(turn) for turn in outer], [self.with_secret(turn) for turn in inner]
        self.journal = MortalJournal([SECRET] if self.has_secret else [])
        self.used_decisions: list[tuple[AgentState, dict[str, Decision]]] = []
        self.events: list[Event] = []
        self.sent: list[str] = []

    def with_secret(self, turn: Turn) -> Turn:
        return [(name, SECRET if text == "a" and self.has_secret else text) for name, text in turn]

    # --- rules -------------------------------------------------------------------------------------------

    @rule(process=PROCESSES, stops=st.booleans())
    @precondition(lambda self: self.status in {"", "in_progress"})
    def run(self, process: tuple[str, int], *, stops: bool) -> None:
        """Start the execution, or recover it."""
        is_new = not self.records(RUN)
        loop = self.loop(*([StopBeforeStep()] if stops and not is_new else []))
        self.run_process(loop.execute("go", execution_id=RUN) if is_new else loop.recover(RUN), process)

    @rule(process=PROCESSES, by_id=st.booleans(), data=st.data())
    @precondition(lambda self: self.status == "suspended")
    def decide(self, process: tuple[str, int], *, by_id: bool, data: st.DataObject) -> None:
        """Make decisions about some of the pending calls."""
        state = self.state_of(RUN)
        waiting = [call for call in state.pending if not call.waits_for]
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique_by=lambda call: call.key))
        choices: list[Decision] = [deny("no"), answer("it is done"), edit({"text": "edited"})]
        decisions = {
            call.key: data.draw(st.sampled_from([approve(call.digest), approve(), *choices])) for call in chosen
        }
        self.used_decisions.append((state, decisions))
        self.run_process(self.loop().resume(RUN if by_id else state, decisions), process)

    @rule(data=st.data())
    @precondition(lambda self: self.used_decisions and self.status != "suspended")
    def decide_again(self, data: st.DataObject) -> None:
        """Make decisions that were used before, with the state of then."""
        state, decisions = self.used_decisions[data.draw(st.integers(0, len(self.used_decisions) - 1))]
        before = Counter(self.world.runs)
        try:
            run_alone(self.loop().resume(state, decisions))
        except (DecisionError, JournalConflict):
            assert self.world.runs == before
        else:
            raise AssertionError("decisions were used twice (law 16)")

    @rule()
    @precondition(lambda self: self.status not in {"", "in_progress"})
    def recover_ended(self) -> None:
        """Recover an execution that has ended or is suspended; nothing runs."""
        before = Counter(self.world.runs)
        assert run_alone(self.loop().recover(RUN)) == self.state_of(RUN)
        assert self.world.runs == before

    def run_process(self, execution: Coroutine[Any, Any, AgentState], process: tuple[str, int]) -> None:
        """Simulate a process that runs the execution."""
        how, appends = process

        async def run() -> AgentState | None:
            task = asyncio.ensure_future(execution)
            self.journal.start_process(
                None if how == "ends" else appends,
                stores_last=how == "killed after storing",
                cancels=task if how == "cancelled" else None,
            )
            try:
                return await task
            except (ProcessKilled, asyncio.CancelledError):
                return None
            finally:
                self.journal.start_process(None)

        state = run_alone(run())
        if state is not None and not self.has_secret:
            folded = self.state_of(RUN)
            assert folded == state
            assert to_json(folded) == to_json(state)

    def loop(self, *interceptors: Interceptor) -> AgentLoop:
        loop = make_loop(self.world, *self.script, self.journal, *interceptors, in_doubt=self.policy)
        inbox = loop.inbox(RUN)

        def send(event: AgentStepStarted) -> None:
            if event.execution_id == RUN and event.step_number in self.send_at:
                self.sent.append(f"message {len(self.sent)}")
                inbox.send(self.sent[-1])

        loop.on(AgentStepStarted, send)

        def note(event: Event) -> None:
            if not self.journal.is_killed:  # no listener outlives the kill
                self.events.append(event)

        loop.on(ToolCallRecovered, note)
        loop.on(ToolCallCompleted, note)
        return loop

    # --- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def journal_is_intact(self) -> None:
        """The journal is verified without findings and holds no secret (law 18)."""
        assert run_alone(self.journal.verify()) == ()
        if self.has_secret:
            records = [record for execution_id in self.execution_ids for record in self.records(execution_id)]
            assert all("4111-1111" not in record.body for record in records)
            assert all("4111-1111" not in head.input for head in run_alone(self.journal.list()))

    @invariant()
    def effects_happen_once(self) -> None:
        """A call with an effect runs once, and once more for each decision that lets it run (laws 14 and 16)."""
        for execution_id in self.execution_ids:
            intents = self.bodies(execution_id, RecordKind.CALL_INTENT)
            names = {body["intent"]["key"]: body["intent"]["call"]["name"] for body in intents}
            allowed = Counter(
                body["key"]
                for body in self.bodies(execution_id, RecordKind.DECISION_USED)
                if body["decision"]["type"] in {"approve", "edit"}
            )
            for key, name in names.items():
                if name in {"effect", "reconciled", "approved"}:
                    assert self.world.runs[key] <= allowed[key] + (name != "approved"), key

    @invariant()
    def nothing_runs_with_a_mask(self) -> None:
        """No tool gets a masked argument."""
        assert not any(MASK in text for texts in self.world.texts.values() for text in texts)

    def teardown(self) -> None:
        """Run the execution to its end, and compare effects, outcomes, events and messages."""
        self.run_to_end()
        assert self.status in {"completed", "stopped", "failed"}
        outcomes = self.outcomes
        for key in self.world.runs:
            # An agent that is not resumed is in doubt with all its calls.
            outcome = outcomes.get(key) or outcomes.get(_caller_of(key))
            assert outcome is not None, f"the effect {key} is lost: it is in no state"
            is_known = outcome.succeeded or outcome.may_have_run or outcome.name == "pure"
            assert is_known, f"the effect {key} is lost: {outcome}"
            assert key in outcomes or outcome.may_have_run
        self.check_events(outcomes)
        texts = [message.text for message in self.state_of(RUN).messages]
        recorded = [text for text in self.sent if any(text in record.body for record in self.records(RUN))]
        assert all(texts.count(text) == 1 for text in recorded), (texts, recorded)
        super().teardown()

    def run_to_end(self) -> None:
        for _ in range(20):
            if self.status == "suspended":
                waiting = [call for call in self.state_of(RUN).pending if not call.waits_for]
                decisions: dict[str, Decision] = {call.key: deny("enough") for call in waiting}
                self.run_process(self.loop().resume(RUN, decisions), ("ends", 0))
            elif self.status in {"", "in_progress"}:
                self.run(("ends", 0), stops=False)

    def check_events(self, outcomes: dict[str, ToolExecution]) -> None:
        recovered = [event for event in self.events if isinstance(event, ToolCallRecovered)]
        doubts = {event.key for event in recovered if event.recovery == "in_doubt"}
        completed = {
            event.execution.key: event.execution for event in self.events if isinstance(event, ToolCallCompleted)
        }
        for key, outcome in outcomes.items():
            if outcome.status is ToolStatus.IN_DOUBT:
                assert key in doubts, f"no event reported that {key} is in doubt"
            if key in completed and not self.has_secret:
                assert completed[key].status is outcome.status, f"{key} was reported as {completed[key].status}"

    # --- the journal ------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        head = run_alone(self.journal.head(RUN))
        return "" if head is None else head.status.value

    @property
    def execution_ids(self) -> list[str]:
        return [head.execution_id for head in run_alone(self.journal.list())]

    @property
    def outcomes(self) -> dict[str, ToolExecution]:
        steps = [step for execution_id in self.execution_ids for step in self.state_of(execution_id).steps]
        return {execution.key: execution for step in steps for execution in step.executions}

    def records(self, execution_id: str) -> Sequence[JournalRecord]:
        return verify_records(run_alone(self.journal.read(execution_id)), execution_id)

    def bodies(self, execution_id: str, kind: RecordKind) -> list[dict[str, Any]]:
        return [parse_json(record.body) for record in self.records(execution_id) if record.kind is kind]

    def state_of(self, execution_id: str) -> AgentState:
        state = fold_records(self.records(execution_id), execution_id).state
        assert state is not None
        return state


def _caller_of(key: str) -> str:
    """Return the key of the call that the agent of a call serves."""
    return key.rsplit("/agent/", 1)[0]


class CrashSequencesWithSecrets(CrashSequences):
    """The same with a secret of the journal in arguments and results."""

    has_secret = True


TestCrashSequences = CrashSequences.TestCase
TestCrashSequencesWithSecrets = CrashSequencesWithSecrets.TestCase
TestCrashSequences.settings = settings(
    stateful_step_count=6, max_examples=examples(60), phases=[Phase.generate, Phase.shrink]
)
TestCrashSequencesWithSecrets.settings = settings(TestCrashSequences.settings, max_examples=examples(60, share=6))
