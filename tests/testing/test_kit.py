"""What all kits share: violations that say enough, reports, and classes of tests that pytest collects."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from attrs import evolve, frozen
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from agentloop import AgentState, ToolExecutor, tool
from agentloop.contracts import CanAccessToolContext, CanCompileMessages, CanInfer, CanJournal, Tool, ToolContext
from agentloop.errors import ConfigurationError, InvalidParameter
from agentloop.testing import (
    CompilerKit,
    DriverKit,
    ExecutorKit,
    FileLedger,
    InferenceKit,
    JournalKit,
    LawNotChecked,
    LawTests,
    LawViolation,
    ToolKit,
    check_laws,
    clocks,
    run_in_virtual_time,
    surroundings,
)
from agentloop.testing import kit as kits
from agentloop.testing.kit import LAWS, Kit, find_difference, require
from agentloop.testing.surroundings import Surroundings
from agentloop.values import Effect, ToolCalls, ToolExecutions
from tests.testing.zoo.executors import Reorders, SwallowsCancellation


@frozen
class RunsNothing(ToolExecutor):
    """Rejects every call."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        return await super().execute_tools(evolve(tool_calls, rejections=dict.fromkeys(tool_calls.keys, "no")), state)


@frozen
class ChangesValues(ToolExecutor):
    """Changes what a tool has returned, after the event."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        outcome = await super().execute_tools(tool_calls, state)
        changed = [each.with_value("changed") if each.succeeded else each for each in outcome.executions]
        return evolve(outcome, executions=tuple(changed))


class CountingKit(Kit):
    """Refuses numbers from 10 on, by two laws."""

    laws = (1, 3, 8)

    def law_1(self) -> None:
        self.for_all(st.integers(0, 1000), lambda number: require(1, number < 10, f"{number} is too large"))

    def law_3(self) -> None:
        """Hold."""

    def law_8(self) -> None:
        raise ValueError("something else")


def test_a_violation_quotes_its_law_and_shows_the_smallest_case_and_where_to_read() -> None:
    """Each line answers one question of the reader."""
    with pytest.raises(LawViolation) as raised:
        CountingKit().check(1)
    assert (raised.value.law, raised.value.example, raised.value.reason) == (1, 10, "10 is too large")
    assert str(raised.value).splitlines() == [
        "law 1 is violated: 10 is too large",
        f"  {LAWS[1]}",
        "  the smallest case: 10",
        "  more: docs/laws.md#law-1",
    ]


def test_a_report_has_the_laws_that_hold_and_the_violations_of_the_others() -> None:
    """A script prints it, or raises all violations together."""
    report = check_laws(CountingKit(examples=50))
    assert (report.broken, report.is_lawful) == ((1, 8), False)
    assert str(report).startswith("CountingKit: 1 of 3 laws hold (3)\nlaw 1 is violated: ")
    with pytest.raises(ExceptionGroup, match="2 laws are violated"):
        report.raise_for_violations()
    lawful = check_laws(ExecutorKit(ToolExecutor, examples=2))
    assert lawful.is_lawful
    lawful.raise_for_violations()


async def test_inside_an_event_loop_no_law_is_called_violated() -> None:
    """What cannot be checked there is an error of the test, and not of the implementation; other checks work."""
    with pytest.raises(RuntimeError, match=r"ExecutorKit starts event loops of its own.* in a plain function"):
        check_laws(ExecutorKit(ToolExecutor, examples=1))
    assert check_laws(CountingKit(examples=50)).broken == (1, 8)


class IdleKit(Kit):
    """Needs something for two of its laws, and finds another law broken on the way to a third."""

    laws = (1, 3, 8, 9)

    def law_1(self) -> None:
        require(1, condition=False, reason="it is broken", sentence="Said by the contract.")

    def law_3(self) -> None:
        raise LawNotChecked("nothing runs")

    def law_8(self) -> None:
        raise LawNotChecked("nothing runs")

    def law_9(self) -> None:
        require(17, condition=False, reason="a call is lost")


def test_a_law_that_could_not_be_checked_does_not_hold() -> None:
    """What keeps laws from being checked is said once, and another law that is broken on the way is no violation of its own."""
    report = check_laws(IdleKit())
    assert (report.broken, [each.law for each in report.unchecked], report.is_lawful) == ((1,), [3, 8, 9], False)
    assert str(report).splitlines()[:5] == [
        "IdleKit: 0 of 4 laws hold",
        "not checked: 3, 8, because nothing runs",
        "not checked: 9, because a call is lost (law 17)",
        "law 1 is violated: it is broken",
        "  Said by the contract.",
    ]
    with pytest.raises(ExceptionGroup, match="IdleKit: 1 law is violated, 3 laws are not checked") as raised:
        report.raise_for_violations()
    assert len(raised.value.exceptions) == 4
    with pytest.raises(LawNotChecked, match="law 3 is not checked: nothing runs"):
        IdleKit().check(3)


def test_a_difference_names_the_place_and_both_values() -> None:
    """Long values are cut."""
    assert find_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == "a[1].b: 2 and 3"
    assert find_difference({"a": 1}, {}) == "a: 1 and nothing"
    assert find_difference(1, 2) == "1 and 2"
    assert find_difference([1], [1]) == ""
    assert find_difference([1], [True]) == "[0]: 1 and True"
    assert find_difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) == "the order of the keys"
    assert len(find_difference("x" * 1000, "y")) < 200


def test_an_executor_that_runs_nothing_is_not_checked() -> None:
    """No law holds because nothing happens."""
    report = check_laws(ExecutorKit(RunsNothing, examples=2))
    assert [each.law for each in report.unchecked] == list(ExecutorKit.laws)
    assert report.unchecked[0].reason.startswith(
        "a plain call of the toy `echo` did not succeed: returned, with the outcomes ("
    )


def test_an_executor_that_changes_outcomes_is_checked_all_the_same() -> None:
    """The law that it breaks is named with the field that differs, and no other one is quoted for it."""
    report = check_laws(ExecutorKit(ChangesValues, examples=5))
    assert not report.unchecked
    assert 10 in report.broken
    violation = report.violations[report.broken.index(10)]
    assert violation.reason.endswith("the event and the result differ at value: 0 and 'changed'")


def test_a_class_of_tests_has_one_for_each_law() -> None:
    """Each is named after its law, and fails with its violation."""

    class Laws(LawTests):
        kit = ExecutorKit(SwallowsCancellation, examples=10)

    tests = {name for name in vars(Laws) if name.startswith("test_")}
    assert len(tests) == len(ExecutorKit.laws)
    assert {"test_law_1_totality", "test_law_11_fail_closed", "test_law_34_cancellation"} <= tests
    vars(Laws)["test_law_1_totality"](Laws())
    with pytest.raises(LawViolation, match="law 34 is violated"):
        vars(Laws)["test_law_34_cancellation"](Laws())


def test_a_class_of_tests_needs_a_kit() -> None:
    """It says what is missing when it is defined, or when its kit is a class that nobody makes."""
    with pytest.raises(ConfigurationError, match="TestNothing needs a kit, as in kit = "):
        type("TestNothing", (LawTests,), {})

    class Laws(LawTests):
        kit = ExecutorKit

    with pytest.raises(ConfigurationError, match="has to define make_kit"):
        Laws().make_kit()


class TestToolExecutor(LawTests):
    """The form that the documentation shows."""

    kit = ExecutorKit(ToolExecutor, examples=5)


class ThreadsKit(Kit):
    """Leaves two threads behind in each case.

    Args:
        go_on: ends the threads.
    """

    laws = (19,)

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__(examples=20)
        self.go_on = go_on
        self.cases = 0

    def law_19(self) -> None:
        self.for_all(st.integers(0, 1000), self._leave)

    def _leave(self, _: int) -> None:
        self.cases += 1
        before = Surroundings.now()
        for name in ("left", "right"):
            threading.Thread(target=self.go_on.wait, name=name).start()
        before.require_threads()


def test_threads_that_stay_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads an implementation leaves behind, the kit waits for all of them together, and for no smaller case."""
    monkeypatch.setattr(surroundings, "_JOIN_SECONDS", 0.05)
    go_on = threading.Event()
    kit = ThreadsKit(go_on)
    with pytest.raises(LawViolation, match="threads are still running: left, right") as caught:
        kit.check(19)
    go_on.set()
    assert caught.value.took_time
    assert kit.cases == 1


class WaitingKit(Kit):
    """Waits for a thread in each case, in a program in virtual time."""

    laws = (1,)

    def law_1(self) -> None:
        self.for_all(st.integers(0, 1000), lambda _: run_in_virtual_time(_wait_for_thread()))


async def _wait_for_thread() -> None:
    await asyncio.to_thread(threading.Event().wait, 0.1)


def test_what_takes_real_time_is_not_checked_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kit does not wait for hours, and does not call broken what waits for threads again and again."""
    monkeypatch.setattr(clocks, "_COUNTED", 0.05)
    monkeypatch.setattr(kits, "_MAX_SECONDS", 0.25)
    with pytest.raises(LawNotChecked, match="their time is real"):
        WaitingKit().check(1)


class SamplingKit(Kit):
    """Notes the examples that it is given."""

    laws = (1,)

    def __init__(self) -> None:
        super().__init__(examples=100)
        self.seen: list[int] = []

    def law_1(self) -> None:
        self.for_all(st.integers(0, 2**40), self.seen.append)


def test_the_examples_do_not_depend_on_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis draws from the constants of each module of a project that is loaded."""
    numbers = set(range(7_000_000, 7_000_400))
    sampling: list[SamplingKit] = []
    for constants in (Constants(), Constants(integers=numbers)):
        monkeypatch.setattr(providers, "_get_local_constants", lambda constants=constants: constants)
        providers.CONSTANTS_CACHE.cache.clear()
        sampling.append(SamplingKit())
        sampling[-1].check(1)
    assert sampling[0].seen == sampling[1].seen
    assert not numbers & set(sampling[1].seen)


def test_without_shrinking_the_first_failing_case_is_reported() -> None:
    """The zoo saves the time."""
    kit = CountingKit()
    kit.shrinks = False
    with pytest.raises(LawViolation) as raised:
        kit.check(1)
    assert isinstance(raised.value.example, int)
    assert raised.value.example >= 10


def test_a_ledger_in_a_file_is_shared(tmp_path: Path) -> None:
    """What one process notes, another one reads, from its last `clear` on."""
    here, there = FileLedger(tmp_path / "calls"), FileLedger(tmp_path / "calls")
    assert here.calls == []
    there.record("echo", {"value": 1})
    assert here.calls == [("echo", {"value": 1})]
    here.clear()
    there.record("echo", {"value": 2})
    assert here.values == [2]
    assert there.values == [1, 2]


def test_the_reason_of_a_reordered_batch_names_the_keys() -> None:
    """A message tells what was expected."""
    with pytest.raises(LawViolation, match="executions are out of call order"):
        ExecutorKit(Reorders, examples=20).check(1)


class TwoFaults(Kit):
    """Fails in two ways."""

    laws = (1,)

    def law_1(self) -> None:
        def holds(number: int) -> None:
            if number > 500:
                raise ValueError("too large")
            require(1, number < 10, "not small")

        self.for_all(st.integers(0, 1000), holds)


def test_of_several_faults_one_is_the_reason() -> None:
    with pytest.raises(LawViolation, match=r"too large|not small"):
        TwoFaults().check(1)


@pytest.mark.parametrize(
    ("kit", "factory"),
    [
        (ExecutorKit, lambda: ToolExecutor(no_such="setting")),  # type: ignore[call-arg]
        (CompilerKit, CanCompileMessages),
        (JournalKit, lambda **_options: CanJournal()),  # type: ignore[abstract]
        (InferenceKit, lambda _model: CanInfer()),  # type: ignore[abstract]
        (DriverKit, ToolExecutor),
    ],
)
def test_a_factory_that_raises_breaks_no_law(kit: Any, factory: Any) -> None:
    report = check_laws(kit(factory, examples=2))
    assert not report.violations
    assert {each.reason for each in report.unchecked} == {report.unchecked[0].reason}
    assert report.unchecked[0].reason.startswith("the factory raised TypeError: ")


def test_a_factory_is_a_function() -> None:
    with pytest.raises(
        InvalidParameter, match=r"a function that creates the implementation, not a ToolExecutor: lambda: ToolExecutor"
    ):
        ExecutorKit(ToolExecutor())  # type: ignore[arg-type]


class SharesItsContext(Tool, CanAccessToolContext):
    """Keeps the context of the last call, which another one that runs at the same time then has."""

    name = "share"
    description = "Share."
    parameters: ClassVar[dict[str, Any]] = {"type": "object"}
    effect = Effect.IDEMPOTENT

    def with_tool_context(self, context: ToolContext[Any]) -> Self:
        self.context = context
        return self

    async def use(self) -> str:
        return "done"


def test_a_tool_that_is_bound_to_calls_is_copied() -> None:
    with pytest.raises(LawViolation, match="law 9 is violated: with_tool_context changed the tool in place of a copy"):
        ToolKit(SharesItsContext, [{}], examples=2).check(9)


def test_a_tool_returns_itself_for_what_it_has_no_use_for() -> None:
    @tool(effect="pure")
    async def look(number: int, context: ToolContext) -> int:
        """Look."""
        return number

    ToolKit(lambda: look, [{"number": 1}], examples=2).check(9)
