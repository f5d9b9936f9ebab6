"""Repairs, rejections, reasoning, and the effect of schemas on arguments."""

from __future__ import annotations

import pytest

from agentloop.models.text_calls import (
    DEFAULT_FORMATS,
    AttemptResult,
    CallDraft,
    CallGrade,
    OfferedTools,
    ParseAttempt,
    StreamReader,
    TextBuffer,
    TextFormat,
    read_calls,
)
from agentloop.values.json import freeze_object
from agentloop.values.tool_calls import ToolSpec

from .offered import BOOK, TOOLS, calls_in, calls_of, read_in_pieces


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ('{"name": "book_table", "arguments": {"place": "A"}}', ()),
        ('{"name": "book_table", "arguments": {"place": "A",}}', ("trailing comma",)),
        ("{'name': 'book_table', 'arguments': {'place': 'A'}}", ("single quotes",)),
        ('{"name": "book_table", "arguments": {"place": "A", "outside": True}}', ("Python literal",)),
        ('{"name": "book_table", "arguments": {place: "A"}}', ("unquoted key",)),
        ('{"name": "book\\_table", "arguments": {"place": "A"}}', ("escaped underscore",)),
        ('{"name": "book_table", "arguments": {"place": "A\nB"}}', ("unescaped newline",)),
        ('{"name": "book_table", "arguments": {"place": "A\tB"}}', ("unescaped control character",)),
        ('{"name": "book_table", "arguments": {\xa0"place": "A"}}', ("white space that JSON does not know",)),
        ("book_table(place='A\tB',\xa0outside=True)", ()),
        ('{"name": "book_table", "arguments": {"place": "A"} // here\n}', ("comment",)),
        ('{"name": "book_table", "arguments": {"guests": "4"}}', ("text read as number",)),
        ('{"name": "book_table", "arguments": {"outside": "false"}}', ("text read as boolean",)),
        ('{"name": "book_table", "arguments": "{}"}', ("arguments as text",)),
        ('{"name": "book_table", "arguments": "{\'place\': \'A\'}"}', ("arguments as text",)),
        ('{"name": "book_table", "arguments": "A"}', ("arguments as text",)),
        ('<tool_call>{"name": "book_table", "place": "A"}</tool_call>', ("arguments beside the name",)),
        ('<tool_call>{"name": "book_table", "arguments": {"place": "A"}</tool_call>', ("missing closing bracket",)),
        ('<tool_call>\n{"name": "book_table", "arguments": {"place": "A"\n</tool_call>', ("missing closing bracket",)),
        ('<tool_call>{"name": "book_table", "arguments": {"place": "A"}}}</tool_call>', ()),
        ("book_table(guests=04)", ("leading zeros",)),
        ('{"name": "book_table", "arguments": {"guests": "4.0"}}', ("text read as number",)),
        ("book_table('A')", ("positions given names",)),
        ("book_table(place='A', outside=True,)", ()),
        ("book_table.call(place='A')", ()),
        ("```tool_code\nprint(book_table(place='A'))\n```", ("call in print()",)),
        (
            "<tool_call><function=book_table><parameter=place>A</parameter></tool_call>",
            ("missing closing tag",),
        ),
    ],
)
def test_repairs_are_recorded(text: str, repairs: tuple[str, ...]) -> None:
    """A call lists its repairs; deviations from JSON that its notation allows are not among them."""
    assert [call.repairs for call in read_calls(text, TOOLS).calls] == [repairs]


MISSING = ("missing closing tag </parameter>",)
FUNCTION = "<tool_call>\n<function=book_table>\n{}\n</function>\n</tool_call>"
NEXT = FUNCTION.format("<parameter=place>\nB\n</parameter>")


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            FUNCTION.format("<parameter=place>\nA b\n<parameter=guests>\n3\n</parameter>"),
            [({"place": "A b", "guests": 3}, MISSING)],
        ),
        (
            FUNCTION.format("<parameter=place>\nA b\n</parameter>\n<parameter=guests>\n3"),
            [({"place": "A b", "guests": 3}, MISSING)],
        ),
        (FUNCTION.format("<parameter=place>\n<parameter=guests>\n3"), [({"place": "", "guests": 3}, MISSING)]),
        (FUNCTION.format("<parameter=place>\nA") + "\n" + NEXT, [({"place": "A"}, MISSING), ({"place": "B"}, ())]),
        (FUNCTION.format("<parameter=place>\nA")[12:-12] + "Next\n" + NEXT, [({"place": "A"}, MISSING), ({"place": "B"}, ())]),
        (
            '<invoke name="book_table">\n<parameter name="place">A b\n<parameter name="guests">3\n</invoke>',
            [({"place": "A b", "guests": 3}, MISSING)],
        ),
        (
            (
                "<tool_call>book_table\n<arg_key>place</arg_key>\n<arg_value>A b\n<arg_key>guests</arg_key>\n"
                "<arg_value>3\n</tool_call>\n<tool_call>clock</tool_call>"
            ),
            [({"place": "A b", "guests": 3}, ("missing closing tag </arg_value>",)), ({}, ())],
        ),
    ],
)  # fmt: skip
def test_arguments_without_closing_tags_are_read(
    text: str, calls: list[tuple[dict[str, object], tuple[str, ...]]]
) -> None:
    """A value whose closing tag is missing ends at the line of the next argument or of the end of the call."""
    result = read_calls(text, TOOLS)
    assert [(call.arguments, call.repairs) for call in result.calls] == calls
    assert read_in_pieces(text, 1) == result


@pytest.mark.parametrize(
    "text",
    [
        "<function=book_table>\n<parameter=place>\nA\n</parameter>\n<function=book_table>\n<parameter=place>\nB\n</parameter>\n</function>",
        (
            '<invoke name="book_table"><parameter name="place">A</parameter>\n'
            '<invoke name="book_table"><parameter name="place">B</parameter></invoke>'
        ),
        (
            "<tool_call>book_table<arg_key>place</arg_key><arg_value>A</arg_value>"
            "<tool_call>book_table<arg_key>place</arg_key><arg_value>B</arg_value></tool_call>"
        ),
    ],
)
def test_a_call_without_its_closing_tag_ends_where_the_next_one_begins(text: str) -> None:
    """The next call is no part of the last value."""
    result = read_calls(text, TOOLS)
    assert [(call.arguments, call.repairs) for call in result.calls] == [
        ({"place": "A"}, ("missing closing tag",)),
        ({"place": "B"}, ()),
    ]
    assert read_in_pieces(text, 1) == result


PAIRED = [
    "It is written\n<parameter=key>\n3\n</parameter>\nand so on.",
    "<functions>\n<function name='a'>\n</function>\n</functions>",
    "Write <function=a><parameter=b>1</parameter></function> and wait.",
    "</param>\n</invoke> are of other notations, as are [TOOL_CALLS] and <arg_value>.",
    "&lt;/parameter&gt; is escaped.",
]
UNPAIRED = {
    "It is written\n<parameter=key>\nand so on.": "<parameter=",
    "It is written <parameter=guests>.": "guests",
    "It is written\n<parameter=guests>\n3\n</parameter>\nand so on.": "guests",
    "</parameter>\n<function=a>\nand so on.": "</parameter>",
    "A <parameter=</parameter>key> B": "<parameter=",
}
"""Values, each with what the reason names: a tag whose partner is missing, or an argument that the call does not pass."""


@pytest.mark.parametrize("value", PAIRED)
def test_closed_values_may_contain_tags(value: str) -> None:
    """In a value that has its closing tag, tags of other notations, escaped ones, and those in pairs are text."""
    text = FUNCTION.format(f"<parameter=place>\n{value}\n</parameter>")
    result = read_calls(text, TOOLS)
    assert [(call.arguments, call.repairs) for call in result.calls] == [({"place": value}, ())]
    assert (result.unread, result.shown_tags) == ("", ())


@pytest.mark.parametrize("value", UNPAIRED)
def test_a_tag_without_its_partner_in_a_value_rejects_the_call(value: str) -> None:
    """A tag was lost, and the value may have swallowed what follows; the reason names the argument and the tag."""
    text = FUNCTION.format(f"<parameter=place>\n{value}\n</parameter>")
    result = read_calls(text, TOOLS)
    assert result.calls == ()
    reasons = [rejected.reason for rejected in result.rejected if not rejected.is_quoted]
    assert any("'place'" in reason and UNPAIRED[value] in reason for reason in reasons)
    assert read_in_pieces(text, 1) == result


@pytest.mark.parametrize(
    "text",
    [
        *[
            FUNCTION.format(f"<parameter=place>\n{tag}\n</parameter>")
            for tag in ("</function>", "<tool_call>", "<function=a>")
        ],
        '<tool_call>{"name": "book_table", "arguments": {"place": "</tool_call>"}}</tool_call>',
        '<tool_call>{"name": "book_table", "arguments": {"place": "A", "dishes": ["</tool_call>"]}}</tool_call>',
        '[TOOL_CALLS]book_table[ARGS]{"place": "[ARGS]"}',
        "<tool_call>book_table<arg_key>place</arg_key><arg_value></tool_call></arg_value></tool_call>",
    ],
)
def test_a_tag_of_a_call_without_its_partner_in_a_value_makes_the_call_uncertain(text: str) -> None:
    """The call is returned as it is written, and the result says why it is not meant to run."""
    result = read_calls(text, TOOLS)
    assert [call.name for call in result.calls] == ["book_table"]
    assert "without the tag that belongs to it" in result.unread
    assert read_in_pieces(text, 1) == result


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "book_table", "arguments": {"place": "\\u003c/tool_call>"}}</tool_call>',
        '<tool_call>{"name": "book_table", "arguments": {"place": "<tool_call>a</tool_call> [TOOL_CALLS]"}}</tool_call>',
        FUNCTION.format("<parameter=place><![CDATA[</parameter>\n</function> <parameter=guests>]]></parameter>"),
        FUNCTION.format("<parameter=place>\n<![CDATA[<parameter=key>]]>\n</parameter>"),
        '{"name": "book_table", "arguments": {"place": "</tool_call></parameter>[ARGS]"}}',
        "book_table(place='</tool_call></parameter>[ARGS]')",
    ],
)
def test_escaped_tags_and_those_of_other_notations_are_text(text: str) -> None:
    """JSON has escapes, a tag of an argument has CDATA marks, and a notation without tags knows where its values end."""
    result = read_calls(text, TOOLS)
    assert ([call.name for call in result.calls], result.unread) == (["book_table"], "")
    assert read_in_pieces(text, 1) == result


@pytest.mark.parametrize(
    "argument", ["<parameter=guests>\n4\n</parameter>\n{}", "{}\n<parameter=guests>\n4\n</parameter>"]
)
def test_an_argument_that_is_passed_elsewhere_is_text(argument: str) -> None:
    """The tags of an argument that the call passes already are part of a value."""
    value = "It is written\n<parameter=guests>\n3\n</parameter>\nand so on."
    text = FUNCTION.format(argument.format(f"<parameter=place>\n{value}\n</parameter>"))
    assert [(call.arguments, call.repairs) for call in read_calls(text, TOOLS).calls] == [
        ({"place": value, "guests": 4}, ())
    ]


STRAYS = {
    "<tool_call>": True,
    "book_table<arg_key>place</arg_key><arg_value>A</arg_value></tool_call>": True,
    'book_table[ARGS]{"place": "A"}': True,
    "<tool_call>\n<parameter=place>\nA\n</parameter>\n</function>\n</tool_call>": True,
    "I will book it.\n\n<parameter=place>\nA\n</parameter>\n</function>\n</tool_call>": True,
    "<Tool_Call>book_table<ARG_KEY>place</ARG_KEY>": True,
    "< tool_call >book_table< / tool_call >": True,
    "<|tool_call_begin|>functions.book_table:0": True,
    "<|tool_call_begin| >functions.book_table:0": True,
    "book_table</invoke>": True,
    ">>>book_table and so on": True,
    "The model writes <tool_call> in front of each call.": False,
    "`<tool_call>` opens a call.": False,
    "A call ends with </invoke>, as in XML.": False,
    "In a pipeline, [ARGS] and [TOOL_CALLS] are special tokens of Mistral.": False,
    "Calls look like this:\n\n```xml\n<tool_call>\n<function=NAME>\n</tool_call>\n```\n\nThat is all.": False,
    "> <tool_call>\n\nThat was in the log.": False,
    "| tag | use |\n|---|---|\n| <tool_call> | opens a call |": False,
    "<config>\n  <parameter name='a'>1</parameter>\n</config>": False,
}
"""Texts with tags that belong to no call, and whether these are what is left of one."""


@pytest.mark.parametrize("text", STRAYS)
def test_a_tag_outside_of_a_call_is_meant_or_shown(text: str) -> None:
    """What is left of a damaged call is rejected, with what to do; a text about tags is an answer, and the result lists them."""
    result = read_calls(text, TOOLS)
    assert (result.calls, result.text) == ((), text)
    meant = [rejected for rejected in result.rejected if not rejected.is_quoted]
    assert bool(meant) == STRAYS[text]
    assert bool(result.shown_tags) != STRAYS[text]
    assert read_in_pieces(text, 1) == result


@pytest.mark.parametrize("text", ['{"total": 3, "data": [1, 2,,]}', '{"total": 3 "budget": 1}'])
def test_a_name_inside_of_a_word_makes_no_damaged_call(text: str) -> None:
    """A tool may have a name of one letter: JSON that cannot be read, with the key of an argument, stays an answer."""
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}}
    assert read_calls(text, [ToolSpec("a", "A.", schema), ToolSpec("get", "Get.", schema)]).rejected == ()
    (rejected,) = read_calls(text, [ToolSpec("data", "A.", schema), ToolSpec("budget", "B.", schema)]).rejected
    assert rejected.format == "broken"


@pytest.mark.parametrize("order", ["{0}\n{1}", "{1}\n{0}"])
@pytest.mark.parametrize("damaged", [text for text, is_meant in STRAYS.items() if is_meant and "\n\n" not in text])
def test_no_call_runs_beside_what_is_left_of_another_one(damaged: str, order: str) -> None:
    """Otherwise the second of two calls would be lost in silence; a tag in front of a call opens it."""
    result = read_calls(order.format("<function=clock></function>", damaged), TOOLS)
    assert result.unread or not result.calls or (damaged == "<tool_call>" and order.startswith("{1}"))


@pytest.mark.parametrize(
    "damaged",
    [
        'sea.tides">{0}<port>X{0}</port>{0}</invoke>',
        'sea.tides">{0}<port>X{0}</port>{0}</invoke>{0}<invoke name="',
        '[TOOL_CALLS]": sea.tides[ARGS]{{"port"X"}}',
        "`[ARGS]",
    ],
)
def test_a_mark_beside_calls_is_a_quotation_only_among_words(damaged: str) -> None:
    """A quotation mark of a damaged call would hide its tags; the words in the tags are none of a sentence."""
    lost = damaged.format("]<]minimax[>[")
    call = '[TOOL_CALLS]sea.tides[ARGS]{"port": "Y"}'
    assert read_calls(f"{call}\n{lost}", TOOLS).unread
    shown = read_calls(f"{call}\nBehind the name stands `[ARGS]` as a mark.", TOOLS)
    assert (shown.unread, shown.shown_tags) == ("", ("[ARGS]",))


@pytest.mark.parametrize(
    "lost", ["sea.tidesport='X', (", "sea.tides)(port='X'", "sea.tidesport='X')", "sea.tides, port(='X')"]
)
@pytest.mark.parametrize(
    "frame", ["[{0}, {1}]", "[{1}, {0}]", "{0}\n{1}", "I look.\n{0}\n{1}", "```python\n{0}\n{1}\n```"]
)
def test_no_call_runs_beside_an_argument_in_python_that_lost_its_call(lost: str, frame: str) -> None:
    """Wherever its brackets are; the same text alone is a damaged call, and a sentence about an argument is none."""
    assert read_calls(frame.format(lost, 'book_table(place="A")'), TOOLS).unread
    (rejected,) = read_calls(lost, TOOLS).rejected
    assert rejected.format == "broken"
    assert not read_calls(f"I set port=X (as before).\n{frame.format('', 'clock()')}", TOOLS).unread


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{0}<invoke name="">{0}<place>Rome{0}</place>{0}</invoke>', "the call has no name of a tool"),
        ('{0}<invoke name="book_table">{0}<>Rome{0}</>{0}</invoke>', "an argument of book_table has no name"),
        (
            '<invoke name="book_table"><parameter name="">Rome</parameter></invoke>',
            "an argument of book_table has no name",
        ),
        ('{{"name": "book_table", "arguments": {{"": "Rome"}}}}', "an argument of book_table has no name"),
    ],
)
def test_a_call_in_which_a_name_is_missing_is_damaged(text: str, reason: str) -> None:
    """The name may have moved into a value of the next call, so that this one does not run either."""
    damaged = text.format("]<]minimax[>[")
    assert [each.reason for each in read_calls(damaged, TOOLS).rejected] == [reason]
    assert read_calls(f"{damaged}\n<function=clock></function>", TOOLS).unread == reason


def test_a_tool_that_describes_no_arguments_takes_one_without_a_name() -> None:
    """An empty key may be data."""
    tool = ToolSpec("count", "Count.", {"type": "object"})
    (call,) = read_calls('{"name": "count", "arguments": {"": 3}}', [tool]).calls
    assert call.arguments == {"": 3}


@pytest.mark.parametrize("glued", ["/Rome", "Rome", "/ Rome"])
def test_a_tag_with_more_behind_its_quotation_mark_is_damaged(glued: str) -> None:
    """The end of the tag is in the wrong place, behind a part of the value."""
    text = f'<invoke name="book_table"><parameter name="place"{glued}></parameter></invoke>'
    (rejected,) = read_calls(text, TOOLS).rejected
    assert "quotation mark" in rejected.reason
    assert calls_in('<invoke name="clock" />') == calls_in('<invoke name="clock"/>') == [("clock", {})]


@pytest.mark.parametrize(
    "text",
    [
        "<function=book_table>\n<parameter=place>\nA\n<parameter=guests>\n3\n",
        "<function=book_table>\n<parameter=place>\nA\n</function>\nof the file",
        "<function=book_table>\n<parameter=place>\nA</function>",
        '<function=book_table>\n<parameter=place>\n<functions>\n<function name="">\n</function>\n</functions>\n',
    ],
)
def test_values_that_may_be_cut_off_are_rejected(text: str) -> None:
    """Without a closing tag and without a line that certainly ends the call, a value may be incomplete."""
    result = read_calls(text, TOOLS)
    assert result.calls == ()
    assert "an argument is never closed" in [rejected.reason for rejected in result.rejected]


def test_a_tool_named_print_prints() -> None:
    """A call in `print()` is the argument of a tool of that name, if there is one."""
    tools = (*TOOLS, ToolSpec("print", "Print", {"type": "object", "properties": {"what": {"type": "string"}}}))
    assert calls_of(read_calls("```python\nprint(what='A')\n```", tools)) == [("print", {"what": "A"})]
    assert [call.format for call in read_calls("```python\nprint(clock())\n```", tools).calls] == ["python"]


@pytest.mark.parametrize(
    "code", ["x = clock()", "print(clock(), 1)", "print(1, clock())", "print(clock()", "print(book_table(place=x))"]
)
def test_other_code_than_printed_calls_is_no_block_of_calls(code: str) -> None:
    """A block with more than calls and their printing is not read as a block of calls."""
    text = f"```python\n{code}\n```"
    result = read_calls(text, TOOLS)
    assert [call.format for call in result.calls if call.format == "fenced"] == []
    assert read_in_pieces(text, 1) == result


def test_valid_json_arguments_keep_their_spelling() -> None:
    """Valid JSON is returned exactly as written; repaired arguments are serialized anew."""
    arguments = '{ "place":"A\\u00e4",  "budget": 1.50 }'
    result = read_calls(f'{{"name": "book_table", "arguments": {arguments}}}', TOOLS)
    assert result.calls[0].arguments_json == arguments
    assert read_calls("book_table(place='ä')", TOOLS).calls[0].arguments_json == '{"place":"ä"}'


def test_coercion_can_be_disabled() -> None:
    """Without coercion, strings remain strings whatever the schema accepts."""
    text = '{"name": "book_table", "arguments": {"place": "7", "guests": "4", "budget": "1.5", "outside": "yes"}}'
    as_written = {"place": "7", "guests": "4", "budget": "1.5", "outside": "yes"}
    assert read_calls(text, TOOLS, coerce=False).calls[0].arguments == as_written
    assert read_calls(text, TOOLS).calls[0].arguments == as_written | {"guests": 4, "budget": 1.5}


def test_coercion_is_recursive() -> None:
    """Items and properties are coerced like arguments and otherwise unchanged."""
    text = '{"name": "book_table", "arguments": {"host": {"first": "5", "age": "5"}, "dishes": ["1"]}}'
    call = read_calls(text, TOOLS).calls[0]
    assert call.arguments == {"host": {"first": "5", "age": 5}, "dishes": ["1"]}
    assert call.repairs == ("text read as number",)


def test_text_in_tags_is_converted_to_the_schema_type() -> None:
    """In a notation without types, the schema determines them; a value that does not match remains a string."""
    values = {
        "place": "12",
        "guests": "4",
        "budget": "2",
        "outside": "True",
        "dishes": "['a', 'b']",
        "host": '{"age": 3}',
    }
    body = "".join(f"<parameter={key}>{value}</parameter>" for key, value in values.items())
    assert calls_in(f"<function=book_table>{body}</function>") == [
        (
            "book_table",
            {"place": "12", "guests": 4, "budget": 2, "outside": True, "dishes": ["a", "b"], "host": {"age": 3}},
        )
    ]
    assert calls_in("<function=book_table><parameter=guests>four</parameter></function>") == [
        ("book_table", {"guests": "four"})
    ]
    assert calls_in("<function=other><parameter=n>4</parameter><parameter=t>a b</parameter></function>") == [
        ("other", {"n": 4, "t": "a b"})
    ]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"type": ["string", "null"]}, "nullable", "nullable"),
        ({"type": "string"}, "null", "null"),
        ({"anyOf": [{"type": "object"}, {"type": "string"}]}, '{"x": 1}', {"x": 1}),
        ({"type": ["string", "array"]}, '["x"]', ["x"]),
        ({"type": ["string", "array"]}, "[x]", "[x]"),
        ({"type": ["string", "array"]}, '{"x": 1}', '{"x": 1}'),
        ({"type": "string"}, '{"x": 1}', '{"x": 1}'),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "integer"}, "007", 7),
        ({"type": "integer"}, "12345678901234567890.0", 12345678901234567890),
        ({"type": "integer"}, "1e23", 10**23),
        ({"type": "number"}, "5.0", 5.0),
        ({}, "null", None),
    ],
)
def test_text_in_tags_is_converted_if_the_schema_has_several_types(schema: object, text: str, value: object) -> None:
    """Null, objects and arrays are meant where the schema accepts them besides strings; a whole number is an integer."""
    tool = ToolSpec("set", "Set", {"type": "object", "properties": {"v": schema}})
    (call,) = read_calls(f"<function=set><parameter=v>{text}</parameter></function>", (tool,)).calls
    assert (call.arguments, type(call.arguments["v"])) == ({"v": value}, type(value))


BROKEN = '"arguments": {"place": "the "Krug" inn"}}'


@pytest.mark.parametrize(
    ("text", "is_rejected"),
    [
        (f'{{"name": "book_table", {BROKEN}', True),
        (f'```json\n{{"name": "book_table", {BROKEN}\n```', True),
        (f"I book. {{'tool_name': 'functions.book_table', {BROKEN}", True),
        (f'{{"type": "function", "id": 7, "name": "book_table", {BROKEN}', True),
        (f'[{{"function": {{"name": "book_table", {BROKEN}}}]', True),
        ('{"name": "book_table", "arguments": {"place": "Krug"', True),
        (f'{{"name": "Ada", {BROKEN}', False),
        ('{"text": "the "name": "book_table" is here"}', False),
    ],
)
def test_an_object_that_begins_as_a_call_and_cannot_be_read_is_rejected(text: str, is_rejected: bool) -> None:  # noqa: FBT001  # parameters
    """So a mode can ask for it again; other objects that cannot be read are text."""
    result = read_calls(text, TOOLS)
    assert (result.calls, bool(result.rejected), result.text) == ((), is_rejected, text)


@pytest.mark.parametrize(
    ("escape", "value"),
    [
        (r"\0", "\0"),
        (r"\033[1m", "\033[1m"),
        (r"\0339", "\0339"),
        (r"\101\012", "A\n"),
        (r"\x1b", "\x1b"),
        (r"(\w)\1", r"(\w)\1"),
        (r"\8\400", r"\8\400"),
    ],
)
def test_escapes_of_python_are_read_in_both_syntaxes(escape: str, value: str) -> None:
    """A number in octal is a character; a backslash before anything else stays."""
    assert calls_in(f'book_table(place="{escape}")') == [("book_table", {"place": value})]
    assert calls_in(f'{{"name": "book_table", "arguments": {{"place": "{escape}"}}}}') == [
        ("book_table", {"place": value})
    ]


@pytest.mark.parametrize(
    "text",
    [
        'book_table(place="Krug", guests=2, guests=4)',
        '{"name": "book_table", "arguments": {"place": "Krug", "guests": 2, "guests": 4}}',
        "{'name': 'book_table', 'arguments': {'place': 'Krug', 'guests': 2, 'guests': 4}}",
        '{"name": "book_table", "arguments": {"place": "Krug"}, "arguments": {"place": "Hirsch"}}',
        '{"name": "book_table", "arguments": {"place": "Krug", "host": {"age": 1, "age": 2}}}',
        '{"name": "book_table", "arguments": "{\\"place\\": \\"Krug\\", \\"place\\": \\"Hirsch\\"}"}',
        "{'name': 'book_table', 'arguments': \"{'place': 'Krug', 'place': 'Hirsch'}\"}",
        "<function=book_table><parameter=place>Krug</parameter><parameter=place>Hirsch</parameter></function>",
        "<tool_call>clock<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
        'Action: book_table\nAction Input: {"place": "Krug", "place": "Hirsch"}',
        '[TOOL_CALLS]book_table{"place": "Krug", "place": "Hirsch"}',
    ],
)
def test_a_call_with_an_argument_that_is_passed_twice_is_rejected(text: str) -> None:
    """Which of the two values is meant is not known, as in a call of a tool API."""
    result = read_calls(text, TOOLS)
    assert result.calls == ()
    assert any("twice" in rejection.reason for rejection in result.rejected)


@pytest.mark.parametrize(
    ("block", "value"),
    [
        ("```\nEmden\n```", "Emden"),
        ("```\nEmden\nNorden\n```", "Emden\nNorden"),
        ("```text\nEmden\n```", "Emden"),
        ("```text \r\nEmden\r\n```", "Emden"),
        ("```\n  Emden\n  Norden\n```", "  Emden\n  Norden"),
        ("```json\n[1]\n```", "[1]"),
        ("```Emden```", "Emden"),
    ],
)
def test_the_value_in_a_block_is_all_but_the_line_of_the_fence(block: str, value: str) -> None:
    """The name of a language stands on the line of the fence; a word on the next line is the beginning of the value."""
    assert calls_in(f"Action: sea.tides\nAction Input: {block}") == [("sea.tides", {"port": value})]


DEFINITIONS = {
    "Code": {"type": "string", "enum": ["1", "02"]},
    "Alias": {"$ref": "#/$defs/Code"},
    "Place": {"type": "object", "properties": {"code": {"$ref": "#/$defs/Code"}, "near": {"$ref": "#/$defs/Place"}}},
    "Endless": {"$ref": "#/$defs/Endless"},
    "a/b": {"type": "boolean"},
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Code"}, "1", "1"),
        ({"$ref": "#/$defs/Alias"}, "1", "1"),
        ({"allOf": [{"$ref": "#/$defs/Code"}], "default": "1"}, "1", "1"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "1", "1"),
        ({"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]}, "1", "1"),
        ({"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]}, "null", None),
        ({"$ref": "#/properties/w"}, "1", "1"),
        ({"$ref": "#/$defs/a~1b"}, "True", True),
        ({"$ref": "#/$defs/Place"}, '{"near": {"code": "1"}}', {"near": {"code": "1"}}),
        ({"$ref": "#/$defs/Endless"}, "1", 1),
        ({"$ref": "#/$defs/None"}, "1", 1),
        ({"$ref": "https://example.com/schema"}, "1", 1),
    ],
)
def test_references_in_a_schema_are_followed(schema: object, text: str, value: object) -> None:
    """The type of a value is that of the schema to which its parameter refers; a reference without end says nothing."""
    properties = {"v": schema, "w": {"type": "string"}}
    tool = ToolSpec("set", "Set", {"type": "object", "properties": properties, "$defs": DEFINITIONS})
    (call,) = read_calls(f"<function=set><parameter=v>{text}</parameter></function>", (tool,)).calls
    assert call.arguments == {"v": value}


def test_references_take_bounded_time() -> None:
    """A schema that refers to others in more and more ways is not written out."""
    definitions: dict[str, object] = {
        f"d{level}": {"properties": {f"p{number}": {"$ref": f"#/$defs/d{level + 1}"} for number in range(50)}}
        for level in range(8)
    }
    properties = {"v": {"$ref": "#/$defs/d0"}, "w": {"type": "string"}}
    tool = ToolSpec("set", "Set", {"type": "object", "properties": properties, "$defs": definitions})
    (call,) = read_calls("<function=set><parameter=w>1</parameter></function>", (tool,)).calls
    assert call.arguments == {"w": "1"}


@pytest.mark.parametrize(
    ("schema", "declared", "text", "value"),
    [
        ({"type": "string"}, "false", '"Emden"', "Emden"),
        ({"type": "string"}, "true", '"Emden"', '"Emden"'),
        ({"type": "string"}, "false", "Emden", "Emden"),
        ({"type": "string"}, "false", "5", "5"),
        ({"type": ["string", "integer"]}, "false", "5", 5),
        ({"type": ["string", "integer"]}, "true", "5", "5"),
        ({}, "false", '"Emden"', "Emden"),
        ({}, "true", "5", "5"),
    ],
)
def test_a_declared_type_decides(schema: object, declared: str, text: str, value: object) -> None:
    """A value that its tag declares to be JSON is JSON, if it is valid and of an accepted type."""
    tool = ToolSpec("set", "Set", {"type": "object", "properties": {"v": schema}})
    written = f'<｜DSML｜invoke name="set"><｜DSML｜parameter name="v" string="{declared}">{text}</｜DSML｜parameter></｜DSML｜invoke>'
    assert [call.arguments for call in read_calls(written, (tool,)).calls] == [{"v": value}]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("written", "value"),
    [("\nA\n", "A"), ("\n", ""), ("\n\n", ""), ("A\n", "A"), ("\nA", "A"), ("\n\n  A\n\n", "\n  A\n"), (" A ", " A ")],
)
def test_line_breaks_next_to_tags_are_no_part_of_a_value(written: str, value: str, line_end: str) -> None:
    """Of the line breaks around a value, one on each side belongs to the tags."""
    text = f"<function=book_table>\n<parameter=place>{written}</parameter>\n</function>".replace("\n", line_end)
    assert calls_in(text) == [("book_table", {"place": value.replace("\n", line_end)})]


def test_nested_tags_of_one_name_are_a_list() -> None:
    """No tag replaces another one of the same name, in an object or among the arguments."""
    mark = "]<]minimax[>["
    text = '@<invoke name="book_table">@<dishes>soup@</dishes>@<dishes>fish@</dishes>@<host>@<a>1@</a>@<a>2@</a>@<b>3@</b>@</host>@</invoke>'
    assert calls_in(text.replace("@", mark)) == [
        ("book_table", {"dishes": ["soup", "fish"], "host": {"a": [1, 2], "b": 3}})
    ]


def test_keys_between_quote_tokens_may_be_any_word() -> None:
    """A notation that never quotes keys has keys that are no identifiers."""
    assert calls_in("<|tool_call>call:book_table{Content-Type:1,x.y:2,3:4}<tool_call|>") == [
        ("book_table", {"Content-Type": 1, "x.y": 2, "3": 4})
    ]


def test_missing_brackets_are_added_only_before_a_closing_tag() -> None:
    """A call that is cut off is rejected, even if only brackets are missing."""
    for text in (
        '<tool_call>{"name": "book_table", "arguments": {"place": "A"}',
        '{"name": "book_table", "arguments": {"place": "A"}</p>',
        '<tool_call>{"name": "book_table", "arguments": {"place": </tool_call>',
    ):
        assert calls_in(text) == []


def test_data_that_resembles_a_call_is_data() -> None:
    """An object that merely resembles a call counts only with the name of an offered tool."""
    for text in (
        '{"calls": [{"alice": {"at": 3}}]}',
        '{"action": {"move": {"x": 1}}}',
        '{"tool": "hammer", "size": 3}',
        '{"name": "book_table", "place": "A"}',
        '<tool_call>{"name": "book_table", "place": "A", "street": "B"}</tool_call>',
        '<tool_call>{"name": "book_table", "guests": 3}</tool_call>',
        '{"name": "book_table", "description": "books", "parameters": "place and guests"}',
        '{"name": "book_table", "arguments": "{place}"}',
        '{"name": "clock", "arguments": "now"}',
    ):
        assert calls_in(text) == []


def test_positional_arguments_follow_the_schema() -> None:
    """Positional arguments are named in schema order; surplus, duplicate and mistyped ones are rejected."""
    assert calls_in("book_table('A', 4, 2.5)") == [("book_table", {"place": "A", "guests": 4, "budget": 2.5})]
    for text in ("clock(1)", "book_table('A', place='B')", "book_table(4)"):
        result = read_calls(text, TOOLS)
        assert result.calls == ()
        assert "book_table" in result.rejected[0].reason or "clock" in result.rejected[0].reason


def test_explicit_notations_may_name_other_tools() -> None:
    """In a notation for calls alone any name counts, unless `only_offered` is set."""
    text = '<tool_call>{"name": "cook", "arguments": {"dish": "soup"}}</tool_call>'
    assert calls_in(text) == [("cook", {"dish": "soup"})]
    result = read_calls(text, TOOLS, only_offered=True)
    assert result.calls == ()
    assert [rejected.reason for rejected in result.rejected] == ["cook is not offered"]
    assert calls_in("[cook(dish='soup')]") == []
    assert calls_of(read_calls("[cook(dish='soup')]", ())) == [("cook", {"dish": "soup"})]


@pytest.mark.parametrize(
    ("text", "reasoning", "remaining", "calls"),
    [
        ("<think>clock() would do</think>It is late.", "clock() would do", "It is late.", 0),
        ("<think>hm</think>\n\nclock()", "hm", "", 1),
        ("I could call clock() here.\n</think>\nIt is late.", "I could call clock() here.", "It is late.", 0),
        ("<think>never closed: clock()", "never closed: clock()", "", 0),
        ("Write `<think>` first.", "", "Write `<think>` first.", 0),
        ("[THINK]a[/THINK]b [THINK]c[/THINK]", "a\n\nc", "b", 0),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Late.<|return|>",
            "hm",
            "Late.",
            0,
        ),
        ("<|think:start|>hm<|think:end|>clock()", "hm", "", 1),
        (
            " to=self<|message|>clock() would do<|eom|><|start|>assistant to=user<|message|>Late.<|eot|>",
            "clock() would do",
            "Late.",
            0,
        ),
        ("<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Late.<|END_RESPONSE|>", "hm", "Late.", 0),
    ],
)
def test_reasoning_is_separated(text: str, reasoning: str, remaining: str, calls: int) -> None:
    """Reasoning is not part of the text, and calls in it do not count."""
    for result in (read_calls(text, TOOLS), read_in_pieces(text, 1)):
        assert (result.reasoning, result.text, len(result.calls)) == (reasoning, remaining, calls)


@pytest.mark.parametrize("channel", ["analysis", "commentary"])
@pytest.mark.parametrize("constraint", ["", " json", " code", " <|constrain|>json", "<|constrain|>tool-call_2"])
@pytest.mark.parametrize("pattern", ["<|channel|>{0} to=functions.clock{1}", " to=functions.clock<|channel|>{0}{1}"])
def test_the_recipient_of_a_message_makes_a_call(channel: str, constraint: str, pattern: str) -> None:
    """In both channels a message to a function is a call, and reasoning that mentions one is none."""
    header = pattern.format(channel, constraint)
    mention = f"I use to=functions.book_table, so{header}, then {{}}"
    text = f"<|channel|>analysis<|message|>{mention}<|end|><|start|>assistant{header}<|message|>{{}}<|call|>"
    result = read_calls(text, TOOLS)
    assert (calls_of(result), result.grades) == ([("clock", {})], (CallGrade.PLAIN,))
    assert (result.reasoning, result.text, result.calls[0].repairs) == (mention, "", ())
    assert read_in_pieces(text, 1) == result


def test_unclosed_reasoning_is_rejected() -> None:
    """Unclosed reasoning is reported, so that the model can be asked again with the reason."""
    result = read_calls("<think>clock()", TOOLS)
    assert [(rejected.reason, rejected.start) for rejected in result.rejected] == [("the reasoning is never closed", 0)]


@pytest.mark.parametrize("depth", [190, 205, 300, 2_000, 50_000])
def test_arguments_never_exceed_the_json_depth_limit(depth: int) -> None:
    """In every notation, a value that exceeds the depth limit is rejected or remains a string."""
    nested = "[" * depth + "]" * depth
    for text in (
        f"<function=other><parameter=a>{nested}</parameter></function>",
        f"<function=book_table><parameter=dishes>{nested}</parameter></function>",
        f'<tool_call>{{"name": "other", "arguments": "{{\\"a\\": {nested}}}"}}</tool_call>',
        f"book_table(place={nested})",
    ):
        for call in read_calls(text, TOOLS).calls:
            assert freeze_object(call.arguments)


def test_tags_inside_arguments_are_literal() -> None:
    """Text inside an argument that resembles a tag or a call is part of the argument."""
    dish = "<think>clock()</think></tool_call>```"
    written = dish.replace('"', '\\"')
    for text in (
        f'{{"name": "book_table", "arguments": {{"place": "{written}"}}}}',
        f"book_table(place='{dish}')",
        f"<function=book_table><parameter=place>{dish}</parameter></function>",
    ):
        assert calls_in(text) == [("book_table", {"place": dish})]


def test_code_is_never_evaluated() -> None:
    """An expression that is not a literal is rejected with a reason."""
    for value in ("__import__('os')", "[x for x in y]", "f'{a}'", "lambda: 1", "1 + 1", "open", "b'a'", "1e999", "*a"):
        result = read_calls(f"book_table(place={value})", TOOLS)
        assert result.calls == ()
        assert result.rejected


def test_repeated_calls_count_and_mentions_do_not() -> None:
    """Equal calls count; a call repeated in another notation, or in prose after a block, is a mention."""
    assert len(calls_in("[clock(), clock()]")) == 2
    assert len(calls_in("1. clock()\n2. clock()")) == 2
    assert len(calls_in("```python\nclock()\n```\nThe call clock() tells the time.")) == 1
    assert len(calls_in('{"name": "clock", "arguments": {}}\nIn Python that is\n```python\nclock()\n```')) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "clock", "arguments": {', "cut off"),
        ("book_table(place='A", "never closed"),
        ("[TOOL_CALLS]clock and so on", "no arguments"),
        ("<function=book_table><parameter=place>A", "never closed"),
        ("book_table(place=" + "[" * 300 + "]" * 300 + ")", "levels deep"),
    ],
)
def test_unreadable_calls_are_rejected_and_remain_in_the_text(text: str, reason: str) -> None:
    """A call that is cut off or malformed is not returned, and the result states the reason."""
    result = read_calls(text, TOOLS)
    assert result.calls == ()
    assert reason in " ".join(rejected.reason for rejected in result.rejected)


class ArrowCalls(TextFormat):
    """A custom notation: `=> name!`."""

    name = "arrow"
    openings = ("=> ",)

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        while "!" not in buffer.text[start:] and not buffer.is_complete:
            yield None
        end = buffer.text.find("!", start)
        if end < 0:
            return AttemptResult(start, "there is no !")
        yield CallDraft(buffer.text[start + 3 : end], {}, start, end + 1)
        return AttemptResult(end + 1)


def test_custom_formats_can_be_added() -> None:
    """A custom format works together with the built-in ones, whole and in pieces."""
    formats = (ArrowCalls(), *DEFAULT_FORMATS)
    text = "Now => clock! and clock()"
    result = read_calls(text, TOOLS, formats=formats)
    assert [(call.name, call.format) for call in result.calls] == [("clock", "arrow")]
    assert "set apart" in result.rejected[0].reason
    reader = StreamReader(TOOLS, formats)
    emitted = [call.name for letter in text for call in reader.feed(letter).calls]
    assert emitted == ["clock"]
    assert reader.close() == result


def test_a_format_that_waits_forever_is_stopped() -> None:
    """A format that waits for text after the end is stopped with a rejection."""

    class Waiting(ArrowCalls):
        def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
            while True:
                yield None

    result = read_calls("=> a", TOOLS, formats=[Waiting()])
    assert (result.calls, result.text) == ((), "=> a")
    assert result.rejected[0].reason == "the format waits for text after the end"


def test_text_is_emitted_as_soon_as_it_is_certain() -> None:
    """Prose is emitted at once; a possible beginning of a call is held back until it is decided."""
    reader = StreamReader(TOOLS)
    assert reader.feed("I will").text == "I will"
    assert reader.feed(" use <tool").text == " use"
    assert reader.feed("s> and cl").text == " <tools> and"
    assert reader.feed("ay and clock").text == " clay and"
    assert reader.feed("(").text == ""
    assert [call.name for call in reader.feed(")").calls] == ["clock"]
    assert reader.close().text == "I will use <tools> and clay and"


def test_a_name_may_be_a_prefix_of_another() -> None:
    """A tool name that is a prefix of other names is distinguished from them."""
    tools = (BOOK, *[ToolSpec(f"book_table_{n}", "Book", {"type": "object"}) for n in range(300)])
    assert calls_of(read_in_pieces("book_table_7(a=1) book_table(place='A')", 1, tools)) == [
        ("book_table_7", {"a": 1}),
        ("book_table", {"place": "A"}),
    ]
