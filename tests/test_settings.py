"""No setting of a public class is inert: a value without sense is refused where it is given, and the others act."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from agentloop import AgentLoop, Budget, ScriptedInference, ToolCallingDriver, tool
from agentloop.durable import MemoryJournal
from agentloop.errors import AgentLoopError
from agentloop.interception import Interceptor, Rule
from agentloop.values import InferenceOptions

DOORS = (
    "",
    "compilers",
    "contracts",
    "drivers",
    "durable",
    "executors",
    "interception",
    "models",
    "policies",
    "service.server",
    "toolkits",
    "tools",
)
NEEDED: dict[str, Any] = {
    "cost": 1.0,
    "driver": ToolCallingDriver(ScriptedInference("done")),
    "inference": ScriptedInference("done"),
    "model": ScriptedInference("done"),
    "seconds": 1.0,
    "steps": 2,
    "tokens": 1000,
    "tool_calls": 2,
}
"""Values for the parameters without a default, by their names."""
RECORDS = {"Amounts", "ExecutionScope", "FixtureOutcome", "ScenarioStep", "TokenAccount"}
"""Classes whose objects the package makes: their fields are facts, not settings."""


def settings() -> Iterator[Any]:
    """Yield the flags and the numbers among the parameters of public classes, each with the class."""
    seen: set[type] = set()
    for door in DOORS:
        module = import_module(f"agentloop.{door}".rstrip("."))
        for name in module.__all__:
            kind = getattr(module, name)
            if not isinstance(kind, type) or kind in seen or name in RECORDS or issubclass(kind, BaseException):
                continue
            seen.add(kind)
            for parameter in _parameters(kind):
                if isinstance(parameter.default, bool | int | float) and parameter.name != "priority":
                    yield pytest.param(kind, parameter, id=f"{name}-{parameter.name}")


def _parameters(kind: type) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(kind).parameters.values())
        kind(**_needed(parameters))
    except Exception:  # noqa: BLE001  # it cannot be made of these values alone
        return []
    return parameters


def _needed(parameters: list[inspect.Parameter]) -> dict[str, Any]:
    empty = inspect.Parameter.empty
    return {each.name: NEEDED[each.name] for each in parameters if each.default is empty and each.name in NEEDED}


ALL = list(settings())


def test_the_settings_are_found() -> None:
    """The table is generated, so an empty one would test nothing."""
    assert len(ALL) > 80
    assert {"AgentLoop", "ToolExecutor", "Permissions", "ToolPolicy"} <= {case.values[0].__name__ for case in ALL}


@pytest.mark.parametrize(("kind", "parameter"), ALL)
def test_a_setting_of_another_type_is_refused(kind: type, parameter: inspect.Parameter) -> None:
    """A text such as "no" is not read as True, and one such as "5" not as a number."""
    wrong = ["no", "", 2, None] if isinstance(parameter.default, bool) else ["5", "no"]
    for value in wrong:
        with pytest.raises((TypeError, ValueError, AgentLoopError)):
            kind(**{**_needed(list(inspect.signature(kind).parameters.values())), parameter.name: value})


def test_a_priority_is_a_number() -> None:
    """The order of a stack refuses a text, whatever the interceptor is."""
    for wrong in ("5", None, True):
        layer = Interceptor()
        layer.priority = wrong  # type: ignore[assignment]  # a program without a type checker
        with pytest.raises(AgentLoopError, match="the priority of Interceptor is a number"):
            AgentLoop.for_model(ScriptedInference("done"), interceptors=[layer])


WITHOUT_SENSE: dict[str, tuple[Callable[[], object], str]] = {
    "a budget without a limit": (Budget, "a Budget limits something: give steps="),
    "a budget with settings alone": (lambda: Budget(wrap_up=0.2, strict=False), "a Budget limits something"),
    "any object as answer": (
        lambda: AgentLoop.for_model(ScriptedInference("done"), output_type=object),
        "name a type, such as dict",
    ),
    "anything as answer": (lambda: AgentLoop.for_model(ScriptedInference("done"), output_type=Any), "name a type"),
    "a text that ends each answer": (lambda: InferenceOptions(stop=("END", "")), "stop has an empty text"),
    "messages beside those of the request": (
        lambda: InferenceOptions(extra={"messages": []}),
        "extra contains messages",
    ),
    "a model beside that of the request": (
        lambda: AgentLoop.for_model(ScriptedInference("done"), options={"extra": {"model": "other"}}),
        "extra contains model",
    ),
    "a doubt about nothing": (
        lambda: AgentLoop.for_model(ScriptedInference("done"), in_doubt="suspend").run_sync("go"),
        "in_doubt='suspend' is about interrupted calls that a journal has recorded",
    ),
    "a tool without a description": (lambda: tool(description=" ")(len), "the description of a tool is not empty"),
    "a rule about a number": (lambda: Rule(5), "the tool of Rule has to be a str"),  # type: ignore[arg-type]
    "a rule with a text as predicate": (lambda: Rule(when="always"), "callable"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "message"), WITHOUT_SENSE.values(), ids=WITHOUT_SENSE)
def test_a_setting_without_sense_is_refused(make: Callable[[], object], message: str) -> None:
    """What would have no effect is an error that says what to write."""
    with pytest.raises((TypeError, ValueError, AgentLoopError), match=message):
        make()


def test_what_is_no_contradiction_is_accepted() -> None:
    """A journal makes `in_doubt` act, and one limit is a budget."""
    model = ScriptedInference("done")
    assert AgentLoop.for_model(model, in_doubt="fail", journal=MemoryJournal()).run_sync("go") == "done"
    assert AgentLoop.for_model(model, interceptors=[Budget(steps=3)]).run_sync("go") == "done"
