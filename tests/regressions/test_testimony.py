"""What tools and servers answer, and what the model reads: `python -m tests.regressions.test_testimony` prints it as a table."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import ipaddress
import json
import logging
import math
import sqlite3
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolExecution, tool
from agentloop.mcp import McpEnsemble
from agentloop.values import ErrorInfo, Text


class ObjectId:
    """An id as a database returns it."""

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"ObjectId('{self.value}')"


class Plain:
    """Says nothing about itself."""


class Unreadable:
    """Raises when it is written."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Frame:
    """A data frame with the methods of pandas, which is not installed here."""

    columns = ("id", "price")
    index = (7, 8)

    def to_dict(self, orient: str) -> dict[str, Any]:
        assert orient == "split"
        return {"index": [7, 8], "columns": ["id", "price"], "data": [[17, 2.5], [18, math.nan]]}


class Level(enum.IntEnum):
    """Two levels."""

    HIGH = 2


@dataclasses.dataclass
class Booking:
    """A booking."""

    id: Any
    on: date


class Model(BaseModel):
    """A model of pydantic."""

    id: int
    score: float


def row() -> sqlite3.Row:
    """Return a row of SQLite."""
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    found: sqlite3.Row = connection.execute("select 17 as id, 'paid' as state").fetchone()
    connection.close()
    return found


def ring() -> list[Any]:
    """Return a list that contains itself."""
    items: list[Any] = [17]
    items.append(items)
    return items


DAY = date(2026, 1, 2)
# The name of each case, what the tool returns, and what the model reads.
LOCAL: Sequence[tuple[str, Any, str]] = [
    ("NaN in a cell", {"id": 17, "score": math.nan}, '{"id":17,"score":"NaN"}'),
    ("infinities", [math.inf, -math.inf], '["Infinity","-Infinity"]'),
    ("keys that are numbers", {17: "booked", 2.5: 1}, '{"17":"booked","2.5":1}'),
    ("keys of several types", {None: 1, True: 2, (1, "a"): 3, DAY: 4}, '{"null":1,"true":2,"[1,\\"a\\"]":3,"2026-01-02":4}'),
    ("keys with equal texts", {1: "a", "1": "b"}, '[[1,"a"],["1","b"]]'),
    ("bytes", b"hi", "aGk="),
    ("a bytearray in a list", [bytearray(b"hi")], '["aGk="]'),
    ("a set of several types", {17, "a", None}, '["a",17,null]'),
    ("an id of a database", {"_id": ObjectId("64f"), "booked": True}, '{"_id":"ObjectId(\'64f\')","booked":true}'),
    ("a UUID, a decimal and an address", [uuid.UUID(int=17), Decimal("1.10"), ipaddress.ip_address("10.0.0.1")],
     '["00000000-0000-0000-0000-000000000011","1.10","10.0.0.1"]'),
    ("a data frame", Frame(), '{"columns":["id","price"],"rows":[[17,2.5],[18,"NaN"]],"index":[7,8]}'),
    ("a row of SQLite", row(), '{"id":17,"state":"paid"}'),
    ("an exception", {"failed": [ValueError("no seat")]}, '{"failed":[{"type":"ValueError","message":"no seat"}]}'),
    ("a dataclass with an id", Booking(ObjectId("64f"), DAY), '{"id":"ObjectId(\'64f\')","on":"2026-01-02"}'),
    ("a model with NaN", Model(id=17, score=math.nan), '{"id":17,"score":"NaN"}'),
    ("a member of an enumeration as a key", {Level.HIGH: Level.HIGH}, '{"2":2}'),
    ("a deque and a range", [collections.deque([17]), range(2)], "[[17],[0,1]]"),
    ("a time with a span", [time(9, 30), timedelta(minutes=1)], '["09:30:00",60.0]'),
    ("a class", dict, "type <class 'dict'>"),
    ("an object", Plain(), "<tests.regressions.test_testimony.Plain object>"),
    ("an object that cannot be written", [17, Unreadable()], '[17,"<Unreadable, whose text cannot be read: RuntimeError>"]'),
    ("a list that contains itself", ring(), '[17,"(the list that this is a part of)"]'),
    ("a very long text of an object", [ObjectId("64f" * 5_000)], '["ObjectId(\'64f'),
    ("a long integer", 10**4_500, "1" + "0" * 100),
    ("a picture beside other values", [Text("seen "), {1: 2}], 'seen {"1":2}'),
]  # fmt: skip

BOOKED = [{"type": "text", "text": "payment 17 is booked"}]
DATA = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
# The name of each case, the answer of the server, what the model reads of it, and more of the definition of the tool.
SERVED: Sequence[tuple[str, Any, str, Mapping[str, Any]]] = [
    ("a schema, and only text", {"content": BOOKED}, "payment 17 is booked", {"outputSchema": DATA}),
    ("content that does not fit its schema", {"content": BOOKED, "structuredContent": {"data": 5}}, '{"data":5}', {"outputSchema": DATA}),
    ("a schema that is none", {"content": BOOKED}, "payment 17 is booked", {"outputSchema": {"type": "thing"}}),
    ("isError: null", {"content": BOOKED, "isError": None}, "payment 17 is booked", {}),
    ("isError: 'false'", {"content": BOOKED, "isError": "false"}, "payment 17 is booked", {}),
    ("content: null", {"content": None, "structuredContent": {"id": 17}}, '{"id":17}', {}),
    ("content is a text", {"content": "payment 17 is booked"}, "payment 17 is booked", {}),
    ("content is one object", {"content": BOOKED[0]}, "payment 17 is booked", {}),
    ("bare texts in the content", {"content": ["payment 17", "is booked"]}, "payment 17\nis booked", {}),
    ("an unknown kind of content", {"content": [{"type": "video", "id": 17}, *BOOKED]}, '{"type":"video","id":17}', {}),
    ("a text that is a number", {"content": [{"type": "text", "text": 17}]}, '"text":17', {}),
    ("annotations: null, _meta: 5", {"content": [{**BOOKED[0], "annotations": None, "_meta": 5}], "_meta": 5}, "payment 17 is booked", {}),
    ("a picture without a type", {"content": [{"type": "image", "data": "aGk="}, *BOOKED]}, "payment 17 is booked", {}),
    ("a resource without an address", {"content": [{"type": "resource", "resource": {"text": "page 17"}}]}, "page 17", {}),
    ("a link without a name", {"content": [{"type": "resource_link", "uri": "file:///17"}]}, "file:///17", {}),
    ("a list as structured content", {"content": [], "structuredContent": [17]}, "[17]", {}),
    ("neither content nor structured content", {"booking": 17}, '{"booking":17}', {}),
    ("a result that is a text", {"message": {"result": "payment 17 is booked"}}, "payment 17 is booked", {}),
    ("an error with structured content", {"content": [{"type": "text", "text": "refused"}], "isError": True, "structuredContent": {"code": "E17"}}, '{"code":"E17"}', {"outputSchema": DATA}),
    ("an error of the protocol with data", {"message": {"error": {"code": -32000, "message": "busy", "data": {"booking": 17}}}}, '{"booking":17}', {}),
    ("an error that is a text", {"message": {"error": "payment 17 is booked already"}}, "payment 17 is booked already", {}),
    ("an error beside a result of null", {"message": {"result": None, "error": {"code": "E", "message": "seat 17 is taken"}}}, "seat 17 is taken", {}),
]  # fmt: skip


def run_local(value: Any) -> ToolExecution:
    """Return the outcome of a call of a tool that returns the value."""

    @tool
    def book() -> Any:
        """Book."""
        return value

    state = AgentLoop.for_model(ScriptedInference(ToolCall("1", "book", "{}"), "done"), tools=[book]).execute_sync(
        "Go."
    )
    return state.steps[0].executions[0]


async def run_served() -> list[ToolExecution]:
    """Return the outcomes of all calls over one connection to a server in a process of its own."""
    tools = [
        {"name": f"case_{number}", "description": "Book.", "inputSchema": {"type": "object"}, **more}
        for number, (_, _, _, more) in enumerate(SERVED)
    ]
    answers = {f"case_{number}": answer for number, (_, answer, _, _) in enumerate(SERVED)}
    command = ["-S", str(Path(__file__).with_name("odd_server.py")), json.dumps(tools), json.dumps(answers)]
    model = ScriptedInference([ToolCall(name, name, "{}") for name in answers], "done")
    server = McpEnsemble.stdio(sys.executable, command, name="odd")
    async with AgentLoop.for_model(model, tools=[server]) as loop:
        state = await loop.execute("Go.")
    return [execution for step in state.steps for execution in step.executions]


@pytest.mark.parametrize(("value", "read"), [pytest.param(value, read, id=name) for name, value, read in LOCAL])
def test_whatever_a_tool_returned_reaches_the_model(value: Any, read: str) -> None:
    """The call succeeded, and the model reads the documented form of the value, in a bounded length."""
    execution = run_local(value)
    assert execution.succeeded
    assert execution.text.startswith(read)
    assert len(execution.text) < 10_000


async def test_whatever_a_server_answered_reaches_the_model() -> None:
    """Whatever is wrong with the form of an answer, the model reads what it says, and that a failed call may have run."""
    executions = await run_served()
    assert len(executions) == len(SERVED)
    for (name, _, read, _), execution in zip(SERVED, executions, strict=True):
        assert read in execution.text, name
        assert execution.succeeded or "may have taken effect" in execution.text, name
        assert execution.succeeded is ("an error" not in name), name


def test_a_failed_call_says_whether_it_may_have_run() -> None:
    """The text of an error says it for an effect that began, and not for a call that did not run, or of a pure tool."""

    @tool
    def pay(cents: int) -> str:
        """Pay."""
        raise ConnectionError("the answer was lost")

    @tool(effect="pure")
    def look(cents: int) -> str:
        """Look."""
        raise ConnectionError("the answer was lost")

    def text_of(name: str, arguments: str) -> str:
        model = ScriptedInference(ToolCall("1", name, arguments), "done")
        return AgentLoop.for_model(model, tools=[pay, look]).execute_sync("Go.").steps[0].executions[0].text

    note = "[The call may have taken effect; find out before you make it again.]"
    assert text_of("pay", '{"cents": 1}') == f"ConnectionError: the answer was lost {note}"
    assert note not in text_of("look", '{"cents": 1}')
    assert note not in text_of("pay", '{"cents": "many"}')


def test_a_group_of_errors_has_all_of_them() -> None:
    """What each task of a group raised is in the message, and so are notes."""
    error = ValueError("no seat")
    error.add_note("row 17")
    group = ExceptionGroup("booking", [error, ExceptionGroup("inner", [KeyError("id")])])
    assert ErrorInfo.of(group).message.splitlines() == [
        "booking (2 sub-exceptions)",
        "ValueError: no seat",
        "row 17",
        "ExceptionGroup: inner (1 sub-exception)",
        "KeyError: 'id'",
    ]


def table() -> Iterable[str]:
    """Yield the lines of the table."""
    rows = [("local", name, run_local(value)) for name, value, _ in LOCAL]
    rows += [("MCP", name, each) for (name, _, _, _), each in zip(SERVED, asyncio.run(run_served()), strict=True)]
    for number, (where, name, execution) in enumerate(rows, 1):
        yield f"{number:2} {where:5} {name:40} {execution.status.value:9} {execution.text!r:.150}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.stdout.write("\n".join([*table(), ""]))
