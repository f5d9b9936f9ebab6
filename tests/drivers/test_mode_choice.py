"""Tests of the mode `auto` for a model that no row names: native calls, until the model or its server shows that it has none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    LLMConfig,
    ReActDriver,
    ScriptedInference,
    ToolCallingDriver,
    from_json,
    to_json,
    tool,
)
from agentloop.contracts import CanInfer, CanNameModel, CanUseMode
from agentloop.drivers import InferringDriver
from agentloop.drivers.mode_choices import mode_choice, with_mode_choice
from agentloop.durable import MemoryJournal, replay
from agentloop.errors import BadRequest, ToolsNotSupported
from agentloop.events import InferenceDeltaReceived, InferenceRetried, ModeChosen
from agentloop.models import (
    FallbackInference,
    HttpInference,
    RecordingInference,
    ReplayInference,
    TextMode,
    explain_mode,
    get_mode,
)
from agentloop.models.modes.calls import CALL_CHARACTER
from agentloop.models.modes.native import AssumedMode, NativeMode
from agentloop.models.modes.selection import select_mode
from agentloop.models.modes.structured import StructuredMode
from agentloop.models.text_calls import DEFAULT_FORMATS, read_calls
from agentloop.models.text_calls.openings import REASONING_TAGS, UNPAIRED_CLOSERS
from agentloop.values import (
    Bounds,
    Capabilities,
    CapabilityRow,
    ExecutionStatus,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Message,
    Reasoning,
    ResponseFormat,
    Text,
    ToolCall,
)
from agentloop.values.inference import ModeChoice
from agentloop.values.tool_calls import ANSWER_TOOL
from tests.durable.recovery_bench import truncate
from tests.models.loopback import Loopback, Reply, completion, loopback, respond, respond_json
from tests.models.loopback_inference import NO_WAIT
from tests.testing.lawful import PlanAndExecute, Planner

VLLM = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
REFUSALS: dict[str, tuple[int, Any]] = {
    "vllm": (400, {"object": "error", "message": VLLM, "type": "BadRequestError", "param": None, "code": 400}),
    "vllm-required": (400, {"error": {"message": 'tool_choice="required" requires --tool-call-parser to be set'}}),
    "ollama": (
        400,
        {"error": {"message": "registry.ollama.ai/library/mine:4b does not support tools", "type": "api_error"}},
    ),
    "ollama-native": (400, {"error": "registry.ollama.ai/library/mine:4b does not support tools"}),
    "llamacpp": (500, {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}),
    "llamacpp-old": (500, {"error": {"code": 500, "message": "Unsupported param: tools", "type": "server_error"}}),
    "openrouter": (
        404,
        {"error": {"message": "No endpoints found that support tool use. To learn more, visit: …", "code": 404}},
    ),
    "openrouter-choice": (
        404,
        {"error": {"message": "No endpoints found that support the provided 'tool_choice' value.", "code": 404}},
    ),
    "template": (400, {"error": {"message": "the chat template of this model does not support tools"}}),
    "mistral": (400, {"message": "Function calling is not enabled for this model", "type": "invalid_request_error"}),
    "openai": (
        400,
        {
            "error": {
                "message": "Unsupported parameter: 'tools' is not supported with this model.",
                "code": "unsupported_parameter",
            }
        },
    ),
    "nim": (400, {"error": {"message": "Tool use has not been enabled, because it is unsupported by mine."}}),
    "litellm": (
        400,
        {"error": {"message": "UnsupportedParamsError: x does not support parameters: ['tools'], for mine."}},
    ),
    "sentence": (400, {"error": {"message": "This template does not support tools. Use another one."}}),
    "closed-schema": (
        422,
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "tools"], "msg": "Extra inputs are not permitted"}]},
    ),
    "keyword": (400, {"error": {"message": "create() got an unexpected keyword argument 'tools'"}}),
    "additional": (400, {"error": {"message": "Additional properties are not allowed ('tools' was unexpected)"}}),
    "not-implemented": (501, {"error": {"message": "tools are not implemented"}}),
}
OTHER_REFUSALS = [
    '[{"loc": ["body", "tools", 0, "function", "strict"], "msg": "Extra inputs are not permitted"}]',
    "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
    "tools[0].function.strict is not supported",
    "Invalid schema for function 'add': 'oneOf' is not supported",
    "Failed to call a function. Please adjust your prompt.",
    "does not support image input",
]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
ANSWER = "It is 3."


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def refuse(name: str) -> Reply:
    """Refuse a request in the words of a server."""
    return respond_json(*REFUSALS[name])


def answer(text: str | None = None, **message: Any) -> Reply:
    """Answer a request, as a stream if it asks for one."""

    def reply(connection: Any, request: Any) -> None:
        if not request.json.get("stream"):
            respond(200, completion(text, **message))(connection, request)
            return
        delta = {"role": "assistant", "content": text, **message}
        data = {"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        end = {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        lines = [f"data: {json.dumps(item)}\n\n" for item in (data, end)] + ["data: [DONE]\n\n"]
        respond(200, "".join(lines).encode(), {"content-type": "text/event-stream"})(connection, request)

    return reply


NATIVE_CALL: dict[str, Any] = {
    "tool_calls": [
        {"id": "1", "index": 0, "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    ]
}


def inference_at(server: Loopback, model: str = "vllm:my-own-7b") -> HttpInference:
    """Return an inference for a model of the server that no row names."""
    return HttpInference(LLMConfig.parse(model, base_url=server.url, api_key="sk-0", retry=NO_WAIT))


@asynccontextmanager
async def loop_at(
    *replies: Reply, model: str = "vllm:my-own-7b", driver: dict[str, Any] | None = None, **parts: Any
) -> AsyncIterator[tuple[AgentLoop, Loopback]]:
    """Run a server with a script, and return a loop that calls a model of it."""
    async with loopback(*replies) as server:
        yield AgentLoop(ToolCallingDriver(inference_at(server, model), **(driver or {})), [add], **parts), server


def has_tools(server: Loopback) -> list[bool]:
    """Return for each request whether it offers tools through the API."""
    return ["tools" in request.json for request in server.requests]


# --- a server that refuses tools --------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refusal_of_tools_changes_the_mode(refusal: str, *, streaming: bool) -> None:
    """The request is sent again with the tools in its prompt, and so are all further ones; no step is lost."""
    replies = refuse(refusal), answer(CALL), answer(ANSWER)
    async with loop_at(*replies, driver={"streaming": streaming}) as (loop, server):
        chosen: list[ModeChosen] = []
        retried: list[InferenceRetried] = []
        loop.on(ModeChosen, chosen.append)
        loop.on(InferenceRetried, retried.append)
        state = await loop.execute("1 + 2?")
    assert state.messages[-1].text == ANSWER
    assert has_tools(server) == [True, False, False]
    assert '"name":"add"' in server.requests[1].json["messages"][0]["content"]
    assert (state.step_count, state.inference_count) == (2, 3)
    assert [event.choice.mode for event in chosen] == ["native", "validated"]
    assert "refused the tools" in chosen[1].choice.reason
    assert [event.error.type for event in retried] == ["ToolsNotSupported"]
    assert mode_choice(state, "vllm:my-own-7b") == chosen[1].choice


async def test_a_refusal_of_tools_is_one_error_for_a_model_that_a_row_names() -> None:
    """The mode of a row holds: the execution fails with the error, which is not retried."""
    async with loop_at(refuse("llamacpp"), model="ollama:llama3.1") as (loop, server):
        state = await loop.execute("1 + 2?")
    assert (state.status, [error.type for error in state.errors]) == (ExecutionStatus.FAILED, ["ToolsNotSupported"])
    assert len(server.requests) == 1


@pytest.mark.parametrize("message", OTHER_REFUSALS)
async def test_another_refusal_is_an_error(message: str) -> None:
    """A refusal of a field of tools, or of something else, does not change the mode."""
    async with loop_at(respond_json(400, {"error": {"message": message}})) as (loop, server):
        state = await loop.execute("1 + 2?")
    assert (state.errors[-1].type, len(server.requests)) == ("BadRequest", 1)


async def test_a_refusal_of_a_request_without_tools_is_an_error() -> None:
    """There is nothing to leave out, so the request is not repeated."""
    async with loopback(refuse("ollama")) as server:
        state = await AgentLoop(ToolCallingDriver(inference_at(server))).execute("1 + 2?")
    assert (state.errors[-1].type, len(server.requests)) == ("ToolsNotSupported", 1)
    assert issubclass(ToolsNotSupported, BadRequest)


async def test_a_mode_that_is_set_does_not_change() -> None:
    """`native` is native: the refusal fails the execution."""
    async with loop_at(refuse("ollama"), driver={"mode": "native"}) as (loop, _):
        state = await loop.execute("1 + 2?")
    assert state.errors[-1].type == "ToolsNotSupported"


# --- a model that writes its calls as text ----------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_plain_call_in_text_runs_and_changes_the_mode(*, streaming: bool) -> None:
    """The answer itself is read again, so that nothing is asked twice."""
    async with loop_at(answer(CALL), answer(ANSWER), driver={"streaming": streaming}) as (loop, server):
        state = await loop.execute("1 + 2?")
    assert [execution.value for execution in state.steps[0].executions] == [3]
    assert has_tools(server) == [True, False]
    choice = mode_choice(state, "vllm:my-own-7b")
    assert choice is not None
    assert (choice.mode, "wrote a call as text" in choice.reason) == ("validated", True)


async def test_an_invalid_call_in_text_is_repaired_in_the_same_step() -> None:
    """The model is told what is wrong, in the mode that it needs."""
    invalid = CALL.replace("2}}", '"two"}}')
    async with loop_at(answer(invalid), answer(CALL), answer(ANSWER)) as (loop, server):
        state = await loop.execute("1 + 2?")
    assert (state.step_count, [execution.value for execution in state.steps[0].executions]) == (2, [3])
    assert has_tools(server) == [True, False, False]
    assert "two" in server.requests[1].json["messages"][-2]["content"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        f"To add, I would write `{CALL}` in my answer.",
        "A model calls a tool in a <tool_call> tag, which </tool_call> closes.",
        'I would write this:\n\n```json\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n```\n\nThat is how it looks.',
        "I have used add(a=1, b=2) to get there.",
        '{"city": "Rome", "days": 3}',
        "Nothing of the kind.",
    ],
)
async def test_other_texts_stay_answers(text: str, *, streaming: bool) -> None:
    """Quoted calls and tags, calls in prose that have no tag, and data are the answer, and the mode holds."""
    async with loop_at(answer(text), driver={"streaming": streaming}) as (loop, _):
        deltas: list[str] = []
        loop.on(InferenceDeltaReceived, lambda event: deltas.append(event.delta.text))
        state = await loop.execute("1 + 2?")
    assert (state.status, state.messages[-1].text) == (ExecutionStatus.COMPLETED, text)
    assert mode_choice(state, "vllm:my-own-7b") is None
    assert "".join(deltas) == (text if streaming else "")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        f"Let me add these numbers: {CALL}",
        f"Let me add these numbers.\n\n{CALL}\n",
        'Let me add these numbers.\n{"name": "add", "arguments": {"a": 1, "b": 2}}',
    ],
)
async def test_a_call_in_prose_of_a_pure_tool_runs(text: str, *, streaming: bool) -> None:
    """A server that leaves a call in the text leaves the words before it there, too."""
    async with loop_at(answer(text), answer(ANSWER), driver={"streaming": streaming}) as (loop, _):
        state = await loop.execute("1 + 2?")
    assert [execution.value for execution in state.steps[0].executions] == [3]
    assert (state.final_text, state.steps[0].message.text if state.steps[0].message else "") == (
        ANSWER,
        "Let me add these numbers" + (":" if ":" in text.split("{", maxsplit=1)[0] else "."),
    )


async def test_a_call_of_no_tool_is_sent_back() -> None:
    """It is a call, of a tool that there is not."""
    unknown = '<tool_call>{"name": "unknown_tool", "arguments": {}}</tool_call>'
    async with loop_at(answer(unknown), answer(ANSWER)) as (loop, server):
        state = await loop.execute("1 + 2?")
    assert (state.final_text, state.step_count) == (ANSWER, 1)
    assert "there is no tool 'unknown_tool'" in server.requests[1].json["messages"][-1]["content"]


def test_a_quoted_call_is_listed_with_the_answer() -> None:
    """A caller can see that the model wrote about a call, which is no call of the response."""
    mode = select_mode("auto", Named())
    request = InferenceRequest((Message.user("1 + 2?"),), tools=(add.spec,))
    plain, quoting = [InferenceResponse((Text(text),)) for text in (ANSWER, f"I would write `{CALL}`.")]
    assert mode.parse_response(plain, request) == plain
    read = mode.parse_response(quoting, request)
    assert (read.parts, [call.name for call in read.quoted_calls]) == (quoting.parts, ["add"])


def test_the_assumed_mode_is_that_of_the_tool_api() -> None:
    """It has its name, and another one to fall back to."""
    mode = select_mode("auto", Named())
    assert mode.name == get_mode("native").name
    assert mode.fallback is not None
    assert mode.fallback.name == "validated"


def test_an_answer_is_given_with_a_tool_where_no_schema_can_be_enforced() -> None:
    """Nothing is assumed about what a server enforces."""
    request = InferenceRequest((Message.user("1 + 2?"),)).with_response_format(ResponseFormat({"type": "integer"}))
    offered = AssumedMode(model="m").render_request(request)
    assert ([spec.name for spec in offered.tools], offered.response_format) == ([ANSWER_TOOL], None)
    assert AssumedMode(model="m", enforces_schemas=True).render_request(request) == request


@pytest.mark.parametrize("model", ["llamacpp:my-own", "vllm:qwen3-8b", "ollama:gemma4"])
async def test_a_form_is_enforced_where_the_model_can_only_answer(model: str) -> None:
    """First the tools and the form in words; an answer in another form is asked for again without tools, with the schema."""
    replies = (answer(**NATIVE_CALL), answer("It is three."), answer('{"answer": 3}'))
    async with loop_at(*replies, model=model, output_type=int) as (loop, server):
        state = await loop.execute("1 + 2?")
    bodies = [json.loads(request.body) for request in server.requests]
    assert (state.output, state.step_count) == (3, 2)
    assert [("tools" in body, "response_format" in body, body.get("tool_choice")) for body in bodies] == [
        (True, False, None),
        (True, False, None),
        (False, True, None),
    ]
    assert all("satisfies this JSON Schema" in body["messages"][0]["content"] for body in bodies)
    assert not any(ANSWER_TOOL in request.body.decode() for request in server.requests)


async def test_a_form_is_asked_for_with_a_tool_where_a_row_says_so() -> None:
    """A row of the user's is what the server can do."""
    rows = [CapabilityRow("vllm:*", Capabilities("native"))]
    async with loop_at(answer("3"), model="vllm:qwen3-8b", output_type=int, driver={"models": rows}) as (loop, server):
        assert (await loop.execute("1 + 2?")).output == 3
    assert ANSWER_TOOL in server.requests[0].body.decode()


async def test_a_model_with_a_tool_api_stays_native() -> None:
    """Its calls run, and every request offers the tools."""
    async with loop_at(answer(**NATIVE_CALL), answer(ANSWER), driver={"streaming": True, "eager": True}) as (
        loop,
        server,
    ):
        state = await loop.execute("1 + 2?")
    assert [execution.value for execution in state.steps[0].executions] == [3]
    assert has_tools(server) == [True, True]
    assert not state.extensions


async def test_reasoning_in_the_text_is_apart_from_the_answer() -> None:
    """A server without a parser of reasoning leaves it in the text."""
    async with loop_at(answer("<think>1 + 2 is 3.</think>It is 3.")) as (loop, _):
        state = await loop.execute("1 + 2?")
    assert [type(part) for part in state.messages[-1].parts] == [Reasoning, Text]
    assert state.messages[-1].text == ANSWER


@pytest.mark.parametrize(("rest", "parts"), [(ANSWER, [Reasoning, Text]), (CALL, [Reasoning, ToolCall])])
def test_reasoning_may_begin_in_the_prompt(rest: str, parts: list[Any]) -> None:
    """Then the text has only the tag that ends it; an answer and a call behind it are read as usual."""
    written = InferenceResponse((Text(f"1 + 2 is 3.\n</think>\n\n{rest}"),))
    request = InferenceRequest((Message.user("1 + 2?"),), tools=(add.spec,))
    parsed = AssumedMode(model="m").parse_response(written, request)
    assert [type(part) for part in parsed.parts] == parts
    assert parsed.reasoning == "1 + 2 is 3."


@pytest.mark.parametrize(("length", "text"), [(len(CALL), ANSWER), (len(CALL) - 1, CALL)])
async def test_calls_in_a_text_are_read_within_the_bounds_of_the_loop(length: int, text: str) -> None:
    """A text of exactly the allowed length is read; a longer one is an answer."""
    async with loop_at(answer(CALL), answer(ANSWER), bounds=Bounds(text_characters=length)) as (loop, _):
        state = await loop.execute("1 + 2?")
    assert state.messages[-1].text == text


@pytest.mark.parametrize("text", ["3", '{"name": "give_final_answer", "arguments": {"answer": 3}}'])
async def test_a_typed_answer_may_be_written_as_text(text: str) -> None:
    """The answer is read from the text, also if it is a call of the tool that gives it, where that tool is offered."""
    rows = [CapabilityRow("*", Capabilities("native", is_assumed=True))]
    async with loop_at(answer(text), output_type=int, driver={"models": rows}) as (loop, server):
        state = await loop.execute("1 + 2?")
    assert (state.output, len(server.requests)) == (3, 1)


def test_every_call_and_tag_contains_a_call_character() -> None:
    """A text without one of these characters need not be read."""
    formats = [(*each.openings, *each.name_suffixes, *each.wrappers, *each.control_tokens) for each in DEFAULT_FORMATS]
    tags = [text for each in DEFAULT_FORMATS for pair in (*each.tags, *each.argument_tags) for text in pair if text]
    texts = {*tags, *chain.from_iterable(formats), *chain.from_iterable(REASONING_TAGS), *UNPAIRED_CLOSERS}
    # Their arguments are a list or an object, or a colon follows.
    assert {each for each in texts if not CALL_CHARACTER.search(each)} == {
        "functools",
        "to=",
        "**Action",
        *(f"Action {digit}" for digit in range(1, 10)),
    }


@given(st.text(st.sampled_from("add Action\n\t'\"=}])>a1,.;-_|")))
def test_reading_changes_no_text_without_a_call_character(text: str) -> None:
    """What reading would return is the text itself."""
    assume(not CALL_CHARACTER.search(text))
    result = read_calls(text, [add.spec])
    assert (result.calls, result.reasoning, result.full_text) == ((), "", text)


async def test_a_typed_answer_without_tools_is_enforced_by_the_server() -> None:
    """Local servers can constrain an answer to a schema."""
    async with loopback(answer('{"answer": 3}')) as server:
        driver = ToolCallingDriver(inference_at(server))
        state = await AgentLoop(driver, output_type=int).execute("1 + 2?")
    assert (state.output, server.requests[0].json["response_format"]["type"]) == (3, "json_schema")


async def test_programs_are_called_in_the_form_that_the_model_needs() -> None:
    """The mode `program` takes the form of `auto`, with its changes."""
    program = '<tool_call>{"name": "run_program", "arguments": {"code": "add(a=1, b=2)"}}</tool_call>'
    replies = refuse("ollama"), answer(program), answer(ANSWER)
    async with loop_at(*replies, driver={"mode": "program"}) as (loop, server):
        state = await loop.execute("1 + 2?")
    assert (has_tools(server), state.messages[-1].text) == ([True, False, False], ANSWER)
    assert "def add" in server.requests[1].json["messages"][0]["content"]


# --- for how long a choice holds --------------------------------------------------------------------------------------


async def test_each_execution_decides_for_itself() -> None:
    """A further execution of the same agent asks natively again, and so does another agent of the same loop."""
    script = [refuse("ollama"), answer(ANSWER)]
    async with loop_at(*script * 3) as (loop, server):
        state = await loop.execute("1 + 2?")
        state = await loop.execute(state.with_message("And again?"))
        await loop.execute("1 + 2?")
    assert has_tools(server) == [True, False] * 3
    assert state.execution_count == 2


def by_turn(turns: Sequence[str], *, refuses: bool) -> Reply:
    """Answer with the turn that follows those in the request, as a model does in any process."""

    def reply(connection: Any, request: Any) -> None:
        if refuses and "tools" in request.json:
            refuse("llamacpp")(connection, request)
            return
        number = sum(message["role"] == "assistant" for message in request.json["messages"])
        answer(turns[number])(connection, request)

    return reply


def results(state: AgentState) -> list[Any]:
    """Return the texts of a conversation and the results of its calls, without ids and times."""
    return [(message.text, [exchange.execution.value for exchange in message.exchanges]) for message in state.messages]


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_recovery_keeps_the_mode_and_a_replay_is_equal(*, refuses: bool) -> None:
    """Wherever the process ends, the recovered execution asks as the interrupted one would have, and ends in the same state."""
    journal = MemoryJournal()
    reply = by_turn([CALL, CALL.replace("2}}", "5}}"), ANSWER], refuses=refuses)
    async with loop_at(*[reply] * 4, journal=journal) as (loop, _):
        whole = await loop.execute("1 + 2?", execution_id="run")
        replayed = await replay(journal, "run", loop)
    assert (whole.messages[-1].text, replayed.divergence, replayed.is_complete) == (ANSWER, None, True)
    records = await journal.read("run")
    for count in range(1, len(records)):
        crashed = await truncate(journal, "run", count)
        is_known = any(record.kind == "inference_recorded" for record in await crashed.read("run"))
        async with loop_at(*[reply] * 4, journal=crashed) as (loop, server):
            recovered = await loop.recover("run")
        assert results(recovered) == results(whole)
        assert mode_choice(recovered, "vllm:my-own-7b") == mode_choice(whole, "vllm:my-own-7b")
        # A process that died before the first response was recorded has learned nothing.
        assert any(has_tools(server)) == (not is_known)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_recording_holds_the_refusal(tmp_path: Path, *, streaming: bool) -> None:
    """A replay of the file asks in the same modes as the recorded run."""
    path = tmp_path / "run.json"
    async with loopback(refuse("ollama"), answer(CALL), answer(ANSWER)) as server:
        recording = RecordingInference(inference_at(server), path)
        recorded = await AgentLoop(ToolCallingDriver(recording, streaming=streaming), [add]).execute("1 + 2?")
    replayed = await AgentLoop(ToolCallingDriver(ReplayInference(path), streaming=streaming), [add]).execute("1 + 2?")
    assert results(replayed) == results(recorded)
    assert mode_choice(replayed, "vllm:my-own-7b") == mode_choice(recorded, "vllm:my-own-7b")


# --- several models ---------------------------------------------------------------------------------------------------


async def test_each_model_of_a_fallback_has_its_own_mode() -> None:
    """A refusal is no failure of the first model: it is asked in another mode, and the next model is not."""
    async with loopback(refuse("ollama"), answer(CALL), answer(ANSWER)) as first, loopback() as second:
        models = FallbackInference([inference_at(first), inference_at(second, "vllm:another-7b")])
        state = await AgentLoop(ToolCallingDriver(models), [add]).execute("1 + 2?")
    assert (state.messages[-1].text, has_tools(first), second.requests) == (ANSWER, [True, False, False], [])


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_second_model_of_a_fallback_may_need_another_mode(*, streaming: bool) -> None:
    """What one model has shown is not held against the other."""
    failing = respond_json(400, {"error": {"message": "no such thing"}})
    async with (
        loopback(failing, failing, failing) as first,
        loopback(refuse("ollama"), answer(CALL), answer(ANSWER)) as second,
    ):
        models = FallbackInference([inference_at(first), inference_at(second, "vllm:another-7b")])
        events: list[ModeChosen] = []
        loop = AgentLoop(ToolCallingDriver(models, streaming=streaming), [add])
        loop.on(ModeChosen, events.append)
        state = await loop.execute("1 + 2?")
    assert state.messages[-1].text == ANSWER
    assert (has_tools(first), has_tools(second)) == ([True, True], [True, False, False])
    assert [(event.choice.model, event.choice.mode) for event in events] == [
        ("vllm:my-own-7b", "native"),
        ("vllm:another-7b", "native"),
        ("vllm:another-7b", "validated"),
    ]


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "mode", "reason"),
    [
        ("openai:gpt-5", "native", "names the model"),
        ("ollama:gemma3:4b", "validated", "names the model"),
        ("groq:something-new", "native", "names its service"),
        ("vllm:my-own-7b", "native", "its tool API is tried first"),
        ("acme:frob", "native", "no row names the model or its service; its tool API is tried first"),
    ],
)
def test_the_choice_of_auto_can_be_explained(model: str, mode: str, reason: str) -> None:
    """`explain_mode` returns the mode and the row that decides, without a request."""
    choice = explain_mode(model)
    assert (choice.model, choice.mode, reason in choice.reason) == (model, mode, True)


@pytest.mark.parametrize(
    ("known", "mode"),
    [
        (Capabilities("native", structured_output="json_schema"), NativeMode(output="format", written_calls="read")),
        (Capabilities("native", structured_output="json_object"), NativeMode(output="tool", written_calls="read")),
        (Capabilities("native"), NativeMode(output="tool", written_calls="read")),
        (Capabilities("structured", structured_output="json_schema"), StructuredMode(variant="json_schema")),
        (Capabilities("structured", structured_output="json_object"), StructuredMode(variant="json_object")),
        (Capabilities("validated", is_assumed=True), TextMode()),
        (Capabilities("validated"), TextMode()),
        (Capabilities("parsed"), TextMode(reprompts=False)),
        (
            Capabilities("native", structured_output="json_schema", is_assumed=True),
            AssumedMode(model="ollama:my-own", enforces_schemas=True),
        ),
        (Capabilities("native", is_assumed=True), AssumedMode(model="ollama:my-own", enforces_schemas=False)),
    ],
)
def test_a_mode_asks_for_what_the_model_can_do(known: Capabilities, mode: CanUseMode) -> None:
    """A row of the program decides which mode `auto` is, and in which form; a mode that is named has that form, too."""
    rows = [CapabilityRow("ollama:my-own", known)]
    assert select_mode("auto", Named(), rows) == mode
    if not known.is_assumed:
        assert select_mode(known.mode, Named(), rows) == mode


@pytest.mark.parametrize("model", ["openai:gpt-5", "ollama:gemma3:4b", "openai:gpt-4.1"])
def test_what_is_known_of_a_model_is_not_tried(model: str) -> None:
    """Only an assumed tool API may be given up."""
    assert "tried first" not in explain_mode(model).reason


class Named(ScriptedInference, CanNameModel):
    """A scripted model with a name."""

    model_name = "ollama:my-own"
    wire_format_name = "openai-chat"


NAMED, UNNAMED = Named(), ScriptedInference()


@pytest.mark.parametrize(
    ("driver", "model", "mode"),
    [
        (ToolCallingDriver(NAMED), NAMED, "native"),
        (ToolCallingDriver(UNNAMED), UNNAMED, "native"),
        (ToolCallingDriver(NAMED, mode="validated"), NAMED, "validated"),
        (ToolCallingDriver(UNNAMED, mode="structured"), UNNAMED, "structured"),
        (ReActDriver(NAMED), NAMED, "react-json"),
        (ReActDriver(UNNAMED), UNNAMED, "react-json"),
        (ReActDriver(NAMED, output="text"), NAMED, "react-text"),
        (PlanAndExecute(inference=NAMED, planner=Planner()), NAMED, "native"),
    ],
)
def test_every_driver_explains_the_mode_of_a_model(driver: InferringDriver, model: CanInfer, mode: str) -> None:
    """It names the model, where that has a name, the mode in which it is called, and why; also where the program has set the mode."""
    choice = driver.explain_mode(model, AgentState.start("?"))
    assert (choice.model, choice.mode) == ("ollama:my-own" if model is NAMED else "", mode)
    assert choice.reason


@pytest.mark.parametrize(
    ("driver", "mode"),
    [
        (ToolCallingDriver(Named("Done.", "Done.")), "native"),
        (ReActDriver(Named(*['{"thought": "", "type": "final", "answer": "Done."}'] * 2)), "react-json"),
    ],
)
async def test_both_drivers_tell_which_mode_they_chose(driver: Any, mode: str) -> None:
    """The event precedes the first request of each execution; a mode that is set has none."""
    loop, chosen = AgentLoop(driver, [add]), list[ModeChoice]()
    loop.on(ModeChosen, lambda event: chosen.append(event.choice))
    await loop.execute("?")
    await loop.execute("?")
    assert [(choice.model, choice.mode) for choice in chosen] == [("ollama:my-own", mode)] * 2
    quiet = AgentLoop(ToolCallingDriver(Named("Done."), mode="native"), [add])
    quiet.on(ModeChosen, lambda event: chosen.append(event.choice))
    await quiet.execute("?")
    assert len(chosen) == 2


def test_a_choice_is_part_of_the_json_form_of_a_response() -> None:
    """It is recorded with the response, and a state keeps it by model and execution."""
    call = ToolCall("", "add", '{"a": 1, "b": 2}')
    choice = ModeChoice("m", "validated", "why")
    response = InferenceResponse((call,), FinishReason.TOOL_CALLS, mode_choice=choice)
    assert from_json(to_json(response), InferenceResponse) == response
    state = with_mode_choice(AgentState.start("?"), choice)
    assert (mode_choice(state, "m"), mode_choice(state, "n")) == (choice, None)
