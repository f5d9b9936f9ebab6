"""Faults on purpose: calls that hang, connections that drop, processes that die, clocks that jump; by place, number and seed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, cast

from attrs import evolve, field, frozen
from attrs.validators import optional

from agentloop._event_loops import running_loop
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.contracts.tool import CanUseInline, CanUseThread, Tool
from agentloop.contracts.tools import Tools
from agentloop.durable.held_claims import loss_of, release_quietly
from agentloop.errors import ConfigurationError, JournalError, ProviderUnavailable
from agentloop.errors.hints import suggest
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.journal_network import DistantClaim
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.points import POINTS, AroundPoint, Proceed, StatePoint
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.time_and_ids import Clock
from agentloop.values.value import Value, at_least

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)
Output = TypeVar("Output")

When: TypeAlias = Literal["before", "after"]
"""Whether a fault occurs before the operation, which then does not happen, or after it, so that its outcome is lost."""

MakeError: TypeAlias = Callable[[], Exception]
"""Makes an error; such as a class of errors."""

_OPERATIONS = ("inference", "tool", "journal", "http")
_POINTS = tuple(name for name in POINTS if not name.startswith("around_"))
_YEAR = 365 * 86_400.0
_TURNS = 5
"""How many turns of the event loop it takes at most until a run has heard that its claim is lost."""


class FaultKind(StrEnum):
    """What goes wrong."""

    HANG = "hang"
    DELAY = "delay"
    FAIL = "fail"
    DROP = "drop"
    CUT = "cut"
    DIE = "die"
    JUMP = "jump"


def _check_place(fault: Fault, _: object, place: str) -> None:
    kinds = (*_OPERATIONS, *_POINTS)
    if place not in kinds and not (place.startswith("tool:") and place != "tool:"):
        raise ConfigurationError(
            f"{place!r} is no place of a fault{suggest(place, kinds)}; there are {', '.join(kinds)}, and tool:NAME"
        )
    if fault.kind is FaultKind.CUT and place != "http":
        raise ConfigurationError(f"only the answer of an http request can be cut after some bytes, not {place!r}")
    if fault.when == "after" and place in _POINTS:
        raise ConfigurationError(
            f"a fault at the point {place} has no before and after; name the operation or the point after it"
        )


@frozen(eq=False, repr=False)
class Fault(Value):
    """Something that goes wrong at a place. Create it by `hang`, `delay`, `fail`, `drop`, `cut`, `die` or `jump`.

    Attributes:
        kind: what goes wrong.
        place: `inference`, a request to the model; `tool`, the call of any tool, or `tool:NAME`; `journal`, an append to the journal;
            `http`, an HTTP request of `faulty_client`; or a point of an interceptor, such as `before_step`.
        number: goes wrong only at the passage of the place with this 1-based number; None for each. Attempts are counted, so a
            call that is repeated passes again.
        probability: how probable it is at each of these passages, from 0 to 1.
        when: whether it happens before the operation or after it.
        seconds: how long a hang or a delay takes, and how far the clock jumps.
        error: what is raised.
        size: the number of bytes after which an answer is cut.

    Raises:
        ConfigurationError: there is no such place, or the fault cannot happen there.
    """

    kind: FaultKind
    place: str = field(validator=_check_place)
    number: int | None = field(default=None, kw_only=True, validator=optional(at_least(1)))
    probability: float = field(default=1.0, kw_only=True, validator=at_least(0.0))
    when: When = field(default="before", kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    error: Exception | MakeError | None = field(default=None, kw_only=True)
    size: int = field(default=0, kw_only=True)

    @classmethod
    def hang(cls, place: str, *, number: int | None = None, probability: float = 1.0, when: When = "before") -> Fault:
        """Let an operation hang until it is cancelled, or for a year.

        A tool that runs in a thread cannot be cancelled: its thread waits until the plan is closed.
        """
        return cls(FaultKind.HANG, place, number=number, probability=probability, when=when, seconds=_YEAR)

    @classmethod
    def delay(
        cls, place: str, seconds: float, *, number: int | None = None, probability: float = 1.0, when: When = "before"
    ) -> Fault:
        """Let an operation take longer, by a number of seconds."""
        if not seconds > 0:  # NaN is not
            raise ConfigurationError(f"a delay takes more than 0 seconds, not {seconds!r}")
        return cls(FaultKind.DELAY, place, number=number, probability=probability, when=when, seconds=seconds)

    @classmethod
    def fail(
        cls,
        place: str,
        error: Exception | MakeError,
        *,
        number: int | None = None,
        probability: float = 1.0,
        when: When = "before",
    ) -> Fault:
        """Raise an error, or what a function such as an exception class returns."""
        return cls(FaultKind.FAIL, place, number=number, probability=probability, when=when, error=error)

    @classmethod
    def drop(cls, place: str, *, number: int | None = None, probability: float = 1.0, when: When = "before") -> Fault:
        """Drop the connection: nothing was sent, or with `when="after"` the answer is lost although it was carried out."""
        return cls(FaultKind.DROP, place, number=number, probability=probability, when=when)

    @classmethod
    def cut(cls, place: str = "http", *, size: int, number: int | None = None, probability: float = 1.0) -> Fault:
        """Cut an answer after a number of bytes, by closing the connection."""
        return cls(FaultKind.CUT, place, number=number, probability=probability, when="after", size=size)

    @classmethod
    def die(cls, place: str, *, number: int | None = None, probability: float = 1.0, when: When = "before") -> Fault:
        """Let the process die.

        With `FaultPlan(kills=True)` it is killed by SIGKILL. Otherwise its death is simulated: from this moment nothing reaches the
        journal, the claims on executions are given up, and the execution ends with `ClaimLost`.
        """
        return cls(FaultKind.DIE, place, number=number, probability=probability, when=when)

    @classmethod
    def jump(cls, place: str, seconds: float, *, number: int | None = None, probability: float = 1.0) -> Fault:
        """Let the clock jump by a number of seconds, which may be negative. Its monotonic time does not jump."""
        return cls(FaultKind.JUMP, place, number=number, probability=probability, seconds=seconds)

    def make_error(self, dropped: MakeError) -> Exception:
        """Return the error that the fault raises; `dropped` makes that of a lost connection."""
        error = dropped if self.error is None else self.error
        return error if isinstance(error, Exception) else error()


@frozen(eq=False, repr=False)
class FaultOccurred(Value):
    """A fault that has occurred.

    Attributes:
        fault: the fault.
        number: the 1-based number of the passage of its place.
    """

    fault: Fault
    number: int


class FaultPlan:
    """Faults of one run. Equal faults and an equal seed give equal runs, if everything else is deterministic.

        with FaultPlan(Fault.hang("tool:search", number=2), Fault.drop("inference", probability=0.1), seed=7) as plan:
            state = run_in_virtual_time(plan.apply(loop).execute("go"))
            plan.assert_complete()

    A plan counts how often each place is passed, so make a new one for each run.

    Args:
        *faults: what goes wrong. Several faults of one passage occur in this order.
        seed: decides about faults with a probability.
        kills: whether `Fault.die` kills this process by SIGKILL; run the agent in a process of its own then.

    Attributes:
        occurred: the faults that have occurred, in order.
    """

    def __init__(self, *faults: Fault, seed: int = 0, kills: bool = False) -> None:
        self.faults = faults
        self.seed = seed
        self.kills = kills
        self.occurred: list[FaultOccurred] = []
        self._passages: Counter[str] = Counter()
        self._lock = threading.Lock()  # tools pass their places in threads
        self._released = threading.Event()
        self._claims: list[DistantClaim] = []
        self._is_dead = False
        self._shift = 0.0

    def __repr__(self) -> str:
        return (
            f"FaultPlan({', '.join(f'{fault.kind.value} at {fault.place}' for fault in self.faults)}; seed {self.seed})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the threads that hang. Idempotent."""
        self._released.set()

    def assert_complete(self) -> None:
        """Check that each fault has occurred: a test whose faults do not occur shows nothing.

        Raises:
            AssertionError: faults have not occurred; the message names them, and how often their places were passed.
        """
        missing = [fault for fault in self.faults if not any(each.fault is fault for each in self.occurred)]
        if missing:
            listed = [f"{fault!r} ({self._passages[fault.place]} passages)" for fault in missing]
            raise AssertionError("these faults have not occurred:\n" + "\n".join(listed))

    @property
    def clock_shift(self) -> float:
        """How far the clock has jumped, in seconds."""
        return self._shift

    @property
    def is_dead(self) -> bool:
        """Whether the simulated process is dead."""
        return self._is_dead

    # --- parts with faults ------------------------------------------------------------------------------------------

    def apply(self, loop: AgentLoop[Output]) -> AgentLoop[Output]:
        """Return a copy of a loop in which the faults occur: at its tools, its model, its journal, its clock and its points.

        Tools of other processes and of sub-agents are not changed; apply the plan there.

        Raises:
            ConfigurationError: the loop has nothing at which a fault could occur.
        """
        places = {fault.place for fault in self.faults}
        if not self.kills and loop.journal is None and any(fault.kind is FaultKind.DIE for fault in self.faults):
            raise ConfigurationError(
                "without a journal nothing survives the death of a process: give the loop a journal"
            )
        if "journal" in places and loop.journal is None:
            raise ConfigurationError("a fault at the journal needs a loop with a journal")
        changed = loop.replace(clock=_FaultyClock(loop.clock, self), executor=self._executor(loop.executor))
        if loop.journal is not None:
            changed = changed.replace(journal=self.wrap_journal(loop.journal))
        if "inference" in places:
            changed = changed.replace(driver=_with_inference(loop.driver, self.wrap_inference))
        points = places.intersection(_POINTS)
        return changed.with_interceptors(_FaultyPoints(self, frozenset(points))) if points else changed

    def wrap_tool(self, tool: Tool) -> Tool:
        """Return a tool with the faults at `tool` and at `tool:NAME`. An inline tool is awaited then, so that it can hang."""
        places, loop = ("tool", f"tool:{tool.name}"), running_loop()

        async def use(**arguments: Any) -> Any:
            return await self.run(places, lambda: tool.use(**arguments), _lost)

        methods: dict[str, Callable[..., Any]] = {"use": use}
        if isinstance(tool, CanUseThread):
            methods["use_in_thread"] = lambda **arguments: self._run_in_thread(
                places, lambda: tool.use_in_thread(**arguments), loop
            )

        def again(bound: Any) -> Any:
            return self.wrap_tool(bound) if isinstance(bound, Tool) else bound

        return _stand_in(tool, methods, again, without=CanUseInline)

    def wrap_inference(self, inference: CanInfer) -> CanInfer:
        """Return a model with the faults at `inference`."""

        async def infer(request: InferenceRequest) -> InferenceResponse:
            return await self.run(("inference",), lambda: inference.infer(request), _lost_model)

        async def stream(request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            due = self.pass_by("inference")
            await self.perform(due, "before", _lost_model)
            items = inference.stream(request)
            try:
                async for item in items:
                    if isinstance(item, InferenceResponse):
                        await self.perform(due, "after", _lost_model)
                    yield item
            finally:
                await _close(items)

        def again(bound: Any) -> Any:
            return self.wrap_inference(bound) if isinstance(bound, CanInfer) else bound

        return _stand_in(inference, {"infer": infer, "stream": stream}, again)

    def wrap_journal(self, journal: CanJournal) -> CanJournal:
        """Return a journal with the faults at `journal`, which nothing reaches any more once the process is dead."""

        async def append(head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
            inner = claim.storage_claim if isinstance(claim, DistantClaim) else claim
            try:
                await self.run(("journal",), lambda: journal.append(head, records, inner), _lost_journal)
            except JournalError as error:
                if self._is_dead:
                    raise loss_of(claim) from error
                raise

        async def claim(execution_id: str) -> Claim:
            made = DistantClaim(await self._while_alive(journal.claim(execution_id)), self._check_alive)
            self._claims.append(made)
            return made

        def guarded(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            return lambda *args, **kwargs: self._while_alive(method(*args, **kwargs))

        names = ("read", "head", "list", "delete", "purge", "post", "commands", "unfinished", "finish")
        others = {name: guarded(getattr(journal, name)) for name in names if hasattr(journal, name)}
        return _stand_in(journal, {**others, "append": append, "claim": claim}, lambda bound: bound)

    def _executor(self, executor: CanExecuteToolCalls) -> CanExecuteToolCalls:
        # The executor gets the tools of the execution, those that groups discover among them.
        def with_tools(tools: Tools) -> Any:
            wrapped = {tool.name: self.wrap_tool(tool) for tool in tools}
            return cast("Any", executor).with_tools(evolve(tools, by_name=wrapped))

        return _stand_in(executor, {"with_tools": with_tools}, lambda bound: bound)

    # --- what happens -----------------------------------------------------------------------------------------------

    def pass_by(self, *places: str) -> tuple[FaultOccurred, ...]:
        """Count a passage of places, and return the faults that are due at it; `perform` lets them happen."""
        due = []
        with self._lock:
            for place in places:
                self._passages[place] += 1
                number = self._passages[place]
                found = [fault for index, fault in enumerate(self.faults) if self._occurs(index, fault, place, number)]
                due += [FaultOccurred(fault, number) for fault in found]
        return tuple(due)

    def _occurs(self, index: int, fault: Fault, place: str, number: int) -> bool:
        if fault.place != place or fault.number not in {None, number}:
            return False
        # Each passage has a random number of its own, so that other places and the order of passages do not matter.
        return fault.probability >= 1 or Random(f"{self.seed}/{index}/{place}/{number}").random() < fault.probability  # noqa: S311  # not for secrets

    async def run(self, places: Collection[str], operation: Callable[[], Awaitable[T]], dropped: MakeError) -> T:
        """Run an operation with the faults that occur at it.

        Args:
            places: the names of its place, the widest first.
            operation: the operation.
            dropped: makes the error of a lost connection.

        Raises:
            Exception: the error of a fault, or of the operation.
        """
        due = self.pass_by(*places)
        await self.perform(due, "before", dropped)
        result = await self._while_alive(operation())
        await self.perform(due, "after", dropped)
        return result

    async def perform(self, due: Collection[FaultOccurred], when: When, dropped: MakeError) -> None:
        """Let faults of a passage happen, and note them as occurred: none that a failure before it has prevented.

        Args:
            due: the faults; those of another time are left out.
            when: whether the operation is still to come or has happened.
            dropped: makes the error of a lost connection.

        Raises:
            Exception: the error of a fault.
        """
        for each in due:
            fault = each.fault
            if fault.when != when or fault.kind is FaultKind.CUT:
                continue
            self.occurred.append(each)
            if fault.kind in {FaultKind.HANG, FaultKind.DELAY}:
                await asyncio.sleep(fault.seconds)
            self._decide(fault, dropped)
            if fault.kind is FaultKind.DIE:
                await self._die(fault)

    def _decide(self, fault: Fault, dropped: MakeError) -> None:
        """Do what takes no time."""
        if fault.kind in {FaultKind.FAIL, FaultKind.DROP}:
            raise fault.make_error(dropped)
        if fault.kind is FaultKind.HANG:
            raise TimeoutError(f"the operation at {fault.place} hung until its plan was closed, or for a year")
        if fault.kind is FaultKind.JUMP:
            self._shift += fault.seconds

    def _run_in_thread(
        self, places: Collection[str], operation: Callable[[], Any], loop: asyncio.AbstractEventLoop | None
    ) -> Any:
        due = self.pass_by(*places)
        self._perform_in_thread(due, "before", loop)
        result = operation()
        self._perform_in_thread(due, "after", loop)
        return result

    def _perform_in_thread(
        self, due: Collection[FaultOccurred], when: When, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        for each in due:
            fault = each.fault
            if fault.when != when:
                continue
            self.occurred.append(each)
            if fault.kind in {FaultKind.HANG, FaultKind.DELAY}:
                self._released.wait(fault.seconds)
            self._decide(fault, _lost)
            if fault.kind is FaultKind.DIE:
                self._kill()
                if loop is not None:
                    asyncio.run_coroutine_threadsafe(self._give_up(fault), loop).result()
                raise JournalError("the process is dead")

    # --- death ------------------------------------------------------------------------------------------------------

    async def _die(self, fault: Fault) -> None:
        self._kill()
        await self._give_up(fault)
        for _ in range(_TURNS):  # until the run has heard of the loss, and interrupts what it waits for
            await asyncio.sleep(0)
        await self._check_alive()  # not a wait: a run whose claim is lost waits for its tools

    def _kill(self) -> None:
        if self.kills:
            os.kill(os.getpid(), signal.SIGKILL)

    async def _give_up(self, fault: Fault) -> None:
        """Give up the claims, as the operating system does when a process dies."""
        self._is_dead = True
        for claim in self._claims:
            await release_quietly(claim.storage_claim)
        for claim in self._claims:
            claim.lose(f"the process died at {fault.place}")

    async def _while_alive(self, operation: Awaitable[T]) -> T:
        if self._is_dead:
            if asyncio.iscoroutine(operation):
                operation.close()
            await self._check_alive()
        return await operation

    async def _check_alive(self) -> None:
        if self._is_dead:
            raise JournalError("the process is dead")


def _lost() -> Exception:
    return ConnectionError("the connection is lost")


def _lost_model() -> Exception:
    return ProviderUnavailable("the connection to the model is lost")


def _lost_journal() -> Exception:
    return JournalError("the connection is lost")


class _FaultyClock(Clock):
    """A clock that jumps.

    Args:
        clock: the clock.
        plan: says how far it has jumped.
    """

    def __init__(self, clock: Clock, plan: FaultPlan) -> None:
        self._clock = clock
        self._plan = plan

    def now(self) -> datetime:
        """Return the time with all jumps."""
        return self._clock.now() + timedelta(seconds=self._plan.clock_shift)

    def monotonic(self) -> float:
        """Return the monotonic time, which does not jump."""
        return self._clock.monotonic()


class _FaultyPoints(CanIntercept):
    """The faults at the points of interceptors; runs inside of all others.

    Args:
        plan: the faults.
        points: the names of the points with faults.
    """

    def __init__(self, plan: FaultPlan, points: frozenset[str]) -> None:
        self._plan = plan
        self._points = points

    @property
    def points(self) -> frozenset[str]:
        """The points with faults."""
        return self._points

    @property
    def priority(self) -> int:
        """A low one."""
        return -1_000_000

    @property
    def name(self) -> str:
        """The name in errors."""
        return "FaultPlan"

    async def handle(self, point: S) -> S:
        """Let the faults of the point happen."""
        await self._plan.perform(self._plan.pass_by(point.point_name), "before", _lost)
        return point

    async def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> T:  # noqa: ARG002  # never called: such points are operations
        """Run the operation."""
        return await proceed()


def _stand_in(
    part: T,
    methods: Mapping[str, Callable[..., Any]],
    again: Callable[[Any], Any],
    *,
    without: type | None = None,
) -> T:
    """Return an object that is like another one, of its class and so with all of its capability contracts, but for some methods.

    Args:
        part: the object, which does everything else and is not changed.
        methods: the other methods, by name.
        again: makes such an object of what a method `with_…` of the part returns.
        without: a capability contract that the object does not have; it is then of the other classes that the part's is made of.
    """
    kind: Any = type(part)
    bases = [kind] if without is None or not issubclass(kind, without) else _bases_without(kind, without)

    def find(self: object, name: str) -> Any:
        if name in methods:
            return methods[name]
        if name == "__class__" and kind not in bases:
            return type(self)
        value = getattr(part, name)
        if name.startswith("with_") and callable(value):
            return lambda *args, **kwargs: again(value(*args, **kwargs))
        return value

    body = {"__slots__": (), "__module__": kind.__module__, "__getattribute__": find, "__repr__": lambda _: repr(part)}
    made: Any = type(kind.__name__, tuple(bases), body)
    made.__abstractmethods__ = frozenset()  # the part has them
    return cast("T", object.__new__(made))


def _bases_without(kind: type, without: type) -> list[type]:
    """Return the classes that a class is made of, the most derived ones alone, without a contract and what has it."""
    bases: list[type] = []
    for base in kind.__mro__:
        if not issubclass(base, without) and not any(issubclass(known, base) for known in bases):
            bases.append(base)
    return bases


def _with_inference(driver: Any, wrap: Callable[[CanInfer], CanInfer]) -> Any:
    inference = getattr(driver, "inference", None)
    if not isinstance(inference, CanInfer):
        raise ConfigurationError(
            f"the driver {type(driver).__name__} has no attribute `inference`; wrap its model with FaultPlan.wrap_inference"
        )
    return evolve(driver, inference=wrap(inference))


async def _close(items: AsyncIterator[Any]) -> None:
    if isinstance(items, AsyncGenerator):
        await items.aclose()
