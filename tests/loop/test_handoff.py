"""Handoffs of a conversation from one loop to another within one execution."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, Self

import pytest
from attrs import evolve, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    CanInfer,
    Message,
    Permissions,
    RequireApproval,
    ScriptedDriver,
    ScriptedInference,
    Tool,
    ToolCall,
    ToolCallingDriver,
    ToolContext,
    from_json,
    handoff_to,
    to_json,
    tool,
)
from agentloop.contracts import CanAcceptExecutionScope, ExecutionScope
from agentloop.drivers import InferringDriver, ScenarioStep, StepDraft
from agentloop.errors import ContractViolation
from agentloop.events import AgentExecutionCompleted, AgentExecutionStarted, ConversationHandedOver
from agentloop.interception import AfterStep, BeforeInference, BeforeStep, at
from agentloop.loop import handed_over_by
from agentloop.loop.handoff import HandoffTool
from agentloop.testing import CountingIds, ManualClock
from agentloop.toolkits import Ensemble
from agentloop.toolkits.overrides import ToolOverride
from agentloop.values import (
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    ResponsePart,
    StopReason,
    ToolStatus,
    Usage,
    answer,
    approve,
)

OVER = ToolCall("1", "to_billing", '{"reason": "money"}')


@tool
def refund(number: int) -> str:
    """Pay back."""
    return f"order {number} is paid back"


def scripted(*steps: ScenarioStep, tools: list[Tool] | None = None, **parts: Any) -> AgentLoop:
    """Return a loop whose driver follows a script, by the steps of the whole execution."""
    return AgentLoop(ScriptedDriver(*steps), tools or [], ids=CountingIds(), clock=ManualClock(), **parts)


def desk(billing: AgentLoop, *lines: Any, **parts: Any) -> AgentLoop:
    """Return a loop that hands over to billing."""
    model = ScriptedInference(*(lines or (OVER,)))
    tools = [handoff_to(billing, name="to_billing", description="Money.")]
    return AgentLoop.for_model(model, tools=tools, system_prompt="You are the desk.", **parts)


def billing_with(model: ScriptedInference, **parts: Any) -> AgentLoop:
    """Return the loop that takes over."""
    return AgentLoop.for_model(model, tools=[refund], system_prompt="You are billing.", **parts)


async def test_another_loop_continues_the_conversation() -> None:
    """Driver, tools and system prompt are the other loop's, within one execution; the call has its outcome."""
    model = ScriptedInference(ToolCall("2", "refund", '{"number": 7}'), "Order 7 is paid back.")
    loop = desk(billing_with(model))
    seen: list[Event] = []
    loop.wiretap(seen.append)

    state = await loop.execute("My money!")

    assert state.status is ExecutionStatus.COMPLETED
    assert state.final_text == "Order 7 is paid back."
    assert state.step_count == 3
    handoff = state.steps[0].executions[0]
    assert (handoff.status, handoff.value) == (ToolStatus.SUCCEEDED, "the conversation is handed over")
    request = model.requests[0]
    assert request.system_prompt == "You are billing."
    assert [spec.name for spec in request.tools] == ["refund"]
    assert request.messages[0].text == "My money!"
    assert request.messages[1].exchanges[0].call.arguments == {"reason": "money"}
    assert handed_over_by(state) == "to_billing"
    events = [event for event in seen if isinstance(event, ConversationHandedOver)]
    assert [event.execution for event in events] == [handoff]
    assert [type(event) for event in seen].count(AgentExecutionStarted) == 1
    assert isinstance(seen[-1], AgentExecutionCompleted)


async def test_the_conversation_stays_with_the_other_loop() -> None:
    """The next execution, also from a stored state, is answered by the other loop."""
    model = ScriptedInference("How much?")
    loop = desk(billing_with(model), OVER, "never")
    state = await loop.execute("My money!")
    stored = from_json(to_json(state), AgentState)
    again = await loop.execute(stored.with_message("10"))
    assert again.final_text == "How much?"
    assert len(model.requests) == 2
    assert again.step_count == 1


async def test_the_conversation_stays_where_a_renamed_handoff_led() -> None:
    """The name that counts is the one by which the model calls it."""
    billing = billing_with(ScriptedInference("billing answers"))
    over = handoff_to(billing, name="to_billing", description="Money.")
    group = Ensemble("desk", [over], overrides={"to_billing": ToolOverride(name="billing")})
    model = ScriptedInference(ToolCall("1", "billing", "{}"))
    loop = AgentLoop.for_model(model, tools=[group])
    state = await loop.execute("go")
    assert (state.step_count, state.final_text, handed_over_by(state)) == (2, "billing answers", "billing")
    state = await loop.execute(state.with_message("more"))
    assert (state.step_count, state.final_text) == (1, "billing answers")


async def test_a_conversation_can_be_handed_back() -> None:
    """Functions return the loops that hand over to each other; handing back shortens the path."""
    loops: dict[str, AgentLoop] = {}
    back = handoff_to(lambda: loops["desk"], name="to_desk", description="All else.")
    billing = AgentLoop.for_model(ScriptedInference(ToolCall("2", "to_desk", "{}")), tools=[back])
    model = ScriptedInference(lambda request: answered(request.system_prompt))

    def answered(prompt: str) -> str:
        return f"here is who was told: {prompt}"

    loops["desk"] = AgentLoop(
        AgentLoop.for_model(model).driver,
        [handoff_to(billing, name="to_billing", description="Money.")],
        system_prompt="You are the desk.",
        interceptors=[
            answer_first_inference_with(OVER),
        ],
    )
    state = await loops["desk"].execute("go")
    assert state.final_text == "here is who was told: You are the desk."
    assert handed_over_by(state) == ""
    assert state.context.system_prompt == "You are the desk."


def answer_first_inference_with(call: ToolCall) -> Any:
    """Return an interceptor that answers the first inference of an execution with a call."""

    def answer(point: BeforeInference) -> BeforeInference:
        if point.state.step_count:
            return point
        return point.answer(InferenceResponse((call,), FinishReason.TOOL_CALLS, Usage(1, 1), model="", id=""))

    return at("before_inference", answer)


@pytest.mark.parametrize(("options", "limit"), [({"max_handoffs": 3}, 3), ({}, 10)])
async def test_the_number_of_handoffs_is_limited(options: dict[str, Any], limit: int) -> None:
    """A handoff beyond `max_handoffs`, which is 10 by default, is refused, and the current loop receives the reason."""
    loops: dict[str, AgentLoop] = {}

    def ping(name: str) -> AgentLoop:
        over = handoff_to(lambda: loops[name], name=f"to_{name}", description="Over.", **options)
        return scripted(
            *[ScenarioStep.tool_call(f"to_{name}")] * (limit + 1),
            ScenarioStep.final("enough"),
            tools=[over],
        )

    loops["a"], loops["b"] = ping("b"), ping("a")
    state = await loops["a"].execute("go")
    executions = [execution for step in state.steps for execution in step.executions]
    assert [execution.status for execution in executions].count(ToolStatus.SUCCEEDED) == limit
    refusal = executions[limit].error
    assert refusal is not None
    assert refusal.type == "AgentsTooDeep"
    again = await loops["a"].execute(state.with_message("more"))
    assert [execution.status for execution in again.steps[0].executions] == [
        ToolStatus.SUCCEEDED
    ]  # counted per execution


async def test_limits_keep_counting() -> None:
    """The limits of the executed loop apply to the others, and steps and tokens are counted together."""
    model = ScriptedInference(*[ToolCall("2", "refund", '{"number": 7}')] * 9)
    state = await desk(billing_with(model), max_steps=3).execute("go")
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.STEP_LIMIT
    assert state.step_count == 3
    assert state.usage.input_tokens == 30
    state = await desk(billing_with(model, max_steps=2)).execute("go")
    assert state.step_count == 2


async def test_the_interceptors_of_the_first_loop_stay() -> None:
    """The executed loop's denials apply to the other loop, whose interceptors join those of the first by their priorities."""
    passed: list[str] = []

    def note(name: str, priority: int = 0) -> Any:
        def noted(point: BeforeStep) -> BeforeStep:
            passed.append(name)
            return point

        return at("before_step", noted, priority=priority)

    shared = note("shared")
    model = ScriptedInference(ToolCall("2", "refund", '{"number": 7}'), "no")
    billing = billing_with(model, interceptors=[note("billing"), shared, note("first", 1), note("last", -1)])
    loop = desk(billing, interceptors=[note("desk"), shared, Permissions(deny=["refund"])])
    state = await loop.execute("go")
    assert state.steps[1].executions[0].status is ToolStatus.BLOCKED
    assert passed == ["desk", "shared", *["first", "desk", "shared", "billing", "last"] * 2]


@pytest.mark.parametrize(("first", "second"), [("to_sales", "to_billing"), ("to_billing", "to_sales")])
async def test_the_first_of_several_handoffs_wins(first: str, second: str) -> None:
    """A second handoff in the same step fails; the other calls of the step run."""
    billing = scripted(ScenarioStep.final("no"), ScenarioStep.final("billing answers"))
    sales = scripted(ScenarioStep.final("no"), ScenarioStep.final("sales answers"))
    tools = [
        refund,
        handoff_to(billing, name="to_billing", description="Money."),
        handoff_to(sales, name="to_sales", description="Sales."),
    ]
    batch = ScenarioStep.tool_calls((first, {}), ("refund", {"number": 1}), (second, {}))
    state = await scripted(batch, tools=tools).execute("go")
    assert handed_over_by(state) == first
    executions = state.steps[0].executions
    assert [execution.status for execution in executions] == [
        ToolStatus.SUCCEEDED,
        ToolStatus.SUCCEEDED,
        ToolStatus.FAILED,
    ]
    assert f"{first!r} already" in executions[2].error_message


async def test_the_first_of_several_handoffs_wins_also_after_a_suspension() -> None:
    """A handoff that waited for another call fails when the step already has one, in another process, too."""

    def loop() -> AgentLoop:
        billing = scripted(ScenarioStep.final("no"), ScenarioStep.final("billing answers"))
        sales = scripted(ScenarioStep.final("no"), ScenarioStep.final("sales answers"))
        tools = [
            refund,
            handoff_to(billing, name="to_billing", description="Money."),
            handoff_to(sales, name="to_sales", description="Sales."),
        ]
        batch = ScenarioStep.tool_calls(("to_billing", {}), ("refund", {"number": 1}), ("to_sales", {}))
        return scripted(batch, tools=tools, interceptors=[RequireApproval(["refund"])])

    suspended = await loop().execute("go")
    stored = from_json(to_json(suspended), AgentState)
    state = await loop().resume(stored, {call.key: approve() for call in stored.pending if not call.waits_for})
    assert (handed_over_by(state), state.final_text) == ("to_billing", "billing answers")
    statuses = [execution.status for execution in state.steps[0].executions]
    assert statuses == [ToolStatus.SUCCEEDED, ToolStatus.SUCCEEDED, ToolStatus.FAILED]


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize(
    ("batch", "others"),
    [
        (("billing", "sales"), [ToolStatus.FAILED]),
        (("sales", "billing"), [ToolStatus.FAILED]),
        (("billing", "sales", "billing"), [ToolStatus.FAILED, ToolStatus.SUCCEEDED]),
        (("billing", "billing"), [ToolStatus.SUCCEEDED]),
    ],
)
async def test_renamed_handoffs_are_told_apart_by_the_names_that_the_model_calls(
    batch: Sequence[str], others: Sequence[ToolStatus], *, suspends: bool
) -> None:
    """Handoffs of two ensembles have the same name of their own; the first call wins, also when the step waits behind it."""

    def loop() -> AgentLoop:
        groups: list[Any] = []
        for name in ("billing", "sales"):
            other = scripted(ScenarioStep.final("no"), ScenarioStep.final(f"{name} answers"))
            over = handoff_to(other, name="hand_over", description="Hand over.")
            groups.append(Ensemble(name, [over], overrides={"hand_over": ToolOverride(name=name)}))
        calls: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in batch]
        step = ScenarioStep.tool_calls(calls[0], ("refund", {"number": 1}), *calls[1:])
        parts: dict[str, Any] = {"interceptors": [RequireApproval(["refund"])]} if suspends else {}
        return scripted(step, tools=[refund, *groups], **parts)

    state = await loop().execute("go")
    assert (state.status is ExecutionStatus.SUSPENDED) is suspends
    if suspends:
        stored = from_json(to_json(state), AgentState)
        state = await loop().resume(stored, {call.key: approve() for call in stored.pending if not call.waits_for})
    assert (handed_over_by(state), state.final_text) == (batch[0], f"{batch[0]} answers")
    first, _, *rest = state.steps[0].executions
    assert [first.status, *[each.status for each in rest]] == [ToolStatus.SUCCEEDED, *others]
    refused = [each.error_message for each in rest if each.status is ToolStatus.FAILED]
    assert all(f"handed over by {batch[0]!r} already" in message for message in refused)


async def test_a_handoff_takes_a_reason_and_nothing_else() -> None:
    """A call with another argument is rejected, and the conversation stays where it is."""
    loop = desk(billing_with(ScriptedInference("no")), ToolCall("1", "to_billing", '{"amount": 3}'), "I stay.")
    state = await loop.execute("go")
    assert (state.final_text, handed_over_by(state)) == ("I stay.", "")
    assert state.steps[0].executions[0].status is ToolStatus.REJECTED
    assert "amount" in state.steps[0].executions[0].error_message


@pytest.mark.parametrize("fixed", ["parameters", "effect", "policy"])
def test_what_makes_a_tool_a_handoff_cannot_be_changed(fixed: str) -> None:
    """Its arguments, its effect and its order among the calls of a step are those of every handoff."""
    over = handoff_to(scripted(), name="to_billing", description="Money.")
    assert isinstance(over, HandoffTool)
    changes: dict[str, Any] = {fixed: getattr(over, fixed)}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{fixed}'"):
        evolve(over, **changes)


async def test_the_output_type_is_that_of_the_loop_that_answers() -> None:
    """A final answer is parsed by the loop that gave it."""

    @frozen
    class Sum:
        total: int

    model = ScriptedInference('{"total": 42}')
    state = await desk(billing_with(model, output_type=Sum)).execute("go")
    assert state.output == Sum(42)
    assert model.requests[0].response_format is not None
    text = await desk(billing_with(ScriptedInference("in words")), output_type=Sum).execute("go")
    assert text.output == "in words"


async def test_a_suspension_after_a_handoff_is_resumed_by_the_executed_loop() -> None:
    """The path of the conversation is in the stored state."""

    def loop() -> AgentLoop:
        script = (
            ScenarioStep.tool_call("to_billing"),
            ScenarioStep.tool_call("refund", {"number": 7}),
            ScenarioStep.final("done"),
        )
        billing = scripted(*script, tools=[refund], interceptors=[RequireApproval()], system_prompt="You are billing.")
        return scripted(*script, tools=[handoff_to(billing, name="to_billing", description="Money.")])

    suspended = await loop().execute("go")
    assert suspended.status is ExecutionStatus.SUSPENDED
    stored = from_json(to_json(suspended), AgentState)
    state = await loop().resume(stored, {call.key: approve(call.digest) for call in stored.pending})
    assert state.final_text == "done"
    assert state.steps[1].executions[0].value == "order 7 is paid back"


@frozen(kw_only=True)
class Checked(InferringDriver):
    """Asks a second model before each step."""

    checker: CanInfer

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        bound = super().with_execution_scope(scope)
        assert isinstance(self.checker, CanAcceptExecutionScope)
        return evolve(bound, checker=self.checker.with_execution_scope(scope.for_another_model()))

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        verdict = await self.infer(draft, InferenceRequest(messages, "May it go on?"), inference=self.checker)
        seen: Any = draft.state.extension("seen") or ()
        draft.state = draft.state.with_extension("seen", (*seen, verdict.text))
        return (await self.infer(draft, self.request(draft, messages))).parts


@pytest.mark.parametrize("desk_is_checked", [False, True])
async def test_models_continue_with_their_own_scripts_after_a_handoff_and_a_suspension(
    *, desk_is_checked: bool
) -> None:
    """Of each loop, neither the first model nor a second one counts what the models of the other loop were sent."""

    def refunds(number: int) -> ToolCall:
        return ToolCall(str(number), "refund", f'{{"number": {number}}}')

    def loop() -> AgentLoop:
        """Return the loop as in another process."""
        model = ScriptedInference(*map(refunds, (3, 4)), "paid back", refunds(5), "again")
        checker = ScriptedInference(*[f"billing {number}" for number in range(1, 6)])
        billing = AgentLoop(Checked(model, checker=checker), [refund])
        own = ScriptedInference(*map(refunds, (1, 2)), OVER)
        own_checker = ScriptedInference(*[f"desk {number}" for number in range(1, 4)])
        driver = Checked(own, checker=own_checker) if desk_is_checked else ToolCallingDriver(own)
        over = handoff_to(billing, name="to_billing", description="Money.")
        return AgentLoop(driver, [refund, over], interceptors=[RequireApproval(["refund"])])

    async def settle(state: AgentState) -> AgentState:
        while state.pending:
            stored = from_json(to_json(state), AgentState)
            state = await loop().resume(stored, {call.key: approve(call.digest) for call in stored.pending})
        return state

    state = await settle(await loop().execute("go"))
    numbers = [each.call.arguments.get("number") for step in state.steps for each in step.executions]
    assert (state.final_text, numbers) == ("paid back", [1, 2, None, 3, 4])
    desk_seen = ("desk 1", "desk 2", "desk 3") if desk_is_checked else ()
    assert state.extension("seen") == (*desk_seen, "billing 1", "billing 2", "billing 3")
    assert (state.inference_count, state.other_inference_count) == (9 + 3 * desk_is_checked, 3 + 3 * desk_is_checked)

    # The next execution starts at the beginning of the scripts of billing: it has no handoff of its own.
    state = await settle(await loop().execute(state.with_message("more")))
    numbers = [each.call.arguments["number"] for step in state.steps for each in step.executions]
    assert (state.final_text, numbers) == ("paid back", [3, 4])
    assert state.extension("seen") == (*desk_seen, *[f"billing {number}" for number in (1, 2, 3, 1, 2, 3)])


async def test_a_state_between_steps_continues_with_the_other_loop() -> None:
    """Each yielded state says which loop has the conversation."""
    model = ScriptedInference("billing answers")
    loop = desk(billing_with(model))
    states = loop.iterate("go")
    first = await anext(states)
    await states.aclose()
    assert handed_over_by(first) == "to_billing"
    state = await loop.execute(from_json(to_json(first), AgentState))
    assert state.final_text == "billing answers"


async def test_a_handoff_can_need_approval() -> None:
    """A pending handoff takes place when it is approved."""
    model = ScriptedInference("billing answers")
    loop = desk(billing_with(model), interceptors=[RequireApproval(["to_*"])])
    state = await loop.execute("go")
    assert handed_over_by(state) == ""
    state = await loop.resume(state, {call.key: approve() for call in state.pending})
    assert (handed_over_by(state), state.final_text) == ("to_billing", "billing answers")


async def test_a_handoff_that_is_answered_does_not_take_place() -> None:
    """The answer settles the call without the tool, and the model that made the call goes on."""
    ask = RequireApproval(["to_*"])
    loop = desk(billing_with(ScriptedInference("no")), ToolCall("1", "to_billing"), "I stay.", interceptors=[ask])
    suspended = await loop.execute("go")
    decisions = {call.key: answer("Billing is closed.") for call in suspended.pending}
    state = await loop.resume(suspended, decisions)
    assert (handed_over_by(state), state.final_text) == ("", "I stay.")
    assert state.steps[0].executions[0].value == "Billing is closed."


@at("after_step")
def fail_first_step(point: AfterStep) -> AfterStep:
    """Raise an error."""
    if point.state.step_count == 1:
        raise ValueError("a defect")
    return point


@pytest.mark.parametrize("recovers", [False, True])
async def test_a_failed_step_hands_nothing_over(*, recovers: bool) -> None:
    """The conversation stays, whether the execution ends or an interceptor lets it continue."""
    model = ScriptedInference("never")
    interceptors = [fail_first_step, *([at("on_error", lambda point: point.recover())] if recovers else [])]
    loop = desk(billing_with(model), OVER, "I stay.", interceptors=interceptors, max_steps=2)
    seen: list[Event] = []
    loop.wiretap(seen.append)
    state = await loop.execute("My money!")
    assert state.steps[0].executions[0].value == "the conversation is handed over"
    assert handed_over_by(state) == ""
    assert (model.requests, [event for event in seen if isinstance(event, ConversationHandedOver)]) == ([], [])
    assert [step.message.text for step in state.steps[1:] if step.message is not None] == ["I stay."] * recovers


async def test_a_handoff_needs_the_execution_of_its_call() -> None:
    """Without the state, the call or the context, it says who has to pass them."""
    over = handoff_to(billing_with(ScriptedInference("no")), name="over", description="Hands over.")
    assert isinstance(over, HandoffTool)
    state, context = AgentState.start("go"), ToolContext(execution_id="e", agent_id="a", idempotency_key="e/1/0")
    given: list[Callable[[Any], Any]] = [
        lambda each: each.with_agent_state(state),
        lambda each: each.with_tool_call(OVER),
        lambda each: each.with_tool_context(context),
    ]
    for count in range(len(given)):
        for some in combinations(given, count):
            bound: Any = over
            for bind in some:
                bound = bind(bound)
            with pytest.raises(ContractViolation, match="the handoff 'over' needs the state of its call"):
                await bound.use()
    assert await over.with_agent_state(state).with_tool_call(OVER).with_tool_context(context).use()


async def test_a_handoff_without_a_target_fails_the_execution() -> None:
    """The error names the handoff, and the conversation is complete."""
    over = handoff_to(lambda: None, name="to_nobody", description="Nobody.")  # type: ignore[arg-type, return-value]
    state = await scripted(ScenarioStep.tool_call("to_nobody"), tools=[over]).execute("go")
    assert state.status is ExecutionStatus.FAILED
    assert "to_nobody" in state.errors[-1].message
    assert state.steps[0].executions[0].status is ToolStatus.SUCCEEDED


@pytest.mark.parametrize("hook", [None, lambda: None])
async def test_groups_can_contain_handoffs_and_groups_of_the_other_loop_are_held(hook: Any) -> None:
    """The groups of the other loop are started for the rest of the execution and stopped at its end."""
    events: list[str] = []
    shop = Ensemble("shop", [refund], start=lambda: events.append("start"), stop=lambda: events.append("stop"))
    model = ScriptedInference(ToolCall("2", "refund", '{"number": 7}'), "done")
    billing = AgentLoop.for_model(model, tools=[shop])
    over = handoff_to(billing, name="to_billing", description="Money.")
    loop = AgentLoop.for_model(ScriptedInference(OVER), tools=[Ensemble("desk", [over], start=hook)])
    state = await loop.execute("go")
    assert state.steps[1].executions[0].value == "order 7 is paid back"
    assert events == ["start", "stop"]


async def test_an_agent_can_hand_over_its_own_conversation() -> None:
    """A handoff inside an agent does not affect its caller, which receives the other loop's answer."""
    child = desk(billing_with(ScriptedInference("billing answers")))
    batch = ScenarioStep.tool_call("ask", {"task": "?"})
    state = await scripted(batch, ScenarioStep.final("over"), tools=[child.as_tool("ask", "Knows.")]).execute("go")
    assert state.steps[0].executions[0].value == "billing answers"
    assert handed_over_by(state) == ""


def test_a_handoff_that_serves_a_call_is_the_same_handoff() -> None:
    """A copy for a call is equal to the tool and shown like it, whatever state, call and dependencies it has."""
    over = handoff_to(billing_with(ScriptedInference("no")), name="to_billing", description="Money.")
    assert isinstance(over, HandoffTool)
    context: ToolContext[Any] = ToolContext(
        execution_id="run", agent_id="agent", idempotency_key="run/1/0", dependencies=[]
    )
    copies = over.with_agent_state(AgentState.start("go")), over.with_tool_call(OVER), over.with_tool_context(context)
    assert {over, *copies} == {over}
    assert {repr(each) for each in copies} == {repr(over)}
    assert over != handoff_to(over.loop, name="to_sales", description="Money.")


@pytest.mark.parametrize("message", [Message.user("go"), "go"])
async def test_a_loop_without_the_path_of_handoffs_answers_itself(message: Message | str) -> None:
    """A state that was handed over elsewhere can be executed by any loop."""
    state = await desk(billing_with(ScriptedInference("billing answers"))).execute(message)
    other = AgentLoop.for_model(ScriptedInference("someone else"))
    assert (await other.execute(state.with_message("and now?"))).final_text == "someone else"


def with_program(code: str, *others: Tool, **parts: Any) -> AgentLoop:
    """Return a loop whose model writes a program that may hand over to billing or to sales."""
    model = ScriptedInference(ToolCall("1", "run_program", json.dumps({"code": code})), "the desk answers")
    handoffs = [
        handoff_to(AgentLoop.for_model(ScriptedInference(f"{name} answers")), name=f"to_{name}", description="Else.")
        for name in ("billing", "sales")
    ]
    return AgentLoop(ToolCallingDriver(model, mode="program"), [*handoffs, *others], **parts)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("await to_billing()", "succeeded"),
        ("await to_billing()\nawait to_sales()", "failed"),
        ("await to_billing()\n1 / 0", "failed"),
    ],
    ids=["alone", "another handoff", "an error"],
)
async def test_a_handoff_that_a_program_makes_takes_place(code: str, outcome: str) -> None:
    """A call of a program is one like any other, whatever becomes of the program; the first one wins."""
    loop, seen = with_program(code), list[ConversationHandedOver]()
    loop.on(ConversationHandedOver, seen.append)
    state = await loop.execute("go")
    (program,) = state.steps[0].executions
    assert (program.status.value, state.final_text, handed_over_by(state)) == (outcome, "billing answers", "to_billing")
    assert [event.execution for event in seen] == [program.inner[0]]
    assert [execution.succeeded for execution in program.inner] == [True, False][: len(program.inner)]
    assert (await loop.execute(state.with_message("more"))).final_text == "billing answers"


async def test_the_first_handoff_of_a_suspended_program_wins() -> None:
    """The one that it makes after it was resumed comes too late."""
    code = "await to_billing()\nawait refund(number=7)\nawait to_sales()"
    loop = with_program(code, refund, interceptors=[RequireApproval("refund")])
    state = await loop.execute("go")
    assert (state.status, handed_over_by(state)) == (ExecutionStatus.SUSPENDED, "")
    decisions = {call.key: approve(call.digest) for call in state.pending if not call.waits_for}
    state = await loop.resume(from_json(to_json(state), AgentState), decisions)
    (program,) = state.steps[0].executions
    assert [execution.succeeded for execution in program.inner] == [True, True, False]
    assert (state.final_text, handed_over_by(state)) == ("billing answers", "to_billing")
