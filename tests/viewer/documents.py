"""Traces that are made for the tests of the viewer, as large and as hostile as they have to be."""

from __future__ import annotations

from copy import deepcopy

from agentloop.service.trace import Trace
from agentloop.service.trace.document import (
    CallPart,
    TraceCall,
    TraceConversationChange,
    TraceExecution,
    TraceInference,
    TraceMessage,
    TraceRequestSettings,
    TraceStep,
    TraceUsage,
)

START = 1_767_225_600_000.0
STEP_MS = 3000.0


def with_call(trace: Trace, tool: str, /, **changes: object) -> Trace:
    """Return a trace in which the first call of a tool has other fields."""
    changed = deepcopy(trace)
    call = next(call for execution in changed["executions"] for call in execution["calls"] if call["name"] == tool)
    call.update(changes)  # type: ignore[typeddict-item]  # fields of a call
    return changed


def with_execution(trace: Trace, /, **changes: object) -> Trace:
    """Return a trace whose first execution has other fields."""
    changed = deepcopy(trace)
    changed["executions"][0].update(changes)  # type: ignore[typeddict-item]  # fields of an execution
    return changed


def long_trace(steps: int) -> Trace:
    """Return the trace of an execution with many steps, of two parallel calls each; every 50th first call fails."""
    execution: TraceExecution = {
        "id": "long",
        "sequence": steps * 7,
        "agent_id": "agent_1",
        "agent_name": "",
        "parent_agent_id": None,
        "principal": "",
        "number": 1,
        "caller": None,
        "forked_from": None,
        "status": "completed",
        "loop": None,
        "input": "Check every shelf.",
        "output": "All shelves are checked.",
        "started_at": START,
        "updated_at": START + steps * STEP_MS,
        "ended_at": START + steps * STEP_MS,
        "waited": 0.0,
        "stop": None,
        "errors": [],
        "usage": _usage(steps * 2000, steps * 60, steps * 1800),
        "cost": steps * 0.002,
        "is_masked": False,
        "steps": [_step(number) for number in range(1, steps + 1)],
        "inferences": [_inference(number) for number in range(1, steps + 1)],
        "calls": [_call(number, place) for number in range(1, steps + 1) for place in range(2)],
        "messages": [_input(), *(_message(number) for number in range(1, steps + 1))],
        "conversation": [
            {"sequence": 1, "step": 1, "keep": 0, "add": [[0, 0]]},
            *[_growth(number) for number in range(1, steps + 1)],
        ],
        "settings": [_SETTINGS],
        "renderings": [],
        "marks": [],
        "changes": [],
    }
    return {
        "version": 1,
        "id": "long",
        "is_patch": False,
        "cursor": "1",
        "is_live": False,
        "executions": [execution],
    }


_SETTINGS: TraceRequestSettings = {
    "index": 0,
    "sequence": 1,
    "system_prompt": "You check shelves.",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "response_format": None,
    "options": None,
}


def _usage(into: int, out: int, cached: int) -> TraceUsage:
    return {
        "input_tokens": into,
        "output_tokens": out,
        "cached_input_tokens": cached,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "requests": 1,
    }


def _key(number: int, place: int) -> str:
    return f"long/{number}/{place}"


def _start(number: int) -> float:
    return START + (number - 1) * STEP_MS


def _input() -> TraceMessage:
    return {"index": 0, "sequence": 1, "role": "user", "parts": [{"type": "text", "text": "Check every shelf."}]}


def _message(number: int) -> TraceMessage:
    return {
        "index": number,
        "sequence": number * 7,
        "role": "assistant",
        "parts": [
            {"type": "text", "text": f"I check shelf {number}. " + "Words of an answer. " * 10},
            *[_part(key=_key(number, place), status="succeeded") for place in range(2)],
        ],
    }


def _part(key: str = "", name: str = "", arguments: str = "", status: str = "") -> CallPart:
    return {"type": "call", "key": key, "name": name, "arguments": arguments, "status": status, "text": ""}


def _growth(number: int) -> TraceConversationChange:
    return {"sequence": number * 7, "step": number, "keep": number, "add": [[number, number]]}


def _step(number: int) -> TraceStep:
    return {
        "number": number,
        "sequence": number * 7,
        "status": "completed",
        "kind": "tool_execution",
        "started_at": _start(number),
        "ended_at": _start(number) + STEP_MS,
        "message": number,
        "model": "gpt-5",
        "finish_reason": "tool_calls",
        "usage": _usage(1000 + number, 60, 900 + number),
        "errors": [],
        "discarded_calls": [],
    }


def _inference(number: int) -> TraceInference:
    return {
        "index": number - 1,
        "sequence": number * 7 - 5,
        "step": number,
        "purpose": "",
        "started_at": _start(number),
        "ended_at": _start(number) + 900,
        "requests": 1,
        "attempts": [],
        "usage": _usage(1000 + number, 60, 900 + number),
        "cost": 0.002,
        "model": "gpt-5",
        "finish_reason": "tool_calls",
        "response_id": f"resp_{number}",
        "settings": 0,
        "rendering": None,
        "messages": [[0, number - 1]],
        "response": [
            {"type": "text", "text": f"I check shelf {number}. " + "Words of an answer. " * 10},
            *[_part(name=name, arguments=f'{{"shelf": {number}}}') for name in ("count", "weigh")],
        ],
        "problem": "",
        "error": None,
        "stop": None,
        "is_superseded": False,
        "is_masked": False,
    }


def _call(number: int, place: int) -> TraceCall:
    has_failed = place == 0 and number % 50 == 0
    return {
        "key": _key(number, place),
        "sequence": number * 7 - 1,
        "step": number,
        "index": place,
        "parent": None,
        "id": f"call_{number}_{place}",
        "name": ("count", "weigh")[place],
        "arguments": f'{{"shelf": {number}}}',
        "requested": None,
        "effect": "pure",
        "status": "failed" if has_failed else "succeeded",
        "starts": [_start(number) + 900],
        "started_at": _start(number) + 900,
        "ended_at": _start(number) + 1900 + 700 * place,
        "value": None if has_failed else ", ".join([f"item {number}-{each}" for each in range(12)]),
        "content": None,
        "error": {"type": "ToolFailed", "message": f"shelf {number} is gone", "path": ""} if has_failed else None,
        "traceback": "",
        "may_have_run": False,
        "original": None,
        "answered": "",
        "source": "",
        "stop": None,
        "pending": None,
        "decisions": [],
        "is_masked": False,
    }
