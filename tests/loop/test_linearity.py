"""The work per message does not grow with the execution (law 20), and requests extend each other (law 13)."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agentloop
from agentloop import (
    AgentLoop,
    AgentState,
    HttpInference,
    Message,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    tool,
)
from agentloop.compilers.stale import StaleResults
from agentloop.durable import MemoryJournal
from agentloop.loop.inbox import Inboxes
from agentloop.models.http_client import in_process_client
from agentloop.models.wire_formats import decoding
from agentloop.models.wire_formats.openai_chat import requests
from agentloop.testing import CountingIds, ManualClock
from agentloop.tools import SchemaValidator
from agentloop.tools import conversion as tool_conversion
from agentloop.values import Text, serialization
from tests.models.loopback import completion
from tests.models.loopback_inference import inference_for

PACKAGE = str(Path(agentloop.__file__).parent)
CALLS_PER_STEP = 2


@dataclass
class Point:
    """An argument that is converted to a class."""

    x: int
    y: int


@tool(effect="pure")
async def move(by: Point, why: str) -> Point:
    """Move.

    Args:
        by: how far.
        why: the reason.
    """
    return Point(by.x + 1, by.y + 1)


def two_calls_per_step(steps: int, bodies: list[bytes]) -> Callable[[str, bytes], tuple[int, dict[str, str], bytes]]:
    """Return a provider whose responses have two calls each, before the answer."""

    def call(step: int, place: int) -> dict[str, Any]:
        arguments = json.dumps({"by": {"x": step, "y": place}, "why": "because"})
        return {"id": f"c{place}", "type": "function", "function": {"name": "move", "arguments": arguments}}

    def answer(_path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        bodies.append(body)
        step = len(bodies)
        if step > steps:
            return 200, {}, completion("done")
        return 200, {}, completion(f"step {step}", tool_calls=[call(step, n) for n in range(CALLS_PER_STEP)])

    return answer


def execute_over_http(steps: int, state: AgentState | str = "Go.") -> tuple[AgentState, list[bytes]]:
    """Execute with real requests and responses of Chat Completions that never leave the process."""
    bodies: list[bytes] = []
    client = in_process_client(two_calls_per_step(steps, bodies))
    inference: HttpInference = inference_for("http://model.invalid/v1", client=client)
    loop = AgentLoop(
        ToolCallingDriver(inference),
        [move],
        system_prompt="Move.",
        max_steps=steps + 1,
        clock=ManualClock(),
        ids=CountingIds(),
    )
    final = loop.execute_sync(state)
    final.raise_for_status()
    assert final.step_count == steps + 1
    return final, bodies


def count_calls(monkeypatch: pytest.MonkeyPatch, counts: Counter[str], owner: Any, name: str) -> None:
    """Count the calls of a function."""
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)


@contextmanager
def count_all_calls(counts: Counter[str]) -> Iterator[None]:
    """Count every call of a Python function of the package, without finalizers of what other tests have left behind."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            counts[frame.f_code.co_qualname] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


@pytest.mark.parametrize("steps", [10, 40])
def test_each_message_is_compiled_encoded_and_validated_once(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Over n steps each message and each spec is encoded once, and each call is validated and converted once (law 20)."""
    encoded: Counter[int] = Counter()
    alive: list[object] = []  # the id of a message is unique only as long as the message lives
    encode = requests.encode_message

    def encode_counted(message: Message, **options: Any) -> bytes:
        encoded[id(message)] += 1
        alive.append(message)
        return encode(message, **options)

    counts: Counter[str] = Counter()
    monkeypatch.setattr(requests, "encode_message", encode_counted)
    count_calls(monkeypatch, counts, requests, "_tool")
    count_calls(monkeypatch, counts, SchemaValidator, "problems")
    count_calls(monkeypatch, counts, tool_conversion, "structure")
    count_calls(monkeypatch, counts, StaleResults, "of")
    count_calls(monkeypatch, counts, serialization, "to_json")
    final, _ = execute_over_http(steps)
    calls = steps * CALLS_PER_STEP
    assert len(encoded) == len(final.messages) - 1  # the answer itself was not sent
    assert set(encoded.values()) == {1}
    assert counts["_tool"] <= 1  # the spec is the tool's, and may have been encoded by a run before
    assert counts["problems"] == calls
    assert counts["structure"] == calls * 2  # each of the two parameters
    assert counts["of"] == 1
    assert counts["to_json"] == 0


def test_a_compiled_history_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of earlier executions are compiled and encoded once in the next, however many there are."""
    earlier, _ = execute_over_http(10)
    counts: Counter[str] = Counter()
    count_calls(monkeypatch, counts, StaleResults, "of")
    count_calls(monkeypatch, counts, requests, "encode_message")
    execute_over_http(20, earlier.with_message(Message.user("Again.")))
    assert counts["of"] == 1
    assert counts["encode_message"] == 2 + 20  # the last answer, the new question, and what each step adds


def faster_than_linear(run: Callable[[int], object], *sizes: int, tolerance: int = 0) -> dict[str, list[int]]:
    """Return the functions of the package whose number of calls grows faster than the size, with their numbers of calls.

    Args:
        run: does the work of a size.
        sizes: three sizes at equal distances.
        tolerance: by how many calls a function may differ, where threads and tasks take turns by chance.
    """
    for _ in range(2):
        run(sizes[0])  # what is loaded, compiled and kept with the first runs
    counts: list[Counter[str]] = []
    for size in sizes:
        counts.append(Counter())
        with count_all_calls(counts[-1]):
            run(size)
    first, second, third = counts
    assert third.total() > second.total() > first.total() > 100
    names = [name for name in third if third[name] - second[name] > second[name] - first[name] + tolerance]
    return {name: [count[name] for count in counts] for name in names}


def test_the_work_of_the_package_grows_linearly_with_the_steps() -> None:
    """Twenty more steps take the same number of function calls, wherever in the execution they are (law 20)."""
    assert not faster_than_linear(execute_over_http, 10, 30, 50)


def test_the_work_grows_linearly_with_the_messages_that_are_sent() -> None:
    """A message to an execution with a journal takes the same number of function calls, however many wait (law 20)."""

    def run(count: int) -> None:
        @tool
        async def send() -> str:
            """Send."""
            for number in range(count):
                inbox.send(f"message {number}")
            return "sent"

        model = ScriptedInference(ToolCall("1", "send"), "Done.", "Done.")
        loop = AgentLoop.for_model(model, tools=[send], journal=MemoryJournal(), clock=ManualClock(), ids=CountingIds())
        inbox = loop.inbox("run")
        state = loop.execute_sync("Go.", execution_id="run")
        assert [message.text for message in state.messages if message.role == "user"][-1] == f"message {count - 1}"

    assert not faster_than_linear(run, 100, 200, 300, tolerance=20)


def test_recorded_messages_are_found_among_those_that_wait_in_linear_time() -> None:
    """An execution that goes on compares each recorded message with one that waits, in whatever order they were recorded."""

    def run(count: int) -> None:
        inboxes, messages = Inboxes(), [Message.user(f"message {number}") for number in range(count)]
        inboxes.open("run", lambda message: None)
        for message in messages:
            inboxes.put("run", message)
            assert inboxes.mark_recorded("run", message)
        inboxes.restore("run", [Message.user(message.text) for message in reversed(messages)])
        assert inboxes.take("run") == messages

    assert not faster_than_linear(run, 100, 200, 300)


@pytest.mark.parametrize(
    "change",
    [
        lambda state, number: state.with_metadata(**{f"entry_{number}": {"at": [number]}}),
        lambda state, number: state.with_extension(f"owner {number}", {"at": [number]}),
        lambda state, number: state.with_context(
            state.context.with_messages([state.messages[0].with_metadata(**{f"entry_{number}": {"at": [number]}})])
        ),
    ],
    ids=["metadata", "extensions", "metadata of a message"],
)
def test_an_entry_of_json_that_grows_is_converted_once(change: Callable[[AgentState, int], AgentState]) -> None:
    """An entry that is added to metadata or extensions takes the same number of function calls, however many there are."""

    def run(count: int) -> None:
        state = AgentState.start("Go.", agent_id="agent", clock=ManualClock())
        for number in range(count):
            state = change(state, number)

    assert not faster_than_linear(run, 50, 100, 150)


class CountsChecks(type):
    """The class of a message class. Checking the type of a value looks it up in a set, which hashes the class."""

    checks = 0

    def __hash__(cls) -> int:
        CountsChecks.checks += 1
        return super().__hash__()


class WatchedMessage(Message, metaclass=CountsChecks):
    """A message that counts how often messages of its class are checked."""

    __slots__ = ()


@pytest.mark.parametrize("steps", [5, 20])
def test_earlier_messages_are_not_checked_again(steps: int) -> None:
    """A step checks the types of its own messages only, in C code too, which no count of Python calls shows."""

    def checks(steps: int, messages: int) -> int:
        state = AgentState.start(agent_id="agent", clock=ManualClock())
        for number in range(messages):
            state = state.with_message(WatchedMessage("user", (Text(str(number)),)))
        CountsChecks.checks = 0
        execute_over_http(steps, state)
        return CountsChecks.checks

    assert checks(steps, 40) == checks(0, 40)
    assert checks(steps, 40) - checks(steps, 20) <= 20 * 3  # each once, in a few places


def test_each_response_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response is decoded when it arrives and never again."""
    counts: Counter[str] = Counter()
    count_calls(monkeypatch, counts, decoding, "parse_json")
    execute_over_http(10)
    assert counts["parse_json"] == 11


def prefix_of(body: bytes) -> str:
    """Return the text of a request up to the last byte before its array of messages is closed."""
    text = body.decode()
    begin = text.index('"messages":[') + len('"messages":')
    _, end = json.JSONDecoder().raw_decode(text, begin)
    return text[: end - 1]


def test_each_request_extends_the_previous_one_byte_for_byte() -> None:
    """Model, tools, system prompt and messages of a request begin the next request unchanged (law 13)."""
    _, bodies = execute_over_http(12)
    assert len(bodies) == 13
    for earlier, later in pairwise(map(prefix_of, bodies)):
        assert later.startswith(earlier)
        assert len(later) > len(earlier)
        assert later[len(earlier)] == ","
    assert '"tools":[' in prefix_of(bodies[0])


def test_a_new_execution_extends_the_requests_of_the_one_before() -> None:
    """The second execution shows the whole conversation, so its requests extend those of the first (law 13)."""
    earlier, before = execute_over_http(3)
    _, after = execute_over_http(3, earlier.with_message(Message.user("Again.")))
    assert all(later.startswith(one) for one, later in pairwise(map(prefix_of, [*before, *after])))
