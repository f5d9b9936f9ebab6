"""Small texts in each notation, and the calls that stand in them."""

from __future__ import annotations

import pytest

from agentloop.text_calls import DEFAULT_FORMATS, StreamReader, read_calls

from .offered import TOOLS, Calls, calls_of, in_pieces

TWO: Calls = [("book_table", {"place": "Zum Hirsch", "guests": 4}), ("clock", {})]
ONE: Calls = TWO[:1]
JSON = '{"name": "book_table", "arguments": {"place": "Zum Hirsch", "guests": 4}}'
CLOCK = '{"name": "clock", "arguments": {}}'
ARGUMENTS = '{"place": "Zum Hirsch", "guests": 4}'
PYTHON = "book_table(place='Zum Hirsch', guests=4)"
MINIMAX = "]<]minimax[>["

SAMPLES: list[tuple[str, str, Calls]] = [
    ("json", JSON, ONE),
    ("json", f"{JSON}\n{CLOCK}", TWO),
    ("json", f'{{"tool": "book_table", "args": {ARGUMENTS}}}', ONE),
    ("json", f'{{"function": "book_table", "parameters": {ARGUMENTS}}}', ONE),
    ("json", f'{{"action": "book_table", "action_input": {ARGUMENTS}}}', ONE),
    ("json", f'{{"id": "1", "type": "function", "function": {JSON}}}', ONE),
    ("json", f'{{"tool_calls": [{JSON}, {{"type": "function", "function": {CLOCK}}}]}}', TWO),
    ("json", f'{{"book_table": {ARGUMENTS}}}', ONE),
    ("json", '{"name": "book_table", "arguments": "{\\"place\\": \\"Zum Hirsch\\", \\"guests\\": 4}"}', ONE),
    ("json", "{'name': 'book_table', 'params': {'place': 'Zum Hirsch', 'guests': 4,},}", ONE),
    ("json", '{"name": "clock"}', TWO[1:]),
    ("list", f"[{JSON}, {CLOCK}]", TWO),
    ("list", f"[{PYTHON}, clock()]", TWO),
    ("list", f'["{PYTHON}", "clock()"]', TWO),
    ("list", f"[\n  `{PYTHON}`,\n  `clock()`\n]", TWO),
    ("python", PYTHON, ONE),
    ("python", f"{PYTHON}\nclock()", TWO),
    ("python", "book_table('Zum Hirsch', guests=4)", ONE),
    ("python", "book\\_table(place='Zum Hirsch', guests=4)", ONE),
    ("python", "functions.book_table(place='Zum Hirsch', guests=4)", ONE),
    ("python", "sea.tides(port='Emden')", [("sea.tides", {"port": "Emden"})]),
    ("python", "sea_tides(port='Emden')", [("sea_tides", {"port": "Emden"})]),
    ("fenced", f"```json\n{JSON}\n```", ONE),
    ("fenced", f"```python\n{PYTHON}\nclock()\n```", TWO),
    ("fenced", f"```\n[{JSON},\n {CLOCK}]\n```", TWO),
    ("tagged", f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{CLOCK}\n</tool_call>", TWO),
    ("tagged", f"<tool_call>\n```json\n{JSON}\n```\n</tool_call>", ONE),
    ("tagged", f"<tool_calls>[{JSON}, {CLOCK}]</tool_calls>", TWO),
    ("tagged", f"<function_call> {JSON} <function_call> {CLOCK}", TWO),
    ("tagged", f"<TOOLCALL>[{JSON}]</TOOLCALL>", ONE),
    ("tagged", f"<|tool_call|>[{JSON}, {CLOCK}]", TWO),
    ("tagged", f"<|python_tag|>{JSON}", ONE),
    ("tagged", f"<|python_tag|>[{PYTHON}, clock()]", TWO),
    ("tagged", f"<|tool_call_start|>[{PYTHON}]<|tool_call_end|>", ONE),
    ("tagged", f"[TOOL_CALLS][{JSON}, {CLOCK}]</s>", TWO),
    ("tagged", f"functools[{JSON}, {CLOCK}]", TWO),
    ("tagged", f'<|START_ACTION|>[{{"tool_name": "book_table", "parameters": {ARGUMENTS}}}]<|END_ACTION|>', ONE),
    ("tagged", f'<|tools_prefix|>[{{"book_table": {ARGUMENTS}}}, {{"clock": {{}}}}]<|tools_suffix|>', TWO),
    ("tagged", f'<|action_start|><|plugin|>{{"name": "book_table", "parameters": {ARGUMENTS}}}<|action_end|>', ONE),
    ("tagged", f'Action: {{"tool": "book_table", "tool_input": {ARGUMENTS}}}', ONE),
    ("mistral", f"[TOOL_CALLS]book_table[ARGS]{ARGUMENTS}[TOOL_CALLS]clock[CALL_ID]a1[ARGS]{{}}", TWO),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>book_table\n```json\n"
        + ARGUMENTS
        + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE,
    ),
    ("deepseek", f"<｜tool▁call▁begin｜>book_table<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>", ONE),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.book_table:0<|tool_call_argument_begin|>"
        + ARGUMENTS
        + "<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        + "<|tool_calls_section_end|>",
        TWO,
    ),
    ("harmony", f" to=functions.book_table<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>", ONE),
    (
        "harmony",
        "<|channel|>commentary to=functions.book_table <|constrain|>json<|message|>" + ARGUMENTS + "<|call|>",
        ONE,
    ),
    ("solar", f"<|tool_call:begin|>c1<|tool_call:name|>book_table<|tool_call:args|>{ARGUMENTS}<|tool_call:end|>", ONE),
    ("gemma", '<|tool_call>call:book_table{guests:4,place:<|"|>Zum Hirsch<|"|>}<tool_call|>', ONE),
    (
        "gemma",
        "<start_function_call>call:book_table{guests:4,place:<escape>Zum Hirsch<escape>}<end_function_call>",
        ONE,
    ),
    ("functionary", f">>>book_table\n{ARGUMENTS}", ONE),
    ("name and arguments", f"book_table\n{ARGUMENTS}", ONE),
    ("react", f"Action: book_table\nAction Input: {ARGUMENTS}", ONE),
    ("react", "Action: sea.tides\nAction Input: Emden\n", [("sea.tides", {"port": "Emden"})]),
    ("function", f"<function=book_table>{ARGUMENTS}</function>", ONE),
    (
        "function",
        (
            "<tool_call>\n<function=book_table>\n<parameter=place>\nZum Hirsch\n</parameter>\n<parameter=guests>\n4\n"
            "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>"
        ),
        TWO,
    ),
    (
        "function",
        '<function name="book_table"><param name="place"><![CDATA[Zum Hirsch]]></param><param name="guests">4</param></function>',
        ONE,
    ),
    (
        "invoke",
        (
            '<minimax:tool_call><invoke name="book_table"><parameter name="place">Zum Hirsch</parameter>'
            '<parameter name="guests">4</parameter></invoke>\n<invoke name="clock">\n</invoke></minimax:tool_call>'
        ),
        TWO,
    ),
    (
        "invoke",
        (
            '<｜DSML｜function_calls><｜DSML｜invoke name="book_table"><｜DSML｜parameter name="place" string="true">'
            'Zum Hirsch</｜DSML｜parameter><｜DSML｜parameter name="guests" string="false">4</｜DSML｜parameter>'
            "</｜DSML｜invoke></｜DSML｜function_calls>"
        ),
        ONE,
    ),
    (
        "arg_key",
        (
            "<tool_call>book_table\n<arg_key>place</arg_key>\n<arg_value>Zum Hirsch</arg_value>\n<arg_key>guests</arg_key>\n"
            "<arg_value>4</arg_value>\n</tool_call><tool_call>clock</tool_call>"
        ),
        TWO,
    ),
    (
        "open call",
        (
            '<|open|>tools<|sep|><|open|>call tool="book_table" index="1"<|sep|><|open|>argument key="place" type="string"'
            '<|sep|>Zum Hirsch<|close|>argument<|sep|><|open|>argument key="guests" type="integer"<|sep|>4<|close|>argument'
            "<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
        ),
        ONE,
    ),
    (
        "nested tags",
        (
            f'{MINIMAX}<tool_call>\n{MINIMAX}<invoke name="book_table">{MINIMAX}<place>Zum Hirsch{MINIMAX}</place>'
            f"{MINIMAX}<guests>4{MINIMAX}</guests>{MINIMAX}</invoke>\n{MINIMAX}</tool_call>"
        ),
        ONE,
    ),
]


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_calls_are_read_and_nothing_else_is_left(name: str, text: str, expected: Calls) -> None:
    """A text that holds nothing but calls gives these calls, in this notation, and no text."""
    reading = read_calls(text, TOOLS)
    assert calls_of(reading) == expected
    assert {call.format for call in reading.calls} == {name}
    assert (reading.text, reading.reasoning, reading.rejected) == ("", "", ())


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_each_notation_is_usable_by_itself(name: str, text: str, expected: Calls) -> None:
    """A reader with only one notation reads what is written in it, and only that."""
    alone = [text_format for text_format in DEFAULT_FORMATS if text_format.name == name]
    others = [text_format for text_format in DEFAULT_FORMATS if text_format.name != name]
    assert calls_of(read_calls(text, TOOLS, formats=alone)) == expected
    assert all(call.format != name for call in read_calls(text, TOOLS, formats=others).calls)
    assert read_calls(text, TOOLS, formats=()).text == text


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_text_around_calls_is_kept(name: str, text: str, expected: Calls) -> None:
    """What stands before and behind the calls is the text, and the spans lie between the two."""
    before, behind = "I book that for you.", "That was all."
    reading = read_calls(f"{before}\n\n{text}\n\n{behind}", TOOLS)
    assert calls_of(reading) == expected
    assert reading.text == f"{before}\n\n{behind}"
    for call in reading.calls:
        assert len(before) < call.start < call.end <= len(before) + 2 + len(text)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_pieces_do_not_matter(name: str, text: str, expected: Calls, size: int) -> None:
    """A text reads the same in pieces, with text around it or without."""
    for whole in (text, f"I book that.\n{text}\nDone."):
        assert in_pieces(whole, size) == read_calls(whole, TOOLS)


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_a_call_is_known_with_its_last_character(name: str, text: str, expected: Calls) -> None:
    """Nothing that stands behind a call has to arrive for it to be known, and nothing of it was shown."""
    reader = StreamReader(TOOLS)
    end = max(call.end for call in read_calls(text, TOOLS).calls)
    line_break = "\n" if text[end:] == "\n" else ""  # what ends with its line needs the end of the line
    pieces = [reader.feed(letter) for letter in text[:end] + line_break]
    assert [(call.name, call.arguments) for piece in pieces for call in piece.calls] == expected
    assert "".join(piece.text for piece in pieces) == ""


@pytest.mark.parametrize(
    "text",
    [
        "The function book_table takes a place.",
        "You could use `book_table`, or book_table(...), or book_table(place=here).",
        "book_table(place=input())",
        "book_table(place='a' + 'b')",
        "rebook_table(place='Zum Hirsch')",
        '{"result": [1, 2, {"name": "book_table", "arguments": {}}]}',
        '{"name": "book_table", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}',
        '{"name": "Ada", "parameters": {"age": 3}}',
        "[1](https://example.org) and [()] and []",
        "print(cook(1, 2)) and {braces}",
        "if (a < b) { return [x, y]; }",
        "def clock():",
        "Action: I wait.",
        "<tool_call> is what the model writes.",
        "```python\nx = [1, 2]\n```",
        "book_table({'place': 'Zum Hirsch'}, 4, 5, True, [], {}, 'too many')",
    ],
)
def test_prose_and_data_are_no_calls(text: str) -> None:
    """What only mentions a tool, holds data or describes a tool gives no call and stays as it is."""
    reading = read_calls(text, TOOLS)
    assert (reading.calls, reading.text) == ((), text)
