"""An answer that is there already, told as if it were being written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_call import ToolCall

_WORD = re.compile(r"\S+\s*|\s+")


def told_in_pieces(response: InferenceResponse) -> Iterator[InferenceDelta]:
    """Return the deltas of an answer: text and reasoning by words, each call with its arguments in one piece."""
    index = 0
    for part in response.parts:
        if isinstance(part, Text | Reasoning):
            for word in _WORD.findall(part.text):
                yield InferenceDelta("text" if isinstance(part, Text) else "reasoning", word)
        elif isinstance(part, ToolCall):
            yield InferenceDelta("tool_call", index=index, call_id=part.id, name=part.name)
            yield InferenceDelta("arguments", part.arguments_json, index)
            index += 1
