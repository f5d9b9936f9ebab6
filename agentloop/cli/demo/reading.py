"""Reading calls and results out of the messages of a request, in whatever notation they are told there.

A model gets a conversation in the notation in which it is asked: as native tool messages, or as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_TAGGED_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_TAGGED_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_ACTION = re.compile(r"^Action: *(\S+)", re.MULTILINE)
_OBSERVATION = re.compile(r"^Observation(?: \d+ \(.*?\))?: ", re.MULTILINE)
_RESULT_LINE = '{"tool":'


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whether it is spelled as one or in parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def names_called(message: Mapping[str, Any]) -> list[str]:
    """Return the tools that a message of the assistant calls, in order."""
    if message.get("tool_calls"):
        return [call["function"]["name"] for call in message["tool_calls"]]
    text = text_of(message)
    data = json_in(text)
    if isinstance(data, dict) and "next" in data:
        return [item["tool"] for item in data["next"] if "tool" in item]
    if isinstance(data, dict) and data.get("type") == "tool":
        return [call["tool"] for call in data.get("calls") or [data]]
    return [json.loads(call)["name"] for call in _TAGGED_CALL.findall(text)] or _ACTION.findall(text)


def results_told(message: Mapping[str, Any]) -> list[str]:
    """Return the results that a message tells, in order."""
    text = text_of(message)
    if message["role"] == "tool":
        return [text]
    tagged = _TAGGED_RESULT.findall(text)
    if tagged:
        return [json.loads(one)["content"] for one in tagged]
    if text.startswith(_RESULT_LINE):
        return [json.loads(line)["result"] for line in text.splitlines()]
    return [one.removesuffix("\n") for one in _OBSERVATION.split(text)[1:]]


def json_in(text: str) -> Any:
    """Return what a text is as JSON; None when it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None
