"""Watching changes nothing: exporters that raise or hang, secrets, and records of observed executions."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal, Redaction
from agentloop.service.telemetry import OpenTelemetry
from agentloop.service.telemetry.recording import SpanRecorder
from agentloop.testing import CountingIds, ManualClock
from agentloop.values import AgentState, Image, Message, Reasoning, to_json
from agentloop.values.secrets import Secret
from tests.limits import LONGEST
from tests.service.telemetry.observed import Watch, attribute


@tool(effect="pure")
def stock(item: str, token: str = "") -> dict[str, Any]:
    """Return the number of items in stock."""
    return {"left": 3, "token": token}


def loop_of(**options: Any) -> AgentLoop[Any]:
    """Return a loop with times and ids that are the same in every run."""
    model = ScriptedInference(ToolCall("1", "stock", '{"item": "lamp", "token": "hunter2hunter2"}'), "Three.")
    settings = {"tools": [stock], "clock": ManualClock(datetime(2026, 1, 1, tzinfo=UTC)), "ids": CountingIds()}
    return AgentLoop.for_model(model, **{**settings, **options})


class Raising(SpanProcessor):
    """A processor that raises wherever it is called."""

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        raise OSError("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        raise OSError("on_end")


class Hanging(SpanExporter):
    """An exporter that hangs until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.release.wait(LONGEST)
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """An exporter that is released at the end."""
    made = Hanging()
    yield made
    made.release.set()


async def test_a_processor_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The state is that of an execution that nothing observes, and the errors are in the log."""
    plain = await loop_of().execute("Go.")
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(Raising())
    loop = loop_of()
    OpenTelemetry(tracers).observe(loop)
    with caplog.at_level(logging.ERROR):
        observed = await loop.execute("Go.")
    assert to_json(observed) == to_json(plain)
    assert any("on_start" in str(record.exc_info) for record in caplog.records)


async def test_an_exporter_that_hangs_delays_one_execution_by_a_moment(hanging: Hanging) -> None:
    """The first execution waits for a quarter of a second, others for nothing; what waited is exported in the end."""
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(hanging))
    loop = loop_of()
    telemetry = OpenTelemetry(tracers)
    telemetry.observe(loop)
    began = time.monotonic()
    await loop.execute("Go.")
    first = time.monotonic() - began
    await asyncio.gather(*[loop.execute("Go.") for _ in range(20)])
    others = time.monotonic() - began - first
    assert 0.2 < first < LONGEST
    assert others < LONGEST
    assert hanging.names == []
    hanging.release.set()
    assert telemetry.flush(LONGEST)
    assert hanging.names.count("invoke_agent") == 21


def test_spans_are_dropped_when_too_many_wait(hanging: Hanging, caplog: pytest.LogCaptureFixture) -> None:
    """What is dropped is said once, and memory stays bounded."""
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(hanging))
    recorder = SpanRecorder(tracers.get_tracer("test"), max_waiting=3)
    for number in range(10):
        recorder.end(recorder.start(str(number), {}, 1, {}), 2)  # type: ignore[arg-type]  # an empty context
    assert [record.getMessage() for record in caplog.records] == [
        "spans are dropped: 3 wait for a processor or an exporter"
    ]
    hanging.release.set()
    assert recorder.flush(LONGEST)
    assert hanging.names == ["0", "1", "2"]


async def test_an_observed_execution_is_recorded_as_an_unobserved_one() -> None:
    """The records are the same, except that the first one names the trace."""
    bodies = []
    for watch in (None, Watch(content=True)):
        journal = MemoryJournal()
        loop = loop_of(journal=journal)
        state = await (loop if watch is None else watch.observe(loop)).execute("Go.", execution_id="run")
        bodies.append([json.loads(record.body) for record in await journal.read("run")])
        assert state.final_text == "Three."
    plain, observed = bodies
    assert set(observed[0].pop("context")) == {"traceparent"}
    assert observed == plain


async def test_content_is_left_out_unless_it_is_asked_for() -> None:
    """Without `content`, no span has a message, an argument, a result or a prompt."""
    watch = Watch()
    await watch.observe(loop_of(system_prompt="You are a clerk.")).execute("What is left?")
    text = "".join(span.to_json() for span in watch.spans)
    assert not [word for word in ("clerk", "left", "lamp", "hunter2", "Three") if word in text]


async def test_content_is_masked_as_in_the_journal() -> None:
    """Secrets of the journal and of the observer, and their fields, are masked in every attribute."""
    journal = MemoryJournal(secrets=["hunter2hunter2"])
    watch = Watch(content=True, redaction=Redaction(["clerk-secret"], ["left"]))
    loop = watch.observe(loop_of(journal=journal, system_prompt="You are clerk-secret."))
    await loop.execute("The token is hunter2hunter2.")
    spans = watch.spans
    text = "".join(span.to_json() for span in spans)
    assert "hunter2" not in text
    assert "clerk-secret" not in text
    assert attribute(watch.one("execute_tool stock"), "gen_ai.tool.call.arguments") == '{"item":"lamp","token":"***"}'
    assert attribute(watch.one("execute_tool stock"), "gen_ai.tool.call.result") == '{"left":"***","token":"***"}'
    chat = watch.named("chat")[1]
    messages = json.loads(attribute(chat, "gen_ai.input.messages"))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["parts"][0]["arguments"] == {"item": "lamp", "token": "***"}
    assert json.loads(attribute(chat, "gen_ai.system_instructions")) == [{"type": "text", "content": "You are ***."}]
    assert json.loads(attribute(chat, "gen_ai.output.messages")) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Three."}], "finish_reason": "stop"}
    ]
    assert [each["name"] for each in json.loads(attribute(chat, "gen_ai.tool.definitions"))] == ["stock"]


async def test_keys_that_the_agent_has_are_masked_in_content() -> None:
    """A key of which nobody told the journal or the observer is in no attribute, although a model and a tool repeat it."""
    key = Secret("sk-live-0123456789")

    @tool(effect="pure")
    def leak(text: str) -> str:
        """Repeat the key."""
        return f"{text} {key.reveal()}"

    watch = Watch(content=True)
    model = ScriptedInference(ToolCall("1", "leak", f'{{"text": "{key.reveal()}"}}'), f"It is {key.reveal()}.")
    await watch.observe(AgentLoop.for_model(model, tools=[leak])).execute("What is it?")
    text = "".join(span.to_json() for span in watch.spans)
    assert "It is ***." in text
    assert key.reveal() not in text


async def test_pictures_are_named_and_not_copied() -> None:
    """A span has the type and the size of a picture or its address, and reasoning as such."""
    watch = Watch(content=True)
    loop = watch.observe(AgentLoop.for_model(ScriptedInference("A dot.")))
    state = AgentState.start(
        Message.user(
            "What is it?", Image(media_type="image/png", data=b"\x89PNG" * 10), Image(url="https://example.com/a")
        )
    )
    await loop.execute(state.with_message(Message.assistant(Reasoning("Hm."), "Look:")).with_message("Well?"))
    asked, answered, _ = json.loads(attribute(watch.one("chat"), "gen_ai.input.messages"))
    assert asked["parts"][1:] == [
        {"type": "media", "modality": "image", "mime_type": "image/png", "size": 40},
        {"type": "uri", "modality": "image", "uri": "https://example.com/a"},
    ]
    assert answered["parts"] == [{"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "Look:"}]


def test_an_observer_shows_no_secret() -> None:
    """Its repr has its settings without the secrets."""
    assert repr(OpenTelemetry(redaction=Redaction(["hunter2hunter2"]), agent_name="shop")) == (
        "OpenTelemetry(content=False, agent_name='shop')"
    )


def test_without_the_extra_an_observer_says_how_to_install_it() -> None:
    """Logs and traces of others work without OpenTelemetry; what needs it names the extra."""
    code = """
import sys
sys.modules["opentelemetry"] = None
from agentloop.errors import ConfigurationError
from agentloop.service.telemetry import JsonFormatter, LogContext
JsonFormatter(), LogContext()
try:
    from agentloop.service.telemetry import OpenTelemetry
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "need the extra `otel`" in done.stdout
    assert "agentloop-kernel[otel]" in done.stdout


def test_a_program_without_spans_does_not_load_opentelemetry() -> None:
    """To run an execution, with its logs in JSON, needs no module of OpenTelemetry."""
    code = """
import logging, sys
from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.service.telemetry import JsonFormatter
from agentloop.events import continue_trace, trace_headers
logging.getLogger().addHandler(handler := logging.StreamHandler())
handler.setFormatter(JsonFormatter())
@tool
def log() -> None:
    "Log."
    logging.warning("hello")
with continue_trace({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}):
    AgentLoop.for_model(ScriptedInference(ToolCall("1", "log"), "Done."), tools=[log]).execute_sync("Go.")
assert trace_headers() == {}
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert '"call_key"' in done.stderr


def test_spans_that_wait_when_the_program_ends_are_exported() -> None:
    """The end of the program hands over what an exporter held up, before the processors are shut down."""
    code = """
import atexit, threading
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from agentloop import AgentLoop, ScriptedInference
from agentloop.service.telemetry import OpenTelemetry

release = threading.Event()

class Late(SpanExporter):
    def export(self, spans):
        release.wait()
        print(*[span.name for span in spans])
        return SpanExportResult.SUCCESS
    def shutdown(self):
        print("shut down")

tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(Late()))
loop = AgentLoop.for_model(ScriptedInference("Done."))
OpenTelemetry(tracers).observe(loop)
loop.execute_sync("Go.")
atexit.register(release.set)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["chat", "step 1", "invoke_agent", "shut down", ""]


def test_a_forked_process_hands_over_its_own_spans() -> None:
    """The thread that ends spans stays with the parent; the child starts one of its own."""
    code = """
import os
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from agentloop import AgentLoop, ScriptedInference
from agentloop.service.telemetry import OpenTelemetry

exporter, tracers = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
tracers.add_span_processor(SimpleSpanProcessor(exporter))
loop = AgentLoop.for_model(ScriptedInference("Done."))
OpenTelemetry(tracers).observe(loop)
loop.execute_sync("Go.")
child = os.fork()
loop.execute_sync("Go.")
os.write(1, b"%d " % len(exporter.get_finished_spans()))  # two processes write, each at once
if child:
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "6 6 "
