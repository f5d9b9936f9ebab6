"""The tracebacks of tools that raised, in the records of their calls."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, Tool, ToolCall, ToolExecutor, tool
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable import MemoryJournal
from agentloop.durable.fold import FoldedExecution
from agentloop.durable.redaction import Redaction
from agentloop.errors import AskAgain
from agentloop.policies import Resilience
from agentloop.testing import CrashableJournal
from agentloop.values import JournalRecord, RecordKind, RetryPolicy, ToolStatus
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.records import TRACEBACK, RecordedCall
from agentloop.values.serialization import to_json

SECRET = "sk-5f1c-88aa"


def divide(by: int) -> float:
    """Fail below the tool."""
    return 1 / by


@tool
async def asynchronous() -> float:
    """Fail as a coroutine."""
    return divide(0)


@tool
def in_thread() -> float:
    """Fail in a thread."""
    return divide(0)


@tool(effect="pure", inline=True)
def inline() -> float:
    """Fail in the event loop."""
    return divide(0)


@tool(timeout=60)
async def with_timeout() -> float:
    """Fail in a task."""
    return divide(0)


class OwnClass(Tool):
    """A tool that is a class."""

    name = "own_class"
    description = "Fail."
    parameters = EMPTY_OBJECT

    async def use(self) -> float:
        """Fail."""
        return divide(0)


def with_error(error: BaseException) -> Tool:
    """Return a tool that raises an error."""

    @tool(effect="pure")
    async def fail() -> None:
        """Fail."""
        raise error

    return fail


async def run(failing: Tool, journal: CanJournal, **parts: Any) -> ScriptedInference:
    """Execute one call of a tool, and an answer."""
    model = ScriptedInference(ToolCall("1", failing.name), "Done.")
    loop = AgentLoop.for_model(model, tools=[failing], journal=journal, **parts)
    state = await loop.execute("Go.", execution_id="run")
    assert "Traceback" not in to_json(state).decode()
    assert all("Traceback" not in to_json(request).decode() for request in model.requests)
    return model


def call_in(records: list[JournalRecord] | tuple[JournalRecord, ...]) -> RecordedCall:
    """Return the recorded call as it is after its outcome."""
    folded = FoldedExecution()
    for record in records:
        folded.apply(record)
        if record.kind is RecordKind.CALL_OUTCOME:
            break
    return folded.calls["run/1/0"]


async def traceback_of(failing: Tool, **options: Any) -> str:
    """Return the traceback in the record of a call of a tool."""
    journal = MemoryJournal(**options)
    await run(failing, journal)
    return call_in(list(await journal.read("run"))).traceback


@pytest.mark.parametrize(
    "failing", [asynchronous, in_thread, inline, with_timeout, OwnClass()], ids=lambda each: each.name
)
async def test_the_traceback_stands_in_the_record_from_the_tool_on(failing: Tool) -> None:
    """It has the code of the tool and no frame of the code that calls tools; no model, event or state has it."""
    text = await traceback_of(failing)
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "return 1 / by" in text
    assert text.count('  File "') <= 3
    assert "/executors/invocation.py" not in text
    assert "/asyncio/" not in text


async def test_causes_are_in_the_traceback() -> None:
    """An error that another one has led to is shown with it."""

    @tool
    async def fail() -> None:
        """Fail."""
        try:
            divide(0)
        except ZeroDivisionError as error:
            raise LookupError("no price") from error

    text = await traceback_of(fail)
    assert text.index("ZeroDivisionError") < text.index("direct cause") < text.index("LookupError: no price")


class Indescribable(Exception):
    """An error that fails when it is described."""

    def __str__(self) -> str:
        raise RuntimeError("no description")

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # an attribute that fails when it is read
        raise RuntimeError("no notes")


def endless(depth: int) -> None:
    """Fail deep below the tool, on lines that alternate."""
    if depth % 2:
        endless(depth + 1)
    else:
        endless(depth + 1)


@tool
async def recursive() -> None:
    """Fail by a recursion."""
    endless(0)


@pytest.mark.parametrize(
    "failing",
    [
        with_error(ValueError("x" * 1_000_000)),
        with_error(ExceptionGroup("many", [ValueError("x" * 1000) for _ in range(1000)])),
        with_error(Indescribable()),
        recursive,
    ],
    ids=["long", "group", "indescribable", "recursion"],
)
async def test_the_traceback_is_bounded(failing: Tool, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a tool raises, its traceback names the error and has at most 10,000 characters and one notice."""
    caplog.set_level(logging.CRITICAL, "agentloop.tools")  # the handler of pytest fails with such errors
    text = await traceback_of(failing)
    assert 0 < len(text) < 10_100
    assert any(name in text for name in ("ValueError", "ExceptionGroup", "Indescribable", "RecursionError"))


@pytest.mark.parametrize("place", range(7_400, 7_620, 20))
async def test_secrets_in_a_traceback_are_masked(place: int) -> None:
    """A secret is masked in the message and in causes, also where the text is cut."""
    error = ValueError(f"{'x' * 2_000} {'y' * (9_500 - place)} {SECRET} {'z' * place}")
    error.__cause__ = KeyError(SECRET)
    text = await traceback_of(with_error(error), secrets=[SECRET])
    assert "characters are left out" in text
    assert not any(part in text for part in (SECRET, SECRET[:6], SECRET[-6:]))


class MaskingJournal(CrashableJournal):
    """A journal that can be read as a crash has left it, and that masks a secret."""

    def __init__(self) -> None:
        super().__init__()
        self.redaction = Redaction([SECRET])

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Mask the secret."""
        return self.redaction.redact(body)


async def test_a_secret_in_a_traceback_does_not_spoil_the_outcome() -> None:
    """An outcome that holds no secret itself is used again after an interruption, and its tool does not run again."""
    runs: list[int] = []

    @tool
    async def fail() -> None:
        """Fail."""
        runs.append(1)
        raise LookupError("no price") from KeyError(SECRET)

    journal = MaskingJournal()
    await run(fail, journal)
    outcome = next(place for place, record in enumerate(journal.appended, 1) if record.kind is RecordKind.CALL_OUTCOME)
    call = call_in(journal.appended)
    assert not call.redacted
    assert "KeyError: '***'" in call.traceback
    after = await journal.after_crash(outcome)
    state = await AgentLoop.for_model(ScriptedInference("Done."), tools=[fail], journal=after).recover("run")
    assert state.steps[0].executions[0].error_message.startswith("no price")
    assert state.steps[0].executions[0].status is ToolStatus.FAILED
    assert len(runs) == 1


async def test_a_call_that_succeeds_has_no_traceback() -> None:
    """Its record has nothing beside the outcome; one that succeeds at a further attempt shows no traceback."""

    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        return "done"

    journal = MemoryJournal()
    await run(work, journal)
    (record,) = [each for each in await journal.read("run") if each.kind is RecordKind.CALL_OUTCOME]
    assert "beside" not in json.loads(record.body)
    attempts: list[int] = []

    @tool(effect="pure", retry=RetryPolicy(2, initial_wait=0))
    async def flaky() -> str:
        """Fail once."""
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("away")
        return "done"

    journal = MemoryJournal()
    await run(flaky, journal, interceptors=[Resilience()])
    call = call_in(list(await journal.read("run")))
    assert (len(attempts), call.execution and call.execution.text, call.traceback) == (2, "done", "")
    assert "ConnectionError: away" in str(call.attachments[TRACEBACK])


async def test_without_a_journal_no_traceback_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """An execution that nothing records formats none."""
    monkeypatch.setattr("agentloop.executors.tracebacks.TracebackException", None)
    model = ScriptedInference(ToolCall("1", "asynchronous"), "Done.")
    state = await AgentLoop.for_model(model, tools=[asynchronous], executor=ToolExecutor()).execute("Go.")
    assert state.steps[0].executions[0].error_message.startswith("division by zero")


class _NotThatMuch(AskAgain):
    """The word of a program for its own refusals."""


def _refuse(amount: int) -> str:
    if amount > 50:
        raise _NotThatMuch("at most 50; ask for less", path="$.amount")
    return f"paid {amount}"


@tool
async def pay_async(amount: int) -> str:
    """Pay as a coroutine."""
    return _refuse(amount)


@tool
def pay_in_thread(amount: int) -> str:
    """Pay in a thread."""
    return _refuse(amount)


@tool(timeout=60, retry=RetryPolicy(max_attempts=3))
async def pay_again(amount: int) -> str:
    """Pay, and retry failures."""
    return _refuse(amount)


@tool(effect="pure", inline=True)
def pay_inline(amount: int) -> str:
    """Pay in the event loop."""
    return _refuse(amount)


@pytest.mark.parametrize("pay", [pay_async, pay_in_thread, pay_again, pay_inline])
def test_a_tool_that_asks_again_answers_the_model_without_a_line_or_a_traceback(
    pay: Tool, caplog: pytest.LogCaptureFixture
) -> None:
    """The call was rejected without an effect and is not repeated, the model gets the reason, and the next call runs."""
    journal = MemoryJournal()
    script = [ToolCall("1", pay.name, '{"amount": 99}')], [ToolCall("2", pay.name, '{"amount": 50}')], "Paid 50."
    model = ScriptedInference(*script)
    loop = AgentLoop.for_model(model, tools=[pay], journal=journal, interceptors=[Resilience()])
    with caplog.at_level(logging.DEBUG, "agentloop"):
        state = loop.execute_sync("go", execution_id="e")
    refused, paid = (step.executions[0] for step in state.steps[:2])
    assert (refused.status, refused.may_have_run) == (ToolStatus.REJECTED, False)
    assert refused.error is not None
    assert (refused.error.message, refused.error.path) == ("at most 50; ask for less", "$.amount")
    assert model.requests[1].messages[-1].exchanges[0].execution == refused
    assert (paid.status, state.final_text) == (ToolStatus.SUCCEEDED, "Paid 50.")
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]
    assert not any(TRACEBACK in str(record.body) for record in asyncio.run(journal.read("e")))
