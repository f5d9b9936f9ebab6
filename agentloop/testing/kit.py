"""The laws of the contracts, and what all law suites share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from agentloop.errors import ConfigurationError
from agentloop.interception.prefix_guard import PrefixGuard

T = TypeVar("T")

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
    14: "Effects: after a crash and a recovery, an effect ran at most once or is reported in doubt.",
    15: "Fold: the state rebuilt from the journal equals the state in memory.",
    16: "Decisions: a decision is used at most once, and only for one suspension of the call that it was made for.",
    17: "Validity: arguments that reach a tool satisfy its schema, and a call that the driver rejects does not run.",
    18: "Secrets: no configured key appears in any event, error, repr, journal record or trace.",
    19: "Tidiness: after an execution ends in any way, tasks, threads and sockets are as before.",
    20: "Linearity: over a run, each message is compiled, encoded and validated a bounded number of times.",
    21: "Rescue: whatever raises, is cancelled or lies in a step, no settled outcome and no usage is lost, and one event ends the run.",
    22: "Identity: a state that a driver or an interceptor returns continues the state that it was given.",
    23: "Whole answers: an answer that did not end normally completes no execution, and no batch runs in part.",
    24: "Quotations: a call that an answer only quotes does not run.",
    25: "Facts: no interceptor changes which call ran, when, and whether it may have run.",
    26: "Interruption: an interrupted execution with a journal stays in progress and can be recovered; a stopped one is final.",
    27: "Trees: records of sub-agents are deleted with their caller's, and are used only for the call that started them.",
    28: "Exclusion: at most one process drives an execution, whatever path leads to its journal, and its claim dies with it.",
    29: "Display: two different calls never look alike, and every character is visible.",
    30: "Trust: what a server says about its tools lets no call run without approval, nor again.",
    31: "Bounds: untrusted input causes a bounded amount of work, and what exceeds a bound is an outcome that names it.",
    32: "Decoding: the bytes of an answer give the same response in one piece and in any chunks; other bytes raise typed errors.",
    33: "Precedence: an option of a request replaces that of the configuration, which applies where the request has none.",
}


class Kit:
    """A law suite: checks an implementation of a contract against the laws that the contract names.

        @pytest.mark.parametrize("law", ExecutorKit.laws)
        def test_my_executor_obeys_the_law(law: int) -> None:
            ExecutorKit(MyExecutor).check(law)

    Args:
        examples: the number of examples that Hypothesis tries for each law.

    Attributes:
        laws: the numbers of the laws that the kit checks; the texts are in `LAWS`.
    """

    laws: tuple[int, ...] = ()

    def __init__(self, *, examples: int = 100) -> None:
        self.examples = examples

    def check_all(self) -> None:
        """Check every law of the kit, in order.

        Raises:
            LawViolation: for the first law that does not hold.
        """
        for law in self.laws:
            self.check(law)

    def check(self, law: int) -> None:
        """Check one law.

        Raises:
            LawViolation: when the implementation violates the law; a note shows the example.
            ConfigurationError: when the kit does not check this law.
        """
        check = self.checks().get(law)
        if check is None:
            raise ConfigurationError(f"{type(self).__name__} checks the laws {self.laws}, not {law}")
        try:
            check()
        except LawViolation:
            raise
        except Exception as error:
            raise LawViolation(law, f"the check failed with {type(error).__name__}: {error}") from error

    def checks(self) -> Mapping[int, Callable[[], None]]:
        """Return the check of each law."""
        return {law: getattr(self, f"law_{law}") for law in self.laws}

    def for_all(self, strategy: SearchStrategy[T], check: Callable[[T], None]) -> None:
        """Run a check on examples of a strategy: the same ones in each run. The smallest failing example is reported."""
        configured = settings(
            max_examples=self.examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        configured(given(strategy)(check))()


class LawViolation(AssertionError):
    """An implementation violates a law of its contract.

    Attributes:
        law: the number of the law.
    """

    def __init__(self, law: int, reason: str) -> None:
        super().__init__(f"law {law} is violated: {reason}\n  {LAWS[law]}")
        self.law = law


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


def require(law: int, condition: object, reason: str) -> None:
    """Check a condition that a law implies.

    Raises:
        LawViolation: when the condition is false.
    """
    if not condition:
        raise LawViolation(law, reason)
