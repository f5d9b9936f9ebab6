"""`AgentLoop.for_model`: the settings of a model and all parts of a loop, each by its name."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, assert_type

import pytest
from attrs import NOTHING

from agentloop import AgentLoop, LLMConfig, ScriptedInference, ToolCall, ToolCallingDriver, ToolChoice, tool
from agentloop.compilers import ConversationWithCurrentToolTrace
from agentloop.contracts import CanInfer
from agentloop.errors import ConfigurationError
from agentloop.loop.parts import FileOptions, LoopOptions, ModelOptions
from agentloop.models import HttpInference
from agentloop.values import HostedTool, InferenceDelta, InferenceOptions, InferenceRequest, InferenceResponse, Text
from agentloop.values.records import InDoubt
from agentloop.values.secrets import Secret
from tests.models.loopback import loopback, respond_text


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_every_setting_is_in_the_request() -> None:
    """The body that the provider receives has the settings of the loop."""
    async with loopback(respond_text()) as server:
        loop = AgentLoop.for_model(
            "openai:some-model",
            tools=[add],
            base_url=server.url,
            api_key="sk-0000",
            mode="native",
            temperature=0.2,
            top_p=0.9,
            max_tokens=100,
            stop=["END"],
            seed=7,
            reasoning_effort="low",
            tool_choice="required",
            parallel_tool_calls=False,
            logprobs=True,
            top_logprobs=3,
            extra={"user": "ada"},
        )
        await loop.execute("Hi.")
        request = server.requests[0]  # the others ask again for the required call
    body = request.json
    limit = body.get("max_tokens", body.get("max_completion_tokens"))
    assert (body["temperature"], body["top_p"], limit, body["stop"], body["seed"]) == (0.2, 0.9, 100, ["END"], 7)
    assert (body["reasoning_effort"], body["tool_choice"], body["parallel_tool_calls"]) == ("low", "required", False)
    assert (body["logprobs"], body["top_logprobs"], body["user"]) == (True, 3, "ada")
    assert request.headers["authorization"] == "Bearer sk-0000"


async def test_a_key_may_be_a_secret_or_a_function() -> None:
    """Keys are passed as everywhere else."""
    async with loopback(respond_text(), respond_text()) as server:
        for key in (Secret("sk-1"), lambda: "sk-1"):
            await AgentLoop.for_model("openai:some-model", base_url=server.url, api_key=key).execute("Hi.")
        assert [request.headers["authorization"] for request in server.requests] == ["Bearer sk-1"] * 2


def test_settings_of_the_driver_and_the_connection() -> None:
    """Settings that are no part of a request configure the driver and the model."""
    loop = AgentLoop.for_model(
        "ollama:some-model",
        timeout=3,
        mode="validated",
        max_retries=5,
        streaming=True,
        eager=True,
        cache_prompt=True,
        hosted_tools=["web_search"],
    )
    driver = loop.driver
    assert isinstance(driver, ToolCallingDriver)
    assert (driver.mode, driver.max_retries, driver.streaming, driver.eager) == ("validated", 5, True, True)
    assert driver.options == InferenceOptions(cache_prompt=True, hosted_tools=[HostedTool.web_search()])
    assert isinstance(driver.inference, HttpInference)
    assert driver.inference.config.timeout == 3
    configured = AgentLoop.for_model(LLMConfig.parse("ollama:some-model", timeout=3), timeout=9).driver
    assert isinstance(configured, ToolCallingDriver)
    assert isinstance(configured.inference, HttpInference)
    assert configured.inference.config.timeout == 9


async def test_the_settings_of_a_request_apply_to_any_model() -> None:
    """An inference of the program gets them with each request, and they take precedence over those of a configuration."""
    model = ScriptedInference("Hello.")
    await AgentLoop.for_model(model, temperature=0, stop="END").execute("Hi.")
    assert model.requests[0].options == InferenceOptions(temperature=0, stop=("END",))
    async with loopback(respond_text()) as server:
        config = LLMConfig.parse(
            "openai:m", base_url=server.url, options=InferenceOptions(temperature=0.5, top_p=0.5), api_key="k"
        )
        await AgentLoop.for_model(config, temperature=0.1).execute("Hi.")
        assert (server.requests[0].json["temperature"], server.requests[0].json["top_p"]) == (0.1, 0.5)


class Parrot(CanInfer):
    """A model of the program."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((Text("Hello."),))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        yield await self.infer(request)


CONFIG = LLMConfig.parse("ollama:some-model")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": Parrot(), "timeout": 3}, "timeout belongs to a model string or an LLMConfig; set it where this Parrot is made"),
        ({"model": Parrot(), "api_key": "k"}, "base_url and api_key belong to a model string; this Parrot has its own"),
        ({"model": CONFIG, "base_url": "http://x"}, "base_url and api_key belong to a model string; this LLMConfig has its own"),
        ({"tool_choice": "add"}, "tool_choice is 'auto', 'required', 'none' or a ToolChoice, not 'add'; for one tool, write "),
        ({"tool_choice": []}, "tool_choice is 'auto', 'required', 'none' or a ToolChoice, not []"),
        ({"eager": True}, "eager=True starts calls while an answer is streamed, and this driver does not stream: add streaming=True"),
        ({"mode": "natve"}, "there is no tool-calling mode 'natve'"),
        ({"timeout": 0}, "invalid value among the settings timeout: the timeout of LLMConfig is a number above 0, not 0"),
        ({"timeout": "3"}, "invalid value among the settings timeout: the timeout of LLMConfig is a number above 0, not '3'"),
        ({"base_url": 3}, "the base URL is a text such as https://api.openai.com/v1, not 3"),
        ({"temperature": float("nan")}, "temperature is a finite number, not nan"),
    ],
)  # fmt: skip  # one row, one mistake
def test_a_setting_that_cannot_apply_is_refused(settings: dict[str, Any], sentence: str) -> None:
    """One sentence says which setting, and where it belongs."""
    with pytest.raises(ConfigurationError) as refused:
        AgentLoop.for_model(**{"model": "ollama:some-model", **settings})
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temprature": 0.2}, "got an unexpected keyword argument 'temprature'"),
        ({"model": 3}, "a model is a string, an LLMConfig or a CanInfer, not int"),
        ({"temperature": "0.2"}, "InferenceOptions.temperature is '0.2', not float or None"),
        ({"reasoning_effort": "big"}, "is 'big', not one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max' or None"),
        ({"max_tokens": 1.5}, "InferenceOptions.max_tokens is a float, not int or None"),
        ({"stop": 3}, "the texts that end a response are a text or a list of texts, not 3"),
        ({"hosted_tools": ["search"]}, "'search' is no hosted tool that needs no settings; those are web_search, "),
        ({"max_retries": -1}, "the max_retries of ToolCallingDriver is a whole number, 0 or more, not -1"),
        ({"streaming": "yes"}, "the streaming of ToolCallingDriver has to be a bool, not str"),
        ({"parallel_tool_calls": 1}, "the parallel_tool_calls of ToolCallingDriver has to be a bool, not int"),
        ({"api_key": 3}, "a key is text, a Secret, or a function that returns one, not int"),
        ({"max_steps": 0}, "max_steps has to be a whole number from 1 on"),
    ],
)  # fmt: skip  # one row, one mistake
def test_a_wrong_name_or_type_is_a_type_error(settings: dict[str, Any], sentence: str) -> None:
    """Python reports an unknown parameter, and one sentence names a value of another type."""
    with pytest.raises(TypeError) as refused:
        AgentLoop.for_model(**{"model": "ollama:some-model", **settings})
    assert sentence in str(refused.value)
    assert refused.value.args == (str(refused.value),)


async def test_a_choice_of_one_tool_is_a_tool_choice() -> None:
    """A tool may be called auto, so that a name alone is no choice of a tool."""
    model = ScriptedInference(ToolCall("1", "add", '{"a": 1, "b": 2}'), "3.")
    await AgentLoop.for_model(model, tools=[add], tool_choice=ToolChoice.specific("add")).execute("1 + 2?")
    assert [request.tool_choice.kind for request in model.requests] == ["specific", "auto"]


def test_what_is_not_passed_is_left_to_the_file(tmp_path: Path) -> None:
    """A parameter replaces what the file sets, None as well; tools are added."""
    path = tmp_path / "agent.toml"
    path.write_text(
        'model = "ollama:m"\nsystem_prompt = "Be brief."\nmax_steps = 7\ncompiler = "current_tool_trace"\n'
        'output = { type = "integer" }\n'
    )
    loop = AgentLoop.from_file(path, tools=[add])
    assert (loop.system_prompt, loop.max_steps, loop.output_type) == ("Be brief.", 7, {"type": "integer"})
    assert isinstance(loop.compiler, ConversationWithCurrentToolTrace)
    assert loop.tools.names == ("add",)
    other = AgentLoop.from_file(
        path, max_steps=None, system_prompt="", compiler=None, output_type=None, strict_writes=True, in_doubt="fail"
    )
    assert (other.system_prompt, other.max_steps, other.output_type, other.compiler) == ("", None, None, None)
    assert (other.strict_writes, other.in_doubt) == (True, InDoubt.FAIL)


# --- no parameter is forgotten -------------------------------------------------------------------------------------


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function without the object or the class."""
    return {name: parameter for name, parameter in inspect.signature(function).parameters.items() if name != "self"}


LOOP = parameters_of(AgentLoop.__init__)
FOR_MODEL = parameters_of(AgentLoop.for_model)
FROM_FILE = parameters_of(AgentLoop.from_file)
OF_DRIVER = parameters_of(ToolCallingDriver.for_model)


def test_no_parameter_is_forgotten() -> None:
    """All ways to create a loop take the parameters of `AgentLoop`, and those of a model are those of its driver."""
    parts = LOOP.keys() - {"driver"}
    assert parts == {*LoopOptions.__annotations__, "tools", "output_type"}
    assert FOR_MODEL.keys() == parts | OF_DRIVER.keys()
    assert FOR_MODEL.keys() == {"model", "output_type", *ModelOptions.__annotations__}
    assert FROM_FILE.keys() == parts | {"path", "allow", "allow_servers", "variables", "trust", "model"}
    assert FROM_FILE.keys() == {"path", "output_type", *FileOptions.__annotations__}
    fields = {attribute.name for attribute in InferenceOptions.__attrs_attrs__} - {"model"}
    assert fields < OF_DRIVER.keys()


def test_no_parameter_has_to_be_given() -> None:
    """Type checkers accept a loop of a model or a file with any of its parameters left out."""
    assert not ModelOptions.__required_keys__ | FileOptions.__required_keys__


def test_parameters_have_the_same_types_and_defaults() -> None:
    """A parameter is the same wherever it occurs; `from_file` leaves to the file what the file can set."""
    of_file = {"compiler", "max_steps", "system_prompt", "output_type"}
    for name, parameter in {**LOOP, **OF_DRIVER}.items():
        for others in (FOR_MODEL, FROM_FILE):
            if name in others and name != "model":
                default = NOTHING if others is FROM_FILE and name in of_file else parameter.default
                assert others[name].default == default, name
    # The text of the annotations, as it is in both.
    for name, declared in ModelOptions.__annotations__.items():
        method = AgentLoop.__init__ if name in LOOP else ToolCallingDriver.for_model
        assert method.__annotations__[name] == declared.__forward_arg__, name
        assert AgentLoop.for_model.__annotations__[name] == declared.__forward_arg__, name


def test_every_parameter_is_described() -> None:
    """The docstrings name every parameter."""
    for function, parameters in ((AgentLoop.for_model, FOR_MODEL), (AgentLoop.from_file, FROM_FILE)):
        described = inspect.getdoc(function) or ""
        own = parameters.keys() - LoopOptions.__annotations__.keys()
        assert {name for name in own if f"\n    {name}: " not in described} == set()
    described = inspect.getdoc(AgentLoop) or ""
    assert {name for name in LoopOptions.__annotations__ if f"\n    {name}: " not in described} == set()


def test_the_type_of_the_answers_is_known() -> None:
    """Without an output type it is text, with a class it is the class, and for anything else it is not known."""
    assert_type(AgentLoop.for_model("ollama:m"), AgentLoop[str])
    assert_type(AgentLoop.for_model("ollama:m", temperature=0, output_type=None), AgentLoop[str])
    assert_type(AgentLoop.for_model("ollama:m", tools=[add], max_steps=3, output_type=list[int]), AgentLoop[list[int]])
    assert_type(AgentLoop.for_model("ollama:m", output_type=int | str), AgentLoop[Any])
    AgentLoop.for_model("ollama:m", tool_choice="none", mode="native", reasoning_effort="low", stop="END", timeout=3)
