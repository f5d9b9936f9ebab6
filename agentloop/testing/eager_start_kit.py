"""The law suite of the eager start of calls: a run with it is the run without it, and only ends earlier."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import groupby, zip_longest
from typing import Any, TypeAlias

import attrs
from attrs import evolve, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls, CanStartCallsEagerly
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.errors import InvalidResponse
from agentloop.events.bus import EventBus
from agentloop.events.grammar import ProtocolMonitor
from agentloop.events.inference import EagerCallsDiscarded, InferenceDeltaReceived
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.clocks import CountingIds, ManualClock, run_in_virtual_time
from agentloop.testing.kit import Kit, require
from agentloop.testing.scenario import ScriptedTurn
from agentloop.testing.toys import Ledger, toy_call, toy_tools
from agentloop.values.event import Event
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, iter_deltas
from agentloop.values.json import parse_json
from agentloop.values.records import JournalRecord, RecordKind
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import Effect, ToolCall
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class StreamedTurn(Value):
    """One answer of a model, and how it arrives.

    Attributes:
        turn: the answer.
        wait: the seconds before each delta.
        chunk: the maximum number of characters of arguments in one delta.
        fault: what goes wrong: the stream `fails` before the answer is complete, or the final answer has `other` arguments in
            its last call or `fewer` calls than the stream; empty for nothing.
    """

    turn: ScriptedTurn
    wait: float = 0.5
    chunk: int = 5
    fault: str = ""

    def deltas(self, response: InferenceResponse) -> Iterable[InferenceDelta]:
        """Yield the deltas of the answer; those of a stream that fails lack the last one."""
        deltas: list[InferenceDelta] = []
        for delta in iter_deltas(response):
            starts = range(0, len(delta.arguments), self.chunk)
            pieces = [evolve(delta, arguments=delta.arguments[at : at + self.chunk]) for at in starts]
            deltas += pieces if delta.kind == "arguments" else [delta]
        return deltas[:-1] if self.fault == "fails" else deltas

    def answer(self, response: InferenceResponse) -> InferenceResponse:
        """Return the final answer."""
        calls = response.tool_calls
        if not calls or self.fault not in {"other", "fewer"}:
            return response
        last = [calls[-1].with_arguments({"value": 29})] if self.fault == "other" else []
        return response.with_parts([*[part for part in response.parts if part is not calls[-1]], *last])


class StreamedModel(CanInfer):
    """A model that streams scripted answers in virtual time.

    Args:
        turns: its answers, in order.
    """

    def __init__(self, turns: Iterable[StreamedTurn]) -> None:
        self._turns = tuple(turns)
        self._position = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next answer at once."""
        *_, response = [item async for item in self.stream(request)]
        assert isinstance(response, InferenceResponse)  # noqa: S101  # the last item of a stream
        return response

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Stream the next answer.

        Raises:
            InvalidResponse: the script says that this stream fails.
        """
        del request
        streamed = self._turns[self._position]
        self._position += 1
        response = streamed.turn.response(self._position)
        for delta in streamed.deltas(response):
            await asyncio.sleep(streamed.wait)
            yield delta
        await asyncio.sleep(streamed.wait)
        if streamed.fault == "fails":
            raise InvalidResponse("the stream broke off")
        yield streamed.answer(response)


@frozen
class StreamedRun:
    """What was observed of a run.

    Attributes:
        state: the final state.
        events: all events.
        records: the records of its journal.
        used: the calls that really ran, with their arguments.
        left: the names of the tasks that were left.
        seconds: the virtual time that it took.
    """

    state: AgentState
    events: tuple[Event, ...]
    records: tuple[JournalRecord, ...]
    used: tuple[tuple[str, dict[str, Any]], ...]
    left: tuple[str, ...] = field(default=())
    seconds: float = 0.0

    @property
    def discarded(self) -> list[ToolCall]:
        """The calls that ran early and whose outcomes were not used, of all steps."""
        return [call for step in self.state.steps for call in step.discarded_calls]


DriverOf: TypeAlias = Callable[[CanInfer, bool], CanUseTools]
"""Creates a driver for a model; the flag says whether it starts calls eagerly."""

_CALLS = st.builds(
    toy_call,
    st.sampled_from(["echo", "echo", "whoami", "fail", "stop", "broken", "alone", "keyed", "hasty", "ekko"]),
    st.one_of(st.integers(0, 30), st.integers(-1, 8)),
    id=st.sampled_from(["", "call_1", "call_2"]),
    seconds=st.sampled_from(
        [0, 0.25, 0.9, 1.1, 5]
    ),  # not the timeout of `hasty`: it is open which of the two comes first
)
_ANSWERS = st.builds(
    StreamedTurn,
    st.builds(ScriptedTurn, st.sampled_from(["", "Let me look."]), st.lists(_CALLS, min_size=1, max_size=5).map(tuple)),
    wait=st.sampled_from([0, 0.125, 0.5, 3]),
    chunk=st.integers(1, 12),
    fault=st.sampled_from(["", "", "", "other", "fewer", "fails"]),
)
_WAIT, _LONG_CALL = 3.0, 9.0
_LAST = StreamedTurn(ScriptedTurn("done"))
STREAMS: st.SearchStrategy[tuple[StreamedTurn, ...]] = st.lists(_ANSWERS, max_size=3).map(
    lambda turns: (*turns, _LAST, _LAST)
)
"""Streamed conversations with calls of toy tools, of which some are invalid or must not start early."""


class EagerStartKit(Kit):
    """Checks that starting calls eagerly changes nothing but the time.

        EagerStartKit(lambda model, eager: MyDriver(model, streaming=True, eager=eager)).check_all()

    Args:
        driver: creates a new driver for a model; the flag says whether it starts calls eagerly.
        executor: creates a new executor.
        interceptors: creates the interceptors of one loop.
        effect: the effect that the toy tools declare; calls of tools with an effect must not start early.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (7, 8, 12, 14, 19, 38)

    def __init__(
        self,
        driver: DriverOf,
        *,
        executor: Callable[[], CanExecuteToolCalls] = ToolExecutor,
        interceptors: Callable[[], Iterable[CanIntercept]] = tuple,
        effect: Effect = Effect.PURE,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.driver = driver
        self.executor = executor
        self.interceptors = interceptors
        self.effect = effect

    def observe(self, stream: Iterable[StreamedTurn], *, eager: bool, cancel_after: float | None = None) -> StreamedRun:
        """Run a conversation, and return what was observed.

        Args:
            stream: the answers of the model.
            eager: whether calls start eagerly.
            cancel_after: the seconds of virtual time after which the execution is cancelled; None to let it end.
        """
        return run_in_virtual_time(self._observe(tuple(stream), eager, cancel_after))

    async def _observe(self, stream: tuple[StreamedTurn, ...], eager: bool, cancel_after: float | None) -> StreamedRun:  # noqa: FBT001  # internal
        events, ledger, journal = list[Event](), Ledger(), MemoryJournal()
        bus = EventBus(clock=ManualClock())
        bus.wiretap(events.append)
        loop = AgentLoop(
            self.driver(StreamedModel(stream), eager),
            toy_tools(ledger, self.effect),
            executor=self.executor(),
            interceptors=self.interceptors(),
            events=bus,
            journal=journal,
            clock=ManualClock(),
            ids=CountingIds(),
        )
        state = AgentState.start("What now?", agent_id="agent", clock=ManualClock())
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(cancel_after):
                state = await loop.execute(state, execution_id="execution")
        except TimeoutError:
            await asyncio.sleep(0)  # a task that has just ended may have a last callback
        left = [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]
        records = await journal.read("execution")
        seconds = asyncio.get_running_loop().time() - began
        return StreamedRun(state, tuple(events), tuple(records), tuple(ledger.calls), tuple(left), seconds)

    def law_7(self) -> None:
        """The events are legal, and those of the run without it, in the same order; those of discarded calls are added."""

        def holds(stream: tuple[StreamedTurn, ...]) -> None:
            plain, eager = self.observe(stream, eager=False), self.observe(stream, eager=True)
            monitor = ProtocolMonitor()
            for event in eager.events:
                monitor(event)
            monitor.check()
            theirs, ours = _comparable(plain.events), _comparable(eager.events)
            pairs = enumerate(zip_longest(theirs, ours))
            different = next((f"{index}: {left} and {right}" for index, (left, right) in pairs if left != right), "")
            require(7, not different, f"the events differ at {different}")

        self.for_all(STREAMS, holds)

    def law_8(self) -> None:
        """The final state is that of the run without it, apart from the calls that were discarded."""

        def holds(stream: tuple[StreamedTurn, ...]) -> None:
            plain, eager = self.observe(stream, eager=False), self.observe(stream, eager=True)
            require(8, not plain.discarded, "a run without eager start discards calls")
            ours = to_json(_without_discarded(eager.state))
            require(8, ours == to_json(plain.state), f"the states differ: {ours!r} and {to_json(plain.state)!r}")

        self.for_all(STREAMS, holds)

    def law_12(self) -> None:
        """The same calls run, with the same arguments, and besides them those that were discarded, each counted."""

        def holds(stream: tuple[StreamedTurn, ...]) -> None:
            plain, eager = self.observe(stream, eager=False), self.observe(stream, eager=True)
            more = Counter(map(str, eager.used))
            more.subtract(map(str, plain.used))
            extra = Counter(str((call.name, dict(call.arguments))) for call in eager.discarded)
            require(12, +more == extra, f"{+more} ran besides the calls of the plain run, and {extra} were discarded")
            require(12, not -more, f"{-more} did not run")
            reported = [
                call for event in eager.events if isinstance(event, EagerCallsDiscarded) for call in event.calls
            ]
            require(
                12, reported == eager.discarded, f"{reported} were reported, and {eager.discarded} are in the steps"
            )

        self.for_all(STREAMS, holds)

    def law_14(self) -> None:
        """The journal has the records of the run without it, those of the calls of a batch in the order in which calls end."""

        def holds(stream: tuple[StreamedTurn, ...]) -> None:
            plain, eager = self.observe(stream, eager=False), self.observe(stream, eager=True)
            require(14, self.effect is Effect.PURE or not eager.discarded, "a call with an effect started early")
            theirs, ours = _contents(plain.records), _contents(eager.records)
            require(14, ours == theirs, f"the records differ: {theirs} and {ours}")

        self.for_all(STREAMS, holds)

    def law_19(self) -> None:
        """Whether the execution ends or is cancelled at any time, no task is left."""

        def holds(example: tuple[tuple[StreamedTurn, ...], float | None]) -> None:
            stream, cancel_after = example
            run = self.observe(stream, eager=True, cancel_after=cancel_after)
            require(19, not run.left, f"these tasks are left: {', '.join(run.left)}")

        times = st.one_of(st.none(), st.floats(0, 10))
        self.for_all(st.tuples(STREAMS, times), holds)

    def law_38(self) -> None:
        """A call that may start before its answer is complete does so, and the execution ends sooner by the time it saves."""
        layers = InterceptorStack.of(tuple(self.interceptors()))
        may_start = isinstance(self.executor(), CanStartCallsEagerly) and layers.allows_eager_start
        if self.effect is not Effect.PURE or not may_start:
            return

        def holds(calls: Sequence[ToolCall]) -> None:
            stream = (StreamedTurn(ScriptedTurn("", tuple(calls)), wait=_WAIT, chunk=100), _LAST)
            plain, eager = self.observe(stream, eager=False), self.observe(stream, eager=True)
            saved = plain.seconds - eager.seconds
            require(
                38,
                saved >= _WAIT,
                f"a call of {_LONG_CALL:.0f} s could start {_WAIT:.0f} s early, and {saved:g} were saved",
            )

        # Each call takes two deltas, so that the first one is complete before the second begins.
        self.for_each([[toy_call("echo", 0, seconds=_LONG_CALL), toy_call("echo", 1, seconds=0)]], holds)


def _comparable(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """Return events without provisional ones, without times and numbers, and without the calls that steps have discarded."""
    lasting = [event for event in events if not isinstance(event, InferenceDeltaReceived | EagerCallsDiscarded)]
    return [(type(event).__name__, event.step_number, *_values(event)) for event in lasting]


def _values(event: Event) -> Iterable[str]:
    for each in attrs.fields(type(event)):
        if each.eq and each.name != "head":
            value = getattr(event, each.name)
            yield str(evolve(value, discarded_calls=()) if isinstance(value, AgentStep) else value)


def _without_discarded(state: AgentState) -> AgentState:
    if state.execution is None:
        return state
    steps = [evolve(step, discarded_calls=()) for step in state.execution.steps]
    return evolve(state, execution=evolve(state.execution, steps=steps))


def _contents(records: Iterable[JournalRecord]) -> list[tuple[Any, ...]]:
    """Return records without numbers and hashes, without discarded calls, and with those of concurrent calls sorted."""
    contents: list[tuple[Any, ...]] = []
    for _, group in groupby(records, key=lambda record: record.kind in _CALL_RECORDS):
        bodies = [
            (record.kind, record.at, _without_key(parse_json(record.body), "discarded_calls")) for record in group
        ]
        contents += sorted(bodies, key=str)
    return contents


_CALL_RECORDS = frozenset({RecordKind.CALL_INTENT, RecordKind.CALL_OUTCOME, RecordKind.CALL_SUSPENDED})


def _without_key(data: Any, key: str) -> Any:
    if isinstance(data, dict):
        return {name: _without_key(value, key) for name, value in data.items() if name != key}
    return [_without_key(item, key) for item in data] if isinstance(data, list) else data
