"""Lawful implementations of unusual shapes pass their kits: the kits raise no false alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolCallingDriver, ToolExecutor
from agentloop.contracts import CanExecuteToolCalls, CanInfer, CanUseTools, can_accept
from agentloop.contracts.can_accept import CanAcceptTools
from agentloop.contracts.can_compile_messages import CanAcceptMessageCompiler
from agentloop.contracts.tool import ToolLike
from agentloop.drivers import ForwardingDriver, ScriptedDriver
from agentloop.durable import MemoryJournal, replay
from agentloop.executors import ForwardingExecutor, not_begun
from agentloop.models import ReActDriver
from agentloop.testing import (
    CompilerKit,
    DriverKit,
    ExecutorKit,
    FileLedger,
    InferenceKit,
    InterceptorKit,
    JournalKit,
    Ledger,
    ListenerKit,
    Scenario,
    StoreKit,
    ToolKit,
    toy_call,
    toy_tools,
)
from agentloop.testing.kit import Kit
from agentloop.values import ToolCalls, ToolStatus
from agentloop.values.decisions import PendingCall
from agentloop.values.json import parse_json
from tests.executors.json_lines import Child, ChildExecutor
from tests.generated import examples
from tests.testing.lawful import (
    SECOND,
    AsksAgain,
    Bulkhead,
    CountsItems,
    FollowsTurns,
    HttpExecutor,
    ImprovesAnswers,
    KeepsAnswers,
    KeepsAnswersForNothing,
    KnowsItsCall,
    MarksRequests,
    PacedExecutor,
    Paces,
    RestsAfterFailures,
    SharesRequests,
    SlowLink,
    TimedDriver,
    TimedExecutor,
    WorksFromAQueue,
    count_by_program,
    count_for_shop,
    count_items,
    count_with_progress,
    critic,
    judge,
    plan_and_execute,
    plan_by_script,
    router,
    served_toys,
    votes,
    votes_of_models,
    yield_items,
)
from tests.testing.lawful_parts import (
    ComparesAndSets,
    KeepsWhatItRead,
    KnowsAnswers,
    LooksUpDocuments,
    RetrievesMessages,
    SendsBatches,
    WritesReports,
)

DRIVERS: dict[str, tuple[Callable[[Scenario], CanUseTools], int]] = {
    "plan and execute": (plan_and_execute, 2),
    "plan by a script": (plan_by_script, 2),
    "critic by a script": (critic, 3),
    "planner that judges": (judge, 3),
    "votes of one model": (votes, 3),
    "votes of three models": (votes_of_models, 3),
    "router": (router, 1),
    "without a model": (lambda scenario: FollowsTurns(turns=scenario.turns), 1),
    "timed": (lambda scenario: TimedDriver(ToolCallingDriver(scenario.inference())), 1),
}


@pytest.mark.parametrize("law", DriverKit.laws)
@pytest.mark.parametrize("name", DRIVERS)
def test_drivers_of_unusual_shapes_obey_the_laws(name: str, law: int) -> None:
    """A planner with a model of its own, a router, a driver without a model and wrappers of ten lines keep every law."""
    factory, inferences = DRIVERS[name]
    DriverKit(factory, examples=examples(6), max_inferences_per_step=inferences).check(law)


INFERENCES = [
    ImprovesAnswers,
    KeepsAnswers,
    KeepsAnswersForNothing,
    SharesRequests,
    AsksAgain,
    RestsAfterFailures,
    MarksRequests,
    Paces,
]


@pytest.mark.parametrize("law", InferenceKit.laws)
@pytest.mark.parametrize("inference", INFERENCES)
def test_inferences_of_unusual_shapes_obey_the_laws(inference: Callable[[CanInfer], CanInfer], law: int) -> None:
    """They ask again, improve, keep and number, rest after failures, and one needs the scope of an execution."""
    InferenceKit(inference, examples=examples(10)).check(law)


@pytest.mark.parametrize("law", ToolKit.laws)
@pytest.mark.parametrize(
    "factory",
    [
        CountsItems,
        lambda: count_items,
        KnowsItsCall,
        lambda: count_for_shop,
        lambda: count_by_program,
        lambda: count_with_progress,
        lambda: yield_items,
    ],
)
def test_tools_of_unusual_shapes_obey_the_laws(factory: Callable[[], ToolLike], law: int) -> None:
    """Arguments and results are JSON, some tools need the state, the call, its context or dependencies, and one runs a program."""
    ToolKit(factory, [{"items": [1, 2]}, {"items": []}], dependencies="lamps", examples=2).check(law)


PARTS: dict[str, Callable[[], Kit]] = {
    "retrieval": lambda: InterceptorKit(LooksUpDocuments, examples=examples(5)),
    "reports in place of results": lambda: InterceptorKit(WritesReports, examples=examples(5)),
    "answers that are known": lambda: InterceptorKit(KnowsAnswers, examples=examples(5)),
    "retrieval of messages": lambda: CompilerKit(RetrievesMessages, examples=examples(10)),
    "a cache of records": lambda: JournalKit(KeepsWhatItRead, examples=examples(5)),
    "compare and set": lambda: StoreKit(ComparesAndSets, examples=examples(10)),
    "batches of events": lambda: ListenerKit(SendsBatches, examples=examples(5)),
}


@pytest.mark.parametrize(("name", "law"), [(name, law) for name, kit in PARTS.items() for law in kit().laws])
def test_parts_of_unusual_shapes_obey_the_laws(name: str, law: int) -> None:
    """Interceptors, compilers, journals, stores and listeners that look up, keep, wait and collect keep every law."""
    PARTS[name]().check(law)


@pytest.mark.parametrize("law", ExecutorKit.laws)
@pytest.mark.parametrize("wrapper", [TimedExecutor, PacedExecutor, Bulkhead, WorksFromAQueue])
def test_a_wrapped_executor_obeys_the_laws(
    wrapper: Callable[[CanExecuteToolCalls], CanExecuteToolCalls], law: int
) -> None:
    """A wrapper keeps every law, even one that is cancelled before it hands its batch over, or that has it run by another task."""
    ExecutorKit(lambda: wrapper(ForwardingExecutor(ToolExecutor())), examples=examples(10)).check(law)


def test_calls_that_have_not_begun_are_cancelled_and_have_not_run() -> None:
    """`not_begun` settles every call in call order; one that its tool has suspended before may have run."""
    state = AgentState.start("go")
    calls = ToolCalls.of([toy_call("echo", 1, id="a"), toy_call("defer", 2, id="b")], state)
    suspended = PendingCall(calls.keys[1], calls.calls[1], begun=True)
    outcome = not_begun(evolve(calls, begun={calls.keys[1]: suspended}), state, "the queue is full")
    assert [each.key for each in outcome.executions] == list(calls.keys)
    assert [each.status for each in outcome.executions] == [ToolStatus.CANCELLED] * 2
    assert [each.may_have_run for each in outcome.executions] == [False, True]
    assert {each.error_message for each in outcome.executions} == {"the queue is full"}
    assert outcome.state is state


@pytest.mark.parametrize("law", ExecutorKit.laws)
def test_an_executor_with_waits_of_its_own_obeys_the_laws(law: int) -> None:
    """A call that begins in the instant of a cancellation, when its wait is over, is not late."""
    ledger = Ledger()
    ExecutorKit(lambda: SlowLink(ledger=ledger), ledger=ledger, examples=examples(10)).check(law)


@pytest.fixture(scope="module")
def far_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which toys of other processes note their calls."""
    return tmp_path_factory.mktemp("ledger") / "calls.jsonl"


@pytest.fixture(scope="module")
def child(far_ledger: Path) -> Iterator[Child]:
    """A child process with toys that are fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_LEDGER", str(far_ledger))
        child = Child("tests.testing.far_toys")
        child.start()
    yield child
    child.close()


@pytest.fixture(scope="module")
def port(far_ledger: Path) -> Iterator[int]:
    """The port of a server with toys that are fast."""
    with served_toys(far_ledger) as port:
        yield port


@pytest.mark.parametrize("law", ExecutorKit.laws)
def test_an_executor_over_a_child_process_obeys_the_laws(law: int, child: Child, far_ledger: Path) -> None:
    """Its toys run in real time and note their calls in a file, so that no law is green without a call that ran."""
    kit = ExecutorKit(lambda: ChildExecutor(child=child), ledger=FileLedger(far_ledger), second=SECOND, examples=3)
    assert not kit.runs_elsewhere
    kit.check(law)


@pytest.mark.parametrize("law", ExecutorKit.laws)
def test_an_executor_over_http_obeys_the_laws(law: int, port: int, far_ledger: Path) -> None:
    """The same holds for calls that are posted to a server."""
    kit = ExecutorKit(lambda: HttpExecutor(port=port), ledger=FileLedger(far_ledger), second=SECOND, examples=3)
    kit.check(law)


@pytest.mark.parametrize("law", [8, 9, 11, 14, 16, 17])
def test_without_a_ledger_the_outcomes_tell_which_calls_ran(law: int, port: int) -> None:
    """An executor whose toys nobody sees is no false alarm, and is judged by its outcomes."""
    kit = ExecutorKit(lambda: HttpExecutor(port=port), second=SECOND, examples=3)
    assert kit.runs_elsewhere
    kit.check(law)


# --- bases for wrappers -----------------------------------------------------------------------------------------------


def test_a_forwarding_base_has_every_contract_by_which_parts_are_bound() -> None:
    """A contract that is added later is missing here until the bases forward it."""
    binding = {kind for name, kind in vars(can_accept).items() if name.startswith(("CanAccept", "CanAdd"))}
    binding.add(CanAcceptMessageCompiler)
    for kind in binding:
        assert issubclass(ForwardingDriver, kind) or issubclass(ForwardingExecutor, kind), kind
    driver_contracts = {each for kind in (ToolCallingDriver, ReActDriver, ScriptedDriver) for each in kind.__mro__}
    assert [kind for kind in driver_contracts & binding if not issubclass(ForwardingDriver, kind)] == []
    assert [kind for kind in set(ToolExecutor.__mro__) & binding if not issubclass(ForwardingExecutor, kind)] == []
    assert CanAcceptTools in ForwardingExecutor.__mro__


def test_a_wrapper_is_transparent_to_the_loop() -> None:
    """A typed answer, the tools of a mode and an eager start reach the driver inside of a wrapper."""
    model = ScriptedInference([ToolCall("1", "echo", '{"value": 2}')], '{"answer": 2}')
    driver = TimedDriver(ToolCallingDriver(model))
    loop: AgentLoop[int] = AgentLoop(
        driver, toy_tools(Ledger()), output_type=int, executor=TimedExecutor(ToolExecutor())
    )
    assert loop.run_sync("Two?") == 2
    assert len(driver.times) == 2


def test_a_wrapper_of_nothing_is_refused() -> None:
    """The error says what is wrapped."""
    with pytest.raises(TypeError, match="the inner of ForwardingExecutor has to be a CanExecuteToolCalls"):
        ForwardingExecutor(None)  # type: ignore[arg-type]


async def test_a_wrapped_loop_can_be_replayed() -> None:
    """Its record has the mode of the driver inside, and its recorded calls do not run again."""
    journal, ledger = MemoryJournal(), Ledger()
    model = ScriptedInference([ToolCall("1", "echo", '{"value": 2}')], "two")
    driver = TimedDriver(ToolCallingDriver(model, mode="native"))
    loop = AgentLoop(driver, toy_tools(ledger), executor=TimedExecutor(ToolExecutor()), journal=journal)
    await loop.execute("Two?", execution_id="run")
    replayed = await replay(journal, "run", loop)
    assert replayed.divergence is None
    assert ledger.values == [2]
    start = parse_json((await journal.read("run"))[0].body)
    assert start["loop"]["mode"] == "native"
