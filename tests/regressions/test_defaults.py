"""The defaults of a loop: behavior that users can rely on without configuration."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from attrs import frozen

from agentloop import (
    AgentLoop,
    AgentLoopError,
    AgentState,
    Budget,
    Interceptor,
    Message,
    ReActDriver,
    RequireApproval,
    ScriptedInference,
    StepLimit,
    StopReason,
    TimeLimit,
    ToolCall,
    ToolCallingDriver,
    ToolChoice,
    ToolExecutor,
    from_json,
    to_json,
    tool,
)
from agentloop.compilers import ConversationWithCurrentToolTrace, SlidingWindow, TokenWindow
from agentloop.contracts import CanCompileMessages, CanIntercept, Tool
from agentloop.drivers import Driver, StepDraft
from agentloop.durable import MemoryJournal
from agentloop.errors import ExecutionFailed, ProviderUnavailable
from agentloop.events import ToolCallCompleted
from agentloop.interception import at
from agentloop.models import wire_format
from agentloop.testing import LoopClock, run_in_virtual_time
from agentloop.values import (
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    ResponsePart,
    Text,
    Usage,
    approve,
)
from agentloop.values.points import (
    POINTS,
    AfterInference,
    AfterToolUse,
    AroundInference,
    BeforeInference,
    BeforeStep,
    OnError,
    ProceedInference,
)
from tests.models.loopback import Reply, loopback, respond_chunked, respond_json
from tests.models.loopback_inference import inference_for

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxies of the environment from the tests."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


# --- doubles ----------------------------------------------------------------------------------------------------------


class Till:
    """A payment tool that records its calls.

    Attributes:
        paid: the recipients, in order.
        pay: the tool.
    """

    def __init__(self) -> None:
        self.paid: list[str] = []

        @tool
        def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            return f"receipt for {to}"

        self.pay: Tool = pay


@tool(effect="pure")
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"nothing {place}"


def paying(to: str = "Ada", number: int = 1) -> ToolCall:
    return ToolCall(f"call_{number}", "pay", json.dumps({"to": to}))


def careful(request: InferenceRequest) -> InferenceResponse | str:
    """Pay Ada, unless the conversation contains her receipt."""
    results = [exchange.execution.text for message in request.messages for exchange in message.exchanges]
    if "receipt for Ada" in results:
        return "Ada has her money."
    return InferenceResponse((paying(),), FinishReason.TOOL_CALLS)


def public(thing: object) -> dict[str, object]:
    """Return the public attributes of an object."""
    found = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}
    return {name: value for name, value in found.items() if not callable(value)}


def chain(error: object) -> list[BaseException]:
    """Return an exception with its causes and contexts; an empty list for other objects."""
    found: list[BaseException] = []
    while isinstance(error, BaseException) and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


# --- the history that the next execution sees --------------------------------------------------------------


def unfinished(how: str, till: Till, **parts: Any) -> AgentState:
    """Run until the payment is made and the run is stopped by its limit or fails by its provider."""
    lines = [careful, ProviderUnavailable("down")] if how == "provider down" else [careful]
    limit = 1 if how == "step limit" else 5
    loop = AgentLoop.for_model(ScriptedInference(*lines), tools=[till.pay], max_steps=limit, **parts)
    state = loop.execute_sync("Pay Ada.")
    assert till.paid == ["Ada"]
    assert state.status in {ExecutionStatus.STOPPED, ExecutionStatus.FAILED}
    return state


@pytest.mark.parametrize("how", ["step limit", "provider down"])
@pytest.mark.parametrize("journaled", [False, True], ids=["plain", "journal"])
def test_a_conversation_continues_without_repeating_calls(how: str, journaled: bool) -> None:  # noqa: FBT001  # a parameter
    """A model that continues a conversation sees the calls of the unfinished execution, so it pays once."""
    till, journal = Till(), MemoryJournal() if journaled else None
    state = unfinished(how, till, journal=journal)
    loop = AgentLoop.for_model(ScriptedInference(careful, careful), tools=[till.pay], journal=journal)
    assert loop.execute_sync(state.with_message("Go on.")).status is ExecutionStatus.COMPLETED
    assert till.paid == ["Ada"]


@pytest.mark.parametrize("how", ["step limit", "provider down"])
@pytest.mark.parametrize(
    "compiler",
    [ConversationWithCurrentToolTrace(), SlidingWindow(50), TokenWindow(10_000)],
    ids=lambda c: type(c).__name__,
)
def test_the_trace_of_an_unfinished_execution_is_not_dropped(how: str, compiler: CanCompileMessages) -> None:
    """Compilers that omit earlier traces, and windows that are large enough, show the calls of an unfinished execution."""
    till = Till()
    state = unfinished(how, till, compiler=compiler)
    loop = AgentLoop.for_model(ScriptedInference(careful, careful), tools=[till.pay], compiler=compiler)
    loop.execute_sync(state.with_message("Go on."))
    assert till.paid == ["Ada"]


def test_a_follow_up_question_is_sent_with_earlier_results() -> None:
    """The second request contains all tool results of the first question."""

    @tool(effect="pure")
    def customer(number: int) -> dict[str, str]:
        """Look a customer up."""
        return {"name": "Ada", "city": "Turin"}

    model = ScriptedInference(ToolCall("1", "customer", '{"number": 7}'), "It is Ada.")
    loop = AgentLoop.for_model(model, tools=[customer])
    first = loop.execute_sync("Who is number 7?")
    loop.execute_sync(first.with_message("Where does she live?"))
    follow_up = model.requests[2]
    assert follow_up.messages == (*first.messages, Message.user("Where does she live?"))


def test_the_option_to_drop_traces_is_documented() -> None:
    """A guide names the compiler that omits earlier tool traces."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert ConversationWithCurrentToolTrace.__name__ in pages


# --- answers that did not end normally -------------------------------------------------------------------------


def gemini_malformed_call() -> InferenceResponse:
    body = {
        "candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "MALFORMED_FUNCTION_CALL"}],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 1},
    }
    return wire_format("gemini").decode_response(200, {}, json.dumps(body).encode())


TRUNCATED_ANSWERS = {
    "length": InferenceResponse((Text("The dose is 5"),), FinishReason.LENGTH),
    "content_filter": InferenceResponse((Text("The dose is 5"),), FinishReason.CONTENT_FILTER),
    "error": InferenceResponse((Text("The dose is 5"),), FinishReason.ERROR),
    "nothing, length": InferenceResponse((), FinishReason.LENGTH),
    "malformed call": gemini_malformed_call(),
}


@pytest.mark.parametrize("driver", [ToolCallingDriver, ReActDriver])
@pytest.mark.parametrize("answer", TRUNCATED_ANSWERS.values(), ids=TRUNCATED_ANSWERS)
def test_a_truncated_answer_does_not_complete_the_run(
    answer: InferenceResponse, driver: type[ToolCallingDriver | ReActDriver]
) -> None:
    """A model that repeatedly returns truncated answers fails or stops the run."""
    state = AgentLoop(driver(inference=ScriptedInference(*[answer] * 20))).execute_sync("What is the dose?")
    assert state.status in {ExecutionStatus.FAILED, ExecutionStatus.STOPPED}
    assert state.stop_signal is not None
    assert state.stop_signal.reason is not StopReason.COMPLETED


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "r", "model": "m", "choices": [choice]}).encode() + b"\n\n"


def streamed_end(finish: str | None, after: bytes = b"") -> Reply:
    text = chunk({"role": "assistant", "content": "The dose is 5"})
    end = chunk({}, finish) if finish is not None else b""
    return respond_chunked([piece for piece in (text, end, after) if piece])


def whole_end(finish: str) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": "The dose is 5"}, "finish_reason": finish}
    return respond_json(200, {"id": "r", "model": "m", "choices": [choice]})


DETAIL_OBJECT = b'data: {"object": "error", "message": "engine died", "code": 500}\n\ndata: [DONE]\n\n'
BROKEN_ENDS = {
    "whole, length": (whole_end("length"), False),
    "whole, content_filter": (whole_end("content_filter"), False),
    "streamed, length": (streamed_end("length"), True),
    "streamed, content_filter": (streamed_end("content_filter"), True),
    "streamed, error": (streamed_end("error"), True),
    "streamed, no end": (streamed_end(None), True),
    "streamed, error object": (streamed_end(None, DETAIL_OBJECT), True),
    "streamed, error line": (streamed_end(None, b'{"error": {"message": "x", "code": 500}}\n\n'), True),
}


@pytest.mark.parametrize(("reply", "streaming"), BROKEN_ENDS.values(), ids=BROKEN_ENDS)
async def test_an_answer_that_a_provider_truncated_does_not_complete_the_run(reply: Reply, streaming: bool) -> None:  # noqa: FBT001  # a parameter
    """Whole or streamed, an answer without a normal end does not complete the run."""
    async with loopback(*[reply] * 20) as server:
        driver = ToolCallingDriver(inference=inference_for(server), mode="native", streaming=streaming)
        state = await AgentLoop(driver).execute("What is the dose?")
    assert state.status in {ExecutionStatus.FAILED, ExecutionStatus.STOPPED}


class Disk:
    """Files that can be wiped.

    Attributes:
        wiped: every pattern that was wiped, in order.
        wipe: the tool; its argument is optional.
    """

    def __init__(self) -> None:
        self.wiped: list[str] = []

        @tool
        def wipe(pattern: str = "*") -> str:
            """Delete files."""
            self.wiped.append(pattern)
            return "deleted"

        self.wipe: Tool = wipe


@pytest.mark.parametrize("written", ["", " ", "null"])
@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.ERROR])
def test_a_call_that_was_truncated_before_its_arguments_does_not_run(written: str, finish: FinishReason) -> None:
    """A call without arguments does not run when its answer did not end normally."""
    disk = Disk()
    cut = InferenceResponse((ToolCall("1", "wipe", written),), finish)
    AgentLoop.for_model(ScriptedInference(cut, "I could not."), tools=[disk.wipe]).execute_sync("Clean up.")
    assert disk.wiped == []


@pytest.mark.parametrize("mode", ["validated", "parsed", "text", "json"])
def test_a_call_in_text_that_was_truncated_within_its_input_does_not_run(mode: Any) -> None:
    """An input without quotes or braces, which a cut-off answer ends, may be the beginning of another one."""
    disk = Disk()
    texts = (InferenceResponse((Text("Action: wipe\nAction Input: /"),), FinishReason.LENGTH), "Final Answer: Done.")
    model = ScriptedInference(*texts, "Final Answer: Done.")
    is_react = mode in {"text", "json"}
    driver = ReActDriver(model, output=mode) if is_react else ToolCallingDriver(model, mode=mode)
    AgentLoop(driver, [disk.wipe]).execute_sync("Clean up /tmp.")
    assert disk.wiped == []


async def test_a_call_that_a_provider_truncated_before_its_arguments_does_not_run() -> None:
    """A response with finish reason `length` and empty arguments does not run the call."""
    disk = Disk()
    call = {"id": "c", "type": "function", "function": {"name": "wipe", "arguments": ""}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    cut = respond_json(200, {"id": "r", "model": "m", "choices": [{"finish_reason": "length", "message": message}]})
    async with loopback(*[cut] * 20) as server:
        driver = ToolCallingDriver(inference=inference_for(server), mode="native")
        await AgentLoop(driver, [disk.wipe], max_steps=3).execute("Clean up.")
        assert len(server.requests) >= 1
    assert disk.wiped == []


def test_a_call_without_arguments_runs_when_its_answer_ended_normally() -> None:
    """Empty arguments are valid for a tool without required parameters, and invalid for others."""
    disk, till = Disk(), Till()
    calls = [ToolCall("1", "wipe", ""), ToolCall("2", "pay", "")]
    loop = AgentLoop.for_model(ScriptedInference(calls, "Done."), tools=[disk.wipe, till.pay])
    executions = loop.execute_sync("Clean up and pay.").steps[0].executions
    assert [execution.status.value for execution in executions] == ["succeeded", "rejected"]
    assert (disk.wiped, till.paid) == (["*"], [])


# --- tracebacks of failures ----------------------------------------------------------------------------------


class Boom(Exception):
    """An unexpected exception of a tool."""


class Failing:
    """A tool that raises.

    Attributes:
        error: the exception.
        tool: the tool.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or Boom("the drawer is stuck")

        @tool(name="open_drawer")
        def open_drawer() -> str:
            """Open the drawer."""
            raise self.error

        self.tool: Tool = open_drawer

    def is_in(self, thing: object) -> bool:
        """Return whether an attribute of an object or of its execution is the exception or was caused by it."""
        values = public(thing)
        further = public(values["execution"]) if values.get("execution") is not None else {}
        return any(self.error in chain(value) for value in (*values.values(), *further.values()))


def failing_loop(failing: Failing, *interceptors: CanIntercept) -> AgentLoop:
    model = ScriptedInference(ToolCall("1", "open_drawer"), "It is stuck.")
    return AgentLoop.for_model(model, tools=[failing.tool], interceptors=interceptors)


def test_the_exception_of_a_failed_tool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A record of `agentloop.tools`, an error, contains the traceback, the key of the call and the execution id."""
    failing = Failing()
    with caplog.at_level(logging.DEBUG, logger="agentloop.tools"):
        state = failing_loop(failing).execute_sync("Open it.", execution_id="drawer-7")
    logged = [
        (record.name.partition("agentloop.tools")[0] + record.levelname, record.getMessage() + repr(vars(record)))
        for record in caplog.records
        if record.exc_info is not None and failing.error in chain(record.exc_info[1])
    ]
    assert [place for place, _ in logged] == ["ERROR"]
    assert state.execution_id in logged[0][1]
    assert state.steps[0].executions[0].key in logged[0][1]


def test_the_exception_of_a_failed_tool_reaches_the_point_after_it() -> None:
    """The point after the call contains the exception object."""
    failing, seen = Failing(), list[bool]()

    def see(point: AfterToolUse) -> AfterToolUse:
        seen.append(failing.is_in(point))
        return point

    failing_loop(failing, at("after_tool_use", see)).execute_sync("Open it.")
    assert seen == [True]


def test_the_exception_of_a_failed_tool_is_in_its_event() -> None:
    """The event that ends the call contains the exception object."""
    failing, seen = Failing(), list[Event]()
    loop = failing_loop(failing)
    loop.on(ToolCallCompleted, seen.append)
    loop.execute_sync("Open it.")
    assert [failing.is_in(event) for event in seen] == [True]


def test_the_exception_of_a_failed_tool_is_neither_stored_nor_shown_to_the_model() -> None:
    """The state and the next request contain the message of the error, and no traceback."""
    failing = Failing()
    model = ScriptedInference(ToolCall("1", "open_drawer"), "It is stuck.")
    state = AgentLoop.for_model(model, tools=[failing.tool]).execute_sync("Open it.")
    assert state == from_json(to_json(state), AgentState)
    stored, shown = to_json(state).decode(), model.requests[1].messages[-1].exchanges[0].execution.text
    assert ("drawer is stuck" in stored, "drawer is stuck" in shown) == (True, True)
    assert [word for word in ("Traceback", Path(__file__).name) if word in stored or word in shown] == []


@frozen(kw_only=True)
class BrokenDriver(Driver):
    """A driver whose decision raises."""

    error: Exception

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        raise self.error


class BrokenInterceptor(Interceptor):
    """An interceptor that raises before each step."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def before_step(self, point: BeforeStep) -> BeforeStep:
        raise self.error


@pytest.mark.parametrize(
    "loop_with",
    [
        lambda error: AgentLoop(BrokenDriver(error=error)),
        lambda error: AgentLoop.for_model(ScriptedInference("yes"), interceptors=[BrokenInterceptor(error)]),
        lambda error: AgentLoop.for_model(ScriptedInference(error)),
        lambda error: AgentLoop.for_model(
            ScriptedInference(ToolCall("1", "open_drawer")),
            tools=[Failing(error).tool],
            executor=ToolExecutor(raise_on_tool_failure=True),
        ),
    ],
    ids=["driver", "interceptor", "model", "tool"],
)
def test_a_failure_that_is_raised_has_its_cause(loop_with: Callable[[Exception], AgentLoop]) -> None:
    """The traceback of `raise_for_status` includes the original exception."""
    error = Boom("line 7")
    state = loop_with(error).execute_sync("Go.")
    with pytest.raises(ExecutionFailed) as failed:
        state.raise_for_status()
    assert error in chain(failed.value.__cause__)


# --- states without an answer -----------------------------------------------------------------------------------------


def answer_of(state: AgentState, accessor: str) -> object:
    """Return the value of an accessor, or None when it raises."""
    try:
        return getattr(state, accessor)
    except AgentLoopError:
        return None


def without_an_answer(status: str) -> AgentState:
    """Return a state with this status and no answer."""
    till = Till()
    interceptors = [RequireApproval()] if status == "suspended" else []
    line = ProviderUnavailable("down") if status == "failed" else paying()
    loop = AgentLoop.for_model(ScriptedInference(line), tools=[till.pay], interceptors=interceptors, max_steps=1)
    state = loop.execute_sync("Pay Ada.")
    assert (state.status.value, state.has_final_response) == (status, False)
    return state


@pytest.mark.parametrize("accessor", ["final_text", "output"])
@pytest.mark.parametrize("status", ["failed", "suspended", "stopped"])
def test_accessors_of_a_missing_answer_return_no_text(status: str, accessor: str) -> None:
    """An accessor of the answer returns None or raises when there is no answer."""
    assert answer_of(without_an_answer(status), accessor) is None


PROGRAM = """
import sys
from agentloop import AgentLoop, tool

@tool(effect="pure")
def add(a: int, b: int) -> int:
    '''Add two numbers.'''
    return a + b

loop = AgentLoop.for_model("openai:gpt-5", tools=[add], base_url=sys.argv[1], api_key="sk-not-the-key-000")
state = loop.execute_sync("What is 17 + 25?")
print(state.final_text)
"""


async def test_a_program_with_a_wrong_key_reports_the_failure() -> None:
    """A minimal program fails or prints an error when the provider rejects the key."""
    refusal = respond_json(401, {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error"}})
    async with loopback(*[refusal] * 5) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", PROGRAM, server.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(60):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if not server.requests:
        pytest.fail(f"the program did not ask the model: {err.decode()}")
    assert process.returncode != 0 or out.strip() or err.strip()


# --- usage of failed executions -----------------------------------------------------------------------------


def refuse(point: AfterInference) -> AfterInference:
    raise Boom("no")


def answering(*lines: Any) -> ScriptedInference:
    return ScriptedInference(*lines, usage=Usage(10, 5))


def typed(*lines: Any, interceptors: Sequence[CanIntercept] = ()) -> AgentLoop:
    """Return a loop whose model never returns the requested output type."""
    return AgentLoop.for_model(answering(*lines), tools=[look], output_type=dict[str, int], interceptors=interceptors)


def spent(loop: AgentLoop) -> tuple[int, int | None, int | None]:
    """Run to a failure, and return the inferences and tokens of the state."""
    usage = (state := loop.execute_sync("Go.")).usage
    if state.status is not ExecutionStatus.FAILED:
        pytest.fail(f"the run did not fail: {state.explain()}")
    return usage.requests, usage.input_tokens, usage.output_tokens


NEVER_TYPED: dict[str, tuple[AgentLoop, int]] = {
    "at once": (typed(*["nope"] * 3), 3),
    "after a call": (typed(ToolCall("1", "look"), *["nope"] * 3), 4),
    "within a budget": (typed(*["nope"] * 3, interceptors=[Budget(tokens=100_000)]), 3),
}


@pytest.mark.parametrize(("loop", "inferences"), NEVER_TYPED.values(), ids=NEVER_TYPED)
def test_an_execution_that_fails_by_its_output_counts_its_usage(loop: AgentLoop, inferences: int) -> None:
    """Every answer counts in the usage of the state, also when no answer has the requested type."""
    assert spent(loop) == (inferences, 10 * inferences, 5 * inferences)


OTHERWISE_FAILED: dict[str, tuple[AgentLoop, int]] = {
    "no provider any more": (typed("nope", ProviderUnavailable("down")), 1),
    "an interceptor": (AgentLoop.for_model(answering("yes"), interceptors=[at("after_inference", refuse)]), 1),
    "no decision": (AgentLoop(ReActDriver(inference=answering(*["nope"] * 9), output="json"), [look]), 3),
}


@pytest.mark.parametrize(("loop", "inferences"), OTHERWISE_FAILED.values(), ids=OTHERWISE_FAILED)
def test_an_execution_that_fails_otherwise_counts_its_usage(loop: AgentLoop, inferences: int) -> None:
    """Answers before the failure of a model, an interceptor or a notation are counted."""
    assert spent(loop) == (inferences, 10 * inferences, 5 * inferences)


# --- tool choice ------------------------------------------------------------------


def forbidding(kind: Literal["none", "specific"]) -> ToolChoice:
    return ToolChoice.none() if kind == "none" else ToolChoice.specific("look")


@pytest.mark.parametrize("kind", ["none", "specific"])
@pytest.mark.parametrize("where", ["driver", "interceptor"])
def test_a_call_that_the_tool_choice_forbids_does_not_run(kind: Literal["none", "specific"], where: str) -> None:
    """The tool choice is enforced: with `none()` no call runs, and with `specific` no call of another tool."""
    till, choice = Till(), forbidding(kind)
    model = ScriptedInference(*[paying()] * 9)
    driver = ToolCallingDriver(inference=model, tool_choice=choice if where == "driver" else ToolChoice.auto())

    def choose(point: BeforeInference) -> BeforeInference:
        return point.with_request(point.request.with_tool_choice(choice))

    interceptors = [at("before_inference", choose)] if where == "interceptor" else []
    AgentLoop(driver, [till.pay, look], interceptors=interceptors, max_steps=1).execute_sync("Look around.")
    if model.requests[0].tool_choice != choice:
        pytest.fail("the choice did not reach the model")
    assert till.paid == []


def obedient(request: InferenceRequest) -> InferenceResponse | str:
    """Call when a call is required, else answer."""
    if request.tool_choice.kind in {"required", "specific"}:
        return InferenceResponse((ToolCall("", "look"),), FinishReason.TOOL_CALLS)
    return "There is nothing."


@pytest.mark.parametrize("choice", [ToolChoice.required(), ToolChoice.specific("look")], ids=["required", "specific"])
def test_a_call_that_is_required_is_required_once(choice: ToolChoice) -> None:
    """After the required call the model may answer, so the run completes."""
    driver = ToolCallingDriver(inference=ScriptedInference(*[obedient] * 10), tool_choice=choice)
    state = AgentLoop(driver, [look], max_steps=6).execute_sync("What is here?")
    assert (state.status, state.step_count) == (ExecutionStatus.COMPLETED, 2)


# --- scripts of resumed executions --------------------------------------------------------------------------------------------


async def resumed_until_done(loop: AgentLoop, state: AgentState) -> AgentState:
    """Approve pending calls, at most three times."""
    for _ in range(3):
        if not state.pending:
            break
        state = await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    return state


@pytest.mark.parametrize("journaled", [False, True], ids=["plain", "journal"])
@pytest.mark.parametrize("before", [[], [ToolCall("0", "look")]], ids=["first step", "second step"])
async def test_a_script_continues_with_a_resumed_execution(before: list[ToolCall], journaled: bool) -> None:  # noqa: FBT001  # a parameter
    """After a resume, the next answer is the line after the one that led to the suspension."""
    till, model = Till(), ScriptedInference(*before, paying(), "Paid.")
    journal = MemoryJournal() if journaled else None
    loop = AgentLoop.for_model(model, tools=[till.pay, look], interceptors=[RequireApproval()], journal=journal)
    state = await resumed_until_done(loop, await loop.execute("Pay Ada."))
    assert (state.status, till.paid) == (ExecutionStatus.COMPLETED, ["Ada"])


async def test_a_script_continues_after_all_answers_of_the_suspended_step() -> None:
    """A suspended step with two inferences has used two lines."""
    till = Till()
    call = '{"thought": "I pay.", "type": "tool", "tool": "pay", "args": {"to": "Ada"}}'
    final = '{"thought": "I have paid.", "type": "final", "answer": "Paid."}'
    driver = ReActDriver(inference=ScriptedInference("I shall pay.", call, final), output="json")
    loop = AgentLoop(driver, [till.pay], interceptors=[RequireApproval()])
    waiting = await loop.execute("Pay Ada.")
    if waiting.usage.requests != 2 or not waiting.pending:
        pytest.fail(f"the step did not ask twice and suspend: {waiting.explain()}")
    state = await resumed_until_done(loop, waiting)
    assert (state.final_text, till.paid) == ("Paid.", ["Ada"])


async def test_a_script_continues_with_a_recovered_execution() -> None:
    """A recovered execution continues with the line after the last recorded answer."""
    till, journal = Till(), MemoryJournal()

    def program() -> AgentLoop:
        script = ScriptedInference(paying("Ada", 1), paying("Bob", 2), "Both are paid.")
        return AgentLoop.for_model(script, tools=[till.pay], journal=journal)

    states = program().iterate("Pay both.", execution_id="both")
    await anext(states)
    await states.aclose()
    if till.paid != ["Ada"]:
        pytest.fail(f"the interruption came too early or too late: {till.paid}")
    state = await program().recover("both")
    assert (state.final_text, till.paid) == ("Both are paid.", ["Ada", "Bob"])


class _RetriesInferences(Interceptor):
    """Repeats inferences until they succeed."""

    async def around_inference(
        self, point: AroundInference, proceed: ProceedInference
    ) -> InferenceResponse:  # of the point
        while True:
            with suppress(ProviderUnavailable):
                return await proceed()


@pytest.mark.parametrize("journaled", [False, True], ids=["plain", "journal"])
async def test_a_script_continues_after_failed_requests(journaled: bool) -> None:  # noqa: FBT001  # a parameter
    """Requests that failed and were retried have used their lines."""
    till, model = Till(), ScriptedInference(ProviderUnavailable("1"), ProviderUnavailable("2"), paying(), "Paid.")
    retry = _RetriesInferences()
    journal = MemoryJournal() if journaled else None
    loop = AgentLoop.for_model(model, tools=[till.pay], interceptors=[RequireApproval(), retry], journal=journal)
    state = await resumed_until_done(loop, await loop.execute("Pay Ada."))
    assert (state.status, till.paid, len(model.requests)) == (ExecutionStatus.COMPLETED, ["Ada"], 4)
    model.assert_complete()


@pytest.mark.parametrize("journaled", [False, True], ids=["plain", "journal"])
async def test_the_script_of_a_sub_agent_continues_with_its_execution(journaled: bool) -> None:  # noqa: FBT001  # a parameter
    """Each execution has a position of its own, also those of sub-agents."""
    till, inner, outer = Till(), ScriptedInference(ToolCall("0", "look"), paying(), "Paid."), list[ScriptedInference]()
    clerk = AgentLoop.for_model(inner, tools=[till.pay, look], interceptors=[RequireApproval()])
    outer.append(ScriptedInference(ToolCall("1", "clerk", '{"task": "Pay Ada."}'), "Done."))
    journal = MemoryJournal() if journaled else None
    loop = AgentLoop.for_model(outer[0], tools=[clerk.as_tool("clerk", "Pays.")], journal=journal)
    state = await loop.execute("Pay Ada.")
    for _ in range(3):
        if state.pending:
            decisions = {call.key: approve(call.digest) for call in state.pending if not call.waits_for}
            state = await loop.resume(state, decisions)
    assert (state.final_text, till.paid) == ("Done.", ["Ada"])
    inner.assert_complete()
    outer[0].assert_complete()


def test_unused_lines_of_a_script_are_reported() -> None:
    """`assert_complete` names the lines that no execution has used."""
    script = ScriptedInference("one", "two", "three")
    AgentLoop.for_model(script).execute_sync("Count.")
    with pytest.raises(AssertionError, match=r"2 of 3 lines .*not used:\n2: 'two'\n3: 'three'"):
        script.assert_complete()


def test_a_script_starts_at_its_first_line_in_each_execution() -> None:
    """A new execution starts with the first line of a script."""
    loop = AgentLoop.for_model(ScriptedInference("one", "two"))
    first = loop.execute_sync("Count.")
    assert (first.final_text, loop.execute_sync(first.with_message("Again.")).final_text) == ("one", "one")


# --- prompts, limits and modes ----------------------------------------------------------------------------------------------------------


def test_a_system_prompt_may_be_a_function_of_the_state() -> None:
    """A function as system prompt is called with the state, and its result is sent."""

    def instructions(state: AgentState) -> str:
        return f"You are asked: {state.messages[-1].text}"

    model, prompt = ScriptedInference("It is noon."), cast("Any", instructions)
    AgentLoop.for_model(model, system_prompt=prompt).execute_sync("What time is it?")
    assert model.requests[0].system_prompt == "You are asked: What time is it?"


def test_the_function_for_the_system_prompt_is_called_once_per_execution() -> None:
    """All requests of an execution have the same instructions, and the next execution has its own."""
    calls: list[int] = []

    def instructions(state: AgentState) -> str:
        calls.append(len(state.messages))
        return f"{len(state.messages)} messages"

    model = ScriptedInference(ToolCall("1", "look"), "It is noon.")
    loop = AgentLoop.for_model(model, tools=[look], system_prompt=instructions)
    loop.execute_sync(loop.execute_sync("What time is it?").with_message("And now?"))
    assert [request.system_prompt for request in model.requests] == ["1 messages"] * 2 + ["4 messages"] * 2
    assert calls == [1, 4]


def reached(thing: object, wanted: object) -> bool:
    """Return whether an object is an attribute of another object, or of its attributes."""
    values = list(public(thing).values())
    return any(item is wanted for value in values for item in (value, *public(value).values()))


@pytest.mark.parametrize("name", sorted(POINTS.keys() - {"on_error"}))
def test_an_interceptor_made_of_a_function_reaches_the_dependencies(name: str) -> None:
    """The dependencies of `execute` are reachable from the arguments of the function."""
    dependencies, seen, make = object(), list[bool](), cast("Any", at)

    def see(point: Any, *further: Any) -> Any:
        seen.append(any(reached(given, dependencies) for given in (point, *further)))
        return further[0]() if name.startswith("around") else point

    model = ScriptedInference(ToolCall("1", "look"), "Nothing.")
    loop = AgentLoop.for_model(model, tools=[look], interceptors=[make(name, see)])
    loop.execute_sync("Look.", dependencies=dependencies).raise_for_status()
    if not seen:
        pytest.fail("the function was not called")
    assert all(seen)


class Slow(Interceptor):
    """Takes twenty minutes at one point."""

    def __init__(self, point: str) -> None:
        self._point = point
        setattr(self, point, self._wait)

    @property
    def points(self) -> frozenset[str]:
        return frozenset({self._point})

    async def _wait(self, point: Any) -> Any:
        await asyncio.sleep(1200)
        return point


def run_with_slow(point: str, limit: Interceptor) -> tuple[AgentState, float]:
    """Run with an interceptor that is slow at a point; return the state, and the seconds that the run took."""

    async def measured() -> tuple[AgentState, float]:
        model = ScriptedInference(ToolCall("1", "look"), "Nothing.")
        loop = AgentLoop.for_model(model, tools=[look], interceptors=[Slow(point), limit], clock=LoopClock())
        state = await loop.execute("Look.")
        return state, asyncio.get_running_loop().time()

    return run_in_virtual_time(measured())


@pytest.mark.parametrize("limit", [Budget(seconds=10), TimeLimit(10)], ids=["Budget", "TimeLimit"])
@pytest.mark.parametrize("point", ["before_step", "before_inference", "after_inference", "before_tool_use"])
def test_a_slow_interceptor_is_interrupted_by_the_time_limit(point: str, limit: Interceptor) -> None:
    """The time limit of an execution includes its interceptors."""

    state, seconds = run_with_slow(point, limit)
    assert seconds < 100
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.TIME_LIMIT


@pytest.mark.parametrize("limit", [Budget(seconds=10), TimeLimit(10)], ids=["Budget", "TimeLimit"])
@pytest.mark.parametrize("point", ["before_execution", "after_tool_use", "after_step", "on_stop", "after_execution"])
def test_an_interceptor_after_an_operation_is_interrupted_and_its_outcome_dropped(
    point: str, limit: Interceptor
) -> None:
    """It has some seconds of grace when the time is over; a value that it was to change is not in the state."""

    state, seconds = run_with_slow(point, limit)
    assert seconds <= 20
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.TIME_LIMIT
    assert point != "after_tool_use" or [e.status.value for e in state.steps[0].executions] == ["failed"]


def refusal_of(make: Callable[[], object]) -> Exception | None:
    try:
        make()
    except (AgentLoopError, ValueError) as error:
        return error
    return None


def test_a_misspelled_mode_is_rejected_by_the_constructor() -> None:
    """A driver rejects an unknown mode, and the message lists the valid modes."""
    misspelled: Any = "nativ"
    refusal = refusal_of(lambda: ToolCallingDriver(inference=ScriptedInference("yes"), mode=misspelled))
    assert "native" in str(refusal)


class Unreachable(Interceptor):
    """Asks a service before each step, outside of all limits; the service is down, and the error is recovered from."""

    priority = 2000

    def __init__(self, comes_back_after: int) -> None:
        self.attempts = 0
        self._comes_back_after = comes_back_after

    def before_step(self, point: BeforeStep) -> BeforeStep:
        self.attempts += 1
        if self.attempts > self._comes_back_after:
            return point
        raise ConnectionError("the service is down")

    def on_error(self, point: OnError) -> OnError:
        return point.recover()


LIMITED: dict[str, dict[str, Any]] = {
    "max_steps": {"max_steps": 5},
    "StepLimit": {"max_steps": None, "interceptors": [StepLimit(5)]},
    "Budget": {"max_steps": None, "interceptors": [Budget(steps=5)]},
}


@pytest.mark.parametrize("limit", LIMITED.values(), ids=LIMITED)
def test_steps_that_fail_outside_of_the_limit_are_limited_too(limit: dict[str, Any]) -> None:
    """The step limit holds for any order of interceptors and any error that they recover from (law 5)."""
    unreachable = Unreachable(comes_back_after=200)
    loop = AgentLoop.for_model(ScriptedInference("done"), **limit).with_interceptors(unreachable)
    state = loop.execute_sync("Go.")
    assert (state.step_count <= 5, unreachable.attempts <= 6) == (True, True)


async def test_other_tasks_run_while_steps_fail() -> None:
    """A loop yields to other tasks between failed steps."""
    order: list[str] = []

    class Marked(Unreachable):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            order.append("step")
            if len(order) == 1:
                asyncio.get_running_loop().call_soon(order.append, "another task")
            return super().before_step(point)

    loop = AgentLoop.for_model(ScriptedInference("done"), interceptors=[Marked(comes_back_after=30)], max_steps=50)
    await loop.execute("Go.")
    assert "another task" in order
