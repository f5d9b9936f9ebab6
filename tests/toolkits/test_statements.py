"""What a file says about tools makes them stricter, or is refused where the file is loaded, unless somebody trusts the file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentloop import Tool
from agentloop.errors import InvalidDescriptor, ToolDefinitionError
from agentloop.toolkits import Ensemble, ensemble_factory, load_ensembles
from agentloop.toolkits.descriptor import KEYS, TableKind
from agentloop.toolkits.files import files
from agentloop.toolkits.overrides import OF_SPEC
from agentloop.toolkits.statements import Trust
from agentloop.values import Authority, Effect, ToolStatus
from agentloop.values.authority import DECLARED, Statement, is_looser, strictest
from agentloop.values.policies import DeduplicatePolicy, RateLimit
from tests.generated import examples
from tests.toolkits.running import executions, run_call, run_calls

MODULE = '''
from typing import Annotated

from agentloop import tool
from agentloop.toolkits import Ensemble, ToolOverride, ensemble_factory
from agentloop.tools import Range
from agentloop.values import CachePolicy, CircuitPolicy, RateLimit, RetryPolicy


@tool(
    effect="idempotent", egress="url", own="id sent", identifiers="channel", decides="url amount", runs_code=True, strict=True, sequential=True, eager=False, key="one",
    rate_limit=RateLimit(2, 10), deduplicate="exact", timeout=5, circuit=CircuitPolicy(3, 60),
)
def guarded(url: str, amount: Annotated[int, Range(le=100)] = 1, note: str = "") -> str:
    """Send an amount somewhere."""
    return f"sent {amount}"


@tool(effect="pure")
def look(what: str = "") -> str:
    """Look something up."""
    return what


@tool
def pay(to: str, amount: int = 1) -> str:
    """Pay."""
    return f"paid {amount} to {to}"


@tool(cache=CachePolicy(60), retry=RetryPolicy(3, on=("Busy", "Away")), rate_limit=RateLimit(1, max_wait=0))
def wire(to: str, amount: int = 1) -> str:
    """Wire an amount."""
    return f"wired {amount} to {to}"


ALL = [guarded, look, pay, wire]
PAYING = [pay]
CLOSED = Ensemble(
    "closed", ALL[:3], overrides={"look": ToolOverride(effect="effect", egress=True, policy={"runs_code": True}),
    "pay": ToolOverride(enabled=False), "guarded": ToolOverride(schema={
        "type": "object", "properties": {"url": {"type": "string"}, "amount": {"type": "integer", "maximum": 10}},
        "required": ["url"]})},
)
OFF = CLOSED.disable()


@ensemble_factory(in_folder=["folder", "more"], trusted=["networks"])
def desk(folder: str = "", more: list[str] | None = None, networks: list[str] | None = None) -> Ensemble:
    """Return the tools of a desk."""
    return Ensemble("desk", ALL)
'''
ALLOW = ["statements_of_test"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the module of tools, which is the current one."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/statements_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (tmp_path / "project/inside").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def write(folder: Path, text: str, name: str = "tools.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str, **options: Any) -> Ensemble:
    return Ensemble.from_toml(write(folder, text), **{"allow": ALLOW, "deduplicators": DEDUPLICATORS, **options})


def refused(folder: Path, text: str, **options: Any) -> dict[str, str]:
    """Return the messages about a file by their keys; each says what to do."""
    with pytest.raises(InvalidDescriptor) as raised:
        load(folder, text, **options)
    found = {key: message for _, key, line, message in raised.value.mistakes if line}
    assert all("trust the file" in message and "--trust" in message for message in found.values()), found
    return found


def tools_of(ensemble: Ensemble) -> dict[str, Tool]:
    return {tool.name: tool for tool in ensemble.offered}


DEDUPLICATORS: Mapping[str, Any] = {"never": lambda call, earlier: False}  # a function of two calls

# --- every key of a file --------------------------------------------------------------------------------------------

LOOSER = {
    "effect": [("guarded", '"pure"'), ("pay", '"idempotent"'), ("pay", '"pure"')],
    "egress": [("guarded", "false"), ("guarded", '"note"'), ("guarded", '["note", "amount"]')],
    "own": [("guarded", '"*"'), ("guarded", '["id", "to"]'), ("look", '"id"')],
    "identifiers": [("guarded", '"channel name"'), ("look", '"*"')],
    "decides": [("guarded", '"url"'), ("pay", '"to"'), ("pay", '""')],
    "runs_code": [("guarded", "false")],
    "strict": [("guarded", "false")],
    "sequential": [("guarded", "false")],
    "eager": [("guarded", "true")],
    "retry": [
        ("pay", "{ max_attempts = 2 }"),
        ("wire", '{ max_attempts = 4, on = ["Busy"] }'),
        ("wire", "{ max_attempts = 2 }"),
        ("wire", '{ max_attempts = 2, on = ["Busy", "Reset"] }'),
        ("wire", '{ max_attempts = 2, on = ["Busy"], not_on = [] }'),
    ],
    "repeatable": [("pay", "true")],
    "cache": [("wire", "{ seconds = 0.001 }"), ("wire", "{ seconds = 60, max_entries = 1 }")],
    "circuit": [
        ("guarded", "{ failures = 4, seconds = 60 }"),
        ("guarded", "{ failures = 3, seconds = 1 }"),
        ("guarded", "{ failures = 3, seconds = 60, probes = 9 }"),
        ("guarded", '{ failures = 3, seconds = 60, dependency = "other" }'),
    ],
    "rate_limit": [
        ("wire", "{ calls = 1 }"),
        ("guarded", "{ calls = 3, per = 10 }"),
        ("guarded", "{ calls = 2, per = 9 }"),
        ("guarded", "{ calls = 1, per = 10, burst = 5 }"),
        ("guarded", '{ calls = 1, per = 10, by = "other" }'),
    ],
    "deduplicate": [("guarded", "{ seconds = 5 }"), ("guarded", "{ steps = 0 }")],
    "deduplicator": [("guarded", '"never"')],
    "key": [("guarded", '"two"')],
}
"""For each key that can loosen a tool, the tools and values that would."""
STRICTER = {
    "effect": [("guarded", '"effect"'), ("look", '"idempotent"'), ("guarded", '"idempotent"')],
    "egress": [("guarded", "true"), ("guarded", '"url note"'), ("look", "true"), ("look", '"what"'), ("look", "false")],
    "own": [("guarded", '"id"'), ("guarded", '""'), ("look", "[]")],
    "identifiers": [("guarded", '""'), ("look", '""')],
    "decides": [("guarded", '"url amount note"'), ("guarded", '"*"'), ("pay", '"*"')],
    "runs_code": [("look", "true"), ("guarded", "true"), ("look", "false")],
    "strict": [("look", "true")],
    "sequential": [("look", "true")],
    "eager": [("look", "false")],
    "repeatable": [("pay", "false"), ("look", "true")],
    "retry": [("look", "{ max_attempts = 9 }"), ("guarded", "{ max_attempts = 2 }"), ("pay", "{ max_attempts = 1 }")],
    "cache": [("wire", "{ seconds = 90 }"), ("pay", "{ seconds = 5 }"), ("look", "{ seconds = 5 }")],
    "circuit": [("guarded", "{ failures = 1, seconds = 90 }"), ("pay", "{ failures = 100 }")],
    "rate_limit": [("guarded", "{ calls = 1, per = 10 }"), ("look", "{ calls = 100 }")],
    "deduplicate": [("guarded", '"exact"'), ("look", "{ seconds = 5 }")],
    "deduplicator": [("look", '"never"')],
    "key": [("guarded", '"one"'), ("look", '"two"')],
}
"""For each of them, those that a file may set."""
NEUTRAL = {
    "description": '"Do it."',
    "defaults": '{ note = "x" }',
    "timeout": "60",
    "deadline": "60",
    "max_result_bytes": "1_000_000",
    "supersedes": '"same tool"',
    "resource": '"url:{url}"',
}
"""Keys that say how, when or for how long a call runs, or what a model reads: not whether it runs."""
ELSEWHERE = {
    *("use", "source"),  # `test_descriptors.py`: allowed modules, files in the folder
    *("options", "enabled", "schema", "max_retries", "arguments"),  # below
    *("name", "tools", "ensemble", "defaults", "invokers", "invoker"),  # names, and tables of other keys
}


def test_each_key_of_a_file_has_a_bearing() -> None:
    """A new key has to be decided about: whether it can loosen a tool."""
    known = {key for keys in KEYS.values() for key in keys}
    assert known == LOOSER.keys() | NEUTRAL.keys() | ELSEWHERE
    assert LOOSER.keys() == STRICTER.keys()
    assert {*DECLARED} <= LOOSER.keys()


CASES = [(key, *case) for key, cases in LOOSER.items() for case in cases]


@pytest.mark.parametrize(("key", "name", "value"), CASES)
@pytest.mark.parametrize("form", ["tool", "imported", "invoker", "source", "list"])
def test_a_looser_statement_is_refused(folder: Path, key: str, name: str, value: str, form: str) -> None:
    """In whatever form of file it stands, the message has its key and line; where the file is trusted, it holds."""
    use = f'use = "statements_of_test:{name}"\n{key} = {value}\n'
    write(folder, f"{key} = {value}", "inner.toml")
    text, place = {
        "tool": (f'use = "statements_of_test:ALL"\n[tools.{name}]\n{key} = {value}', f"tools.{name}.{key}"),
        "imported": (f"[tools.{name}]\n{use}", f"tools.{name}.{key}"),
        "invoker": (f'[ensemble]\n[[invokers]]\nname = "{name}"\n{use}', f"invokers[0].{key}"),
        "source": (f'use = "statements_of_test:ALL"\n[tools.{name}]\nsource = "inner.toml"', key),
        "list": (f"[ensembles.a.tools.{name}]\n{use}", f"ensembles.a.tools.{name}.{key}"),
    }[form]
    path = write(folder, text)

    def read(**options: Any) -> Tool:
        given: dict[str, Any] = {"allow": ALLOW, "deduplicators": DEDUPLICATORS, **options}
        ensembles = load_ensembles(path, **given) if form == "list" else [Ensemble.from_toml(path, **given)]
        return tools_of(ensembles[0])[name]

    with pytest.raises(InvalidDescriptor) as raised:
        read()
    assert [mistake[1] for mistake in raised.value.mistakes] == [place]
    tool = read(trust=True)
    if key in DECLARED:
        own = getattr(sys.modules["statements_of_test"], name)
        held, before = tool.declarations.holding(key), own.declarations.holding(key)
        assert is_looser(key, held.value, before.value)
        assert held.by is Authority.CODE


@pytest.mark.parametrize("key", [key for key in LOOSER if key not in OF_SPEC])
def test_a_looser_statement_about_all_tools_is_refused(folder: Path, key: str) -> None:
    """What a file says about an ensemble is said about each of its tools."""
    _, value = LOOSER[key][0]
    assert set(refused(folder, f'use = "statements_of_test:ALL"\n{key} = {value}')) == {key}


@pytest.mark.parametrize(("key", "name", "value"), [(key, *case) for key, cases in STRICTER.items() for case in cases])
def test_a_stricter_statement_holds(folder: Path, key: str, name: str, value: str) -> None:
    """What makes a tool stricter, or says the same, needs nobody's trust; the record has both."""
    tool = tools_of(load(folder, f'use = "statements_of_test:ALL"\n[tools.{name}]\n{key} = {value}'))[name]
    if key not in DECLARED:
        return
    own = getattr(sys.modules["statements_of_test"], name)
    held, before = tool.declarations.holding(key), own.declarations.holding(key)
    assert not is_looser(key, held.value, before.value)
    assert [each.by for each in tool.declarations.about(key)] == [Authority.CODE, Authority.FILE]
    assert tool.declarations.about(key)[1].place.endswith("tools.toml, line 3")
    assert held.value == getattr(tool.spec if key in OF_SPEC else tool.policy, key)


@pytest.mark.parametrize(("key", "value"), NEUTRAL.items())
def test_a_neutral_statement_is_nobodys_concern(folder: Path, key: str, value: str) -> None:
    """A longer time is no loosening, and neither is another description."""
    text = f'use = "statements_of_test:ALL"\n[tools.guarded]\n{key} = {value}'
    assert tools_of(load(folder, text))["guarded"].declarations.holding("effect").value is Effect.IDEMPOTENT


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(["guarded", "look", "pay"]),
    st.lists(st.sampled_from(["pure", "idempotent", "effect"]), min_size=1, max_size=3),
)
def test_a_chain_of_files_makes_a_tool_stricter(folder: Path, name: str, effects: list[str]) -> None:
    """The innermost file comes first: each may be as strict as what was said before, or stricter."""
    for index, effect in enumerate(effects):
        source = f'source = "{index - 1}.toml"\n' if index else ""
        write(folder, f'{source}effect = "{effect}"', f"{index}.toml")
    last = len(effects) - 1
    text = f'use = "statements_of_test:ALL"\n[tools.{name}]\nsource = "{last}.toml"'
    own = {"guarded": "idempotent", "look": "pure", "pay": "effect"}[name]
    steps = [Effect(own), *map(Effect, effects)]
    is_sound = all(strictest("effect", steps[: index + 1]) == step for index, step in enumerate(steps))
    if is_sound:
        assert tools_of(load(folder, text))[name].effect is steps[-1]
    else:
        assert set(refused(folder, text)) == {"effect"}


# --- what code says in the ensemble ---------------------------------------------------------------------------------


def test_what_code_overrides_stays_when_a_file_says_something_else(folder: Path) -> None:
    """A file that changes the time limits of tools changes neither their effects nor which of them are offered."""
    text = 'use = "statements_of_test:CLOSED"\ntimeout = 7\n' + "".join(
        f"[tools.{name}]\ntimeout = 9\n" for name in ("guarded", "look", "pay")
    )
    tools = tools_of(load(folder, text))
    assert list(tools) == ["guarded", "look"]
    assert (tools["look"].effect, tools["look"].spec.egress, tools["look"].policy.runs_code) == ("effect", True, True)
    assert {tool.policy.timeout for tool in tools.values()} == {9}


@pytest.mark.parametrize("statement", ['effect = "pure"', "egress = false", "runs_code = false"])
def test_the_word_of_code_is_that_of_the_ensemble(folder: Path, statement: str) -> None:
    """What the function alone says is looser than what the ensemble of the program says."""
    text = f'use = "statements_of_test:CLOSED"\n[tools.look]\n{statement}'
    assert set(refused(folder, text)) == {f"tools.look.{statement.partition(' ')[0]}"}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('use = "statements_of_test:CLOSED"\n[tools.pay]\nenabled = true', "tools.pay.enabled"),
        ('use = "statements_of_test:OFF"\nenabled = true', "enabled"),
    ],
)
def test_a_file_enables_nothing_that_code_has_disabled(folder: Path, text: str, key: str) -> None:
    """It can only disable more; a trusted file can do both."""
    assert set(refused(folder, text)) == {key}
    assert load(folder, text, trust=True).offered
    assert not load(folder, 'use = "statements_of_test:OFF"').offered
    assert list(tools_of(load(folder, 'use = "statements_of_test:CLOSED"\n[tools.look]\nenabled = false'))) == [
        "guarded"
    ]


async def test_a_schema_of_a_file_narrows_that_of_code(folder: Path) -> None:
    """Arguments have to satisfy both, so that a bound which the file leaves out still holds."""
    text = """
        use = "statements_of_test:{ensemble}"
        [tools.guarded.schema]
        type = "object"
        properties.url = {{ type = "string", maxLength = 12 }}
        properties.amount = {{ type = "integer" }}
        required = ["url"]
    """

    async def outcome(ensemble: str, *, trust: bool = False, url: str = "http://a", **arguments: Any) -> str:
        loaded = load(folder, text.format(ensemble=ensemble), trust=trust)
        return (await run_call([loaded], "guarded", url=url, **arguments)).text

    assert await outcome("ALL", amount=100) == "sent 100"
    assert "101 is greater than the maximum of 100" in await outcome("ALL", amount=101)
    assert "is too long" in await outcome("ALL", url="http://long.example")
    assert "11 is greater than the maximum of 10" in await outcome("CLOSED", amount=11)
    assert await outcome("CLOSED", amount=11, trust=True) == "sent 11"
    # The bound in the type hint is that of the function, whatever a schema says.
    assert "it has to be at most 100, not 101" in await outcome("ALL", amount=101, trust=True)
    assert await outcome("ALL") == "sent 1"


def test_more_attempts_of_an_effect_are_not_a_files_decision(folder: Path) -> None:
    """`max_retries` does not apply to a tool with an effect, whatever else the file says about it."""
    text = """
        [ensemble]
        [defaults]
        max_retries = 5
        [[invokers]]
        name = "pay"
        use = "statements_of_test:pay"
        [[invokers]]
        name = "look"
        use = "statements_of_test:look"
    """
    tools = tools_of(load(folder, text))
    assert tools["pay"].policy.retry is None
    assert tools["look"].policy.retry is not None


def test_a_limit_that_code_does_not_set_is_added(folder: Path) -> None:
    """A file may limit a tool that its code does not limit."""
    text = '[tools.pay]\nuse = "statements_of_test:pay"\nrate_limit = { calls = 1 }\ndeduplicate = { seconds = 5 }'
    policy = tools_of(load(folder, text))["pay"].policy
    assert (policy.rate_limit, policy.deduplicate) == (RateLimit(1), DeduplicatePolicy(5))


REPEATED = [
    "cache = { seconds = 0.001 }",
    "deduplicate = { seconds = 0.001 }",
    'deduplicate = "exact"',
    'deduplicator = "never"',
]
"""Statements by which a tool says itself which of its calls are the same."""


@pytest.mark.parametrize("statement", REPEATED)
@pytest.mark.parametrize("form", ["one tool", "all tools", "an inner file"])
async def test_a_file_does_not_let_an_effect_run_again(folder: Path, statement: str, form: str) -> None:
    """It may say which calls are the same; a model that repeats an effect still gets the result of the call that ran."""
    write(folder, statement, "inner.toml")
    text = (
        'use = "statements_of_test:PAYING"\n'
        + {
            "one tool": f"[tools.pay]\n{statement}",
            "all tools": statement,
            "an inner file": '[tools.pay]\nsource = "inner.toml"',
        }[form]
    )
    assert tools_of(load(folder, text, trust=True))["pay"].policy.may_repeat
    ensemble = load(folder, text)
    pay = ("pay", {"to": "Ada"})
    first, second = executions(await run_calls([ensemble], pay, pay))
    assert (first.succeeded, second.status) == (True, ToolStatus.REJECTED)
    assert "this call has run" in second.text


def test_the_word_of_code_exempts_from_the_rule(folder: Path) -> None:
    """What code exempts stays exempt when a file adds a stricter statement, and a file may take the exemption away."""
    text = 'use = "statements_of_test:ALL"\n[tools.wire]\n'
    assert tools_of(load(folder, text + "cache = { seconds = 90 }"))["wire"].policy.may_repeat
    assert not tools_of(load(folder, text + "repeatable = false"))["wire"].policy.may_repeat


TRUSTED = {
    "rate_limit": ("{ calls = 1 }", "{ calls = 100 }"),
    "circuit": ("{ failures = 1 }", "{ failures = 100 }"),
    "deduplicate": ('"exact"', "{ seconds = 0.1 }"),
    "cache": ("{ seconds = 60 }", "{ seconds = 0.1 }"),
    "retry": ("{ max_attempts = 1 }", "{ max_attempts = 9 }"),
    "repeatable": ("false", "true"),
    "key": ('"one"', '"two"'),
    "enabled": ("false", "true"),
    "runs_code": ("true", "false"),
    "effect": ('"effect"', '"pure"'),
    "schema": (
        '{ type = "object", properties.amount = { type = "integer", maximum = 5 } }',
        '{ type = "object", properties.amount = { type = "integer" } }',
    ),
}
"""For each key, the value of a file that is trusted, and a looser one of a file that uses it."""


@pytest.mark.parametrize(("key", "values"), TRUSTED.items())
def test_a_stranger_does_not_loosen_the_word_of_a_person(folder: Path, key: str, values: tuple[str, str]) -> None:
    """A file that uses a trusted file can make the tools of the trusted file stricter only."""
    write(folder, f"{key} = {values[0]}", "mine.toml")
    text = f'use = "statements_of_test:ALL"\n[tools.pay]\nsource = "mine.toml"\n{key} = {values[1]}'
    assert set(refused(folder, text, trust=["mine.toml"])) == {f"tools.pay.{key}"}


@pytest.mark.parametrize("key", sorted(TRUSTED.keys() - {"enabled", "effect", "schema"}))
def test_a_stranger_does_not_loosen_what_a_person_says_of_all_tools(folder: Path, key: str) -> None:
    """The statement of a stranger about one tool is nearer to the tool, and has no more authority."""
    mine, other = TRUSTED[key]
    write(folder, f'use = "statements_of_test:PAYING"\n{key} = {mine}', "mine.toml")
    text = f'source = "mine.toml"\n[tools.pay]\n{key} = {other}'
    assert set(refused(folder, text, trust=["mine.toml"])) == {f"tools.pay.{key}"}
    assert load(folder, text, trust=True).offered


# --- names and spellings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    ['effect = "Pure"', 'effect = "PURE "', 'Effect = "pure"', 'EFFECT = "pure"', '"effect " = "pure"', "effect = 0"],
)
def test_another_spelling_says_nothing(folder: Path, line: str) -> None:
    """Keys and values are compared as they are; anything else is a mistake, and never a looser tool."""
    with pytest.raises(InvalidDescriptor):
        load(folder, f'[tools.pay]\nuse = "statements_of_test:pay"\n{line}')


def test_another_name_makes_no_other_tool(folder: Path) -> None:
    """A tool that is offered by the name of a harmless one, in an ensemble by the name of another, is what its code says."""
    text = """
        [ensembles.files]
        [ensembles.files.tools.read_file]
        use = "statements_of_test:pay"
        description = "Read a file."
    """
    (ensemble,) = load_ensembles(write(folder, text), allow=ALLOW)
    (tool,) = ensemble.offered
    assert (ensemble.name, tool.name, tool.effect) == ("files", "read_file", "effect")


def test_a_short_name_cannot_be_redefined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`files` is the ensemble of the package, also where a module of this name is allowed and can be imported."""
    (folder / "files.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(folder)
    ensemble = load(folder, 'use = "files"\noptions.root = "inside"', allow=["files"])
    assert "read_file" in tools_of(ensemble)


# --- what the tools of an ensemble reach ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["..", "/", "../project/../lib", "link", "inside/../..", "in\\u0000side", "~/x/../../.."]
)
@pytest.mark.parametrize("option", ["folder", "more"])
def test_a_file_names_paths_in_its_own_folder(folder: Path, option: str, path: str) -> None:
    """Neither upwards nor through links; code and trusted files name any."""
    (folder / "link").symlink_to("..")
    value = f'["inside", "{path}"]' if option == "more" else f'"{path}"'
    text = f'use = "statements_of_test:desk"\noptions.{option} = {value}'
    assert set(refused(folder, text)) == {f"options.{option}"}
    assert load(folder, text, trust=["tools.toml"]).offered
    inside = text.replace(path, "inside/new")
    assert load(folder, inside).offered
    (folder / "sub").mkdir()
    below = write(folder, inside, "sub/tools.toml")
    with pytest.raises(InvalidDescriptor, match="is outside of the folder of the file"):
        Ensemble.from_toml(below, allow=ALLOW)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ('use = "files"\noptions.root = ".."', "root"),
        ('use = "files"\noptions = { root = "/", writable = false }', "root"),
        ('use = "sqlite"\noptions.path = "../x.db"', "path"),
        ('use = "memory"\noptions = { path = "../x.db", user = "a" }', "path"),
        ('use = "shell"\noptions.folder = ".."', "folder"),
        ('use = "shell"\noptions = { folder = "inside", readable = ["inside", "/home"] }', "readable"),
        ('use = "skills"\noptions.folders = [".."]', "folders"),
        ('use = "skills"\noptions = { folders = ["inside"], lock = "../lock" }', "lock"),
        ('use = "skills"\noptions = { folders = ["inside"], work = "/" }', "work"),
        ('use = "http"\noptions = { hosts = ["*"], allow_private = ["localhost:22"] }', "allow_private"),
        ('use = "agentloop.toolkits.files:files"\noptions.root = ".."', "root"),
        ('use = "statements_of_test:desk"\noptions.networks = ["10.0.0.0"]', "networks"),
    ],
)
def test_the_ensembles_of_the_package_reach_what_is_beside_the_file(folder: Path, text: str, option: str) -> None:
    """Nothing is opened before: a path that a file may not name is refused whether or not it exists."""
    assert set(refused(folder, text)) == {f"options.{option}"}


def test_no_networks_are_nothing_to_trust(folder: Path) -> None:
    """An option that is set to nothing loosens nothing."""
    assert load(folder, 'use = "statements_of_test:desk"\noptions.networks = []').offered


def test_a_factory_restricts_parameters_that_it_has() -> None:
    """A misspelled name would restrict nothing."""

    def tools_in(root: str) -> Ensemble:
        """Return tools."""
        return Ensemble(root, [])

    with pytest.raises(ToolDefinitionError, match=r"tools_in has no parameter 'rot'; did you mean 'root'\?"):
        ensemble_factory(in_folder=["rot"])(tools_in)
    assert ensemble_factory(tools_in)("a").name == "a"


# --- trust ----------------------------------------------------------------------------------------------------------


def test_a_list_of_trusted_files_trusts_no_other(folder: Path) -> None:
    """Trust in a file is not trust in those that it names, also if one is named like the other."""
    inner = write(folder, 'effect = "pure"', "inner.toml")
    text = 'use = "statements_of_test:ALL"\n[tools.pay]\nsource = "inner.toml"\n[tools.guarded]\neffect = "pure"'
    outer = write(folder, text)
    assert set(refused(folder, text)) == {"effect", "tools.guarded.effect"}
    assert set(refused(folder, text, trust=[outer])) == {"effect"}
    assert set(refused(folder, text, trust=[inner])) == {"tools.guarded.effect"}
    assert set(refused(folder, text, trust=[folder / "inside/tools.toml"])) == {"effect", "tools.guarded.effect"}
    tools = tools_of(load(folder, text, trust=["inner.toml", str(outer)]))
    assert (tools["pay"].effect, tools["guarded"].effect) == ("pure", "pure")


def test_a_person_who_trusts_a_file_is_on_record(folder: Path) -> None:
    """The command line says whose word it is."""
    path = write(folder, 'use = "statements_of_test:ALL"\n[tools.pay]\neffect = "pure"')
    tool = tools_of(load(folder, path.read_text(), trust=Trust.of([path], Authority.PERSON)))["pay"]
    assert tool.declarations.holding("effect") == Statement("effect", Effect.PURE, Authority.PERSON, f"{path}, line 3")
    assert [(each.value, each.by) for each in tool.declarations.about("effect")] == [
        (Effect.EFFECT, Authority.CODE),
        (Effect.PURE, Authority.PERSON),
    ]


def test_an_untrusted_file_cannot_loosen_what_a_trusted_one_says(folder: Path) -> None:
    """The file that a person trusts makes a pure tool an effect; the one that names it says that it is pure."""
    inner = write(folder, 'effect = "effect"\negress = true', "inner.toml")
    text = 'use = "statements_of_test:ALL"\n[tools.look]\nsource = "inner.toml"\neffect = "pure"\negress = false'
    assert set(refused(folder, text, trust=Trust.of([inner], Authority.PERSON))) == {
        "tools.look.effect",
        "tools.look.egress",
    }
    assert tools_of(load(folder, text, trust=["tools.toml"]))["look"].effect == "pure"


@pytest.mark.parametrize("trust", ["tools.toml", Path("tools.toml")])
def test_trust_is_a_list(folder: Path, trust: Any) -> None:
    """A single path is a mistake that says how to write it."""
    with pytest.raises(TypeError, match=r"write trust=\['tools.toml'\]"):
        load(folder, 'use = "files"\noptions.root = "."', trust=trust)


def test_groups_record_who_said_what_they_reach(folder: Path) -> None:
    """Code, a person or a file has said which folder the tools write to, and who has allowed the module."""
    (said,) = files("inside").statements
    assert (said.about, said.value, said.by) == ("root", "inside", Authority.CODE)
    text = 'use = "files"\noptions.root = "inside"'
    assert [(each.about, each.by) for each in load(folder, text).statements] == [
        ("root", Authority.FILE),
        ("module", Authority.CODE),
    ]
    person = Trust.of([], Authority.PERSON)
    (module,) = load(folder, 'use = "statements_of_test:ALL"', trust=person).statements
    assert (module.about, module.value, module.by) == ("module", "statements_of_test", Authority.PERSON)


def test_kinds_of_tables_are_known() -> None:
    """A further kind of file is one more form of the tests above."""
    assert len(TableKind) == 9
