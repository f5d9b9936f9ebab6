"""What a reading says beside the calls: repairs, refusals, thoughts, and what schemas change."""

from __future__ import annotations

import pytest

from agentloop.text_calls import (
    DEFAULT_FORMATS,
    AttemptResult,
    CallDraft,
    OfferedTools,
    ParseAttempt,
    StreamReader,
    TextBuffer,
    TextFormat,
    read_calls,
)
from agentloop.values.json import freeze_object
from agentloop.values.tool_calls import ToolSpec

from .offered import BOOK, TOOLS, calls_in, calls_of, in_pieces


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
        ('{"name": "book_table", "arguments": {"place": "A"} // here\n}', ("comment",)),
        ('{"name": "book_table", "arguments": {"guests": "4"}}', ("text read as number",)),
        ('{"name": "book_table", "arguments": {"outside": "false"}}', ("text read as boolean",)),
        ('{"name": "book_table", "arguments": "{}"}', ("arguments as text",)),
        ('<tool_call>{"name": "book_table", "arguments": {"place": "A"}</tool_call>', ("missing closing bracket",)),
        ('<tool_call>\n{"name": "book_table", "arguments": {"place": "A"\n</tool_call>', ("missing closing bracket",)),
        ('<tool_call>{"name": "book_table", "arguments": {"place": "A"}}}</tool_call>', ()),
        ("book_table('A')", ("positions given names",)),
        ("book_table(place='A', outside=True,)", ()),
        (
            "<tool_call><function=book_table><parameter=place>A</parameter></tool_call>",
            ("missing closing tag",),
        ),
    ],
)
def test_each_repair_is_recorded(text: str, repairs: tuple[str, ...]) -> None:
    """What had to be mended stands on the call; what the notation writes as a matter of course does not."""
    assert [call.repairs for call in read_calls(text, TOOLS).calls] == [repairs]


def test_json_arguments_stay_as_they_were_written() -> None:
    """Faultless JSON is handed on letter by letter; what was mended is written anew."""
    arguments = '{ "place":"A\\u00e4",  "budget": 1.50 }'
    reading = read_calls(f'{{"name": "book_table", "arguments": {arguments}}}', TOOLS)
    assert reading.calls[0].arguments_json == arguments
    assert read_calls("book_table(place='ä')", TOOLS).calls[0].arguments_json == '{"place":"ä"}'


def test_coercion_can_be_switched_off() -> None:
    """Without it, text stays text whatever the schema says."""
    text = '{"name": "book_table", "arguments": {"place": "7", "guests": "4", "budget": "1.5", "outside": "yes"}}'
    as_written = {"place": "7", "guests": "4", "budget": "1.5", "outside": "yes"}
    assert read_calls(text, TOOLS, coerce=False).calls[0].arguments == as_written
    assert read_calls(text, TOOLS).calls[0].arguments == as_written | {"guests": 4, "budget": 1.5}


def test_coercion_reaches_into_lists_and_objects() -> None:
    """Items and properties are coerced like arguments, and nothing else about them changes."""
    text = '{"name": "book_table", "arguments": {"host": {"first": "5", "age": "5"}, "dishes": ["1"]}}'
    call = read_calls(text, TOOLS).calls[0]
    assert call.arguments == {"host": {"first": "5", "age": 5}, "dishes": ["1"]}
    assert call.repairs == ("text read as number",)


def test_text_between_tags_gets_the_type_of_the_schema() -> None:
    """Where the notation has only text, the schema decides; what does not fit stays text."""
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


def test_brackets_are_added_only_before_a_closing_tag() -> None:
    """What is cut off is no call, however little is missing."""
    for text in (
        '<tool_call>{"name": "book_table", "arguments": {"place": "A"}',
        '{"name": "book_table", "arguments": {"place": "A"}</p>',
        '<tool_call>{"name": "book_table", "arguments": {"place": </tool_call>',
    ):
        assert calls_in(text) == []


def test_data_that_looks_a_little_like_a_call_is_data() -> None:
    """Names that were not offered make no calls of objects that only resemble them."""
    for text in (
        '{"calls": [{"alice": {"at": 3}}]}',
        '{"action": {"move": {"x": 1}}}',
        '{"tool": "hammer", "size": 3}',
    ):
        assert calls_in(text) == []


def test_positions_get_names_only_where_they_fit() -> None:
    """Arguments by position follow the order of the schema; one too many, one given twice or of another type is refused."""
    assert calls_in("book_table('A', 4, 2.5)") == [("book_table", {"place": "A", "guests": 4, "budget": 2.5})]
    for text in ("clock(1)", "book_table('A', place='B')", "book_table(4)"):
        reading = read_calls(text, TOOLS)
        assert reading.calls == ()
        assert "book_table" in reading.rejected[0].reason or "clock" in reading.rejected[0].reason


def test_explicit_notations_may_name_other_tools() -> None:
    """A call in a notation of calls counts whatever it names, unless only offered tools are wanted."""
    text = '<tool_call>{"name": "cook", "arguments": {"dish": "soup"}}</tool_call>'
    assert calls_in(text) == [("cook", {"dish": "soup"})]
    refused = read_calls(text, TOOLS, only_offered=True)
    assert refused.calls == ()
    assert [refusal.reason for refusal in refused.rejected] == ["cook is not offered"]
    assert calls_in("[cook(dish='soup')]") == []
    assert calls_of(read_calls("[cook(dish='soup')]", ())) == [("cook", {"dish": "soup"})]


@pytest.mark.parametrize(
    ("text", "reasoning", "left", "calls"),
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
    ],
)
def test_thoughts_are_taken_out(text: str, reasoning: str, left: str, calls: int) -> None:
    """Calls among thoughts are no calls, and thoughts are no text."""
    for reading in (read_calls(text, TOOLS), in_pieces(text, 1)):
        assert (reading.reasoning, reading.text, len(reading.calls)) == (reasoning, left, calls)


def test_thoughts_that_never_end_are_told() -> None:
    """Whoever asks again can tell the model why there was no answer."""
    reading = read_calls("<think>clock()", TOOLS)
    assert [(refusal.reason, refusal.start) for refusal in reading.rejected] == [("the reasoning is never closed", 0)]


@pytest.mark.parametrize("depth", [190, 205, 300, 2_000, 50_000])
def test_arguments_are_never_deeper_than_json_may_be(depth: int) -> None:
    """What is too deep to be handed on is refused or stays text, in every notation."""
    nested = "[" * depth + "]" * depth
    for text in (
        f"<function=other><parameter=a>{nested}</parameter></function>",
        f"<function=book_table><parameter=dishes>{nested}</parameter></function>",
        f'<tool_call>{{"name": "other", "arguments": "{{\\"a\\": {nested}}}"}}</tool_call>',
        f"book_table(place={nested})",
    ):
        for call in read_calls(text, TOOLS).calls:
            assert freeze_object(call.arguments)


def test_tags_within_arguments_are_arguments() -> None:
    """Text that looks like a tag or a call within an argument is part of it."""
    dish = "<think>clock()</think></tool_call>```"
    written = dish.replace('"', '\\"')
    for text in (
        f'{{"name": "book_table", "arguments": {{"place": "{written}"}}}}',
        f"book_table(place='{dish}')",
        f"<function=book_table><parameter=place>{dish}</parameter></function>",
    ):
        assert calls_in(text) == [("book_table", {"place": dish})]


def test_code_is_never_evaluated() -> None:
    """What is no literal is no argument, and says so."""
    for value in ("__import__('os')", "[x for x in y]", "f'{a}'", "lambda: 1", "1 + 1", "open", "b'a'", "1e999", "*a"):
        reading = read_calls(f"book_table(place={value})", TOOLS)
        assert reading.calls == ()
        assert reading.rejected


def test_equal_calls_count_and_explanations_do_not() -> None:
    """The same call twice is two calls; a call that is told again in another way, or in prose after a block, is not."""
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
def test_what_cannot_be_read_is_refused_and_left(text: str, reason: str) -> None:
    """A call that is cut off or broken stays in the text, with the reason."""
    reading = read_calls(text, TOOLS)
    assert reading.calls == ()
    assert reason in " ".join(refusal.reason for refusal in reading.rejected)


class ArrowCalls(TextFormat):
    """A notation of one's own: `=> name!`."""

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


def test_users_add_notations() -> None:
    """A format of one's own is read beside the others, whole and in pieces."""
    formats = (ArrowCalls(), *DEFAULT_FORMATS)
    text = "Now => clock! and clock()"
    reading = read_calls(text, TOOLS, formats=formats)
    assert [(call.name, call.format) for call in reading.calls] == [("clock", "arrow")]
    assert "set apart" in reading.rejected[0].reason
    reader = StreamReader(TOOLS, formats)
    told = [call.name for letter in text for call in reader.feed(letter).calls]
    assert told == ["clock"]
    assert reader.close() == reading


def test_a_format_that_waits_for_ever_is_stopped() -> None:
    """One that asks for more text after the end is refused."""

    class Waiting(ArrowCalls):
        def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
            while True:
                yield None

    reading = read_calls("=> a", TOOLS, formats=[Waiting()])
    assert (reading.calls, reading.text) == ((), "=> a")
    assert reading.rejected[0].reason == "the format waits for text after the end"


def test_text_is_shown_as_soon_as_it_is_safe() -> None:
    """Prose is not held back, the beginning of a call is, and what turns out to be none is shown then."""
    reader = StreamReader(TOOLS)
    assert reader.feed("I will").text == "I will"
    assert reader.feed(" use <tool").text == " use"
    assert reader.feed("s> and cl").text == " <tools> and"
    assert reader.feed("ay and clock").text == " clay and"
    assert reader.feed("(").text == ""
    assert [call.name for call in reader.feed(")").calls] == ["clock"]
    assert reader.close().text == "I will use <tools> and clay and"


def test_many_tools_are_no_hindrance() -> None:
    """A name that begins another one is told from it."""
    tools = (BOOK, *[ToolSpec(f"book_table_{n}", "Book", {"type": "object"}) for n in range(300)])
    assert calls_of(in_pieces("book_table_7(a=1) book_table(place='A')", 1, tools)) == [
        ("book_table_7", {"a": 1}),
        ("book_table", {"place": "A"}),
    ]
