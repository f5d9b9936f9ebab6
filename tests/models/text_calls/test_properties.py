"""Random calls survive a round trip through every notation; random text never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.models.text_calls import read_calls

from .offered import TOOLS, calls_in, read_in_pieces

MINIMAX = "]<]minimax[>["

TEXTS = st.text(max_size=20)
INTEGERS = st.integers(-(2**70), 2**70)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
ARGUMENTS = st.fixed_dictionaries(
    {"place": TEXTS},
    optional={
        "guests": INTEGERS,
        "budget": NUMBERS,
        "outside": st.booleans(),
        "dishes": st.lists(TEXTS, max_size=3),
        "host": st.fixed_dictionaries({}, optional={"first": TEXTS, "age": INTEGERS}),
    },
)
CALLS: st.SearchStrategy[list[tuple[str, dict[str, Any]]]] = st.lists(
    st.one_of(
        st.tuples(st.just("book_table"), ARGUMENTS),
        st.tuples(st.just("clock"), st.just({})),
        st.tuples(st.just("sea.tides"), st.fixed_dictionaries({"port": TEXTS})),
    ),
    min_size=1,
    max_size=3,
)


def _json_object(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def _indented_object(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"tool": name, "args": arguments}, indent=2, ensure_ascii=False)


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _token_quoted(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_token_quoted(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_token_quoted, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _tagged(call: str, argument: str) -> Callable[[str, dict[str, Any]], str]:
    def render(name: str, arguments: dict[str, Any]) -> str:
        body = "".join(argument.format(key=key, value=_bare(value)) for key, value in arguments.items())
        return call.format(name=name, body=body)

    return render


def _json_after(pattern: str) -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: pattern.replace("NAME", name).replace("JSON", json.dumps(arguments))


def _nested(name: str, arguments: dict[str, Any]) -> str:
    def tag(key: str, value: object) -> str:
        if isinstance(value, dict):
            inner = "".join(tag(name, item) for name, item in value.items())
        elif isinstance(value, list):
            inner = "".join(tag("item", item) for item in value)
        else:
            inner = _bare(value)
        return f"{MINIMAX}<{key}>{inner}{MINIMAX}</{key}>"

    body = "".join(tag(key, value) for key, value in arguments.items())
    return f'{MINIMAX}<invoke name="{name}">{body}{MINIMAX}</invoke>'


def _invoke(prefix: str) -> Callable[[str, dict[str, Any]], str]:
    return _tagged(
        f'<{prefix}invoke name="{{name}}">{{body}}</{prefix}invoke>',
        f'<{prefix}parameter name="{{key}}">{{value}}</{prefix}parameter>',
    )


NOTATIONS: dict[str, tuple[str, Callable[[str, dict[str, Any]], str]]] = {
    "objects": ("{}", _json_object),
    "objects with other keys": ("{}", _indented_object),
    "list of objects": ("[{}]", _json_object),
    "fenced list": ("```json\n[{}]\n```", _json_object),
    "python": ("{}", _python),
    "python list": ("[{}]", _python),
    "fenced python": ("```python\n{}\n```", _python),
    "python tag": ("<|python_tag|>[{}]", _python),
    "hermes": ("{}", lambda name, arguments: f"<tool_call>\n{_json_object(name, arguments)}\n</tool_call>"),
    "tool_calls": ("<tool_calls>[{}]</tool_calls>", _json_object),
    "mistral list": ("[TOOL_CALLS][{}]", _json_object),
    "mistral": ("{}", _json_after("[TOOL_CALLS]NAME[ARGS]JSON")),
    "deepseek": (
        "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
        _json_after("<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nJSON\n```<｜tool▁call▁end｜>"),
    ),
    "kimi": ("{}", _json_after("<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>JSON<|tool_call_end|>")),
    "harmony": ("{}", _json_after(" to=functions.NAME<|channel|>commentary json<|message|>JSON<|call|>")),
    "react": ("{}", _json_after("Action: NAME\nAction Input: JSON\n")),
    "gemma": ("{}", lambda name, arguments: f"<|tool_call>call:{name}{_token_quoted(arguments)}<tool_call|>"),
    "functionary": ("{}", _json_after("<function=NAME>JSON</function>")),
    "qwen": (
        "{}",
        _tagged(
            "<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>",
            "<parameter={key}>\n{value}\n</parameter>\n",
        ),
    ),
    "glm": (
        "{}",
        _tagged("<tool_call>{name}\n{body}</tool_call>", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
    ),
    "invoke": ("{}", _invoke("")),
    "dsml": ("<｜DSML｜function_calls>{}</｜DSML｜function_calls>", _invoke("｜DSML｜")),
    "nested tags": ("{}", _nested),
}
SEPARATORS = {"list of objects", "fenced list", "python list", "python tag", "tool_calls", "mistral list"}
UNTYPED = {"qwen", "glm", "invoke", "dsml", "nested tags", "gemma"}


def _without_marks(value: Any) -> Any:
    """Remove from strings what these notations cannot express: their own marks, and half of a line end before theirs."""
    if isinstance(value, str):
        return value.replace("<", "").replace("]", "").rstrip("\r")
    if isinstance(value, dict):
        return {key: _without_marks(item) for key, item in value.items()}
    return [_without_marks(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("notation", NOTATIONS)
@given(data=st.data())
def test_random_calls_survive_a_round_trip(notation: str, data: st.DataObject) -> None:
    """Calls in a notation are parsed exactly, whole and in pieces."""
    envelope, render = NOTATIONS[notation]
    calls = data.draw(CALLS)
    if notation in UNTYPED:
        calls = [(name, _without_marks(arguments)) for name, arguments in calls]
    separator = ", " if notation in SEPARATORS else "\n"
    text = envelope.format(separator.join(render(name, arguments) for name, arguments in calls))
    result = read_calls(text, TOOLS)
    assert [(call.name, call.arguments) for call in result.calls] == calls
    assert result.text == ""
    assert read_in_pieces(text, data.draw(st.integers(1, 30))) == result


@given(ARGUMENTS, st.data())
def test_missing_closing_tags_change_no_argument(arguments: dict[str, Any], data: st.DataObject) -> None:
    """Arguments on lines of their own are read alike with and without their closing tags."""
    written = {key: _bare(_without_marks(value)).strip("\r\n") for key, value in arguments.items()}
    are_closed = data.draw(st.lists(st.booleans(), min_size=len(written), max_size=len(written)))
    body, bare = "", ""
    for (key, value), is_closed in zip(written.items(), are_closed, strict=True):
        bare += f"<parameter={key}>\n{value}\n" + "</parameter>\n" * is_closed
        body += f"<parameter={key}>\n{value}\n</parameter>\n"
    texts = [f"<tool_call>\n<function=book_table>\n{text}</function>\n</tool_call>" for text in (body, bare)]
    whole, damaged = (read_calls(text, TOOLS) for text in texts)
    assert [call.arguments for call in damaged.calls] == [call.arguments for call in whole.calls]
    assert [not call.repairs for call in damaged.calls] == [all(are_closed)]
    assert read_in_pieces(texts[1], data.draw(st.integers(1, 30))) == damaged


TAGS = st.sampled_from(
    [
        "\n", "</function>", "<function name='x'>", "<function=", "<functions>", "</functions>", "<parameter=other>",
        "<parameter=", "<tool_call>", "</tool_call>", "words", " ",
    ]
)  # fmt: skip


@given(st.lists(TAGS, max_size=20).map("".join), st.integers(1, 30))
def test_a_closed_value_may_contain_tags(value: str, size: int) -> None:
    """A value is read as it is written, or its call is rejected; it is never another one, and it runs only if its tags are in pairs."""
    text = f"<function=sea.tides>\n<parameter=port>\n{value}\n</parameter>\n</function>"
    result = read_calls(text, TOOLS)
    calls = [(call.name, call.arguments, call.repairs) for call in result.calls]
    assert calls in ([], [("sea.tides", {"port": value}, ())])
    own: list[str] = re.findall(r"</?function(?=[ =>])|<parameter=|</?tool_call>", value)
    if not own:
        assert (calls, result.unread) == ([("sea.tides", {"port": value}, ())], "")
    elif "<parameter=" in own or sum(tag.startswith("</") for tag in own) * 2 != len(own):
        assert not calls or result.unread
    assert read_in_pieces(text, size) == result


DAMAGE = st.one_of(
    st.sampled_from(["\t", "\x00", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\ufeff", "\r", "\n", " "]),
    st.sampled_from(["NaN", "1e999", "01", "1.", ".5", "None", "\\u12", "\\x41", "\ud800", "//c\n", '"""', "\uff11"]),
    st.sampled_from([*"\"'{}[](),:=\\/#+-_0"]),
)


@pytest.mark.parametrize("notation", NOTATIONS)
@given(data=st.data())
def test_damaged_calls_have_json_as_arguments(notation: str, data: st.DataObject) -> None:
    """Whatever is inserted into a call: if it is still read as one, its arguments are a JSON object."""
    envelope, render = NOTATIONS[notation]
    text = envelope.format(render("book_table", {"place": "A b", "guests": 4, "dishes": ["x"], "host": {"age": 3}}))
    for damage in data.draw(st.lists(DAMAGE, min_size=1, max_size=3)):
        position = data.draw(st.integers(0, len(text)))
        text = text[:position] + damage + text[position + data.draw(st.integers(0, 1)) :]
    for call in read_calls(text, TOOLS).calls:
        assert isinstance(json.loads(call.arguments_json), dict)


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=book_table>", "<parameter=place>", "</parameter>", "</function>",
        "\n<parameter=guests>\n", "\n</function>\n",
        "[TOOL_CALLS]", "[ARGS]", "book_table", "clock", "sea.tides", "(", ")", "[", "]", "{", "}", '"', "'", "\\", ",",
        ":", "=", '"name"', '"arguments"', "place", "```", "json", "\n", " ", "<think>", "</think>", "1", "-", "true",
        "None", "Action:", "Action Input:", "<|python_tag|>", " to=functions.", "<|message|>", "<|call|>", "#", "<", "|>",
        "<|channel|>analysis", "<|start|>assistant", "<|constrain|>",
        '<invoke name="', "</invoke>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_call", "{}", "()",
        "<|tool_call>call:", '<|"|>', MINIMAX, "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", ">>>", "functools", '{"name": "clock"}',
        "clock()", "\ud800", "é", "'''", '"""', "//", "<![CDATA[", "]]>", '<|open|>call tool="', "<|sep|>", "</p>", "words ",
    ]
)  # fmt: skip


@given(st.lists(st.one_of(FRAGMENTS, st.text(max_size=3)), max_size=40).map("".join), st.integers(1, 9))
def test_no_text_raises(text: str, size: int) -> None:
    """Fragments of notations in any order raise nothing, and the result is the same in pieces and valid JSON."""
    result = read_calls(text, TOOLS)
    assert read_in_pieces(text, size) == result
    for call in result.calls:
        assert isinstance(json.loads(call.arguments_json), dict)
        assert 0 <= call.start < call.end <= len(text)


@given(st.text())
def test_text_without_openings_is_unchanged(text: str) -> None:
    """Text in which no call can begin is returned unchanged, including white space."""
    plain = "".join(letter for letter in text if letter not in "{[(<]`>◁:")
    result = read_calls(plain, TOOLS)
    assert (result.text, result.calls) == (plain, ())


@given(st.text(max_size=30))
def test_parsing_is_repeatable(text: str) -> None:
    """No state is shared between two texts."""
    assert calls_in(text) == calls_in(text)
