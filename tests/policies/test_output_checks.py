"""Checks of answers that send the model back: `output_check`, and guardrails with the outcome `again`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attrs import field, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    FunctionInference,
    Message,
    ScriptedInference,
    ToolCall,
)
from agentloop.contracts import CanJournal, CanUseTools
from agentloop.drivers.forwarding import ForwardingDriver
from agentloop.durable import MemoryJournal
from agentloop.errors import AskAgain, InvalidParameter, RateLimited
from agentloop.policies import Guardrails, Inspection, ModelJudge
from agentloop.values import AgentStep, ExecutionStatus, InferenceRequest, StopReason, Usage
from agentloop.values.serialization import to_json
from tests.durable.recovery_bench import truncate
from tests.policies.test_guardrails import COST, EVERY_DRIVER, FAILS, PASSES, Make, Shop, no_bad_words, run, tripped

ASKED = "Your answer was not accepted: say good\n\nGo on: do what is missing, then answer again in full."


def good(answer: str) -> None:
    """Refuse what is not good."""
    if "good" not in answer:
        raise AskAgain("say good")


async def good_later(answer: str, inspection: Inspection) -> None:
    """Refuse what is not good, as a coroutine with the state and the dependencies."""
    await asyncio.sleep(0)
    assert inspection.text == answer
    assert inspection.state.final_text == answer
    if inspection.dependencies not in answer:
        raise AskAgain(f"say {inspection.dependencies}")


# --- output_check -------------------------------------------------------------------------------------------------


@EVERY_DRIVER
@pytest.mark.parametrize("streaming", [False, True])
def test_a_refused_answer_is_followed_by_the_reason_and_a_better_one(make: Make, *, streaming: bool) -> None:
    """Under every driver, streamed and not; the conversation keeps both, and the answer is the one that passed."""
    state, events = run(make("bad", "good", output_check=good, streaming=streaming))
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "good")
    assert [message.text for message in state.messages] == ["go", "bad", ASKED, "good"]
    assert tripped(events) == [("output", ("say good",), "again")]


@EVERY_DRIVER
def test_when_the_retries_are_used_up_the_execution_stops_and_keeps_the_answer(make: Make) -> None:
    """The reason is `retry_limit`; the last answer, its tokens and the reason are there."""
    state, events = run(make("bad", "worse", "worst", "unused", output_check=good))
    assert (state.status, state.final_text, len(state.steps)) == (ExecutionStatus.STOPPED, "worst", 3)
    signal = state.stop_signal
    assert signal is not None
    assert (signal.reason, signal.source) == (StopReason.RETRY_LIMIT, "output_check")
    assert signal.message == "the answer does not pass its check, after the model was sent back 2 times: say good"
    assert state.usage.requests == 3
    assert [outcome for _, _, outcome in tripped(events)] == ["again", "again", "stop"]


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_the_model_is_sent_back_as_often_as_max_retries_says(retries: int) -> None:
    """Each execution counts for itself."""
    model = ScriptedInference(*["bad"] * (retries + 1), "good")
    loop = AgentLoop.for_model(model, output_check=good, max_retries=retries)
    state = loop.execute_sync("go")
    assert (state.step_count, state.final_text) == (retries + 1, "bad")
    again = loop.execute_sync(state.with_message("again"))
    assert again.step_count == retries + 1


def test_a_check_sees_state_and_dependencies() -> None:
    """A coroutine function with two parameters gets an inspection, too."""
    loop = AgentLoop.for_model(ScriptedInference("a lamp", "a desk"), output_check=good_later)
    assert loop.run_sync("go", dependencies="desk") == "a desk"


def test_several_checks_are_asked_in_their_order_until_one_refuses() -> None:
    """A later check sees no answer that an earlier one refused."""
    seen: list[str] = []
    loop = AgentLoop.for_model(ScriptedInference("bad", "good"), output_check=[good, seen.append])
    assert loop.run_sync("go") == "good"
    assert seen == ["good"]


@frozen
class Sum:
    """A sum."""

    total: int = field()
    terms: list[int] = field(factory=list)

    @total.validator
    def _is_small(self, _: object, value: int) -> None:
        if value > 100:
            raise ValueError("at most 100")


def test_a_check_gets_an_answer_of_the_output_type_and_the_validators_of_the_type_ask_again() -> None:
    """A validator's error is shown to the model as an invalid answer is; the check sees only valid ones."""
    seen: list[Sum] = []

    def adds_up(answer: Sum) -> None:
        seen.append(answer)
        if answer.total != sum(answer.terms):
            raise AskAgain("it does not add up")

    model = ScriptedInference(
        '{"total": 420, "terms": []}', '{"total": 42, "terms": [1]}', '{"total": 42, "terms": [42]}'
    )
    loop = AgentLoop.for_model(model, output_type=Sum, output_check=adds_up)
    assert loop.run_sync("go") == Sum(42, [42])
    assert seen == [Sum(42, [1]), Sum(42, [42])]
    assert "at most 100" in model.requests[1].messages[-1].text


def test_a_validator_of_pydantic_asks_again() -> None:
    """Its message reaches the model."""
    pydantic = pytest.importorskip("pydantic", reason="the extra pydantic is not installed")

    class Price(pydantic.BaseModel):  # type: ignore[misc, name-defined]  # an optional package
        euros: int

        @pydantic.field_validator("euros")  # type: ignore[untyped-decorator]  # an optional package
        @classmethod
        def _positive(cls, value: int) -> int:
            if value < 0:
                raise ValueError("a price is not negative")
            return value

    model = ScriptedInference('{"euros": -1}', '{"euros": 2}')
    assert AgentLoop.for_model(model, output_type=Price).run_sync("go").euros == 2
    assert "a price is not negative" in model.requests[1].messages[-1].text


def test_the_model_may_use_tools_before_it_answers_again_and_knows_the_reason() -> None:
    """The reason stays in the conversation for the steps that follow."""
    shop = Shop()
    model = ScriptedInference("bad", ToolCall("1", "look", '{"item": "tea"}'), "good")
    state = AgentLoop.for_model(model, tools=shop.tools(), output_check=good).execute_sync("go")
    assert (state.final_text, shop.ran) == ("good", ["look tea"])
    assert ASKED in [message.text for message in model.requests[2].messages]


def test_a_limit_of_steps_ends_the_retries_with_the_answer_kept() -> None:
    """Limits cannot be overridden by a check."""
    state = AgentLoop.for_model(ScriptedInference("bad", "good"), output_check=good, max_steps=1).execute_sync("go")
    assert (state.status, state.final_text) == (ExecutionStatus.STOPPED, "bad")
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.STEP_LIMIT


@pytest.mark.parametrize("wrong", [False, True, "text", ["a problem"]])
def test_a_check_that_returns_something_fails_the_execution(wrong: object) -> None:
    """A truth value or a list of problems would be taken for a pass otherwise."""
    state = AgentLoop.for_model(ScriptedInference("a"), output_check=lambda _: wrong).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert "it returns None, or raises AskAgain" in state.errors[-1].message


def test_a_check_that_fails_fails_the_execution() -> None:
    """Its answer is not final, and stays in the state."""

    def broken(_: str) -> None:
        raise ZeroDivisionError("a defect")

    state = AgentLoop.for_model(ScriptedInference("an answer"), output_check=broken).execute_sync("go")
    assert (state.status, state.messages[-1].text) == (ExecutionStatus.FAILED, "an answer")
    assert "a defect" in state.errors[-1].message


@pytest.mark.parametrize("wrong", ["text", 7, lambda: None, lambda a, b, c: None, lambda *, a: None])
def test_what_cannot_be_a_check_is_refused_where_the_loop_is_made(wrong: Any) -> None:
    """The error says what a check is."""
    with pytest.raises(InvalidParameter, match="output_check"):
        AgentLoop.for_model(ScriptedInference("a"), output_check=wrong)


class _OwnDriver(CanUseTools):
    """A driver that knows nothing of checks, nor of any other part."""

    async def use_tools(self, state: AgentState) -> AgentState:
        text = "good" if len(state.messages) > 1 else "bad"
        now = state.updated_at
        step = AgentStep(
            id=f"s{state.step_count}",
            number=state.step_count + 1,
            message=Message.assistant(text),
            started_at=now,
            ended_at=now,
        )
        return state.with_step(step)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_driver_that_accepts_no_check_is_sent_back_as_well(*, wrapped: bool) -> None:
    """The check acts between steps, so that every driver has it."""
    driver: CanUseTools = ForwardingDriver(_OwnDriver()) if wrapped else _OwnDriver()
    state = AgentLoop(driver, output_check=good).execute_sync("go")
    assert (state.final_text, state.step_count) == ("good", 2)


def test_a_loop_without_a_check_has_no_layer_for_it() -> None:
    """Neither None nor an empty list adds one."""
    plain = AgentLoop.for_model(ScriptedInference("a"))
    checks: list[Any] = [None, []]
    for check in checks:
        loop = AgentLoop.for_model(ScriptedInference("a"), output_check=check)
        assert [layer.name for layer in loop.stack.layers] == [layer.name for layer in plain.stack.layers]


def test_a_copy_of_a_loop_keeps_replaces_and_drops_its_check() -> None:
    """`replace` takes it as every other part."""
    loop = AgentLoop.for_model(ScriptedInference("bad", "good"), output_check=good)
    assert loop.replace(max_steps=9).run_sync("go") == "good"
    assert loop.replace(output_check=None).run_sync("go") == "bad"


# --- judges and journals --------------------------------------------------------------------------------------------


def test_a_judge_sends_the_model_back_until_the_goal_is_reached() -> None:
    """Its tokens count, and its reason is what the model reads."""
    judge = ScriptedInference(FAILS, PASSES, usage=COST)
    model = ScriptedInference("half", "whole", usage=Usage(1, 1, 0, 0, 0))
    state = AgentLoop.for_model(model, output_check=ModelJudge(judge, "It is whole.", name="goal")).execute_sync("go")
    assert state.final_text == "whole"
    assert "Your answer was not accepted: goal: rude" in model.requests[1].messages[-1].text
    assert (state.usage.input_tokens, state.usage.requests) == (2 + 14, 4)


@pytest.mark.parametrize("verdict", ["It passes.", "", RateLimited("too fast")])
def test_a_judge_without_a_verdict_fails_the_execution(verdict: Any) -> None:
    """No answer passes because nobody has judged it."""
    judge = ModelJudge(ScriptedInference(verdict), "Be polite.")
    state = AgentLoop.for_model(ScriptedInference("a"), output_check=judge).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED


async def test_a_recovered_execution_asks_no_judge_for_a_verdict_that_is_recorded() -> None:
    """After a crash behind any record it ends as without one, with the same tokens, and sends the model back equally often."""

    judged: list[str] = []

    def verdict(request: InferenceRequest) -> str:
        judged.append(request.messages[0].text)
        return PASSES if "whole" in judged[-1] else FAILS

    def make(journal: CanJournal) -> AgentLoop:
        goal = ModelJudge(FunctionInference(verdict, usage=COST), "It is whole.")
        return AgentLoop.for_model(ScriptedInference("half", "whole", "unused"), output_check=goal, journal=journal)

    journal = MemoryJournal()
    whole = await make(journal).execute("go", execution_id="e")
    assert whole.final_text == "whole"
    records = await journal.read("e")
    verdicts = [number for number, record in enumerate(records, 1) if "passes" in str(record)]
    assert verdicts == [3, 6]
    for count in range(1, len(records)):
        judged.clear()
        state = await make(await truncate(journal, "e", count)).recover("e")
        assert (state.final_text, state.usage) == ("whole", whole.usage), count
        assert [message.text for message in state.messages] == [message.text for message in whole.messages], count
        assert len(judged) == sum(count < number for number in verdicts), count


# --- guardrails with the outcome `again` ------------------------------------------------------------------------------


@EVERY_DRIVER
@pytest.mark.parametrize("streaming", [False, True])
def test_a_guardrail_holds_the_answer_back_and_asks_for_another_one(make: Make, *, streaming: bool) -> None:
    """The text is neither in the state nor in an event, and no call beside it runs."""
    guard = Guardrails(output=[no_bad_words], on_output="again")
    state, events = run(make("bad", "good", interceptors=[guard], streaming=streaming, strict_writes=True))
    assert (state.status, state.final_text) == (ExecutionStatus.COMPLETED, "good")
    assert "Your answer was not accepted: a bad word" in state.messages[2].text
    assert b'"bad"' not in to_json(state)
    assert tripped(events) == [("output", ("a bad word",), "again")]


@EVERY_DRIVER
def test_a_guardrail_stops_when_its_retries_are_used_up(make: Make) -> None:
    """As with the outcome `stop`, no answer is left."""
    guard = Guardrails(output=[no_bad_words], on_output="again", max_retries=1)
    state, events = run(make("bad", "bad", "good", interceptors=[guard]))
    assert (state.status, state.final_text) == (ExecutionStatus.STOPPED, None)
    assert [outcome for _, _, outcome in tripped(events)] == ["again", "stop"]


def test_calls_beside_a_text_that_is_held_back_do_not_run() -> None:
    """The model makes them again with its next answer."""
    shop, guard = Shop(), Guardrails(output=[no_bad_words], on_output="again")
    model = ScriptedInference(["bad", ToolCall("1", "pay", '{"item": "tea"}')], "good")
    state = AgentLoop.for_model(model, tools=shop.tools(), interceptors=[guard]).execute_sync("go")
    assert (state.final_text, shop.ran, state.tool_call_count) == ("good", [], 0)


def test_the_message_of_the_program_is_no_input_of_the_user() -> None:
    """Guardrails of inputs check what users say."""
    seen: list[str] = []

    def note(inspection: Inspection) -> list[str]:
        seen.append(inspection.text)
        return []

    loop = AgentLoop.for_model(
        ScriptedInference("bad", "good"), output_check=good, interceptors=[Guardrails(input=[note])]
    )
    assert loop.run_sync("go") == "good"
    assert seen == ["go"]
