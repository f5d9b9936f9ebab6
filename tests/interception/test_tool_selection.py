"""Which tools a model is offered: `ToolSelection` and `ToolSearch`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import frozen

from agentloop import AgentLoop, AgentState, ScriptedInference, Tool, ToolCall, ToolCallingDriver, ToolChoice
from agentloop.contracts import CanIntercept
from agentloop.errors import ToolDefinitionError
from agentloop.executors import ProgressReport, RemoteCall, RemoteResult, RemoteToolExecutor
from agentloop.interception import BeforeInference, ToolSelection, at
from agentloop.interception.tool_selection import ToolCriterion
from agentloop.models import LLMConfig, RunProgram
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.policies import ToolSearch
from agentloop.policies.tool_search import ToolRanking
from agentloop.testing import InterceptorKit, Ledger, LoopClock, run_in_virtual_time, toy_call, toy_tools
from agentloop.toolkits import Ensemble
from agentloop.values import InferenceRequest, InferenceResponse, Text, ToolSpec, ToolStatus, from_json, to_json
from tests.generated import examples

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


class NamedTool(Tool):
    """A tool that returns its name."""

    name = ""
    description = ""
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"id": {"type": "string"}}}

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description

    async def use(self, *_: Any, **__: Any) -> str:
        return self.name


def create_tools() -> list[Tool]:
    """Return 200 tools."""
    return [
        NamedTool(f"{verb}_{subject}", description.format(subject))
        for verb, description in VERBS.items()
        for subject in SUBJECTS
    ]


def encoded_tools(request: InferenceRequest, format_name: str = "openai-chat") -> list[Any]:
    """Return the tools in the body of the request."""
    body = json.loads(wire_format(format_name).encode_request(request, CONFIG, stream=False).body)
    # Bedrock puts the tools and the tool choice into one entry.
    tools: list[Any] = body.get("toolConfig", body).get("tools", [])
    return tools


def requested_names(model: ScriptedInference) -> list[list[str]]:
    """Return the names of the tools in each request."""
    return [[spec.name for spec in request.tools] for request in model.requests]


def run(
    model: ScriptedInference, tools: Any, *interceptors: CanIntercept, state: AgentState | None = None, **driver: Any
) -> AgentState:
    """Run a scripted model in virtual time."""
    loop = AgentLoop(ToolCallingDriver(model, **driver), tools, interceptors=interceptors, clock=LoopClock())
    return run_in_virtual_time(loop.execute(state or AgentState.start("go", agent_id="clerk")))


def offered_names(*interceptors: CanIntercept, tools: Any = None, **driver: Any) -> list[str]:
    """Return the names of the tools in the first request."""
    model = ScriptedInference("done")
    run(model, toy_tools(Ledger()) if tools is None else tools, *interceptors, **driver)
    return requested_names(model)[0]


def test_tools_are_selected_by_name_and_pattern() -> None:
    """Only tools that match are offered, in the order of the loop's tools."""
    assert offered_names(ToolSelection(["plain", "ech*"])) == ["echo", "plain"]
    assert offered_names(ToolSelection("plain")) == ["plain"]
    all_names = [tool.name for tool in toy_tools(Ledger())]
    visible = [name for name in all_names if name != "stop" and "a" not in name]
    assert offered_names(ToolSelection(hide=["*a*", "stop"])) == visible != all_names
    assert not offered_names(ToolSelection([]))
    assert offered_names(ToolSelection()) == all_names


def test_hiding_takes_precedence() -> None:
    """A tool that is both offered and hidden is hidden."""
    assert offered_names(ToolSelection(["echo", "plain"], hide=["echo"])) == ["plain"]


def test_tools_are_selected_by_tool_and_by_group() -> None:
    """A tool or its spec selects that tool, and an ensemble all of its tools."""
    single_tools = create_tools()
    billing = Ensemble("billing", single_tools[:3])
    tools = [billing, *single_tools[3:]]
    expected = [tool.name for tool in single_tools[:3]]
    assert offered_names(ToolSelection([billing]), tools=tools) == expected
    assert offered_names(ToolSelection(billing), tools=tools) == expected
    selection = ToolSelection([single_tools[7], single_tools[9].spec])
    assert offered_names(selection, tools=tools) == [single_tools[7].name, single_tools[9].name]
    assert len(offered_names(ToolSelection(hide=[billing]), tools=tools)) == 197
    assert not offered_names(ToolSelection([billing.disable()]), tools=tools)


def test_tools_are_selected_by_a_function_of_spec_and_state() -> None:
    """The function is called in each step with the current state."""

    def select(spec: ToolSpec, state: AgentState) -> bool:
        return spec.name == ("plain" if state.step_count else "echo")

    model = ScriptedInference([toy_call("echo", 1)], "done")
    run(model, toy_tools(Ledger()), ToolSelection([select]))
    assert requested_names(model) == [["echo"], ["plain"]]


@pytest.mark.parametrize(
    ("criterion", "names"),
    [
        (ToolCriterion("ech*"), ["echo"]),
        (ToolCriterion(names=frozenset({"plain", "fail"})), ["fail", "plain"]),
        (ToolCriterion(when=lambda spec, state: spec.name == "echo" and not state.step_count), ["echo"]),
        (ToolCriterion("ech*", frozenset({"plain"}), lambda spec, _: spec.name == "fail"), ["echo", "fail", "plain"]),
        (ToolCriterion(), []),
    ],
    ids=["pattern", "names", "function", "all", "nothing"],
)
def test_tools_are_selected_by_a_criterion(criterion: ToolCriterion, names: list[str]) -> None:
    """A tool has to match one of its fields; a criterion is taken alone, in a list, and to hide tools."""
    all_names = [tool.name for tool in toy_tools(Ledger())]
    assert sorted(offered_names(ToolSelection(criterion))) == names
    assert sorted(offered_names(ToolSelection([criterion, "stop"]))) == sorted([*names, "stop"])
    assert offered_names(ToolSelection(hide=criterion)) == [name for name in all_names if name not in names]


def test_several_selections_offer_the_tools_that_all_of_them_offer() -> None:
    """Selections narrow each other, in any order."""
    first, second = ToolSelection(["echo", "plain"]), ToolSelection(["plain", "fail"])
    assert offered_names(first, second) == offered_names(second, first) == ["plain"]


def test_the_tool_that_the_tool_choice_names_is_offered() -> None:
    """A selection does not remove the tool that the model has to call."""
    assert offered_names(ToolSelection(["plain"]), tool_choice=ToolChoice.specific("echo")) == ["plain", "echo"]
    assert offered_names(ToolSelection(["plain"]), tool_choice=ToolChoice.specific("plain")) == ["plain"]


def test_a_selection_that_removes_nothing_does_not_change_the_request() -> None:
    """When all tools are offered, the request is the same object."""
    seen: list[InferenceRequest] = []

    def record(point: BeforeInference) -> BeforeInference:
        seen.append(point.request)
        return point

    run(
        ScriptedInference("done"),
        toy_tools(Ledger()),
        at("before_inference", record, priority=501),
        ToolSelection("*"),
        at("before_inference", record, priority=499),
    )
    assert seen[0] is seen[1]


def test_a_call_of_a_tool_that_was_not_offered_is_rejected() -> None:
    """Neither a tool of the loop that the selection leaves out nor an unknown tool runs."""
    ledger = Ledger()
    model = ScriptedInference([toy_call("echo", 7), toy_call("nothing", 1), toy_call("plain", 2)], "done")
    state = run(model, toy_tools(ledger), ToolSelection(["plain"]))
    statuses = [execution.status for execution in state.steps[0].executions]
    assert statuses == [ToolStatus.REJECTED, ToolStatus.REJECTED, ToolStatus.SUCCEEDED]
    assert [name for name, _ in ledger.calls] == ["plain"]


def test_an_invalid_criterion_is_refused() -> None:
    """Construction raises an error that names the valid types."""
    with pytest.raises(TypeError, match="tools are selected by a name or pattern"):
        ToolSelection([7])  # type: ignore[list-item]  # the mistake


def test_a_predicate_that_raises_fails_the_execution() -> None:
    """The error names the selection, and no request is sent."""

    def broken(_: ToolSpec, __: AgentState) -> bool:
        raise RuntimeError("no idea")

    model = ScriptedInference("done")
    state = run(model, toy_tools(Ledger()), ToolSelection([broken]))
    assert state.status.value == "failed"
    assert "ToolSelection" in state.errors[0].message
    assert not model.requests


def test_a_request_has_only_the_selected_tools() -> None:
    """In each wire format, the body of the request has the selected tools and no others."""
    model = ScriptedInference("done")
    run(model, create_tools(), ToolSelection(["list_*"]))
    (request,) = model.requests
    assert len(create_tools()) == 200
    for name in WIRE_FORMATS:
        encoded = encoded_tools(request, name)
        # Gemini groups all tools under one entry.
        assert len(encoded[0]["functionDeclarations"] if name == "gemini" else encoded) == 10


def test_a_prompt_describes_only_the_selected_tools() -> None:
    """In a mode that describes tools in the prompt, the prompt describes the selected ones."""
    model = ScriptedInference("done")
    run(model, create_tools(), ToolSelection(["list_*"]), mode="validated")
    (request,) = model.requests
    assert all(f"list_{subject}" in request.system_prompt for subject in SUBJECTS)
    assert "delete_" not in request.system_prompt


def search_calls(query: str, name: str = "search_tools") -> list[ToolCall]:
    """Return the calls of a step that searches."""
    return [ToolCall("", name, json.dumps({"query": query}))]


def test_discovered_tools_are_offered() -> None:
    """At first only the search and tools outside of it are offered; from the next step on also the discovered tools."""
    model = ScriptedInference(
        search_calls("translate a document"),
        lambda request: InferenceResponse((ToolCall("", request.tools[2].name, '{"id": "7"}'),)),
        search_calls("print invoices"),
        "done",
    )
    pinned = NamedTool("ask_user", "Ask the user a question.")
    state = run(model, [ToolSearch(create_tools(), max_results=3), pinned])
    names = requested_names(model)
    assert names[0] == ["search_tools", "ask_user"]
    assert names[1][:3] == ["search_tools", "ask_user", "translate_document"]
    assert names[2] == names[1]
    assert names[3][: len(names[2])] == names[2]
    assert "print_invoice" in names[3]
    assert [len(encoded_tools(request)) for request in model.requests][:3] == [2, 5, 5]
    assert state.steps[1].executions[0].value == "translate_document"


def test_discovered_tools_depend_only_on_the_state() -> None:
    """A stored conversation that continues in another loop is offered the tools that it has discovered."""
    state = run(ScriptedInference(search_calls("share calendar"), "done"), [ToolSearch(create_tools(), max_results=2)])
    model = ScriptedInference("done")
    stored = from_json(to_json(state), AgentState).with_message("more")
    run(model, [ToolSearch(create_tools(), max_results=2)], state=stored)
    assert requested_names(model)[0][:2] == ["search_tools", "share_calendar"]
    assert len(requested_names(model)[0]) == 3


def test_a_tool_that_was_called_is_offered() -> None:
    """A call of a tool without a search for it is rejected, and the tool is offered from then on."""
    call = ToolCall("", "lock_order", "{}")
    model = ScriptedInference([call], [call], "done")
    state = run(model, [ToolSearch(create_tools())])
    rejected, succeeded = [step.executions[0] for step in state.steps[:2]]
    assert (rejected.status, succeeded.value) == (ToolStatus.REJECTED, "lock_order")
    assert requested_names(model) == [["search_tools"], *[["search_tools", "lock_order"]] * 2]


def test_a_search_returns_five_tools_unless_told_otherwise() -> None:
    """The description of each costs tokens in every later request."""
    model = ScriptedInference(search_calls("order"), "done")
    run(model, [ToolSearch(create_tools())])
    assert len(requested_names(model)[1]) == 1 + 5


def test_a_search_without_matches_suggests_other_words() -> None:
    """The result suggests other words, and no more tools are offered."""
    model = ScriptedInference(search_calls("xylophone"), "done")
    state = run(model, [ToolSearch(create_tools())])
    assert "other words" in state.steps[0].executions[0].text
    assert requested_names(model)[1] == ["search_tools"]


def test_a_changed_search_result_offers_the_tools_that_it_still_has() -> None:
    """Any value that an interceptor puts in place of a search result can be read."""
    for value in (None, "text", 7, ["lock_order"], {"tools": "x"}, {"tools": [7, {"name": 3}, {"name": "lock_order"}]}):
        state = run(ScriptedInference(search_calls("lock orders"), "done"), [ToolSearch(create_tools())])
        (exchange,) = state.messages[1].exchanges
        changed = state.messages[1].with_parts([type(exchange)(exchange.call, exchange.execution.with_value(value))])
        model = ScriptedInference("done")
        changed_state = state.with_messages([state.messages[0], changed, *state.messages[2:]]).with_message("more")
        run(model, [ToolSearch(create_tools())], state=changed_state)
        expected = ["lock_order"] if isinstance(value, dict) and isinstance(value["tools"], list) else []
        assert requested_names(model)[0] == ["search_tools", *expected]


def test_a_loop_may_have_two_searches() -> None:
    """Each search hides and offers only its own tools."""
    tools = create_tools()
    model = ScriptedInference(search_calls("delete tickets", "find_b"), "done")
    run(model, [ToolSearch(tools[:100], name="find_a"), ToolSearch(tools[100:], name="find_b", max_results=1)])
    assert requested_names(model)[0] == ["find_a", "find_b"]
    assert all(name in {tool.name for tool in tools[100:]} for name in requested_names(model)[1][2:])
    assert len(requested_names(model)[1]) == 3


def test_groups_in_a_search_are_started_and_stopped() -> None:
    """A group in a search is held while the loop runs, and its interceptors are in the stack."""
    events: list[str] = []

    def record(point: BeforeInference) -> BeforeInference:
        events.append("inference")
        return point

    group = Ensemble(
        "office",
        create_tools()[:2],
        start=lambda: events.append("start"),
        stop=lambda: events.append("stop"),
        interceptors=[at("before_inference", record)],
    )
    run(ScriptedInference("done"), [ToolSearch([group])])
    assert events == ["start", "inference", "stop"]


async def test_a_search_holds_all_groups_or_none() -> None:
    """When it is cancelled while the second group starts, the first one is stopped."""
    events: list[str] = []
    has_started = asyncio.Event()

    async def hang() -> None:
        has_started.set()
        await asyncio.Event().wait()

    first = Ensemble("a", create_tools()[:1], start=lambda: events.append("start"), stop=lambda: events.append("stop"))
    second = Ensemble("b", create_tools()[1:2], start=hang)
    holding = asyncio.create_task(ToolSearch([first, second]).hold())
    await has_started.wait()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert events == ["start", "stop"]


def test_the_tool_that_searches_runs_in_this_process() -> None:
    """An executor that runs tools elsewhere sends the tools that were found, and not the search."""

    @frozen
    class Far(RemoteToolExecutor):
        async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
            raise NotImplementedError

    tools = AgentLoop(ToolCallingDriver(ScriptedInference()), [ToolSearch(create_tools())]).tools
    assert [tool.name for tool in Far().local_tools(tools)] == ["search_tools"]


def test_each_search_is_a_group_of_its_own() -> None:
    """Also one of the same tools: each holds their groups by itself."""
    tools = ToolSearch(create_tools()).tools
    assert len({ToolSearch(tools), ToolSearch(tools)}) == 2


def test_an_invalid_search_is_refused() -> None:
    """No tool may have the name of the tool that searches, and the number of results has to be positive."""
    with pytest.raises(ToolDefinitionError, match="pass another name"):
        ToolSearch([NamedTool("search_tools", "Search.")])
    with pytest.raises(ValueError, match="max_results"):
        ToolSearch(create_tools(), max_results=0)


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
def test_the_best_match_is_first(query: str, expected: str) -> None:
    """Words match names and descriptions with any ending and in any order."""
    matches = ToolRanking.of([tool.spec for tool in create_tools()]).search(query, 5)
    assert matches[0].name == expected
    assert len(matches) <= 5


@pytest.mark.parametrize(("query", "found"), [("logs", True), ("gas", False)])
def test_an_ending_is_removed_from_a_word_of_which_three_letters_remain(query: str, found: bool) -> None:  # noqa: FBT001  # a column
    """A short word is found in the plural; of a shorter one nothing is removed."""
    specs = [ToolSpec("read", "Read the log.", {"type": "object"}), ToolSpec("ga", "Other.", {"type": "object"})]
    assert bool(ToolRanking.of(specs).search(query, 5)) is found


def test_parameters_are_searched_too() -> None:
    """Words match the names and descriptions of parameters."""
    schema = {"type": "object", "properties": {"iban": {"type": "string", "description": "An account at a bank."}}}
    pay = ToolSpec("pay", "Send money.", schema)
    other = ToolSpec("look", "See something.", {"type": "object"})
    assert ToolRanking.of([other, pay]).search("bank account", 5) == [pay]
    assert ToolRanking.of([other, pay]).search("IBAN", 5) == [pay]


def weighed_tool(name: str, description: str, parameters: str = "") -> ToolSpec:
    """Return a tool with a parameter for each of these words."""
    return ToolSpec(name, description, {"type": "object", "properties": {word: {} for word in parameters.split()}})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (weighed_tool("refund", "money money money"), weighed_tool("money", "refund refund refund")),
        (
            weighed_tool("first", "refund", "money_back moneyBack"),
            weighed_tool("second", "money back", "refund Refund"),
        ),
    ],
    ids=["name", "parameter"],
)
def test_where_a_word_is_says_how_much_it_counts(first: ToolSpec, second: ToolSpec) -> None:
    """Once in a name is as good as three times in a description, and once in a description as twice in parameters."""
    assert ToolRanking.of([first, second]).search("refunds", 5) == [first, second]
    assert ToolRanking.of([second, first]).search("refunds", 5) == [second, first]


def test_a_word_counts_more_in_a_short_text() -> None:
    """Of two tools that have it once, the one that says less besides is first; the other one is found, too."""
    short = ToolSpec("pay", "Refund money.", {"type": "object"})
    long = ToolSpec("settle", f"Refund money, {' '.join(VERBS)}.", {"type": "object"})
    others = [ToolSpec(f"other_{n}", "See something.", {"type": "object"}) for n in range(9)]
    assert ToolRanking.of([long, *others, short]).search("refund", 5) == [short, long]


def test_stop_words_match_nothing() -> None:
    """A query without words, or only with stop words, matches no tool; nor does any query without tools."""
    ranking = ToolRanking.of([tool.spec for tool in create_tools()])
    assert ranking.search("please use the tool that can do this", 5) == []
    assert ranking.search("", 5) == []
    assert ToolRanking.of([]).search("create", 5) == []


def test_equally_good_matches_keep_the_order_of_the_tools() -> None:
    """The order of results is deterministic."""
    specs = [ToolSpec(f"tool_{n}", "Fry an egg.", {"type": "object"}) for n in range(9)]
    assert ToolRanking.of(specs).search("egg", 3) == specs[:3]


def test_selection_and_search_keep_the_laws_of_interceptors() -> None:
    """Both change no context in place and are deterministic."""
    InterceptorKit(lambda: ToolSelection(["echo", "plain"]), examples=examples(10), breaks_prefix=True).check_all()
    interceptor = ToolSearch(toy_tools(Ledger())).interceptors[0]
    InterceptorKit(lambda: interceptor, examples=examples(10), breaks_prefix=True).check_all()


def test_a_text_answer_is_not_changed() -> None:
    """A selection concerns tools only."""
    model = ScriptedInference(InferenceResponse((Text("done"),)))
    assert run(model, toy_tools(Ledger()), ToolSelection("echo")).final_text == "done"


@pytest.mark.parametrize("mode", ["native", "program"])
def test_what_a_program_finds_is_offered(mode: str) -> None:
    """Its search discovers tools as one of the model does, and so do its calls."""
    programs = ["found = await search_tools(query='remove an invoice')", "await delete_invoice(id='7')"]
    calls = [ToolCall("", "run_program", json.dumps({"code": code})) for code in programs]
    model = ScriptedInference(*calls, "done")
    tools = [ToolSearch(create_tools()), *([RunProgram()] if mode == "native" else [])]
    state = run(model, tools, mode=mode)
    executions = [execution for step in state.steps for execution in step.executions]
    assert [execution.succeeded for execution in executions] == [True, True]
    assert [execution.name for execution in executions[1].inner] == ["delete_invoice"]
    if mode == "native":
        first, second, third = requested_names(model)
        assert "delete_invoice" not in first
        assert "delete_invoice" in second
        assert third == second
