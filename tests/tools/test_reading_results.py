"""Results that do not fit: what a model sees of them, and the tool by which it reads the rest."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    ScriptedInference,
    SqliteJournal,
    ToolCall,
    ToolCallingDriver,
    ToolExecution,
    ToolExecutor,
    from_json,
    to_json,
    tool,
)
from agentloop.durable import MemoryJournal, replay
from agentloop.interception import AfterToolUse, at
from agentloop.policies import Resilience, ToolSearch
from agentloop.testing import CountingIds, ManualClock, Scenario, ScriptedTurn, run_in_virtual_time
from agentloop.testing.strategies import json_values
from agentloop.tools import read_result
from agentloop.tools.results import LINE_CHARACTERS, ReadResult, _Page, numbered_lines
from agentloop.values import CachePolicy, Image, InferenceRequest, JsonValue, Text, ToolResult, ToolStatus
from agentloop.values.json import freeze, thaw
from tests.durable.recovery_bench import Model, Turn, truncate
from tests.testing.test_equivalence import REACT, TOOL_CALLING, factory_for

LOG = "\n".join(f"line {number} of the log" for number in range(1, 1_001))
SIZE = f"{len(LOG):,}"
ROWS = [{"id": number, "name": f"row {number}", "note": "x" * 700 if number == 7 else ""} for number in range(300)]
SECRET = "sk-live-0123456789abcdef"


@tool(effect="pure")
async def log() -> str:
    """Return the log."""
    return LOG


@tool(effect="pure")
async def rows() -> list[dict[str, Any]]:
    """Return rows."""
    return ROWS


def read_call(reference: str, number: int = 1, **arguments: object) -> ToolCall:
    """Return a call of `read_result`."""
    return ToolCall(f"r{number}", "read_result", json.dumps({"reference": reference, **arguments}))


def run(*script: str | Sequence[ToolCall] | ToolCall, tools: Sequence[Any], **parts: Any) -> AgentState:
    """Run a script with small results; the execution has the id `run`."""
    parts = {"executor": ToolExecutor(max_result_bytes=600), "clock": ManualClock(), "ids": CountingIds(), **parts}
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(*script, "done")), tools, **parts)
    return loop.execute_sync("go", execution_id="run").raise_for_status()


def read_value(value: object, max_bytes: int = 20_000, **arguments: Any) -> ToolExecution:
    """Return the outcome of reading a result with this value."""

    @tool(effect="pure")
    async def work() -> Any:
        """Return the value."""
        return value

    reader = ReadResult(max_bytes=max_bytes)
    state = run(ToolCall("1", "work"), read_call("run/1/0", **arguments), tools=[work, reader])
    return state.steps[1].executions[0]


# --- what the model sees ----------------------------------------------------------------------------------------


def test_a_model_sees_both_ends_the_sizes_and_how_to_read_the_rest() -> None:
    """The line at which reading goes on is the first one that is not shown whole."""
    state = run([ToolCall("1", "log"), ToolCall("2", "rows")], tools=[log, rows, read_result])
    text, table = state.steps[0].executions
    notice = re.search(
        rf'\n\[cut here: 600 of {SIZE} bytes are shown; read_result\(reference="run/1/0", from=(\d+)\) continues\]\n',
        text.text,
    )
    assert notice is not None
    head, tail = text.text[: notice.start()], text.text[notice.end() :]
    assert LOG.startswith(head)
    assert LOG.endswith(tail)
    assert len(head) == 400
    assert head.splitlines()[-1] in f"line {notice[1]} of the log"
    assert 'it is a list of 300 items; read_result(reference="run/1/1") lists them' in table.text
    assert (text.value, text.uncut, len(table.value)) == (LOG, (), 300)  # type: ignore[arg-type]  # a list


def test_without_the_tool_the_notice_names_no_reference() -> None:
    """A model is not told of a tool that it does not have."""
    (outcome,) = run(ToolCall("1", "log"), tools=[log]).steps[0].executions
    assert f"[cut here: 600 of {SIZE} bytes are shown]" in outcome.text


def test_the_tool_is_offered_from_the_first_request_on() -> None:
    """The tools of a request do not depend on whether something was cut, not even behind a search."""
    for tools in ([log, read_result], [ToolSearch([log, read_result])]):
        inference = ScriptedInference(ToolCall("1", "log"), read_call("run/1/0"), "done")
        loop = AgentLoop(ToolCallingDriver(inference), tools, executor=ToolExecutor(max_result_bytes=600))
        loop.execute_sync("go", execution_id="run").raise_for_status()
        assert all("read_result" in [spec.name for spec in request.tools] for request in inference.requests)


def test_a_cached_result_refers_to_the_call_that_got_it() -> None:
    """A reference is that of the call in whose result it is, also when another call ran the tool."""
    cached = tool(effect="pure", cache=CachePolicy())(log.function)
    state = run(ToolCall("1", "log"), ToolCall("2", "log"), tools=[cached, read_result], interceptors=[Resilience()])
    assert [
        'reference="run/1/0"' in state.steps[0].executions[0].text,
        'reference="run/2/0"' in state.steps[1].executions[0].text,
    ] == [True, True]


# --- reading ----------------------------------------------------------------------------------------------------


def test_lines_items_paths_and_places_are_read() -> None:
    """Each page says what it shows, and how to go on."""
    assert read_value(LOG, **{"from": 40, "lines": 2}).text.splitlines() == [
        "[lines 40 to 41 of 1,000; next: from=42]",
        "line 40 of the log",
        "line 41 of the log",
    ]
    assert read_value(LOG, **{"from": -1}).text.splitlines() == [
        "[lines 1,000 to 1,000 of 1,000]",
        "line 1000 of the log",
    ]
    assert read_value(ROWS, **{"from": 6, "lines": 2}).text.splitlines() == [
        "[items 6 to 7 of 300; next: from=8]",
        '/6: {"id":6,"name":"row 6","note":""}',
        "/7: (an object with 3 keys, 733 bytes)",
    ]
    assert read_value(ROWS, path="/7/name").text.splitlines()[1] == "row 7"
    assert read_value(ROWS, path="[7].id").text.splitlines()[1] == "7"
    assert read_value({"a/b": {"c.d": [1]}}, path="/a~1b/c.d/0").text.splitlines()[1] == "1"
    assert read_value({"rows": ROWS}, path="rows[7]").text.splitlines()[1:3] == [
        "/rows/7/id: 7",
        '/rows/7/name: "row 7"',
    ]


def test_a_text_is_searched_literally() -> None:
    """Lines come with their neighbors, JSON with paths; nothing in the text is a pattern."""
    assert read_value(LOG, text="line 500 of").text.splitlines() == [
        "[1 of 1,000 lines contain 'line 500 of']",
        "498- line 498 of the log",
        "499- line 499 of the log",
        "500: line 500 of the log",
        "501- line 501 of the log",
        "502- line 502 of the log",
    ]
    assert read_value(LOG, text="l.ne").text == "[0 of 1,000 lines contain 'l.ne']"
    assert read_value(ROWS, text="row 29", lines=2).text.splitlines() == [
        "[places that contain 'row 29': 0 to 1 of 11; next: from=2]",
        "/29/name: row 29",
        "/290/name: row 290",
    ]
    assert read_value({"a": [{"needle": 1}]}, text="needle").text.splitlines()[1] == "/a/0/needle: 1"
    assert read_value("x" * 399 + "needle" + "x" * 500, text="needle").text.startswith("[1 of 3 lines")


def test_the_json_in_a_text_is_read_by_path() -> None:
    """Many tools return JSON as text; any other text has no paths."""
    assert read_value(json.dumps({"rows": ROWS}), path="rows[7].name").text.splitlines()[1] == "row 7"
    assert "is a text and not JSON" in read_value(LOG, path="/rows").error_message


def test_parts_are_read_as_the_tool_shows_them() -> None:
    """The value behind the content is for the program alone; images are neither cut nor dropped."""

    @tool(effect="pure", show=lambda _: [LOG, Image(data=b"pixels", media_type="image/png")])
    async def look() -> dict[str, str]:
        """Look."""
        return {"internal": "not for the model"}

    state = run(
        ToolCall("1", "look"), [read_call("run/1/0"), read_call("run/1/0", text="internal")], tools=[look, read_result]
    )
    shown = state.steps[0].executions[0]
    whole, search = state.steps[1].executions
    assert shown.content is not None
    assert shown.content[1] == Image(data=b"pixels", media_type="image/png")
    assert shown.uncut == (Text(LOG), shown.content[1])
    assert whole.content is not None
    assert whole.content[1:] == (shown.content[1],)
    assert "line 700 of the log" in whole.text
    assert "[image image/png, 6 bytes]" in read_all(state, "run/1/0")
    assert search.text == "[0 of 1,001 lines contain 'internal']"


def read_all(state: AgentState, reference: str, max_bytes: int = 20_000, **arguments: Any) -> str:
    """Read all pages of a result of a state; return their lines, joined as they were numbered."""
    reader = ReadResult(max_bytes=max_bytes).with_agent_state(state)
    lines, position = list[str](), arguments.pop("from", None)
    while True:
        start = {} if position is None else {"from": position}
        page = run_in_virtual_time(reader.use(reference=reference, **start, **arguments))
        text = page.value if isinstance(page, ToolResult) else page
        assert isinstance(text, str)
        assert len(text.encode("utf-8", "surrogatepass")) <= max_bytes
        head, *shown = text.split("\n")
        lines += shown
        following = re.search(r"next: from=(\d+)\]$", head)
        if following is None:
            return "\n".join(lines)
        position = int(following[1])


def state_with(value: object) -> AgentState:
    """Return a state with a result that has this value."""

    @tool(effect="pure")
    async def work() -> Any:
        """Return the value."""
        return value

    return run(ToolCall("1", "work"), tools=[work])


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=300), st.integers(1, 60))
def test_the_pages_of_a_text_are_the_whole_text(text: str, repetitions: int) -> None:
    """No page is larger than the limit, and no line is lost or repeated, however long it is."""
    whole = text * repetitions
    assert read_all(state_with(whole), "run/1/0", 2_000) == "\n".join(numbered_lines(whole))
    assert "".join(numbered_lines(whole)) == whole.replace("\n", "")
    assert all(len(line) <= LINE_CHARACTERS for line in numbered_lines(whole))


@given(
    st.lists(
        st.sampled_from(["a", "b" * 399, "c" * 400, "d" * 401, "e" * 1200, "", "\r", "f" * 70_000, "g\u0301"]),
        max_size=40,
    ),
    st.sampled_from(["a", "c", "cc", "d\n", "\n", "f\n", "\u0301", "\nb", "ec"]),
)
def test_lines_are_found_wherever_a_text_has_them(parts: list[str], text: str) -> None:
    """The lines that are found are those that the place of a match begins in, also in texts of many blocks."""
    whole = "\n".join(parts)
    lines, starts, position = numbered_lines(whole), list[int](), 0
    for line in whole.split("\n"):
        starts += range(position, position + max(len(line), 1), LINE_CHARACTERS)
        position += len(line) + 1
    places = [index for index in range(len(whole)) if whole.startswith(text, index)]
    expected = sorted({bisect_right(starts, place) - 1 for place in places})
    shown = _Page(10**9, None, None).search(whole, "", text).split("\n")
    assert shown[0].startswith(f"[{len(expected):,} of {len(lines):,} lines contain")
    numbers = [int(line.partition(":")[0]) - 1 for line in shown[1:] if line.partition(" ")[0].endswith(":")]
    assert numbers == expected
    assert all(f"{number + 1}: {lines[number]}" in shown for number in expected)


def test_a_search_with_many_places_goes_on_where_it_ended() -> None:
    """A search counts so many places only, so that it takes no longer than a page needs."""
    page = _Page(10**9, None, None).search("x\n" * 25_000, "", "x")
    assert page.startswith("[10,000 or more of 25,001 lines contain 'x'; next: from=10001]\n1: x\n")
    assert page.endswith("\n10002- x")


@pytest.mark.parametrize("lines", [10**18, 10**30])
def test_any_number_of_lines_can_be_asked_for(lines: int) -> None:
    """More lines than there are, and than any text could have, are all that fit."""
    assert read_value("one\ntwo", lines=lines).text == "[lines 1 to 2 of 2]\none\ntwo"


def test_a_path_that_is_listed_is_one_that_is_accepted() -> None:
    """The paths of long keys are not shortened."""
    key = "k" * 500
    listed = read_value({key: "v" * 3_000}).text.split("\n")[1].partition(": ")[0]
    assert listed == f"/{key}"
    assert "v" * 400 in read_value({key: "v" * 3_000}, path=listed).text


@given(json_values(), st.integers(0, 3))
def test_every_value_of_a_json_result_is_read_by_its_path(value: Any, padding: int) -> None:
    """Following the listed paths leads to every leaf; both spellings of a path read the same."""
    value = {"big": ["x" * 600] * padding, "value": thaw(value)}
    state = state_with(value)

    def check(part: JsonValue, pointer: str) -> None:
        if isinstance(part, dict | tuple):
            items = part.items() if isinstance(part, dict) else enumerate(part)
            for key, member in items:
                check(member, f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}")
        else:
            shown = read_all(state, "run/1/0", path=pointer)
            text = part if isinstance(part, str) else json.dumps(part)
            if isinstance(part, str) or part is None or isinstance(part, bool):
                assert shown == "\n".join(numbered_lines(text))

    frozen = freeze(value)
    assert isinstance(frozen, dict)
    check(frozen["value"], "/value")
    check(frozen["big"], "/big")


# --- references -------------------------------------------------------------------------------------------------

HOSTILE = [
    "",
    "run",
    "run/1/1",
    "run/9/0",
    "run/1/0/",
    "../run/1/0",
    "other/1/0",
    "run/1/0\x00",
    "*",
    "{0}",
    "' OR 1=1",
    "x" * 1_000,
]


@pytest.mark.parametrize("reference", HOSTILE)
def test_a_hostile_reference_is_a_clear_rejection(reference: str) -> None:
    """The call is rejected with a short message, and the tools of other executions are out of reach."""
    state = run(
        ToolCall("1", "log"),
        read_call(reference),
        tools=[log, read_result],
        executor=ToolExecutor(raise_on_tool_failure=True),
    )
    (outcome,) = state.steps[1].executions
    assert outcome.status is ToolStatus.REJECTED
    assert "no result in this conversation has the reference" in outcome.error_message
    assert len(outcome.error_message) < 300


@given(st.text(max_size=30), st.integers(), st.integers(1), st.text(min_size=1, max_size=20))
def test_no_arguments_break_the_tool(path: str, start: int, lines: int, text: str) -> None:
    """Whatever the arguments are, the call returns a page or is rejected."""
    for value in (LOG, ROWS):
        outcome = read_value(value, path=path, lines=lines, text=text, **{"from": start})
        assert outcome.status in {ToolStatus.SUCCEEDED, ToolStatus.REJECTED}


def test_a_reference_holds_in_the_executions_that_follow_and_in_stored_states() -> None:
    """The conversation that contains the notice contains the result."""
    state = run(ToolCall("1", "log"), tools=[log, read_result])
    stored = from_json(to_json(state), AgentState)
    assert stored == state
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(read_call("run/1/0", **{"from": 500, "lines": 1}), "done")), [read_result]
    )
    again = loop.execute_sync(stored.with_message("again"), execution_id="run-2")
    assert "line 500 of the log" in again.steps[0].executions[0].text


def test_sub_agents_read_the_results_of_the_agents_above_and_not_the_reverse() -> None:
    """A reference can be passed to an agent; the results of the agent stay its own."""

    seen: list[ToolExecution] = []

    @at("after_tool_use")
    def watch(point: AfterToolUse) -> AfterToolUse:
        seen.append(point.execution)
        return point

    inner = AgentLoop(
        ToolCallingDriver(ScriptedInference(ToolCall("1", "log"), read_call("run/1/0", text="line 7 of"), "looked")),
        [log, read_result],
        interceptors=[watch],
    ).as_tool("clerk", "Looks.")
    outer = AgentLoop(
        ToolCallingDriver(ScriptedInference(ToolCall("1", "clerk", '{"task": "look at run/1/0"}'), "looked")), [inner]
    ).as_tool("manager", "Manages.")
    state = run(
        ToolCall("1", "log"),
        ToolCall("2", "manager", '{"task": "look at run/1/0"}'),
        read_call("run/2/0/agent/1/0/agent/1/0"),
        tools=[log, outer, read_result],
    )
    assert [execution.status.value for execution in seen] == ["succeeded", "succeeded"]
    assert "7: line 7 of the log" in seen[1].text
    assert state.steps[2].executions[0].status is ToolStatus.REJECTED


# --- journals, masks and modes ----------------------------------------------------------------------------------

TURNS: tuple[Turn, ...] = ([("log", {})], [("read_result", {"reference": "run/1/0", "from": 900, "lines": 2})], "done")


def journaled(journal: Any, *tools: Any, **parts: Any) -> AgentLoop:
    """Return a loop with a journal and small results."""
    return AgentLoop(
        ToolCallingDriver(Model(*TURNS)),
        [*tools, read_result],
        journal=journal,
        executor=ToolExecutor(max_result_bytes=600),
        **parts,
    )


async def test_a_recovered_execution_reads_the_same_wherever_it_was_interrupted(tmp_path: Any) -> None:
    """Each crash leaves a journal from which the same pages are read; the record replays without a difference."""
    journal = MemoryJournal()
    whole = await journaled(journal, log).execute("go", execution_id="run")
    records = await journal.read("run")
    for count in range(1, len(records)):
        recovered = await journaled(await truncate(journal, "run", count), log).recover("run")
        assert [[execution.text for execution in step.executions] for step in recovered.steps] == [
            [execution.text for execution in step.executions] for step in whole.steps
        ]
    assert await journal.state("run") == whole
    assert (await replay(journal, "run", journaled(None, log))).divergence is None
    async with aclosing(SqliteJournal(tmp_path / "journal.db")) as stored:
        state = await journaled(stored, log).execute("go", execution_id="run")
        assert await stored.state("run") == state


async def test_a_fork_reads_the_results_of_its_source() -> None:
    """An outcome that the fork takes over refers to the call of the fork."""
    effects = tool(effect="effect")(log.function)
    journal = MemoryJournal()
    await journaled(journal, effects).execute("go", execution_id="run")
    late = await journal.fork("run", 1)
    state = await journaled(journal, effects).recover(late)
    assert "line 900 of the log" in state.steps[1].executions[0].text
    early = await journal.fork("run", 0)
    turns: tuple[Turn, ...] = (
        TURNS[0],
        [("read_result", {"reference": f"{early}/1/0", "from": 900, "lines": 2})],
        "done",
    )
    loop = journaled(journal, effects).replace(driver=ToolCallingDriver(Model(*turns)))
    state = await loop.recover(early)
    assert f'reference="{early}/1/0"' in state.steps[0].executions[0].text
    assert 'run/1/0"' not in state.steps[0].executions[0].text.replace(early, "")
    assert "line 900 of the log" in state.steps[1].executions[0].text


async def test_what_a_journal_masks_stays_masked_in_what_is_read() -> None:
    """A page is taken from the masked result: no part of a secret is read on its own, live or recovered."""

    @tool(effect="pure")
    async def config() -> dict[str, Any]:
        """Return settings."""
        return {"key": SECRET, "password": "hunter2", "log": LOG}

    reads: list[tuple[str, dict[str, object]]] = [
        ("read_result", {"reference": "run/1/0", "path": path}) for path in ("/key", "/password")
    ]
    reads.append(("read_result", {"reference": "run/1/0", "text": SECRET[:12]}))
    turns: tuple[Turn, ...] = ([("config", {})], reads, "done")
    journal = MemoryJournal(secrets=[SECRET], secret_fields=["password"])
    state = (
        await journaled(journal, config)
        .replace(driver=ToolCallingDriver(Model(*turns)))
        .execute("go", execution_id="run")
    )
    texts = [execution.text for execution in state.steps[1].executions]
    assert texts[:2] == ["[lines 1 to 1 of 1]\n***", "[lines 1 to 1 of 1]\n***"]
    assert texts[2].startswith("[0 places")
    recovered = await journal.state("run")
    assert [execution.text for execution in recovered.steps[1].executions] == texts


@pytest.mark.parametrize("replaces", ["content", "value", "both", "appends"])
def test_what_an_interceptor_masks_stays_masked_in_what_is_read(replaces: str) -> None:
    """The rest of a result is readable only while what the model sees of it is what the tool returned."""

    @at("after_tool_use")
    def mask(point: AfterToolUse) -> AfterToolUse:
        execution = point.execution
        if execution.name != "leak":
            return point
        text, value = execution.text.replace(SECRET, "masked"), str(execution.value).replace(SECRET, "masked")
        changes: dict[str, dict[str, Any]] = {
            "content": {"content": (Text(text),)},
            "value": {"value": value},
            "both": {"value": value, "content": (Text(text),)},
            "appends": {"content": (*execution.parts, Text("a notice"))},
        }
        return point.with_execution(evolve(execution, **changes[replaces]))

    @tool(effect="pure")
    async def leak() -> str:
        """Return a secret in the middle and at the beginning."""
        return f"{SECRET}\n{LOG}\n{SECRET}\n{LOG}"

    state = run(
        ToolCall("1", "leak"), read_call("run/1/0", text=SECRET), tools=[leak, read_result], interceptors=[mask]
    )
    read = state.steps[1].executions[0].text
    if replaces == "appends":
        assert read.startswith("[2 of")
    else:
        assert read.startswith("[0 of")


@pytest.mark.parametrize("max_bytes", [300, 600, 1_000_000])
@pytest.mark.parametrize("shape", ["text", "object", "parts"])
def test_an_interceptor_masks_what_it_finds_in_the_text_whether_or_not_that_fits(shape: str, max_bytes: int) -> None:
    """It sees the result whole, and the model gets what it made of it: cut, and readable by the reference."""
    hidden = f"{LOG}\n{SECRET}\n{LOG}"

    @at("after_tool_use")
    def mask(point: AfterToolUse) -> AfterToolUse:
        text = point.execution.text
        if point.execution.name != "leak" or SECRET not in text:
            return point
        return point.with_value(text.replace(SECRET, "masked"))

    @tool(effect="pure")
    async def leak() -> Any:
        """Return a secret in the middle."""
        shapes: dict[str, Any] = {"text": hidden, "object": {"log": hidden}}
        return shapes.get(shape) or ToolResult(None, (Text(hidden), Text("more")))

    state = run(
        ToolCall("1", "leak"),
        [read_call("run/1/0", 1, text=SECRET), read_call("run/1/0", 2, text="masked")],
        tools=[leak, read_result],
        interceptors=[mask],
        executor=ToolExecutor(max_result_bytes=max_bytes),
    )
    (outcome,), (secret, masked) = (step.executions for step in state.steps[:2])
    assert ("[cut here" in outcome.text) is (max_bytes < 1_000_000)
    assert secret.text.startswith("[0 of")
    assert masked.text.startswith("[1 of")


@pytest.mark.parametrize("mode", [*TOOL_CALLING, *REACT])
def test_every_driver_and_mode_reads_the_same(mode: str) -> None:
    """Law 12 holds for what is cut, and for what is read."""
    scenario = Scenario(
        "go",
        [
            ScriptedTurn("", (ToolCall("1", "log"), ToolCall("2", "rows"))),
            ScriptedTurn("", (read_call("run/1/0", text="line 7 of"), read_call("run/1/1", 2, path="[7].name"))),
            ScriptedTurn("done"),
        ],
    )
    loop = AgentLoop(factory_for(mode)(scenario), [log, rows, read_result], executor=ToolExecutor(max_result_bytes=600))
    state = loop.execute_sync("go", execution_id="run").raise_for_status()
    assert state.final_text == "done"
    (text, table), (found, name) = (step.executions for step in state.steps[:2])
    assert 'reference="run/1/0"' in text.text
    assert 'reference="run/1/1"' in table.text
    assert "7: line 7 of the log" in found.text
    assert name.text == "[lines 1 to 1 of 1]\nrow 7"


def test_requests_extend_each_other_while_results_are_read() -> None:
    """Reading changes neither the offered tools nor the messages before (law 13)."""
    inference = ScriptedInference(ToolCall("1", "log"), read_call("run/1/0"), read_call("run/1/0", 2, text="7"), "done")
    loop = AgentLoop(ToolCallingDriver(inference), [log, read_result], executor=ToolExecutor(max_result_bytes=600))
    loop.execute_sync("go", execution_id="run")
    requests: list[InferenceRequest] = inference.requests
    for earlier, later in pairwise(requests):
        assert later.tools == earlier.tools
        assert later.messages[: len(earlier.messages)] == earlier.messages
