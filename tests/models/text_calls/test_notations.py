"""Short texts in each notation, and the calls in them."""

from __future__ import annotations

import pytest

from agentloop.models.text_calls import DEFAULT_FORMATS, StreamReader, read_calls

from .offered import TOOLS, Calls, calls_of, read_in_pieces

TWO_CALLS: Calls = [("book_table", {"place": "Zum Hirsch", "guests": 4}), ("clock", {})]
ONE_CALL: Calls = TWO_CALLS[:1]
JSON = '{"name": "book_table", "arguments": {"place": "Zum Hirsch", "guests": 4}}'
CLOCK = '{"name": "clock", "arguments": {}}'
ARGUMENTS = '{"place": "Zum Hirsch", "guests": 4}'
PYTHON = "book_table(place='Zum Hirsch', guests=4)"
MINIMAX = "]<]minimax[>["

SAMPLES: list[tuple[str, str, Calls]] = [
    ("json", JSON, ONE_CALL),
    ("json", f"{JSON}\n{CLOCK}", TWO_CALLS),
    ("json", f"<tools>\n{JSON}\n</tools>\n<tools>\n{CLOCK}\n</tools>", TWO_CALLS),
    ("json", f'{{"tool": "book_table", "args": {ARGUMENTS}}}', ONE_CALL),
    ("json", f'{{"function": "book_table", "parameters": {ARGUMENTS}}}', ONE_CALL),
    ("json", f'{{"action": "book_table", "action_input": {ARGUMENTS}}}', ONE_CALL),
    ("json", f'{{"toolName": "book_table", "Arguments": {ARGUMENTS}}}', ONE_CALL),
    ("json", f'{{"functionCall": {{"name": "book_table", "args": {ARGUMENTS}}}}}', ONE_CALL),
    ("json", f'{{"toolUse": {{"toolUseId": "1", "name": "book_table", "input": {ARGUMENTS}}}}}', ONE_CALL),
    ("json", '{"action": "sea.tides", "action_input": "Emden"}', [("sea.tides", {"port": "Emden"})]),
    ("json", f'{{"id": "1", "type": "function", "function": {JSON}}}', ONE_CALL),
    ("json", f'{{"tool_call": {JSON}}}', ONE_CALL),
    ("json", f'{{"tool_calls": [{{"name": "book_table", "args": {ARGUMENTS}}}, {CLOCK}]}}', TWO_CALLS),
    ("json", f'{{"tool_calls": [{JSON}, {{"type": "function", "function": {CLOCK}}}]}}', TWO_CALLS),
    ("json", f'{{"book_table": {ARGUMENTS}}}', ONE_CALL),
    ("json", '{"name": "book_table", "arguments": "{\\"place\\": \\"Zum Hirsch\\", \\"guests\\": 4}"}', ONE_CALL),
    ("json", "{'name': 'book_table', 'params': {'place': 'Zum Hirsch', 'guests': 4,},}", ONE_CALL),
    ("json", '{"name": "clock"}', TWO_CALLS[1:]),
    ("list", f"[{JSON}, {CLOCK}]", TWO_CALLS),
    ("list", f"[{PYTHON}, clock()]", TWO_CALLS),
    ("list", f'["{PYTHON}", "clock()"]', TWO_CALLS),
    ("list", f"[\n  `{PYTHON}`,\n  `clock()`\n]", TWO_CALLS),
    ("python", PYTHON, ONE_CALL),
    ("python", f"{PYTHON}\nclock()", TWO_CALLS),
    ("python", "book_table('Zum Hirsch', guests=4)", ONE_CALL),
    ("python", "book\\_table(place='Zum Hirsch', guests=4)", ONE_CALL),
    ("python", "functions.book_table(place='Zum Hirsch', guests=4)", ONE_CALL),
    ("python", "book_table.call(place='Zum Hirsch', guests=4)", ONE_CALL),
    ("python", "sea.tides.call(port='Emden')", [("sea.tides", {"port": "Emden"})]),
    ("python", "clock.clock()", TWO_CALLS[1:]),
    ("python", "sea.tides(port='Emden')", [("sea.tides", {"port": "Emden"})]),
    ("python", "sea_tides(port='Emden')", [("sea_tides", {"port": "Emden"})]),
    ("fenced", f"```json\n{JSON}\n```", ONE_CALL),
    ("fenced", f"```python\n{PYTHON}\nclock()\n```", TWO_CALLS),
    ("fenced", f"```\n[{JSON},\n {CLOCK}]\n```", TWO_CALLS),
    ("fenced", f"```tool_code\n{PYTHON}\n```", ONE_CALL),
    ("fenced", f"```tool_code\nprint(default_api.{PYTHON})\nprint( default_api.clock() )\n```", TWO_CALLS),
    ("tagged", f"<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{CLOCK}\n</tool_call>", TWO_CALLS),
    ("tagged", f"<tool_call>\n```json\n{JSON}\n```\n</tool_call>", ONE_CALL),
    ("tagged", '<tool_call>{"name": "book_table", "place": "Zum Hirsch", "guests": 4}</tool_call>', ONE_CALL),
    ("tagged", f"```xml\n<tool_call>\n{JSON}\n</tool_call>\n```", ONE_CALL),
    ("tagged", f"<dots_function_call>{JSON}</dots_function_call>", ONE_CALL),
    ("tagged", f"<ifm|tool_calls><ifm|tool_call>{JSON}</ifm|tool_call></ifm|tool_calls>", ONE_CALL),
    ("tagged", f"<tool_calls>[{JSON}, {CLOCK}]</tool_calls>", TWO_CALLS),
    ("tagged", f"<function_call> {JSON} <function_call> {CLOCK}", TWO_CALLS),
    ("tagged", f"<TOOLCALL>[{JSON}]</TOOLCALL>", ONE_CALL),
    ("tagged", f"<|tool_call|>[{JSON}, {CLOCK}]", TWO_CALLS),
    ("tagged", f"<|python_tag|>{JSON}", ONE_CALL),
    ("tagged", f"<|python_tag|>[{PYTHON}, clock()]", TWO_CALLS),
    ("tagged", "<|python_tag|>book_table.call(place='Zum Hirsch', guests=4)<|eom_id|>", ONE_CALL),
    ("tagged", f"<|tool_call_start|>[{PYTHON}]<|tool_call_end|>", ONE_CALL),
    ("tagged", f"[TOOL_CALLS][{JSON}, {CLOCK}]</s>", TWO_CALLS),
    ("tagged", f"functools[{JSON}, {CLOCK}]", TWO_CALLS),
    ("tagged", f'<|START_ACTION|>[{{"tool_name": "book_table", "parameters": {ARGUMENTS}}}]<|END_ACTION|>', ONE_CALL),
    ("tagged", f'<|tools_prefix|>[{{"book_table": {ARGUMENTS}}}, {{"clock": {{}}}}]<|tools_suffix|>', TWO_CALLS),
    (
        "tagged",
        f'<|action_start|><|plugin|>{{"name": "book_table", "parameters": {ARGUMENTS}}}<|action_end|>',
        ONE_CALL,
    ),
    (
        "tagged",
        f'<|action_start|> <|plugin|>\n{{"name": "book_table", "parameters": {ARGUMENTS}}}\n<|action_end|>',
        ONE_CALL,
    ),
    ("tagged", f'Action: {{"tool": "book_table", "tool_input": {ARGUMENTS}}}', ONE_CALL),
    ("mistral", f"[TOOL_CALLS]book_table[ARGS]{ARGUMENTS}[TOOL_CALLS]clock[CALL_ID]a1[ARGS]{{}}", TWO_CALLS),
    ("mistral", f"[TOOL_CALLS] book_table [CALL_ID] a1 [ARGS] {ARGUMENTS}", ONE_CALL),
    (
        "deepseek",
        f"<｜tool▁calls｜>function<｜tool▁sep｜>book_table\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE_CALL,
    ),
    ("deepseek", "<｜tool▁call▁begin｜>clock<｜tool▁sep｜><｜tool▁call▁end｜>", TWO_CALLS[1:]),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>book_table\n```json\n"
        + ARGUMENTS
        + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ONE_CALL,
    ),
    ("deepseek", f"<｜tool▁call▁begin｜>book_table<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>", ONE_CALL),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.book_table:0<|tool_call_argument_begin|>"
        + ARGUMENTS
        + "<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        + "<|tool_calls_section_end|>",
        TWO_CALLS,
    ),
    ("kimi", "<|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|><|tool_call_end|>", TWO_CALLS[1:]),
    (
        "plamo",
        (
            "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>book_table"
            f"<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>{ARGUMENTS}"
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>"
        ),
        ONE_CALL,
    ),
    ("qwen", f"✿FUNCTION✿: book_table\n✿ARGS✿: {ARGUMENTS}\n✿FUNCTION✿: clock\n✿ARGS✿: {{}}\n✿RESULT✿", TWO_CALLS),
    ("harmony", f" to=functions.book_table<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>", ONE_CALL),
    (
        "harmony",
        "<|channel|>commentary to=functions.book_table <|constrain|>json<|message|>" + ARGUMENTS + "<|call|>",
        ONE_CALL,
    ),
    ("harmony", f"<|channel|>analysis to=functions.book_table code<|message|>{ARGUMENTS}<|call|>", ONE_CALL),
    (
        "harmony",
        (
            f"<|start|>assistant<|channel|>analysis to=functions.book_table code<|message|>\n{ARGUMENTS}<|call|>"
            "<|start|>assistant to=functions.clock<|channel|>commentary<|constrain|>json<|message|>{}<|call|>"
        ),
        TWO_CALLS,
    ),
    (
        "harmony",
        f" to=functions.book_table<|channel|>analysis <|constrain|>tool-call_2<|message|>{ARGUMENTS}<|end|>",
        ONE_CALL,
    ),
    ("harmony", "<|channel|>commentary to=functions.clock <|constrain|>json<|message|><|call|>", TWO_CALLS[1:]),
    ("harmony", f"<|channel|>commentary to=book_table <|constrain|>json<|message|>{ARGUMENTS}<|call|>", ONE_CALL),
    ("harmony", f"<|channel|>comment to=functions.book_table json<|message|>{ARGUMENTS}<|call|>", ONE_CALL),
    ("harmony", f"to=book_table<|channel|>analysis code<|message|>{ARGUMENTS}<|call|>", ONE_CALL),
    ("harmony", f"assistantcommentary to=functions.book_table json{ARGUMENTS}", ONE_CALL),
    ("harmony", f"assistant to=functions.book_tablecommentary json{ARGUMENTS}", ONE_CALL),
    (
        "solar",
        f"<|tool_call:begin|>c1<|tool_call:name|>book_table<|tool_call:args|>{ARGUMENTS}<|tool_call:end|>",
        ONE_CALL,
    ),
    ("gemma", '<|tool_call>call:book_table{guests:4,place:<|"|>Zum Hirsch<|"|>}<tool_call|>', ONE_CALL),
    (
        "gemma",
        "<start_function_call>call:book_table{guests:4,place:<escape>Zum Hirsch<escape>}<end_function_call>",
        ONE_CALL,
    ),
    ("gemma", '<|tool_call>:call:book_table{guests:4,place:<|"|>Zum Hirsch<|"|>}<turn|>', ONE_CALL),
    ("gemma", 'call:book_table{guests:4,place:<|"|>Zum Hirsch<|"|>}', ONE_CALL),
    ("gemma", '<call>book_table{guests:4,place:<|"|>Zum Hirsch<|"|>}', ONE_CALL),
    ("functionary", f">>>book_table\n{ARGUMENTS}", ONE_CALL),
    ("name and arguments", f"book_table\n{ARGUMENTS}", ONE_CALL),
    ("react", f"Action: book_table\nAction Input: {ARGUMENTS}", ONE_CALL),
    ("react", f"**Action 1:** book_table\n**Action Input 1:** {ARGUMENTS}", ONE_CALL),
    ("react", f"**Action**: `book_table`\n**Action Input**: {ARGUMENTS}", ONE_CALL),
    ("react", f'Action 2: "book_table"\nAction 2 Input: ** {ARGUMENTS}', ONE_CALL),
    ("react", f"Action: **book_table**\nAction input:\n```json\n{ARGUMENTS}\n```", ONE_CALL),
    (
        "react",
        "Action: sea.tides\nAction Input:\n```text\nEmden\nNorden\n```",
        [("sea.tides", {"port": "Emden\nNorden"})],
    ),
    ("react", "Action: sea.tides\nAction Input: Emden\n", [("sea.tides", {"port": "Emden"})]),
    ("function", f"<function=book_table>{ARGUMENTS}</function>", ONE_CALL),
    ("function", f"<function=book_table{ARGUMENTS}></function>", ONE_CALL),
    ("function", "<tool_call><function=clock/></tool_call>", TWO_CALLS[1:]),
    (
        "function",
        '<function=book_table>\n<parameter name="place">\nZum Hirsch\n</parameter>\n<parameter name="guests">\n4\n</parameter>\n</function>',
        ONE_CALL,
    ),
    ("invoke", '<function_calls>\n<invoke name="clock" />\n</function_calls>', TWO_CALLS[1:]),
    ("function", f"<function=book_table {ARGUMENTS}</function>", ONE_CALL),
    ("function", f"<function=book_table[{ARGUMENTS}]></function><function=clock({{}})</function>", TWO_CALLS),
    (
        "function",
        (
            "<tool_call>\n<function=book_table>\n<parameter=place>\nZum Hirsch\n</parameter>\n<parameter=guests>\n4\n"
            "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>"
        ),
        TWO_CALLS,
    ),
    (
        "function",
        '<function name="book_table"><param name="place"><![CDATA[Zum Hirsch]]></param><param name="guests">4</param></function>',
        ONE_CALL,
    ),
    (
        "invoke",
        (
            '<minimax:tool_call><invoke name="book_table"><parameter name="place">Zum Hirsch</parameter>'
            '<parameter name="guests">4</parameter></invoke>\n<invoke name="clock">\n</invoke></minimax:tool_call>'
        ),
        TWO_CALLS,
    ),
    (
        "invoke",
        (
            '<｜DSML｜function_calls><｜DSML｜invoke name="book_table"><｜DSML｜parameter name="place" string="true">'
            'Zum Hirsch</｜DSML｜parameter><｜DSML｜parameter name="guests" string="false">4</｜DSML｜parameter>'
            "</｜DSML｜invoke></｜DSML｜function_calls>"
        ),
        ONE_CALL,
    ),
    (
        "invoke",
        (
            "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="book_table">\n<steptml:parameter name="place">Zum Hirsch</steptml:parameter>\n'
            '<steptml:parameter name="guests">4</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="clock"></steptml:invoke><｜tool_call_end｜>\n'
            "<｜tool_calls_end｜>"
        ),
        TWO_CALLS,
    ),
    (
        "invoke",
        (
            '<steptml:toolcall>\n<steptml:invoke name="book_table">\n'
            '<steptml:parameter name="place">Zum Hirsch</steptml:parameter>\n'
            '<steptml:parameter name="guests">4</steptml:parameter>\n</steptml:invoke>\n</steptml:toolcall>'
        ),
        ONE_CALL,
    ),
    (
        "arg_key",
        (
            "<tool_call>book_table\n<arg_key>place</arg_key>\n<arg_value>Zum Hirsch</arg_value>\n<arg_key>guests</arg_key>\n"
            "<arg_value>4</arg_value>\n</tool_call><tool_call>clock</tool_call>"
        ),
        TWO_CALLS,
    ),
    (
        "arg_key",
        (
            "<tool_calls>\n<tool_call>book_table<tool_sep>\n<arg_key>place</arg_key>\n<arg_value>Zum Hirsch</arg_value>\n"
            "<arg_key>guests</arg_key>\n<arg_value>4</arg_value>\n</tool_call>\n<tool_call>clock<tool_sep>\n</tool_call>\n"
            "</tool_calls>"
        ),
        TWO_CALLS,
    ),
    (
        "arg_key",
        (
            "<tool_calls:opensource><tool_call:opensource>book_table<arg_key:opensource>place</arg_key:opensource>"
            "<arg_value:opensource>Zum Hirsch</arg_value:opensource><arg_key:opensource>guests</arg_key:opensource>"
            "<arg_value:opensource>4</arg_value:opensource></tool_call:opensource><tool_call:opensource>clock"
            "</tool_call:opensource></tool_calls:opensource>"
        ),
        TWO_CALLS,
    ),
    (
        "arg_key",
        (
            "<ifm|tool_calls><ifm|tool_call>book_table<ifm|arg_key>place</ifm|arg_key><ifm|arg_value>Zum Hirsch"
            "</ifm|arg_value><ifm|arg_key>guests</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type><ifm|arg_value>4"
            "</ifm|arg_value></ifm|tool_call>\n<ifm|tool_call>clock</ifm|tool_call></ifm|tool_calls>"
        ),
        TWO_CALLS,
    ),
    (
        "tool_arg",
        (
            "<|tool_call:start|>book_table\n<|tool_arg:start|>place<|tool_arg:value|>Zum Hirsch<|tool_arg:end|>\n"
            "<|tool_arg:start|>guests<|tool_arg:value|>4<|tool_arg:end|>\n<|tool_call:end|>\n"
            "<|tool_call:start|>clock\n<|tool_call:end|>"
        ),
        TWO_CALLS,
    ),
    *(
        (
            "invoke",
            (
                f'<{prefix}tool_calls>\n<{prefix}invoke name="book_table">\n<{prefix}parameter name="place" string="true">'
                f'Zum Hirsch</{prefix}parameter>\n<{prefix}parameter name="guests" string="false">4</{prefix}parameter>\n'
                f"</{prefix}invoke>\n</{prefix}tool_calls>"
            ),
            ONE_CALL,
        )
        for prefix in ("｜DSML｜ ", "|DSML|", "‖DSML‖", "｜｜DSML｜｜", "｜GCML｜")
    ),
    (
        "open call",
        (
            '<|open|>tools<|sep|><|open|>call tool="book_table" index="1"<|sep|><|open|>argument key="place" type="string"'
            '<|sep|>Zum Hirsch<|close|>argument<|sep|><|open|>argument key="guests" type="integer"<|sep|>4<|close|>argument'
            "<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
        ),
        ONE_CALL,
    ),
    (
        "nested tags",
        (
            f'{MINIMAX}<tool_call>\n{MINIMAX}<invoke name="book_table">{MINIMAX}<place>Zum Hirsch{MINIMAX}</place>'
            f"{MINIMAX}<guests>4{MINIMAX}</guests>{MINIMAX}</invoke>\n{MINIMAX}</tool_call>"
        ),
        ONE_CALL,
    ),
]


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_calls_are_parsed_without_remainder(name: str, text: str, expected: Calls) -> None:
    """A text that consists of calls yields these calls, in this notation, and no text."""
    result = read_calls(text, TOOLS)
    assert calls_of(result) == expected
    assert {call.format for call in result.calls} == {name}
    assert (result.text, result.reasoning, result.rejected) == ("", "", ())


def with_line_ends(calls: Calls) -> Calls:
    """Return calls whose texts have lines that end as on Windows."""
    return [
        (
            name,
            {key: value.replace("\n", "\r\n") if isinstance(value, str) else value for key, value in arguments.items()},
        )
        for name, arguments in calls
    ]


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_lines_may_end_as_on_windows(name: str, text: str, expected: Calls) -> None:
    """A carriage return before each line feed changes no call, whole and in pieces."""
    text = text.replace("\n", "\r\n")
    result = read_calls(text, TOOLS)
    assert calls_of(result) == with_line_ends(expected)
    assert {call.format for call in result.calls} == {name}
    assert read_in_pieces(text, 1) == result


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_each_format_works_alone(name: str, text: str, expected: Calls) -> None:
    """A reader with a single format parses its notation and no other."""
    formats = [text_format for text_format in DEFAULT_FORMATS if text_format.name == name]
    others = [text_format for text_format in DEFAULT_FORMATS if text_format.name != name]
    assert calls_of(read_calls(text, TOOLS, formats=formats)) == expected
    assert all(call.format != name for call in read_calls(text, TOOLS, formats=others).calls)
    assert read_calls(text, TOOLS, formats=()).text == text


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_text_around_calls_remains(name: str, text: str, expected: Calls) -> None:
    """The text before and behind the calls is the result's text, and the spans of the calls lie between."""
    before, behind = "I book that for you.", "That was all."
    result = read_calls(f"{before}\n\n{text}\n\n{behind}", TOOLS)
    assert calls_of(result) == expected
    assert result.text == f"{before}\n\n{behind}"
    for call in result.calls:
        assert len(before) < call.start < call.end <= len(before) + 2 + len(text)


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_result_does_not_depend_on_pieces(name: str, text: str, expected: Calls) -> None:
    """The result is the same in pieces of any size, with and without text around the calls."""
    for whole in (text, f"I book that.\n{text}\nDone."):
        result = read_calls(whole, TOOLS)
        for size in (1, 2, 3, 7, 50):
            assert read_in_pieces(whole, size) == result, size


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_a_call_is_emitted_with_its_last_character(name: str, text: str, expected: Calls) -> None:
    """A call is emitted without any text after it, and no part of it is emitted as text."""
    reader = StreamReader(TOOLS)
    end = max(call.end for call in read_calls(text, TOOLS).calls)
    line_break = "\n" if text[end:] == "\n" else ""  # an unquoted argument ends with its line
    chunks = [reader.feed(letter) for letter in text[:end] + line_break]
    assert [(call.name, call.arguments) for chunk in chunks for call in chunk.calls] == expected
    assert "".join(chunk.text for chunk in chunks) == ""


@pytest.mark.parametrize(("name", "text", "expected"), SAMPLES)
def test_a_call_that_the_end_of_the_text_completes_is_repaired(name: str, text: str, expected: Calls) -> None:
    """Wherever a text is cut off, its calls without repairs are those of the whole text."""
    for end in range(len(text)):
        calls = [call for call in read_calls(text[:end], TOOLS).calls if not call.repairs]
        assert [(call.name, call.arguments) for call in calls] == expected[: len(calls)], text[:end]


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
        "```python\nprint(cook(1, 2))\n```",
        "book_table.caller(place='Zum Hirsch')",
        "cook.call(dish='soup')",
        "if (a < b) { return [x, y]; }",
        "def clock():",
        "Action: I wait.",
        "**Action items:** none, and Action 1 is to wait.",
        "Action: sea.tides\nAction Input:\n```\nEmden",
        "Write to=book_table, or recall:book_table{} again.",
        "They call: book_table {here}, and call:cook{dish:1}.",
        "<function=/> and <function= / > are tags.",
        '<function=book_table ["Zum Hirsch"]></function>',
        "<tool_call> is what the model writes.",
        "```python\nx = [1, 2]\n```",
        "book_table({'place': 'Zum Hirsch'}, 4, 5, True, [], {}, 'too many')",
    ],
)
def test_prose_and_data_are_not_calls(text: str) -> None:
    """Text that mentions or describes a tool, and JSON data, yields no call and remains unchanged."""
    result = read_calls(text, TOOLS)
    assert (result.calls, result.text) == ((), text)
