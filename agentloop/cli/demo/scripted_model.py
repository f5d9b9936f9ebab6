"""A model that follows a script, behind OpenAI's Chat Completions.

It keeps nothing between requests: like a real one, it decides from the conversation in the request alone, what it says is
made of the results that it finds there, and it says it in the notation that the request asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentloop.cli.demo.complaint_script import COMPLAINT
from agentloop.cli.demo.completion import Completion
from agentloop.cli.demo.conversation_seen import ConversationSeen
from agentloop.cli.demo.move import Move
from agentloop.cli.demo.rounds_script import ROUNDS
from agentloop.cli.demo.script import Script
from agentloop.cli.demo.writing import as_plain_text, notation_of, offered

NAME = "scripted-support-agent"
PATH = "/v1/chat/completions"

_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream"}
_SCRIPTS: Mapping[str, Script] = {script.question: script for script in (COMPLAINT, ROUNDS)}
_KNOWS_NOTHING = (
    "I am a scripted model: I have an answer to the demo's own question only, and I know the demo's tools only. "
    "For other questions, name a real model, as in --model openai:gpt-5 or --model ollama:qwen3."
)


def answer(path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Answer an HTTP request with status, headers and body.

    Args:
        path: the path of the request's URL.
        body: its body, a request for a chat completion.
    """
    if path != PATH:
        return 404, _JSON, json.dumps({"error": {"message": f"there is nothing at {path}"}}).encode()
    request = json.loads(body)
    seen = ConversationSeen.in_request(request, _SCRIPTS)
    completion = Completion(f"chatcmpl-demo-{len(seen.calls)}", NAME, next_message(request, seen), len(body))
    if request.get("stream"):
        with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        return 200, _EVENTS, completion.streamed(with_usage=with_usage)
    return 200, _JSON, completion.whole()


def next_message(request: Mapping[str, Any], seen: ConversationSeen) -> dict[str, Any]:
    """Decide what the model says next, and write it as the request asks."""
    notation, script = notation_of(request), _SCRIPTS.get(seen.question)
    write = notation or as_plain_text
    if script is None:
        return write(Move(_KNOWS_NOTHING))
    told = offered(request)
    if notation is None or not all(name in told for name in script.tools):
        return write(script.last_answer(seen) if seen.calls else Move(_KNOWS_NOTHING))
    return write(script.next_move(seen))
