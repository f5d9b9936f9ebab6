"""The audit of a loop finds what nobody guards, limits or records, and says of each tool how its calls are controlled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from agentloop import (
    AgentLoop,
    Budget,
    CancellationToken,
    Interceptor,
    Permissions,
    ScriptedInference,
    SqliteJournal,
    Tool,
    ToolCallLimit,
    ToolContext,
    handoff_to,
    tool,
)
from agentloop.contracts import CanTellControls, Control, ToolPolicy
from agentloop.contracts.can_intercept import CanForetellQuestions
from agentloop.errors import InvalidParameter
from agentloop.interception import RequireApproval, Rule, ToolSelection, at
from agentloop.mcp import McpEnsemble
from agentloop.policies import (
    AuditLog,
    Cache,
    Deadline,
    Deduplicate,
    EgressApproval,
    Guardrails,
    RateLimiter,
    Resilience,
    Retry,
)
from agentloop.testing import assert_guarded
from agentloop.toolkits import Ensemble, ToolOverride
from agentloop.toolkits.http import http
from agentloop.values import (
    CachePolicy,
    CallPolicy,
    CircuitPolicy,
    DeduplicatePolicy,
    RateLimit,
    RetryPolicy,
    ToolSpec,
)
from agentloop.values.points import AfterToolUse, BeforeToolUse
from tests.mcp.running import small

RETRY = RetryPolicy(max_attempts=3)


@tool
def pay(cents: int) -> str:
    """Pay."""
    return f"{cents}"


@tool
def pay_once(cents: int, context: ToolContext[Any]) -> str:
    """Pay by a service that refuses a key that it knows."""
    return f"{cents} {context.idempotency_key}"


@tool(egress="url")
def send(url: str) -> str:
    """Send."""
    return url


@tool(effect="pure")
def look() -> str:
    """Look."""
    return ""


@tool(effect="idempotent")
def mark() -> str:
    """Mark."""
    return ""


class Silent(Interceptor):
    """A guard that blocks, and tells nobody."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("no")


class Forging(Silent):
    """A guard whose name would be a line of its own."""

    name = "a\u202eb\nno holes"


class Telling(Silent, CanTellControls):
    """The same guard, which tells."""

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:
        return [Control("stops", "always", of="calls")]


def loop_of(*tools: Any, guards: Sequence[Any] = (), **options: Any) -> AgentLoop:
    return AgentLoop.for_model(ScriptedInference("x"), tools=tools, interceptors=guards, **options)


def agent(*tools: Any, guards: Sequence[Any] = (), **options: Any) -> Tool:
    return loop_of(*tools, guards=guards).as_tool("helper", "Helps.", **options)


def holes(loop: AgentLoop) -> set[tuple[str, str]]:
    return {(hole.kind, hole.subject) for hole in loop.audit().holes}


@frozen
class Planted:
    """A hole: a loop with it, and the loop in which it is mended."""

    kind: str
    subject: str
    open: Callable[[], AgentLoop]
    closed: Callable[[], AgentLoop]


def handed(name: str, *tools: Any, guards: Sequence[Any] = ()) -> Tool:
    return handoff_to(loop_of(*tools, guards=guards), name=name, description="Takes over.")


ASK = RequireApproval()
TO_BANK = handed("to_bank", pay)
PLANTED = {
    "an approval whose pattern misses a tool": Planted(
        "unasked",
        "pay",
        lambda: loop_of(pay, pay_once, guards=[RequireApproval(["pay_*"])]),
        lambda: loop_of(pay, pay_once, guards=[RequireApproval(["pay*"])]),
    ),
    "an approval that an exception undoes": Planted(
        "unasked",
        "pay",
        lambda: loop_of(pay, guards=[RequireApproval(unless=["p*"])]),
        lambda: loop_of(pay, mark, guards=[RequireApproval(unless=["m*"])]),
    ),
    "an approval that depends on the call": Planted(
        "partly",
        "pay",
        lambda: loop_of(pay, guards=[RequireApproval([Rule("pay", when=lambda point: point.key == "x")])]),
        lambda: loop_of(pay, guards=[RequireApproval(["pay"])]),
    ),
    "a question before data leaves, and none before an effect": Planted(
        "partly",
        "send",
        lambda: loop_of(send, guards=[EgressApproval()]),
        lambda: loop_of(send, guards=[EgressApproval(), ASK]),
    ),
    "an approval for another effect": Planted(
        "unasked", "mark", lambda: loop_of(mark, guards=[ASK]), lambda: loop_of(mark, guards=[RequireApproval(["*"])])
    ),
    "an approval for another ensemble": Planted(
        "unasked",
        "pay",
        lambda: loop_of(pay, Ensemble("bank", [pay_once]), guards=[RequireApproval([Rule(ensemble="bank")])]),
        lambda: loop_of(Ensemble("bank", [pay]), guards=[RequireApproval([Rule(ensemble="bank")])]),
    ),
    "permissions that allow everything": Planted(
        "unasked",
        "pay",
        lambda: loop_of(pay, guards=[Permissions(allow=["*"])]),
        lambda: loop_of(pay, look, guards=[Permissions(allow=["look"])]),
    ),
    "a token that stops executions, and asks nobody": Planted(
        "unasked", "pay", lambda: loop_of(pay, guards=[CancellationToken()]), lambda: loop_of(pay, guards=[ASK])
    ),
    "guardrails of the output alone": Planted(
        "unasked",
        "pay",
        lambda: loop_of(pay, guards=[Guardrails(output=[lambda _: []])]),
        lambda: loop_of(pay, guards=[Guardrails(input=[lambda _: []], on_input="ask")]),
    ),
    "a selection that hides another tool": Planted(
        "unasked",
        "pay",
        lambda: loop_of(pay, look, guards=[ToolSelection(hide=["look"])]),
        lambda: loop_of(pay, look, guards=[ToolSelection(hide=["pay"])]),
    ),
    "an agent whose tool has an effect, behind an approval of its caller": Planted(
        "unasked",
        "helper/pay",
        lambda: loop_of(agent(pay), guards=[ASK]),
        lambda: loop_of(agent(pay, guards=[ASK]), guards=[ASK]),
    ),
    "an agent of an agent": Planted(
        "unasked",
        "helper/helper/pay",
        lambda: loop_of(agent(agent(pay), guards=[ASK]), guards=[ASK]),
        lambda: loop_of(agent(agent(pay, guards=[ASK]), guards=[ASK]), guards=[ASK]),
    ),
    "an agent that an ensemble wraps": Planted(
        "unasked",
        "helper/pay",
        lambda: loop_of(Ensemble("t", [agent(pay)], overrides={"helper": ToolOverride(description="Helps a lot.")})),
        lambda: loop_of(Ensemble("t", [agent(pay, guards=[ASK])])),
    ),
    "a loop that another one hands over to": Planted(
        "unasked",
        "to_bank/pay",
        lambda: loop_of(handed("to_bank", pay)),
        lambda: loop_of(handed("to_bank", pay), guards=[ASK]),
    ),
    "a loop that hands over to one with approvals": Planted(
        "unasked",
        "pay",
        lambda: loop_of(pay, handed("to_bank", pay_once, guards=[ASK])),
        lambda: loop_of(pay, handed("to_bank", pay_once), guards=[ASK]),
    ),
    "a loop after two handoffs, whose first one has approvals": Planted(
        "unasked",
        "to_desk/to_bank/pay",
        lambda: loop_of(handed("to_desk", handed("to_bank", pay), guards=[ASK])),
        lambda: loop_of(handed("to_desk", handed("to_bank", pay)), guards=[ASK]),
    ),
    "a loop that an agent hands over to, and its caller too": Planted(
        "unasked",
        "helper/to_bank/pay",
        lambda: loop_of(TO_BANK, agent(TO_BANK), guards=[ASK]),
        lambda: loop_of(TO_BANK, agent(TO_BANK, guards=[ASK]), guards=[ASK]),
    ),
    "a tool of the provider": Planted(
        "unasked",
        "web_search",
        lambda: loop_of(options={"hosted_tools": ["web_search"]}, guards=[ASK]),
        lambda: loop_of(look),
    ),
    "a server that is not known yet": Planted(
        "unasked",
        "docs/*",
        lambda: loop_of(McpEnsemble.stdio("none", name="docs")),
        lambda: loop_of(McpEnsemble.stdio("none", name="docs"), guards=[ASK]),
    ),
    "a pure tool that sends data": Planted(
        "leaks",
        "http_get",
        lambda: loop_of(http(["a.example"]), guards=[ASK]),
        lambda: loop_of(http(["a.example"]), guards=[ASK, EgressApproval()]),
    ),
    "a budget without calls": Planted(
        "uncounted",
        "pay",
        lambda: loop_of(pay, guards=[Budget(tokens=1000)]),
        lambda: loop_of(pay, guards=[Budget(tokens=1000, tool_calls=5)]),
    ),
    "a rate limit for another tool": Planted(
        "uncounted",
        "pay",
        lambda: loop_of(pay, pay_once, guards=[Resilience(tools={"pay_*": CallPolicy(rate_limit=RateLimit(1))})]),
        lambda: loop_of(pay, pay_once, guards=[Resilience(tools={"pay*": CallPolicy(rate_limit=RateLimit(1))})]),
    ),
    "a limit that ends at an agent": Planted(
        "uncounted",
        "helper/pay",
        lambda: loop_of(agent(pay), guards=[ToolCallLimit(5)]),
        lambda: loop_of(agent(pay), guards=[Budget(tool_calls=5)]),
    ),
    "a tool without a timeout": Planted(
        "endless", "pay", lambda: loop_of(pay), lambda: loop_of(tool(timeout=3.0)(pay.function))
    ),
    "an agent whose call has no deadline": Planted(
        "endless", "helper/pay", lambda: loop_of(agent(pay)), lambda: loop_of(agent(pay), guards=[Deadline(9.0)])
    ),
    "a retry of an effect without a key": Planted(
        "repeated",
        "pay",
        lambda: loop_of(pay, guards=[Retry(RETRY, effects=True)]),
        lambda: loop_of(pay_once, guards=[Retry(RETRY, effects=True)]),
    ),
    "a declared retry without a key": Planted(
        "repeated",
        "pay",
        lambda: loop_of(tool(retry=RETRY)(pay.function)),
        lambda: loop_of(tool(retry=RETRY)(pay_once.function)),
    ),
    "a cache of effects": Planted(
        "reused",
        "pay",
        lambda: loop_of(pay, guards=[Cache(CachePolicy(60), effects=True)]),
        lambda: loop_of(tool(cache=CachePolicy(60))(pay.function)),
    ),
    "a deduplication of effects": Planted(
        "reused",
        "pay",
        lambda: loop_of(pay, guards=[Deduplicate(effects=True)]),
        lambda: loop_of(tool(deduplicate=DeduplicatePolicy(60))(pay.function), guards=[Deduplicate(effects=True)]),
    ),
    "a server whose annotations are trusted": Planted(
        "trusted",
        "docs/*",
        lambda: loop_of(McpEnsemble.stdio("none", name="docs", trust_annotations=True), guards=[ASK]),
        lambda: loop_of(McpEnsemble.stdio("none", name="docs", effects={"read": "pure"}), guards=[ASK]),
    ),
    "a guard that says nothing": Planted(
        "unknown", "Silent", lambda: loop_of(pay, guards=[Silent()]), lambda: loop_of(pay, guards=[Telling()])
    ),
    "a function that says nothing": Planted(
        "unknown", "check", lambda: loop_of(pay, guards=[at("before_tool_use", check)]), lambda: loop_of(pay)
    ),
    "a name that no tool has": Planted(
        "unmatched",
        "there is no tool 'pya' for Permissions(deny=…), did you mean 'pay'?; if it may be missing, say optional=True",
        lambda: loop_of(pay, guards=[Permissions(deny=["pya"])]),
        lambda: loop_of(pay, guards=[Permissions(deny=["pay"])]),
    ),
    "an approval that is about nothing": Planted(
        "idle",
        "RequireApproval",
        lambda: loop_of(mark, guards=[ASK]),
        lambda: loop_of(handed("to_bank", pay), guards=[ASK]),
    ),
}


def check(point: BeforeToolUse) -> BeforeToolUse:
    """Let a call run."""
    return point


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_planted_hole_is_found_and_gone_when_it_is_mended(planted: Planted) -> None:
    """The audit names the tool or the part, and nothing once a guard is there."""
    assert (planted.kind, planted.subject) in holes(planted.open())
    assert (planted.kind, planted.subject) not in holes(planted.closed())


def test_an_effect_without_a_journal_is_a_hole(tmp_path: Path) -> None:
    """An audit log writes after a call; agents record in the journal of their caller."""
    logged = loop_of(pay, agent(pay), guards=[AuditLog()])
    assert {("unrecorded", "pay"), ("unrecorded", "helper/pay")} <= holes(logged)
    recorded = logged.replace(journal=SqliteJournal(tmp_path / "j.db"))
    assert not any(kind == "unrecorded" for kind, _ in holes(recorded))
    own = agent_with_journal(tmp_path)
    assert ("unrecorded", "helper/pay") not in holes(loop_of(own))


def agent_with_journal(folder: Path) -> Tool:
    return loop_of(pay, journal=SqliteJournal(folder / "k.db")).as_tool("helper", "Helps.")


async def test_the_tools_of_a_running_server_are_known() -> None:
    """Trusted annotations are told for each tool that they change; a tool that code calls pure is none of them."""
    async with small(trust_annotations=True) as server:
        found = holes(loop_of(server, guards=[ASK]))
    assert ("trusted", "add") in found
    assert not any(subject.endswith("/*") for _, subject in found)
    async with small(effects={"add": "pure"}) as server:
        assert ("trusted", "add") not in holes(loop_of(server))
    async with small(policy=ToolPolicy(retry=RETRY)) as server:
        assert ("repeated", "add") in holes(loop_of(server))  # a server gets no key


def test_a_loop_without_holes(tmp_path: Path) -> None:
    """Everything is asked, counted, timed and recorded."""
    audit = guarded(tmp_path).audit()
    assert audit.holes == ()
    assert str(audit).splitlines()[-1] == "no holes"
    (row,) = audit.tools
    assert [(each.kind, each.of, each.by) for each in row.controls] == [
        ("records", "outcomes", "AuditLog"),
        ("limits", "steps", "StepLimit"),
        ("limits", "calls", "Budget"),
        ("limits", "time", "Budget"),
        ("asks", "", "RequireApproval"),
        ("records", "intents", "SqliteJournal"),
    ]
    assert audit.harmless == 1


def guarded(folder: Path) -> AgentLoop:
    guards = [ASK, Budget(tool_calls=5, seconds=30), AuditLog()]
    return loop_of(pay, look, guards=guards, journal=SqliteJournal(folder / "j.db"))


def test_an_interceptor_that_foretells_questions_says_enough() -> None:
    """Rules that depend on the call guard some calls; an observer of outcomes is told, and is no hole."""
    assert not {("unasked", "pay"), ("unknown", "Foretelling")} & holes(loop_of(pay, guards=[Foretelling()]))
    for rule in (Rule("pay", caller="a"), Rule("pay", metadata={"a": 1}), lambda _: True):
        assert ("partly", "pay") in holes(loop_of(pay, guards=[RequireApproval([rule])]))
    audit = loop_of(pay, guards=[at("after_tool_use", observe)]).audit()
    assert audit.tools[0].unknown == ("observe",)
    assert audit.others == ()


class Foretelling(Interceptor, CanForetellQuestions):
    """A guard that tells only whether it asks."""

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        return tool.name == "pay"

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.suspend("ask")


def observe(point: AfterToolUse) -> AfterToolUse:
    """Look at an outcome."""
    return point


def test_policies_that_tools_declare_are_told() -> None:
    """They are limits and repetitions of the layers that the loop adds."""
    declared = tool(
        retry=RETRY, rate_limit=RateLimit(5, 60), circuit=CircuitPolicy(), deadline=9.0, timeout=2.0, repeatable=True
    )(pay_once.function)
    (row,) = loop_of(declared, max_steps=None).audit().tools
    assert {(each.kind, each.of, each.what) for each in row.controls} == {
        ("limits", "time", "9 seconds for a call"),
        ("repeats", "attempts", "up to 3 attempts"),
        ("limits", "failures", "none for 30 seconds after 5 failures"),
        ("limits", "rate", "5 attempts in 60 seconds"),
        ("limits", "time", "2 seconds for an attempt"),
        ("repeats", "calls", "an equal call of the model runs again"),
    }
    assert "repeated" not in {hole.kind for hole in row.holes}


def test_a_single_limiter_is_told() -> None:
    """It is about every tool."""
    (row,) = loop_of(pay, guards=[RateLimiter(RateLimit(1))]).audit().tools
    assert [each.by for each in row.controls if each.of == "rate"] == ["RateLimiter"]


def test_an_audit_is_data_and_a_table() -> None:
    """The JSON has every row, control and hole; the table has the same; names cannot write over lines."""
    renamed = tool(name="pay_2", description="Pay.")(pay.function)
    loop = loop_of(renamed, http(["a.example"]), guards=[EgressApproval(), Silent()])
    data = json.loads(json.dumps(loop.audit().as_json()))
    assert [(row["name"], row["effect"], row["egress"], row["unknown"]) for row in data["tools"]] == [
        ("pay_2", "effect", False, ["Silent"]),
        ("http_get", "pure", True, ["Silent"]),
    ]
    assert data["others"] == [
        {
            "kind": "unknown",
            "subject": "Silent",
            "what": "the interceptor takes part in calls, and does not tell how",
        }
    ]
    text = str(loop.audit())
    assert text.splitlines()[0].split()[:3] == ["tool", "effect", "asks"]
    assert "unknown: Silent" in text
    assert "EgressApproval asks some" in text
    assert max(map(len, text.splitlines())) <= 140
    forged = str(loop_of(pay, guards=[Forging()]).audit())
    assert "\u202e" not in forged
    assert "no holes" not in forged.splitlines()


def test_an_assertion_accepts_what_the_program_accepts(tmp_path: Path) -> None:
    """Other holes fail it, and so does an acceptance of a hole that is not there."""
    assert_guarded(guarded(tmp_path))
    open_loop = loop_of(pay, agent(pay, guards=[ASK]), guards=[RequireApproval(["helper"])])
    accepted: dict[Any, Any] = {"uncounted": "*", "endless": "*", "unrecorded": ["*pay", "helper"]}
    with pytest.raises(AssertionError, match=r"^unasked: pay: no person is asked about its calls"):
        assert_guarded(open_loop, accept=accepted)
    assert_guarded(open_loop, accept={**accepted, "unasked": ["pay"]})
    with pytest.raises(AssertionError, match=r"^accepted, and not there: leaks: pay"):
        assert_guarded(open_loop, accept={**accepted, "unasked": ["pay"], "leaks": "pay"})
    wrong: Any = {"unaskd": "*"}
    with pytest.raises(InvalidParameter, match="no kind of holes 'unaskd', did you mean 'unasked'"):
        assert_guarded(open_loop, accept=wrong)


def test_a_policy_that_the_caller_leaves_out_on_purpose_is_not_told_behind_a_handoff() -> None:
    """The executed loop's `Resilience` decides for both loops, so that the declared retries do not happen."""

    @tool(retry=RETRY)
    def charge(cents: int) -> str:
        """Charge."""
        return str(cents)

    to_desk = handed("to_desk", charge)
    assert ("repeated", "to_desk/charge") in holes(loop_of(to_desk))
    assert ("repeated", "to_desk/charge") not in holes(loop_of(to_desk, guards=[Resilience(retry=None)]))
