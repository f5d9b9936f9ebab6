"""Which tools a model is offered: `ToolSelection` and `ToolSearch`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, Tool, ToolCall, ToolCallingDriver, ToolChoice
from agentloop.contracts import CanIntercept
from agentloop.errors import ToolDefinitionError
from agentloop.inference import LLMConfig, wire_format
from agentloop.interception import BeforeInference, ToolSearch, ToolSelection, before_inference
from agentloop.interception.tool_search import ToolRanking
from agentloop.testing import InterceptorKit, Ledger, LoopClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.tools import Ensemble
from agentloop.values import InferenceRequest, InferenceResponse, Text, ToolSpec, ToolStatus, from_json, to_json

CONFIG = LLMConfig(model="m", base_url="http://localhost")
SUBJECTS = ["invoice", "customer", "order", "shipment", "refund", "ticket", "calendar", "contact", "document", "image"]
VERBS = {
    "create": "Create a new {}.",
    "delete": "Remove a {} for good.",
    "list": "List every {} of an account.",
    "update": "Change single fields of a {}.",
    "export": "Write a {} to a spreadsheet.",
    "archive": "Put a {} away where nobody sees it.",
    "share": "Give other people access to a {}.",
    "rename": "Give a {} another title.",
    "count": "Tell how many there are of a {}.",
    "translate": "Translate the text of a {} to another language.",
    "print": "Send a {} to a printer.",
    "duplicate": "Make an exact copy of a {}.",
    "merge": "Join one {} with another.",
    "lock": "Keep a {} from being edited.",
    "approve": "Sign off a {} as a manager.",
    "schedule": "Set a date and time for a {}.",
    "validate": "Check a {} for mistakes.",
    "annotate": "Write a comment beside a {}.",
    "restore": "Bring back an earlier version of a {}.",
    "email": "Send a {} by electronic mail.",
}


class Named(Tool):
    """A tool that returns its name."""

    name = ""
    description = ""
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"id": {"type": "string"}}}

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description

    async def use(self, *_: Any, **__: Any) -> str:
        return self.name


def two_hundred() -> list[Tool]:
    """Make many tools."""
    return [Named(f"{verb}_{one}", told.format(one)) for verb, told in VERBS.items() for one in SUBJECTS]


def encoded_tools(request: InferenceRequest, format_name: str = "openai-chat") -> list[Any]:
    """Return the tools that stand in the body of the request."""
    body = json.loads(wire_format(format_name).encode_request(request, CONFIG, stream=False).body)
    tools: list[Any] = body.get("tools", [])
    return tools


def names_asked(model: ScriptedInference) -> list[list[str]]:
    """Return the names of the tools in each request."""
    return [[spec.name for spec in request.tools] for request in model.requests]


def run(
    model: ScriptedInference, tools: Any, *interceptors: CanIntercept, state: AgentState | None = None, **driver: Any
) -> AgentState:
    """Run a script in virtual time."""
    loop = AgentLoop(ToolCallingDriver(model, **driver), tools, interceptors=interceptors, clock=LoopClock())
    return run_in_virtual_time(loop.execute(state or AgentState.start("go", agent_id="clerk")))


def offered(*interceptors: CanIntercept, tools: Any = None, **driver: Any) -> list[str]:
    """Return the names of the tools that a model is offered first."""
    model = ScriptedInference("done")
    run(model, toy_tools(Ledger()) if tools is None else tools, *interceptors, **driver)
    return names_asked(model)[0]


def test_tools_are_selected_by_name_and_pattern() -> None:
    """Only what matches is offered, in the order of the loop's tools."""
    assert offered(ToolSelection(["plain", "ech*"])) == ["echo", "plain"]
    assert offered(ToolSelection("plain")) == ["plain"]
    every = [tool.name for tool in toy_tools(Ledger())]
    left = [name for name in every if name != "stop" and "a" not in name]
    assert offered(ToolSelection(hide=["*a*", "stop"])) == left != every
    assert not offered(ToolSelection([]))
    assert offered(ToolSelection()) == every


def test_what_is_hidden_wins() -> None:
    """A tool that is both offered and hidden is hidden."""
    assert offered(ToolSelection(["echo", "plain"], hide=["echo"])) == ["plain"]


def test_tools_are_selected_by_tool_and_by_group() -> None:
    """A tool, its spec, or an ensemble stand for what they offer."""
    many = two_hundred()
    billing = Ensemble("billing", many[:3])
    tools = [billing, *many[3:]]
    expected = [tool.name for tool in many[:3]]
    assert offered(ToolSelection([billing]), tools=tools) == expected
    assert offered(ToolSelection(billing), tools=tools) == expected
    assert offered(ToolSelection([many[7], many[9].spec]), tools=tools) == [many[7].name, many[9].name]
    assert len(offered(ToolSelection(hide=[billing]), tools=tools)) == 197
    assert not offered(ToolSelection([billing.disable()]), tools=tools)


def test_tools_are_selected_by_a_function_of_spec_and_state() -> None:
    """The function is asked in each step, with the state as it then is."""

    def first_echo(spec: ToolSpec, state: AgentState) -> bool:
        return spec.name == ("plain" if state.step_count else "echo")

    model = ScriptedInference([toy_call("echo", 1)], "done")
    run(model, toy_tools(Ledger()), ToolSelection([first_echo]))
    assert names_asked(model) == [["echo"], ["plain"]]


def test_several_selections_leave_what_all_offer() -> None:
    """Selections narrow each other, whichever goes first."""
    one, other = ToolSelection(["echo", "plain"]), ToolSelection(["plain", "fail"])
    assert offered(one, other) == offered(other, one) == ["plain"]


def test_the_tool_that_has_to_be_called_is_offered() -> None:
    """A tool choice that names a tool is never left without it."""
    assert offered(ToolSelection(["plain"]), tool_choice=ToolChoice.specific("echo")) == ["plain", "echo"]
    assert offered(ToolSelection(["plain"]), tool_choice=ToolChoice.specific("plain")) == ["plain"]


def test_a_selection_that_takes_nothing_leaves_the_request() -> None:
    """Where all is offered, the request is the same object."""
    seen: list[InferenceRequest] = []

    def note(point: BeforeInference) -> BeforeInference:
        seen.append(point.request)
        return point

    run(
        ScriptedInference("done"),
        toy_tools(Ledger()),
        before_inference(note, priority=501),
        ToolSelection("*"),
        before_inference(note, priority=499),
    )
    assert seen[0] is seen[1]


def test_a_call_of_a_tool_that_was_not_offered_runs() -> None:
    """To offer is advice: what the loop has, it runs; what it has not is rejected as ever."""
    model = ScriptedInference([toy_call("echo", 7), toy_call("nothing", 1)], "done")
    state = run(model, toy_tools(Ledger()), ToolSelection(["plain"]))
    ran, rejected = state.steps[0].executions
    assert (ran.status, ran.value) == (ToolStatus.SUCCEEDED, 7)
    assert rejected.status is ToolStatus.REJECTED


def test_what_cannot_select_tools_is_refused() -> None:
    """A number selects nothing, and a mistake says what does."""
    with pytest.raises(TypeError, match="tools are selected by a name or pattern"):
        ToolSelection([7])  # type: ignore[list-item]  # the mistake


def test_a_predicate_that_raises_ends_the_execution() -> None:
    """A selection that fails fails the execution, named: nothing is offered by mistake."""

    def broken(_: ToolSpec, __: AgentState) -> bool:
        raise RuntimeError("no idea")

    model = ScriptedInference("done")
    state = run(model, toy_tools(Ledger()), ToolSelection([broken]))
    assert state.status.value == "failed"
    assert "ToolSelection" in state.errors[0].message
    assert not model.requests


def test_of_two_hundred_tools_a_request_carries_what_was_selected() -> None:
    """The body of the request has the selected tools and no others, in each wire format."""
    model = ScriptedInference("done")
    run(model, two_hundred(), ToolSelection(["list_*"]))
    (request,) = model.requests
    assert len(two_hundred()) == 200
    for name in ("openai-chat", "openai-responses", "anthropic-messages", "ollama"):
        assert len(encoded_tools(request, name)) == 10
    assert len(encoded_tools(request, "gemini")[0]["functionDeclarations"]) == 10


def test_a_model_that_is_told_in_text_is_told_what_was_selected() -> None:
    """In a mode that describes tools in the prompt, the prompt describes the selected ones."""
    model = ScriptedInference("done")
    run(model, two_hundred(), ToolSelection(["list_*"]), mode="validated")
    (request,) = model.requests
    assert all(f"list_{one}" in request.system_prompt for one in SUBJECTS)
    assert "delete_" not in request.system_prompt


def search(query: str, name: str = "search_tools") -> list[ToolCall]:
    """Make the call of a search."""
    return [ToolCall("", name, json.dumps({"query": query}))]


def test_what_a_model_finds_it_is_offered() -> None:
    """At first one tool is offered besides those outside of the search; from the next step on also what was found."""
    model = ScriptedInference(
        search("translate a document"),
        lambda request: InferenceResponse((ToolCall("", request.tools[2].name, '{"id": "7"}'),)),
        search("print invoices"),
        "done",
    )
    pinned = Named("ask_user", "Ask the user a question.")
    state = run(model, [ToolSearch(two_hundred(), max_results=3), pinned])
    asked = names_asked(model)
    assert asked[0] == ["search_tools", "ask_user"]
    assert asked[1][:3] == ["search_tools", "ask_user", "translate_document"]
    assert asked[2] == asked[1]
    assert asked[3][: len(asked[2])] == asked[2]
    assert "print_invoice" in asked[3]
    assert [len(encoded_tools(request)) for request in model.requests][:3] == [2, 5, 5]
    assert state.steps[1].executions[0].value == "translate_document"


def test_what_was_found_follows_from_the_state() -> None:
    """Stored and read again, in another loop, a conversation goes on with the tools that it found."""
    state = run(ScriptedInference(search("share calendar"), "done"), [ToolSearch(two_hundred(), max_results=2)])
    model = ScriptedInference("done")
    stored = from_json(to_json(state), AgentState).with_message("more")
    run(model, [ToolSearch(two_hundred(), max_results=2)], state=stored)
    assert names_asked(model)[0][:2] == ["search_tools", "share_calendar"]
    assert len(names_asked(model)[0]) == 3


def test_a_tool_that_was_called_stays() -> None:
    """A model that calls what it did not search for is offered it from then on."""
    model = ScriptedInference([ToolCall("", "lock_order", "{}")], "done")
    state = run(model, [ToolSearch(two_hundred())])
    assert state.steps[0].executions[0].value == "lock_order"
    assert names_asked(model) == [["search_tools"], ["search_tools", "lock_order"]]


def test_a_search_that_finds_nothing_says_so() -> None:
    """The model is told to use other words, and offered nothing more."""
    model = ScriptedInference(search("xylophone"), "done")
    state = run(model, [ToolSearch(two_hundred())])
    assert "other words" in state.steps[0].executions[0].text
    assert names_asked(model)[1] == ["search_tools"]


def test_a_search_whose_result_was_changed_offers_what_is_left() -> None:
    """Whatever an interceptor makes of a search result, reading it does not fail."""
    for value in (None, "text", 7, ["lock_order"], {"tools": "x"}, {"tools": [7, {"name": 3}, {"name": "lock_order"}]}):
        state = run(ScriptedInference(search("lock orders"), "done"), [ToolSearch(two_hundred())])
        (exchange,) = state.messages[1].exchanges
        changed = state.messages[1].with_parts([type(exchange)(exchange.call, exchange.execution.with_value(value))])
        model = ScriptedInference("done")
        told = state.with_messages([state.messages[0], changed, *state.messages[2:]]).with_message("more")
        run(model, [ToolSearch(two_hundred())], state=told)
        expected = ["lock_order"] if isinstance(value, dict) and isinstance(value["tools"], list) else []
        assert names_asked(model)[0] == ["search_tools", *expected]


def test_two_searches_stand_beside_each_other() -> None:
    """Each finds and hides its own tools."""
    many = two_hundred()
    model = ScriptedInference(search("delete tickets", "find_b"), "done")
    run(model, [ToolSearch(many[:100], name="find_a"), ToolSearch(many[100:], name="find_b", max_results=1)])
    assert names_asked(model)[0] == ["find_a", "find_b"]
    assert all(name in {tool.name for tool in many[100:]} for name in names_asked(model)[1][2:])
    assert len(names_asked(model)[1]) == 3


def test_groups_that_can_be_searched_are_started_and_stopped() -> None:
    """A group inside of a search is held as long as the loop needs it, with its interceptors."""
    told: list[str] = []

    def note(point: BeforeInference) -> BeforeInference:
        told.append("asked")
        return point

    group = Ensemble(
        "office",
        two_hundred()[:2],
        start=lambda: told.append("start"),
        stop=lambda: told.append("stop"),
        interceptors=[before_inference(note)],
    )
    run(ScriptedInference("done"), [ToolSearch([group])])
    assert told == ["start", "asked", "stop"]


async def test_a_search_that_cannot_hold_a_group_holds_none() -> None:
    """Cancelled while a second group starts, the first one is stopped again."""
    told: list[str] = []
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    first = Ensemble("a", two_hundred()[:1], start=lambda: told.append("start"), stop=lambda: told.append("stop"))
    second = Ensemble("b", two_hundred()[1:2], start=hang)
    holding = asyncio.create_task(ToolSearch([first, second]).hold())
    await begun.wait()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert told == ["start", "stop"]


def test_a_search_refuses_what_it_could_not_tell_apart() -> None:
    """The name of the searching tool is its own, and something has to be found."""
    with pytest.raises(ToolDefinitionError, match="pass another name"):
        ToolSearch([Named("search_tools", "Search.")])
    with pytest.raises(ValueError, match="max_results"):
        ToolSearch(two_hundred(), max_results=0)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("create_invoice", "create_invoice"),
        ("make a copy of a document", "duplicate_document"),
        ("sending tickets by mail", "email_ticket"),
        ("undo: bring back an earlier version of the image", "restore_image"),
        ("Which tool can rename contacts?", "rename_contact"),
        ("deleteRefund", "delete_refund"),
        ("how many customers", "count_customer"),
        ("spreadsheet of orders", "export_order"),
    ],
)
def test_the_tool_that_fits_best_is_found_first(query: str, expected: str) -> None:
    """Words of names and descriptions find a tool, whatever their endings and order."""
    found = ToolRanking.of([tool.spec for tool in two_hundred()]).search(query, 5)
    assert found[0].name == expected
    assert len(found) <= 5


def test_parameters_can_be_searched_too() -> None:
    """A tool is found by what its parameters say."""
    schema = {"type": "object", "properties": {"iban": {"type": "string", "description": "An account at a bank."}}}
    pay = ToolSpec("pay", "Send money.", schema)
    other = ToolSpec("look", "See something.", {"type": "object"})
    assert ToolRanking.of([other, pay]).search("bank account", 5) == [pay]
    assert ToolRanking.of([other, pay]).search("IBAN", 5) == [pay]


def test_words_that_say_nothing_find_nothing() -> None:
    """A query of filling words, or none, fits no tool; neither does any where there are none."""
    ranking = ToolRanking.of([tool.spec for tool in two_hundred()])
    assert ranking.search("please use the tool that can do this", 5) == []
    assert ranking.search("", 5) == []
    assert ToolRanking.of([]).search("create", 5) == []


def test_tools_that_fit_equally_well_keep_their_order() -> None:
    """The order of results is that of the tools, so that it is the same every time."""
    specs = [ToolSpec(f"tool_{n}", "Fry an egg.", {"type": "object"}) for n in range(9)]
    assert ToolRanking.of(specs).search("egg", 3) == specs[:3]


def test_selection_and_search_keep_the_laws_of_interceptors() -> None:
    """Both change nothing they are given and give the same every time."""
    InterceptorKit(lambda: ToolSelection(["echo", "plain"]), examples=10).check_all()
    offering = ToolSearch(toy_tools(Ledger())).interceptors[0]
    InterceptorKit(lambda: offering, examples=10).check_all()


def test_a_text_answer_is_left_alone() -> None:
    """A selection speaks of tools only."""
    model = ScriptedInference(InferenceResponse((Text("done"),)))
    assert run(model, toy_tools(Ledger()), ToolSelection("echo")).final_text == "done"
