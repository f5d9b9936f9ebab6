"""Stops for a model that makes the same call again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentState, ToolCall
from agentloop.interception import Permissions, RepeatThresholds, StepLimit, StopOnRepeatedCalls
from agentloop.testing import InterceptorKit
from agentloop.values import Image, ToolExecution, ToolResult
from agentloop.values.points import AfterToolUse
from tests.compilers.conversations import call_message, with_question, with_steps
from tests.generated import examples
from tests.policies.resilience.worker import Worker, run_loop, work


def has_warning(execution: ToolExecution) -> bool:
    return "[no progress: " in execution.text


def reason(state: AgentState) -> str:
    return state.stop_signal.reason.value if state.stop_signal is not None else ""


def test_the_third_time_warns_and_the_fourth_stops() -> None:
    """The notice follows the result, the value does not change, and the stop signal has the tool and the number of times."""
    run = run_loop(Worker(), [StopOnRepeatedCalls()], *[[work(7)]] * 9)
    assert [has_warning(outcome) for outcome in run.outcomes] == [False, False, True, True]
    assert [outcome.value for outcome in run.outcomes] == [7] * 4
    assert run.outcomes[2].text.startswith("7")
    assert "3 times in a row" in run.outcomes[2].text
    assert reason(run.state) == "no_progress"
    assert run.state.stop_signal is not None
    assert run.state.stop_signal.context == {"tool": "work", "times": 4}
    assert run.state.stop_signal.source == "StopOnRepeatedCalls"


@pytest.mark.parametrize(
    "turns",
    [
        [[work(1)], [work(2)]] * 5,
        [[work(1)], [work(1)], [work(2)]] * 3,
        [[work(1)] * 8],
        [[work(1)] * 2] * 2,
    ],
    ids=["alternating", "interrupted", "in one step", "twice in two steps"],
)
def test_only_consecutive_steps_count(turns: list[list[ToolCall]]) -> None:
    """A step without the call ends the count, and equal calls in one step count once."""
    run = run_loop(Worker(), [StopOnRepeatedCalls()], *turns)
    assert reason(run.state) == "completed"
    assert not any(map(has_warning, run.outcomes))


def test_other_calls_in_the_same_steps_do_not_matter() -> None:
    """A call that every step repeats is counted even if the other calls of the steps differ; only it gets the notice."""
    run = run_loop(Worker(), [StopOnRepeatedCalls()], *[[work("same"), work(n)] for n in range(9)])
    assert reason(run.state) == "no_progress"
    assert [outcome.value for outcome in run.outcomes if has_warning(outcome)] == ["same", "same"]
    assert run.state.step_count == 4


def test_a_result_that_changes_is_progress() -> None:
    """Reading a counter again and again is not stopped, because each result is new."""
    tool = Worker(lambda run: run.at)
    waiting = Worker(tool_name="wait", seconds=1)
    run = run_loop([tool, waiting], [StopOnRepeatedCalls()], *[[work(1), work(n, "wait")] for n in range(9)])
    assert reason(run.state) == "completed"


def test_content_for_the_model_is_part_of_the_result() -> None:
    """Screenshots with the same value differ if their pictures do."""
    pictures = iter(range(99))

    def picture(_: Any) -> ToolResult:
        return ToolResult("taken", (Image(media_type="image/png", data=bytes([next(pictures)])),))

    run = run_loop(Worker(picture), [StopOnRepeatedCalls()], *[[work(1)]] * 6)
    assert reason(run.state) == "completed"
    unchanged = run_loop(
        Worker(lambda _: ToolResult("taken", (Image(media_type="image/png", data=b"x"),))),
        [StopOnRepeatedCalls()],
        *[[work(1)]] * 6,
    )
    assert reason(unchanged.state) == "no_progress"
    assert [len(outcome.parts) for outcome in unchanged.outcomes] == [1, 1, 2, 2]


def fail(_: Any) -> None:
    raise ConnectionError("down")


@pytest.mark.parametrize(
    ("tool", "call", "interceptors"),
    [
        (Worker(fail), work(1), []),
        (Worker(), work(1), [Permissions(deny="work")]),
        (Worker(), work(1, "absent"), []),
        (Worker(), ToolCall("", "work", '{"value": '), []),
        (Worker(), ToolCall("", "work", "[]"), []),
    ],
    ids=["failed", "blocked", "unknown", "truncated arguments", "no object"],
)
def test_the_same_error_is_no_progress_either(tool: Worker, call: ToolCall, interceptors: list[Any]) -> None:
    """The same error four times stops the execution, and the model sees the error before the notice."""
    run = run_loop(tool, [StopOnRepeatedCalls(), *interceptors], *[[call]] * 9)
    assert reason(run.state) == "no_progress"
    assert len(run.outcomes) == 4
    third = run.outcomes[2]
    assert third.error is not None
    assert third.text.startswith(f"{third.error.type}: {third.error.message}")
    assert has_warning(third)


def test_arguments_are_compared_by_value() -> None:
    """Arguments in another order and spelling are the same."""
    spellings = ['{"value":{"a":1,"b":2}}', ' {"value": {"b": 2, "a": 1}}', '{ "value" : {"a":1 , "b":2}}', "{}"]
    calls = [[ToolCall("", "work", text)] for text in spellings]
    run = run_loop(Worker(lambda _: "ok"), [StopOnRepeatedCalls()], *calls)
    assert [has_warning(outcome) for outcome in run.outcomes] == [False, False, True, False]


def test_a_call_whose_key_has_no_step_is_of_the_next_one() -> None:
    """All steps of the state are before it, so it is compared with the last of them, too."""
    message = call_message("find", "nothing", q=1)
    state = with_steps(with_question(AgentState.start(), "go"), message, message)
    (exchange,) = message.exchanges
    after = StopOnRepeatedCalls().after_tool_use(AfterToolUse(state, exchange.execution))
    assert "3 times in a row" in after.execution.text


@given(
    st.none() | st.integers(2, 6),
    st.none() | st.integers(2, 6),
    st.none() | st.tuples(st.none() | st.integers(2, 6), st.none() | st.integers(2, 6)),
)
def test_both_thresholds_can_be_set_for_all_and_for_single_tools(
    warn_at: int | None, stop_at: int | None, per_tool: tuple[int | None, int | None] | None
) -> None:
    """The warning and the stop come at their thresholds, None disables either; a tool may have thresholds of its own."""
    tools = {"wo*": RepeatThresholds(*per_tool)} if per_tool is not None else {}
    run = run_loop(Worker(), [StopOnRepeatedCalls(warn_at, stop_at, tools=tools)], *[[work(1)]] * 8)
    warn_at, stop_at = per_tool if per_tool is not None else (warn_at, stop_at)
    assert len(run.outcomes) == (stop_at or 8)
    expected = [warn_at is not None and time >= warn_at for time in range(1, len(run.outcomes) + 1)]
    assert [has_warning(outcome) for outcome in run.outcomes] == expected
    assert reason(run.state) == ("no_progress" if stop_at is not None else "completed")


def test_a_threshold_below_two_is_refused() -> None:
    """The first call is no repetition."""
    with pytest.raises(ValueError, match="second time"):
        StopOnRepeatedCalls(1)


@frozen(eq=False, repr=False)
class LimitOfTeam(StepLimit):
    """A limit of steps with a field of its own."""

    team: str = field(default="", kw_only=True)


@frozen(eq=False, repr=False)
class RepeatsOfTeam(StopOnRepeatedCalls):
    """Thresholds with a field of their own."""

    team: str = field(default="", kw_only=True)


@pytest.mark.parametrize("create", [partial(LimitOfTeam, 3), RepeatsOfTeam], ids=["steps", "repeated calls"])
def test_a_subclass_is_compared_and_shown_with_its_own_fields(create: Callable[..., Any]) -> None:
    """Two that differ only in these fields are not equal."""
    assert create(team="sales") == create(team="sales") != create(team="support")
    assert repr(create(team="sales")).endswith(", team='sales')")


def test_it_keeps_the_laws_of_interceptors() -> None:
    """It changes no context in place, is deterministic, and separates executions."""
    InterceptorKit(StopOnRepeatedCalls, examples=examples(20)).check_all()
