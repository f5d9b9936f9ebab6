"""Chat completions as a server sends them: whole, or as server-sent events.

Source: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

_BYTES_PER_TOKEN = 4
_PIECE = re.compile(r"\s*\S+\s*")


@frozen
class Completion:
    """An answer of a model.

    Attributes:
        id: its id.
        model: the name of the model.
        message: what the model says.
        request_size: the bytes of the request; tokens are estimated from them.
    """

    id: str
    model: str
    message: Mapping[str, Any]
    request_size: int

    def whole(self) -> bytes:
        """Return it as one JSON document."""
        choice = {"index": 0, "message": self.message, "finish_reason": self._finish}
        return json.dumps({**self._head("chat.completion"), "choices": [choice], "usage": self._usage}).encode()

    def streamed(self, *, with_usage: bool) -> bytes:
        """Return it as server-sent events, text and arguments in small pieces.

        Args:
            with_usage: whether a last chunk tells the tokens.
        """
        deltas = [{"role": "assistant", "content": ""}, *self._deltas()]
        choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": one, "finish_reason": None}] for one in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": self._finish}])
        chunks = [{**self._head("chat.completion.chunk"), "choices": one} for one in choices]
        if with_usage:
            chunks.append({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage})
        return "".join(f"data: {one}\n\n" for one in [*map(json.dumps, chunks), "[DONE]"]).encode()

    @property
    def _finish(self) -> str:
        return "tool_calls" if "tool_calls" in self.message else "stop"

    @property
    def _usage(self) -> dict[str, int]:
        asked, said = self.request_size // _BYTES_PER_TOKEN, len(json.dumps(self.message)) // _BYTES_PER_TOKEN
        return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": 0, "model": self.model}

    def _deltas(self) -> Iterator[dict[str, Any]]:
        for piece in _PIECE.findall(self.message["content"] or ""):
            yield {"content": piece}
        for index, call in enumerate(self.message.get("tool_calls", ())):
            begun = {**call, "function": {**call["function"], "arguments": ""}}
            yield {"tool_calls": [{"index": index, **begun}]}
            for piece in _PIECE.findall(call["function"]["arguments"]):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
