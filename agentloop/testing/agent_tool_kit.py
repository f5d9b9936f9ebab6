"""The law suite of wrappers around sub-agents and handoffs."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from attrs import define, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.tool import CanDiscoverTools, Tool, ToolContext, ToolLike, ToolPolicy
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.errors import InvalidDependencies, ProviderUnavailable
from agentloop.events.bus import EventBus
from agentloop.events.execution import AgentExecutionStarted
from agentloop.events.tool_calls import ToolCallSettled
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.rules import RequireApproval
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.handoff import handed_over_by, handoff_to
from agentloop.policies.budgets.budget import Budget
from agentloop.policies.budgets.leases import DELEGATED
from agentloop.testing.call_layer_kit import CallSide, LayeredExecutor
from agentloop.testing.clocks import START, CountingIds, LoopClock, ManualClock, run_in_virtual_time
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.testing.kit import Kit, LawNotChecked, checked_factory, find_difference, require
from agentloop.testing.surroundings import Surroundings, require_no_trace
from agentloop.testing.toys import CANCELLATIONS
from agentloop.tools.decorator import tool
from agentloop.values.decisions import Decision, approve, deny
from agentloop.values.event import Event
from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.json import parse_json
from agentloop.values.parts import Text
from agentloop.values.records import RecordKind
from agentloop.values.serialization import from_json, to_json, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolStatus, as_egress

DELEGATION = 59
"""The number of the law about what lies below a call."""
_AGENTS = ("ada", "bob")
_MAX_DEPTH = 3
"""The greatest depth of agents where `as_tool` is not told another one."""
_MAX_DECISIONS = 6
_CALLS_LEFT, _MANY = 6, 20
_CANCELLATIONS = 3
_SECONDS_TO_STOP = 60.0
_EFFECTS = tuple(Effect)
_STRICTNESS = {Effect.PURE: 0, Effect.IDEMPOTENT: 1, Effect.EFFECT: 2}
_COUNTS = st.integers(1, 3)
_PLANS = st.lists(st.sampled_from(["work", "whose"]), min_size=1, max_size=2)
_RUN = "run"
"""The id of an execution of a caller."""
_NOBODY = "nobody"
"""The dependencies of an execution that does not say whose it is."""
_ENDS: Mapping[str, str] = {"answer": "has answered", "error": "has failed"}
"""How agents end."""
_MARK = re.compile(r"mark-\d+")
_LEVEL = re.compile(r"level (\d+)")
_TOO_DEEP = 6
"""How deep an agent calls itself where nothing keeps it from that."""


class AgentToolKit(Kit):
    """Checks a wrapper around tools that delegate: those of `AgentLoop.as_tool`, and those of `handoff_to`.

    There is no contract of its own for these. What users write is a `Tool` around another one, and what the loop looks at is the smallest
    thing that is checked: the abilities of `agentloop.contracts.tool` that both tools have, which a wrapper passes on, and its attribute
    `tool`, by which a loop finds the handoff inside. A wrapper may rename the tool, add to the task, limit, log, repeat, and refuse; the
    task keeps the words that the caller wrote.

        AgentToolKit(Logged)  # Logged(tool) is the wrapper

    Args:
        wrap: returns the wrapper of a tool.
        handoffs: whether the wrapper is for handoffs, too.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 14, 16, 17, 19, 27, 34, 38, 40, 41, 50, DELEGATION)

    def __init__(self, wrap: Callable[[Tool], Tool], *, handoffs: bool = True, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.wrap: Callable[[Tool], Tool] = checked_factory(wrap)
        self.handoffs = handoffs

    def require_working(self) -> None:
        """Check that a wrapped agent answers.

        Raises:
            LawNotChecked: it does not.
        """
        family = _AgentFamily(self.wrap)
        state = run_in_virtual_time(family.run())
        outcomes = _outcomes(state)
        if not outcomes or not outcomes[0].succeeded or not family.notes.began:
            raise LawNotChecked(f"the call of an agent that works did not succeed: {outcomes or state.errors}")

    def law_9(self) -> None:
        """Each call has the answer of its own agent, and each execution those of its own, at once and in turn."""

        def holds(example: tuple[int, list[str]]) -> None:
            number, plan = example
            family = _AgentFamily(self.wrap, count=number, plan=plan)
            outcomes = _outcomes(run_in_virtual_time(family.run()))
            begun = Counter(each.execution_id for each in family.events if isinstance(each, AgentExecutionStarted))
            shared = [each for each, times in begun.items() if times > 1]
            require(9, not shared, f"several agents have the execution {', '.join(shared)}")
            for place, outcome in enumerate(outcomes):
                others = [f"mark-{other}" for other in range(number) if other != place]
                require_no_trace(9, [outcome.text], others, of=f"the answer about mark-{place}")
                own = outcome.has_error or f"mark-{place}" in outcome.text
                require(9, own, f"the call about mark-{place} has no answer about it: {outcome.text!r:.200}")

        self.for_all(st.tuples(_COUNTS, _PLANS), holds)
        self.for_all(
            st.tuples(_COUNTS, st.booleans()), lambda example: run_in_virtual_time(self._check_owners(*example))
        )

    async def _check_owners(self, number: int, at_once: bool) -> None:  # noqa: FBT001  # an example
        family = _AgentFamily(self.wrap, count=number, plan=("whose",))

        async def run(name: str) -> tuple[str, AgentState]:
            return name, await family.run(execution_id=name, dependencies=name)

        runs = [run(name) for name in _AGENTS]
        states = await asyncio.gather(*runs) if at_once else [await each for each in runs]
        for name, state in states:
            others = [other for other in _AGENTS if other != name]
            texts = [outcome.text for outcome in _outcomes(state)]
            require_no_trace(9, texts, others, of=f"an answer in the execution of {name}")

    def law_14(self) -> None:
        """An effect of an agent happens once for each call, whatever becomes of the agent, also after a crash."""

        def holds(example: tuple[int, str]) -> None:
            number, end = example
            family = _AgentFamily(self.wrap, count=number, plan=("work",), end=end)
            run_in_virtual_time(family.run())
            for mark, times in Counter(family.notes.began).items():
                require(14, times == 1, f"the agent for {mark} {_ENDS[end]}, and its work was done {times} times")

        self.for_all(st.tuples(_COUNTS, st.sampled_from(sorted(_ENDS))), holds)
        self.for_all(
            st.tuples(_COUNTS, st.floats(0, 1)), lambda example: run_in_virtual_time(self._check_crash(14, *example))
        )

    async def _check_crash(self, law: int, number: int, share: float) -> None:
        """Run with a journal, discard the last records as a crash does, and recover."""
        journal, plan = CrashableJournal(), ("work", "work")
        await _AgentFamily(self.wrap, count=number, plan=plan, journal=journal).run()
        kept = journal.appended[: 1 + round(share * (len(journal.appended) - 1))]
        survived = await journal.after_crash(len(kept))
        family = _AgentFamily(self.wrap, count=number, plan=plan, journal=survived)
        state = await family.caller.recover(_RUN, dependencies=_NOBODY)
        begun = {parse_json(each.body)["intent"]["key"] for each in kept if each.kind is RecordKind.CALL_INTENT}
        again = [key for key in family.notes.keys if key in begun]
        require(14, not again, f"the calls {', '.join(again)} of agents began before a crash, and ran again")
        recorded = {each.execution_id for each in kept}
        for outcome in _outcomes(state):
            is_left = f"{outcome.key}/agent" in recorded and outcome.status is ToolStatus.IN_DOUBT
            said = f"the agent of the call {outcome.key} has a record, and the call is in doubt after a crash"
            require(DELEGATION, law != DELEGATION or not is_left, said)

    def law_16(self) -> None:
        """A call waits as long as calls of its agent wait, the caller sees them, and decisions about them reach the agent."""

        def holds(example: tuple[int, bool, bool]) -> None:
            number, approves, is_recorded = example
            journal = CrashableJournal() if is_recorded else None
            run_in_virtual_time(self._check_waiting(number, approves, journal))

        self.for_all(st.tuples(_COUNTS, st.booleans(), st.booleans()), holds)

    async def _check_waiting(self, number: int, approves: bool, journal: CanJournal | None) -> None:  # noqa: FBT001
        """Suspend agents, decide about their calls, and resume from the stored state.

        Args:
            number: the number of agents.
            approves: whether the calls of the first agent are approved; those of every second one are.
            journal: records the execution.
        """
        family = _AgentFamily(
            self.wrap, count=number, plan=("work",), journal=journal, inner=(RequireApproval(["work"]),)
        )
        state = await family.run()
        decided: dict[str, Decision] = {}
        for _ in range(_MAX_DECISIONS):
            pending = {call.key: call for call in state.pending}
            again = [key for key in decided if key in pending]
            require(16, not again, f"the calls {', '.join(again)} of agents were decided, and wait again")
            if not pending:
                break
            inner = [key for key, call in pending.items() if not call.waits_for and "/agent" in key]
            outer = [key for key in pending if "/agent" not in key]
            require(
                16, inner, f"the calls {', '.join(outer)} wait for their agents, and the caller does not see for what"
            )
            decided = {
                key: approve(pending[key].digest) if (place % 2 == 0) is approves else deny("no", pending[key].digest)
                for place, key in enumerate(sorted(inner))
            }
            state = await family.caller.resume(from_json(to_json(state), AgentState), decided, dependencies=_NOBODY)
        else:
            require(16, condition=False, reason=f"after {_MAX_DECISIONS} decisions, the calls still wait")
        require(16, decided, "a call of an agent needs an approval, and nothing has waited")
        allowed = [key for key, decision in decided.items() if type(decision).__name__ == "Approve"]
        ran = sorted(family.notes.keys)
        require(16, ran == sorted(allowed), f"the calls {sorted(allowed)} of agents were approved, and {ran} ran")
        ended = state.status is ExecutionStatus.COMPLETED
        require(16, ended, f"all calls are decided, and the execution is {state.status}: {state.errors}")

    def law_17(self) -> None:
        """Arguments that the schema of the agent does not allow do not reach it."""
        schema = {"type": "object", "properties": {"task": {"type": "string", "maxLength": 30}}, "required": ["task"]}

        def holds(arguments: dict[str, object]) -> None:
            family = _AgentFamily(self.wrap, parameters=schema, arguments=arguments)
            state = run_in_virtual_time(family.run())
            began = family.agent_model.requests
            require(17, not began, f"the agent began with the arguments {arguments}, which its schema does not allow")
            said = f"the arguments {arguments} are invalid, and the call succeeded"
            require(17, not any(outcome.succeeded for outcome in _outcomes(state)), said)

        invalid: list[dict[str, object]] = [{"task": 5}, {"task": "mark-0 " * 9}, {"job": "mark-0"}]
        self.for_each(invalid, holds)

    def law_19(self) -> None:
        """No task of the wrapper outlives an execution, also one that is cancelled."""

        async def run(number: int, cancel_after: float | None) -> None:
            before = Surroundings.now()
            await _AgentFamily(self.wrap, count=number, seconds=1, clock=LoopClock()).run_cancelled(cancel_after)
            await before.require_tasks_and_sockets()

        times = st.sampled_from([None, *CANCELLATIONS])
        self.for_all(st.tuples(_COUNTS, times), lambda example: run_in_virtual_time(run(*example)))

    def law_27(self) -> None:
        """An agent's execution is named after its call, has the calling agent as its parent, and is deleted with its caller."""

        async def check(number: int) -> None:
            journal = CrashableJournal()
            state = await _AgentFamily(self.wrap, count=number, journal=journal).run()
            ids = [f"{outcome.key}/agent" for outcome in _outcomes(state) if outcome.succeeded]
            for each in ids:
                head = await journal.head(each)
                require(27, head is not None, f"no execution {each} of an agent is recorded in its caller's journal")
                parent = "" if head is None else head.parent_agent_id
                require(
                    27,
                    parent == state.agent_id,
                    f"the agent of {each} has the parent {parent!r}, not {state.agent_id!r}",
                )
            await journal.delete(_RUN)
            left = [each for each in ids if await journal.head(each) is not None]
            require(27, not left, f"the caller is deleted, and {', '.join(left)} is not")

        self.for_all(_COUNTS, lambda number: run_in_virtual_time(check(number)))

    def law_34(self) -> None:
        """A cancellation reaches the agent and its tools, leaves the wrapper, and later calls are served."""

        def holds(example: tuple[int, float]) -> None:
            run_in_virtual_time(self._check_cancelled(*example))

        self.for_all(st.tuples(_COUNTS, st.sampled_from(CANCELLATIONS)), holds)

    async def _check_cancelled(self, number: int, cancel_after: float) -> None:
        side = CallSide(count(1))
        family = _AgentFamily(self.wrap, count=number, plan=("work",) * 3, seconds=1, clock=LoopClock(), side=side)
        time = asyncio.get_running_loop().time
        for turn in range(_CANCELLATIONS):
            side.passages.clear()
            cancelled_at = time() + cancel_after
            error = await family.run_cancelled(cancel_after, execution_id=f"run-{turn}")
            seconds, began = time() - cancelled_at, len(family.notes.began)
            is_raised = isinstance(error, asyncio.CancelledError)
            require(34, is_raised, f"the execution was cancelled, and its caller got {error!r}")
            require(34, seconds <= _SECONDS_TO_STOP, f"the execution ended {seconds:g} seconds after its cancellation")
            running = family.notes.running
            require(34, not running, f"the caller was cancelled, and the work for {', '.join(running)} goes on")
            for passage in side.of("use"):
                if passage.ended_at >= cancelled_at:
                    is_raised = isinstance(passage.outcome, asyncio.CancelledError)
                    require(34, is_raised, f"the call {passage.key} was cancelled, and gave {passage.outcome!r:.200}")
            await asyncio.sleep(_SECONDS_TO_STOP)
            late = family.notes.began[began:]
            require(34, not late, f"after the cancellation, work for {', '.join(late)} began")
        state = await family.run(execution_id="afterwards")
        ended = state.status is ExecutionStatus.COMPLETED
        require(34, ended, f"after executions that were cancelled, another one is {state.status}: {state.errors}")

    def law_38(self) -> None:
        """The wrapper declares no less than the tool inside: effect, egress, place, dependencies and time limit."""
        for effect in _EFFECTS:
            for is_open in (False, True):
                family = _AgentFamily(self.wrap, effect=effect, is_open=is_open, policy=ToolPolicy(timeout=60))
                _require_declared(family.agent, family.wrapped)
        if self.handoffs:
            inside = _handoff("billing answers", "to_billing")
            _require_declared(inside, self.wrap(inside))
        self._check_dependencies()

    def _check_dependencies(self) -> None:
        family = _AgentFamily(self.wrap, plan=("whose",))
        try:
            run_in_virtual_time(family.run(dependencies=17))
        except InvalidDependencies:
            pass
        else:
            require(38, condition=False, reason="a tool of the agent needs other dependencies, and the execution began")
        asked = len(family.model.requests)
        require(38, not asked, f"the dependencies are of the wrong type, and the model was asked {asked} times before")

    def law_40(self) -> None:
        """After a handoff, the other loop has the conversation: now, in the next execution, after an approval, and alone."""
        if self.handoffs:
            run_in_virtual_time(self._check_handoff())
            run_in_virtual_time(self._check_two_handoffs())

    async def _check_handoff(self) -> None:
        for interceptors in ((), (RequireApproval(),)):
            wrapped = self.wrap(_handoff("billing answers", "to_billing"))
            desk = AgentLoop(_desk(wrapped), [wrapped], interceptors=interceptors, ids=CountingIds())
            state = await desk.execute("a question about money")
            if state.pending:
                state = await desk.resume(state, {call.key: approve(call.digest) for call in state.pending})
            _require_in_charge(state, wrapped.name)
            stored = from_json(to_json(state), AgentState)
            _require_in_charge(await desk.execute(stored.with_message("and another one")), wrapped.name)

    async def _check_two_handoffs(self) -> None:
        wrapped = [self.wrap(_handoff(f"{name} answers", f"to_{name}")) for name in ("billing", "sales")]
        desk = AgentLoop(_desk(*wrapped), wrapped, ids=CountingIds())
        state = await desk.execute("a question about money")
        _require_in_charge(state, wrapped[0].name)
        late = [outcome.name for outcome in _outcomes(state)[1:] if outcome.succeeded]
        require(40, not late, f"of two handoffs in a step, the second one, {', '.join(late)}, succeeded, too")

    def law_41(self) -> None:
        """An agent that has failed after an effect is a call that has failed, and may have run."""

        def holds(number: int) -> None:
            family = _AgentFamily(self.wrap, count=number, plan=("work",), end="error")
            outcomes = _outcomes(run_in_virtual_time(family.run()))
            begun = {key.partition("/agent")[0] for key in family.notes.keys}
            for outcome in [each for each in outcomes if each.key in begun]:
                said = f"the agent has failed after its work was done, and the outcome of its call is {outcome.status}"
                require(41, outcome.has_error, f"{said}: {outcome.text!r:.100}")
                require(
                    41, outcome.may_have_run, f"{said}, which says that it has not run: {outcome.error_message!r:.100}"
                )

        self.for_all(_COUNTS, holds)

    def law_50(self) -> None:
        """With labels, the words of others go with the task to the agent, and with its answer to the caller."""

        def holds(number: int) -> None:
            family = _AgentFamily(self.wrap, count=number, plan=("read",), then="pay", approve="untrusted")
            state = run_in_virtual_time(family.run())
            said = "an agent has read the words of somebody else, and a call of its caller that follows ran unasked"
            require(50, not family.notes.paid, said)
            is_foreign = [outcome.origin.is_foreign for outcome in _outcomes(state) if outcome.succeeded]
            require(50, all(is_foreign), "an agent has read the words of somebody else, and its answer is not foreign")
            family = _AgentFamily(self.wrap, count=number, plan=("work",), before="read", approve="untrusted")
            run_in_virtual_time(family.run())
            said = "a caller has read the words of somebody else, and a call of its agent ran unasked"
            require(50, not family.notes.began, said)

        self.for_all(_COUNTS, holds)

    def law_59(self) -> None:
        """An agent has the clock, the ids, the listeners, the dependencies, the depth and the limits of its call."""
        self.for_all(st.tuples(_COUNTS, _PLANS), lambda example: run_in_virtual_time(self._check_tree(*example)))
        self.for_all(
            st.tuples(_COUNTS, st.floats(0, 1)),
            lambda example: run_in_virtual_time(self._check_crash(DELEGATION, *example)),
        )
        self.for_each([1, 2], lambda number: run_in_virtual_time(self._check_limits(number)))
        run_in_virtual_time(self._check_depth())

    async def _check_tree(self, number: int, plan: Sequence[str]) -> None:
        family = _AgentFamily(self.wrap, count=number, plan=plan)
        state = await family.run(dependencies="ada")
        for outcome in [each for each in _outcomes(state) if each.succeeded]:
            own = [event for event in family.events if event.execution_id == f"{outcome.key}/agent"]
            require(DELEGATION, own, f"no event of the agent of {outcome.key} has reached the listeners of its caller")
            parents = {event.parent_agent_id or "" for event in own}
            said = f"the events of the agent of {outcome.key} have the parents {sorted(parents)}"
            require(DELEGATION, parents == {state.agent_id}, said)
            ids = {event.agent_id for event in own}
            derived = all(each.startswith(outcome.id) for each in ids)
            require(
                DELEGATION,
                derived,
                f"the ids {sorted(ids)} of the agent are not derived from that of its call, {outcome.id}",
            )
            is_timed = all(each.execution.started_at == START for each in own if isinstance(each, ToolCallSettled))
            require(DELEGATION, is_timed, f"the agent of {outcome.key} has another clock than its caller")
        others = [each for each in family.notes.owners if each != "ada"]
        require(
            DELEGATION, not others, f"the tools of agents have the dependencies {others}, and their caller has others"
        )

    async def _check_limits(self, number: int) -> None:
        """Let agents make more calls than their caller has left, and compare what one agent has used with what it uses alone."""
        usages = []
        for wrap in (_unchanged, self.wrap):
            family = _AgentFamily(wrap, count=number, plan=("work",) * _MANY, outer=(Budget(tool_calls=_CALLS_LEFT),))
            state = await family.run()
            made, left = len(family.notes.began), _CALLS_LEFT - number
            require(DELEGATION, made <= left, f"a caller has {left} calls left, and its agents made {made}")
            usages.append(to_plain(state.extension(DELEGATED)))
        differs = find_difference(*usages) if number == 1 else ""
        require(DELEGATION, not differs, f"the usage of an agent is counted in another way, at {differs}")

    async def _check_depth(self) -> None:
        """Let an agent call itself: it is refused at its greatest depth, and does not wait for itself."""
        family = _AgentFamily(self.wrap, recurses=True)
        await family.run()
        depth = len({event.execution_id for event in family.events}) - 1
        said = f"agents are nested {depth} deep, and their max_depth is {_MAX_DEPTH}"
        require(DELEGATION, depth <= _MAX_DEPTH, said)


# --- what has to be true ------------------------------------------------------------------------------------------------------


def _outcomes(state: AgentState) -> list[ToolExecution]:
    """Return the outcomes of the calls of agents and handoffs, in order."""
    return [each for step in state.steps for each in step.executions if each.name not in {"read", "pay"}]


def _require_declared(inside: Tool, wrapped: Tool) -> None:
    """Check that a wrapper declares no less than the tool inside (law 38)."""
    is_looser = _STRICTNESS[wrapped.effect] < _STRICTNESS[inside.effect]
    require(38, not is_looser, f"the tool inside has the effect {inside.effect}, and the wrapper says {wrapped.effect}")
    leaves = bool(as_egress(inside.egress)) and not as_egress(wrapped.egress)
    require(38, not leaves, "data can leave by the tool inside, and the wrapper says that they cannot")
    is_sent = inside.is_local and not wrapped.is_local
    require(38, not is_sent, "the tool inside runs in the process of the execution, and the wrapper does not say so")
    is_unlimited = inside.policy.timeout is not None and wrapped.policy.timeout is None
    require(
        38,
        not is_unlimited,
        f"the tool inside has timeout={inside.policy.timeout:g}, and the wrapper has none" if is_unlimited else "",
    )


def _require_in_charge(state: AgentState, name: str) -> None:
    """Check that the loop behind a handoff has answered (law 40)."""
    found = handed_over_by(state)
    require(40, found == name, f"the handoff {name!r} was called, and the conversation was handed over by {found!r}")
    require(
        40, state.final_text == "billing answers", f"after the handoff {name!r}, the answer is {state.final_text!r}"
    )


def _handoff(says: str, name: str) -> Tool:
    """Return a handoff to a loop that always says this."""
    loop: AgentLoop[Any] = AgentLoop(ToolCallingDriver(_AgentModel(lambda *_: says)))
    return handoff_to(loop, name=name, description="Anything about money.")


def _desk(*handoffs: Tool) -> ToolCallingDriver:
    """Return a driver whose model hands over at once, and says something else where that fails."""
    calls = [ToolCall("", each.name, "{}") for each in handoffs]
    return ToolCallingDriver(_AgentModel(lambda turn, _: "the desk answers" if turn else calls))


def _unchanged(inside: Tool) -> Tool:
    return inside


# --- a caller and its agents ------------------------------------------------------------------------------------------


@define(eq=False)
class _WorkNotes:
    """What the tools of agents and of their callers have done.

    Attributes:
        began: the marks of the work that has begun.
        keys: the keys of its calls.
        running: the marks of the work that has not ended.
        owners: the dependencies that were seen.
        paid: how often the caller has paid.
    """

    began: list[str] = field(factory=list)
    keys: list[str] = field(factory=list)
    running: list[str] = field(factory=list)
    owners: list[object] = field(factory=list)
    paid: int = 0

    def working(self, seconds: float, *, is_open: bool) -> Tool:
        """Return a tool of an agent that has an effect.

        Args:
            seconds: how long work takes.
            is_open: whether data can leave by it.
        """

        @tool(egress=is_open, repeatable=True)
        async def work(mark: str, context: ToolContext[Any]) -> str:
            """Do the work."""
            self.began.append(mark)
            self.keys.append(context.idempotency_key)
            self.owners.append(context.dependencies)
            self.running.append(mark)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running.remove(mark)
            return f"the work for {mark} is done"

        return work

    def asking(self) -> Tool:
        """Return a tool of an agent that needs dependencies."""

        @tool(effect="pure")
        async def whose(mark: str, context: ToolContext[str]) -> str:
            """Return whose execution it is."""
            await asyncio.sleep(0)
            self.owners.append(context.dependencies)
            return f"{mark} is of {context.dependencies}"

        return whose

    def paying(self) -> Tool:
        """Return a tool of the caller that has an effect."""

        @tool
        def pay(mark: str) -> str:
            """Pay."""
            self.paid += 1
            return f"paid for {mark}"

        return pay


def _reading() -> Tool:
    """Return a tool whose results are words of somebody else."""

    @tool(effect="pure")
    def read(mark: str) -> str:
        """Read a page."""
        return f"a page about {mark}"

    return read


class _AgentModel(CanInfer):
    """A model whose answer follows from the number of its answers in the request.

    Args:
        say: returns calls or a text, for that number and the request.

    Attributes:
        requests: the requests so far.
    """

    def __init__(self, say: Callable[[int, InferenceRequest], Sequence[ToolCall] | str]) -> None:
        self.say = say
        self.requests: list[InferenceRequest] = []

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return what it says now."""
        self.requests.append(request)
        await asyncio.sleep(0)
        said = self.say(sum(message.role == "assistant" for message in request.messages), request)
        return InferenceResponse((Text(said),) if isinstance(said, str) else tuple(said), usage=Usage(3, 2))


@frozen(eq=False)
class _Later(CanDiscoverTools):
    """A group with a tool that is made after the loop that has it."""

    made: list[Tool]
    name: str = "later"
    interceptors: Sequence[CanIntercept] = ()

    @property
    def offered(self) -> Sequence[Tool]:
        return self.made

    async def discover(self) -> Sequence[Tool]:
        return self.made

    async def hold(self) -> None:
        """Do nothing."""

    async def release(self) -> None:
        """Do nothing."""


@define(eq=False)
class _AgentFamily:
    """A loop that calls agents through a wrapper, each about a mark of its own.

    Attributes:
        wrap: returns the wrapper of a tool.
        count: how many agents are called at once.
        plan: the tools that each agent calls, one after the other.
        end: how each agent ends, a key of `_ENDS`.
        notes: what the tools have done.
        journal: records the caller and its agents.
        inner: the interceptors of the agents.
        outer: the interceptors of the caller.
        seconds: how long work takes.
        clock: the clock of the caller.
        effect: the effect that the tool of the agent declares.
        is_open: whether data can leave by a tool of the agent.
        policy: the policy of the tool of the agent.
        parameters: the parameters of the tool of the agent.
        arguments: the arguments of each call, in place of a task.
        before: a tool that the caller calls first; empty for none.
        then: a tool that the caller calls afterwards; empty for none.
        approve: which calls need an approval, as in a loop.
        side: notes the calls of the caller.
        recurses: whether the agent calls itself.
        events: what the listeners of the caller have got.
        model: the model of the caller.
        agent_model: the model of the agents.
        agent: the tool of the agent.
        wrapped: the wrapper around it.
        caller: the loop that calls it.
    """

    wrap: Callable[[Tool], Tool]
    count: int = field(default=1, kw_only=True)
    plan: Sequence[str] = field(default=("work",), kw_only=True)
    end: str = field(default="answer", kw_only=True)
    notes: _WorkNotes = field(factory=_WorkNotes, kw_only=True)
    journal: CanJournal | None = field(default=None, kw_only=True)
    inner: Sequence[CanIntercept] = field(default=(), kw_only=True)
    outer: Sequence[CanIntercept] = field(default=(), kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    clock: Clock = field(factory=ManualClock, kw_only=True)
    effect: Effect = field(default=Effect.EFFECT, kw_only=True)
    is_open: bool = field(default=False, kw_only=True)
    policy: ToolPolicy = field(factory=ToolPolicy, kw_only=True)
    parameters: Mapping[str, Any] | None = field(default=None, kw_only=True)
    arguments: Mapping[str, object] | None = field(default=None, kw_only=True)
    before: str = field(default="", kw_only=True)
    then: str = field(default="", kw_only=True)
    approve: Any = field(default=None, kw_only=True)
    side: CallSide | None = field(default=None, kw_only=True)
    recurses: bool = field(default=False, kw_only=True)
    events: list[Event] = field(factory=list, init=False)
    model: _AgentModel = field(init=False)
    agent_model: _AgentModel = field(init=False)
    agent: Tool = field(init=False)
    wrapped: Tool = field(init=False)
    caller: AgentLoop[Any] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.model, self.agent_model = _AgentModel(self._call), _AgentModel(self._work)
        made: list[Tool] = []
        tools: list[ToolLike] = [self.notes.working(self.seconds, is_open=self.is_open), _reading()]
        tools += [self.notes.asking()] if "whose" in self.plan else []
        tools += [_Later(made)] if self.recurses else []
        loop = AgentLoop(ToolCallingDriver(self.agent_model), tools, interceptors=self.inner)
        options: dict[str, Any] = {"effect": self.effect, "policy": self.policy, "parameters": self.parameters}
        self.agent = loop.as_tool("helper", "Helps with a task.", **options)
        self.wrapped = self.wrap(self.agent)
        made.append(self.wrapped)
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        side = self.side
        self.caller = AgentLoop(
            ToolCallingDriver(self.model),
            [self.wrapped, _reading(), self.notes.paying()],
            executor=ToolExecutor() if side is None else LayeredExecutor(features=lambda: (side,)),
            interceptors=self.outer,
            events=bus,
            clock=self.clock,
            ids=CountingIds(),
            journal=self.journal,
            approve=self.approve,
        )

    async def run(self, *, execution_id: str = _RUN, dependencies: object = _NOBODY) -> AgentState:
        """Run the caller to its end."""
        return await self.caller.execute("Do it.", execution_id=execution_id, dependencies=dependencies)

    async def run_cancelled(self, cancel_after: float | None, *, execution_id: str = _RUN) -> BaseException | None:
        """Run the caller, and cancel it after this many seconds if it has not ended; return what it raised."""
        task = asyncio.ensure_future(self.run(execution_id=execution_id))
        await asyncio.wait([task], timeout=cancel_after)
        task.cancel()
        await asyncio.wait([task])
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    def _call(self, turn: int, _: InferenceRequest) -> Sequence[ToolCall] | str:
        """Return what the model of the caller says: the calls of the agents between two of its own."""
        marks = [f"mark-{place}" for place in range(self.count)]
        agents = [_call_of(self.wrapped.name, self.arguments or {"task": f"Do {mark}, level 1."}) for mark in marks]
        turns = [[_call_of(self.before, {"mark": "mark-0"})]] if self.before else []
        turns += [agents, *([[_call_of(self.then, {"mark": "mark-0"})]] if self.then else [])]
        return turns[turn] if turn < len(turns) else "over"

    def _work(self, turn: int, request: InferenceRequest) -> Sequence[ToolCall] | str:
        """Return what the model of an agent says: the calls of its plan, and then what its last tool has said.

        Raises:
            ProviderUnavailable: the agent ends so.
        """
        task = request.messages[0].text
        mark, level = _MARK.search(task), _LEVEL.search(task)
        about = "mark-?" if mark is None else mark.group()
        if self.recurses:
            depth = 1 if level is None else int(level.group(1))
            if turn or depth > _TOO_DEEP:
                return f"level {depth} is done"
            return [_call_of(self.wrapped.name, {"task": f"Do {about}, level {depth + 1}."})]
        if turn < len(self.plan):
            return [_call_of(self.plan[turn], {"mark": about})]
        if self.end == "error":
            raise ProviderUnavailable("the model of the agent is away")
        said = [exchange.execution.text for message in request.messages for exchange in message.exchanges]
        return f"{about} is done: {said[-1] if said else 'nothing'}"


def _call_of(name: str, arguments: Mapping[str, object]) -> ToolCall:
    return ToolCall("", name, json.dumps(arguments))
