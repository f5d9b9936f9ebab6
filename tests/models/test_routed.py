"""A model for each request: which one is chosen, what is reported of it, and that a recovered execution takes the same way."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.contracts.can_infer import ChosenModel
from agentloop.durable import replay
from agentloop.errors import ConfigurationError, InvalidParameter, RateLimited
from agentloop.events import ModelRouted
from agentloop.models import ByModel, FallbackInference, FunctionInference, Route, RoutedInference, by_cost, by_size
from agentloop.testing import InferenceKit, LawTests
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Message, Text, Usage
from tests.models.loopback_inference import QUESTION


def said(text: str) -> CanInfer:
    return FunctionInference(lambda _: InferenceResponse((Text(text),), usage=Usage(10, 1)))


def ask(text: str) -> InferenceRequest:
    return InferenceRequest((Message.user(text),))


MODELS = {"small": said("from the small one"), "large": said("from the large one")}


@pytest.mark.parametrize("choice", ["large", Route(name="large", reason="it is hard")])
async def test_a_function_chooses(choice: str | Route) -> None:
    async def later(_: InferenceRequest) -> str | Route:
        return choice

    for choose in (lambda _: choice, later):
        reports: list[ChosenModel] = []
        routed = RoutedInference(choose, MODELS).with_route_report(reports.append)
        assert (await routed.infer(QUESTION)).text == "from the large one"
        *_, last = [item async for item in routed.stream(QUESTION)]
        assert isinstance(last, InferenceResponse)
        assert last.text == "from the large one"
        reason = choice.reason if isinstance(choice, Route) else ""
        assert reports == [ChosenModel("large", reason)] * 2


async def test_a_model_that_there_is_not_is_an_error() -> None:
    with pytest.raises(InvalidParameter, match="there is no model 'huge' to choose; there is small, large"):
        await RoutedInference(lambda _: "huge", MODELS).infer(QUESTION)


def test_models_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="a RoutedInference needs at least one"):
        RoutedInference(lambda _: "a", {})
    wrong: Any = {"a": "gpt"}
    with pytest.raises(TypeError, match="'gpt' is not an inference"):
        RoutedInference(lambda _: "a", wrong)


@pytest.mark.parametrize(("length", "name"), [(10, "small"), (4_000, "large"), (80_000, "huge")])
async def test_the_size_of_a_request_chooses(length: int, name: str) -> None:
    models = {each: said(each) for each in ("small", "large", "huge")}
    routed = RoutedInference(by_size({"small": 500, "large": 5_000}, otherwise="huge"), models)
    assert (await routed.infer(ask("x" * length))).text == name


@pytest.mark.parametrize(("length", "name"), [(10, "large"), (40_000, "small"), (4_000_000, "small")])
async def test_the_cost_of_a_request_chooses(length: int, name: str) -> None:
    models = {each: said(each) for each in ("large", "small")}
    routed = RoutedInference(by_cost({"large": 10.0, "small": 0.1}, at_most=0.01), models)
    assert (await routed.infer(ask("x" * length))).text == name
    with pytest.raises(ConfigurationError, match="the price of at least one model"):
        by_cost({}, at_most=1)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("large", "large"),
        (" `Large`.\n", "large"),
        ("The large model.", "large"),
        ("small or large", "small"),
        ("huge", "small"),
        ("", "small"),
        (RateLimited("later"), "small"),
    ],
)
async def test_a_model_chooses(answer: Any, name: str) -> None:
    """Its tokens count for the response; an answer that names no single model, or an error, takes the one for everything else."""
    chooser = FunctionInference(lambda _: _answer(answer))
    reports: list[ChosenModel] = []
    purposes = {"small": "questions", "large": "proofs"}
    routed = RoutedInference(ByModel(chooser, purposes, otherwise="small"), MODELS).with_route_report(reports.append)
    response = await routed.infer(ask("Prove it."))
    assert response.text == f"from the {name} one"
    assert response.usage.input_tokens == (None if isinstance(answer, Exception) else 17)
    assert [(report.name, report.requests) for report in reports] == [(name, 1)]


def _answer(answer: Any) -> InferenceResponse:
    if isinstance(answer, Exception):
        raise answer
    return InferenceResponse((Text(answer),), usage=Usage(7, 1))


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "x" * 4_000


def _loop(journal: CrashableJournal | None = None, *, streaming: bool = False) -> AgentLoop:
    def small(request: InferenceRequest) -> InferenceResponse:
        assert len(request.messages) == 1
        return InferenceResponse((ToolCall("1", "look", "{}"),))

    models = {"small": FunctionInference(small), "large": said("seen")}
    routed = RoutedInference(by_size({"small": 500}, otherwise="large"), models)
    return AgentLoop(ToolCallingDriver(routed, streaming=streaming), tools=[look], journal=journal)


@pytest.mark.parametrize("streaming", [False, True])
async def test_choices_are_events(*, streaming: bool) -> None:
    loop, events = _loop(streaming=streaming), list[ModelRouted]()
    loop.on(ModelRouted, events.append)
    assert (await loop.execute("Look.")).final_text == "seen"
    assert [event.name for event in events] == ["small", "large"]
    assert all(event.reason.startswith("about ") for event in events)


async def test_a_recovered_and_a_replayed_execution_take_the_same_way() -> None:
    """Whatever the crash leaves: recorded answers are used again, and the next request goes where it would have gone."""
    journal = CrashableJournal()
    await _loop(journal).execute("Look.", execution_id="run")
    for count in range(1, len(journal.appended)):
        survived = await journal.after_crash(count)
        state = await _loop(survived).recover("run")
        assert state.final_text == "seen", count
    assert (await replay(journal, "run", _loop())).is_equal


async def test_routes_inside_of_a_fallback_are_reported() -> None:
    reports: list[ChosenModel] = []
    routed = RoutedInference(lambda _: "large", MODELS)
    models = FallbackInference([ScriptedInference(RateLimited("later")), routed]).with_route_report(reports.append)
    items = [item async for item in models.stream(QUESTION)]
    assert not isinstance(items[-1], InferenceDelta)
    assert items[-1].text == "from the large one"
    assert [report.name for report in reports] == ["large"]


class TestRouted(LawTests):
    """A routed model keeps the laws of models."""

    kit = InferenceKit(lambda inner: RoutedInference(lambda _: "inner", {"inner": inner}), examples=20)
