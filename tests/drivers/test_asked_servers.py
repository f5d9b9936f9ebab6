"""A server of the user's is asked what it can do, and its model is called in the mode that the answer allows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from attrs import define, field

from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver, tool
from agentloop.durable import MemoryJournal
from agentloop.events import InferenceDeltaReceived, InferenceRetried, ModeChosen
from agentloop.models import server_questions
from agentloop.models.server_abilities import read_llama_cpp, read_models, read_ollama
from agentloop.models.server_questions import forget_servers
from agentloop.values import Capabilities, CapabilityRow
from agentloop.values.policies import RetryPolicy
from tests.limits import LONGEST
from tests.models.chat_stream import stream_text
from tests.models.loopback import Connection, Loopback, ReceivedRequest, respond, respond_json


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_questions, "_SECONDS", LONGEST)
    forget_servers()


@tool(effect="pure")
def get_weather(city: str, unit: str = "C") -> str:
    """Get the current weather of a city, with the temperature in degrees and a word for the sky.

    Args:
        city: the name of the city, such as Paris, without the country.
        unit: the unit of the temperature: C for degrees Celsius, F for degrees Fahrenheit.
    """
    return f"{city}: 21 {unit}, cloudy"


CALL = '{"next": [{"tool": "get_weather", "arguments": {"city": "Paris", "unit": null}}]}'
TAGGED = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
LLAMA: Mapping[str, Any] = {"default_generation_settings": {}, "chat_template": "{{ messages }}", "build_info": "b1"}
WITHOUT = {**LLAMA, "chat_template_caps": {"supports_tools": False}}
WITH = {**LLAMA, "chat_template_caps": {"supports_tools": True}}


@define
class Server(Loopback):
    """A server of models with documents that it gives at paths; texts are the answers of its model.

    Attributes:
        asked: the paths of the questions about it.
    """

    documents: Mapping[str, Any]
    answers: list[str]
    tokens: int | Callable[[Any], int] | None = None
    cached: int | None = None
    asked: list[str] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        super().__init__(())

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        if request.target.endswith(("/chat/completions", "/api/chat")):
            self.requests.append(request)
            self._changed.set()
            if not self.answers:  # held until the connection is closed
                return
            text = self.answers.pop(0)
            if text == "fail":
                respond(400)(connection, request)
                return
            is_streamed = request.json.get("stream", False)
            reply = stream_text(text) if is_streamed else respond_json(200, self._completion(request, text))
        else:
            self.asked.append(request.target)
            document = self.documents.get(request.target)
            reply = respond(404) if document is None else respond_json(200, document)
        reply(connection, request)

    def _completion(self, request: ReceivedRequest, text: str) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if text.startswith("call "):
            function = {"name": text.removeprefix("call "), "arguments": '{"city": "Paris"}'}
            message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        if request.target == "/api/chat":
            return {"model": "m", "message": message, "done": True, "done_reason": "stop"}
        tokens = self.tokens(request.json) if callable(self.tokens) else self.tokens
        usage: dict[str, Any] = {} if tokens is None else {"usage": {"prompt_tokens": tokens, "completion_tokens": 5}}
        if self.cached is not None:
            usage["usage"]["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return {
            "id": "1",
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            **usage,
        }

    @property
    def forms(self) -> list[str]:
        """How each request offers the tools."""
        return [
            "native" if "tools" in each.json else "structured" if _schema(each.json) else "text"
            for each in self.requests
        ]


def _schema(body: Any) -> bool:
    return "response_format" in body or "format" in body


@asynccontextmanager
async def server_of(
    documents: Mapping[str, Any],
    *answers: str,
    tokens: int | Callable[[Any], int] | None = None,
    cached: int | None = None,
) -> AsyncIterator[Server]:
    server = Server(documents, list(answers), tokens, cached)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def loop_at(server: Server, model: str = "llamacpp:smollm2", path: str = "", **settings: Any) -> AgentLoop:
    config = LLMConfig.parse(
        model, base_url=f"http://127.0.0.1:{server.port}{path}", retry=RetryPolicy(initial_wait=0), environment={}
    )
    return AgentLoop(ToolCallingDriver(HttpInference(config), **settings), [get_weather])


async def test_no_step_reads_the_tables_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many steps an execution has, it looks for the model among the rows of all models as often: that takes a third of a turn."""
    compared: list[str] = []

    def matching_pattern(self: CapabilityRow, names: Iterable[str], wire_format: str = "") -> str:
        compared.append(self.pattern)
        return known(self, names, wire_format)

    known = CapabilityRow.matching_pattern
    monkeypatch.setattr(CapabilityRow, "matching_pattern", matching_pattern)

    async def compared_in(steps: int) -> int:
        compared.clear()
        async with server_of(WITH, *["call get_weather"] * (steps - 1), "done") as server:
            await loop_at(server, "llamacpp:a-model-of-this-test").execute("How is the weather?")
            assert len(server.requests) == steps
        return len(compared)

    assert await compared_in(1) > 0  # nothing is known yet
    assert await compared_in(1) == await compared_in(3)


@pytest.mark.parametrize(
    ("model", "path", "documents"),
    [
        ("llamacpp:smollm2", "", {"/props": WITHOUT}),
        ("llamacpp:my-own", "/prefix/v1", {"/prefix/props": WITHOUT}),
        ("openai:my-own", "/v1", {"/props": {**LLAMA, "chat_template": "{{ old }}"}}),
        ("ollama:my-own", "", {"/api/version": {"version": "0.9"}, "/api/show": {"template": "", "capabilities": []}}),
        ("ollama-native:my-own", "", {"/api/version": {"version": "0.5"}, "/api/show": {"template": "{{ .Prompt }}"}}),
    ],
)
async def test_a_model_without_tools_is_called_by_a_schema(model: str, path: str, documents: Mapping[str, Any]) -> None:
    """The first request has no tools that the server would leave out, and an event says why."""
    answers = [CALL, '{"next": [{"answer": "It is 21 C."}]}']
    async with server_of(documents, *answers) as server:
        loop = loop_at(server, model, path)
        chosen: list[ModeChosen] = []
        loop.on(ModeChosen, chosen.append)
        state = await loop.execute("Weather in Paris?")
    assert (state.final_text, server.forms) == ("It is 21 C.", ["structured", "structured"])
    assert [event.choice.mode for event in chosen][-1] == "structured"
    assert "says that the template of the model has no tools" in chosen[-1].choice.reason


async def test_a_model_with_tools_is_called_by_the_tool_api_and_asked_once() -> None:
    """The answer is kept for the address."""
    async with server_of({"/props": WITH}, "done", "done") as server:
        for _ in range(2):
            assert (await loop_at(server).execute("go")).final_text == "done"
    assert (server.forms, server.asked) == (["native", "native"], ["/props"])


async def test_a_schema_that_is_not_enforced_is_given_up() -> None:
    """The first answer shows it; the request is sent again with the tools in the prompt, and the tokens of both count."""
    async with server_of({"/props": WITHOUT}, "It is sunny.", TAGGED, "21 C", tokens=100) as server:
        loop = loop_at(server)
        chosen: list[ModeChosen] = []
        retried: list[InferenceRetried] = []
        loop.on(ModeChosen, chosen.append)
        loop.on(InferenceRetried, retried.append)
        state = await loop.execute("Weather in Paris?")
    assert (state.final_text, server.forms) == ("21 C", ["structured", "text", "text"])
    assert [event.choice.mode for event in chosen][-1] == "validated"
    assert "no schema is enforced" in chosen[-1].choice.reason
    assert (len(retried), state.usage.input_tokens, state.step_count) == (1, 300, 2)


async def test_a_streamed_answer_is_shown_once_its_form_is_known() -> None:
    """What does not keep to the schema is not shown."""
    async with server_of({"/props": WITHOUT}, "It is sunny.", "It is 21 C.") as server:
        loop = loop_at(server, streaming=True)
        shown: list[str] = []
        loop.on(InferenceDeltaReceived, lambda event: shown.append(event.delta.text))
        state = await loop.execute("Weather in Paris?")
    assert (state.final_text, "".join(shown), server.forms) == ("It is 21 C.", "It is 21 C.", ["structured", "text"])


def count_texts(body: Any) -> int:
    """Return the tokens of a prompt in which a server has left out the tools."""
    return sum(8 + len(message["content"] or "") // 4 for message in body["messages"])


def count_all(body: Any) -> int:
    """Return the tokens of a prompt with its tools."""
    return count_texts(body) + len(json.dumps(body.get("tools", ""))) // 4


VLLM = {"/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}}


@pytest.mark.parametrize("documents", [VLLM, {}])
@pytest.mark.parametrize("model", ["vllm:my-own", "llamacpp:my-own", "lmstudio:my-own"])
async def test_where_nothing_is_said_the_tokens_of_the_prompt_tell(model: str, documents: Mapping[str, Any]) -> None:
    """A prompt that is too short for the tools did not have them; the next execution knows it."""
    answers = ["It is sunny.", CALL, '{"next": [{"answer": "21 C"}]}', CALL, '{"next": [{"answer": "22 C"}]}']
    async with server_of(documents, *answers, tokens=count_texts) as server:
        loop = loop_at(server, model, "/v1")
        told: list[Any] = []
        loop.on(ModeChosen, told.append)
        loop.on(InferenceRetried, told.append)
        states = [await loop.execute("Weather in Paris?") for _ in range(2)]
    assert [state.final_text for state in states] == ["21 C", "22 C"]
    assert server.forms == ["native", *["structured"] * 4]
    assert [type(event) for event in told].count(InferenceRetried) == 1
    assert (
        "the server has left out the tools"
        in next(
            event for event in told if isinstance(event, ModeChosen) and event.choice.mode == "structured"
        ).choice.reason
    )


@pytest.mark.parametrize("tokens", [None, 0, 1, 3, 7, 20, 30, 400, count_all])
async def test_a_prompt_with_tools_stays_as_it_is(tokens: int | Callable[[Any], int] | None) -> None:
    """So does one whose tokens are unknown, or no count of the prompt; a server is tested once for that."""
    answers = ["It is sunny.", "It is cloudy."]
    async with server_of({}, *answers, *answers, tokens=tokens) as server:
        state = await loop_at(server, "vllm:my-own").execute("What is the weather in Paris now?")
        tests = server.forms[1:]
        again = await loop_at(server, "vllm:my-own").execute("What is the weather in Rome now?")
    assert state.final_text == "It is sunny."
    assert not tests or tests in (["structured", "text"], ["structured"])
    assert server.forms[1 + len(tests) :] == ["native"]
    assert again.final_text in answers


@pytest.mark.parametrize(
    ("model", "cached", "documents"),
    [
        ("vllm:my-own", 90, {}),  # what was in the cache may be left out of the count
        ("openai:my-own", None, {}),  # a gateway may count in a way of its own
        ("ollama:my-own", None, {}),  # it would say it
        ("llamacpp:my-own", None, {"/props": WITH}),
    ],
)
async def test_a_count_that_may_be_another_one_changes_nothing(
    model: str, cached: int | None, documents: Mapping[str, Any]
) -> None:
    """The request is sent once, by the tool API."""
    async with server_of(documents, "It is sunny.", tokens=count_texts, cached=cached) as server:
        state = await loop_at(server, model, "/v1").execute("Weather in Paris?")
    assert (state.final_text, server.forms) == ("It is sunny.", ["native"])


async def test_a_model_that_has_called_a_tool_is_not_doubted() -> None:
    """Neither in that conversation nor in the next one, whatever the server counts."""
    answers = ["call get_weather", "It is 21 C.", "Hello."]
    async with server_of({}, *answers, tokens=count_texts) as server:
        states = [await loop_at(server, "vllm:my-own").execute(text) for text in ("Weather in Paris?", "Hi.")]
    assert [state.final_text for state in states] == ["It is 21 C.", "Hello."]
    assert server.forms == ["native"] * 3


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_answer_stands_if_the_test_of_its_server_fails(*, streaming: bool) -> None:
    """A server that fails at the second request has answered the first one."""
    async with server_of({}, "It is sunny.", *["fail"] * 9, tokens=count_texts) as server:
        loop = loop_at(server, "vllm:my-own", streaming=streaming)
        shown: list[str] = []
        loop.on(InferenceDeltaReceived, lambda event: shown.append(event.delta.text))
        state = await loop.execute("Weather in Paris?")
    assert state.final_text == "It is sunny."
    assert "".join(shown) == ("It is sunny." if streaming else "")


@pytest.mark.parametrize(
    "settings", [{"mode": "native"}, {"models": [CapabilityRow("llamacpp:*", Capabilities("native"))]}]
)
async def test_a_program_that_says_the_mode_is_not_overruled(settings: Mapping[str, Any]) -> None:
    """Nobody is asked."""
    async with server_of({"/props": WITHOUT}, "done") as server:
        await loop_at(server, **settings).execute("go")
    assert (server.forms, server.asked) == (["native"], [])


async def test_a_recorded_step_asks_nobody() -> None:
    """Recovery uses the choice that the record holds."""
    journal = MemoryJournal()
    async with server_of({"/props": WITHOUT}, CALL) as server:
        loop = loop_at(server).replace(journal=journal)
        running = asyncio.create_task(loop.execute("Weather in Paris?", execution_id="e"))
        await server.received(2)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        forget_servers()
        server.asked.clear()
        server.answers.append('{"next": [{"answer": "21 C"}]}')
        state = await loop.recover("e")
    assert (state.final_text, server.asked, server.forms) == ("21 C", [], ["structured"] * 3)


def test_a_hosted_service_is_not_asked() -> None:
    """Only a local preset and an address that the user names are."""
    for model in ("openai:gpt-5", "anthropic:claude-sonnet-5", "openrouter:x", "groq:y", "mistral:z"):
        assert not HttpInference(LLMConfig.parse(model, api_key="k", environment={})).asks_server
    for model in ("llamacpp:x", "ollama:x", "vllm:x", "lmstudio:x", "ollama-native:x"):
        assert HttpInference(LLMConfig.parse(model, environment={})).asks_server
    named = LLMConfig.parse("openrouter:x", base_url="http://gateway.example", environment={})
    assert HttpInference(named).asks_server


def test_the_answers_of_other_servers_are_no_answers() -> None:
    """Whatever a server gives at these paths."""
    documents: list[object] = [None, [], "x", {}, {"data": None}, {"data": [1]}, {"choices": []}, {"object": "error"}]
    for document in documents:
        assert read_llama_cpp(document) is read_ollama(document) is read_models(document) is None
