"""Tools and agents that tests serve with `agentloop mcp serve`."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts import ToolContext
from agentloop.mcp import prompt, resource
from agentloop.values import FinishReason, Image, InferenceRequest, InferenceResponse, Message, ToolResult, Usage


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("this is not for the client")  # noqa: T201
    return a + b


@tool(effect="idempotent")
def parts() -> dict[str, Any]:
    """Return an object."""
    return {"parts": [1, 2]}


@tool
def picture() -> ToolResult:
    """Return an image."""
    return ToolResult("a picture", (Image(data=b"picture", media_type="image/png"),))


@tool
def stepwise(context: ToolContext) -> str:
    """Report progress in several forms."""
    context.progress(0.5)
    context.progress("nearly")
    context.progress({"progress": 3, "total": 3})
    return "done"


@tool
def cut(text: str, context: ToolContext) -> dict[str, str]:
    """Report, return and raise texts with half of a character."""
    context.progress("half \ud83d")
    if text == "fail":
        raise ValueError("half \ud83d")
    return {"half \ud83d": text}


@tool
async def wait(path: str) -> str:
    """Wait until cancelled, and write notes about it."""
    _note(path, "waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _note(path, "cancelled")
        raise
    return "never"


def _note(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{text}\n")


loop = AgentLoop.for_model(ScriptedInference(ToolCall("c", "add", '{"a": 20, "b": 22}'), "It is 42."), tools=[add])


def _waiting(request: InferenceRequest) -> InferenceResponse:
    """Call `wait` with the file in the task."""
    call = ToolCall("c", "wait", json.dumps({"path": request.messages[-1].text}))
    return InferenceResponse((call,), FinishReason.TOOL_CALLS, Usage(1, 1, 0, 0, 0), model="scripted")


waiting = AgentLoop.for_model(ScriptedInference(_waiting), tools=[wait])
failing = AgentLoop.for_model(ScriptedInference(ValueError("the model is broken")))


@resource("notes://all")
def notes() -> dict[str, list[str]]:
    """All notes."""
    return {"notes": ["one", "two"]}


@resource("notes://{name}/text", media_type="text/markdown")
async def note(name: str) -> str:
    """A note by its name."""
    if name == "missing":
        raise LookupError("there is no such note")
    return f"# {name}"


@resource("pictures://{+path}")
def photo(path: str) -> Image:
    """A picture."""
    return Image(data=path.encode(), media_type="image/png")


@prompt
def review(code: str, language: Literal["Python", "Perl", "Rust"] = "Python") -> list[Message | str]:
    """Review code.

    Args:
        code: the code.
    """
    return [f"Review this {language} code: {code}", Message.assistant("I see."), "Go on."]
