"""A model that follows a script, behind OpenAI's Chat Completions.

It is stateless like a real one: it decides from the conversation in the request, its texts quote the results in that
conversation, and it answers in the notation that the request asks for.

Source: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen
from shop.conversation import Conversation
from shop.notations import JsonMessage, Turn, offer_text, write_plain_text, writer_for
from shop.scripts import COMPLAINT, STATUS_LETTERS, Script

NAME = "scripted-support-agent"
PATH = "/v1/chat/completions"

_JSON_HEADERS = {"content-type": "application/json"}
_STREAM_HEADERS = {"content-type": "text/event-stream"}
_SCRIPTS: Mapping[str, Script] = {script.question: script for script in (COMPLAINT, STATUS_LETTERS)}
_UNKNOWN_QUESTION = "I am a scripted model: I only know the questions and the tools of the shop."


def respond(path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Respond to an HTTP request with a status, headers and a body.

    Args:
        path: the path of the request's URL.
        body: a request for a chat completion, as JSON.
    """
    if path != PATH:
        return 404, _JSON_HEADERS, json.dumps({"error": {"message": f"there is no resource {path}"}}).encode()
    request = json.loads(body)
    conversation = Conversation.of(request, _SCRIPTS)
    message = next_message(request, conversation)
    completion = Completion(f"chatcmpl-{len(conversation.calls)}", NAME, message, len(body))
    if request.get("stream"):
        with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        return 200, _STREAM_HEADERS, completion.stream(with_usage=with_usage)
    return 200, _JSON_HEADERS, completion.document()


def next_message(request: Mapping[str, Any], conversation: Conversation) -> JsonMessage:
    """Return the next assistant message, in the notation that the request asks for."""
    writer, script = writer_for(request), _SCRIPTS.get(conversation.question)
    write = writer or write_plain_text
    if script is None:
        return write(Turn(_UNKNOWN_QUESTION))
    offer = offer_text(request)
    if writer is None or not all(name in offer for name in script.tools):
        return write(script.final_turn(conversation) if conversation.calls else Turn(_UNKNOWN_QUESTION))
    return write(script.next_turn(conversation))


_BYTES_PER_TOKEN = 4
_WORDS = re.compile(r"\s*\S+\s*")


@frozen
class Completion:
    """A chat completion, as a server sends it.

    Attributes:
        id: its id.
        model: the name of the model.
        message: the assistant message.
        request_bytes: the size of the request, from which token counts are estimated.
    """

    id: str
    model: str
    message: Mapping[str, Any]
    request_bytes: int

    def document(self) -> bytes:
        """Return the completion as one JSON document."""
        choice = {"index": 0, "message": self.message, "finish_reason": self._finish_reason}
        return json.dumps({**self._head("chat.completion"), "choices": [choice], "usage": self._usage}).encode()

    def stream(self, *, with_usage: bool) -> bytes:
        """Return the completion as server-sent events, text and arguments word by word.

        Args:
            with_usage: whether the last chunk reports the tokens.
        """
        deltas = [{"role": "assistant", "content": ""}, *self._deltas()]
        choices: list[list[dict[str, Any]]] = [
            [{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas
        ]
        choices.append([{"index": 0, "delta": {}, "finish_reason": self._finish_reason}])
        chunks = [{**self._head("chat.completion.chunk"), "choices": listed} for listed in choices]
        if with_usage:
            chunks.append({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage})
        return "".join(f"data: {event}\n\n" for event in [*map(json.dumps, chunks), "[DONE]"]).encode()

    @property
    def _finish_reason(self) -> str:
        return "tool_calls" if "tool_calls" in self.message else "stop"

    @property
    def _usage(self) -> dict[str, int]:
        sent, received = self.request_bytes // _BYTES_PER_TOKEN, len(json.dumps(self.message)) // _BYTES_PER_TOKEN
        return {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": sent + received}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": 0, "model": self.model}

    def _deltas(self) -> Iterator[dict[str, Any]]:
        for word in _WORDS.findall(self.message["content"] or ""):
            yield {"content": word}
        for index, call in enumerate(self.message.get("tool_calls", ())):
            opening = {**call, "function": {**call["function"], "arguments": ""}}
            yield {"tool_calls": [{"index": index, **opening}]}
            for word in _WORDS.findall(call["function"]["arguments"]):
                yield {"tool_calls": [{"index": index, "function": {"arguments": word}}]}
