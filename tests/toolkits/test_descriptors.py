"""Ensembles from TOML: the keys, their meaning, and the reports of mistakes."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import InvalidDescriptor
from agentloop.policies import Resilience, WithinSeconds
from agentloop.toolkits import Ensemble, load_ensembles
from agentloop.values import Effect, SeenCall
from agentloop.values.policies import CachePolicy, DeduplicatePolicy, RateLimit, RetryPolicy
from tests.toolkits.running import executions, run_call, run_calls

MODULE = '''
from __future__ import annotations
from subprocess import check_output
import os
from agentloop import tool
from agentloop.toolkits import Ensemble, ensemble_factory

LOADED = True

@tool(effect="pure")
def find(what: str, limit: int) -> str:
    """Find things."""
    return f"{what} {limit}"

@tool
def order(what: str) -> str:
    """Order a thing."""
    return what

def plain(what: str) -> str:
    """No tool."""
    return what

@ensemble_factory
def warehouse(city: str, *, shelves: int = 3) -> Ensemble:
    """Return the tools of a warehouse."""
    if city == "nowhere":
        raise ValueError("there is no warehouse")
    if city == "burning":
        raise OSError("no answer")
    return Ensemble("warehouse", [find, order], description=f"{city} {shelves}")

READY = Ensemble("ready", [find, order], start=lambda: STARTED.append(1))
STARTED = []
BOTH = [find, order]
MIXED = [find, plain]
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the module shop_of_test.tools, modules that cannot be imported, and one that must not be."""
    package = tmp_path / "shop_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text(MODULE)
    (package / "broken.py").write_text("raise OSError('no driver')")
    (package / "needs.py").write_text("import a_package_that_is_not_installed")
    (tmp_path / "shop_of_test_secrets.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


ALLOW = ["shop_of_test"]


def write(folder: Path, text: str, name: str = "shop.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str, **options: Any) -> list[tuple[str, int, str]]:
    """Return key, line and message of each mistake in the file of one ensemble."""
    with pytest.raises(InvalidDescriptor) as raised:
        Ensemble.from_toml(write(folder, text), **{"allow": ALLOW, **options})
    for file, key, line, message in raised.value.mistakes:
        assert f"{file}, line {line}: {key}: {message}" in str(raised.value) or not (key and line)
    return [(key, line, message) for _, key, line, message in raised.value.mistakes]


# --- keys -----------------------------------------------------------------------------------------------------------


async def test_a_file_describes_an_ensemble(folder: Path) -> None:
    """Tools are import paths under the names that a model calls; the other keys are applied to them."""
    text = """
        name = "shop"
        description = "The shop."
        timeout = 9
        defaults = { limit = 5 }

        [tools.look_up]
        use = "shop_of_test.tools:find"
        description = "Look things up."
        effect = "idempotent"
        timeout = 2.5
        retry = { max_attempts = 4, on = ["OSError"] }
        cache = { seconds = 60 }
        rate_limit = { calls = 2, per = 10 }

        [tools.order]
        use = "shop_of_test.tools:order"
        sequential = true
        key = "orders"
        max_result_bytes = 100
        deadline = 30
        defaults = { what = "tea" }
        [tools.order.schema]
        type = "object"
        properties.what = { type = "string", maxLength = 3 }
    """
    shop = Ensemble.from_toml(write(folder, text), allow=ALLOW)
    look_up, order = shop.offered
    assert (shop.name, shop.description, shop.failure) == ("shop", "The shop.", "")
    assert (look_up.name, look_up.description, look_up.effect) == ("look_up", "Look things up.", Effect.IDEMPOTENT)
    assert look_up.policy.timeout == 2.5
    assert look_up.policy.retry == RetryPolicy(4, on=["OSError"])
    assert look_up.policy.cache == CachePolicy(60)
    assert look_up.policy.rate_limit == RateLimit(2, 10)
    assert (order.policy.timeout, order.policy.sequential, order.policy.key) == (9, True, "orders")
    assert (order.policy.max_result_bytes, order.policy.deadline) == (100, 30)
    assert (await run_call([shop], "look_up", what="cups")).value == "cups 5"
    assert (await run_call([shop], "order")).value == "tea"
    assert (await run_call([shop], "order", what="long")).error_message.endswith("at $.what: 'long' is too long")


def test_a_file_lists_ensembles(folder: Path) -> None:
    """The tools of each come from an ensemble, a factory, a list, a tool, or another file."""
    write(folder, '[tools.find]\nuse = "shop_of_test.tools:find"', "more/sourced.toml")
    text = """
        [ensembles.created]
        use = "shop_of_test.tools:warehouse"
        options = { city = "Delft" }
        [ensembles.created.tools.order]
        enabled = false
        [ensembles.ready]
        use = "shop_of_test.tools:READY"
        [ensembles.listed]
        use = "shop_of_test.tools:BOTH"
        [ensembles.single]
        use = "shop_of_test.tools:order"
        [ensembles.sourced]
        source = "more/sourced.toml"
        [ensembles.texts]
        use = "agentloop.toolkits.summarization:summarization"
    """
    ensembles = load_ensembles(write(folder, text), allow=ALLOW)
    assert {ensemble.name: [tool.name for tool in ensemble.offered] for ensemble in ensembles} == {
        "created": ["find"],
        "ready": ["find", "order"],
        "listed": ["find", "order"],
        "single": ["order"],
        "sourced": ["find"],
        "texts": ["condense"],
    }
    assert ensembles[0].description == "Delft 3"
    assert ensembles[1].start is not None


def test_keys_beside_a_source_win(folder: Path) -> None:
    """A key beside `source` wins over the same key in the source, for ensembles and tools; the tools of both are offered."""
    write(folder, 'description = "base"\ntimeout = 3\neffect = "pure"', "tool.toml")
    write(
        folder,
        'description = "base"\ntimeout = 1\n[tools.find]\nuse = "shop_of_test.tools:find"\ntimeout = 2\ndescription = "d"',
        "base.toml",
    )
    text = """
        [ensembles.a]
        source = "base.toml"
        description = "mine"
        tools.find.timeout = 7
        [ensembles.a.tools.order]
        use = "shop_of_test.tools:order"
        source = "tool.toml"
        timeout = 4
    """
    (a,) = load_ensembles(write(folder, text), allow=ALLOW, trust=True)
    find, order = a.offered
    assert a.description == "mine"
    assert (find.policy.timeout, find.description) == (7, "d")
    assert (order.policy.timeout, order.description, order.effect) == (4, "base", Effect.PURE)


def test_the_default_name_is_that_of_the_file(folder: Path) -> None:
    """An ensemble without `name` is named after its file."""
    assert Ensemble.from_toml(write(folder, 'use = "shop_of_test.tools:BOTH"'), allow=ALLOW).name == "shop"


DEDUPLICATED = """
    deduplicate = "exact"
    [tools.find]
    use = "shop_of_test.tools:find"
    [tools.order]
    use = "shop_of_test.tools:order"
    deduplicate = { seconds = 5, steps = 2, across_executions = true }
    [tools.named]
    use = "shop_of_test.tools:order"
    deduplicate = { steps = 3 }
    deduplicator = "by place"
    [tools.by_name]
    use = "shop_of_test.tools:order"
    deduplicator = "by place"
"""


def test_a_file_sets_which_calls_are_deduplicated(folder: Path) -> None:
    """`deduplicate` takes the forms of the policy, and `deduplicator` a name of the program, for all tools or for one."""
    by_place = WithinSeconds(3)
    shop = Ensemble.from_toml(write(folder, DEDUPLICATED), allow=ALLOW, deduplicators={"by place": by_place})
    assert {tool.name: tool.policy.deduplicate for tool in shop.offered} == {
        "find": DeduplicatePolicy(float("inf")),
        "order": DeduplicatePolicy(5, 2, across_executions=True),
        "named": DeduplicatePolicy(steps=3, by=by_place),
        "by_name": DeduplicatePolicy(by=by_place),
    }


async def test_the_deduplicator_of_the_program_decides(folder: Path) -> None:
    """A deduplicator of the program is a function of two calls: of two orders with the same beginning, one runs."""
    text = """
        [ensembles.shop]
        use = "shop_of_test.tools:BOTH"
        tools.order.deduplicator = "alike"
    """

    def alike(call: SeenCall, earlier: SeenCall) -> bool:
        return str(call.arguments["what"])[:3] == str(earlier.arguments["what"])[:3]

    ensembles = load_ensembles(write(folder, text), allow=ALLOW, deduplicators={"alike": alike})
    calls = [("order", {"what": what}) for what in ("tea", "teas", "cups")]
    state = await run_calls(ensembles, *calls, interceptors=[Resilience()])
    assert [execution.value for execution in executions(state)] == ["tea", "tea", "cups"]


def test_an_unknown_deduplicator_is_a_mistake(folder: Path) -> None:
    """The closest known name is suggested; a known one has to be a deduplicator."""
    text = BASE + "tools.order.deduplicator = 'by_plac'"
    (mistake,) = mistakes(folder, text, deduplicators={"by_place": WithinSeconds(3)})
    assert mistake == (
        "tools.order.deduplicator",
        2,
        "the program has no deduplicator 'by_plac'; did you mean 'by_place'?",
    )
    ((_, _, message),) = mistakes(folder, text, deduplicators={"by_plac": "no function"})
    assert message == "by is a Deduplicator, a function of two calls, 'principal' or 'tenant', not 'no function'"


def test_disabled_tools_are_not_imported(folder: Path) -> None:
    """A disabled ensemble or tool is not imported, so its module may be missing."""
    text = """
        [ensembles.off]
        enabled = false
        use = "shop_of_test.broken:x"
        [ensembles.on.tools.find]
        use = "shop_of_test.tools:find"
        [ensembles.on.tools.broken]
        use = "shop_of_test.broken:x"
        enabled = false
    """
    off, on = load_ensembles(write(folder, text), allow=ALLOW)
    assert (off.enabled, off.offered, off.failure) == (False, (), "")
    assert [tool.name for tool in on.offered] == ["find"]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ('use = "shop_of_test.broken:x"', "'shop_of_test.broken' could not be imported: OSError: no driver"),
        ('use = "shop_of_test.needs:x"', "'shop_of_test.needs' could not be imported: ModuleNotFoundError"),
        ('tools.a.use = "shop_of_test.broken:x"', "'shop_of_test.broken' could not be imported: OSError: no driver"),
        ('use = "shop_of_test.tools:warehouse"\noptions.city = "burning"', "warehouse failed: OSError: no answer"),
    ],
)
def test_a_failed_import_affects_only_its_ensemble(
    folder: Path, use: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed import is logged and is the `failure` of the ensemble, which offers nothing; the other ensembles work."""
    text = f'[ensembles.good]\nuse = "shop_of_test.tools:order"\n[ensembles.bad]\n{use}'
    with caplog.at_level(logging.ERROR, "agentloop.tools.ensembles"):
        good, bad = load_ensembles(write(folder, text), allow=ALLOW)
    assert [tool.name for tool in good.offered] == ["order"]
    assert bad.offered == ()
    assert message in bad.failure
    assert "the ensemble bad has failed" in caplog.text


# --- import paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "allow", "expected"),
    [
        ("os:system", ALLOW, "the module 'os' is not among those that the program allows"),
        ("os.system", ALLOW, r"did you mean 'os:system'?"),
        ("shop_of_test_secrets:x", ALLOW, "the module 'shop_of_test_secrets' is not among"),
        (
            "shop_of_test_secrets:x",
            [],
            "agentloop.tools.results); if it is to be imported, name it with --allow shop_of_test_secrets, or in a program add it",
        ),
        ("agentloop.tools:tool", [], "the module 'agentloop.tools' is not among"),
        ("agentloop.toolkits_of_mine:x", [], "is not among"),
        ("builtins:eval", ALLOW, "is not among"),
        ("shop_of_test.tools:os.system", ALLOW, "is not an import path"),
        ("shop_of_test.tools:find()", ALLOW, "is not an import path"),
        ("shop_of_test/../os:system", ALLOW, "is not an import path"),
        (".tools:find", ALLOW, "is not an import path"),
        ("shop_of_test.tools:", ALLOW, "is not an import path"),
        ("__import__('os').system('x')", ALLOW, "is not an import path"),
        ("shop_of_test.t\u03bf\u03bfls:find", ALLOW, "is not an import path"),
    ],
)
def test_an_import_path_that_is_not_allowed_is_rejected(
    folder: Path, use: str, allow: list[str], expected: str
) -> None:
    """The path is rejected before anything is imported, including allowed modules before it."""
    text = f'[tools.good]\nuse = "agentloop.toolkits.summarization:condense"\n[tools.x]\nuse = "{use}"'
    before = set(sys.modules)
    ((key, line, message),) = mistakes(folder, text, allow=allow)
    assert (key, line) == ("tools.x.use", 4)
    assert expected in message
    assert not {name for name in set(sys.modules) - before if name.startswith("shop_of_test")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('use = "shop_of_test.tools:os"', "is a module, not an ensemble, a tool or a list of tools"),
        (
            'use = "shop_of_test.tools:check_output"\noptions = { args = "id" }',
            "only a function marked with @ensemble_factory",
        ),
        ('use = "shop_of_test.tools:check_output"', "is a function, not an ensemble"),
        ('use = "shop_of_test.tools:plain"', "tools are made by @tool"),
        ('use = "shop_of_test.tools:MIXED"', "is a list, not an ensemble"),
        ('use = "shop_of_test.tools:LOADED"', "is a bool, not an ensemble"),
        ('use = "shop_of_test.tools:fnd"', "there is no 'fnd' in shop_of_test.tools; did you mean 'find'?"),
        ('use = "shop_of_test.tolls:find"', "there is no module 'shop_of_test.tolls'"),
        ('tools.a.use = "shop_of_test.tools:plain"', "is a function, not a tool"),
        ('tools.a.use = "shop_of_test.tools:READY"', "is a Ensemble, not a tool"),
    ],
)
def test_only_tools_are_taken_from_an_allowed_module(folder: Path, text: str, expected: str) -> None:
    """An object that is not a tool, an ensemble or a factory is neither used nor called, whatever module it comes from."""
    assert any(expected in message for _, _, message in mistakes(folder, text))


@pytest.mark.parametrize("allow", ["shop_of_test", ["shop of test"], [""], [7], ["a..b"]])
def test_the_allow_list_is_a_list_of_modules(folder: Path, allow: Any) -> None:
    """A text instead of a list, or an item that is not a module name, is rejected."""
    with pytest.raises(TypeError, match="allow"):
        Ensemble.from_toml(write(folder, 'use = "shop_of_test.tools:BOTH"'), allow=allow)


# --- sources --------------------------------------------------------------------------------------------------------


def test_a_source_stays_in_the_folder(folder: Path) -> None:
    """No spelling of a source leaves the folder of the file that names it, unless the program allows it."""
    tool = '[tools.find]\nuse = "shop_of_test.tools:find"'
    outside = write(folder, tool, "outside.toml")
    (folder / "in").mkdir()
    (folder / "in" / "link.toml").symlink_to(outside)
    for source in ("../outside.toml", str(outside), "x/../../outside.toml", "link.toml"):
        path = write(folder, f'[ensembles.a]\nsource = "{source}"', "in/list.toml")
        with pytest.raises(InvalidDescriptor, match=r"line 2: ensembles.a.source: .* outside of the folder") as raised:
            load_ensembles(path, allow=ALLOW)
        assert len(raised.value.mistakes) == 1
        assert load_ensembles(path, allow=ALLOW, allow_outside=True)[0].offered


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"shop.toml": 'source = "shop.toml"'}, "in a circle: shop.toml → shop.toml"),
        (
            {"shop.toml": 'source = "b.toml"', "b.toml": 'source = "shop.toml"'},
            "in a circle: shop.toml → b.toml → shop.toml",
        ),
        ({"shop.toml": 'source = "b.toml"', "b.toml": 'source = "b.toml"'}, "in a circle: b.toml → b.toml"),
        ({"shop.toml": 'tools.a.source = "t.toml"', "t.toml": 'source = "t.toml"'}, "in a circle: t.toml → t.toml"),
        ({"shop.toml": 'source = "none.toml"'}, "there is no file"),
        ({"shop.toml": 'source = "more"', "more/x.toml": ""}, "cannot be read"),
    ],
)
def test_an_unreadable_source_is_a_mistake(folder: Path, files: dict[str, str], expected: str) -> None:
    """Cycles and missing files are mistakes at the key that names them."""
    for name, text in files.items():
        write(folder, text, name)
    with pytest.raises(InvalidDescriptor) as raised:
        Ensemble.from_toml(folder / "shop.toml", allow=ALLOW)
    ((_, key, line, message),) = raised.value.mistakes
    assert (key.endswith("source"), line) == (True, 1)
    assert expected in message


def test_a_mistake_in_a_source_is_reported_there(folder: Path) -> None:
    """File, key and line of a mistake in a source are those of the source."""
    base = write(folder, '\n\nuse = "shop_of_test.tools:BOTH"\ntimeout = "soon"', "base.toml")
    with pytest.raises(InvalidDescriptor) as raised:
        Ensemble.from_toml(write(folder, 'source = "base.toml"'), allow=ALLOW)
    assert raised.value.mistakes == ((str(base), "timeout", 4, "it has to be a number, not a text"),)


# --- mistakes -------------------------------------------------------------------------------------------------------

BASE = 'use = "shop_of_test.tools:BOTH"\n'


@pytest.mark.parametrize(
    ("text", "key", "line", "expected"),
    [
        (BASE + "timout = 3", "timout", 2, "there is no such key; did you mean 'timeout'?"),
        (BASE + "retries = 3", "retries", 2, "did you mean 'retry'?"),
        (BASE + "tools.find.enabld = true", "tools.find.enabld", 2, "did you mean 'enabled'?"),
        (BASE + "[tools.fnd]\ntimeout = 1", "tools.fnd", 2, "has no tool 'fnd'; did you mean 'find'?"),
        (BASE + 'enabled = "yes"', "enabled", 2, "it has to be true or false, not a text"),
        (BASE + "timeout = true", "timeout", 2, "it has to be a number, not true or false"),
        (BASE + "timeout = 0", "timeout", 2, "it has to be more than 0, not 0"),
        (BASE + "max_result_bytes = 1.5", "max_result_bytes", 2, "it has to be a whole number, not a number"),
        (BASE + "defaults = 3", "defaults", 2, "it has to be a table, not a whole number"),
        (BASE + "defaults = { limit = 1979-05-27 }", "defaults", 2, "written as text, in quotes"),
        (BASE + "retry = 3", "retry", 2, "it has to be a table, not a whole number"),
        (
            BASE + "retry = { max_attempt = 3 }",
            "retry",
            2,
            "there is no 'max_attempt' in it; did you mean 'max_attempts'?",
        ),
        (BASE + "retry = { max_attempts = 0 }", "retry", 2, "must be >= 1"),
        (BASE + "retry = { on = [1] }", "retry", 2, "on: each item has to be a text, not a whole number"),
        (BASE + "rate_limit = { per = 3 }", "rate_limit", 2, "calls"),
        (BASE + "deduplicate = 'exactly'", "deduplicate", 2, "it has to be a table or 'exact', not 'exactly'"),
        (BASE + "deduplicate = { second = 3 }", "deduplicate", 2, "did you mean 'seconds'?"),
        (BASE + "deduplicate = { steps = -1 }", "deduplicate", 2, "must be >= 0"),
        (BASE + "deduplicate = true", "deduplicate", 2, "it has to be a table, not true or false"),
        (BASE + "deduplicator = 'who'", "deduplicator", 2, "has no deduplicator 'who'"),
        (BASE + "deduplicator = 3", "deduplicator", 2, "it has to be a text, not a whole number"),
        (
            BASE + "\n[tools.find]\neffect = 'pur'",
            "tools.find.effect",
            4,
            "'pur' is not an effect; did you mean 'pure'?",
        ),
        (BASE + "tools = []", "tools", 2, "it has to be a table, not a list"),
        (BASE + "tools.find = 3", "tools.find", 2, "it has to be a table, not a whole number"),
        (BASE + "options = { city = 'x' }", "options", 2, "only a function marked with @ensemble_factory"),
        ("use = 7", "use", 1, "it has to be a text, not a whole number"),
        ("", "", 0, "it has no tools"),
        ("enabled = true\n[tools.find]\ntimeout = 3", "tools.find", 2, "it does not say where the tool comes from"),
        ("[ensembles.a]", "ensembles", 1, "this file lists ensembles; read it with load_ensembles"),
        (BASE + "[defaults]\nlimit = 'x'", "defaults.limit", 3, "'x' is not of type 'integer'"),
        (BASE + "[defaults]\n\nlimits = 1", "defaults.limits", 4, "did you mean 'limit'?"),
        (
            BASE + "[tools.find.defaults]\nwhat = 'a'\nlimit = 'x'",
            "tools.find.defaults.limit",
            4,
            "'x' is not of type 'integer'",
        ),
        (BASE + "[tools.find.defaults]\nlimt = 1", "tools.find.defaults.limt", 3, "did you mean 'limit'?"),
        (
            BASE + "[tools.find]\nschema = { type = 'object', properties = { who = {} } }",
            "tools.find.schema",
            3,
            "has 'who', which the tool has no parameter for",
        ),
        (BASE + "[tools.find]\nschema = { type = 'objekt' }", "tools.find.schema", 3, "not a valid JSON Schema"),
        ('use = "shop_of_test.tools:warehouse"\n[options]\ncity = 3', "options.city", 3, "3 is not of type 'string'"),
        ('use = "shop_of_test.tools:warehouse"\n[options]\nshelves = 3', "options", 2, "'city' is a required property"),
        ('use = "shop_of_test.tools:warehouse"', "use", 1, "'city' is a required property"),
        ('use = "shop_of_test.tools:warehouse"\noptions = {city = "nowhere"}', "options", 2, "there is no warehouse"),
        ("x = = 1", "", 1, "this is not TOML"),
        ("x = 1\nx = 2\ny = 3", "", 2, "this is not TOML"),
    ],
)
def test_mistakes_have_key_and_line(folder: Path, text: str, key: str, line: int, expected: str) -> None:
    """Each mistake has its key, its line and a message, with the closest name where there is one."""
    all_mistakes = mistakes(folder, text)
    assert any(tuple(place) == (key, line) and expected in message for *place, message in all_mistakes), all_mistakes


def test_one_error_has_all_mistakes(folder: Path) -> None:
    """One error has the mistakes of all ensembles and files."""
    write(folder, 'timout = 1\n[tools.a]\nuse = "os:system"', "b.toml")
    text = '[ensembles.a]\nuse = "os:x"\nenabled = 1\n[ensembles.b]\nsource = "b.toml"\n[ensemble.c]\n'
    with pytest.raises(InvalidDescriptor) as raised:
        load_ensembles(write(folder, text))
    assert sorted((Path(file).name, key, line) for file, key, line, _ in raised.value.mistakes) == [
        ("b.toml", "timout", 1),
        ("b.toml", "tools.a.use", 3),
        ("shop.toml", "ensemble", 6),
        ("shop.toml", "ensembles.a.enabled", 3),
        ("shop.toml", "ensembles.a.use", 2),
    ]


@pytest.mark.parametrize("load", [Ensemble.from_toml, load_ensembles])
def test_an_unreadable_file_is_named(folder: Path, load: Any) -> None:
    """The error names a file that is missing, a folder or not text."""
    (folder / "binary.toml").write_bytes(b"\xff\xfe")
    for name, message in (
        ("none.toml", "there is no file"),
        ("shop_of_test", "cannot be read"),
        ("binary.toml", "is not UTF-8"),
    ):
        with pytest.raises(InvalidDescriptor, match=message):
            load(folder / name)


def test_the_file_of_one_ensemble_is_not_a_list(folder: Path) -> None:
    """`load_ensembles` rejects the file of one ensemble and names the method that reads it."""
    with pytest.raises(InvalidDescriptor, match=r"line 1: use: .*is read by Ensemble.from_toml"):
        load_ensembles(write(folder, BASE), allow=ALLOW)


# --- lines ----------------------------------------------------------------------------------------------------------


def test_a_source_that_is_not_toml_is_a_mistake_in_its_own_line(folder: Path) -> None:
    """The place of the mistake is in the file that has it."""
    write(folder, "a = 1\nx = = 1", "b.toml")
    with pytest.raises(InvalidDescriptor) as raised:
        Ensemble.from_toml(write(folder, 'source = "b.toml"'), allow=ALLOW)
    ((file, key, line, message),) = raised.value.mistakes
    assert (file, key, line) == (str(folder / "b.toml"), "", 2)
    assert message.startswith("this is not TOML")
