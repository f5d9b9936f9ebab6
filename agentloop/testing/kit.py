"""The laws of the contracts, and what all law suites share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

from attrs import frozen
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.strategies import SearchStrategy

from agentloop._event_loops import running_loop
from agentloop.durable.deltas import is_same_json
from agentloop.durable.replaying.comparison import differences
from agentloop.errors import ConfigurationError, InvalidParameter
from agentloop.policies.prefix_guard import PrefixGuard
from agentloop.testing.clocks import Deadlock, RealTime, RunBounds, bounded_runs
from agentloop.values.reprs import format_count

T = TypeVar("T")
P = ParamSpec("P")

LAWS: Mapping[int, str] = {
    1: "Totality: executions and pending calls are together exactly the calls, disjoint and in call order.",
    2: "Pairing: no message and no encoded request holds a call without its execution.",
    3: "Immutability: no component changes a value that is passed to it.",
    4: "Round trip: from_json(to_json(v)) == v for every value; a newer schema version is refused.",
    5: "Bounded: under StepLimit(n) at most n steps, and per step no more inferences than the driver declares, all counted.",
    6: "Accounting: an execution's usage is the sum of its inferences' usage; unknown stays unknown.",
    7: "Grammar: every run's event sequence is accepted by the grammar.",
    8: "Determinism: same responses, tools, clock and ids give equal states, whatever finishes first.",
    9: "Isolation: concurrent executions never see each other's state.",
    10: "Finality: the outcome in ToolCallCompleted is the outcome that the state and the model get.",
    11: "Fail closed: an interceptor that raises never lets the call it guards run.",
    12: "Driver equivalence: one scenario gives the same calls, outcomes and points under every driver and mode.",
    13: "Prefix stability: within an epoch, a request's segments extend the previous request's.",
    14: "Effects: an effect runs at most once, also after a crash and a recovery, or is reported in doubt.",
    15: "Fold: the state rebuilt from the journal equals the state in memory.",
    16: "Decisions: a call waits until it is decided, and a decision is obeyed, once, for the suspension that it was made for.",
    17: "Validity: arguments that reach a tool satisfy its schema, and a call that the driver rejects does not run.",
    18: (
        "Secrets: no configured key appears in any event, error, repr, journal record or trace, and no declared secret in what "
        "leaves the process."
    ),
    19: "Tidiness: after an execution ends, tasks, threads and sockets are as before, apart from idle connections of models.",
    20: "Linearity: over a run, each message is compiled, encoded and validated a bounded number of times.",
    21: "Rescue: whatever raises, is cancelled or lies in a step, no settled outcome and no usage is lost, and one event ends the run.",
    22: "Identity: a state that a component returns continues the state that it was given, without the loss of another's change.",
    23: "Whole answers: an answer that did not end normally completes no execution, and no batch runs in part.",
    24: "Quotations: a call that an answer only quotes does not run.",
    25: "Facts: no interceptor makes up a call, or changes which call ran, when, and whether it may have run.",
    26: "Interruption: an interrupted execution with a journal stays in progress and can be recovered; a stopped one is final.",
    27: "Trees: records of sub-agents are deleted with their caller's, and are used only for the call that started them.",
    28: "Exclusion: at most one process drives an execution, whatever path leads to its journal, and its claim dies with it.",
    29: "Display: two different calls never look alike, and every character is visible.",
    30: (
        "Trust: a server, a file or a row of a database makes tools stricter and never looser: no call runs without approval, runs "
        "again, or sends data unasked because of its word."
    ),
    31: "Bounds: untrusted input causes a bounded amount of work, and what exceeds a bound is an outcome that names it.",
    32: "Decoding: the bytes of an answer give the same response in one piece and in any chunks; other bytes raise typed errors.",
    33: "Precedence: an option of a request replaces that of the configuration, which applies where the request has none.",
    34: "Cancellation: a component that is cancelled starts nothing more, raises the cancellation again, and serves the next as before.",
    35: "Points: every request and every call passes the interceptors, and what they make of it is what happens.",
    36: "Updates: each update of a stored state receives what the last one returned, unless that has expired or was evicted.",
    37: "Display at decision: nobody decides about a call before the end of its text was in view, and the decision is about that text.",
    38: "Declarations: what is declared is applied by some part, or refused where it is given.",
    39: "Recognition: an answer with a token of a known notation is a call, a rejection with its reason, or a quotation with an event.",
    40: "One owner: every part of the loop in charge acts in the same way, whichever way a conversation comes to that loop.",
    41: "Testimony: what a tool or a server answered reaches the model, whatever its form; a call that may have run says so.",
    42: "Sessions: the conversation of a session is a sequence of whole turns in the order in which their messages were accepted; none is lost with its process.",
    43: "Grants: a use of a grant is counted if and only if the intent of its call is stored, and once; no more calls use it than it has room for.",
    44: "Fidelity: what a request, an answer, a result or an error says reaches the other side whole, or is refused by an error.",
    45: "Yielding: no asynchronous component blocks the event loop: where it waits, others run.",
    46: "Confinement: a program in a sandbox reads and changes nothing of the host beyond what the sandbox names, and gets none of its variables.",
    47: "Transfer: bytes that a part is given arrive whole and unchanged or not at all, and what is missing or failed is told.",
    48: "Delivery: each listener gets every event of its class once, in order, until it is cancelled, and disturbs nobody by an error.",
    49: "Keys: a key is asked for when a request needs it and not before, and is the one that is valid then, or an error.",
    50: "Foreign text: with labels, a call that the words of others may have decided about waits for a person, whatever has carried these words.",
    51: "Jobs: a job is queued once by its id, runs on one worker at a time, ends once, and is lost with no worker.",
    52: "Turns: of the jobs that may start, the one with the highest priority starts first, then the oldest, and no more than a limit lets start.",
    53: "Non-interference: with labels, the effects that any model gets done unasked are the same whatever a foreign text says.",
    54: "No lowering: a label only grows; the declaration of a tool, or the decision of a person about one call, is all that stands against it.",
    55: "Crossing: foreign text is foreign wherever it is read again, and so is all that is made of it.",
    56: "Unknown is foreign: a text of which nobody says who wrote it counts as foreign.",
    57: "Shown: whoever decides about a call sees who may have decided about it and who wrote each argument, and decides about that text.",
    58: "Nesting: a layer leaves a call after the layers inside, and has ended then all that it began, also when the call is cancelled or waits.",
    59: (
        "Delegation: an agent below a call has the clock, the ids, the dependencies, the listeners and the limits of the call, and "
        "goes on from its record after a crash."
    ),
    60: "Currency: who speaks for a server lists its tools as they are now, and tells of each change and of the end of the connection.",
    61: "Plans: whatever a planned program makes of foreign words, they stay foreign, and a call that they decide about waits for a person.",
    62: (
        "Endorsement: a value that somebody else wrote is a person's where a decision about exactly this value says so: in this argument "
        "of this tool, in this execution, in calls that nobody else has decided about."
    ),
}
"""The numbered laws as texts; `docs/laws.md` says what checks each."""

_MAX_SHOWN = 160
_MAX_TURNS = 100_000
"""How many turns of the event loop a run of a kit may take; the longest ones take a few thousand."""
_MAX_SECONDS = 10.0
"""How long an implementation that a kit runs in virtual time may wait for threads and sockets, in all laws together."""
_IN_REAL_TIME = (
    f"it waits for threads or sockets for more than {_MAX_SECONDS:.0f} seconds in all, and their time is real: a kit of parts that "
    "work in real time is told so, by second=… or is_virtual=False"
)
PLACES = 12
"""How often something is repeated that may use up a place of a pool or a semaphore each time; these have up to ten by default."""
_PAGE = "docs/laws.md"


class Kit:
    """A law suite: checks an implementation of a contract against the laws that the contract names.

    `LawTests` makes pytest collect a kit as one test for each law; `check_laws` checks all of them in a script.

    Args:
        examples: the number of examples that Hypothesis tries for each law.

    Attributes:
        laws: the numbers of the laws that the kit checks; the texts are in `LAWS`.
        sentences: what the contract says in place of the text of a law, by the number of the law, where that is more exact.
        shrinks: whether the smallest failing case is looked for; without it, the first one is reported.
    """

    laws: tuple[int, ...] = ()
    sentences: ClassVar[Mapping[int, str]] = MappingProxyType({})
    shrinks: bool = True

    def __init__(self, *, examples: int = 100) -> None:
        self.examples = examples
        self._bounds = RunBounds(_MAX_TURNS, _MAX_SECONDS)
        self._failing: object = None
        self._failure: Exception | None = None

    def check_all(self) -> None:
        """Check every law of the kit, in order.

        Raises:
            LawViolation: for the first law that does not hold.
            LawNotChecked: for the first law that cannot be checked.
        """
        for law in self.laws:
            self.check(law)

    def check(self, law: int) -> None:
        """Check one law.

        Raises:
            LawViolation: when the implementation violates the law; it shows the smallest case that was found.
            LawNotChecked: when the implementation does not do what the check of the law needs, or cannot be created.
            ConfigurationError: when the kit does not check this law.
            RuntimeError: inside a running event loop, if the check starts one of its own.
        """
        check = self.checks().get(law)
        if check is None:
            raise ConfigurationError(f"{type(self).__name__} checks the laws {self.laws}, not {law}")
        self._failing = self._failure = None
        try:
            with _without_log(), bounded_runs(self._bounds):
                self.require_working()
                check()
        except LawNotChecked as failure:
            raise LawNotChecked(failure.reason, law) from None
        except LawViolation as violation:
            self._raise_violation(law, violation)
        except Flaky as flaky:  # it fails at times, as with state that outlives an execution
            self._raise_error(law, self._last_failure() or flaky, flaky)
        except Exception as error:  # raised again, as a violation
            # What asyncio raises at a second event loop says nothing about the implementation.
            if type(error) is RuntimeError and running_loop() is not None:
                raise RuntimeError(
                    f"{type(self).__name__} starts event loops of its own, and cannot be used inside a running one: check the "
                    "laws in a plain function"
                ) from error
            self._raise_error(law, error, error)

    def _last_failure(self) -> Exception | None:
        return self._failure

    def _raise_violation(self, law: int, violation: LawViolation) -> NoReturn:
        if violation.law != law:  # what the check relies on does not hold, so that it says nothing about its own law
            raise LawNotChecked(f"{violation.reason} (law {violation.law})", law) from violation
        violation.example = self._failing
        violation.sentence = violation.sentence or self.sentences.get(law, "")
        raise violation

    def _raise_error(self, law: int, error: Exception, cause: Exception) -> NoReturn:
        if isinstance(error, LawViolation):
            self._raise_violation(law, error)
        if isinstance(error, RealTime):
            raise LawNotChecked(_IN_REAL_TIME, law) from cause
        sentence = self.sentences.get(law, "")
        raise LawViolation(law, self.describe_error(error), self._failing, sentence=sentence) from cause

    def describe_error(self, error: Exception) -> str:
        """Return the reason of a violation by an error that a check does not expect."""
        if isinstance(error, Deadlock):
            return str(error)
        return f"the check failed with {type(error).__name__}: {error}"

    def require_working(self) -> None:
        """Check that the implementation works at all, so that no law holds because nothing happens. By default it does.

        Raises:
            LawNotChecked: it does not.
        """

    def checks(self) -> Mapping[int, Callable[[], None]]:
        """Return the check of each law."""
        return {law: getattr(self, f"law_{law}") for law in self.laws}

    def for_all(self, strategy: SearchStrategy[T], check: Callable[[T], None]) -> None:
        """Run a check on examples of a strategy: the same ones in each run. The smallest failing example is reported.

        A failure that took seconds to find is reported as it was found, since smaller cases would take as long.
        """
        ended: list[tuple[T, Deadlock | LawViolation | RealTime]] = []

        def holds(example: T) -> None:
            if ended:
                first, failure = ended[0]
                if repr(first) == repr(example):
                    raise failure
                return
            try:
                check(example)
            except (Deadlock, LawViolation, RealTime) as error:
                self._failing, self._failure = example, error  # the last one is the smallest
                if error.took_time:
                    ended.append((example, error))
                raise
            except Exception as error:
                self._failing, self._failure = example, error
                raise

        configured = settings(
            max_examples=self.examples,
            deadline=None,
            database=None,
            derandomize=True,
            report_multiple_bugs=False,  # a violation has one reason
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if self.shrinks else (Phase.generate,),
        )
        with _own_constants():
            configured(given(strategy)(holds))()

    def for_each(self, cases: Iterable[T], check: Callable[[T], None]) -> None:
        """Run a check on each of these cases, in order, however few examples the kit tries. The first failing one is reported."""
        for case in cases:
            try:
                check(case)
            except Exception as error:
                self._failing, self._failure = case, error
                raise


def checked_factory(factory: Callable[P, T]) -> Callable[P, T]:
    """Return the factory of a kit. An implementation that cannot be created has neither kept nor broken a law.

    Raises:
        InvalidParameter: it is no function.
    """
    given_one: object = factory
    if not callable(given_one):
        name = type(given_one).__name__
        raise InvalidParameter(
            f"the factory of a kit is a function that creates the implementation, not a {name}: lambda: {name}(…)"
        )

    def create(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return factory(*args, **kwargs)
        except Exception as error:
            raise LawNotChecked(f"the factory raised {type(error).__name__}: {error}") from error

    return create


@contextmanager
def _own_constants() -> Iterator[None]:
    """Keep the constants of the loaded modules out of the examples, which would differ with what was imported before.

    Hypothesis draws from these constants, and has no setting for it.
    """
    kept = providers._get_local_constants  # noqa: SLF001  # as above
    providers._get_local_constants = Constants  # noqa: SLF001
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        providers._get_local_constants = kept  # noqa: SLF001
        providers.CONSTANTS_CACHE.cache.clear()


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep the errors that toys raise on purpose, and the tasks of what has come to a deadlock, out of the log."""
    loggers = [logging.getLogger(name) for name in ("agentloop", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class LawViolation(AssertionError):
    """An implementation violates a law of its contract.

    The message has the number and the text of the law, the reason, the smallest case, and where to read about the law.

    Attributes:
        law: the number of the law.
        reason: what went wrong.
        example: the smallest generated case in which it did; None for a law that is checked without any.
        sentence: what is quoted in place of the text of the law; empty to quote that.
        took_time: whether it took real seconds to find out, as where a thread might have ended.
    """

    def __init__(
        self, law: int, reason: str, example: object = None, *, sentence: str = "", took_time: bool = False
    ) -> None:
        super().__init__(law, reason)
        self.law = law
        self.reason = reason
        self.example = example
        self.sentence = sentence
        self.took_time = took_time

    def __str__(self) -> str:
        lines = [f"law {self.law} is violated: {self.reason}", f"  {self.sentence or LAWS[self.law]}"]
        if self.example is not None:
            lines.append(f"  the smallest case: {self.example!r:.2000}")
        return "\n".join([*lines, f"  more: {_PAGE}#law-{self.law}"])


class LawNotChecked(AssertionError):
    """A law could not be checked: the implementation does not do what the check needs, such as run a plain call.

    Attributes:
        reason: what it does instead.
        law: the number of the law; 0 where this is about no single law.
    """

    def __init__(self, reason: str, law: int = 0) -> None:
        super().__init__(reason, law)
        self.reason = reason
        self.law = law

    def __str__(self) -> str:
        return f"law {self.law} is not checked: {self.reason}" if self.law else self.reason


class LawTests:
    """The base of a test class with one test for each law of a kit, which pytest collects.

        class TestMyExecutor(LawTests):
            kit = ExecutorKit(MyExecutor, examples=20)

    Where the implementation needs fixtures, `kit` is the class of the kit, and `make_kit` makes it:

        class TestMyJournal(LawTests):
            kit = JournalKit

            @pytest.fixture(autouse=True)
            def _use(self, tmp_path: Path) -> None:
                self.folder = tmp_path

            def make_kit(self) -> JournalKit:
                return JournalKit(lambda **options: MyJournal(self.folder, **options))

    Attributes:
        kit: the kit, or its class.

    Raises:
        ConfigurationError: when a subclass is defined whose name pytest collects, and which has no kit.
    """

    kit: ClassVar[Kit | type[Kit] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add a test for each law."""
        super().__init_subclass__(**kwargs)
        if cls.kit is None:
            if cls.__name__.startswith("Test"):
                raise ConfigurationError(f"{cls.__name__} needs a kit, as in kit = ExecutorKit(MyExecutor)")
            return
        for law in cls.kit.laws:
            test = _test_of(law)
            setattr(cls, test.__name__, test)

    def make_kit(self) -> Kit:
        """Return the kit that a test uses; by default `kit`.

        Raises:
            ConfigurationError: `kit` is a class, and a subclass does not override this method.
        """
        if not isinstance(self.kit, Kit):
            raise ConfigurationError(f"{type(self).__name__} has the class of a kit, so that it has to define make_kit")
        return self.kit


def _test_of(law: int) -> Callable[[LawTests], None]:
    """Return the test of a law, named after it."""

    def check(self: LawTests) -> None:
        self.make_kit().check(law)

    check.__name__ = name_of_test(law)
    check.__qualname__ = f"{LawTests.__name__}.{check.__name__}"
    check.__doc__ = LAWS[law]
    return check


def name_of_test(law: int) -> str:
    """Return the name of the test of a law: `test_law_1_totality`."""
    title, _, _ = LAWS[law].partition(":")
    return f"test_law_{law}_{title.lower().replace(' ', '_')}"


@frozen
class LawReport:
    """Which laws of a kit an implementation keeps.

    Attributes:
        kit: the name of the class of the kit.
        laws: the numbers of the laws of the kit.
        violations: one for each law that does not hold.
        unchecked: one for each law that could not be checked.
    """

    kit: str
    laws: tuple[int, ...]
    violations: tuple[LawViolation, ...]
    unchecked: tuple[LawNotChecked, ...] = ()

    @property
    def broken(self) -> tuple[int, ...]:
        """The numbers of the laws that do not hold."""
        return tuple([violation.law for violation in self.violations])

    @property
    def is_lawful(self) -> bool:
        """Whether all laws were checked and hold."""
        return not self.violations and not self.unchecked

    def raise_for_violations(self) -> None:
        """Raise together what keeps the implementation from being lawful, if there is anything.

        Raises:
            ExceptionGroup: of one `LawViolation` for each law that does not hold, and one `LawNotChecked` for each that could
                not be checked.
        """
        if not self.is_lawful:
            counts = [(len(self.violations), "violated"), (len(self.unchecked), "not checked")]
            said = [
                f"{format_count(count, 'law')} {'is' if count == 1 else 'are'} {what}"
                for count, what in counts
                if count
            ]
            raise ExceptionGroup(f"{self.kit}: {', '.join(said)}", [*self.violations, *self.unchecked])

    def __str__(self) -> str:
        missing = {*self.broken, *[each.law for each in self.unchecked]}
        kept = [str(law) for law in self.laws if law not in missing]
        summary = f"{self.kit}: {len(kept)} of {len(self.laws)} laws hold" + (f" ({', '.join(kept)})" if kept else "")
        # What keeps several laws from being checked is usually the same, and said once.
        reasons: dict[str, list[str]] = {}
        for each in self.unchecked:
            reasons.setdefault(each.reason, []).append(str(each.law))
        lines = [f"not checked: {', '.join(laws)}, because {reason}" for reason, laws in reasons.items()]
        return "\n".join([summary, *lines, *map(str, self.violations)])


def check_laws(kit: Kit) -> LawReport:
    """Check all laws of a kit, and return which hold: `print(check_laws(ExecutorKit(MyExecutor)))`."""
    violations: list[LawViolation] = []
    unchecked: list[LawNotChecked] = []
    for law in kit.laws:
        try:
            kit.check(law)
        except LawViolation as violation:
            violations.append(violation)
        except LawNotChecked as failure:
            unchecked.append(failure)
    return LawReport(type(kit).__name__, kit.laws, tuple(violations), tuple(unchecked))


@contextmanager
def stable_prefix(*expected: str) -> Iterator[PrefixGuard]:
    """Yield an interceptor for any loops, and check at the end that no request of theirs has broken the prefix (law 13).

        @pytest.fixture
        def guard() -> Iterator[PrefixGuard]:
            with stable_prefix() as guard:
                yield guard

    Args:
        *expected: the names of interceptors whose breaks are intended.

    Raises:
        LawViolation: a request does not extend the one before it, and no epoch announced that; lists the breaks.
    """
    guard = PrefixGuard(expected)
    yield guard
    require(13, not guard.breaks, "\n".join(map(str, guard.breaks)))


def require(law: int, condition: object, reason: str | Callable[[], str], *, sentence: str = "") -> None:
    """Check a condition that a law implies.

    Args:
        law: the number of the law.
        condition: what has to be true.
        reason: why the law is violated otherwise; a function of no argument where the text is long.
        sentence: what the contract says about it, quoted in place of the text of the law; empty to quote that.

    Raises:
        LawViolation: when the condition is false.
    """
    if not condition:
        raise LawViolation(law, reason if isinstance(reason, str) else reason(), sentence=sentence)


def find_difference(one: object, other: object) -> str:
    """Return where two values of plain JSON data differ first, and how: `steps[0].id: 'a' and 'b'`; empty if they do not."""
    if is_same_json(one, other, ordered=True):
        return ""
    for place in differences(one, other):
        both = f"{_shown(place.recorded)} and {_shown(place.replayed)}"
        return f"{place.path}: {both}" if place.path else both
    return "the order of the keys"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
