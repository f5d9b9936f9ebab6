"""Permissions by ensemble, effect and metadata, and their events; secrets that the audit log masks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, Permissions, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.events import PermissionDecided, ToolCallBlocked, ToolCallStarted
from agentloop.interception import BeforeToolUse, RequireApproval, Rule, at
from agentloop.policies import AuditLog
from agentloop.testing import Ledger, toy_call, toy_tools
from agentloop.toolkits import Ensemble
from agentloop.values import Event, answer, approve, edit
from agentloop.values.secrets import MASK, SecretFields


@tool(effect="pure")
def read(value: int) -> int:
    """Read."""
    return value


@tool(effect="pure")
def write(value: int) -> int:
    """Write."""
    return value


def create_loop(*calls: ToolCall, interceptors: Any, tools: Any = None) -> AgentLoop:
    """Return a loop whose model makes these calls in one step."""
    groups = [Ensemble("files", [read]), Ensemble("mail", [write])]
    offered: Any = [*toy_tools(Ledger()), *groups] if tools is None else tools
    return AgentLoop(ToolCallingDriver(ScriptedInference(list(calls), "done")), offered, interceptors=interceptors)


def which_ran(permissions: Permissions, *calls: ToolCall, **metadata: object) -> list[bool]:
    """Return which of the calls ran."""
    state = AgentState.start("go", agent_id="clerk").with_metadata(**metadata)
    done = create_loop(*calls, interceptors=[permissions]).execute_sync(state)
    return [execution.succeeded for execution in done.steps[0].executions]


CALLS = (toy_call("echo", 1), toy_call("read", 2), toy_call("write", 3))


@pytest.mark.parametrize(
    ("permissions", "expected"),
    [
        (Permissions(deny=[Rule(ensemble="mail")]), [True, True, False]),
        (Permissions(deny=[Rule(ensemble="?*")]), [True, False, False]),
        (Permissions(allow=[Rule(ensemble="files")]), [False, True, False]),
        (Permissions(allow=[Rule(ensemble="")]), [True, False, False]),
        (Permissions(deny=[Rule(effect="effect")]), [False, True, True]),
        (Permissions(deny=[Rule(metadata={"role": "guest"})]), [False, False, False]),
        (Permissions(deny=[Rule(metadata={"role": "admin"})]), [True, True, True]),
        (Permissions(deny=[Rule(metadata={"role": "guest", "night": True})]), [True, True, True]),
        (Permissions(deny=[Rule(metadata={"teams": ["a", "b"]})]), [False, False, False]),
        (Permissions(default_deny=True), [False, False, False]),
        (Permissions(allow=["read"], default_deny=True), [False, True, False]),
        (Permissions(allow=["*"], deny=["write"], default_deny=True), [True, True, False]),
    ],
)
def test_rules_by_ensemble_effect_and_metadata(permissions: Permissions, expected: list[bool]) -> None:
    """A call has to fulfill every condition of a rule, and a denying rule takes precedence."""
    assert which_ran(permissions, *CALLS, role="guest", teams=["a", "b"]) == expected


def test_each_decision_is_an_event_before_the_call_starts() -> None:
    """The event has the decision, the rule and the reason, also for a call that is allowed."""
    rules = Permissions(
        allow=["echo", Rule(tool="re*", ensemble="files")], deny=[Rule(tool="whoami", reason="you know who you are")]
    )
    loop = create_loop(
        toy_call("echo", 1), toy_call("whoami", 2), toy_call("read", 3), toy_call("write", 4), interceptors=[rules]
    )
    events: list[Event] = []
    for kind in (PermissionDecided, ToolCallStarted, ToolCallBlocked):
        loop.on(kind, events.append)
    loop.execute_sync("go", execution_id="run")
    decisions = [event for event in events if isinstance(event, PermissionDecided)]
    assert [(event.key, event.name, event.allowed, event.rule, event.reason) for event in decisions] == [
        ("run/1/0", "echo", True, "tool echo", ""),
        ("run/1/1", "whoami", False, "tool whoami", "you know who you are"),
        ("run/1/2", "read", True, "tool re*; ensemble files", ""),
        ("run/1/3", "write", False, "", "the tool 'write' is not among those permitted"),
    ]
    assert {event.step_number for event in events} == {1}
    first_start = next(index for index, event in enumerate(events) if isinstance(event, ToolCallStarted))
    assert events.index(decisions[0]) < first_start


async def test_permissions_are_checked_again_after_a_suspension() -> None:
    """When a suspended call continues, there is another decision, in the step of the call."""
    loop = create_loop(toy_call("echo", 1), interceptors=[Permissions(), RequireApproval()])
    events: list[PermissionDecided] = []
    loop.on(PermissionDecided, events.append)
    state = await loop.execute("go", execution_id="run")
    loop = loop.replace(driver=ToolCallingDriver(ScriptedInference("done")))
    await loop.with_interceptors(Permissions(deny=["echo"])).resume(state, {"run/1/0": approve()})
    assert [(event.allowed, event.step_number, event.key) for event in events] == [
        (True, 1, "run/1/0"),
        (True, 1, "run/1/0"),
        (False, 1, "run/1/0"),
    ]


@pytest.mark.parametrize(("priority", "seen"), [(501, ["echo", "read"]), (499, ["echo"])], ids=["outside", "inside"])
def test_interceptors_of_lower_priority_than_500_see_only_permitted_calls(priority: int, seen: list[str]) -> None:
    """Without a priority of their own, permissions have 500."""
    names: list[str] = []

    def record(point: BeforeToolUse) -> BeforeToolUse:
        names.append(point.call.name)
        return point

    recorder = at("before_tool_use", record, priority=priority)
    loop = create_loop(toy_call("echo", 1), toy_call("read", 2), interceptors=[recorder, Permissions("echo"), recorder])
    loop.execute_sync("go")
    assert sorted(names) == sorted(2 * seen)


def is_nine(point: BeforeToolUse) -> bool:
    """Return whether the value of a call is nine."""
    return bool(point.arguments["value"] == 9)


@pytest.mark.parametrize(("value", "status"), [(8, "succeeded"), (9, "blocked")])
async def test_an_edited_call_is_checked_with_its_new_arguments(value: int, status: str) -> None:
    """Arguments that a person puts in place of the permitted ones have to be permitted as well."""
    ledger = Ledger()
    interceptors = [Permissions(deny=[Rule(when=is_nine)]), RequireApproval()]
    loop = create_loop(toy_call("echo", 1), interceptors=interceptors, tools=toy_tools(ledger))
    events: list[PermissionDecided] = []
    loop.on(PermissionDecided, events.append)
    state = await loop.execute("go", execution_id="run")
    state = await loop.resume(state, {"run/1/0": edit({"value": value})})
    assert state.steps[0].executions[0].status.value == status
    assert ledger.calls == ([("echo", {"value": 8})] if value == 8 else [])
    assert [event.allowed for event in events] == [True, value == 8]


@pytest.mark.parametrize(("value", "status"), [(8, "succeeded"), (9, "blocked")])
def test_a_call_whose_change_is_taken_back_is_checked_as_it_runs(value: int, status: str) -> None:
    """Permissions that saw a changed call see the original one too, if an interceptor further inside restores it."""
    ledger = Ledger()
    interceptors = [
        at("before_tool_use", lambda point: point.with_arguments({"value": 1}), priority=900),
        Permissions(deny=[Rule(when=is_nine)]),
        at("before_tool_use", lambda point: point.with_arguments({"value": value}), priority=100),
    ]
    loop = create_loop(toy_call("echo", value), interceptors=interceptors, tools=toy_tools(ledger))
    seen: list[bool] = []
    loop.on(PermissionDecided, lambda event: seen.append(event.allowed))
    state = loop.execute_sync("go")
    assert state.steps[0].executions[0].status.value == status
    assert [arguments["value"] for _, arguments in ledger.calls] == ([8] if value == 8 else [])
    assert seen == [True, value == 8]


@pytest.mark.unmonitored
def test_without_listeners_no_event_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision without a listener costs no event."""

    class Unbuilt:
        def __init__(self, *_: object) -> None:
            raise AssertionError("built without a listener")

    monkeypatch.setattr("agentloop.interception.rules.PermissionDecided", Unbuilt)
    assert which_ran(Permissions(deny=["read"]), toy_call("echo", 1), toy_call("read", 1)) == [True, False]


def has_arguments(point: BeforeToolUse) -> bool:
    """Return whether a call has any arguments."""
    return bool(point.arguments)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule(), "every call"),
        (Rule(tool="a*", caller="b", ensemble="c"), "tool a*; caller b; ensemble c"),
        (Rule(effect="pure", metadata={"role": "x"}), "effect pure; metadata role"),
        (Rule(when=has_arguments), "when has_arguments"),
    ],
)
def test_the_text_of_a_rule_lists_its_conditions(rule: Rule, text: str) -> None:
    """The text is the same in every run."""
    assert str(rule) == text


# --- the audit log ----------------------------------------------------------------------------------------------------


@tool
def log_in(user: str, password: str, card: dict[str, Any] | None = None) -> dict[str, Any]:
    """Log in."""
    if password == "wrong-one":
        raise ValueError(f"{password} is not the password of {user}")
    return {"user": user, "token": "tok-9876", "cards": [{"number": "4111-1111", "kind": "gold"}], "echo": password}


@tool
def as_text(password: str) -> str:
    """Return JSON as text."""
    return json.dumps({"token": "tok-9876", "said": password})


def audit_lines(*calls: ToolCall, secrets: Any, **log: Any) -> list[dict[str, Any]]:
    """Return the lines that the log writes for these calls."""
    lines: list[dict[str, Any]] = []
    audit = AuditLog(lambda entry: lines.append(dict(entry)), secrets=secrets, **log)
    create_loop(*calls, interceptors=[audit], tools=[log_in, as_text]).execute_sync("go")
    return lines


def test_secret_fields_are_masked_in_arguments_and_results() -> None:
    """Fields are masked by name at any depth, or by path from the top, through arrays; their values are masked everywhere."""
    arguments = '{"user": "ada", "password": "hunter22", "card": {"number": "4242-4242", "kind": "blue"}}'
    (line,) = audit_lines(
        ToolCall("", "log_in", arguments), secrets=["password", "token", "card.number", "cards.number"], results=True
    )
    assert json.loads(line["arguments"]) == {
        "user": "ada",
        "password": MASK,
        "card": {"number": MASK, "kind": "blue"},
    }
    assert line["result"] == {
        "user": "ada",
        "token": MASK,
        "cards": [{"number": MASK, "kind": "gold"}],
        "echo": MASK,
    }
    assert line["success"]


def test_a_secret_in_an_error_or_in_a_text_is_masked() -> None:
    """An error may repeat an argument, and a result may be JSON in a text."""
    wrong, text = audit_lines(
        ToolCall("", "log_in", '{"user": "ada", "password": "wrong-one"}'),
        ToolCall("", "as_text", '{"password": "hunter22"}'),
        secrets=["password", "token"],
        results=True,
    )
    assert wrong["error"] == f"{MASK} is not the password of ada"
    assert json.loads(text["result"]) == {"token": MASK, "said": MASK}


def test_malformed_arguments_are_masked_completely() -> None:
    """If the arguments cannot be parsed, no text is written that may contain the secret."""
    (line,) = audit_lines(ToolCall("", "log_in", '{"password": "hunter22", '), secrets=["password"])
    assert (line["arguments"], line["error"]) == (MASK, "MalformedArguments")
    assert "hunter22" not in json.dumps(line)


def test_without_secrets_arguments_are_written_unchanged() -> None:
    """Arguments are neither parsed nor changed, and results are written only on request."""
    arguments = '{ "user":"ada","password":"hunter22" }'
    (line,) = audit_lines(ToolCall("", "log_in", arguments), secrets=())
    assert line["arguments"] == arguments
    assert "result" not in line
    (unchanged,) = audit_lines(ToolCall("", "log_in", arguments), secrets=["other"], results=True)
    assert unchanged["arguments"] == arguments
    assert unchanged["result"]["token"] == "tok-9876"


async def test_an_answer_in_place_of_a_result_is_masked_too() -> None:
    """Secrets are masked whatever settles the call."""
    lines: list[dict[str, Any]] = []
    audit = AuditLog(lambda entry: lines.append(dict(entry)), secrets="token", results=True)
    call = ToolCall("", "as_text", '{"password": "p"}')
    loop = create_loop(call, interceptors=[audit, RequireApproval()], tools=[log_in, as_text])
    state = await loop.execute("go", execution_id="run")
    assert not lines
    loop = loop.replace(driver=ToolCallingDriver(ScriptedInference("done")))
    await loop.resume(state, {"run/1/0": answer({"token": "tok-1234"})})
    assert [line["result"] for line in lines] == [{"token": MASK}]


NAMES = st.sampled_from(["a", "b", "secret"])
DATA = st.recursive(
    st.none() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


@given(DATA)
def test_masking_replaces_only_secret_fields(data: Any) -> None:
    """Masking replaces the values of the secret fields, and no other value."""

    def expected(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: MASK if name == "secret" else expected(item) for name, item in value.items()}
        return [expected(item) for item in value] if isinstance(value, list) else value

    before = json.dumps(data)
    assert SecretFields(["secret"]).mask(data, set()) == expected(data)
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    ("path", "masked"),
    [
        ("a.b", {"a": {"b": MASK, "c": 1}, "b": 2, "d": [{"b": 3}]}),
        ("b", {"a": {"b": MASK, "c": 1}, "b": MASK, "d": [{"b": MASK}]}),
        ("d.b", {"a": {"b": 1, "c": 1}, "b": 2, "d": [{"b": MASK}]}),
        ("*.b", {"a": {"b": MASK, "c": 1}, "b": 2, "d": [{"b": MASK}]}),
        ("a.*", {"a": {"b": MASK, "c": MASK}, "b": 2, "d": [{"b": 3}]}),
        ("a", {"a": MASK, "b": 2, "d": [{"b": 3}]}),
        ("x.y", {"a": {"b": 1, "c": 1}, "b": 2, "d": [{"b": 3}]}),
    ],
)
def test_a_path_starts_at_the_top(path: str, masked: Any) -> None:
    """A dotted path selects fields from the top; a single name selects fields at any depth."""
    data = {"a": {"b": 1, "c": 1}, "b": 2, "d": [{"b": 3}]}
    assert SecretFields([path]).mask(data, set()) == masked
