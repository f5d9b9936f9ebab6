"""`run`, and the text of an execution as it is written: the output, or the error that says why there is none."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    Budget,
    Driver,
    Interceptor,
    ReActDriver,
    RequireApproval,
    ScriptedDriver,
    ScriptedInference,
    SqliteJournal,
    ToolCall,
    ToolCallingDriver,
    ToolContext,
    handoff_to,
    tool,
)
from agentloop.contracts import CanInfer
from agentloop.drivers import ScenarioStep
from agentloop.durable import MemoryJournal
from agentloop.errors import (
    ContractViolation,
    ExecutionError,
    ExecutionFailed,
    ExecutionStopped,
    ExecutionSuspended,
    NoOutput,
    ProviderUnavailable,
)
from agentloop.loop.event_stream import TextStream
from agentloop.loop.sync import SyncTextStream
from agentloop.testing import Ledger, toy_call, toy_tools
from agentloop.values import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    StopReason,
    Text,
    approve,
)
from agentloop.values.points import AfterInference, AfterStep
from agentloop.values.steps import ExecutionStatus


@frozen
class City:
    """A city."""

    name: str
    people: int


def talking(*lines: Any, **options: Any) -> AgentLoop[str]:
    """Return a loop with toy tools whose model says these lines."""
    loop: AgentLoop[str] = AgentLoop.for_model(ScriptedInference(*lines), tools=toy_tools(Ledger()), **options)
    return loop


def saying(text: str) -> list[object]:
    """Return a line with a text and a call."""
    return [text, toy_call("echo", 1)]


# --- run ------------------------------------------------------------------------------------------------------------


async def test_run_returns_the_text_of_the_answer() -> None:
    """Without an output type the output is the text, also from a program without an event loop."""
    assert await talking(toy_call("echo", 1), "done").run("go") == "done"


def test_run_sync_returns_the_typed_answer() -> None:
    """With an output type the output is an instance of it, in every state that the loop returns."""
    loop = AgentLoop.for_model(ScriptedInference(*['{"name": "Ulm", "people": 129942}'] * 3), output_type=City)
    assert loop.run_sync("Which city?") == City("Ulm", 129942)
    assert loop.execute_sync("Which city?").output == City("Ulm", 129942)
    assert [state.output for state in loop.iterate_sync("Which city?")][-1] == City("Ulm", 129942)


def test_a_failure_is_raised_from_its_exception() -> None:
    """An execution that fails raises `ExecutionFailed` with the final state, from the exception that failed it."""
    error = ProviderUnavailable("the model is down")
    with pytest.raises(ExecutionFailed, match="failed after 1 step: ProviderUnavailable: the model is down") as raised:
        talking(error).run_sync("go")
    assert raised.value.__cause__ is error
    assert raised.value.state.status is ExecutionStatus.FAILED


@pytest.mark.parametrize(
    ("options", "reason", "message"),
    [
        ({"max_steps": 1}, StopReason.STEP_LIMIT, r"step_limit \(by StepLimit\): the limit of 1 step is reached"),
        (
            {"interceptors": [Budget(tool_calls=1, wrap_up=0)]},
            StopReason.TOOL_CALL_LIMIT,
            "tool_call_limit .*: the limit of 1 tool call is reached",
        ),
    ],
)
def test_a_limit_is_raised_with_its_reason(options: dict[str, Any], reason: StopReason, message: str) -> None:
    """An execution that a limit stops raises `ExecutionStopped`, which names the limit; its state has the work that was done."""
    with pytest.raises(ExecutionStopped, match=message) as raised:
        talking(*[toy_call("echo", number) for number in range(3)], **options).run_sync("go")
    signal = raised.value.state.stop_signal
    assert signal is not None
    assert signal.reason is reason
    assert raised.value.state.tool_call_count


def test_a_limit_of_tokens_says_what_was_used() -> None:
    """The message has the number of tokens that were used."""
    with pytest.raises(
        ExecutionStopped, match=r"token_limit .*the limit of 10 tokens is .*reached: (about )?[\d,]+ used"
    ):
        talking(*[toy_call("echo", n) for n in range(9)], interceptors=[Budget(tokens=10, strict=False)]).run_sync("go")


def test_a_stop_that_was_requested_is_raised() -> None:
    """A tool that stops the execution is an `ExecutionStopped` with its words; an answer that was given is in the state."""

    @tool
    def leave() -> str:
        """Leave."""
        raise AgentStop("the shop is closed")

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "leave")), tools=[leave])
    with pytest.raises(ExecutionStopped, match=r"stop_requested \(by leave\): the shop is closed") as raised:
        loop.run_sync("go")
    assert raised.value.state.final_text is None


def test_an_answer_that_was_cut_off_is_not_an_output() -> None:
    """Its text is in the state, and the message says so."""
    cut = InferenceResponse((Text("The dose is 5"),), FinishReason.LENGTH)
    with pytest.raises(ExecutionStopped, match=r"the last answer of the model is in state\.final_text") as raised:
        talking(cut).run_sync("go")
    assert raised.value.state.final_text == "The dose is 5"


def test_a_suspension_names_the_calls_and_how_to_continue() -> None:
    """`ExecutionSuspended` has the state for `resume_sync`, whose final state has the output."""
    loop = talking(toy_call("echo", 1), "done", interceptors=[RequireApproval()])
    with pytest.raises(
        ExecutionSuspended, match=r"echo \(\S+/1/0\) waits for a decision; .* continue with .*resume\("
    ) as raised:
        loop.run_sync("go")
    state = raised.value.state
    resumed = loop.resume_sync(state, {call.key: approve() for call in state.pending})
    assert resumed.raise_for_status().output == "done"


def test_an_empty_answer_is_an_output() -> None:
    """A driver may answer with an empty text."""
    assert AgentLoop(ScriptedDriver(ScenarioStep.final(""))).run_sync("go") == ""


def test_an_execution_that_completes_without_an_answer_has_no_output() -> None:
    """A stop signal of the reason `completed` may follow a step that called tools."""

    class Enough(Interceptor):
        """Completes the execution after its first step."""

        def after_step(self, point: AfterStep) -> AfterStep:
            return point.stop("that is enough", reason=StopReason.COMPLETED)

    with pytest.raises(NoOutput, match=r"has no output, it is completed: completed .*that is enough"):
        talking(toy_call("echo", 1), interceptors=[Enough()]).run_sync("go")


def test_an_interrupted_execution_is_recovered_without_an_event_loop(tmp_path: Path) -> None:
    """`recover_sync` returns the state of the recorded execution, with the output in its type."""
    journal = SqliteJournal(tmp_path / "runs.db")
    loop = AgentLoop.for_model(ScriptedInference('{"name": "Ulm", "people": 1}'), output_type=City, journal=journal)
    assert loop.execute_sync("go", execution_id="run").output == City("Ulm", 1)
    assert loop.recover_sync("run").output == City("Ulm", 1)
    asyncio.run(journal.aclose())


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_states_and_errors_are_equal(twin: Callable[[Any], Any]) -> None:
    """A state that goes to another process has its output, and an error its state and its message."""
    assert twin(talking("done").execute_sync("go")).output == "done"
    with pytest.raises(ExecutionStopped) as raised:
        talking(toy_call("echo", 1), max_steps=1).run_sync("go")
    rebuilt = twin(raised.value)
    assert (type(rebuilt), str(rebuilt), rebuilt.state) == (ExecutionStopped, str(raised.value), raised.value.state)


# --- the text of an execution ---------------------------------------------------------------------------------------


def read(loop: AgentLoop[Any], message: str = "go") -> tuple[list[str], SyncTextStream[Any]]:
    """Read the text of an execution to its end."""
    stream = loop.stream_text_sync(message)
    return list(stream), stream


def test_text_arrives_in_pieces_however_the_driver_was_made() -> None:
    """A driver that was made without streaming streams for this execution, and for no other."""
    loop = talking(*["It is three indeed."] * 2)
    pieces, stream = read(loop)
    assert pieces == ["It ", "is ", "three ", "indeed."]
    assert (stream.text, stream.output, stream.restarts) == ("It is three indeed.", "It is three indeed.", 0)
    names: list[str] = []
    loop.wiretap(lambda event: names.append(type(event).__name__))
    loop.run_sync("go")
    assert "InferenceDeltaReceived" not in names


async def _iterate(loop: AgentLoop[Any]) -> AgentState:
    return [state async for state in loop.iterate("go")][-1]


async def _stream(loop: AgentLoop[Any]) -> AgentState | None:
    async with loop.stream("go") as stream:
        async for _ in stream:
            pass
        return stream.state


async def _interrupted(loop: AgentLoop[Any]) -> AgentState:
    """Take one step of an execution, and leave it."""
    states = loop.iterate("go", execution_id="run")
    state = await anext(states)
    await states.aclose()
    return state


async def _resume(loop: AgentLoop[Any]) -> AgentState:
    state = await loop.with_interceptors(RequireApproval()).execute("go")
    return await loop.resume(state, {call.key: approve() for call in state.pending})


async def _recover(loop: AgentLoop[Any]) -> AgentState:
    await _interrupted(loop)
    return await loop.recover("run")


async def _get(loop: AgentLoop[Any]) -> AgentState:
    await _interrupted(loop)
    return await loop.get_or_start("go", "run")


async def _continue(loop: AgentLoop[Any]) -> AgentState:
    return await loop.execute(await _interrupted(loop.replace(journal=None)))


@pytest.mark.parametrize("way", [_iterate, _stream, _resume, _recover, _get, _continue])
@pytest.mark.parametrize("streaming", [False, True])
async def test_only_reading_the_text_makes_a_model_stream(
    way: Callable[[AgentLoop[Any]], Awaitable[AgentState | None]], *, streaming: bool
) -> None:
    """However else an execution starts or continues, its driver streams if it was made to do so."""
    driver = ToolCallingDriver(ScriptedInference(toy_call("echo", 1), "a b"), streaming=streaming)
    loop = AgentLoop(driver, toy_tools(Ledger()), journal=MemoryJournal())
    names: list[str] = []
    loop.wiretap(lambda event: names.append(type(event).__name__))
    state = await way(loop)
    assert state is not None
    assert state.final_text == "a b"
    assert ("InferenceDeltaReceived" in names) is streaming


async def test_text_of_all_steps_is_read_with_an_empty_line_between_them() -> None:
    """What the model writes beside its calls belongs to the text."""
    stream = talking(saying("Let me look."), "Found it.").stream_text("go")
    assert [text async for text in stream] == ["Let ", "me ", "look.", "\n\nFound ", "it."]
    assert (stream.text, stream.output) == ("Let me look.\n\nFound it.", "Found it.")


def test_white_space_before_a_call_is_no_text() -> None:
    """A step that says nothing but white space leaves no empty line."""
    assert read(talking(saying(" \n"), "Found."))[0] == ["Found."]


@pytest.mark.parametrize(
    "driver",
    [
        ScriptedDriver(ScenarioStep.final("All of it.")),
        ReActDriver(
            ScriptedInference('{"thought": "I know.", "type": "final", "answer": "All of it."}'), output="json"
        ),
    ],
    ids=lambda driver: type(driver).__name__,
)
def test_a_driver_that_cannot_stream_yields_the_whole_text(driver: Driver) -> None:
    """Its text comes as one piece when the step has ended, or where the answer is known."""
    pieces, stream = read(AgentLoop(driver, toy_tools(Ledger())))
    assert "".join(pieces) == stream.output == stream.text == "All of it."


class Stumbling(CanInfer):
    """A model whose first stream breaks after a few words, and whose request is then sent again."""

    def __init__(self) -> None:
        self.attempts = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        raise AssertionError("it is streamed")

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        self.attempts += 1
        yield InferenceDelta("text", "The wea")
        if self.attempts == 1:
            raise ProviderUnavailable("the connection was lost")
        yield InferenceDelta("text", "ther is fine.")
        yield InferenceResponse((Text("The weather is fine."),))


class Again(Interceptor):
    """Sends a request that failed once more."""

    async def around_inference(self, point: Any, proceed: Callable[[], Any]) -> Any:
        try:
            return await proceed()
        except ProviderUnavailable:
            return await proceed()


def test_an_attempt_that_is_repeated_is_counted_and_does_not_count() -> None:
    """What was yielded stays; the next text follows after an empty line, and `text` has only what counts."""
    pieces, stream = read(AgentLoop.for_model(Stumbling(), interceptors=[Again()]))
    assert pieces == ["The wea", "\n\nThe wea", "ther is fine."]
    assert (stream.text, stream.restarts, stream.output) == ("The weather is fine.", 1, "The weather is fine.")


def test_an_answer_that_is_rejected_is_abandoned() -> None:
    """An answer of the wrong type is written again, and the first one is not in the text."""
    lines = ["Ulm, of course.", '{"name": "Ulm", "people": 1}']
    pieces, stream = read(AgentLoop.for_model(ScriptedInference(*lines), output_type=City))
    assert "".join(pieces) == "Ulm, of course.\n\n" + lines[1]
    assert (stream.text, stream.restarts, stream.output) == (lines[1], 1, City("Ulm", 1))


class Masking(Interceptor):
    """Replaces a word in answers."""

    def __init__(self, *, holds_deltas: bool) -> None:
        self.holds_deltas = holds_deltas

    def after_inference(self, point: AfterInference) -> AfterInference:
        text = point.response.text.replace("secret", "[hidden]")
        return point.with_response(point.response.with_parts([Text(text)]))


def test_a_text_that_an_interceptor_replaces_is_never_shown() -> None:
    """Pieces are held back for an interceptor that holds them; then the replacement is yielded."""
    pieces, stream = read(talking("The secret is out.", interceptors=[Masking(holds_deltas=True)]))
    assert "".join(pieces) == stream.text == "The [hidden] is out."


def test_a_text_that_was_shown_and_is_replaced_is_abandoned() -> None:
    """An interceptor that holds nothing back replaces what was yielded already."""
    pieces, stream = read(talking("The secret is out.", interceptors=[Masking(holds_deltas=False)]))
    assert "".join(pieces) == "The secret is out.\n\nThe [hidden] is out."
    assert (stream.text, stream.restarts) == ("The [hidden] is out.", 1)


def test_text_of_sub_agents_is_left_out() -> None:
    """Only the outer agent is read."""
    inner = talking("Inner words.").as_tool("ask", "Asks another agent.")
    outer = AgentLoop.for_model(ScriptedInference(ToolCall("1", "ask", '{"task": "x"}'), "Outer words."), tools=[inner])
    assert read(outer)[1].text == "Outer words."


def test_the_loop_that_takes_over_streams_as_well() -> None:
    """After a handoff the text is still read in pieces."""
    other = AgentLoop.for_model(ScriptedInference("Now it is me."))
    handoff = handoff_to(other, name="pass_on", description="Passes on.")
    first = AgentLoop.for_model(ScriptedInference(ToolCall("1", "pass_on", "{}")), tools=[handoff])
    assert read(first)[0] == ["Now ", "it ", "is ", "me."]


@pytest.mark.parametrize(
    ("lines", "options", "error", "text"),
    [
        ([ProviderUnavailable("down")], {}, ExecutionFailed, ""),
        ([saying("Let me look.")], {"max_steps": 1}, ExecutionStopped, "Let me look."),
        ([saying("May I?")], {"interceptors": [RequireApproval()]}, ExecutionSuspended, "May I?"),
    ],
)
def test_the_end_of_the_text_raises_what_run_raises(
    lines: list[Any], options: dict[str, Any], error: type[ExecutionError], text: str
) -> None:
    """The error comes after the last piece, and the stream has the state."""
    stream = talking(*lines, **options).stream_text_sync("go")
    pieces: list[str] = []
    with pytest.raises(error) as raised:
        pieces.extend(stream)
    assert stream.state is raised.value.state
    assert stream.text == text
    if error is not ExecutionSuspended:
        with pytest.raises(NoOutput):
            _ = stream.output


class Endless(CanInfer):
    """A model that writes a word, and then nothing more."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        raise AssertionError("it is streamed")

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        yield InferenceDelta("text", "one ")
        await asyncio.Event().wait()


async def test_a_stream_that_is_left_cancels_the_execution() -> None:
    """Leaving the stream waits for the end of the execution, whose last state it then has."""
    stream: TextStream[str]
    async with AgentLoop.for_model(Endless()).stream_text("go") as stream:
        assert await anext(stream) == "one "
        with pytest.raises(ContractViolation, match="read its stream to the end"):
            _ = stream.output
    assert stream.state is not None
    assert stream.state.status is ExecutionStatus.IN_PROGRESS


def test_a_stream_without_an_event_loop_can_be_left() -> None:
    """`close` and the end of a `with` cancel the execution; a closed stream has ended."""
    with AgentLoop.for_model(Endless()).stream_text_sync("go") as stream:
        assert next(stream) == "one "
        assert stream.state is None
    left: object = stream.state  # a type checker takes it for None still
    assert isinstance(left, AgentState)
    assert left.status is ExecutionStatus.IN_PROGRESS
    assert list(stream) == []


def test_events_can_be_read_without_an_event_loop() -> None:
    """`stream_sync` yields the events of the execution, and then has its state and its output."""
    stream = talking(toy_call("echo", 1), "done").stream_sync("go")
    names = [type(event).__name__ for event in stream]
    assert (names[0], names[-1]) == ("AgentExecutionStarted", "AgentExecutionCompleted")
    assert stream.state is not None
    assert (stream.state.step_count, stream.output) == (2, "done")


SYNC: dict[str, tuple[Callable[[AgentLoop[str]], object], str]] = {
    "run_sync": (lambda loop: loop.run_sync("go"), r"use await loop\.run\("),
    "execute_sync": (lambda loop: loop.execute_sync("go"), r"use await loop\.execute\("),
    "iterate_sync": (lambda loop: loop.iterate_sync("go"), r"use async for state in loop\.iterate\("),
    "stream_sync": (lambda loop: loop.stream_sync("go"), r"use async for event in loop\.stream\("),
    "stream_text_sync": (lambda loop: loop.stream_text_sync("go"), r"use async for text in loop\.stream_text\("),
    "resume_sync": (lambda loop: loop.resume_sync("run", {}), r"use await loop\.resume\("),
    "recover_sync": (lambda loop: loop.recover_sync("run"), r"use await loop\.recover\("),
    "get_or_start_sync": (lambda loop: loop.get_or_start_sync("go", "run"), r"use await loop\.get_or_start\("),
}


@pytest.mark.parametrize("name", SYNC)
async def test_inside_an_event_loop_the_error_says_what_to_write(name: str) -> None:
    """Each method without an event loop names itself and the one to use."""
    call, alternative = SYNC[name]
    with pytest.raises(RuntimeError, match=f"^{name} cannot be used inside a running event loop; {alternative}"):
        call(talking("done"))


@pytest.mark.parametrize("make", [AgentLoop.stream_sync, AgentLoop.stream_text_sync])
def test_a_stream_that_is_read_inside_an_event_loop_is_refused_and_goes_on(make: Callable[..., Any]) -> None:
    """Outside, its execution continues where it was."""
    stream = make(talking(toy_call("echo", 1), "done"), "go")

    async def misuse() -> None:
        with pytest.raises(RuntimeError, match="cannot be used inside a running event loop; use async for"):
            next(stream)
        with pytest.raises(RuntimeError, match="cannot be used inside a running event loop; use async for"):
            stream.close()

    next(stream)
    asyncio.run(misuse())
    for _ in stream:
        pass
    assert stream.output == "done"
    asyncio.run(asyncio.wait_for(_closed(stream), 1))


async def _closed(stream: Any) -> None:
    stream.close()  # it has ended


def test_every_method_that_runs_has_a_twin_for_programs_without_an_event_loop() -> None:
    """The twins are those of this page."""
    twins = {name for name in vars(AgentLoop) if name.endswith("_sync")}
    assert twins == set(SYNC)
    assert all(callable(getattr(AgentLoop, name.removesuffix("_sync"))) for name in twins)


def test_dependencies_reach_the_tools_of_run() -> None:
    """`run` passes dependencies on as `execute` does."""

    @tool
    def whose(context: ToolContext) -> str:
        """Say whose it is."""
        return str(context.dependencies)

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "whose"), "done"), tools=[whose])
    results: list[str] = []
    loop.wiretap(lambda event: results.extend([e.text for e in [getattr(event, "execution", None)] if e is not None]))
    assert loop.run_sync("go", dependencies="Ada's", execution_id="run") == "done"
    assert "Ada's" in results


def test_a_driver_keeps_streaming_that_it_was_made_with() -> None:
    """Reading the text does not turn streaming off."""
    loop = AgentLoop(ToolCallingDriver(ScriptedInference("a b"), streaming=True))
    assert read(loop)[0] == ["a ", "b"]
