"""Logs that name what they belong to."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.service.telemetry import JsonFormatter, LogContext
from tests.service.telemetry.observed import Watch, context_of

LOG = logging.getLogger("tests.service.telemetry")


class Sink:
    """A handler that writes to memory."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines as JSON."""
        return [json.loads(line) for line in self.stream.getvalue().split("\n")[:-1]]


@pytest.fixture
def sink() -> Iterator[Sink]:
    """Attach a handler with the formatter to the logger of the tests."""
    made = Sink()
    made.handler.setFormatter(JsonFormatter())
    LOG.addHandler(made.handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
    yield made
    LOG.removeHandler(made.handler)
    LOG.propagate = True


@tool(effect="pure")
def inside(item: int) -> int:
    """Write to the log, in a thread."""
    LOG.info("item %d", item, extra={"price": 1.5})
    return item


def loop_of(*lines: Any, **parts: Any) -> AgentLoop[Any]:
    return AgentLoop.for_model(ScriptedInference(*lines), tools=[inside], **parts)


async def test_a_record_has_the_name_of_the_agent(sink: Sink) -> None:
    """The name is in the line beside the id; the line of an agent without one has no such member."""
    for name in ("support", ""):
        await loop_of(ToolCall("call_1", "inside", '{"item": 3}'), "Done.", name=name).execute("Go.")
    named, nameless = sink.lines
    assert named["agent_name"] == "support"
    assert nameless["agent_id"]
    assert "agent_name" not in nameless


async def test_a_record_of_a_tool_names_its_call_and_its_trace(sink: Sink) -> None:
    """Execution, agent, step, call and trace are in the line, without any change of the tool."""
    watch = Watch()
    state = await watch.observe(loop_of(ToolCall("call_1", "inside", '{"item": 3}'), "Done.")).execute("Go.")
    (line,) = sink.lines
    span = context_of(watch.one("execute_tool inside"))
    time = line.pop("time")
    assert time.endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "tests.service.telemetry",
        "message": "item 3",
        "price": 1.5,
        "execution_id": state.execution_id,
        "agent_id": state.agent_id,
        "step": 1,
        "call_key": f"{state.execution_id}/1/0",
        "call_id": "call_1",
        "tool": "inside",
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
    }


async def test_records_are_correlated_without_an_observer(sink: Sink) -> None:
    """A loop that nothing observes has the ids of the execution; outside of one there are none."""
    LOG.info("before")
    state = await loop_of(ToolCall("1", "inside", '{"item": 3}'), "Done.").execute("Go.")
    before, during = sink.lines
    assert set(before) == {"time", "level", "logger", "message"}
    assert (during["execution_id"], "trace_id" in during) == (state.execution_id, False)


async def test_records_of_the_package_name_their_execution() -> None:
    """What agentloop itself logs about a failed tool has the key of the call once."""
    sink = Sink()
    sink.handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("agentloop.tools")
    logger.addHandler(sink.handler)

    @tool
    def broken() -> None:
        """Fail."""
        raise ValueError("no\nreally")

    try:
        loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "broken"), "Done."), tools=[broken])
        state = await loop.execute("Go.")
    finally:
        logger.removeHandler(sink.handler)
    (line,) = sink.lines
    assert (line["call_key"], line["tool"]) == (f"{state.execution_id}/1/0", "broken")
    assert line["exception"].endswith("ValueError: no\nreally")


async def test_the_filter_adds_the_ids_to_any_format() -> None:
    """A format that names them works outside of executions, too."""
    sink = Sink()
    sink.handler.addFilter(LogContext())
    sink.handler.setFormatter(logging.Formatter("%(execution_id)s %(step)s %(message)s"))
    LOG.addHandler(sink.handler)
    LOG.setLevel(logging.INFO)
    try:
        LOG.info("outside")
        state = await loop_of(ToolCall("1", "inside", '{"item": 3}'), "Done.").execute("Go.", execution_id="run-1")
    finally:
        LOG.removeHandler(sink.handler)
    assert sink.stream.getvalue().splitlines() == ["None None outside", f"{state.execution_id} 1 item 3"]


@pytest.mark.parametrize(
    "text",
    ['"}\n{"message": "forged"', "\u2028\u2029\x85\r\n", "\ud800", "\x1b[31m"],
    ids=["forged", "lines", "surrogate", "escape"],
)
def test_text_of_others_stays_inside_of_its_line(sink: Sink, text: str) -> None:
    """Neither a message nor an addition can begin another line, or another member."""
    given = {"given": text, "message_of": object()}
    record = LOG.makeRecord(LOG.name, logging.INFO, __file__, 1, "%s", (text,), None, extra=given)
    sink.handler.handle(record)  # not through the logger: pytest's own log could not be sent by xdist
    assert len(sink.stream.getvalue().splitlines()) == 1
    (line,) = sink.lines
    assert line["message"] == line["given"] == text
    assert line["message_of"].startswith("<object object")


class Unshowable:
    """A value whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("it is closed")


def test_an_addition_without_a_repr_does_not_cost_the_record(sink: Sink) -> None:
    """A record is written whatever it was given, alone or inside of other data."""
    LOG.info("one", extra={"given": Unshowable(), "nested": [Unshowable()]})
    (line,) = sink.lines
    assert (line["message"], line["given"], line["nested"]) == ("one", "<Unshowable>", "<list>")


def test_an_addition_does_not_replace_what_the_formatter_writes(sink: Sink) -> None:
    """`level` and `time` are those of the record."""
    LOG.info("one", extra={"level": "forged", "time": "never"})
    (line,) = sink.lines
    assert (line["level"], line["message"]) == ("INFO", "one")
    assert line["time"] != "never"
