"""A model that repeats an effect which has just succeeded gets its result in place of a second run."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ReActDriver, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.values import CachePolicy, InferenceRequest, InferenceResponse, Message, ToolStatus

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    ran.clear()


@tool
def pay(cents: int, account: str = "main", ratio: float = 1.0) -> str:
    """Pay."""
    ran.append((cents, account, ratio))
    return f"receipt {len(ran)}"


@tool
def other() -> str:
    """Do something else."""
    ran.append("other")
    return "ok"


@tool(effect="pure")
def look() -> str:
    """Look."""
    ran.append("look")
    return "seen"


@tool(repeatable=True)
def poll() -> str:
    """Poll."""
    ran.append("poll")
    return "pending"


@tool(effect="idempotent")
def put() -> str:
    """Put."""
    ran.append("put")
    return "ok"


@tool
def fail() -> str:
    """Fail."""
    ran.append("fail")
    raise RuntimeError("broken")


@tool(effect="pure")
def fail_to_look() -> str:
    """Fail to look."""
    ran.append("fail_to_look")
    raise RuntimeError("broken")


TOOLS: list[Any] = [pay, other, look, poll, put, fail, fail_to_look]


def run(*steps: Any) -> AgentState:
    """Run a model that makes these calls, one after the other: a name with its arguments as JSON, or several of them."""
    answers = [
        [ToolCall(f"{number}.{index}", *one) for index, one in enumerate(step if isinstance(step, list) else [step])]
        for number, step in enumerate(steps)
    ]
    return AgentLoop(ToolCallingDriver(ScriptedInference(*answers, "done")), TOOLS).execute_sync("go")


PAY = ("pay", '{"cents": 5}')
LOOK = ("look", "{}")


def test_an_equal_effect_runs_once_and_its_result_is_told() -> None:
    """However often it is repeated, it runs once, and the model is told that it has run, and with which result."""
    state = run(*[PAY] * 5)
    assert len(ran) == 1
    for step in state.steps[1:5]:
        (repeated,) = step.executions
        assert repeated.status is ToolStatus.REJECTED
        assert not repeated.may_have_run
        assert "this call has run, with this result: receipt 1" in repeated.error_message
    assert state.final_text == "done"


@pytest.mark.parametrize(
    "arguments",
    [
        '{"cents": "5"}',
        '{"cents": 5.0}',
        '{"account": "main", "cents": 5}',
        '{"cents": 5, "ratio": 1}',
        '{ "cents":5 }',
    ],
)
def test_equality_is_that_of_the_values_that_reach_the_function(arguments: str) -> None:
    """Another spelling, a default that is written out, and another order are the same call."""
    run(PAY, ("pay", arguments))
    assert len(ran) == 1


@pytest.mark.parametrize(
    "between",
    [
        ("pay", '{"cents": 6}'),
        ("other", "{}"),
        ("fail", "{}"),
        ("fail_to_look", "{}"),
        ("put", "{}"),
    ],
)
def test_another_effect_or_a_failure_between_makes_it_a_new_call(between: tuple[str, str]) -> None:
    """Other arguments, another tool with an effect, or a failure of any tool: the model may have a reason."""
    run(PAY, between, PAY)
    assert len(ran) == 3


@pytest.mark.parametrize("steps", [[LOOK, PAY], [LOOK, LOOK, PAY], [[LOOK, PAY]], [[PAY, LOOK], PAY], [[PAY, PAY]]])
def test_a_look_between_changes_nothing(steps: list[Any]) -> None:
    """However many pure calls there are between, in the same answer or in others, the effect runs once."""
    run(PAY, *steps)
    assert [each for each in ran if each != "look"] == [(5, "main", 1.0)]


def test_an_effect_before_it_in_the_same_answer_makes_it_a_new_call() -> None:
    """The calls of one answer count in their order; a call that will be refused counts nothing."""
    run(PAY, [("other", "{}"), PAY])
    assert len(ran) == 3
    ran.clear()
    run(PAY, [("pay", '{"cents": "many"}'), ("pya", "{}"), PAY])
    assert len(ran) == 1


WRITTEN = {
    "structured": ('{"next": [{"tool": "other", "arguments": {}}]}', '{"answer": "done"}'),
    "validated": ('<tool_call>{"name":"other","arguments":{}}</tool_call>', "done"),
    "parsed": ('<tool_call>{"name":"other","arguments":{}}</tool_call>', "done"),
    "react": ("Action: other\nAction Input: {}", "Final Answer: done"),
}


@pytest.mark.parametrize("mode", list(WRITTEN))
def test_it_holds_in_every_mode(mode: str) -> None:
    """A call that is written as text is told its result, too, and the model answers."""
    call, answer = WRITTEN[mode]
    model = ScriptedInference(call, call, call, answer)
    driver: Any = ReActDriver(model, output="text") if mode == "react" else ToolCallingDriver(model, mode=mode)  # type: ignore[arg-type]
    state = AgentLoop(driver, TOOLS).execute_sync("go")
    assert (ran, state.final_text) == (["other"], "done")
    assert "this call has run, with this result: ok" in str(model.requests[-1].messages)


def test_a_call_that_did_not_run_between_changes_nothing() -> None:
    """An unknown tool, or arguments that are refused, are not something that ran."""
    run(PAY, ("pya", "{}"), PAY)
    run_before = len(ran)
    assert run_before == 1
    run(PAY, ("pay", '{"cents": "many"}'), PAY)
    assert len(ran) == run_before + 1


@pytest.mark.parametrize(("name", "expected"), [("poll", 3), ("put", 3), ("look", 3), ("fail", 3), ("other", 1)])
def test_only_effects_that_succeeded_and_are_not_repeatable_are_kept(name: str, expected: int) -> None:
    """`@tool(repeatable=True)`, pure and idempotent tools, and failures run again."""
    run(*[(name, "{}")] * 3)
    assert len(ran) == expected


@pytest.mark.parametrize(("repeatable", "expected"), [(None, 2), (True, 2), (False, 1)])
def test_a_cache_exempts_unless_the_tool_says_otherwise(*, repeatable: bool | None, expected: int) -> None:
    """A tool that says itself which calls are the same is left to its cache; `repeatable=False` counts beside a cache, too."""

    @tool(cache=CachePolicy(1e-9), repeatable=repeatable)
    def send(to: str) -> str:
        """Send."""
        ran.append(to)
        return "sent"

    calls = [ToolCall(str(number), "send", '{"to": "Ada"}') for number in range(2)]
    AgentLoop(ToolCallingDriver(ScriptedInference(*calls, "done")), [send]).execute_sync("go")
    assert len(ran) == expected


def test_a_message_of_the_user_between_makes_it_a_new_call() -> None:
    """A person who asks again means it."""
    state = run(PAY)
    model = ScriptedInference(ToolCall("9", *PAY), "done")
    AgentLoop(ToolCallingDriver(model), TOOLS).execute_sync(state.with_message("Once more."))
    assert len(ran) == 2


def test_a_message_that_arrives_while_it_runs_makes_it_a_new_call() -> None:
    """So does a message to the inbox of the execution."""

    def steer(request: InferenceRequest) -> InferenceResponse:
        loop.inbox("e").send(Message.user("Once more."))
        return InferenceResponse((ToolCall("1", *PAY),))

    model = ScriptedInference(steer, ToolCall("2", *PAY), "done")
    loop: AgentLoop = AgentLoop(ToolCallingDriver(model), TOOLS)
    loop.execute_sync("go", execution_id="e")
    assert len(ran) == 2


def test_equal_calls_of_one_answer_are_left_to_deduplication() -> None:
    """The first call of the next answer is compared with the last one; those of one answer run as the model asked."""
    run([PAY, PAY], [PAY])
    assert len(ran) == 2
