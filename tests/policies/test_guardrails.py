"""Guardrails: checks of inputs and outputs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from attrs import frozen

from agentloop import (
    AgentLoop,
    AgentState,
    Interceptor,
    Message,
    ReActDriver,
    ScriptedInference,
    TokenLimit,
    ToolCall,
    ToolCallingDriver,
    tool,
)
from agentloop.contracts import CanInfer
from agentloop.durable import MemoryJournal, build_fixture, pytest_source, replay
from agentloop.errors import ConfigurationError, RateLimited
from agentloop.events import (
    GuardrailTripped,
    InferenceDeltaReceived,
    InferenceResponseReceived,
    ToolCallStarted,
)
from agentloop.interception import AfterInference
from agentloop.policies import Guardrails, Inspection, ModelJudge, PersonalData, ReplaceAnswer
from agentloop.policies.guardrails import Check
from agentloop.testing import play, run_in_virtual_time
from agentloop.values import (
    Event,
    ExecutionStatus,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    RecordKind,
    StopReason,
    Text,
    Usage,
    approve,
)
from tests.durable.recovery_bench import truncate

PASSES, FAILS = '{"reason": "fine", "passes": true}', '{"reason": "rude", "passes": false}'
COST = Usage(7, 3, 0, 0, 0)


def no_bad_words(inspection: Inspection) -> list[str]:
    return ["a bad word"] if "bad" in inspection.text else []


class Shop:
    """Tools, and which of them ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def tools(self) -> list[Any]:
        @tool(effect="pure")
        async def look(item: str) -> str:
            """Look."""
            self.ran.append(f"look {item}")
            return f"{item}: 3"

        @tool
        async def pay(item: str) -> str:
            """Pay."""
            self.ran.append(f"pay {item}")
            return "paid"

        return [look, pay]


Line = str | tuple[str, str]
"""An answer, or a call of a tool with its item."""
Make = Callable[..., AgentLoop]


def native(*lines: Line, **options: Any) -> AgentLoop:
    script = [
        line if isinstance(line, str) else ToolCall("1", line[0], json.dumps({"item": line[1]})) for line in lines
    ]
    streaming = options.pop("streaming", False)
    return AgentLoop(ToolCallingDriver(ScriptedInference(*script), streaming=streaming), **options)


def parsed(*lines: Line, **options: Any) -> AgentLoop:
    script = [
        line if isinstance(line, str) else json.dumps({"name": line[0], "arguments": {"item": line[1]}})
        for line in lines
    ]
    streaming = options.pop("streaming", False)
    return AgentLoop(ToolCallingDriver(ScriptedInference(*script), mode="parsed", streaming=streaming), **options)


def structured(*lines: Line, **options: Any) -> AgentLoop:
    script = [
        {"answer": line} if isinstance(line, str) else {"tool": line[0], "arguments": {"item": line[1]}}
        for line in lines
    ]
    options.setdefault("tools", Shop().tools())  # without tools, there is no structure
    model = ScriptedInference(*[json.dumps({"next": [item]}) for item in script])
    streaming = options.pop("streaming", False)
    return AgentLoop(ToolCallingDriver(model, mode="structured", streaming=streaming), **options)


def react(*lines: Line, **options: Any) -> AgentLoop:
    script = [
        {"thought": "so", "type": "final", "answer": line}
        if isinstance(line, str)
        else {"thought": "so", "type": "call_tool", "tool": line[0], "args": {"item": line[1]}}
        for line in lines
    ]
    streaming = options.pop("streaming", False)
    options.setdefault("tools", Shop().tools())  # without tools, there are no decisions
    return AgentLoop(ReActDriver(ScriptedInference(*map(json.dumps, script)), streaming=streaming), **options)


EVERY_DRIVER = pytest.mark.parametrize("make", [native, parsed, structured, react])


def run(loop: AgentLoop, message: AgentState | str = "go") -> tuple[AgentState, list[Event]]:
    events: list[Event] = []
    loop.wiretap(events.append)
    return loop.execute_sync(message), events


def tripped(events: Sequence[Event]) -> list[tuple[str, tuple[str, ...], str]]:
    return [(event.subject, event.problems, event.outcome) for event in events if isinstance(event, GuardrailTripped)]


# --- inputs -----------------------------------------------------------------------------------------------------


@EVERY_DRIVER
@pytest.mark.parametrize("concurrent", [True, False])
def test_an_input_that_trips_stops_before_any_call(make: Make, *, concurrent: bool) -> None:
    """No tool runs, no text of the model is in the state, and signal and event say why."""
    shop = Shop()
    guard = Guardrails(input=[no_bad_words], concurrent=concurrent)
    loop = make(("pay", "tea"), "done", tools=shop.tools(), interceptors=[guard])
    state, events = run(loop, "a bad thing")
    assert shop.ran == []
    assert state.status is ExecutionStatus.STOPPED
    signal = state.stop_signal
    assert signal is not None
    assert (signal.reason, signal.source) == (StopReason.STOP_REQUESTED, "Guardrails")
    assert signal.message == "the input does not pass: a bad word"
    assert signal.context == {"subject": "input", "problems": ("a bad word",)}
    assert tripped(events) == [("input", ("a bad word",), "stop")]
    assert [message.role for message in state.messages] == ["user"]
    assert not [event for event in events if isinstance(event, InferenceResponseReceived | ToolCallStarted)]
    # Only the concurrent check has sent the request.
    assert (state.usage.input_tokens == 10) is concurrent


@EVERY_DRIVER
def test_an_input_that_passes_changes_nothing(make: Make) -> None:
    """With checks that pass, an execution has the same conversation, tokens and outcomes."""
    shop = Shop()
    guard = Guardrails(input=[no_bad_words], output=[no_bad_words])
    lines: list[Line] = [("look", "tea"), ("pay", "tea"), "done"]
    guarded, events = run(make(*lines, tools=shop.tools(), interceptors=[guard]))
    plain, _ = run(make(*lines, tools=Shop().tools()))
    assert shop.ran == ["look tea", "pay tea"]
    assert guarded.final_text == plain.final_text == "done"
    assert guarded.usage == plain.usage
    assert guarded.extensions == plain.extensions
    assert tripped(events) == []


@EVERY_DRIVER
@pytest.mark.parametrize("concurrent", [True, False])
def test_the_answer_to_an_input_can_be_replaced(make: Make, *, concurrent: bool) -> None:
    """The replacement is the final answer, and the calls of the model do not run."""
    shop = Shop()
    guard = Guardrails(input=[no_bad_words], on_input=ReplaceAnswer("I cannot help with that."), concurrent=concurrent)
    state, events = run(make(("pay", "tea"), "done", tools=shop.tools(), interceptors=[guard]), "a bad thing")
    assert state.final_text == "I cannot help with that."
    assert state.status is ExecutionStatus.COMPLETED
    assert shop.ran == []
    assert tripped(events) == [("input", ("a bad word",), "replace")]


@EVERY_DRIVER
@pytest.mark.parametrize("concurrent", [True, False])
def test_a_person_is_asked_about_calls_after_an_input_that_trips(make: Make, *, concurrent: bool) -> None:
    """Pure tools run, others wait for a decision, also in later steps; another execution is not affected."""
    shop = Shop()
    guard = Guardrails(input=[no_bad_words], on_input="ask", concurrent=concurrent)
    lines: list[Line] = [("look", "tea"), ("pay", "tea"), "done"]
    loop = make(*lines, tools=shop.tools(), interceptors=[guard])
    state, events = run(loop, "a bad thing")
    assert (state.status, shop.ran) == (ExecutionStatus.SUSPENDED, ["look tea"])
    (call,) = state.pending
    assert call.reason == "guardrail: a bad word"
    assert tripped(events) == [("input", ("a bad word",), "ask")]
    state = asyncio.run(loop.resume(state, {call.key: approve(call.digest)}))
    assert shop.ran == ["look tea", "pay tea"]
    assert state.final_text == "done"
    assert run(loop, state.with_message("a good thing"))[0].final_text == "done"


@pytest.mark.parametrize("make", [native, react])
async def test_no_call_starts_before_the_checks_have_passed(make: Make) -> None:
    """A check runs while the model answers, and the call of the answer waits for it."""
    order: list[str] = []
    shop = Shop()
    shop.ran = order
    model_has_answered = asyncio.Event()

    async def slow(inspection: Inspection) -> list[str]:
        order.append("check begins")
        await model_has_answered.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        order.append("check ends")
        return []

    class Watch(Interceptor):
        priority = -10  # the innermost: it sees the answer first

        async def around_inference(self, point: Any, proceed: Any) -> InferenceResponse:
            for _ in range(5):
                await asyncio.sleep(0)
            response: InferenceResponse = await proceed()
            order.append("model answers")
            model_has_answered.set()
            return response

    loop = make(("pay", "tea"), "done", tools=shop.tools(), interceptors=[Guardrails(input=[slow]), Watch()])
    await loop.execute("go")
    assert order[:4] == ["check begins", "model answers", "check ends", "pay tea"]
    assert order.count("check begins") == 1


async def test_messages_that_arrive_later_are_checked() -> None:
    """A message that is sent to the running execution is an input, and each message is checked once."""
    seen: list[str] = []

    def check(inspection: Inspection) -> list[str]:
        seen.append(inspection.text)
        return no_bad_words(inspection)

    shop = Shop()
    loop = native(("look", "tea"), ("pay", "tea"), "done", tools=shop.tools(), interceptors=[Guardrails(input=[check])])
    states = loop.iterate("a good thing", execution_id="e")
    await anext(states)
    loop.inbox("e").send("a bad thing")
    last = [state async for state in states][-1]
    assert seen == ["a good thing", "a bad thing"]
    assert shop.ran == ["look tea"]
    assert last.status is ExecutionStatus.STOPPED


# --- outputs ----------------------------------------------------------------------------------------------------


@EVERY_DRIVER
@pytest.mark.parametrize("streaming", [True, False])
def test_an_output_that_trips_is_held_back(make: Make, *, streaming: bool) -> None:
    """The answer is neither in the state nor in an event, not in pieces either."""
    loop = make("a bad answer", streaming=streaming, interceptors=[Guardrails(output=[no_bad_words])])
    state, events = run(loop)
    assert state.status is ExecutionStatus.STOPPED
    assert tripped(events) == [("output", ("a bad word",), "stop")]
    assert "bad answer" not in str(state)
    assert "bad answer" not in str([event for event in events if not isinstance(event, GuardrailTripped)])


@EVERY_DRIVER
@pytest.mark.parametrize("streaming", [True, False])
def test_an_output_can_be_replaced(make: Make, *, streaming: bool) -> None:
    """The replacement is final, in state and events; a function makes it of the text, such as by masking."""
    guard = Guardrails(output=[PersonalData("email")], on_output=ReplaceAnswer(PersonalData("email").mask))
    loop = make("Write to ada@example.com.", streaming=streaming, interceptors=[guard])
    state, events = run(loop)
    assert state.final_text == "Write to [email]."
    assert tripped(events) == [("output", ("it has an e-mail address",), "replace")]
    assert "ada@example.com" not in str(state)
    assert "ada@example.com" not in str(events)


def test_a_text_beside_a_call_is_an_output() -> None:
    """A text that trips stops before the call beside it runs; when it is replaced, the call runs."""
    for outcome, ran in (("stop", []), (ReplaceAnswer("…"), ["pay tea"])):
        shop = Shop()
        guard = Guardrails(output=[no_bad_words], on_output=outcome)  # type: ignore[arg-type]  # one of both
        model = ScriptedInference(["a bad text", ToolCall("1", "pay", '{"item": "tea"}')], "done")
        state = AgentLoop.for_model(model, tools=shop.tools(), interceptors=[guard]).execute_sync("go")
        assert shop.ran == ran
        assert "a bad text" not in str(state)


@EVERY_DRIVER
def test_deltas_are_held_until_an_answer_has_passed(make: Make) -> None:
    """A text that passes is streamed after its check; without `holds_deltas` it is streamed at once."""
    order: list[str] = []

    def check(inspection: Inspection) -> list[str]:
        order.append("check")
        return []

    def note(event: Event) -> None:
        order.append("delta" if isinstance(event, InferenceDeltaReceived) else "response")

    for holds, first in ((True, "check"), (False, "delta")):
        order.clear()
        guard = Guardrails(output=[check], holds_deltas=holds)
        loop = make("one two three", streaming=True, interceptors=[guard])
        loop.on(InferenceDeltaReceived, note)
        loop.on(InferenceResponseReceived, note)
        assert loop.execute_sync("go").final_text == "one two three"
        assert order[0] == first
        assert order.count("delta") >= 1
        assert order[-1] == "response"


def test_what_other_interceptors_make_of_an_answer_is_checked() -> None:
    """The check comes after interceptors of lower priority, so that it sees the text that becomes final."""

    class Spoil(Interceptor):
        def after_inference(self, point: AfterInference) -> AfterInference:
            return point.with_response(point.response.with_text("a bad end"))

    state, _ = run(native("good", interceptors=[Spoil(), Guardrails(output=[no_bad_words])]))
    assert state.status is ExecutionStatus.STOPPED


@frozen
class Contact:
    mail: str


@pytest.mark.parametrize("mail", ["ada@example.com", "ada\\u0040example.com", "\\u0061da@example.com"])
def test_a_typed_answer_is_checked_for_what_the_program_gets(mail: str) -> None:
    """An answer that is JSON does not pass a check because its characters are written as escapes; a mask leaves it valid."""
    data, answer = PersonalData("email"), f'{{"mail": "{mail}"}}'

    def no_ada(inspection: Inspection) -> list[str]:
        return ["a name"] if "ada@" in inspection.text else []

    for check in (data, no_ada):
        guard = Guardrails(output=[check])
        state = AgentLoop.for_model(ScriptedInference(answer), output_type=Contact, interceptors=[guard]).execute_sync(
            "?"
        )
        assert state.status is ExecutionStatus.STOPPED
    guard = Guardrails(output=[data], on_output=ReplaceAnswer(data.mask))
    state = AgentLoop.for_model(ScriptedInference(answer), output_type=Contact, interceptors=[guard]).execute_sync("?")
    assert state.output == Contact("[email]")


def test_what_json_has_to_escape_is_checked_as_it_is_written() -> None:
    """Quotation marks, backslashes and control characters stay escapes, so that the text is still the same JSON."""
    seen: list[str] = []

    def look(inspection: Inspection) -> list[str]:
        seen.append(inspection.text)
        return []

    answer = r'{"a": "x\ny \"z\" \u0022 \\ \u000a \u0041"}'
    state, _ = run(native(answer, interceptors=[Guardrails(output=[look])]))
    assert state.final_text == answer
    assert seen == [answer.replace(r"\u0041", "A")]


def test_guardrails_check_without_an_execution() -> None:
    """A program may ask them itself: there is nothing to record then."""
    state, request = AgentState.start("go"), InferenceRequest((Message.user("go"),))
    guard = Guardrails(output=[no_bad_words], on_output=ReplaceAnswer("a good thing"))
    answers = [InferenceResponse((Text(f"a {word} thing"),)) for word in ("fine", "bad")]
    points = [asyncio.run(guard.after_inference(AfterInference(state, request, answer))) for answer in answers]
    assert [point.response.text for point in points] == ["a fine thing", "a good thing"]


# --- fail closed ------------------------------------------------------------------------------------------------


def raises(_: Inspection) -> list[str]:
    raise ValueError("broken")


async def hangs(_: Inspection) -> list[str]:
    await asyncio.get_running_loop().create_future()
    return []


async def is_cancelled(_: Inspection) -> list[str]:
    future: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


async def swallows(_: Inspection) -> list[str]:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        return []
    return []


def blocks(_: Inspection) -> list[str]:
    until = time.monotonic() + 0.06
    while time.monotonic() < until:
        pass
    return []


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (swallows, "the check swallows failed: TimeoutError"),
        (blocks, "the check blocks failed: TimeoutError: it took longer than 0.05 s"),
        (raises, "the check raises failed: ValueError: broken"),
        (hangs, "the check hangs failed: TimeoutError"),
        (is_cancelled, "the check is_cancelled failed: ForeignCancellation"),
        (lambda _: None, "the check <lambda> returned NoneType and not a list of problems"),
        (lambda _: True, "returned bool"),
        (lambda _: "", "returned str"),
        (lambda _: [1], "returned list"),
    ],
)
@pytest.mark.parametrize("subject", ["input", "output"])
def test_a_check_that_fails_trips(check: Any, problem: str, subject: str) -> None:
    """A check that raises, hangs or forgets to return lets nothing pass."""
    checks = [check] if subject == "input" else [], [check] if subject == "output" else []
    guard = Guardrails(input=checks[0], output=checks[1], max_seconds=0.05)
    state, events = run(native("fine", interceptors=[guard]))
    assert state.status is ExecutionStatus.STOPPED
    ((found, problems, _),) = tripped(events)
    assert found == subject
    assert problem in problems[0]


@pytest.mark.parametrize(("count", "length"), [(2_000, 2_000), (21, 501), (20, 500), (3, 7)])
def test_problems_are_bounded(count: int, length: int) -> None:
    """Of very many long problems the first twenty are kept, with five hundred characters each; fewer are kept as they are."""
    found = [f"{number:05}" + "x" * (length - 5) for number in range(count)]
    state, events = run(native("fine", interceptors=[Guardrails(input=[lambda _: found])]))
    ((_, problems, _),) = tripped(events)
    assert problems == tuple([problem[:500] for problem in found[:20]])
    assert state.stop_signal is not None
    assert len(state.stop_signal.message) < 20 * 502 + 100


def test_wrong_guardrails_are_errors() -> None:
    """What is no check or no outcome is refused where the program says it."""
    with pytest.raises(ConfigurationError, match="a check is a function"):
        Guardrails(input=["no bad words"])  # type: ignore[list-item]  # the mistake
    with pytest.raises(ConfigurationError, match="stop or a ReplaceAnswer"):
        Guardrails(on_output="ask")  # type: ignore[arg-type]  # the mistake


async def test_a_check_does_not_outlive_its_inference() -> None:
    """When the model fails, or the execution is cancelled, no check goes on; the execution ends as without checks."""
    started = asyncio.Event()
    ended: list[str] = []

    async def check(_: Inspection) -> list[str]:
        started.set()
        try:
            return await hangs(_)
        finally:
            ended.append("check")

    class Failing(CanInfer):
        def __init__(self, *, waits: bool) -> None:
            self.waits = waits

        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            await started.wait()
            if self.waits:
                await asyncio.get_running_loop().create_future()
            raise RateLimited("too fast")

        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            yield await self.infer(request)

    before = asyncio.all_tasks()
    for waits in (False, True):
        started.clear()
        loop = AgentLoop(ToolCallingDriver(Failing(waits=waits)), interceptors=[Guardrails(input=[check])])
        task = asyncio.create_task(loop.execute("go"))
        await started.wait()
        if waits:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            state = await task
            assert (state.status, state.errors[-1].type) == (ExecutionStatus.FAILED, "RateLimited")
        assert asyncio.all_tasks() == before
    assert ended == ["check", "check"]


def test_a_failed_inference_waits_five_seconds_at_most_for_a_check_that_does_not_end() -> None:
    """A check that ignores its cancellation does not hold up the execution."""

    async def stubborn(_: Inspection) -> list[str]:
        for _attempt in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(50)
        return []

    class Failing(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            await asyncio.sleep(1)
            raise RateLimited("too fast")

    async def execute() -> tuple[AgentState, float]:
        loop = AgentLoop(ToolCallingDriver(Failing()), interceptors=[Guardrails(input=[stubborn])])
        return await loop.execute("go"), asyncio.get_running_loop().time()

    state, seconds = run_in_virtual_time(execute())
    assert (state.status, state.errors[-1].type) == (ExecutionStatus.FAILED, "RateLimited")
    assert seconds == pytest.approx(1 + 5)


# --- judges -----------------------------------------------------------------------------------------------------


@EVERY_DRIVER
def test_a_model_judges(make: Make) -> None:
    """The verdict decides, and the tokens of the judge are those of the execution."""
    judge, strict = ScriptedInference(PASSES, usage=COST), ScriptedInference(FAILS, usage=COST)
    guard = Guardrails(input=[ModelJudge(judge, "Be polite.")], output=[ModelJudge(strict, "Be polite.", name="tone")])
    loop = make("no", interceptors=[guard])
    state, events = run(loop, 'say "x"\nand more')
    assert tripped(events) == [("output", ("tone: rude",), "stop")]
    assert state.usage.input_tokens == 10 + 7 + 7
    asked = judge.requests[0]
    assert "Be polite." in asked.system_prompt
    assert json.loads(asked.messages[0].text) == {"author": "the user", "text": 'say "x"\nand more'}


def test_a_judge_reads_a_text_in_its_own_letters() -> None:
    """Letters that are not ASCII are no escapes in its request."""
    judge = ScriptedInference(PASSES)
    run(native("done", interceptors=[Guardrails(input=[ModelJudge(judge, "Be polite.")])]), "Grüße, 世界")
    assert "Grüße, 世界" in judge.requests[0].messages[0].text


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (FAILS, "judge: rude"),
        ('```json\n{"passes": false, "reason": ""}\n```', "judge: the rule is not kept"),
        ("It passes.", "the check judge failed"),
        ('{"passes": "true"}', "the check judge failed"),
        ('{"passes": 1}', "the check judge failed"),
        ("[true]", "the check judge failed"),
        (
            '{"passes": false, "reason": "rude", "passes": true}',
            "the check judge failed: the verdict has 'passes' twice",
        ),
        ("", "the check judge failed"),
        (RateLimited("too fast"), "the check judge failed: RateLimited: too fast"),
    ],
)
def test_only_a_clear_verdict_lets_pass(line: Any, problem: str) -> None:
    """A judge that fails, or says anything but that the text passes, trips."""
    guard = Guardrails(output=[ModelJudge(ScriptedInference(line), "Be polite.")])
    _, events = run(native("fine", interceptors=[guard]))
    ((_, problems, _),) = tripped(events)
    assert problems[0].startswith(problem)


def test_the_tokens_of_a_judge_count_for_limits() -> None:
    """A limit of tokens stops an execution whose judge has used them."""
    judge = ScriptedInference(PASSES, usage=Usage(1000, 1000, 0, 0, 0))
    shop = Shop()
    guard = Guardrails(input=[ModelJudge(judge, "x")])
    loop = native(("look", "tea"), "done", tools=shop.tools(), interceptors=[guard, TokenLimit(500)])
    state, _ = run(loop)
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.TOKEN_LIMIT
    assert state.usage.input_tokens == 1010


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.unreplayed
async def test_a_recorded_verdict_is_not_asked_again(*, concurrent: bool) -> None:
    """After a crash at any record, the execution ends in the same way, and a verdict that is recorded is used again."""

    def make(journal: MemoryJournal) -> tuple[AgentLoop, ScriptedInference, Shop]:
        judge, shop = ScriptedInference(PASSES, PASSES, usage=COST), Shop()
        checks: list[Check | ModelJudge] = [no_bad_words, ModelJudge(judge, "one"), ModelJudge(judge, "two")]
        guard = Guardrails(input=checks, concurrent=concurrent, output=[no_bad_words])
        loop = native(("pay", "tea"), "done", tools=shop.tools(), interceptors=[guard], journal=journal)
        return loop, judge, shop

    journal = MemoryJournal()
    loop, _, _ = make(journal)
    whole = await loop.execute("go", execution_id="e")
    records = await journal.read("e")
    verdicts = [number for number, record in enumerate(records, 1) if "fine" in str(record)]
    assert len(verdicts) >= 2
    assert whole.usage.input_tokens == 20 + 14
    for count in range(1, len(records)):
        crashed = await truncate(journal, "e", count)
        again, judge, _ = make(crashed)
        state = await again.recover("e")
        assert state.status in {ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED}
        if state.status is ExecutionStatus.COMPLETED:
            assert state.final_text == "done"
            assert state.usage == whole.usage, count
        assert len(judge.requests) <= 2
        if count >= verdicts[1]:
            assert judge.requests == [], count


async def test_the_failed_request_of_a_judge_is_none_of_the_model() -> None:
    """After a crash behind any step, the script of the model goes on with the line that is next."""

    def make(journal: MemoryJournal) -> AgentLoop:
        judge = ModelJudge(ScriptedInference(*[RateLimited("too fast")] * 3), "Be polite.")
        guard = Guardrails(output=[judge], on_output=ReplaceAnswer("checked"))
        lines: list[Any] = [
            ["so", ToolCall("1", "look", '{"item": "tea"}')],
            ["so", ToolCall("2", "pay", '{"item": "tea"}')],
            "end",
        ]
        return AgentLoop.for_model(
            ScriptedInference(*lines), tools=Shop().tools(), interceptors=[guard], journal=journal
        )

    journal = MemoryJournal()
    whole = await make(journal).execute("go", execution_id="e")
    assert (whole.final_text, whole.inference_count) == ("checked", 3)
    records = await journal.read("e")
    for count in [count for count, record in enumerate(records, 1) if record.kind is RecordKind.STEP_COMPLETED]:
        state = await make(await truncate(journal, "e", count)).recover("e")
        names = [[execution.call.name for execution in step.executions] for step in state.steps]
        assert names == [["look"], ["pay"], []], count


async def test_calls_that_started_although_a_judge_failed_are_continued_after_a_crash() -> None:
    """The failure is part of what happened before them: the judge is not asked again, whatever the last record is."""

    def make(journal: MemoryJournal) -> AgentLoop:
        judge = ModelJudge(ScriptedInference(*[RateLimited("too fast")] * 3), "Be polite.")
        guard = Guardrails(output=[judge], on_output=ReplaceAnswer("checked"))
        lines: list[Any] = [["so", ToolCall("1", "look", '{"item": "tea"}')], "end"]
        return AgentLoop.for_model(
            ScriptedInference(*lines), tools=Shop().tools(), interceptors=[guard], journal=journal
        )

    journal = MemoryJournal()
    whole = await make(journal).execute("go", execution_id="e")
    assert whole.status is ExecutionStatus.COMPLETED
    for count in range(1, len(await journal.read("e"))):
        state = await make(await truncate(journal, "e", count)).recover("e")
        assert (state.final_text, len(state.steps)) == (whole.final_text, 2), count


async def test_a_replay_asks_no_judge() -> None:
    """A recorded execution with judges is replayed without a difference, from the record alone."""
    journal, judge = MemoryJournal(), ScriptedInference(PASSES, PASSES, usage=COST)
    shop = Shop()
    guard = Guardrails(input=[ModelJudge(judge, "one")], output=[ModelJudge(judge, "one"), no_bad_words])
    loop = native(("pay", "tea"), "done", tools=shop.tools(), interceptors=[guard], journal=journal)
    await loop.execute("go", execution_id="e")
    asked = len(judge.requests)
    report = await replay(journal, "e", loop)
    assert report.divergence is None, report
    assert len(judge.requests) == asked == 2
    assert shop.ran == ["pay tea"]


async def test_an_exported_test_has_the_script_of_the_model_alone() -> None:
    """The verdicts of judges are no lines of the script of a test that is exported from a journal."""
    journal, judge = MemoryJournal(), ScriptedInference(PASSES, PASSES, usage=COST)
    guard = Guardrails(input=[ModelJudge(judge, "one")], output=[ModelJudge(judge, "two")])
    loop = native(("look", "tea"), "done", tools=Shop().tools(), interceptors=[guard], journal=journal)
    await loop.execute("go", execution_id="e")
    records = await journal.read("e")
    assert "passes" not in pytest_source(records, "e")
    assert (await asyncio.to_thread(play, build_fixture(records, "e"))).final_text == "done"


async def test_executions_do_not_share_what_was_checked() -> None:
    """One loop checks the inputs of concurrent executions, each for itself."""
    loop = native("fine", interceptors=[Guardrails(input=[no_bad_words])])
    states = await asyncio.gather(*[loop.execute(f"a {'bad' if n % 2 else 'good'} thing") for n in range(20)])
    assert [state.status is ExecutionStatus.STOPPED for state in states] == [bool(n % 2) for n in range(20)]


def test_a_conversation_goes_on_from_before_a_message_that_tripped() -> None:
    """The message that tripped stays in its state; the state before it has none of it."""
    loop = native("fine", "fine", interceptors=[Guardrails(input=[no_bad_words])])
    first = loop.execute_sync("good")
    assert loop.execute_sync(first.with_message("bad")).status is ExecutionStatus.STOPPED
    assert loop.execute_sync(first.with_message(Message.user(Text("good")))).final_text == "fine"
