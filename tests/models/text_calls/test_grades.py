"""Calls are graded by how they stand in their text, in every notation."""

from __future__ import annotations

from math import inf

import pytest

from agentloop.models.text_calls import CallGrade, StreamReader, read_calls
from agentloop.models.text_calls.results import ParseResult
from agentloop.values import Bounds

from .offered import TOOLS

ONE_LINE = {
    "tags": '<tool_call>{"name": "book_table", "arguments": {"place": "Rome"}}</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "book_table", "arguments": {"place": "Rome"}}]',
    "mistral with a name": '[TOOL_CALLS]book_table[ARGS]{"place": "Rome"}',
    "kimi": '<|tool_call_begin|>functions.book_table:0<|tool_call_argument_begin|>{"place": "Rome"}<|tool_call_end|>',
    "gemma": '<|tool_call>call:book_table{place:<|"|>Rome<|"|>}<tool_call|>',
    "function": "<function=book_table><parameter=place>Rome</parameter></function>",
    "invoke": '<invoke name="book_table"><parameter name="place">Rome</parameter></invoke>',
    "arg_key": "<tool_call>book_table<arg_key>place</arg_key><arg_value>Rome</arg_value></tool_call>",
    "nested tags": ']<]minimax[>[<invoke name="book_table">]<]minimax[>[<place>Rome]<]minimax[>[</place>]<]minimax[>[</invoke>',
    "python tag": '<|python_tag|>book_table(place="Rome")',
    "JSON": '{"name": "book_table", "arguments": {"place": "Rome"}}',
    "JSON list": '[{"name": "book_table", "arguments": {"place": "Rome"}}]',
    "Python": 'book_table(place="Rome")',
    "method": 'book_table.call(place="Rome")',
    "Python list": '[book_table(place="Rome")]',
    "text in JSON": '{"function_call": "book_table(place=1)"}',
}
SEVERAL_LINES = {
    "ReAct": 'Action: book_table\nAction Input: {"place": "Rome"}',
    "functionary": '>>>book_table\n{"place": "Rome"}',
    "name and arguments": 'book_table\n{"place": "Rome"}',
    "fence": '```python\nbook_table(place="Rome")\n```',
    "printed call": '```tool_code\nprint(default_api.book_table(place="Rome"))\n```',
    "deepseek": '<｜tool▁call▁begin｜>function<｜tool▁sep｜>book_table\n```json\n{"place": "Rome"}\n```<｜tool▁call▁end｜>',
}
NOTATIONS = ONE_LINE | SEVERAL_LINES

QUOTATIONS = {
    "code in a sentence": "The manual prints `{}` there, nothing more.",
    "double code marks": "The manual prints ``{}`` there, nothing more.",
    "a block quote": "> Please run this:\n> {}\n\nThat is what it says.",
    "a nested block quote": "It says:\n\n> > {}\n\nI left it alone.",
    "a block quote in a list": "Found there:\n\n- > {}\n\nand no more.",
    "two fences": "First\n\n```\n{}\n```\n\nand second\n\n```\nls -l\n```\n\nfrom the forum.",
    "two fences with tildes": "First\n\n~~~\n{}\n~~~\n\nand second\n\n~~~\nls -l\n~~~\n\nfrom the forum.",
    "typographic quotation marks": "On the page is “{}” and no reason for it.",
    "German quotation marks": "Dort steht „{}“, aber ich habe es nicht getan.",
    "French quotation marks": "La page dit « {} », rien de plus.",
    "Japanese quotation marks": "ページには「{}」とあります。",
    "an element": "The source has <code>{}</code> in line 7.",
    "an element over several lines": "The source has\n<pre>\n{}\n</pre>\nin line 7.",
    "a comment in HTML": "The source has <!-- {} --> in line 7.",
    "escaped HTML": "It shows &lt;p&gt;{}&lt;/p&gt; to readers.",
    "HTML that is escaped twice": "It shows &amp;lt;p&amp;gt;{}&amp;lt;/p&amp;gt; to readers.",
    "a tool's result": "<tool_response>{}</tool_response> is what came back.",
    "a table": "| page | text |\n|---|---|\n| 1 | {} |\n\nThat is all.",
    "a line of a diff": "The change is\n+{}\nin one file.",
    "a shell": "He typed\n$ {}\nand left.",
    "an interpreter": "He typed\n>>> {}\nand left.",
    "a log": "The log has\n2024-03-01 09:14:02 INFO {}\nand nothing after it.",
    "a comment": "The file has\n# {}\nat its top.",
}
"""Texts around a call that unambiguously quote it."""

MENTIONS = {
    "a negation": "I refuse to {} since nobody asked.",
    "a colon": "The page says: {}",
    "an introduction": "The page ends with this.\n{}",
    "an introduction and a paragraph": "The page ends with this.\n\n{}",
    "a remark": "{}\nThat was on the page.",
    "a list": "The steps are\n- {}\n- wait",
    "a numbered list": "1. Sit down\n2. {}\n3. Wait",
    "a heading": "## Calls\n{}",
    "another language": "Bitte nicht {} ausführen.",
    "a symbol": "❌ {}",
    "a symbol behind": "{} 👎",
    "a symbol on another line": "🚫\n{}",
    "a negation sign": "¬{}",
    "a strikethrough": "~~{}~~",
    "a comment alone": "<!-- {} -->",
    "a comment in a style sheet": "/* {} */",
    "a comment in Lisp": ";; {}",
    "quotation marks alone": '"{}"',
    "typographic quotation marks alone": "„{}“",
    "Japanese quotation marks alone": "「{}」",
    "a documentation text": '"""\n{}\n"""',
    "an omission": "…\n{}\n…",
    "a question": "{}\n???",
    "rules": "---\n{}\n---",
    "an open box": "☐ {}",
    "emphasis": "**{}**",
    "parentheses": "({})",
    "a log in a fence": "```log\n{}\n```",
    "a diff in a fence": "```diff\n-{}\n```",
    "a page in a fence": "```html\n<!-- {} -->\n```",
    "words at the start of a fence": "Never do this: ```json\n\n{}\n```",
    "a title of a fence": "```not_this\n{}\n```",
    "a word at the end of a fence": "```\n{}\n```no",
    "a fence in a fence": "````\n```\n{}\n```\n````",
    "a final channel": "<|channel|>final<|message|>{}",
    "a closing tag in a sentence": "The page has </think>{}",
    "a closing tag behind a colon": "The page says:\n</think>\n\n{}",
    "a closing tag of Mistral in a sentence": "The page ends with [/THINK]{}",
    "a closing tag in a fence": "The page.\n```\nWell.\n</think>\n{}",
    "a closing tag in a block quote": "The page.\n> Well.\n> </think>\n{}",
    "a closing tag in quotation marks": "The page has “Well. </think>{}",
    "reasoning and a block quote": "<think>hm</think>> {}",
}


AFTER_QUOTATIONS = {
    "a block quote": "> They ask for it.\n\n{}",
    "a quotation": "They said “book it”. So I do: {}",
    "a quotation mark that is open in another paragraph": "They call it “the table.\n\nSo I do this:\n{}",
    "a quotation mark that is open on another line": 'They wrote "book it\nNow {}',
    "an apostrophe": "It's time, so I don't wait: {}",
    "code": "I use `book_table` for that: {}",
    "a code mark that is open in another paragraph": "It has a ` in it.\n\nSo:\n{}",
    "an element": "<code>x</code> is done. Now {}",
    "a comment in HTML": "<!-- note -->\nNow {}",
    "a fence": "```\nls\n```\nNow {}",
    "words before its own fence": "I do this:\n```\n{}\n```",
    "words before a fence on one line": "I do this now:\n\n```{}```",
    "a table": "| a | b |\n|---|---|\n| 1 | 2 |\n\nNow {}",
    "a heading": "# Plan\nNow {}",
    "a line of a log": "2024-03-01 09:14:02 INFO x\nNow {}",
}
"""Texts that quote something else, and whose call is meant."""


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("text", ["{}", "\n{}\n\n", "<think>I should.</think>\n{}", "{}\n{}"])
def test_calls_that_are_the_whole_text_are_plain(notation: str, text: str) -> None:
    """White space, reasoning and further calls are no prose."""
    result = read_calls(text.replace("{}", NOTATIONS[notation]), TOOLS)
    assert set(result.grades) == {CallGrade.PLAIN}
    assert (len(result.grades), result.unread) == (len(result.calls), "")


@pytest.mark.parametrize("notation", NOTATIONS)
def test_reasoning_may_begin_in_the_prompt(notation: str) -> None:
    """A closing tag behind a sentence ends reasoning, unless it is known that the text does not begin in reasoning."""
    text = f"I should do that.\n</think>\n\n{NOTATIONS[notation]}"
    assert set(read_calls(text, TOOLS).grades) == {CallGrade.PLAIN}
    apart = read_calls(text, TOOLS, begins_in_reasoning=False)
    assert (set(apart.grades), apart.reasoning) == ({CallGrade.EMBEDDED}, "")


CALL = '"name": "book_table", "arguments": {"place": "Rome"}'


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        (f'{{{CALL}, "id": "call_1", "type": "function"}}', CallGrade.PLAIN),
        (f'{{{CALL}, "scratchpad": "they asked for it"}}', CallGrade.PLAIN),
        (f'{{"answer": null, "tool_calls": [{{{CALL}}}]}}', CallGrade.PLAIN),
        (f'{{{CALL}, "answer": "The page has this."}}', CallGrade.EMBEDDED),
        (f'{{{CALL}, "level": "INFO", "time": "09:14:02"}}', CallGrade.EMBEDDED),
        (f'{{"status": "refused", "tool_calls": [{{{CALL}}}]}}', CallGrade.EMBEDDED),
        (f'{{"tool_calls": [{{"comment": "not this", {CALL}}}]}}', CallGrade.EMBEDDED),
        (f'[{{"role": "assistant", "tool_calls": [{{{CALL}}}]}}]', CallGrade.EMBEDDED),
        (f'<tool_call>{{{CALL}, "note": "from the page"}}</tool_call>', CallGrade.EMBEDDED),
    ],
)
def test_an_object_with_other_contents_is_prose(text: str, grade: CallGrade) -> None:
    """A call in an object is plain if the object contains nothing else but reasoning and ids."""
    result = read_calls(text, TOOLS)
    assert [*result.grades] == [grade]


@pytest.mark.parametrize("notation", ONE_LINE)
@pytest.mark.parametrize("fence", ["```\n{}\n```", "```json\n{}\n```", "```python\n{}\n```\n", "`{}`"])
def test_one_fence_is_plain(notation: str, fence: str) -> None:
    """A call in a fenced block, or in code marks, is plain if there is nothing else."""
    assert set(read_calls(fence.replace("{}", ONE_LINE[notation]), TOOLS).grades) == {CallGrade.PLAIN}


@pytest.mark.parametrize("notation", ONE_LINE)
@pytest.mark.parametrize("quotation", QUOTATIONS)
def test_quotations_are_graded_as_quoted(notation: str, quotation: str) -> None:
    """A call that is only talked about is quoted, and stays in the text."""
    text = QUOTATIONS[quotation].replace("{}", ONE_LINE[notation])
    result = read_calls(text, TOOLS)
    assert set(result.grades) <= {CallGrade.QUOTED}
    assert result.quoting_text == text


@pytest.mark.parametrize("notation", ONE_LINE)
@pytest.mark.parametrize("quotation", AFTER_QUOTATIONS)
def test_a_quotation_ends_before_the_call_behind_it(notation: str, quotation: str) -> None:
    """A call in prose is not taken for quoted because something else in the text is."""
    text = AFTER_QUOTATIONS[quotation].replace("{}", ONE_LINE[notation])
    assert set(read_calls(text, TOOLS).grades) == {CallGrade.EMBEDDED}


@pytest.mark.parametrize("damaged", ["book_table(place, guests)", '{"name": "book_table", "arguments": {...}}'])
@pytest.mark.parametrize("quotation", QUOTATIONS | MENTIONS | {"alone": "{}", "a fence alone": "```\n{}\n```"})
def test_what_cannot_be_read_is_quoted_as_a_call_would_be(damaged: str, quotation: str) -> None:
    """A part that resembles a call stands in its text as a call does, so that a mode asks only for those that are meant."""
    context = (QUOTATIONS | MENTIONS | {"alone": "{}", "a fence alone": "```\n{}\n```"})[quotation]
    result = read_calls(context.replace("{}", damaged), TOOLS)
    (grade,) = set(read_calls(context.replace("{}", ONE_LINE["Python"]), TOOLS).grades) or {CallGrade.QUOTED}
    assert result.calls == ()
    assert {each.is_quoted for each in result.rejected if each.format != "reasoning"} <= {grade is CallGrade.QUOTED}


@pytest.mark.parametrize("context", QUOTATIONS | MENTIONS)
def test_no_call_in_prose_is_plain(context: str) -> None:
    """Whatever stands around a call, in whatever notation, it is not plain."""
    texts = {name: (QUOTATIONS | MENTIONS)[context].replace("{}", call) for name, call in NOTATIONS.items()}
    assert [name for name, text in texts.items() if CallGrade.PLAIN in read_calls(text, TOOLS).grades] == []


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("size", [1, 7])
def test_grades_do_not_depend_on_pieces(notation: str, size: int) -> None:
    """The result is the same when the text arrives in pieces."""
    for context in [*QUOTATIONS.values(), *MENTIONS.values(), "{}"]:
        text = context.replace("{}", NOTATIONS[notation])
        reader = StreamReader(TOOLS)
        for start in range(0, len(text), size):
            reader.feed(text[start : start + size])
        assert reader.close() == read_calls(text, TOOLS)


@pytest.mark.parametrize(
    "text",
    [
        "[clock(), cook(a=1), clock()]",
        "[cook(a=1), clock()]",
        "[clock(), cook(a=1)]",
        "clock()\ncook(a=1)",
        "cook(a=1)\nclock()",
        "[clock(), book_table(place=rome)]",
        '[{"name": "clock", "arguments": {}}, {"name": "clock", "arguments": {]}, {"name": "clock", "arguments": {}}]',
        '<tool_call>{"name": "clock", "arguments": {}}</tool_call>\n<tool_call>{"name": "clock", "arguments": {</tool_call>',
        'Action: clock\nAction Input: {}\nAction: clock\nAction Input: {"a": }',
        "<function=clock></function><function=book_table><parameter=place>Rome",
    ],
)
def test_a_part_that_is_not_parsed_is_reported(text: str) -> None:
    """Calls next to a part that resembles a call but cannot be parsed come with the reason."""
    result = read_calls(text, TOOLS)
    assert result.calls
    assert result.unread


def test_bounds_end_the_parsing() -> None:
    """A text that is too long, or takes too many steps, has no calls, and the result names the bound."""
    call = ONE_LINE["tags"]
    assert read_calls(call, TOOLS, bounds=Bounds(text_characters=10)).exceeded == "text_characters"
    hostile = call + "[{" * 2_000
    assert read_calls(hostile, TOOLS, bounds=Bounds(text_steps_per_character=1)) == ParseResult(
        text=hostile, quoting_text=hostile, full_text=hostile, exceeded="text_steps_per_character"
    )
    unbounded = read_calls(hostile, TOOLS, bounds=Bounds(text_characters=inf, text_steps_per_character=inf))
    assert (unbounded.exceeded, len(unbounded.calls)) == ("", 1)
