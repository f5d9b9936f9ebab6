"""Wrong parameters of loops and of their methods: each is an error in one sentence that says what to write."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentLoopError,
    AgentState,
    Interceptor,
    LLMConfig,
    RequireApproval,
    ScriptedInference,
    SqliteJournal,
    ToolCall,
    ToolCallingDriver,
    ToolExecutor,
    tool,
)
from agentloop.durable import MemoryJournal
from agentloop.errors import ConfigurationError, InvalidParameter, NoOutput
from agentloop.values import approve

untyped: Any = AgentLoop
"""The class, without the types that a type checker would report."""


class Watch(Interceptor):
    """An interceptor."""


@tool
def add(a: int) -> int:
    """Add one."""
    return a + 1


def plain(a: int) -> int:
    """Return it."""
    return a


def model() -> ScriptedInference:
    """Return a model with one answer."""
    return ScriptedInference("yes")


def loop(**options: Any) -> Any:
    """Return a loop with these parameters."""
    return untyped(ToolCallingDriver(model()), **options)


def suspended() -> AgentState:
    """Return a state with a pending call."""
    inference = ScriptedInference(ToolCall("c", "add", '{"a": 1}'))
    return AgentLoop.for_model(inference, tools=[add], interceptors=[RequireApproval()]).execute_sync("go")


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    # the driver
    "a model string as driver": (lambda: untyped("openai:gpt-5"), "write AgentLoop.for_model('openai:gpt-5')"),
    "a model as driver": (
        lambda: untyped(model()),
        "not ScriptedInference; to call a model, write AgentLoop.for_model",
    ),
    "a configuration as driver": (lambda: untyped(LLMConfig.parse("ollama:m")), "write AgentLoop.for_model(model)"),
    "the class of a driver": (lambda: untyped(ToolCallingDriver), "create an object of it: ToolCallingDriver(…)"),
    "no driver": (lambda: untyped(None), "such as ToolCallingDriver(model), not None"),
    "a loop as driver": (lambda: untyped(loop()), "has to be a driver, .* not AgentLoop"),
    "a function as driver": (lambda: untyped(plain), "not the function plain"),
    # the tools
    "one function as tools": (lambda: loop(tools=plain), "put it in brackets, as in tools="),
    "one tool as tools": (lambda: loop(tools=add), "put it in brackets, as in tools="),
    "a copy with one function as tools": (lambda: loop().replace(tools=plain), "put it in brackets, as in tools="),
    "a text as tools": (lambda: loop(tools="add"), "tools are passed as a list"),
    "a number as tools": (lambda: loop(tools=3), "tools are passed as a list"),
    "None as tools": (lambda: loop(tools=None), "tools are passed as a list"),
    "the name of a tool": (lambda: loop(tools=["add"]), "'add' of type str is not a Tool"),
    "a tool twice": (lambda: loop(tools=[add, add]), "two tools are named 'add'.*rename one"),
    # executor, interceptors, compiler, events
    "the class of an executor": (lambda: loop(executor=ToolExecutor), "create an object of it: ToolExecutor(…)"),
    "a text as executor": (lambda: loop(executor="threads"), "such as ToolExecutor(), not 'threads'"),
    "one interceptor": (lambda: loop(interceptors=Watch()), r"put it in brackets: interceptors=[Watch(…)]"),
    "the class of an interceptor": (lambda: loop(interceptors=[Watch]), "create an object of it: Watch(…)"),
    "a text as interceptors": (lambda: loop(interceptors="x"), "interceptors has to be a list, not 'x'"),
    "a text among interceptors": (lambda: loop(interceptors=["x"]), "an object of a subclass of Interceptor, not 'x'"),
    "a function as interceptor": (
        lambda: loop(interceptors=[plain]),
        "not the function plain; wrap a function as in at('before_step', function)",
    ),
    "a number as interceptors": (lambda: loop(interceptors=3), "has to be a list, not 3"),
    "None as interceptors": (lambda: loop(interceptors=None), "has to be a list, not None"),
    "a list in with_interceptors": (
        lambda: loop().with_interceptors([Watch()]),
        "one by one, with a * before the list",
    ),
    "a text as compiler": (lambda: loop(compiler="window"), "such as TokenWindow(100_000), not 'window'"),
    "a number as compiler": (lambda: loop(compiler=4000), "such as TokenWindow(100_000), not 4000"),
    "a listener as bus": (lambda: loop(events=print), r"to listen, write loop.wiretap(function)"),
    # the limit of steps, the prompt and the output type
    "a text as max_steps": (lambda: loop(max_steps="3"), "a whole number from 1 on, or None for no limit, not '3'"),
    "no steps": (lambda: loop(max_steps=0), "a whole number from 1 on, .* not 0"),
    "fewer than no steps": (lambda: loop(max_steps=-1), "a whole number from 1 on, .* not -1"),
    "half a step": (lambda: loop(max_steps=1.5), "a whole number from 1 on, .* not 1.5"),
    "a truth value as max_steps": (lambda: loop(max_steps=True), "a whole number from 1 on, .* not True"),
    "a copy with no steps": (lambda: loop().replace(max_steps=0), "a whole number from 1 on, .* not 0"),
    "None as system prompt": (lambda: loop(system_prompt=None), "a text or a function of the state, not None"),
    "a list as system prompt": (lambda: loop(system_prompt=["You"]), "a text or a function of the state, not list"),
    "bytes as system prompt": (lambda: loop(system_prompt=b"You"), "a text or a function of the state, not b'You'"),
    "the name of an output type": (
        lambda: loop(output_type="Weather"),
        "a type, or a JSON Schema as a dict, not 'Weath",
    ),
    "a number as output type": (lambda: loop(output_type=5), "a type, or a JSON Schema as a dict, not 5"),
    "a list as output type": (lambda: loop(output_type=[int]), "for a list of answers, write list[…]"),
    "a function as output type": (lambda: loop(output_type=plain), "not the function plain"),
    "a value as output type": (lambda: loop(output_type=Watch()), "which has no JSON Schema here; use one of"),
    "a wrong JSON Schema": (lambda: loop(output_type={"type": "nothing"}), "is not a valid JSON Schema: at $.type"),
    "a copy with a number as output type": (
        lambda: loop().replace(output_type=5),
        "a type, or a JSON Schema as a dict, not 5",
    ),
    # the journal and the policies
    "a file as journal": (lambda: loop(journal="runs.db"), r"not 'runs.db'; write SqliteJournal('runs.db')"),
    "a path as journal": (lambda: loop(journal=Path("runs.db")), r"write SqliteJournal('runs.db')"),
    "a truth value as journal": (lambda: loop(journal=True), "such as SqliteJournal(path), not True"),
    "the class of a journal": (lambda: loop(journal=SqliteJournal), "create an object of it: SqliteJournal(…)"),
    "an unknown in_doubt": (
        lambda: loop(in_doubt="suspnd"),
        "one of tell, suspend, fail, not 'suspnd', did you mean 'su",
    ),
    "a number as in_doubt": (lambda: loop(in_doubt=5), "one of tell, suspend, fail, not 5"),
    "a text as strict_writes": (lambda: loop(strict_writes="yes"), "has to be True or False, not 'yes'"),
    "an unknown provenance": (lambda: loop(provenance="all"), "one of none, digests, values, not 'all'"),
    "a truth value as provenance": (lambda: loop(provenance=True), "one of none, digests, values, not True"),
    "a mapping as bounds": (lambda: loop(bounds={"text_characters": 1}), "has to be an object of Bounds, .* not dict"),
    "a number as clock": (lambda: loop(clock=5), "has to be a Clock, not 5"),
    "a function as clock": (lambda: loop(clock=time.time), "has to be a Clock, not builtin_function"),
    "a function as ids": (lambda: loop(ids=plain), "has to be an IdSource, not the function plain"),
    # the arguments of an execution
    "no input": (lambda: loop().execute_sync(None), "a text, a Message or an AgentState, not NoneType"),
    "a number as input": (lambda: loop().run_sync(5), "a text, a Message or an AgentState, not int"),
    "bytes as input": (lambda: loop().stream_text_sync(b"go"), "a text, a Message or an AgentState, not bytes"),
    "a message of a provider": (lambda: loop().execute_sync([{"role": "user"}]), "import_history reads the messages"),
    "a number as execution id": (lambda: loop().execute_sync("go", execution_id=5), "id has to be a text, not 5"),
    "a reserved execution id": (
        lambda: loop(journal=MemoryJournal()).execute_sync("go", execution_id="a/1/2/agent"),
        "choose an id that does not end with",
    ),
    "an inbox of a number": (lambda: loop().inbox(5), "id has to be a text, not 5"),
    "a text as listener": (lambda: loop().wiretap("print"), "a listener is a function of one event, not 'print'"),
    "the name of an event": (
        lambda: loop().on("ToolCallCompleted", print),
        "takes a class of events, .* not 'ToolCall",
    ),
    # decisions and recovery
    "a suspended state that is executed": (lambda: loop().execute_sync(suspended()), "pass them to AgentLoop.resume"),
    "a list of decisions": (
        lambda: loop().resume_sync(suspended(), ["x"]),
        r"as in {call.key: approve(call.digest)}, not list",
    ),
    "True as decision": (
        lambda: loop().resume_sync(state := suspended(), {state.pending[0].key: True}),
        r"is True; make one with approve()",
    ),
    "a decision without its call": (
        lambda: loop().resume_sync(state := suspended(), {state.pending[0].key: approve}),
        r"make one with approve()",
    ),
    "a decision about an unknown call": (lambda: loop().resume_sync(suspended(), {"x": approve()}), "no call with the"),
    "a resumed number": (lambda: loop().resume_sync(5, {}), "a suspended state, or with a journal the id .* not int"),
    "a resumed id without a journal": (
        lambda: loop().resume_sync("run", {}),
        "needs a journal: AgentLoop(…, journal=…)",
    ),
    "recovery without a journal": (lambda: loop().recover_sync("run"), "needs a journal: AgentLoop(…, journal=…)"),
    "recovery of a number": (lambda: loop(journal=MemoryJournal()).recover_sync(5), "id has to be a text, not 5"),
    "recovery of an unknown execution": (
        lambda: loop(journal=MemoryJournal()).recover_sync("run"),
        "no execution 'run' is recorded",
    ),
    "recovery with an unknown policy": (
        lambda: loop(journal=MemoryJournal()).recover_sync("run", in_doubt="maybe"),
        "one of tell, suspend, fail, not 'maybe'",
    ),
    # files, tools of agents, models
    "a missing agent file": (lambda: AgentLoop.from_file("missing.toml"), "there is no file missing.toml"),
    "a number as agent file": (lambda: untyped.from_file(5), "has to be a text or a Path, not 5"),
    "a number as name of an agent": (lambda: loop().as_tool(5, "d"), "name of an agent's tool has to be a text, not 5"),
    "too large a share": (lambda: loop().as_tool("a", "d", budget_share=3), "a number from 0 to 1, not 3"),
    "no depth": (lambda: loop().as_tool("a", "d", max_depth=0), "a whole number from 1 on, not 0"),
    "an unknown effect": (
        lambda: loop().as_tool("a", "d", effect="none"),
        "one of pure, idempotent, effect, not 'none'",
    ),
    "an unknown tool that is allowed": (lambda: loop().as_tool("a", "d", tools_allowed=["x"]), "has no tool 'x'"),
    "a number as input type": (lambda: loop().as_tool("a", "d", input_type=5), "which has no JSON Schema here"),
    "no model": (lambda: untyped.for_model(None), "a model is a string, an LLMConfig or a CanInfer, not NoneType"),
    "a driver as model": (lambda: untyped.for_model(loop().driver), "or a CanInfer, not ToolCallingDriver"),
    "a number as prompt of a state": (
        lambda: loop(system_prompt=lambda _: 5).run_sync("go"),
        "the function for the system prompt has to return a text, not int",
    ),
    "a prompt as model": (lambda: AgentLoop.for_model("You are kind"), "does not have the form provider:model"),
    "the output of a new state": (lambda: AgentState.start("go").output, "pass it to AgentLoop.execute"),
}


def as_pattern(parts: str) -> str:
    """Return the regular expression of a part of a message, in which only `.*` has a meaning."""
    return ".*".join(map(re.escape, parts.split(".*")))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_in_one_sentence(mistake: str) -> None:
    """The error belongs to this package, names the mistake, and has nothing of the packages below."""
    make, message = MISTAKES[mistake]
    with pytest.raises(AgentLoopError, match=as_pattern(message)) as raised:
        make()
    text = str(raised.value)
    assert "\n" not in text
    assert not any(word in text for word in ("Attribute(", "NOTHING", "cattrs", "jsonschema", "__attrs"))


@pytest.mark.parametrize("mistake", ["a model string as driver", "a text as max_steps", "a file as journal"])
def test_a_wrong_parameter_is_an_error_of_the_configuration_and_of_its_type(mistake: str) -> None:
    """`InvalidParameter` is a `ConfigurationError`, and as Python raises them for arguments a `TypeError` and a `ValueError`."""
    with pytest.raises(InvalidParameter) as raised:
        MISTAKES[mistake][0]()
    assert isinstance(raised.value, ConfigurationError)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, ValueError)


def test_an_error_has_its_state() -> None:
    """`NoOutput` has the state whose output was asked for."""
    state = AgentState.start("go")
    with pytest.raises(NoOutput) as raised:
        _ = state.output
    assert raised.value.state is state


def test_unknown_parameters_are_refused() -> None:
    """A parameter that does not exist is the error that Python raises for any function."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        loop(temprature=1)
