"""A model that makes the same call again and again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentState, ToolCall
from agentloop.interception import Permissions, RepeatThresholds, StopOnRepeatedCalls
from agentloop.testing import InterceptorKit
from agentloop.values import Image, ToolExecution, ToolResult
from tests.interception.resilience.at_work import Worker, seen, use


def warned(execution: ToolExecution) -> bool:
    return "[no progress: " in execution.text


def reason(state: AgentState) -> str:
    return state.stop_signal.reason.value if state.stop_signal is not None else ""


def test_the_third_time_warns_and_the_fourth_stops() -> None:
    """The notice stands after the result; the value stays what it was; the reason names the tool and the times."""
    run = seen(Worker(), [StopOnRepeatedCalls()], *[[use(7)]] * 9)
    assert [warned(one) for one in run.outcomes] == [False, False, True, True]
    assert [one.value for one in run.outcomes] == [7] * 4
    assert run.outcomes[2].text.startswith("7")
    assert "3 times in a row" in run.outcomes[2].text
    assert reason(run.state) == "no_progress"
    assert run.state.stop_signal is not None
    assert run.state.stop_signal.context == {"tool": "work", "times": 4}
    assert run.state.stop_signal.source == "StopOnRepeatedCalls"


@pytest.mark.parametrize(
    "turns",
    [
        [[use(1)], [use(2)]] * 5,
        [[use(1)], [use(1)], [use(2)]] * 3,
        [[use(1)] * 8],
        [[use(1)] * 2] * 2,
    ],
    ids=["in turns", "interrupted", "in one step", "twice in two steps"],
)
def test_what_is_not_a_row_of_steps_is_left_alone(turns: list[list[ToolCall]]) -> None:
    """Other calls in between, or many at once before a result was seen, are no lack of progress."""
    run = seen(Worker(), [StopOnRepeatedCalls()], *turns)
    assert reason(run.state) == "completed"
    assert not any(map(warned, run.outcomes))


def test_other_calls_beside_it_do_not_hide_it() -> None:
    """In every step the same call among others that change: the same one is found, and only it is warned of."""
    run = seen(Worker(), [StopOnRepeatedCalls()], *[[use("same"), use(n)] for n in range(9)])
    assert reason(run.state) == "no_progress"
    assert [one.value for one in run.outcomes if warned(one)] == ["same", "same"]
    assert run.state.step_count == 4


def test_a_result_that_changes_is_progress() -> None:
    """A counter that is read again and again tells something new each time."""
    tool = Worker(lambda run: run.at)
    waiting = Worker(tool_name="wait", seconds=1)
    run = seen([tool, waiting], [StopOnRepeatedCalls()], *[[use(1), use(n, "wait")] for n in range(9)])
    assert reason(run.state) == "completed"


def test_what_only_the_model_is_shown_counts_as_the_result() -> None:
    """Screenshots differ although their value is the same."""
    pictures = iter(range(99))

    def picture(_: Any) -> ToolResult:
        return ToolResult("taken", (Image(media_type="image/png", data=bytes([next(pictures)])),))

    run = seen(Worker(picture), [StopOnRepeatedCalls()], *[[use(1)]] * 6)
    assert reason(run.state) == "completed"
    still = seen(
        Worker(lambda _: ToolResult("taken", (Image(media_type="image/png", data=b"x"),))),
        [StopOnRepeatedCalls()],
        *[[use(1)]] * 6,
    )
    assert reason(still.state) == "no_progress"
    assert [len(one.parts) for one in still.outcomes] == [1, 1, 2, 2]


def fail(_: Any) -> None:
    raise ConnectionError("down")


@pytest.mark.parametrize(
    ("tool", "call", "interceptors"),
    [
        (Worker(fail), use(1), []),
        (Worker(), use(1), [Permissions(deny="work")]),
        (Worker(), use(1, "absent"), []),
        (Worker(), ToolCall("", "work", '{"value": '), []),
        (Worker(), ToolCall("", "work", "[]"), []),
    ],
    ids=["failed", "blocked", "unknown", "cut off", "no object"],
)
def test_the_same_error_is_no_progress_either(tool: Worker, call: ToolCall, interceptors: list[Any]) -> None:
    """However a call ends: the same end four times stops, and the model still sees the error before the notice."""
    run = seen(tool, [StopOnRepeatedCalls(), *interceptors], *[[call]] * 9)
    assert reason(run.state) == "no_progress"
    assert len(run.outcomes) == 4
    third = run.outcomes[2]
    assert third.error is not None
    assert third.text.startswith(f"{third.error.type}: {third.error.message}")
    assert warned(third)


def test_spelling_does_not_matter() -> None:
    """The same arguments in another order and spelling are the same; others are not."""
    spellings = ['{"value":{"a":1,"b":2}}', ' {"value": {"b": 2, "a": 1}}', '{ "value" : {"a":1 , "b":2}}', "{}"]
    calls = [[ToolCall("", "work", text)] for text in spellings]
    run = seen(Worker(lambda _: "ok"), [StopOnRepeatedCalls()], *calls)
    assert [warned(one) for one in run.outcomes] == [False, False, True, False]


@given(
    st.none() | st.integers(2, 6),
    st.none() | st.integers(2, 6),
    st.none() | st.tuples(st.none() | st.integers(2, 6), st.none() | st.integers(2, 6)),
)
def test_both_numbers_can_be_set_and_per_tool(
    warn_at: int | None, stop_at: int | None, own: tuple[int | None, int | None] | None
) -> None:
    """The warning comes at its number, the stop at its own, either not at all; a tool may have other numbers."""
    tools = {"wo*": RepeatThresholds(*own)} if own is not None else {}
    run = seen(Worker(), [StopOnRepeatedCalls(warn_at, stop_at, tools=tools)], *[[use(1)]] * 8)
    warn_at, stop_at = own if own is not None else (warn_at, stop_at)
    assert len(run.outcomes) == (stop_at or 8)
    expected = [warn_at is not None and time >= warn_at for time in range(1, len(run.outcomes) + 1)]
    assert [warned(one) for one in run.outcomes] == expected
    assert reason(run.state) == ("no_progress" if stop_at is not None else "completed")


def test_a_number_that_is_no_repetition_is_refused() -> None:
    """To warn of the first call would be to warn of every call."""
    with pytest.raises(ValueError, match="second time"):
        StopOnRepeatedCalls(1)


def test_it_keeps_the_laws_of_interceptors() -> None:
    """It changes nothing it is given, is deterministic, and keeps executions apart."""
    InterceptorKit(StopOnRepeatedCalls, examples=20).check_all()
