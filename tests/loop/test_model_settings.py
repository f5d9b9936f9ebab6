"""`AgentLoop.for_model`: the settings of a model and all parts of a loop, each by its name."""

from __future__ import annotations

import ast
import inspect
import pydoc
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, assert_type, get_type_hints

import pytest
from attrs import fields

from agentloop import AgentLoop, LLMConfig, ScriptedInference, ToolCall, ToolCallingDriver, ToolChoice, tool
from agentloop.compilers import ConversationWithCurrentToolTrace
from agentloop.contracts import CanInfer
from agentloop.drivers import tool_calling
from agentloop.drivers.tool_calling import DriverSettings
from agentloop.errors import ConfigurationError
from agentloop.loop import parts
from agentloop.loop.parts import FileOptions, LoopChanges, LoopOptions, ModelOptions, RareOptions
from agentloop.models import HttpInference
from agentloop.values import (
    HostedTool,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    Text,
    inference,
)
from agentloop.values.inference import InferenceOptionsDict
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
            options={
                "temperature": 0.2,
                "top_p": 0.9,
                "max_tokens": 100,
                "stop": ["END"],
                "seed": 7,
                "reasoning_effort": "low",
                "logprobs": True,
                "top_logprobs": 3,
                "extra": {"user": "ada"},
            },
            tool_choice="required",
            parallel_tool_calls=False,
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
        options={"cache_prompt": True, "hosted_tools": ["web_search"]},
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
    await AgentLoop.for_model(model, options={"temperature": 0, "stop": "END"}).execute("Hi.")
    assert model.requests[0].options == InferenceOptions(temperature=0, stop=("END",))
    async with loopback(respond_text()) as server:
        config = LLMConfig.parse(
            "openai:m", base_url=server.url, options=InferenceOptions(temperature=0.5, top_p=0.5), api_key="k"
        )
        await AgentLoop.for_model(config, options={"temperature": 0.1}).execute("Hi.")
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
        ({"options": {"temperature": float("nan")}}, "temperature is a finite number, not nan"),
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
        ({"options": {"temperature": "0.2"}}, "InferenceOptions.temperature is '0.2', not float or None"),
        ({"options": {"reasoning_effort": "big"}}, "is 'big', not one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max' or None"),
        ({"options": {"max_tokens": 1.5}}, "InferenceOptions.max_tokens is a float, not int or None"),
        ({"options": {"stop": 3}}, "the texts that end a response are a text or a list of texts, not 3"),
        ({"options": {"hosted_tools": ["search"]}}, "'search' is no hosted tool that needs no settings; those are web_search, "),
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


# --- one spelling of a parameter -----------------------------------------------------------------------------------


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function without the object or the class."""
    return {name: parameter for name, parameter in inspect.signature(function).parameters.items() if name != "self"}


LOOP, FOR_MODEL, FROM_FILE = map(parameters_of, (AgentLoop, AgentLoop.for_model, AgentLoop.from_file))
OPTIONS = LoopOptions.__annotations__.keys()


def declarations() -> dict[str, ast.ClassDef]:
    """Return the source of the mappings of parameters, by name."""
    trees = [ast.parse(inspect.getsource(module)) for module in (parts, tool_calling)]
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def declared_keys(name: str) -> list[str]:
    """Return the keys that a mapping declares itself, and those that its bases declare."""
    node = declarations().get(name)
    if node is None:
        return []
    own = [
        line.target.id for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    ]
    return [*own, *[key for base in node.bases for key in declared_keys(ast.unparse(base).partition("[")[0])]]


@pytest.mark.parametrize("options", [ModelOptions, FileOptions, LoopChanges])
def test_a_parameter_is_declared_once(options: Any) -> None:
    """All ways to make a loop take the parameters of `AgentLoop` from one declaration, and none has to be given."""
    keys = declared_keys(options.__name__)
    assert sorted(keys) == sorted(options.__annotations__)
    assert {*keys} > OPTIONS
    assert not options.__required_keys__


def test_the_parts_of_a_loop_are_its_parameters() -> None:
    """A parameter of `AgentLoop` is declared with the type that it may be given as, and once as the part that is made of it."""
    attributes = [attribute.name for attribute in fields(AgentLoop) if attribute.init]
    made_of_others = {"approve"}  # it becomes an interceptor
    assert sorted(attributes) == sorted(["driver", "tools", "output_type", *OPTIONS - made_of_others])
    assert LOOP.keys() == {*attributes} | made_of_others


def test_the_settings_of_a_model_are_attributes_of_its_driver_and_its_options() -> None:
    """A setting is an attribute of the driver, and a key of the options one of `InferenceOptions` with the type that it is made of."""
    assert DriverSettings.__annotations__.keys() < {attribute.name for attribute in fields(ToolCallingDriver)}
    taken = get_type_hints(InferenceOptionsDict, vars(inference))
    assert taken.keys() == {attribute.name for attribute in fields(InferenceOptions)}
    for attribute in fields(InferenceOptions):
        made_of = get_type_hints(attribute.converter).get("texts") if attribute.name == "stop" else None
        if attribute.converter is None or made_of is not None:
            assert taken[attribute.name] == (made_of or get_type_hints(InferenceOptions)[attribute.name])


def test_signatures_have_the_names_that_programs_use_most() -> None:
    """A signature shows names in place of a mapping, and is short enough to be read; what it leaves out is rarely used."""
    assert len(FOR_MODEL) <= 20
    for shown, options in ((FOR_MODEL, ModelOptions), (FROM_FILE, FileOptions)):
        assert shown.keys() == (options.__annotations__.keys() - RareOptions.__annotations__.keys()) | {
            next(iter(shown)), "output_type", "parts"
        }  # fmt: skip
        assert all(
            shown[name].annotation == options.__annotations__[name].__forward_arg__ for name in shown if name in OPTIONS
        )
    assert {"model", "tools", "options", "mode", "system_prompt", "journal"} < FOR_MODEL.keys()


def test_every_parameter_is_described() -> None:
    """The docstrings of the mappings name each key, with those of their bases."""
    for described in (LoopOptions, ModelOptions, FileOptions):
        text = (
            (inspect.getdoc(described) or "") + (inspect.getdoc(LoopOptions) or "") + (inspect.getdoc(AgentLoop) or "")
        )
        assert {name for name in described.__annotations__ if f"\n    {name}: " not in text} == set()
    options = inspect.getdoc(InferenceOptions) or ""
    assert {name for name in InferenceOptionsDict.__annotations__ if f"\n    {name}: " not in options} == set()


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="Python writes the parameters of a long signature one per line from 3.13 on"
)
def test_the_help_of_a_loop_can_be_read() -> None:
    """The help of `AgentLoop` has at most 200 lines; longer texts are those of the types that it names."""
    assert len(pydoc.plain(pydoc.render_doc(AgentLoop)).splitlines()) <= 200


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda loop: loop.replace(jornal=None), "AgentLoop.replace() got an unexpected keyword argument 'jornal', did you mean 'journal'?"),
        (lambda loop: type(loop)(loop.driver, max_step=3), "AgentLoop() got an unexpected keyword argument 'max_step', did you mean 'max_steps'?"),
        (lambda loop: loop.for_model("ollama:m", modle="native"), "AgentLoop.for_model() got an unexpected keyword argument 'modle', did you mean 'mode'?"),
        (lambda loop: loop.for_model("ollama:m", temperature=1), "'temperature'; it is a key of options: write options={'temperature': …}"),
        (lambda loop: loop.for_model("ollama:m", max_token=1), "'max_token', did you mean 'max_tokens'? It is a key of options"),
        (lambda loop: loop.for_model("ollama:m", options={"temprature": 1}), "options has no key 'temprature', did you mean 'temperature'?"),
        (lambda loop: loop.for_model("ollama:m", options=0.2), "options is an InferenceOptions, or a mapping such as {'temperature': 0.2}, not float"),
        (lambda loop: loop.for_model("ollama:m", options=None), "options is an InferenceOptions, or a mapping such as {'temperature': 0.2}, not NoneType"),
        (lambda loop: loop.from_file("agent.toml", trusted=True), "AgentLoop.from_file() got an unexpected keyword argument 'trusted', did you mean 'trust'?"),
        (lambda loop: type(loop.driver).for_model("ollama:m", stop="END"), "'stop'; it is a key of options: write options={'stop': …}"),
        (lambda loop: type(loop.driver)("m", options={"sed": 1}), "options has no key 'sed', did you mean 'seed'?"),
    ],
)  # fmt: skip  # one row, one mistake
def test_a_misspelled_parameter_is_suggested(call: Any, sentence: str) -> None:
    """The error names the call, the parameter and the closest one, and says where an option of a model belongs."""
    with pytest.raises(TypeError) as refused:
        call(AgentLoop.for_model(ScriptedInference()))
    assert sentence in str(refused.value)


def test_options_are_a_value_or_a_mapping_of_it() -> None:
    """A driver and a configuration take both, and keep the value."""
    mapping: InferenceOptionsDict = {"temperature": 0.5, "stop": "END"}
    for options in (InferenceOptions(temperature=0.5, stop="END"), mapping):
        driver = ToolCallingDriver(ScriptedInference(), options=options)
        config = LLMConfig.parse("ollama:m", options=options)
        assert driver.options == config.options == InferenceOptions(temperature=0.5, stop=("END",))


@pytest.mark.parametrize("options", [{"temperature": None, "seed": 3}, InferenceOptions(seed=3, top_p=0.5)])
def test_options_replace_those_of_a_file(tmp_path: Path, options: Any) -> None:
    """What the program passes replaces the setting of the same name, and the others are those of the file."""
    path = tmp_path / "agent.toml"
    path.write_text('model = "ollama:m"\n[settings]\ntemperature = 0.5\nmax_tokens = 9\nseed = 1\n')
    driver = AgentLoop.from_file(path, options=options).driver
    assert isinstance(driver, ToolCallingDriver)
    expected: dict[str, Any] = {"temperature": 0.5, "max_tokens": 9, "seed": 3}
    expected |= {"temperature": None} if isinstance(options, dict) else {"top_p": 0.5}
    assert driver.options == InferenceOptions(**expected)


def test_wrong_options_are_no_mistake_of_a_file(tmp_path: Path) -> None:
    """The error is about the call, before the file is read."""
    wrong: Any = {"temprature": 1}
    with pytest.raises(TypeError, match="options has no key 'temprature', did you mean 'temperature'"):
        AgentLoop.from_file(tmp_path / "none.toml", options=wrong)


def test_a_copy_has_other_parts() -> None:
    """`replace` takes any parts at once, and leaves the others."""
    loop = AgentLoop.for_model(ScriptedInference("3"), tools=[add], max_steps=3)
    copy = loop.replace(tools=[], max_steps=None, system_prompt="Be brief.", output_type=int)
    assert (copy.tools.names, copy.max_steps, copy.system_prompt, copy.output_type) == ((), None, "Be brief.", int)
    assert (loop.tools.names, loop.max_steps, copy.driver, copy.events) == (("add",), 3, loop.driver, loop.events)
    assert copy.run_sync("1 + 2?") == 3
    assert loop.replace().output_type is None


def test_the_type_of_the_answers_is_known() -> None:
    """Without an output type it is text, with a class it is the class, and for anything else it is not known."""
    assert_type(AgentLoop.for_model("ollama:m"), AgentLoop[str])
    assert_type(AgentLoop.for_model("ollama:m", options={"temperature": 0}, output_type=None), AgentLoop[str])
    assert_type(AgentLoop.for_model("ollama:m", tools=[add], max_steps=3, output_type=list[int]), AgentLoop[list[int]])
    assert_type(AgentLoop.for_model("ollama:m", output_type=int | str), AgentLoop[Any])
    AgentLoop.for_model(
        "ollama:m", tool_choice="none", mode="native", options={"reasoning_effort": "low", "stop": "END"}, timeout=3
    )
