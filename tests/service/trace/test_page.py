"""Tests of pages with traces, and of the comparison of two traces."""

from __future__ import annotations

import json
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.errors import ConfigurationError
from agentloop.service.trace import build_trace, compare_traces, page, render_trace_page, write_trace_page
from agentloop.values import InferenceResponse, Text
from tests.service.trace.sample import ORDER, recorded_order

VIEWER = """<!doctype html><html><head>
<meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; script-src 'sha256-x'">
</head><body><script type="application/json" id="trace-data">null</script><script>show()</script></body></html>
"""


class Scripts(HTMLParser):
    """Collects what a browser takes for the content of script elements, and every other element."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.elements: list[str] = []
        self._attributes: dict[str, str | None] | None = None
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self._attributes = dict(attrs) if tag == "script" else None
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self._attributes is not None:
            self.scripts[-1] = (self._attributes, self.scripts[-1][1] + data)

    def handle_endtag(self, tag: str) -> None:
        self._attributes = None


async def trace_of(journal: MemoryJournal, execution_id: str = ORDER) -> Any:
    return await build_trace(journal, execution_id)


async def hostile_journal() -> MemoryJournal:
    """Record an execution whose texts try to leave the script element."""
    journal = MemoryJournal()
    text = "</script><script>alert(1)</script><!-- <script> ]]> \u2028\u2029\x00\u202e \udcff & &lt; " + "x" * 100_000
    model = ScriptedInference(InferenceResponse((Text(text),)))
    await AgentLoop.for_model(model, journal=journal).execute(text, execution_id="hostile")
    return journal


async def test_hostile_texts_stay_data() -> None:
    """Whatever texts hold, the page has the elements of the viewer, and its data are what was embedded."""
    trace = await trace_of(await hostile_journal(), "hostile")
    document = render_trace_page({"trace": trace, "compare": None, "served": None}, VIEWER)
    found = Scripts(document)
    assert found.elements == Scripts(VIEWER).elements
    (attributes, data), (_, script) = found.scripts
    assert (attributes["id"], script) == ("trace-data", "show()")
    assert not any(character in data for character in "<>&\u2028\u2029")
    embedded = json.loads(data)["trace"]["executions"][0]
    shown = embedded["messages"][1]["parts"][0]["text"]
    assert shown.startswith(
        "</script><script>alert(1)</script><!-- <script> ]]> \u2028\u2029\x00\u202e \ufffd & &lt; x"
    )
    document.encode()  # a lone surrogate could not be written


async def test_a_page_is_private_and_has_two_traces(tmp_path: Path) -> None:
    """A written page can be read by its owner only, and holds the second trace with the first difference."""
    left = await trace_of(recorded_order())
    file = tmp_path / "order.html"
    write_trace_page(file, left, compare_traces(left, left), VIEWER)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    data = json.loads(Scripts(file.read_text(encoding="utf-8")).scripts[0][1])
    assert data["trace"]["id"] == data["compare"]["trace"]["id"] == ORDER
    assert (data["compare"]["divergence"], data["served"]) == (None, None)


def test_without_the_built_viewer_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a clone, the message names the command that builds it; in an installation, it names the distribution."""
    monkeypatch.setattr(page, "VIEWER", tmp_path / "viewer.html")
    with pytest.raises(ConfigurationError, match=r"not built in this clone: .*make viewer"):
        page.load_viewer()
    monkeypatch.setattr(page, "_ROOT", tmp_path)
    with pytest.raises(ConfigurationError, match=r"viewer\.html of the trace viewer is missing: install") as missing:
        page.load_viewer()
    assert "clone" not in str(missing.value)


@pytest.mark.parametrize("viewer", ["<html></html>", VIEWER + VIEWER])
def test_a_viewer_without_one_place_for_data_is_refused(viewer: str) -> None:
    """A page without its data, or with them twice, is not written."""
    with pytest.raises(ConfigurationError, match="build it again"):
        render_trace_page({"trace": None, "compare": None, "served": None}, viewer)


def test_the_policy_is_that_of_the_viewer() -> None:
    """The header of a served page has the policy that the viewer declares for itself."""
    assert page.security_policy(VIEWER) == "default-src 'none'; script-src 'sha256-x'"
    with pytest.raises(ConfigurationError, match="policy"):
        page.security_policy("<html></html>")


# --- comparison ---------------------------------------------------------------------------------------------------------


@tool(effect="pure")
def look(place: str) -> str:
    """Look at a place."""
    return RESULTS[place]


RESULTS = {"here": "a lamp", "there": "a chair"}


async def record(
    question: str = "What is there?", *, prompt: str = "", place: str = "here", answer: str = "A lamp."
) -> Any:
    journal = MemoryJournal()
    call = ToolCall("call_1", "look", json.dumps({"place": place}))
    loop = AgentLoop.for_model(ScriptedInference(call, answer), tools=[look], journal=journal, system_prompt=prompt)
    await loop.execute(question)
    (head,) = await journal.list()
    return await build_trace(journal, head.execution_id)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, None),
        ({"question": "What?"}, (0, "input", "")),
        ({"prompt": "Be short."}, (1, "request", "system_prompt")),
        ({"place": "there"}, (1, "response", "parts[0].arguments")),
        ({"answer": "A chair."}, (2, "response", "parts[0].text")),
    ],
)
async def test_the_first_difference_is_named(changed: dict[str, str], expected: tuple[int, str, str] | None) -> None:
    """Two executions differ first where something else was sent, answered, called or returned; ids and times do not count."""
    found = compare_traces(await record(), await record(**changed))["divergence"]
    assert (None if found is None else (found["step"], found["what"], found["path"])) == expected


async def test_another_outcome_of_the_same_call_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call with another result differs at its outcome, with both values."""
    first = await record()
    monkeypatch.setitem(RESULTS, "here", "a table")
    found = compare_traces(first, await record())["divergence"]
    assert found == {
        "step": 1,
        "what": "outcome",
        "path": "value",
        "left": '"a lamp"',
        "right": '"a table"',
        "index": 0,
    }


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_fork_differs_from_its_original_where_it_went_on_otherwise(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fork has from its original is equal, although its requests are recorded there; what follows is compared."""
    journal = MemoryJournal()
    calls = [ToolCall(f"call_{number}", "look", json.dumps({"place": "here"})) for number in (1, 2, 3)]
    loop = AgentLoop.for_model(ScriptedInference(*calls, "A lamp."), tools=[look], journal=journal)
    await loop.execute("What is there?", execution_id="original")
    same, other = [await journal.fork("original", step) for _ in range(2)]
    await loop.recover(same)
    original = await build_trace(journal, "original")
    assert compare_traces(original, await build_trace(journal, same))["divergence"] is None
    monkeypatch.setitem(RESULTS, "here", "a table")
    await loop.recover(other)
    for left, right in ((original, await build_trace(journal, other)), (await build_trace(journal, other), original)):
        found = compare_traces(left, right)["divergence"]
        assert found is not None
        assert (found["step"], found["what"], found["path"]) == (step + 1, "outcome", "value")


async def test_a_longer_execution_differs_where_the_other_has_ended() -> None:
    """Where one execution makes one more request, that is the difference."""
    journal = recorded_order()
    whole = await trace_of(journal)
    last = max(number for number, record in enumerate(journal.appended, 1) if record.kind == "call_intent")
    found = compare_traces(whole, await trace_of(await journal.after_crash(last)))["divergence"]
    assert found is not None
    assert (found["step"], found["what"], found["left"], found["right"]) == (4, "outcome", '"in_doubt"', '"running"')
