"""Random runs that die, are cancelled, wait for decisions, and are gone on with: laws 14, 15, 16 and 18 over all of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentloop import AgentLoop, AgentState, AgentStop, Interceptor, to_json
from agentloop.errors import DecisionError, JournalConflict
from agentloop.events import AgentStepStarted, ToolCallCompleted, ToolCallRecovered
from agentloop.interception import BeforeStep
from agentloop.journal import verify_records
from agentloop.journal.fold import fold_records
from agentloop.values import (
    Decision,
    Event,
    InDoubt,
    JournalRecord,
    PendingCall,
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
from tests.durability.world import RUN, SECRET, Dead, MortalJournal, Turn, World, loop_of

NAMES = ("pure", "idempotent", "effect", "asked", "probed")
TEXTS = st.sampled_from(["a", "b", 'é\n"\\'])


def turns(*names: str) -> st.SearchStrategy[list[Turn]]:
    calls = st.tuples(st.sampled_from(names), TEXTS)
    return st.lists(st.lists(calls, min_size=1, max_size=3), min_size=1, max_size=3)


LIVES = st.tuples(st.sampled_from(["ends", "dies", "dies late", "cancelled"]), st.integers(0, 9))
"""How a process ends, and after how many appends."""


CHOICES = ("approve", "approve this", "deny", "answer", "edit")


def _decision(choice: str, call: PendingCall) -> Decision:
    digest = call.digest if choice == "approve this" else ""
    made: dict[str, Decision] = {"deny": deny("no"), "answer": answer("it is done"), "edit": edit({"text": "edited"})}
    return made.get(choice) or approve(digest)


class Stopping(Interceptor):
    """Stops every execution before its first step."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        raise AgentStop("no more")


class Lives(RuleBasedStateMachine):
    """One execution over the lives of several processes."""

    secret = False

    @initialize(
        outer=turns(*NAMES, "agent"),
        inner=turns(*NAMES),
        policy=st.sampled_from(InDoubt),
        sent=st.sets(st.integers(1, 4)),
    )
    def born(self, outer: list[Turn], inner: list[Turn], policy: InDoubt, sent: set[int]) -> None:
        self.world, self.policy, self.sends = World(), policy, sent
        self.script = [self.hidden(turn) for turn in outer], [self.hidden(turn) for turn in inner]
        self.journal = MortalJournal([SECRET] if self.secret else [])
        self.kept: list[tuple[AgentState, dict[str, Decision]]] = []
        self.told: list[Event] = []
        self.sent: list[str] = []

    def hidden(self, turn: Turn) -> Turn:
        return [(name, SECRET if text == "a" and self.secret else text) for name, text in turn]

    # --- what happens -------------------------------------------------------------------------------------------

    @rule(life=LIVES, stops=st.booleans())
    @precondition(lambda self: self.status in {"", "in_progress"})
    def run(self, life: tuple[str, int], *, stops: bool) -> None:
        """Begin the run, or go on with it where it was left."""
        begins = not self.records(RUN)
        loop = self.loop(*([Stopping()] if stops and not begins else []))
        self.live(loop.execute("go", execution_id=RUN) if begins else loop.recover(RUN), life)

    @rule(life=LIVES, by_id=st.booleans(), data=st.data())
    @precondition(lambda self: self.status == "suspended")
    def decide(self, life: tuple[str, int], *, by_id: bool, data: st.DataObject) -> None:
        """Decide about some of the calls that wait."""
        state = self.fold_records(RUN)
        waiting = [call for call in state.pending if not call.waits_for]
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique_by=lambda call: call.key))
        choices: list[Decision] = [deny("no"), answer("it is done"), edit({"text": "edited"})]
        decisions = {
            call.key: data.draw(st.sampled_from([approve(call.digest), approve(), *choices])) for call in chosen
        }
        self.kept.append((state, decisions))
        self.live(self.loop().resume(RUN if by_id else state, decisions), life)

    @rule(data=st.data())
    @precondition(lambda self: self.kept and self.status != "suspended")
    def decide_again(self, data: st.DataObject) -> None:
        """Use decisions that were used, with the state that they were made about."""
        state, decisions = self.kept[data.draw(st.integers(0, len(self.kept) - 1))]
        before = Counter(self.world.runs)
        try:
            asyncio.run(self.loop().resume(state, decisions))
        except (DecisionError, JournalConflict):
            assert self.world.runs == before
        else:
            raise AssertionError("decisions were used twice (law 16)")

    @rule()
    @precondition(lambda self: self.status not in {"", "in_progress"})
    def ask_for_it(self) -> None:
        """Recover an execution that has ended, or waits."""
        before = Counter(self.world.runs)
        assert asyncio.run(self.loop().recover(RUN)) == self.fold_records(RUN)
        assert self.world.runs == before

    def live(self, doing: Coroutine[Any, Any, AgentState], life: tuple[str, int]) -> None:
        """Be a process."""

        async def process() -> AgentState | None:
            how, appends = life
            task = asyncio.ensure_future(doing)
            self.journal.live(
                None if how == "ends" else appends,
                last_is_kept=how == "dies late",
                cancels=task if how == "cancelled" else None,
            )
            try:
                return await task
            except (Dead, asyncio.CancelledError):
                return None
            finally:
                self.journal.live(None)

        state = asyncio.run(process())
        if state is not None and not self.secret:
            known = self.fold_records(RUN)
            assert known == state
            assert to_json(known) == to_json(state)

    def loop(self, *interceptors: Interceptor) -> AgentLoop:
        loop = loop_of(self.world, *self.script, self.journal, *interceptors, in_doubt=self.policy)
        inbox = loop.inbox(RUN)

        def send(event: AgentStepStarted) -> None:
            if event.execution_id == RUN and event.step_number in self.sends:
                self.sent.append(f"message {len(self.sent)}")
                inbox.send(self.sent[-1])

        loop.on(AgentStepStarted, send)

        def note(event: Event) -> None:
            if not self.journal.is_dead:  # what is told after that, nobody has heard
                self.told.append(event)

        loop.on(ToolCallRecovered, note)
        loop.on(ToolCallCompleted, note)
        return loop

    # --- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def sound(self) -> None:
        """The journal finds nothing wrong with itself, and no secret is in it (law 18)."""
        assert asyncio.run(self.journal.verify()) == ()
        if self.secret:
            assert all("4111-1111" not in record.body for one in self.executions for record in self.records(one))
            assert all("4111-1111" not in head.input for head in asyncio.run(self.journal.list()))

    @invariant()
    def effects_are_had_once(self) -> None:
        """A call with an effect runs once, and once more for each time that a person lets it (laws 14 and 16)."""
        for one in self.executions:
            intents = self.bodies(one, RecordKind.CALL_INTENT)
            names = {body["intent"]["key"]: body["intent"]["call"]["name"] for body in intents}
            allowed = Counter(
                body["key"] for body in self.bodies(one, RecordKind.DECISION_USED) if _lets_run(body["decision"])
            )
            for key, name in names.items():
                if name in {"effect", "probed", "asked"}:
                    assert self.world.runs[key] <= allowed[key] + (name != "asked"), key

    @invariant()
    def nothing_runs_with_a_mask(self) -> None:
        """What was masked in the journal is not what a tool gets."""
        assert not any(MASK in text for texts in self.world.texts.values() for text in texts)

    def teardown(self) -> None:
        """Go on to the end, and look whether everything is known."""
        for _ in range(20):
            if self.status == "suspended":
                waiting = [call for call in self.fold_records(RUN).pending if not call.waits_for]
                self.live(self.loop().resume(RUN, {call.key: deny("enough") for call in waiting}), ("ends", 0))
            elif self.status in {"", "in_progress"}:
                self.run(("ends", 0), stops=False)
        outcomes = self.outcomes
        assert self.status in {"completed", "stopped", "failed"}
        for key in self.world.runs:
            known = outcomes.get(key) or outcomes.get(
                _caller(key)
            )  # an agent that nobody goes on with is in doubt with all it did
            assert known is not None, f"the effect {key} is lost: no state knows of it"
            assert known.succeeded or known.may_have_run or known.name == "pure", f"the effect {key} is lost: {known}"
            assert key in outcomes or known.may_have_run
        doubts = {
            event.key for event in self.told if isinstance(event, ToolCallRecovered) and event.recovery == "in_doubt"
        }
        completed = {
            event.execution.key: event.execution for event in self.told if isinstance(event, ToolCallCompleted)
        }
        for key, known in outcomes.items():
            if known.status is ToolStatus.IN_DOUBT:
                assert key in doubts, f"no event told that {key} is in doubt"
            if key in completed and not self.secret:
                assert completed[key].status is known.status, f"{key} was told to be {completed[key].status}"
        texts = [message.text for message in self.fold_records(RUN).messages]
        noted = [text for text in self.sent if any(text in record.body for record in self.records(RUN))]
        assert all(texts.count(text) == 1 for text in noted), (texts, noted)
        super().teardown()

    # --- what is there ------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        head = asyncio.run(self.journal.head(RUN))
        return "" if head is None else head.status.value

    @property
    def executions(self) -> list[str]:
        return [head.execution_id for head in asyncio.run(self.journal.list())]

    @property
    def outcomes(self) -> dict[str, ToolExecution]:
        steps = [step for one in self.executions for step in self.fold_records(one).steps]
        return {one.key: one for step in steps for one in step.executions}

    def records(self, execution_id: str) -> Sequence[JournalRecord]:
        return verify_records(asyncio.run(self.journal.read(execution_id)), execution_id)

    def bodies(self, execution_id: str, kind: RecordKind) -> list[dict[str, Any]]:
        return [parse_json(record.body) for record in self.records(execution_id) if record.kind is kind]

    def fold_records(self, execution_id: str) -> AgentState:
        state = fold_records(self.records(execution_id), execution_id).state
        assert state is not None
        return state


def _caller(key: str) -> str:
    return key.rsplit("/agent/", 1)[0]


def _lets_run(decision: dict[str, Any]) -> bool:
    return decision["type"] in {"approve", "edit"}


class LivesWithSecrets(Lives):
    """The same where arguments and results hold a secret of the journal."""

    secret = True


TestLives = Lives.TestCase
TestLivesWithSecrets = LivesWithSecrets.TestCase
TestLives.settings = TestLivesWithSecrets.settings = settings(
    stateful_step_count=6, max_examples=60, phases=[Phase.generate, Phase.shrink]
)
