"""Arguments of another form than the schema requires: coerced if exactly one reading fits, else rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Tool, ToolContext, tool
from agentloop.contracts.tool import CanPrepareArguments
from agentloop.errors import InvalidArguments, MalformedArguments, ToolDefinitionError
from agentloop.models import get_mode
from agentloop.testing import ExecutorBench
from agentloop.tools import SchemaValidator
from agentloop.tools.coercion import LIST_FROM_VALUE, NUMBER_FROM_TEXT
from agentloop.tools.fitting import fit_call
from agentloop.tools.left_out import DEFAULT_FILLED, NULL_LEFT_OUT
from agentloop.values import Bounds, ToolCall, ToolSpec
from agentloop.values.tool_calls import JSON_FROM_TEXT, RAW_CONTROLS, arguments_object

DOCS = Path(__file__).parents[2] / "docs" / "tools.md"
ROW = re.compile(r"\| `(?P<schema>\{.*?\})` \| `(?P<written>.*?)` \| (?P<result>.*?) \|")


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table in the documentation."""
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        match = ROW.fullmatch(line)
        if match is not None:
            yield match["schema"], match["written"], match["result"]


def spec_of(schema: Any, **more: Any) -> ToolSpec:
    """Return a tool with one parameter `x`."""
    return ToolSpec("do", "Do.", {"type": "object", "properties": {"x": schema}, **more})


def call_of(value: Any) -> ToolCall:
    return ToolCall("1", "do", json.dumps({"x": value}))


def fit(schema: Any, value: Any, **more: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the value as it runs, and the repairs."""
    call, arguments = fit_call(call_of(value), spec_of(schema, **more))
    assert json.loads(call.arguments_json) == arguments
    return arguments["x"], call.repairs


def test_the_table_is_whole() -> None:
    """The table of the documentation is found and has accepted, kept and rejected rows."""
    results = [result for _, _, result in rows()]
    assert len(results) > 50
    assert sum(result.startswith("rejected") for result in results) > 20


@pytest.mark.parametrize(("schema", "written", "result"), list(rows()))
def test_each_row_of_the_table_is_so(schema: str, written: str, result: str) -> None:
    """A value is coerced, kept or rejected as the documentation says, and a coerced one satisfies the schema."""
    value = json.loads(written)
    if result.startswith("rejected: "):
        with pytest.raises(InvalidArguments, match=re.escape("at $.x")):
            fit(json.loads(schema), value)
        return
    expected = json.loads(result.split("`")[1])
    actual, repairs = fit(json.loads(schema), value)
    assert json.dumps(actual) == json.dumps(expected)
    assert bool(repairs) is ("as it is" not in result)
    assert SchemaValidator(json.loads(schema)).accepts(actual)


def test_arguments_that_satisfy_the_schema_are_not_touched() -> None:
    """The call is the same object, in the model's spelling."""
    call = ToolCall("1", "do", '{ "x" : 3.0 }')
    assert fit_call(call, spec_of({"type": "integer"}))[0] is call


def test_references_are_followed_for_every_equal_value() -> None:
    """Each of many equal texts behind one reference is coerced, although Python may hold them as one object."""
    schema = {"type": "array", "items": {"$ref": "#/$defs/n"}}
    value, repairs = fit(schema, ["3"] * 500, **{"$defs": {"n": {"type": "integer"}}})
    assert (value, repairs) == ([3] * 500, (NUMBER_FROM_TEXT,))


def test_a_recursive_schema_is_followed() -> None:
    """Values are coerced at any depth, and inside of JSON that was a text."""
    node = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    inner = json.dumps({"n": "3"})
    value, repairs = fit(
        {"$ref": "#/$defs/node"}, {"n": "1", "next": {"n": 2, "next": inner}}, **{"$defs": {"node": node}}
    )
    assert value == {"n": 1, "next": {"n": 2, "next": {"n": 3}}}
    assert repairs == (NUMBER_FROM_TEXT, JSON_FROM_TEXT)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("mantissa", ["0", "1", "-2.5"])
@pytest.mark.parametrize("exponent", ["e-99999999999999999999", "e99999999999999999999", "E+" + "9" * 900])
def test_a_number_with_a_huge_exponent_is_rejected_like_any_other(kind: str, mantissa: str, exponent: str) -> None:
    """An exponent that no number type can hold is an error about the argument, not one of the coercion."""
    with pytest.raises(InvalidArguments, match=r"at \$\.x: "):
        fit({"type": kind}, mantissa + exponent)


@pytest.mark.parametrize("separator", ["\t", "、", "，", "；", "،", "؛", "\u2028", "\v", "｜"])  # noqa: RUF001
def test_a_text_that_may_enumerate_items_is_no_single_item(separator: str) -> None:
    """Lists are separated by other characters than a comma, too."""
    with pytest.raises(InvalidArguments):
        fit({"type": "array", "items": {"type": "string"}}, f"apple{separator}pear")


def test_many_choices_take_bounded_steps() -> None:
    """Each of many values with two readings doubles the ways, and the search stays within the steps of one check."""
    several = {"anyOf": [{"type": "integer", "maximum": 2}, {"type": "array", "items": {"type": "integer"}}]}
    schema = {"type": "object", "additionalProperties": several}
    assert fit(schema, {"a": "3", "b": "4"})[0] == {"a": [3], "b": [4]}
    with pytest.raises(InvalidArguments, match="is not valid under any"):
        fit(schema, {str(number): "3" for number in range(30)})


def test_many_values_below_any_of_are_read() -> None:
    """A long list of optional numbers takes no more steps than a check has."""
    schema = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}
    assert fit(schema, ["1", None] * 300)[0] == [1, None] * 300


def test_a_branch_counts_once_its_condition_has_the_right_types() -> None:
    """What is required below `else` for the text of a number is not required of the number."""
    condition = {
        "if": {"properties": {"count": {"const": 1}}},
        "else": {"properties": {"names": {"type": "array"}}},
    }
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, **condition}
    assert fit(schema, {"count": "1", "names": "Emma"})[0] == {"count": 1, "names": "Emma"}
    assert fit(schema, {"count": "2", "names": "Emma"})[0] == {"count": 2, "names": ["Emma"]}


def test_names_of_properties_are_not_coerced() -> None:
    """An error about the name of a property does not change the object."""
    with pytest.raises(InvalidArguments):
        fit({"type": "object", "propertyNames": {"enum": [1]}}, {"1": 1})


SCREEN = {
    "type": "object",
    "properties": {
        "url": {"type": "string"},
        "kind": {"type": "string", "enum": ["png", "jpeg"], "default": "png"},
        "quality": {"type": "integer"},
        "clip": {
            "type": "object",
            "properties": {"x": {"type": "number", "default": 0}, "unit": {"$ref": "#/$defs/Unit"}},
            "required": ["x", "unit"],
        },
        "marks": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Mark"}, {"type": "null"}]}},
    },
    "required": ["url", "kind"],
    "additionalProperties": False,
    "$defs": {
        "Unit": {"type": "string", "default": "px"},
        "Mark": {
            "type": "object",
            "properties": {"color": {"type": "string", "default": "red"}},
            "required": ["color"],
        },
    },
}
KIND = {"kind": "png"}


@pytest.mark.parametrize(
    ("written", "becomes", "repairs"),
    [
        ({"url": "u"}, {"url": "u", **KIND}, [DEFAULT_FILLED]),
        ({"url": "u", "kind": "jpeg"}, {"url": "u", "kind": "jpeg"}, []),
        ({"url": "u", "quality": "3"}, {"url": "u", "quality": 3, **KIND}, [DEFAULT_FILLED, NUMBER_FROM_TEXT]),
        (
            {"url": "u", "clip": {}, **KIND},
            {"url": "u", "clip": {"x": 0, "unit": "px"}, **KIND},
            [DEFAULT_FILLED],
        ),
        (
            {"url": "u", "marks": [{}, None], **KIND},
            {"url": "u", "marks": [{"color": "red"}, None], **KIND},
            [DEFAULT_FILLED],
        ),
    ],
)
def test_a_required_value_that_is_left_out_has_its_default(written: Any, becomes: Any, repairs: list[str]) -> None:
    """As in the servers whose generators of schemas require what has a default; also inside of objects."""
    call, arguments = fit_call(ToolCall("1", "do", json.dumps(written)), ToolSpec("do", "Do.", SCREEN))
    assert (arguments, [*call.repairs]) == (becomes, repairs)
    assert SchemaValidator(SCREEN).accepts(arguments)


def test_null_is_a_value_that_is_left_out_in_the_schema_of_another_program() -> None:
    """Where the schema takes null, it stays; a function of the program itself says what null means for it."""
    written = {"url": "u", "kind": None, "quality": None, "clip": {"x": None}, "marks": [None]}
    call = ToolCall("1", "do", json.dumps(written))
    fitted, arguments = fit_call(call, ToolSpec("do", "Do.", SCREEN, definition="d"))
    assert arguments == {"url": "u", "kind": "png", "clip": {"x": 0, "unit": "px"}, "marks": [None]}
    assert set(fitted.repairs) == {DEFAULT_FILLED, NULL_LEFT_OUT}
    assert fit_call(fitted, ToolSpec("do", "Do.", SCREEN, definition="d"), strict=True)[1] == arguments
    for spec in (ToolSpec("do", "Do.", SCREEN), ToolSpec("do", "Do.", SCREEN, definition="d", strict=True)):
        with pytest.raises(InvalidArguments):
            fit_call(call, spec)


@pytest.mark.parametrize(
    ("schema", "is_left_out"),
    [
        ({"type": "integer"}, True),
        ({"enum": ["a", "b"]}, True),
        ({"const": 1}, True),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, True),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": "integer"}]}, True),
        ({"$ref": "#/$defs/Word"}, True),
        ({"type": ["integer", "null"]}, False),
        ({"enum": ["a", None]}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, False),
        ({}, False),
        (True, False),
        ({"const": None}, False),
    ],
)
def test_null_that_a_schema_takes_is_not_left_out(schema: Any, *, is_left_out: bool) -> None:
    """Whatever says so: a type, an enumeration, a branch or a reference."""
    parameters = {
        "type": "object",
        "properties": {"x": schema, "n": {"type": "integer"}},
        "$defs": {"Word": {"type": "string"}},
    }
    spec = ToolSpec("do", "Do.", parameters, definition="d")
    _, arguments = fit_call(ToolCall("1", "do", '{"x": null, "n": null}'), spec)
    assert arguments == ({} if is_left_out else {"x": None})


def test_a_default_that_the_schema_does_not_take_is_not_filled_in() -> None:
    """The model is told what it left out."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "default": "many"}}, "required": ["n"]}
    with pytest.raises(InvalidArguments, match="'n' is a required property"):
        fit_call(ToolCall("1", "do", "{}"), ToolSpec("do", "Do.", schema))


def test_a_schema_that_refers_to_itself_is_completed_in_bounded_steps() -> None:
    """Also one whose references lead nowhere else."""
    loop = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a"}, "n": {"type": "integer", "default": 1}},
        "required": ["n"],
        "$defs": {"a": {**loop, "allOf": [{"$ref": "#/$defs/b"}]}, "b": {"type": "string", "anyOf": [loop, True]}},
    }
    spec = ToolSpec("do", "Do.", schema, definition="d")
    for written in ("{}", '{"x": null}'):
        assert fit_call(ToolCall("1", "do", written), spec)[1] == {"n": 1}


def test_arguments_in_a_json_string_are_an_object() -> None:
    """A model that encodes its arguments twice is understood; a text of anything else is malformed."""
    spec = spec_of({"type": "integer"})
    call, arguments = fit_call(ToolCall("1", "do", json.dumps('{"x": "3"}')), spec)
    assert arguments == {"x": 3}
    assert call.repairs == (JSON_FROM_TEXT, NUMBER_FROM_TEXT)
    for text in ('"[3]"', '"three"', '"{\\"x\\": 1, \\"x\\": 2}"', "[3]"):
        with pytest.raises(MalformedArguments):
            fit_call(ToolCall("1", "do", text), spec)
    with pytest.raises(MalformedArguments):
        fit_call(ToolCall("1", "do", json.dumps('{"x": 3}')), spec, strict=True)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"x": "a\nb\tc\x00"}', "a\nb\tc\x00"),
        ('{\n\t"x": "a\r\n\\"b\\\\"\n}', 'a\r\n"b\\'),
        (json.dumps('{"x": "a\nb"}'), "a\nb"),
    ],
)
def test_missing_escapes_of_control_characters_are_added(written: str, read: str) -> None:
    """A model that writes a line break into a text is understood: its JSON has one reading."""
    call, arguments = fit_call(ToolCall("1", "do", written), spec_of({"type": "string"}))
    assert arguments == {"x": read}
    assert call.repairs in {(RAW_CONTROLS,), (JSON_FROM_TEXT,)}
    assert json.loads(call.arguments_json) == arguments
    with pytest.raises(MalformedArguments):
        fit_call(ToolCall("1", "do", written), spec_of({"type": "string"}), strict=True)


@pytest.mark.parametrize(
    "written", ['{"x": "a\\\nb"}', '{"x": "a\nb}', '{"x": "a\nb", "x": "c"}', '["a\nb"]', '{"x": a\x01}']
)
def test_other_text_with_control_characters_is_malformed(written: str) -> None:
    """A backslash before a line break, a text without an end, and a key twice have no reading."""
    with pytest.raises(MalformedArguments):
        fit_call(ToolCall("1", "do", written), spec_of({"type": "string"}))


_texts = st.text('a{:,\n\t\r\x00\x1f"\\', max_size=6)


@given(st.dictionaries(_texts, _texts, max_size=4))
def test_missing_escapes_change_no_text(texts: dict[str, str]) -> None:
    """Whatever the texts contain: with only quotation marks and backslashes escaped, they are read as they are."""
    quoted = [[text.replace("\\", "\\\\").replace('"', '\\"') for text in pair] for pair in texts.items()]
    written = "{" + ", ".join(f'"{name}": "{value}"' for name, value in quoted) + "}"
    arguments = fit_call(ToolCall("1", "do", written), ToolSpec("do", "", {"type": "object"}))[1]
    assert arguments == texts
    assert arguments_object(ToolCall("1", "do", written)) == texts


def test_the_error_is_about_what_the_model_wrote() -> None:
    """Where not everything can be coerced, the problems are those of the original arguments, and nothing is coerced."""
    spec = ToolSpec("do", "Do.", {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}})
    with pytest.raises(InvalidArguments, match=r"at \$\.x: '3' is not .*; at \$\.y: 'no' is not"):
        fit_call(ToolCall("1", "do", '{"x": "3", "y": "no"}'), spec)


@pytest.mark.parametrize(
    "value",
    ["[" * 5_000 + "]" * 5_000, '{"a":' * 1_000 + "1" + "}" * 1_000, "9" * 100_000, ["1"] * 90_000, "\\" * 100_000],
    ids=["deep list", "deep object", "long number", "many values", "backslashes"],
)
def test_hostile_values_are_rejected_in_bounded_steps(value: Any) -> None:
    """What is too deep, too long or too much is rejected like any other invalid value."""
    with pytest.raises(InvalidArguments):
        fit({"type": "array", "items": {"type": "integer"}}, value)


def test_coercion_has_the_steps_of_one_check() -> None:
    """A coercion that takes more steps than the bound is a rejection."""
    spec, call = spec_of({"type": "array", "items": {"type": "integer"}}), call_of(["1"] * 100)
    assert fit_call(call, spec)[1] == {"x": [1] * 100}
    with pytest.raises(InvalidArguments):
        fit_call(call, spec, Bounds(schema_steps=200))


def test_errors_deep_inside_of_a_value_take_more_steps_to_find() -> None:
    """Each error is handled once by each level around it, and that work is bounded, too."""
    node = {"type": "object", "properties": {"in": {"$ref": "#/$defs/node"}, "v": {"items": {"type": "integer"}}}}
    value: Any = {"v": ["1"] * 1_000}
    assert fit({"$ref": "#/$defs/node"}, value, **{"$defs": {"node": node}})[0] == {"v": [1] * 1_000}
    for _ in range(60):
        value = {"in": value}
    with pytest.raises(InvalidArguments):
        fit({"$ref": "#/$defs/node"}, value, **{"$defs": {"node": node}})


DECIMAL = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^-?[0-9.]+([eE][+-]?[0-9]+)?$"}]}


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=25))
def test_a_decimal_has_all_digits_that_were_written(number: Decimal) -> None:
    """No digit of a number is lost on the way to a parameter of type Decimal, whatever else is coerced."""

    @tool(effect="pure", strict=True)
    def pay(amount: Decimal, lines: list[Decimal | None]) -> str:
        """Pay."""
        return ""

    call = ToolCall("1", "pay", f'{{"amount": {number:f}, "lines": [null, {number:f}, 0.5]}}')
    fitted, arguments = fit_call(call, pay.spec)
    assert pay.prepare(arguments) == {"amount": number, "lines": [None, number, Decimal("0.5")]}
    assert fit_call(fitted, pay.spec) == (fitted, arguments)


@given(st.integers(-(10**40), 10**40), st.integers(0, 3))
def test_an_integer_has_all_digits_that_were_written(number: int, zeros: int) -> None:
    """An integer with a fraction of zeros or an exponent is that integer, and the nearest float where fractions are accepted."""
    text = f"{number}.0" if not zeros else f"{number}e{zeros}"
    call = ToolCall("1", "do", f'{{"x": {text}, "y": {text}}}')
    spec = ToolSpec("do", "Do.", {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number"}}})
    fitted, arguments = fit_call(call, spec)
    assert (arguments["x"], arguments["y"]) == (number * 10**zeros, float(text))
    assert fit_call(fitted, spec) == (fitted, arguments)


def test_only_a_text_for_numbers_has_more_digits_than_a_float() -> None:
    """Where a schema takes no text, or any, a number stays one; values that were coerced around it, too."""
    long = "0.12345678901234567890"
    for schema in ({"type": "number"}, {"type": ["number", "string"]}, {}, {"type": "array", "items": {}}):
        written = f"[{long}]" if "items" in schema else long
        call = ToolCall("1", "do", f'{{"x": {written}}}')
        assert fit_call(call, spec_of(schema))[0] is call
    call = ToolCall("1", "do", f'{{"x": "[\\"1\\", {long}]", "y": {long}, "z": {long}}}')
    spec = ToolSpec(
        "do",
        "Do.",
        {"type": "object", "properties": {"x": {"type": "array"}, "y": DECIMAL, "z": {"type": "number"}}},
    )
    assert fit_call(call, spec)[1] == {"x": ["1", float(long)], "y": long, "z": float(long)}


def test_digits_are_kept_in_bounded_steps() -> None:
    """Many long numbers take no more steps than one check of the arguments."""
    spec = spec_of({"type": "array", "items": DECIMAL})
    numbers = ", ".join([f"0.1234567890123456789{number}" for number in range(5_000)])
    call = ToolCall("1", "do", f'{{"x": [{numbers}]}}')
    assert fit_call(call, spec, Bounds(schema_steps=100_000))[0] is call


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
SCHEMAS: list[Any] = [
    {"type": "integer"},
    {"type": ["number", "boolean"]},
    {"type": "array", "items": {"type": ["integer", "null"]}},
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "boolean"}}},
    {"enum": [1, True, None, [1]]},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"anyOf": [{"type": "array", "items": {"type": ["integer", "boolean"]}}, {"type": "object"}, {"enum": [1, "1"]}]},
    {"oneOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "boolean"}, {"const": None}]},
]


@given(value=JSON | JSON.map(json.dumps), schema=st.sampled_from(SCHEMAS))
def test_what_is_coerced_is_valid_and_stays_as_it_is(value: Any, schema: Any) -> None:
    """Coercion ends in valid arguments, or in the rejection that there is without it; it is deterministic and idempotent."""
    spec = spec_of(schema)
    try:
        call, arguments = fit_call(call_of(value), spec)
    except InvalidArguments as error:
        with pytest.raises(InvalidArguments, match=re.escape(str(error))):
            fit_call(call_of(value), spec, strict=True)
        return
    assert SchemaValidator(schema).accepts(arguments["x"])
    assert fit_call(call_of(value), spec) == (call, arguments)
    assert fit_call(call, spec, strict=True) == (call, arguments)


# --- strictness and defaults ------------------------------------------------------------------------------------------


@tool(effect="pure", strict=True)
def exactly(x: int) -> int:
    """Return the number."""
    return x


@tool(effect="pure")
def kindly(x: int, lines: list[int] | None = None, factor: int = 2) -> int:
    """Return the number."""
    return x * factor


def test_a_strict_tool_coerces_nothing() -> None:
    """Neither the executor nor a mode coerces the arguments of a strict tool."""
    call = ToolCall("1", "exactly", '{"x": "3"}')
    with pytest.raises(InvalidArguments):
        fit_call(call, exactly.spec)
    for name in ("native", "structured", "validated", "parsed"):
        assert not get_mode(name).validate(call, [exactly.spec]).is_valid


@pytest.mark.parametrize("name", ["native", "structured", "validated", "parsed"])
def test_modes_agree_with_the_executor(name: str) -> None:
    """A call that can be coerced is valid; the arguments are coerced and have the defaults."""
    validation = get_mode(name).validate(ToolCall("1", "kindly", '{"x": "3"}'), [kindly.spec])
    assert validation.is_valid
    assert validation.arguments == {"x": 3, "lines": None, "factor": 2}


class Recorder(Tool):
    """A tool that takes any arguments."""

    name = "record"
    description = "Record."
    parameters = {  # noqa: RUF012  # of the contract
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "unit": {"type": "string", "default": "m"},
            "tags": {"type": "array", "default": []},
        },
    }

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Return the arguments."""
        return arguments


async def test_a_tool_without_a_signature_gets_the_defaults_of_its_schema() -> None:
    """The defaults reach the tool, and are not in the call."""
    assert not isinstance(Recorder(), CanPrepareArguments)
    (done,) = (await ExecutorBench([Recorder()]).run(ToolCall("1", "record", '{"x": "3"}'))).executions
    assert done.value == {"x": 3, "unit": "m", "tags": ()}
    assert done.call.arguments == {"x": 3}


async def test_defaults_that_do_not_satisfy_the_schema_are_left_out() -> None:
    """A schema whose defaults it does not accept itself gives the arguments of the call."""

    class Odd(Recorder):
        parameters = {"type": "object", "properties": {"x": {"type": "integer", "default": "none"}}}  # noqa: RUF012

    (done,) = (await ExecutorBench([Odd()]).run(ToolCall("1", "record", "{}"))).executions
    assert done.value == {}


def test_a_single_value_of_a_list_is_a_repair() -> None:
    """The repairs say what was done, each kind once."""
    assert fit({"type": "array", "items": {"type": "integer"}}, "3")[1] == (LIST_FROM_VALUE, NUMBER_FROM_TEXT)


# --- functions that take any arguments --------------------------------------------------------------------------------


@tool(
    effect="pure",
    schema={
        "type": "object",
        "properties": {"x": {"type": "integer"}, "unit": {"type": "string", "default": "m"}, "by": {"type": "integer"}},
        "required": ["x"],
    },
)
def anything(context: ToolContext, by: int = 1, **arguments: Any) -> dict[str, Any]:
    """Return the arguments."""
    return {"by": by, "key": context.idempotency_key, **arguments}


async def test_a_function_with_a_schema_takes_any_arguments() -> None:
    """The arguments of the schema arrive by name, with its defaults; named parameters and injection are as usual."""
    call = ToolCall("1", "anything", '{"x": "3", "more": [1]}')
    (done,) = (await ExecutorBench([anything]).run(call)).executions
    assert done.value == {"by": 1, "key": "run/1/0", "x": 3, "unit": "m", "more": (1,)}


async def test_what_is_injected_is_not_accepted_among_any_arguments() -> None:
    """A model cannot fill an injected parameter by a loose schema, and a schema cannot offer it."""
    (done,) = (await ExecutorBench([anything]).run(ToolCall("1", "anything", '{"x": 1, "context": {}}'))).executions
    assert done.error_message == "'context' is injected by the program: leave it out"
    with pytest.raises(ToolDefinitionError, match=r"\['context'\]"):
        tool(schema={"type": "object", "properties": {"context": {}}})(anything.function)
