"""What was written before is still read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs

from agentloop.values import serialization as serialisation
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit, PendingCall
from agentloop.values.inference import FinishReason, ResponseFormat, Usage
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.serialization import from_json, to_json
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus, SuspendedTurn
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExchange, ToolExecution, ToolStatus

GOLDEN = Path(__file__).parent / "golden" / "agent_state_v4.json"
GOLDEN_OF_VERSION_3 = Path(__file__).parent / "golden" / "agent_state_v3.json"
GOLDEN_OF_VERSION_2 = Path(__file__).parent / "golden" / "agent_state_v2.json"
GOLDEN_OF_VERSION_1 = Path(__file__).parent / "golden" / "agent_state_v1.json"
NOT_IN_STATES = {"block", "suspend", "happened", "did_not_happen", "cannot_tell"}
NOW = datetime(2024, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1, microseconds=5)


def execution(number: int, status: ToolStatus) -> ToolExecution:
    """Return an execution with this status; the first succeeded."""
    first = number == 0
    return ToolExecution(
        id=f"tool_execution_{number}",
        key=f"execution_1/1/{number}",
        call=ToolCall(
            f"call_{number}", "look_up", f'{{"row": {number}}}', provider_data={"openai-chat": {"i": number}}
        ),
        status=status,
        value={"row": number, "cells": [None, True, 1.5, "é", 2**70]} if first else None,
        content=[Text("see"), Image(file_id="file_1")] if first else None,
        error=None if first else ErrorInfo("ToolFailed", f"it {status.value}", "$.row"),
        may_have_run=status in {ToolStatus.TIMED_OUT, ToolStatus.IN_DOUBT},
        started_at=NOW + timedelta(microseconds=number),
        ended_at=NOW + timedelta(seconds=1),
    )


def context() -> AgentContext:
    """Return a context with every kind of content."""
    return AgentContext(
        "Be kind.",
        [
            Message.system("Today is Monday."),
            Message.user(
                "What is on these? \N{SNOWMAN}\n",
                Image(media_type="image/png", data=b"\x89PNG\x00\xff", name="a.png"),
                Audio(url="https://example.com/a.wav", media_type="audio/wav"),
                Document(file_id="file_2", provider_data={"openai-chat": {"detail": "low"}}),
            ),
        ],
        {"tenant": 7},
        ResponseFormat({"type": "object", "required": ["answer"]}, "reply", strict=False),
    )


def settled_step() -> AgentStep:
    """Return a step with a call of every status and every kind of part."""
    executions = [execution(number, status) for number, status in enumerate(ToolStatus)]
    parts: list[Part] = [
        Reasoning("think", provider_data={"anthropic-messages": {"signature": "abc"}}),
        Text("working on it", provider_data={"gemini": {"id": 1}}),
        *[ToolExchange(execution.call.with_arguments({"row": "0"}), execution) for execution in executions],
        ProviderPart("anthropic-messages", {"type": "redacted_thinking", "data": "eA=="}),
    ]
    return AgentStep(
        id="step_1",
        number=1,
        message=Message("assistant", parts, {"note": [1, {"deep": None}]}),
        response_id="response_1",
        model="some-model",
        finish_reason=FinishReason.TOOL_CALLS,
        usage=Usage(100, 20, 50, 0, None, 2),
        errors=[ErrorInfo("RateLimited", "slow down")],
        started_at=NOW,
        ended_at=LATER,
    )


def waiting_step() -> AgentStep:
    """Return a step with a pending call for each decision, and a settled call."""
    calls = [ToolCall(f"call_{number}", "pay", '{"amount":5}') for number in range(6)]
    decisions: list[Decision | None] = [None, Approve("digest"), Deny("no"), Answer([1, "a"]), Edit({"amount": 4})]
    slots: list[ToolExecution | PendingCall] = [
        PendingCall(f"execution_1/2/{number}", calls[number], "over the limit", "" if number else "x", decision)
        for number, decision in enumerate(decisions)
    ]
    done = execution(0, ToolStatus.SUCCEEDED)
    slots.append(attrs.evolve(done, id="settled", key="execution_1/2/5", call=calls[5]))
    turn = SuspendedTurn([Text("paying"), *calls], slots)
    usage = Usage(10, 1, 0, 0, 0, 1)
    return AgentStep(id="step_2", number=2, open_turn=turn, usage=usage, started_at=NOW, ended_at=LATER)


def representative_state() -> AgentState:
    """Build a state with every kind of part, every status of a call, every decision, and every field filled."""
    state = AgentState(
        agent_id="agent_1",
        parent_agent_id="agent_0",
        context=context(),
        extensions={"acme.notes": {"seen": [1, None], "text": "é"}},
        created_at=NOW - timedelta(days=1),
        updated_at=NOW,
    )
    state = state.with_execution_started("execution_1", NOW).with_step(settled_step()).with_step(waiting_step())
    for reason in StopReason:
        state = state.with_stop_signal(StopSignal(reason, f"because of {reason.value}", "test", {"limit": 5}))
    return state.with_continuation_requested().with_status(ExecutionStatus.SUSPENDED, NOW)


def test_a_state_that_was_written_before_is_still_read() -> None:
    """The file of schema version 4 is read as the expected state, and writing that state gives the same bytes."""
    golden = GOLDEN.read_bytes()
    state = from_json(golden, AgentState)
    assert state == representative_state()
    assert to_json(state) == golden.rstrip(b"\n")


def test_a_state_of_schema_version_3_is_still_read() -> None:
    """Its file gives the same state."""
    assert from_json(GOLDEN_OF_VERSION_3.read_bytes(), AgentState) == representative_state()


def test_a_state_of_schema_version_2_is_still_read() -> None:
    """Its file, whose steps hold their messages themselves, gives the same state."""
    assert from_json(GOLDEN_OF_VERSION_2.read_bytes(), AgentState) == representative_state()


def test_a_state_of_schema_version_1_is_still_read() -> None:
    """Its file gives the same state without extensions, which version 1 did not have."""
    state = from_json(GOLDEN_OF_VERSION_1.read_bytes(), AgentState)
    assert state == attrs.evolve(representative_state(), extensions={})


def test_the_state_that_was_written_holds_something_of_everything() -> None:
    """Every tag, every status of a call and every reason to stop is in the file."""
    text = GOLDEN.read_text()
    tags = set(re.findall(r'"type":"([a-z_]+)"', text))
    assert tags >= set(serialisation._TAGS.values()) - NOT_IN_STATES
    assert {status.value for status in ToolStatus} <= set(re.findall(r'"status":"([a-z_]+)"', text))
    assert {reason.value for reason in StopReason} <= set(re.findall(r'"reason":"([a-z_]+)"', text))
