"""Agents in TOML and Markdown files: what they mean, each mistake with its line, and what a file may not do."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop
from agentloop import (
    AgentLoop,
    Interceptor,
    LLMConfig,
    ReActDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    tool,
)
from agentloop.agents.agent_file import (
    ACCOUNT,
    AGENT,
    BUDGET,
    CALL,
    COMPILERS,
    DRIVER_MODES,
    MCP,
    PERMISSIONS,
    RULE,
    SETTINGS,
    render_template,
)
from agentloop.compilers import SlidingWindow
from agentloop.errors import InvalidDescriptor
from agentloop.interception import AskUntrusted, RequireApproval
from agentloop.loop.agent_tool import AgentTool
from agentloop.mcp import McpEnsemble
from agentloop.policies import BudgetAccount
from agentloop.values.bounds import Bounds, apply_bounds
from agentloop.values.decisions import approve
from agentloop.values.inference import InferenceOptions, InferenceResponse
from agentloop.values.steps import ExecutionStatus

MODULE = '''
from agentloop import tool
from agentloop.toolkits import Ensemble

LOADED = True


@tool(effect="pure")
def find_order(number: int) -> str:
    """Find an order."""
    return f"order {number}"


@tool
def refund(number: int) -> str:
    """Pay an order back."""
    return f"{number} is paid back"


BOTH = [find_order, refund]
shop = Ensemble("shop", BOTH)


def plain(number: int) -> str:
    return str(number)
'''
ALLOW = ["agents_of_test"]
TOML = """\
name = "support"
description = "Answers questions about orders."
model = "ollama:qwen3"
system_prompt = "You help the customers of {{shop}}."
tools = ["agents_of_test:find_order", "agents_of_test:refund"]
driver = "tools"
mode = "native"
max_steps = 7

[settings]
temperature = 0.25
timeout = 5

[variables]
shop = "Lamp & Co"

[permissions]
deny = [{ tool = "draw_*", reason = "no games" }]
ask = ["refund"]

[budget]
steps = 6

[output]
type = "object"
required = ["text"]
properties.text.type = "string"

[compiler]
use = "sliding_window"
messages = 20

[ensembles.chance]
use = "probability"
tools.draw_numbers.enabled = false

[agents.critic]
description = "Criticizes an answer."
system_prompt = "You criticize."
max_depth = 2
"""
MARKDOWN = """\
---
name: support
description: Answers questions about orders.
model: ollama:qwen3
tools: [agents_of_test:find_order, agents_of_test:refund]
driver: tools
mode: native
max_steps: 7
settings: {temperature: 0.25, timeout: 5}
variables:
  shop: Lamp & Co
permissions:
  deny:
    - {tool: draw_*, reason: no games}
  ask: [refund]
budget: {steps: 6}
output:
  type: object
  required: [text]
  properties: {text: {type: string}}
compiler: {use: sliding_window, messages: 20}
ensembles:
  chance:
    use: probability
    tools: {draw_numbers: {enabled: false}}
agents:
  critic:
    description: Criticizes an answer.
    system_prompt: You criticize.
    max_depth: 2
---

You help the customers of {{shop}}.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the module agents_of_test, which can be imported."""
    (tmp_path / "agents_of_test.py").write_text(MODULE)
    (tmp_path / "agents_that_fail.py").write_text("raise OSError('no driver')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def write(folder: Path, text: str, name: str = "agent.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str, name: str = "agent.toml", **options: Any) -> AgentLoop:
    return AgentLoop.from_file(write(folder, text, name), **{"allow": ALLOW, **options})


def mistakes(folder: Path, text: str, name: str = "agent.toml", **options: Any) -> list[tuple[str, int, str]]:
    """Return key, line and message of each mistake in the file."""
    with pytest.raises(InvalidDescriptor) as raised:
        load(folder, text, name, **options)
    return [(key, line, message) for _, key, line, message in raised.value.mistakes]


# --- what a file means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "name"), [(TOML, "agent.toml"), (MARKDOWN, "agent.md")])
async def test_both_forms_describe_an_agent(folder: Path, text: str, name: str) -> None:
    """Model, prompt, tools, ensembles, sub-agents, permissions, budget, output and compiler are those of the file."""
    model = ScriptedInference(
        [
            ToolCall("1", "find_order", '{"number": 7}'),
            ToolCall("2", "refund", '{"number": 7}'),
            ToolCall("3", "draw_items", '{"items": ["a"], "count": 1, "seed": 1}'),
            ToolCall("4", "critic", '{"task": "see"}'),
        ],
        "well done",
        '{"text": "It is paid back."}',
    )
    loop = load(folder, text, name, model=model)
    assert {"find_order", "refund", "draw_items", "critic"} <= set(loop.tools.names)
    assert "draw_numbers" not in loop.tools
    assert (loop.max_steps, loop.compiler) == (7, SlidingWindow(20))
    assert isinstance(loop.driver, ToolCallingDriver)
    assert (loop.driver.mode, loop.driver.options) == ("native", InferenceOptions(temperature=0.25))

    state = await loop.execute("Pay order 7 back.")
    assert [call.call.name for call in state.pending] == ["refund"]
    state = await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    found, paid, drawn, criticized = state.steps[0].executions
    assert (found.value, paid.value, criticized.value) == ("order 7", "7 is paid back", "well done")
    assert drawn.error_message == "no games"
    assert (state.status, state.output) == (ExecutionStatus.COMPLETED, {"text": "It is paid back."})
    assert model.requests[0].system_prompt == "You help the customers of Lamp & Co."
    assert model.requests[1].system_prompt == "You criticize."


def test_the_model_of_the_file_is_used(folder: Path) -> None:
    """Model string, settings and address make the configuration; the host of the address has to be allowed."""
    text = 'model = "openai:m"\nbase_url = "http://localhost:9/v1"\n[settings]\ntimeout = 5\n'
    loop = load(folder, text, allow_servers=["localhost:9"])
    assert isinstance(loop.driver, ToolCallingDriver)
    config = loop.driver.inference.config  # type: ignore[attr-defined]  # an HttpInference
    assert isinstance(config, LLMConfig)
    assert (config.name, config.base_url, config.timeout) == ("openai:m", "http://localhost:9/v1", 5)


@pytest.mark.parametrize(
    ("allowed", "is_allowed"),
    [
        (["api.test:9"], True),
        (["api.test"], True),
        (["*"], True),
        (["other.test", "api.test"], True),
        ([], False),
        (["api.test:8"], False),
        (["test"], False),
        (["openai", "9"], False),
    ],
)
def test_the_host_of_the_model_is_allowed_with_its_port_or_without(
    folder: Path, allowed: list[str], *, is_allowed: bool
) -> None:
    """Without a port, a host is allowed with each of its ports."""
    text = 'model = "openai:m"\nbase_url = "http://api.test:9/v1"'
    if is_allowed:
        assert isinstance(load(folder, text, allow_servers=allowed).driver, ToolCallingDriver)
    else:
        assert [(key, line) for key, line, _ in mistakes(folder, text, allow_servers=allowed)] == [("base_url", 2)]


@pytest.mark.parametrize(
    ("permissions", "outcomes"),
    [
        ({}, ("succeeded", "succeeded")),
        ({"allow": '["find_*"]'}, ("succeeded", "blocked")),
        ({"allow": "[]"}, ("blocked", "blocked")),
        ({"deny": '["refund"]'}, ("succeeded", "blocked")),
        ({"deny": "[]"}, ("succeeded", "succeeded")),
        ({"allow": '["*"]', "deny": '[{ effect = "pure" }]'}, ("blocked", "succeeded")),
        ({"ask": '["refund"]'}, ("succeeded", "pending")),
        ({"allow": '["refund"]', "ask": '["refund"]'}, ("blocked", "pending")),
        ({"deny": '["find_order"]', "ask": '["*"]'}, ("blocked", "pending")),
    ],
)
async def test_permissions_allow_deny_and_ask_by_themselves_and_together(
    folder: Path, permissions: Mapping[str, str], outcomes: tuple[str, str]
) -> None:
    """Without `allow`, all that is not denied may run; `ask` needs neither of them."""
    lines = [
        'tools = ["agents_of_test:BOTH"]',
        "[permissions]",
        *(f"{key} = {rules}" for key, rules in permissions.items()),
    ]
    calls = [ToolCall(name, name, '{"number": 7}') for name in ("find_order", "refund")]
    state = await load(folder, "\n".join(lines), model=ScriptedInference(calls, "done")).execute("go")
    found = {execution.name: execution.status.value for execution in state.steps[0].executions}
    found |= {call.call.name: "pending" for call in state.pending}
    assert (found["find_order"], found["refund"]) == outcomes


def test_parts_of_the_program_are_added_or_replace(folder: Path) -> None:
    """Tools and interceptors are added to those of the file, other parts replace them."""
    text = 'model = "ollama:m"\ntools = ["agents_of_test:find_order"]\nmax_steps = 3\nsystem_prompt = "File."'
    other = load(folder, 'model = "ollama:m"\ntools = ["agents_of_test:refund"]', "other.toml")
    loop = load(folder, text, tools=list(other.tools), max_steps=9, system_prompt="Program.")
    assert (loop.tools.names, loop.max_steps, loop.system_prompt) == (("find_order", "refund"), 9, "Program.")


def test_the_tool_that_reads_results_has_a_short_name(folder: Path) -> None:
    """A file names it without a module, and the program need not allow one."""
    loop = load(folder, 'model = "ollama:m"\ntools = ["agents_of_test:refund", "read_result"]')
    assert loop.tools.names == ("refund", "read_result")


def test_a_react_agent(folder: Path) -> None:
    """`driver` and `mode` choose the notation of decisions."""
    loop = load(folder, 'model = "ollama:m"\ndriver = "react"\nmode = "text"\ncompiler = "current_tool_trace"')
    assert isinstance(loop.driver, ReActDriver)
    assert loop.driver.output == "text"


@pytest.mark.parametrize("body", ["", "\n \n"])
def test_front_matter_without_a_text_below_has_its_own_prompt(folder: Path, body: str) -> None:
    """White space below the front matter is no system prompt."""
    loop = load(folder, f"---\nmodel: ollama:m\nsystem_prompt: You help.\n---\n{body}", "agent.md")
    assert loop.system_prompt == "You help."


async def test_sub_agents_are_files_or_tables(folder: Path) -> None:
    """A file is named in a list or by `source`; a sub-agent without a model has that of its caller."""
    write(folder, "---\ndescription: Looks.\n---\nYou look for {{what}}.", "team/looker.md")
    write(folder, 'description = "Asks."\nsystem_prompt = "You ask."\nagents = ["deeper.toml"]', "team/asker.toml")
    write(folder, 'description = "Goes deeper."\nmodel = "ollama:deep"', "team/deeper.toml")
    text = 'agents = ["team/looker.md"]'
    table = '[agents.oracle]\nsource = "team/asker.toml"\nbudget_share = 0.1\ndescription = "Knows."'
    call = InferenceResponse((ToolCall("1", "looker", '{"task": "x"}'),))
    model = ScriptedInference(lambda request: call if request.tools else "seen", "It is seen.")
    loop = load(folder, text, model=model, variables={"what": "lamps"})
    state = await loop.execute("look")
    assert (state.final_text, model.requests[1].system_prompt) == ("It is seen.", "You look for lamps.")
    oracle = load(folder, table, model=ScriptedInference("x")).tools.get("oracle")
    assert oracle is not None
    assert (oracle.description, oracle.budget_share) == ("Knows.", 0.1)  # type: ignore[attr-defined]  # an AgentTool


def test_ensembles_are_named_in_a_list(folder: Path) -> None:
    """A short name, an import path, and files of each form."""
    write(
        folder,
        '[ensemble]\nname = "io"\n[[invokers]]\nname = "look_up"\nuse = "agents_of_test:find_order"',
        "e/io.toml",
    )
    write(folder, '[ensembles.a]\nuse = "summarization"', "e/list.toml")
    text = 'model = "ollama:m"\nensembles = ["probability", "agents_of_test:shop", "e/io.toml", "e/list.toml"]'
    loop = load(folder, text)
    assert {"draw_items", "refund", "look_up", "condense"} <= set(loop.tools.names)
    assert [group.name for group in loop.tools.groups] == ["probability", "shop", "io", "a"]


def test_ensembles_of_sub_agents_have_the_names_of_their_tables(folder: Path) -> None:
    """A table is named by its own key, however deep it is."""
    text = 'description = "Draws."\nmodel = "ollama:m"\n[ensembles.chance]\nuse = "probability"'
    assert [group.name for group in load(folder, text).tools.groups] == ["chance"]
    nested = f'model = "ollama:m"\n[agents.player]\n{text.replace("ensembles", "agents.player.ensembles")}'
    player = load(folder, nested).tools.get("player")
    assert isinstance(player, AgentTool)
    assert [group.name for group in player.loop.tools.groups] == ["chance"]


def test_the_budget_share_of_a_sub_agent_is_from_none_to_all(folder: Path) -> None:
    """From 0 to 1, both ends count."""
    for share in (0, 1):
        text = f'model = "ollama:m"\n[agents.b]\ndescription = "x"\nbudget_share = {share}'
        agent = load(folder, text).tools.get("b")
        assert isinstance(agent, AgentTool)
        assert agent.budget_share == share


def test_accounts_are_described_by_name(folder: Path) -> None:
    """Each is a `BudgetAccount` with the model of the agent; it keeps its sum in the journal of the executions."""
    text = """
model = "ollama:m"
[accounts.support]
tokens = 1_000
per = "month"
zone = "Europe/Berlin"
by = "tenant"
[accounts.all]
tokens = 5_000
"""
    support, everybody, _ = load(folder, text).interceptors
    assert support == BudgetAccount("support", tokens=1_000, per="month", zone="Europe/Berlin", by="tenant", model="m")
    assert everybody == BudgetAccount("all", tokens=5_000, model="m")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('per = "month"', "accounts.support: an account limits something: add cost, in dollars, or tokens"),
        ('tokens = 1\nper = "week"', "week"),
        ('tokens = 1\nzone = "Mars/Crater"', "there is no time zone 'Mars/Crater'"),
        ('tokens = 1\nby = "team"', "'team'"),
        ("tokens = 1\ncosts = 2", "there is no such key; did you mean 'cost'?"),
    ],
)
def test_mistakes_in_accounts_are_told_with_their_place(folder: Path, text: str, problem: str) -> None:
    """An account without a sum, and options that `BudgetAccount` refuses, are mistakes of the file."""
    with pytest.raises(InvalidDescriptor) as caught:
        load(folder, f'model = "ollama:m"\n[accounts.support]\n{text}')
    assert "accounts.support" in str(caught.value)
    assert problem in str(caught.value)


def test_servers_are_described_and_have_to_be_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is started or connected to only if the program allows its program or host; nothing starts here."""
    monkeypatch.setenv("AGENT_FILE_KEY", "k")
    text = """
model = "ollama:m"
[mcp.time]
command = "uvx"
args = ["mcp-server-time"]
effects = { "get_*" = "pure" }
timeout = 3
[mcp.far]
url = "https://example.com:8443/mcp"
headers = { authorization = "Bearer ${AGENT_FILE_KEY}" }
prefix = "far_"
"""
    loop = load(folder, text, allow_servers=["uvx", "example.com"], trust=True)
    assert [group.name for group in loop.tools.groups] == ["time", "far"]
    ((key, line, message),) = mistakes(folder, text, allow_servers=["uvx"], trust=True)
    assert (key, line) == ("mcp.far.url", 9)
    assert message == (
        "the host 'example.com:8443' is not among those that the program allows; if it is to be used, add it to allow_servers"
    )
    not_allowed = [("mcp.time.command", 4), ("mcp.far.url", 9)]
    assert [(key, line) for key, line, _ in mistakes(folder, text, trust=True)] == not_allowed
    assert load(folder, text, allow_servers=["*"], trust=True).tools.groups


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('command = "uvx"\nenv = { PATH = "bin" }', "mcp.a.env.PATH"),
        ('command = "uvx"\nenv = { PATH = "/proc/self/cwd" }', "mcp.a.env.PATH"),
        ('command = "./uvx"\ncwd = "other"', "mcp.a.cwd"),
        ('command = "/usr/bin/uvx"\ncwd = "other"\nenv = { PATH = "bin" }', None),
        ('command = "uvx"\ncwd = "other"', None),
        ('command = "./uvx"\nenv = { PATH = "bin" }', None),
    ],
)
def test_a_file_does_not_make_another_program_of_an_allowed_one(folder: Path, table: str, key: str | None) -> None:
    """Neither the PATH of the server nor its folder decides which program the command of the file is."""
    text = f'model = "ollama:m"\n[mcp.a]\n{table}\n'
    found = mistakes(folder, text, allow_servers=["*"]) if key else ()
    assert [place for place, _, _ in found] == [key] * bool(key)
    if key is None:
        assert load(folder, text, allow_servers=["*"]).tools.groups


def test_the_hosts_of_an_authorization_have_to_be_allowed(folder: Path) -> None:
    """A file names no authorization server in the network of the program, unless the program allows its host."""
    text = """
model = "ollama:m"
[mcp.far]
url = "https://example.com/mcp"
[mcp.far.auth]
issuer = "http://10.0.0.1:8080"
allow_private = ["localhost:*"]
"""
    allowed = ["example.com", "10.0.0.1", "localhost:*"]
    assert load(folder, text, allow_servers=allowed).tools.groups
    assert [(key, line) for key, line, _ in mistakes(folder, text, allow_servers=allowed[:1])] == [
        ("mcp.far.auth.issuer", 6),
        ("mcp.far.auth.allow_private", 7),
    ]


# --- templates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{a}} and {{ b }}", "1 and true"),
        (r"\{{a}} stays", "{{a}} stays"),
        ("{a} {{c}}", "{a} {{a}}"),  # a value is not a template
        ("", ""),
        ("}} }", "}} }"),
    ],
)
def test_a_template_has_its_variables_replaced(text: str, expected: str) -> None:
    """Only `{{name}}` is replaced, and once."""
    rendered, _, problems = render_template(text, {"a": 1, "b": True, "c": "{{a}}"})
    assert (rendered, problems) == (expected, [])


def test_what_cannot_be_replaced_stays_in_a_template() -> None:
    """The text around a problem is rendered, and the place of the problem keeps its words."""
    rendered, used, problems = render_template("{{a}}\n{{x}} and {{", {"a": 1})
    assert (rendered, used) == ("1\n{{x}} and {{", {"a"})
    assert [line for line, _ in problems] == [1, 1]


@pytest.mark.parametrize("problem", ["{{", "{{x}}"])
def test_the_first_twenty_problems_of_a_template_are_named(problem: str) -> None:
    """A file of nothing but mistakes has a list of them that can be read; the text stays whole."""
    text = f"{problem}\n" * 1000
    rendered, used, problems = render_template(text, {})
    assert (rendered, used) == (text, set())
    assert [line for line, _ in problems] == list(range(20))


class CountedText(str):
    """A text that counts the searches in it."""

    __slots__ = ()

    counts = 0

    def count(self, *args: Any) -> int:
        CountedText.counts += 1
        return super().count(*args)


@pytest.mark.parametrize("use", ["{{a}}", "{{x}}"])
def test_lines_are_counted_only_for_the_problems_that_are_named(use: str) -> None:
    """A long template with thousands of variables is read in a time that is proportional to its length."""
    CountedText.counts = 0
    render_template(CountedText(use * 5_000), {"a": 1})
    assert CountedText.counts == (20 if use == "{{x}}" else 0)


def test_values_are_repeated_up_to_a_bound() -> None:
    """A short file cannot become a long system prompt; a long value of the program can be used once."""
    with apply_bounds(Bounds(document_bytes=100)):
        assert render_template("{{a}}", {"a": "x" * 1000}) == ("x" * 1000, {"a"}, [])
        rendered, used, problems = render_template("\n{{a}}" * 1000, {"a": "x" * 40})
    assert len(rendered) < 8_000
    assert used == {"a"}
    ((line, problem),) = problems
    assert line == 4
    assert problem.startswith("the values of the variables are repeated for more than 100 characters; ")
    assert problem.endswith("the limit is Bounds.document_bytes")


@given(text=st.text(alphabet=st.sampled_from([*"{}ab \\\n_1."])), value=st.text(max_size=3))
def test_any_template_is_rendered_or_has_problems(text: str, value: str) -> None:
    """Without problems, the text has exactly its variables replaced; each problem has a line of the text."""
    rendered, used, problems = render_template(text, {"a": value})
    assert all(0 <= line <= text.count("\n") for line, _ in problems)
    if not problems:
        marked = re.sub(r"(\\)?\{\{(?:[ \t]*a[ \t]*\}\})?", lambda m: m[0][1:] if m[1] else value, text)
        assert (rendered, used) == (marked, {"a"} if marked != text and re.search(r"(?<!\\)\{\{ *a", text) else used)


def test_variables_that_are_missing_or_not_used_are_mistakes(folder: Path) -> None:
    """A name that nobody uses is a misspelled one, whether the file or the program gives it."""
    text = (
        'model = "ollama:m"\nsystem_prompt = """\nIn {{city}}\nand {{land}}."""\n[variables]\nland = "NL"\ntown = "x"\n'
    )
    assert mistakes(folder, text, variables={"cty": "Delft"}) == [
        ("system_prompt", 2, "there is no variable 'city'; did you mean 'cty'?"),
        ("variables.town", 7, "the system prompt does not have this variable"),
        ("", 0, "no system prompt has the variable 'cty', which the program passes"),
    ]
    markdown = "---\nmodel: ollama:m\n---\n\n\nOne\ntwo {{x}}\n{{ and\n"
    assert [(key, line) for key, line, _ in mistakes(folder, markdown, "a.md")] == [("", 7), ("", 8)]
    for wrong in ({"a b": 1}, {"a": None}, {"a": [1]}, {"é": 1}):
        with pytest.raises(TypeError, match="cannot be used"):
            load(folder, text, variables=wrong)


# --- mistakes -------------------------------------------------------------------------------------------------------

HEAD = 'model = "ollama:m"\n'
MISTAKES = [
    ("", "", 0, "the agent has no model"),
    ('model = "gpt-5"', "model", 1, "does not have the form provider:model"),
    ('model = "opnai:x"', "model", 1, "did you mean 'openai'?"),
    ('model = "openai:x"', "model", 1, "set the environment variable OPENAI_API_KEY"),
    (f'{HEAD}base_url = "ftp://x"', "base_url", 2, "is not an http or https URL"),
    (f'{HEAD}base_url = "http://x"', "base_url", 2, "the host 'x' is not among those"),
    ('base_url = "http://x"', "base_url", 1, "it has no effect without a model"),
    (f'{HEAD}sytem_prompt = "x"', "sytem_prompt", 2, "did you mean 'system_prompt'?"),
    (f"{HEAD}system_prompt = 3", "system_prompt", 2, "it has to be a text, not a whole number"),
    (f'{HEAD}system_prompt = "{{{{x"', "system_prompt", 2, "has to be followed by the name of a variable"),
    (f"{HEAD}[variables]\nx = []", "variables.x", 3, "it has to be a text or a number, not a list"),
    (f"{HEAD}[settings]\ntemperature = nan", "settings.temperature", 3, "temperature is a finite number"),
    (f'{HEAD}[settings]\nmax_tokens = "9"', "settings.max_tokens", 3, "max_tokens"),
    (f"{HEAD}[settings]\ntemprature = 1", "settings.temprature", 3, "did you mean 'temperature'?"),
    (f"{HEAD}[settings]\ntimeout = 0", "settings.timeout", 3, "timeout"),
    (f"{HEAD}[settings]\nstop = 1", "settings.stop", 3, "it has to be a list"),
    (f'{HEAD}[settings]\nreasoning_effort = "much"', "settings.reasoning_effort", 3, "reasoning_effort"),
    (f'{HEAD}tools = [\n"agents_of_test:find_order",\n"os:system"]', "tools[1]", 4, "not among those that the program"),
    (f'{HEAD}tools = ["agents_of_test:no"]', "tools[0]", 2, "there is no 'no'"),
    (f'{HEAD}tools = ["agents_of_test.find_order"]', "tools[0]", 2, "did you mean 'agents_of_test:find_order'?"),
    (f'{HEAD}tools = ["agents_of_test:plain"]', "tools[0]", 2, "tools are made by @tool"),
    (f'{HEAD}tools = ["agents_of_test:shop"]', "tools[0]", 2, "name it in ensembles"),
    # What the permissions name is missing for the same reason, which is no second mistake.
    (f'{HEAD}tools = ["agents_of_test:no"]\n[permissions]\nask = ["no"]', "tools[0]", 2, "there is no 'no'"),
    (f'{HEAD}tools = "agents_of_test:BOTH"', "tools", 2, "it has to be a list, not a text"),
    (f"{HEAD}tools = [1]", "tools", 2, "each item has to be a text"),
    (f'{HEAD}tools = ["agents_of_test:BOTH", "agents_of_test:refund_"]', "tools[1]", 2, "did you mean 'refund'?"),
    (f'{HEAD}ensembles = ["fils"]', "ensembles[0].use", 2, "did you mean 'files'?"),
    (f'{HEAD}ensembles = ["../e.toml"]', "ensembles[0]", 2, "is outside of the folder"),
    (f"{HEAD}ensembles = [1]", "ensembles[0]", 2, "it has to be a text"),
    (f"{HEAD}[ensembles.a]\n", "ensembles.a", 2, "it has no tools"),
    (f'{HEAD}[ensembles.a]\nuse = "files"', "ensembles.a.use", 3, "root"),
    (
        f'{HEAD}[ensembles.a]\nuse = "files"\n[ensembles.a.options]\nroot = 3',
        "ensembles.a.options.root",
        5,
        "not of type",
    ),
    (f'{HEAD}[mcp.a]\nargs = ["x"]', "mcp.a", 2, "either a command or a url"),
    (f'{HEAD}[mcp.a]\ncommand = "x"\nurl = "http://x"', "mcp.a", 2, "either a command or a url"),
    (f'{HEAD}[mcp.a]\ncommand = "x"\n[mcp.a.env]\nA = 1', "mcp.a.env.A", 5, "it has to be a text"),
    (f'{HEAD}[mcp.a]\ncommand = "x"\ntimeout = 0', "mcp.a", 2, "is a number above 0, not 0"),
    (f'{HEAD}[mcp.a]\ncommand = "rm"', "mcp.a.command", 3, "the program 'rm' is not among those"),
    (f'{HEAD}[mcp.a]\ncommand = "${{NOT_SET_HERE}}"', "mcp.a", 2, "the environment variable NOT_SET_HERE is not set"),
    (f'{HEAD}[mcp.a]\ncommand = "rm"\neffects.x = "no"', "mcp.a.effects.x", 4, "'no' is unknown"),
    (f'{HEAD}[agents.b]\nsystem_prompt = "x"', "agents.b", 2, "a sub-agent has a description"),
    (f'{HEAD}[agents.b]\ndescription = "x"\nsorce = "b.md"', "agents.b.sorce", 4, "there is no such key"),
    (f'{HEAD}[agents.b]\nsource = "b.md"\ntools = []', "agents.b.tools", 4, "there is no such key"),
    (f'{HEAD}[agents.b]\ndescription = "x"\nmax_depth = 0', "agents.b.max_depth", 4, "more than 0"),
    (f'{HEAD}[agents.b]\ndescription = "x"\nbudget_share = 1.5', "agents.b.budget_share", 4, "from 0 to 1, not 1.5"),
    (f'{HEAD}[agents.b]\ndescription = "x"\nbudget_share = -0.5', "agents.b.budget_share", 4, "from 0 to 1, not -0.5"),
    (
        f'{HEAD}[agents.b]\ndescription = "x"\nbudget_share = "half"',
        "agents.b.budget_share",
        4,
        "it has to be a number",
    ),
    (f'{HEAD}[agents.b]\ndescription = "x"\nparameters.type = "text"', "agents.b.parameters", 4, "text"),
    (f'{HEAD}[agents.b]\ndescription = "x"\nparameters.type = "array"', "agents.b", 2, "are an object"),
    (f'{HEAD}[agents."a b"]\ndescription = "x"\nsettings.a = 1', "agents.a b.settings.a", 4, "there is no such key"),
    (f'{HEAD}agents = ["../b.toml"]', "agents[0]", 2, "is outside of the folder"),
    (f'{HEAD}agents = ["/etc/passwd"]', "agents[0]", 2, "is outside of the folder"),
    (f'{HEAD}agents = ["link.toml"]', "agents[0]", 2, "is outside of the folder"),
    (f'{HEAD}agents = ["agent.toml"]', "agents[0]", 2, "in a circle: agent.toml → agent.toml"),
    (f'{HEAD}agents = ["no.md"]', "agents[0]", 2, "there is no file"),
    (f"{HEAD}[permissions]\nallow = ['refnd']", "permissions.allow[0]", 3, "the agent has no tool 'refnd'"),
    (f"{HEAD}[permissions]\nforbid = []", "permissions.forbid", 3, "there is no such key"),
    (f"{HEAD}[permissions]\nask = [{{ efect = 'pure' }}]", "permissions.ask[0].efect", 3, "did you mean 'effect'?"),
    (f"{HEAD}[permissions]\nask = [1]", "permissions.ask[0]", 3, "it has to be a table"),
    (f"{HEAD}[budget]\nsteps = -1", "budget.steps", 3, "steps"),
    (f"{HEAD}[budget]\nunknown = 'x'", "budget.unknown", 3, "unknown"),
    (f"{HEAD}[budget]\nmoney = 1", "budget.money", 3, "there is no such key"),
    (f"{HEAD}approve = 'untrsted'", "approve", 2, "untrusted"),
    (f"{HEAD}max_steps = 0", "max_steps", 2, "more than 0"),
    (f"{HEAD}max_steps = true", "max_steps", 2, "a whole number, not true or false"),
    (f"{HEAD}[output]\ntype = 'strng'", "output", 2, "strng"),
    (f"{HEAD}[output]\nx = 1979-05-27", "output", 2, "dates and times are written as text"),
    (f'{HEAD}driver = "reac"', "driver", 2, "did you mean 'react'?"),
    (f'{HEAD}mode = "text"', "mode", 2, "(driver 'tools')"),
    (f'{HEAD}compiler = "windw"', "compiler.use", 2, "'windw' is unknown"),
    (f'{HEAD}[compiler]\nuse = "sliding_window"', "compiler", 2, "messages"),
    (f'{HEAD}[compiler]\nuse = "sliding_window"\nmessages = 5\nkeep = 9', "compiler", 2, "keeps between 1 and 5"),
    (f'{HEAD}[compiler]\nuse = "conversation"\nmessages = 5', "compiler.messages", 4, "there is no such key"),
    (f"{HEAD}a = = 1", "", 2, "this is not TOML"),
]


@pytest.mark.parametrize(("text", "key", "line", "message"), MISTAKES)
def test_each_mistake_has_its_key_and_line(folder: Path, text: str, key: str, line: int, message: str) -> None:
    """There is one mistake, with the place where it was made and what is wrong."""
    (folder / "inside").mkdir()
    write(folder, TOML, "secret.toml")
    write(folder, "---\ndescription: b\n---\n", "inside/b.md")
    (folder / "inside/link.toml").symlink_to(folder / "secret.toml")
    path = write(folder, text, "inside/agent.toml")
    with pytest.raises(InvalidDescriptor) as raised:
        AgentLoop.from_file(path, allow=ALLOW)
    ((file, found_key, found_line, found_message),) = raised.value.mistakes
    assert (file, found_key, found_line) == (str(path), key, line)
    assert message in found_message
    assert not re.search(r"/etc|root:", found_message.replace("'/etc/passwd'", ""))


def test_a_limit_of_costs_needs_prices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package of published prices, the mistake is at the limit and says how to install it."""
    monkeypatch.setattr("agentloop.policies.budgets.prices.find_spec", lambda _: None)
    ((key, line, message),) = mistakes(folder, f"{HEAD}[budget]\nsteps = 3\ncost = 0.5")
    assert (key, line) == ("budget.cost", 4)
    assert "extra `prices`" in message


def test_a_module_that_is_not_allowed_is_not_imported(folder: Path) -> None:
    """One path that is not allowed, and nothing of the file is imported."""
    text = f'{HEAD}tools = ["agents_of_test:refund", "agents_that_fail:x"]'
    assert [line for _, line, _ in mistakes(folder, text)] == [2]
    assert "agents_of_test" not in sys.modules
    ((key, _, message),) = mistakes(folder, text, allow=[*ALLOW, "agents_that_fail"])
    assert (key, "OSError: no driver" in message) == ("tools[1]", True)


def test_an_ensemble_that_fails_is_a_mistake(folder: Path) -> None:
    """An agent does not begin without its tools."""
    ((key, line, message),) = mistakes(folder, f'{HEAD}ensembles = ["agents_that_fail:x"]', allow=["agents_that_fail"])
    assert (key, line) == ("ensembles[0]", 2)
    assert "OSError: no driver" in message


def test_files_that_name_each_other_are_a_circle(folder: Path) -> None:
    """The mistake is in the file that closes the circle."""
    write(folder, 'description = "b"\nagents = ["c.md"]', "b.toml")
    c = write(folder, "---\ndescription: c\nagents:\n  - agent.toml\n---\n", "c.md")
    with pytest.raises(InvalidDescriptor) as raised:
        load(folder, f'{HEAD}agents = ["b.toml"]')
    ((file, key, line, message),) = raised.value.mistakes
    assert (file, key, line) == (str(c), "agents[0]", 4)
    assert message == "the files name each other in a circle: agent.toml → b.toml → c.md → agent.toml"


def test_files_that_fan_out_are_bounded(folder: Path) -> None:
    """Twenty files that each name the next one twice would be a million agents."""
    for number in range(20):
        write(folder, f'description = "d"\nagents = ["f{number + 1}.toml", "f{number + 1}.toml"]', f"f{number}.toml")
    write(folder, 'description = "d"', "f20.toml")
    found = mistakes(folder, f'{HEAD}agents = ["f0.toml"]')
    assert [message for _, _, message in found] == ["there are more than 64 agents"]


def test_parts_that_do_not_go_together_are_a_mistake_of_the_agent(folder: Path) -> None:
    """What the program adds is checked together with the file."""
    ((key, line, message),) = mistakes(folder, HEAD, interceptors=[Interceptor()], strict_writes=True)
    assert (key, line) == ("", 0)
    assert "strict_writes" in message


YAML_MISTAKES = [
    ("model: ollama:m\nsytem: x", "sytem", 3, "there is no such key"),
    ("model: ollama:m\nsystem_prompt: x", "system_prompt", 3, "the text below the front matter is the system prompt"),
    ("model: ollama:m\ntools:\n  - agents_of_test:find_order\n  - os:system", "tools[1]", 5, "not among those"),
    ("model: ollama:m\nname: 3", "name", 3, "it has to be a text, not a whole number"),
    ("model: ollama:m\nname: false", "name", 3, "it has to be a text, not true or false"),
    ("model: ollama:m\nagents:\n  b:\n    sorce: x\n    description: d", "agents.b.sorce", 5, "there is no such key"),
    ("a: &a [x, x]\nb: [*a, *a]", "", 2, "aliases and anchors"),
    ("model: !!python/object/apply:os.system [id]", "", 2, "the tag"),
    ("model: [", "", 3, "is not YAML"),
]


@pytest.mark.parametrize(("yaml", "key", "line", "message"), YAML_MISTAKES)
def test_each_mistake_in_front_matter_has_its_line(folder: Path, yaml: str, key: str, line: int, message: str) -> None:
    """Lines count from the beginning of the file."""
    found = mistakes(folder, f"---\n{yaml}\n---\nYou help.", "agent.md")
    assert [(found_key, found_line) for found_key, found_line, _ in found] == [(key, line)]
    assert message in found[0][2]


# --- any file -------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from([*AGENT, *CALL, *MCP, "source", "use", "x"])
VALUES = st.recursive(
    st.sampled_from(
        [
            '"a"',
            '"ollama:m"',
            "1",
            "-1",
            "0.5",
            "true",
            "nan",
            "1979-05-27",
            '"files"',
            '"agent.toml"',
            '"agents_of_test:refund"',
            '"{{x}}"',
            "[]",
            "{}",
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(KEYS, inner, max_size=2).map(
            lambda table: f"{{ {', '.join(f'{key} = {value}' for key, value in table.items())} }}"
        ),
    ),
    max_leaves=6,
)


@given(table=st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_file_is_an_agent_or_a_list_of_mistakes(
    tmp_path_factory: pytest.TempPathFactory, table: Mapping[str, str]
) -> None:
    """No file makes anything but a loop or mistakes, each in a line of the file."""
    path = tmp_path_factory.getbasetemp() / "agent.toml"
    path.write_text("\n".join(f"{key} = {value}" for key, value in table.items()))
    try:
        loop = AgentLoop.from_file(path, model=ScriptedInference("x"))
    except InvalidDescriptor as error:
        found = error.mistakes
    else:
        found = ()
        assert loop.execute_sync("go").status
    assert all(0 <= line <= len(table) and message for _, _, line, message in found)


# --- the page about agents ------------------------------------------------------------------------------------------


def test_the_page_about_agents_lists_every_key() -> None:
    """The tables of docs/agents.md have exactly the keys that the code reads."""
    page = (Path(agentloop.__file__).parents[1] / "docs/agents.md").read_text()
    sections = {part.partition("\n")[0]: part for part in page.split("\n### ")}
    expected = {
        "Keys of an agent": AGENT,
        "Keys of `settings`": SETTINGS,
        "Keys of `permissions`": {**PERMISSIONS, **RULE},
        "Keys of `budget`": BUDGET,
        "Keys of an account": ACCOUNT,
        "Keys of `compiler`": COMPILERS,
        "Keys of a server": MCP,
        "Keys of a sub-agent": {"source": None, **CALL},
    }
    for title, keys in expected.items():
        rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", sections[title], re.MULTILINE)
        assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(keys), title
    (modes,) = re.findall(r"^\| `mode` \| (.+) \|$", page, re.MULTILINE)
    listed = re.findall(r"`(\w+)`", modes.replace("(extra `code`)", ""))
    assert listed == [name for driver, names in DRIVER_MODES.items() for name in (driver, *names)]


def test_a_trusted_file_says_whose_words_tools_of_a_server_return(folder: Path) -> None:
    """Each table in `labels` is about the tool of its name."""
    text = f'{HEAD}[mcp.mail]\ncommand = "mail"\n[mcp.mail.labels.search_mails]\nown = "id sender"\n[mcp.mail.labels.send]\ndecides = ["to"]'
    (server,) = load(folder, text, trust=True, allow_servers=["mail"]).tools.groups
    assert isinstance(server, McpEnsemble)
    assert server.labels == {"search_mails": {"own": ("id", "sender")}, "send": {"decides": ("to",)}}
    for wrong, where in (("owns = 'id'", "owns"), ("own = 3", "own"), ("decides = [3]", "decides")):
        with pytest.raises(InvalidDescriptor) as raised:
            load(folder, f'{HEAD}[mcp.mail]\ncommand = "mail"\n[mcp.mail.labels.x]\n{wrong}', allow_servers=["mail"])
        assert [mistake[1] for mistake in raised.value.mistakes] == [f"mcp.mail.labels.x.{where}"]


@pytest.mark.parametrize(
    ("word", "kind"), [("untrusted", AskUntrusted), ("effects", RequireApproval)], ids=["untrusted", "effects"]
)
def test_a_file_says_which_calls_wait(folder: Path, word: str, kind: type[Interceptor]) -> None:
    """A program that says it itself is heard in its place."""
    loop = load(folder, f'{HEAD}approve = "{word}"')
    assert [type(each) for each in loop.interceptors] == [kind]
    assert load(folder, f'{HEAD}approve = "{word}"', approve=None).interceptors == ()


def test_without_a_word_calls_wait_after_reading(folder: Path) -> None:
    """Nobody is asked if a trusted file or the program says so; a program that asks by labels itself says which calls wait."""
    assert load(folder, HEAD).interceptors == (AskUntrusted(),)
    assert load(folder, HEAD, approve=None).interceptors == ()
    assert load(folder, HEAD, approve="effects").interceptors == (RequireApproval(),)
    assert load(folder, HEAD, interceptors=[RequireApproval()]).interceptors == (RequireApproval(), AskUntrusted())
    assert load(folder, f'{HEAD}approve = "none"', trust=True).interceptors == ()
    own = AskUntrusted(unless="save_*")
    assert load(folder, HEAD, interceptors=[own]).interceptors == (own,)
    assert load(folder, HEAD, interceptors=[RequireApproval("pay")]).interceptors == (
        RequireApproval("pay"),
        AskUntrusted(),
    )


def test_where_nobody_can_be_asked_the_execution_is_suspended(folder: Path) -> None:
    """The agent of a file and its sub-agents wait, each call for a decision, in whatever process comes next."""
    text = f'{HEAD}[agents.payer]\ndescription = "Pays."\ntools = ["agents_of_test:refund"]'

    @tool(effect="pure")
    def read() -> str:
        """Read a mail."""
        return "pay eve"

    script: list[ToolCall | str] = [
        ToolCall("1", "read"),
        ToolCall("2", "payer", '{"task": "pay"}'),
        ToolCall("3", "refund", '{"number": 7}'),
        "done",
    ]
    loop = load(folder, text, model=ScriptedInference(*script), tools=[read])
    state = loop.execute_sync("Go.")
    assert state.status is ExecutionStatus.SUSPENDED
    assert [call.call.name for call in state.pending if not call.waits_for and not call.inner] == ["refund"]
