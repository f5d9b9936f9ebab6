"""Checks by jsonschema-rs accept only what jsonschema accepts, and never take anything down."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ToolDefinitionError
from agentloop.tools import SchemaValidator, quick_checks
from agentloop.tools.quick_checks import QuickCheck, is_read_alike
from agentloop.values import Bounds

pytest.importorskip("jsonschema_rs", reason="needs the extra `fast`")

ENDLESS = Bounds(schema_steps=float("inf"))
KEYWORDS = frozenset({"type", "properties", "items", "pattern", "contains", "format", "$ref", "$dynamicRef"})


def quick_check_of(schema: Any) -> QuickCheck | None:
    """Return the check of a schema, which must not be one of only simple types."""
    compiled = SchemaValidator(schema)._compiled
    assert compiled.flat is None
    return compiled.quick_check


def agrees(schema: Any, data: Any) -> bool:
    """Return whether the check accepts data; if so, jsonschema accepts it too, and in no more steps than were allowed for it."""
    try:
        validator = SchemaValidator(schema)
    except ToolDefinitionError:
        return False
    check = validator._compiled.quick_check
    if check is None or not check.accepts(data, ENDLESS):
        return False
    misfits = validator.misfits(data, ENDLESS, 0.0)
    assert misfits is not None
    assert not misfits.places, (schema, data, misfits)
    # With so many steps and fewer, it is left to jsonschema.
    assert not check.accepts(data, Bounds(schema_steps=max(misfits.steps - 0.5, 0.01))), (schema, data)
    return True


NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.0, 0.1, 1e-300, 1e300, 2**53, 2**53 - 1, -(2**63), 2**64, 10**30]),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
)
TEXTS = st.sampled_from(["", "a", "b", "ab", "\U0001f600", "é", "e\u0301", "\x00", "\ud800", "1"])
NAMES = st.sampled_from(["a", "b", "c", "é", "", "$ref"])
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
COUNTS = st.sampled_from([0, 1, 2, 1.0])
JSON_NUMBERS = st.sampled_from([-1, 0, 1, 2, 0.5, 1.0, 1e300, 2**53, 2**64])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas of up to four keywords."""
    branches = st.lists(inner, min_size=1, max_size=3)
    either = st.one_of(st.booleans(), inner)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(st.one_of(JSON_NUMBERS, TEXTS.filter(str.isprintable), st.booleans(), st.none()), max_size=4),
        "const": st.one_of(JSON_NUMBERS, st.booleans(), st.just([1])),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), JSON_NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 3, 0.1, 2.0]),
        **dict.fromkeys(sorted(quick_checks._LIMITS), COUNTS),
        "uniqueItems": st.booleans(),
        "required": st.lists(NAMES, unique=True, max_size=2),
        **dict.fromkeys(
            ("properties", "dependentSchemas", "patternProperties"), st.dictionaries(NAMES, inner, max_size=3)
        ),
        **dict.fromkeys(("additionalProperties", "items", "unevaluatedItems", "unevaluatedProperties"), either),
        **dict.fromkeys(("prefixItems", "allOf", "anyOf", "oneOf"), branches),
        **dict.fromkeys(("not", "if", "then", "else", "propertyNames", "contains"), inner),
        "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y", "#/$defs/x/not", "#"]),
        "$dynamicRef": st.just("#"),
        "format": st.sampled_from(["date", "regex"]),
        "pattern": st.sampled_from(["a", r"^\d$", r"\w", "^a?$"]),
        **dict.fromkeys(
            ("nullable", "minContains", "dependencies", "id", "definitions", "contentEncoding"), st.just("a")
        ),
    }
    names = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen}))


SMALL = schemas(st.just({"type": "integer"}))
SCHEMAS = st.recursive(SMALL, schemas, max_leaves=4)


@pytest.mark.generated
@given(SCHEMAS, SMALL, SMALL, st.lists(VALUES, min_size=1, max_size=5))
def test_what_is_accepted_is_what_jsonschema_accepts(schema: Any, x: Any, y: Any, values: list[Any]) -> None:
    """Whatever the schema and the value, a check that accepts agrees with jsonschema, which takes no more steps than were known."""
    for value in values:
        agrees({**schema, "$defs": {"x": x, "y": y}}, value)


def test_published_tests_and_recorded_arguments_have_the_same_verdicts(corpus: Path) -> None:
    """The official suite, and real schemas with real and damaged arguments, have the verdicts of jsonschema."""
    suite = corpus / "executor" / "json_schema_suite.jsonl"
    cases = corpus / "executor" / "schema_cases.jsonl"
    if not suite.exists() or not cases.exists():
        pytest.skip("the corpus has no schema cases")
    accepted = 0
    for line in suite.read_text("utf-8").splitlines():
        row = json.loads(line)
        accepted += sum(agrees(row["schema"], test["data"]) for test in row["tests"])
    for line in cases.read_text("utf-8").splitlines():
        row = json.loads(line)
        accepted += sum(
            agrees(row["schema"], item) for item in (row["gold"], *[d["arguments"] for d in row["damaged"]])
        )
    assert accepted > 500


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "a"}}},
        {"patternProperties": {"a": True}},
        {"multipleOf": 0.1},
        {"multipleOf": 2.0},
        {"minimum": 2**53},
        {"maximum": 1e300},
        {"enum": [[1]]},
        {"const": {"a": 1}},
        {"const": 2**64},
        {"contains": {"type": "integer"}},
        {"unevaluatedProperties": False},
        {"unevaluatedItems": False},
        {"dependentSchemas": {"a": True}},
        {"$dynamicRef": "#/$defs/a", "$defs": {"a": {}}},
        {"$defs": {"a": {"$anchor": "b"}}, "properties": {"a": {"$ref": "#b"}}},
        {"properties": {"a": {"$id": "https://a.example/", "type": "integer"}}},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "minimum": 1},
        {"properties": {"a": {"$ref": "#"}}},
        {"if": {"type": "string"}, "then": {"$ref": "#"}},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"$id": "https://a.example/", "$defs": {"b": {}}}}, "$ref": "#/$defs/a/$defs/b"},
        {"anyOf": [False, True]},
        {"enum": list(range(3_000))},
        {"anyOf": [{"minimum": number} for number in range(500)]},
    ],
)
def test_a_schema_about_which_the_libraries_may_differ_is_left_to_jsonschema(schema: Any) -> None:
    """It has no check by jsonschema-rs at all."""
    assert quick_check_of(schema) is None


def test_references_without_end_in_size_are_left_to_jsonschema() -> None:
    """References that double forty times are compiled in no time, since nothing is compiled."""
    doubled: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    assert quick_check_of({"$defs": {**doubled, "d40": {"minimum": 1}}, "$ref": "#/$defs/d0"}) is None


def nested(levels: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()


@pytest.mark.parametrize(
    "data",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        2**53,
        -(2**53),
        1e300,
        10**400,
        "\ud800",
        {"\udfff": 1},
        {1: 1},
        (1,),
        Text("a"),
        {1, 2},
        b"a",
        object(),
        nested(100),
        nested(50_000),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [value]}], ids=["alone", "inside"])
def test_a_value_that_the_libraries_may_read_differently_is_left_to_jsonschema(
    data: Any, wrap: Callable[[Any], Any]
) -> None:
    """Numbers, texts, classes and depths that one of them reads in another way never reach jsonschema-rs."""
    assert not is_read_alike(wrap(data), float("inf"))


def test_the_number_of_elements_is_bounded() -> None:
    """Names, and 32 characters, count as elements, and long integers as seven."""
    for data, elements in (([1, 2, 3], 4), ({"a": 1}, 3), ("a" * 64, 3), ([1_000], 8)):
        assert is_read_alike(data, elements + 0.1)
        assert not is_read_alike(data, elements - 0.1)


@pytest.fixture
def requests() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server, and the paths that were requested."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema", "$id"])
def test_nothing_is_fetched(requests: tuple[str, list[str]], tmp_path: Path, keyword: str) -> None:
    """Neither an address nor a file that a schema names is read; jsonschema-rs itself would, and has no way to it."""
    address, seen = requests
    (tmp_path / "any.json").write_text("{}")
    file = (tmp_path / "any.json").as_uri()
    for target in (f"{address}/any.json", file):
        for schema in ({keyword: target}, {"properties": {"a": {keyword: target}}, "minimum": 1}):
            agrees(schema, {"a": 1})
            quick_checks.quick_check(schema, KEYWORDS)
        # The border itself, as if a reference had come as far as that.
        assert quick_checks._result_of(quick_checks._compile, {"$ref": target}) is None
    assert seen == []


def test_a_failure_of_the_library_is_left_to_jsonschema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an error nor a panic, which is no `Exception`, ends a check; an interrupt does."""
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    validator = SchemaValidator({"properties": {"a": {"minimum": 7}}})
    for error in (panic, ValueError, RecursionError):

        def fail(_: Any, error: Any = error) -> bool:
            raise error("broken")

        broken = QuickCheck(1, 0.0, 1.0, fail)
        monkeypatch.setattr(type(validator._compiled), "quick_check", broken)
        assert validator.problems({"a": 8}) == []
        assert validator.problems({"a": 6}) == [("$.a", "6 is less than the minimum of 7")]
    monkeypatch.setattr(type(validator._compiled), "quick_check", QuickCheck(1, 0.0, 1.0, _interrupt))
    with pytest.raises(KeyboardInterrupt):
        validator.accepts({"a": 8})


def _interrupt(_: Any) -> bool:
    raise KeyboardInterrupt


def test_a_bound_of_a_check_counts_as_without_the_library() -> None:
    """What jsonschema would not finish within the bounds is invalid, although jsonschema-rs could check it."""
    validator = SchemaValidator({"items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}})
    data = ["a"] * 10_000
    assert not validator.accepts(data)
    assert "Bounds.schema_steps" in validator.problems(data)[-1][1]
    assert validator.accepts(data, Bounds(schema_steps=1_000_000))
    definitions = {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"minimum": 1}}
    referring = SchemaValidator({"$defs": definitions, "items": {"$ref": "#/$defs/a"}})
    assert referring.accepts([[2]])
    assert not referring.accepts([[2]], Bounds(schema_depth=1))


def test_the_library_is_loaded_with_the_first_check_that_needs_it() -> None:
    """A simple schema, which is checked without any library, loads none; without the extra, jsonschema checks alone."""
    program = """
import sys
if {absent}:
    sys.modules["jsonschema_rs"] = None
from agentloop.tools import SchemaValidator
SchemaValidator({{"type": "object", "properties": {{"a": {{"type": "string"}}}}}}).validate({{"a": "b"}})
assert sys.modules.get("jsonschema_rs") is None
validator = SchemaValidator({{"properties": {{"a": {{"enum": ["b"]}}}}}})
assert validator.accepts({{"a": "b"}}) and not validator.accepts({{"a": "c"}})
print(sys.modules.get("jsonschema_rs") is None)
"""
    for absent in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", program.format(absent=absent)], check=True, capture_output=True, text=True
        )
        assert done.stdout.strip() == str(absent)
