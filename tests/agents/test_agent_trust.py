"""The file of an agent makes calls wait, or is refused; what runs unasked is told, with the authority that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, Permissions, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.agents.agent_file import AGENT, BUDGET, CALL, MCP, PERMISSIONS, RULE, SETTINGS, SOURCED
from agentloop.errors import InvalidDescriptor
from agentloop.interception import Rule
from agentloop.loop.agent_tool import AgentTool
from agentloop.loop.handoff import handoff_to
from agentloop.loop.unasked import format_unasked, loops_within, unasked_tools
from agentloop.mcp import McpEnsemble
from agentloop.policies import EgressApproval
from agentloop.service.cli.execution import tools_within
from agentloop.toolkits import Ensemble, ToolOverride
from agentloop.toolkits.http import http
from agentloop.values import Authority, Effect

MODULE = '''
from agentloop import tool


@tool(effect="pure")
def look(what: str = "") -> str:
    """Look something up."""
    return what


@tool
def pay(to: str = "") -> str:
    """Pay."""
    return to
'''
HEAD = 'model = "ollama:m"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for files, beside the module of tools."""
    (tmp_path / "agent_trust_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "agents").mkdir()
    return tmp_path / "agents"


def load(folder: Path, text: str, name: str = "agent.toml", **options: Any) -> AgentLoop:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    given: dict[str, Any] = {"allow": ["agent_trust_of_test"], "allow_servers": ["*"], **options}
    return AgentLoop.from_file(path, **given)


def refused(folder: Path, text: str, name: str = "agent.toml", **options: Any) -> dict[str, str]:
    """Return the messages about a file by their keys; each says what to do."""
    with pytest.raises(InvalidDescriptor) as raised:
        load(folder, text, name, **options)
    found = {key: message for _, key, line, message in raised.value.mistakes if line}
    assert all("trust the file" in message and "--trust" in message for message in found.values()), found
    return found


# --- every key ------------------------------------------------------------------------------------------------------

SERVER = '[mcp.s]\ncommand = "x"\n'
LOOSER = {
    "mcp.s.trust_annotations": f"{HEAD}{SERVER}trust_annotations = true",
    "mcp.s.effects": f'{HEAD}{SERVER}effects = {{ "get_*" = "pure", "x" = "effect" }}',
    "mcp.s.egress": f"{HEAD}{SERVER}egress = false",
    "mcp.s.labels": f'{HEAD}{SERVER}[mcp.s.labels.search]\nown = "id"',
    "approve": f'{HEAD}approve = "none"',
    "settings.hosted_tools": f'{HEAD}settings.hosted_tools = ["web_search"]',
    "settings.extra.tools": f"{HEAD}settings.extra = {{ top_k = 40, tools = [{{ type = 'web_search' }}] }}",
    "settings.extra.enable_search": f"{HEAD}settings.extra.enable_search = true",
    "settings.extra.plugins": f"{HEAD}settings.extra.plugins = 'web'",
    "agents.a.effect": f'{HEAD}[agents.a]\ndescription = "x"\ntools = ["agent_trust_of_test:pay"]\neffect = "pure"',
    "ensembles.f.options.root": f'{HEAD}[ensembles.f]\nuse = "files"\noptions.root = ".."',
    "ensembles.e.tools.pay.effect": f'{HEAD}[ensembles.e.tools.pay]\nuse = "agent_trust_of_test:pay"\neffect = "pure"',
}
"""For each key that can loosen something, a file that would."""
STRICTER = [
    f'{HEAD}{SERVER}effects = {{ "*" = "effect" }}\negress = true\ntrust_annotations = false\nlabels = {{}}',
    f'{HEAD}{SERVER}allow = ["get_*"]\ndeny = ["x"]\nenabled = false',
    f"{HEAD}settings.extra = {{ top_k = 40, min_p = 0.1 }}",
    f'{HEAD}[agents.a]\ndescription = "x"\ntools = ["agent_trust_of_test:look"]\neffect = "idempotent"',
    f'{HEAD}tools = ["agent_trust_of_test:look"]\n[permissions]\nallow = ["look"]\nask = ["look"]\ndeny = [{{ egress = true }}]',
]
TIGHTENING = {"permissions", "budget", "accounts", "mcp.allow", "mcp.deny", "mcp.enabled"}
"""Keys that add interceptors beside those of the program, or leave tools out."""
NEUTRAL = {
    *(
        "name",
        "description",
        "model",
        "system_prompt",
        "variables",
        "max_steps",
        "output",
        "driver",
        "mode",
        "compiler",
    ),
    *(f"settings.{key}" for key in SETTINGS if key not in {"hosted_tools", "extra"}),
    *("mcp.args", "mcp.env", "mcp.cwd", "mcp.headers", "mcp.auth", "mcp.type", "mcp.prefix", "mcp.timeout"),
    *("mcp.required", "mcp.optional", "mcp.connect_timeout", "mcp.reconnect_timeout", "mcp.resources", "mcp.prompts"),
    *("agents.parameters", "agents.max_depth", "agents.budget_share", "agents.description"),
}
"""Keys that say what a model reads, how long something takes, or to which allowed server what goes."""
ALLOWED = {"base_url", "tools", "mcp.command", "mcp.url", "agents.source"}
"""Keys that name what the program has allowed, or what is in the folder of the file."""
CONTAINERS = {"settings", "ensembles", "mcp", "agents"}


def test_each_key_of_a_file_has_a_bearing() -> None:
    """A new key has to be decided about: whether it can loosen something."""
    looser = {f"mcp.{key}" for key in ("trust_annotations", "effects", "egress", "labels")}
    looser |= {"approve", "settings.hosted_tools", "settings.extra"}
    known = {*AGENT, *[f"settings.{key}" for key in SETTINGS], *[f"mcp.{key}" for key in MCP]}
    known |= {f"agents.{key}" for key in {**CALL, **SOURCED}}
    assert known == looser | {"agents.effect"} | TIGHTENING | NEUTRAL | ALLOWED | CONTAINERS
    assert set(PERMISSIONS) == {"allow", "deny", "ask"}
    assert set(RULE) == {"tool", "ensemble", "effect", "egress", "reason", "optional"}
    assert "strict" in BUDGET


@pytest.mark.parametrize(("key", "text"), LOOSER.items())
@pytest.mark.parametrize("form", ["agent", "sub-agent", "file of a sub-agent", "two files deep"])
def test_a_file_cannot_loosen_anything(folder: Path, key: str, text: str, form: str) -> None:
    """Neither for the agent nor for a sub-agent, in its own file or in another one."""
    (folder / "inner.toml").write_text(f'description = "Inner."\n{text}')
    (folder / "middle.toml").write_text(f'{HEAD}description = "Middle."\nagents = ["inner.toml"]')
    outer = {
        "agent": text,
        "sub-agent": f'{HEAD}[agents.inner]\ndescription = "x"\n{_below(text, "agents.inner")}',
        "file of a sub-agent": f'{HEAD}agents = ["inner.toml"]',
        "two files deep": f'{HEAD}[agents.m]\nsource = "middle.toml"\ndescription = "x"',
    }[form]
    place = f"agents.inner.{key}" if form == "sub-agent" else key
    assert set(refused(folder, outer)) == {place}
    assert set(refused(folder, outer, trust=[folder / "other.toml"])) == {place}
    assert load(folder, outer, trust=True).system_prompt == ""


def _below(text: str, table: str) -> str:
    """Return TOML with all of its tables below another one."""
    return "\n".join(
        f"[{table}.{line[1:]}" if line.startswith("[") else line for line in text.removeprefix(HEAD).splitlines()
    )


@pytest.mark.parametrize("text", STRICTER)
def test_a_file_can_make_everything_stricter(folder: Path, text: str) -> None:
    """That needs nobody's trust."""
    assert load(folder, text).system_prompt == ""


MARKDOWN = """\
---
model: ollama:m
mcp:
  s:
    command: x
    trust_annotations: true
ensembles:
  e:
    tools:
      pay:
        use: agent_trust_of_test:pay
        effect: pure
---
You help.
"""


@pytest.mark.parametrize("name", ["agent.md", "AGENT.MD", "agent.markdown"])
def test_front_matter_says_no_more_than_toml(folder: Path, name: str) -> None:
    """The same statements are refused, with their lines."""
    found = refused(folder, MARKDOWN, name)
    assert set(found) == {"mcp.s.trust_annotations", "ensembles.e.tools.pay.effect"}
    loop = load(folder, MARKDOWN, name, trust=[folder / name])
    assert [group.name for group in loop.tools.groups] == ["e", "s"]


def test_permissions_of_a_file_stand_beside_those_of_the_program(folder: Path) -> None:
    """A file that allows everything and asks about nothing takes nothing away from what the program denies and asks."""
    text = (
        f'{HEAD}tools = ["agent_trust_of_test:look", "agent_trust_of_test:pay"]\n[permissions]\nallow = ["*"]\nask = []'
    )
    calls = [ToolCall("1", "look"), ToolCall("2", "pay")]
    guards = [Permissions(deny=["look"]), RequireApproval()]
    loop = load(folder, text, model=ScriptedInference(calls, "done"), interceptors=guards)
    state = loop.execute_sync("Go.")
    assert ([call.call.name for call in state.pending], state.steps[0].executions[0].status) == (["pay"], "blocked")


# --- sub-agents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "strictest_of_its_tools"),
    [
        ("", "pure"),
        ('tools = ["agent_trust_of_test:look"]', "pure"),
        ('tools = ["agent_trust_of_test:look", "agent_trust_of_test:pay"]', "effect"),
        ('[agents.a.ensembles.f]\nuse = "memory"\noptions = { path = "m.db", user = "a" }', "idempotent"),
        ('[agents.a.mcp.s]\ncommand = "x"', "effect"),
        ('[agents.a.agents.b]\ndescription = "y"', "effect"),
        ('[agents.a.agents.b]\ndescription = "y"\neffect = "pure"', "pure"),
        (
            """[agents.a.agents.b]
            description = "y"
            effect = "pure"
            tools = ["agent_trust_of_test:look"]
            [agents.a.agents.b.agents.c]
            description = "z"
            effect = "pure"
            """,
            "pure",
        ),
    ],
)
@pytest.mark.parametrize("effect", list(Effect))
def test_a_sub_agent_is_as_strict_as_its_tools(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, strictest_of_its_tools: str, effect: Effect
) -> None:
    """What code says of the tools of an agent is what code says of the agent, at any depth."""
    monkeypatch.chdir(folder)
    text = f'{HEAD}[agents.a]\ndescription = "x"\neffect = "{effect}"\n{body}'
    order = ["pure", "idempotent", "effect"]
    if order.index(effect) < order.index(strictest_of_its_tools):
        assert set(refused(folder, text)) == {"agents.a.effect"}
        return
    agent = load(folder, text).tools.get("a")
    assert isinstance(agent, AgentTool)
    assert agent.effect == agent.declarations.holding("effect").value == effect


def test_an_effect_of_a_source_is_checked_as_well(folder: Path) -> None:
    """The caller's file says that the agent of another file is pure."""
    (folder / "a.toml").write_text(f'{HEAD}tools = ["agent_trust_of_test:pay"]')
    text = f'{HEAD}[agents.a]\nsource = "a.toml"\ndescription = "x"\neffect = "pure"'
    assert set(refused(folder, text)) == {"agents.a.effect"}
    tool = load(folder, text, trust=[folder / "agent.toml"]).tools.get("a")
    assert tool is not None
    assert (tool.effect, tool.declarations.holding("effect").by) == (Effect.PURE, Authority.CODE)


# --- the table ------------------------------------------------------------------------------------------------------


@tool(effect="pure")
def look() -> str:
    """Look."""
    return ""


@tool
def pay() -> str:
    """Pay."""
    return ""


def loop_of(*tools: Any, guards: Any = ()) -> AgentLoop:
    return AgentLoop.for_model(ScriptedInference("x"), tools=tools, interceptors=guards)


def table(loop: AgentLoop) -> list[tuple[str, str, bool, bool, str]]:
    return [(each.name, each.effect, each.egress, each.is_sure, each.word) for each in unasked_tools(loop)]


def test_the_table_has_the_tools_that_run_without_a_question() -> None:
    """Without approvals that is every tool; with them, those about which they do not ask."""
    assert table(loop_of(look, pay)) == [
        ("look", "pure", False, True, "code"),
        ("pay", "effect", False, True, "code"),
    ]
    assert table(loop_of(look, pay, guards=[RequireApproval()])) == [("look", "pure", False, True, "code")]
    assert table(loop_of(look, pay, guards=[RequireApproval(), Permissions(deny=["look"])])) == []
    assert table(loop_of(Ensemble("bank", [pay]), guards=[RequireApproval([Rule(ensemble="bank")])])) == []
    asked = RequireApproval([Rule(effect="effect", when=lambda point: point.key == "x")])
    assert table(loop_of(pay, guards=[asked])) == [("pay", "effect", False, False, "code")]


def test_what_the_question_before_egress_depends_on_is_told() -> None:
    """Of a tool by which data can leave, some calls wait."""
    loop = loop_of(look, http(["a.example"]), guards=[EgressApproval()])
    assert table(loop) == [("look", "pure", False, True, "code"), ("http_get", "pure", True, False, "code")]


def test_the_table_has_the_tools_of_agents_and_handoffs() -> None:
    """An agent has approvals of its own; of a loop that takes over, those of the first loop stay."""
    helper = loop_of(pay, look).as_tool("helper", "Helps.")
    asking = [RequireApproval()]
    assert [name for name, *_ in table(loop_of(look, helper, guards=asking))] == ["look", "helper/pay", "helper/look"]
    # An ensemble that overrides something of an agent wraps its tool.
    changed = Ensemble("team", [helper], overrides={"helper": ToolOverride(description="Helps a lot.")})
    wrapped = loop_of(look, changed, guards=asking)
    assert [name for name, *_ in table(wrapped)] == ["look", "helper/pay", "helper/look"]
    assert len(loops_within(wrapped)) == 2
    assert [tool.name for tool in tools_within(wrapped)] == ["look", "helper", "pay", "look"]
    loops: dict[str, AgentLoop] = {}
    over = handoff_to(lambda: loops["second"], name="over", description="Hand over.")
    back = handoff_to(lambda: loops["first"], name="back", description="Hand back.")
    loops["first"], loops["second"] = loop_of(pay, over, guards=asking), loop_of(pay, look, back)
    assert [name for name, *_ in table(loops["first"])] == ["over", "over/look", "over/back"]
    assert len(loops_within(loops["first"])) == 2
    endless = handoff_to(lambda: loop_of(endless), name="on", description="Hand over.")
    assert len(table(loop_of(endless))) < 20
    assert table(loop_of(handoff_to(lambda: 1, name="to", description="x")))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("settings", "guards", "expected"),
    [
        ({}, [], [("s/*", "effect", True, True, "code")]),
        ({}, [RequireApproval()], []),
        ({"trust_annotations": True}, [RequireApproval()], [("s/*", "idempotent or pure", True, False, "code")]),
        ({"effects": {"x": "pure"}}, [RequireApproval()], [("s/*", "pure", True, False, "code")]),
        ({"resources": True}, [RequireApproval()], [("s/*", "pure", True, False, "code")]),
        ({"effects": {"x": "pure"}}, [RequireApproval([Rule(ensemble="s")])], []),
        ({"enabled": False}, [], []),
    ],
)
def test_the_tools_of_a_server_are_told_before_it_has_listed_them(
    settings: dict[str, Any], guards: list[Any], expected: list[Any]
) -> None:
    """Which effects they may have is known."""
    assert table(loop_of(McpEnsemble.stdio("x", name="s", **settings), guards=guards)) == expected


def test_who_trusts_a_server_is_told(folder: Path) -> None:
    """The word of a trusted file is that of whoever trusts it, with the place."""
    loop = load(folder, LOOSER["mcp.s.trust_annotations"], trust=True, interceptors=[RequireApproval()])
    ((name, _, _, _, word),) = table(loop)
    assert (name, word) == ("s/*", f"code ({folder / 'agent.toml'}, line 4)")
    (server,) = loop.tools.groups
    assert [(said.about, said.value, said.by) for said in server.statements] == [
        ("trust_annotations", True, Authority.CODE),
        ("command", "x", Authority.CODE),
    ]


def test_tools_of_the_provider_are_told() -> None:
    """They run where no approval reaches."""
    loop = AgentLoop.for_model(ScriptedInference("x"), options={"hosted_tools": ["web_search"]})
    assert table(loop) == [("web_search", "of the provider", True, True, "code")]


def test_a_description_has_the_table() -> None:
    """Tools about which the same is said share a row, and a loop without such tools has no table."""
    loop = loop_of(look, pay, http(["a.example"]), guards=[EgressApproval()])
    lines = [line.strip() for line in loop.describe().splitlines()]
    start = lines.index("tools that run unasked  effect  data can leave  questions   word of")
    assert [line.split() for line in lines[start + 1 : start + 4]] == [
        ["look", "pure", "no", "none", "code"],
        ["pay", "effect", "no", "none", "code"],
        ["http_get", "pure", "yes", "some", "calls", "code"],
    ]
    assert "unasked" not in loop_of(pay, guards=[RequireApproval()]).describe()


def test_a_table_of_many_tools_is_short() -> None:
    """Names are wrapped, and those behind the first ones counted; no name can write over a line."""
    many = [tool(name=f"tool_{number}", description="Do.", effect="pure")(_nothing) for number in range(30)]
    lines = format_unasked(unasked_tools(loop_of(*many)), max_names=20)
    assert len(lines) == 4
    assert lines[-1].endswith("and 10 more")
    assert all(len(line) < 120 for line in lines)


def _nothing() -> None:
    """Do nothing."""
