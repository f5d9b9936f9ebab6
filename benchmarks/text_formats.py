"""Measures the reading of calls from text: each notation, streamed text, and hostile texts of up to 2 MB.

python benchmarks/text_formats.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

from measuring import Row, show

from agentloop.models.text_calls import StreamReader, read_calls
from agentloop.models.text_calls.results import ParseResult
from agentloop.values import Bounds, ToolSpec

TOOL = ToolSpec(
    "book_table",
    "Book a table",
    {"type": "object", "properties": {"place": {"type": "string"}, "guests": {"type": "integer"}}},
)
PROSE = "Here is what I would do about it, step by step, before anything is booked at all. "
PLACE = "Zum Hirsch in the old town, by the river, " * 5
JSON = f'{{"place": "{PLACE}", "guests": 4}}'
CALL = f'{{"name": "book_table", "arguments": {JSON}}}'
NOTATIONS = {
    "prose": PROSE,
    "JSON objects": f"{PROSE}\n{CALL}\n",
    "fenced JSON": f"{PROSE}\n```json\n{CALL}\n```\n",
    "list of Python calls": f"[book_table(place='{PLACE}', guests=4), book_table(place='{PLACE}', guests=5)]\n",
    "Python calls": f"book_table(place='{PLACE}', guests=4)\n",
    "<tool_call> with JSON": f"<tool_call>\n{CALL}\n</tool_call>\n",
    "<function=…> with tags": f"<function=book_table>\n<parameter=place>\n{PLACE}\n</parameter>\n</function>\n",
    "<invoke name=…>": f'<invoke name="book_table"><parameter name="place">{PLACE}</parameter></invoke>\n',
    "<arg_key>": f"<tool_call>book_table\n<arg_key>place</arg_key><arg_value>{PLACE}</arg_value></tool_call>\n",
    "[TOOL_CALLS]": f"[TOOL_CALLS]book_table[ARGS]{JSON}",
    "DeepSeek": f"<｜tool▁call▁begin｜>book_table<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>",
    "Kimi": f"<|tool_call_begin|>functions.book_table:0<|tool_call_argument_begin|>{JSON}<|tool_call_end|>",
    "harmony": f" to=functions.book_table<|channel|>commentary json<|message|>{JSON}<|call|>",
    "Gemma": f'<|tool_call>call:book_table{{place:<|"|>{PLACE}<|"|>}}<tool_call|>',
    "Action / Action Input": f"Action: book_table\nAction Input: {JSON}\n",
}
HOSTILE = {
    "brackets": "[",
    "braces": "{",
    "nested objects": '{"a":',
    "nested lists": "[1,",
    "open texts": '{"a": "',
    "open calls": "book_table(place=[",
    "open texts in calls": "book_table(place='",
    "backslashes": "\\",
    "open tags": "<tool_call>",
    "open tags with objects": '<tool_call>{"',
    "open parameters": "<function=f><parameter=a>",
    "closed parameters": "</parameter> x",
    "open reasoning tags": "<think>",
    "fences": "```",
    "names": "book_table ",
    "one word": "a",
    "two quotation marks": "[\"['",
}
LARGE = 2_000_000
MAX_GROWTH = 2.5
BOUNDS = Bounds(text_characters=LARGE)  # by default, longer texts than an answer are not read

Read = Callable[[str], ParseResult]


def at_once(text: str) -> ParseResult:
    return read_calls(text, [TOOL], bounds=BOUNDS)


def in_chunks(size: int) -> Read:
    def read(text: str) -> ParseResult:
        reader = StreamReader([TOOL], bounds=BOUNDS)
        for at in range(0, len(text), size):
            reader.feed(text[at : at + size])
        return reader.close()

    return read


def seconds(read: Read, text: str, rounds: int = 1) -> float:
    best = float("inf")
    for _ in range(rounds):
        before = time.process_time()
        result = read(text)
        best = min(best, time.process_time() - before)
        assert result.exceeded != "text_characters", "the text was not read"
    return best


def speed(what: str, text: str, minimum: float, read: Read = at_once) -> Row:
    rate = len(text) / 1e6 / seconds(read, text, 3)
    return Row(what, f"{rate:7.2f} MB/s", f">= {minimum} MB/s", rate >= minimum)


def growth(what: str, unit: str, size: int = LARGE, read: Read = at_once) -> Row:
    half, whole = (seconds(read, unit * (length // len(unit))) for length in (size // 2, size))
    ratio = whole / max(half, 1e-3)
    return Row(what, f"{whole:6.2f} s, t(2n)/t(n) = {ratio:.2f}", f"<= {MAX_GROWTH}", ratio <= MAX_GROWTH)


def main() -> None:
    notations = [speed(name, unit * (1_000_000 // len(unit)), 0.5) for name, unit in NOTATIONS.items()]
    show("Reading a megabyte of each notation", notations)
    text = (PROSE * 20 + NOTATIONS["<tool_call> with JSON"]) * 50
    show("Reading in chunks", [speed(f"of {size}", text, 0.05, in_chunks(size)) for size in (1, 4, 16)])
    streamed = [growth(name, unit, LARGE // 4, in_chunks(4)) for name, unit in HOSTILE.items()]
    show("Hostile texts of 500 kB in chunks of 4", streamed)
    show("Hostile texts of 2 MB", [growth(name, unit) for name, unit in HOSTILE.items()])


if __name__ == "__main__":
    main()
