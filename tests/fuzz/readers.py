"""Everything that reads bytes of strangers, by name, with its longest input and the shapes that it is measured with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from mcp_types import CallToolResult, ListToolsResult

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver
from agentloop.durable import MemoryJournal, Redaction
from agentloop.mcp.sdk.answers import Answers
from agentloop.mcp.sdk.session import _read_result, _remote_tools
from agentloop.mcp.sdk.transports import EventSplitter, parse_message
from agentloop.mcp.servers import load_servers
from agentloop.models.wire_formats.framing import EventReader, JsonLines
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.service.server import Principal, Scope
from agentloop.service.server.ag_ui import AgUiEvents, start_run
from agentloop.service.server.executions import LocalExecutions, RecordedExecutions
from agentloop.service.server.operations import (
    MAX_DECISIONS,
    Operations,
    ServerLimits,
    check_count,
    check_values,
    read_decision,
    read_message,
)
from agentloop.service.server.record_events import ServerEvent
from agentloop.service.trace import TraceReader, build_trace
from agentloop.toolkits.front_matter import read_front_matter
from agentloop.toolkits.http import _Decoder
from agentloop.tools import SchemaValidator
from agentloop.tools.fitting import fit_call
from agentloop.tools.patterns import MAX_CHARACTERS, compile_pattern
from agentloop.values import AgentState, Bounds, InferenceResponse
from agentloop.values.batches import parse_key
from agentloop.values.bounds import DEFAULT_BOUNDS
from agentloop.values.grants import Grant
from agentloop.values.json import freeze, freeze_object, parse_json
from agentloop.values.records import callers_of, check_execution_id, parse_cursor, root_of
from agentloop.values.secrets import Secret
from agentloop.values.serialization import from_json, to_json
from agentloop.values.tool_calls import ToolSpec
from tests.fuzz import documents, shapes
from tests.fuzz.shapes import Reader
from tests.service.server.front import payer

_ADA: Final = Principal(name="ada", scopes=frozenset(Scope))
_UNBOUNDED: Final = Bounds(schema_steps=float("inf"))
_FOLDER: Final = Path(mkdtemp())
_PIECE: Final = 100
_CHUNK: Final = 65_536
"""The most bytes that a connection hands over at once; other tasks go on before the next ones."""


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def _in_pieces(reader: Any, text: str) -> None:
    data = _encoded(text)
    for start in range(0, len(data), _PIECE):
        for _ in reader.feed(data[start : start + _PIECE]):
            pass
    if hasattr(reader, "close"):
        reader.close()


# --- ids ------------------------------------------------------------------------------------------------------------


def _read_id(text: str) -> None:
    parse_key(text)
    root_of(text)
    for _ in callers_of(text):
        pass
    check_execution_id(text)


@cache
def _trace_reader() -> TraceReader:
    journal = MemoryJournal()

    async def read() -> TraceReader:
        loop = AgentLoop(ToolCallingDriver(ScriptedInference("Hello.")), journal=journal)
        await loop.execute("Go.", execution_id="a")
        reader = TraceReader(journal, "a")
        await reader.update()
        return reader

    return asyncio.run(read())


def _read_cursors(text: str) -> None:
    for read in (_trace_reader().document, parse_cursor):
        try:
            read(text)
        except shapes.OUTCOMES:
            continue


# --- schemas --------------------------------------------------------------------------------------------------------


def _compile(text: str) -> object:
    return SchemaValidator(freeze_object(json.loads(text)), "the schema")


def _check(case: tuple[str, Any], bounds: Bounds) -> object:
    schema, value = case
    return _validator(schema).problems(value, bounds)


@lru_cache(maxsize=1)
def _validator(schema: str) -> SchemaValidator:
    """Return a validator; only the check is measured, since the first of some trials does not count."""
    return SchemaValidator(json.loads(schema), "the schema", _UNBOUNDED)


def _fit(case: tuple[str, Any]) -> object:
    schema, value = case
    spec = ToolSpec("a", "A.", {"type": "object", "properties": {"v": json.loads(schema)}})
    return fit_call(ToolCall("1", "a", json.dumps({"v": value})), spec)


def _fit_text(text: str) -> object:
    return fit_call(
        ToolCall("1", "a", text), ToolSpec("a", "A.", {"type": "object", "properties": {"a": {"type": "string"}}})
    )


def _search(pattern: str) -> None:
    compile_pattern(pattern).search("ab" * 50, lambda _steps: None)


_PATTERNS: Final = [
    *("a", "b", "(", ")", "(?:", "|", "*", "+", "?", "{1,9}", "{9}", ".", "[", "]", "[a-z]", "[^a]", "\\w", "\\b", "^"),
    *("$", "(?=", "(?!", "(?i:", "\\", "-", "\u00e9", "\\d{1,3}", "(a|b)*"),
]

# --- messages of HTTP and AG-UI -------------------------------------------------------------------------------------

_MESSAGE: Final = {
    "role": "user",
    "parts": [
        {"type": "text", "text": "a"},
        {"type": "image", "media_type": "image/png", "data": "iVBORw0KGgo="},
        {"type": "image", "media_type": "image/png", "url": "https://example.com/a.png"},
    ],
}
_DECISIONS: Final = {
    "a/1/0": {"kind": "edit", "digest": "d", "arguments": {"a": [1]}},
    "a/1/1": {"kind": "answer", "digest": "d", "value": [1]},
    "a/1/2": {"kind": "deny", "digest": "d", "reason": "no"},
}
_RUN: Final = {
    "threadId": "t",
    "runId": "r2",
    "messages": [
        {"id": "1", "role": "user", "content": "a"},
        {"id": "2", "role": "user", "content": [{"type": "text", "text": "a"}]},
    ],
    "tools": [{"name": "a", "description": "a", "parameters": {}}],
    "state": {"a": 1},
}
_RESUME: Final = {
    **_RUN,
    "resume": [{"interruptId": "a/1/0#d", "status": "resolved", "payload": {"kind": "answer", "value": [1]}}],
}


def _read_decisions(text: str) -> None:
    data = parse_json(_encoded(text))
    if not isinstance(data, dict):
        return
    check_count(data, MAX_DECISIONS, "invalid_decision", "decisions")
    check_values(data, "invalid_decision", "the request")
    for key, decision in data.items():
        read_decision(key, decision, _ADA)


@cache
def _suspended() -> MemoryJournal:
    """Return a journal with a suspended run of the thread `t`."""
    journal = MemoryJournal()

    async def suspend() -> None:
        async with LocalExecutions(payer(journal)) as executions:
            operations = Operations(executions, ServerLimits())
            run = await start_run(operations, _ADA, {**_RUN, "runId": "r1"})
            head = await journal.head(run.execution_id)
            while head is None or head.status.value != "suspended":
                await asyncio.sleep(0)
                head = await journal.head(run.execution_id)

    asyncio.run(suspend())
    return journal


def _read_run(text: str) -> object:
    operations = Operations(RecordedExecutions(_suspended()), ServerLimits())
    return asyncio.run(start_run(operations, _ADA, parse_json(_encoded(text))))


def _deltas(size: int) -> list[ServerEvent]:
    return [
        ServerEvent(
            "text_delta", {"type": "text_delta", "step": 1, "attempt": 1, "text": "aaaaaaaaaa"}, offset=10 * index
        )
        for index in range(size // 10)
    ]


def _translate(events: list[ServerEvent]) -> None:
    translation = AgUiEvents("t", "r")
    for event in events:
        translation.translate(event)


# --- answers of models ----------------------------------------------------------------------------------------------

_CALL: Final = {"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"a": 1}'}}
_USAGE: Final = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_BODIES: Final[Mapping[str, Any]] = {
    "anthropic-messages": {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "a", "signature": "s"},
            {"type": "text", "text": "a", "citations": [{"type": "char_location", "cited_text": "a"}]},
            {"type": "tool_use", "id": "1", "name": "a", "input": {"a": [1]}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "bedrock-converse": {
        "output": {
            "message": {
                "role": "assistant",
                "content": [{"text": "a"}, {"toolUse": {"toolUseId": "1", "name": "a", "input": {"a": [1]}}}],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
    },
    "cohere-v2": {
        "id": "1",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [_CALL]},
        "finish_reason": "TOOL_CALL",
        "usage": {"tokens": {"input_tokens": 1, "output_tokens": 1}},
    },
    "gemini": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "a"},
                        {"text": "b", "thought": True},
                        {"functionCall": {"name": "a", "args": {"a": [1]}}},
                    ],
                },
                "finishReason": "STOP",
            }
        ],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1},
    },
    "ollama": {
        "model": "m",
        "message": {
            "role": "assistant",
            "content": "a",
            "thinking": "a",
            "tool_calls": [{"function": {"name": "a", "arguments": {"a": [1]}}}],
        },
        "done": True,
        "done_reason": "stop",
        "eval_count": 1,
    },
    "openai-chat": {
        "id": "1",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a", "reasoning_content": "a", "tool_calls": [_CALL]},
                "finish_reason": "tool_calls",
                "logprobs": {"content": [{"token": "a", "logprob": -1, "top_logprobs": [{"token": "a", "logprob": -1}]}]},
            }
        ],
        "usage": _USAGE,
    },
    "openai-responses": {
        "id": "1",
        "status": "completed",
        "output": [
            {"type": "reasoning", "id": "1", "summary": [{"type": "summary_text", "text": "a"}]},
            {"type": "message", "id": "2", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "id": "3", "call_id": "3", "name": "a", "arguments": '{"a": 1}'},
        ],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}  # fmt: skip


def _chunk(delta: Any, reason: str | None = None) -> Any:
    return {"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


_STREAMS: Final[Mapping[str, tuple[Any, ...]]] = {
    "anthropic-messages": (
        {"type": "message_start", "message": {"id": "1", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "1", "name": "a", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ),
    "gemini": (_BODIES["gemini"],),
    "openai-chat": (
        _chunk({"role": "assistant", "content": ""}),
        _chunk({"content": "a"}),
        _chunk({"reasoning_content": "a"}),
        _chunk({"tool_calls": [{"index": 0, "id": "1", "type": "function", "function": {"name": "a", "arguments": "{"}}]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"name": "b", "arguments": " "}}]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
        _chunk({}, "tool_calls"),
    ),
    "openai-responses": (
        {"type": "response.created", "response": {"id": "1", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "2", "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "2", "delta": "a"},
        {"type": "response.output_item.done", "output_index": 0, "item": _BODIES["openai-responses"]["output"][1]},
        {"type": "response.completed", "response": _BODIES["openai-responses"]},
    ),
}  # fmt: skip


def _bodies(name: str) -> Reader:
    read = wire_format(name).decode_response
    return Reader(
        lambda text: read(200, {}, _encoded(text)), documents=documents.grown(_BODIES[name]), thread_from=65_536
    )


_LONGEST: Final[Mapping[str, documents.Document]] = {
    **documents.JSON,
    **{
        name: document
        for name, document in documents.grown(_BODIES["openai-chat"]).items()
        if name.startswith(("$ ", ".choices ", ".choices[0].message.content "))
    },
}


def _stream(name: str) -> Reader:
    def read(text: str) -> object:
        decoder = wire_format(name).stream_decoder()
        data = _encoded(text)
        for start in range(0, len(data), _PIECE):
            decoder.feed(data[start : start + _PIECE])
        return decoder.close()

    # A stream is read as its pieces come: no piece is long.
    return Reader(read, documents=documents.events_of(*_STREAMS[name]), longest=400_000, thread_from=65_536)


# --- MCP ------------------------------------------------------------------------------------------------------------

_RESULT: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "content": [{"type": "text", "text": "a"}, {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}],
        "structuredContent": {"a": [{"b": 1}]},
    },
}
_LIST: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "tools": [{"name": "a", "description": "a", "inputSchema": {"type": "object", "properties": {"a": {}}}}],
        "nextCursor": "a",
    },
}
_SERVERS: Final = {
    "mcpServers": {"a": {"command": "a", "args": ["a"], "env": {"A": "a"}}, "b": {"url": "https://example.com/mcp"}}
}


def _read_mcp_message(text: str) -> None:
    message = parse_message("server", _encoded(text))
    result = getattr(message, "result", None)
    if result is not None and "tools" in result:
        for _ in _remote_tools("server", ListToolsResult.model_validate(result).tools, Answers()):
            pass
    elif result is not None:
        _read_result("tool", CallToolResult.model_validate(result), Answers())


# --- files ----------------------------------------------------------------------------------------------------------


def _write(name: str, text: str) -> Path:
    path = _FOLDER / name
    path.write_text(text, errors="replace")
    return path


def _read_agent_file(text: str) -> object:
    return AgentLoop.from_file(_write("agent.toml", text), model=ScriptedInference("a"))


def _decompress(data: bytes) -> None:
    decoder = _Decoder(31, 2_000_000)
    for start in range(0, len(data), 65_536):
        decoder.feed(data[start : start + 65_536])


def _recorded(responses: Callable[[int], list[Any]]) -> documents.Document:
    """Return a document that is the journal of an execution."""

    def record(size: int) -> MemoryJournal:
        journal = MemoryJournal()
        loop = AgentLoop(
            ToolCallingDriver(ScriptedInference(*responses(size), "Done.")),
            journal=journal,
            bounds=Bounds(calls_per_answer=float("inf")),
        )
        asyncio.run(loop.execute("Go.", execution_id="a"))
        return journal

    return record


_BYTES_OF_STEP: Final = 2_000
_TRACES: Final[Mapping[str, documents.Document]] = {
    "steps": _recorded(
        lambda size: [
            InferenceResponse((ToolCall(str(index), "a", f'{{"a": {index}}}'),))
            for index in range(size // _BYTES_OF_STEP)
        ]
    ),
    "calls of a step": _recorded(
        lambda size: [
            InferenceResponse(tuple(ToolCall(str(index), "a", "{}") for index in range(size // _BYTES_OF_STEP)))
        ]
    ),
    "a long text": _recorded(lambda size: [InferenceResponse((ToolCall("1", "a", f'{{"a": "{"a" * size}"}}'),))]),
}


def _read_trace(journal: MemoryJournal) -> object:
    return asyncio.run(build_trace(journal, "a"))


def _states() -> Mapping[str, documents.Document]:
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(InferenceResponse((ToolCall("1", "a", "{}"),)), "Done.")))
    state = asyncio.run(loop.execute("Go."))
    return documents.grown(json.loads(to_json(state)))


_SECRET: Final = Secret("sk-abcdefgh")
_REDACTION: Final = Redaction(secrets=["sk-abcdefgh"], fields=["card.number"])
_LIMITS: Final = [" ", "a", "/", "==", "<=", "<", "in", "in [", ",", "1", "e", '"a"', "\n"]
_SECRETS: Final = [
    "sk-",
    "sk-abcdefg",
    "sk-abcdefgh",
    "%73%6b",
    "\\u0073",
    "c2st",
    "a",
    " ",
    '"card"',
    '"number": "',
    "\\",
    '"',
    "73 6b",
]

READERS: Final[Mapping[str, Reader]] = {
    **shapes.READERS,
    "ids": Reader(_read_id, ["a", "/1/0/agent", "/1/0", "/program/1", "-2", "/", "agent", "9"], documents.IDS, longest=2_000),
    "cursors": Reader(_read_cursors, ["1", "/", "-", "a", ";", ":", "a:1;", "/1/0/agent:1;"], longest=60_000),
    "schemas": Reader(_compile, documents=documents.SCHEMAS, longest=300_000, thread_from=0),
    "values against schemas": Reader(lambda case: _check(case, _UNBOUNDED), documents=documents.VALUES, longest=200_000, thread_from=0),
    "values, bounded": Reader(
        lambda case: _check(case, DEFAULT_BOUNDS), documents={**documents.VALUES, **documents.GROWN_VALUES}, is_bounded=True
    ),
    "arguments of calls": Reader(_fit, documents=documents.VALUES, longest=200_000, thread_from=0),
    "arguments as text": Reader(_fit_text, [*shapes.JSON, "\\n", "\n", '{"a": "', "a"], thread_from=80_000),
    "patterns": Reader(_search, _PATTERNS, longest=MAX_CHARACTERS, thread_from=0),
    "server-sent events": Reader(
        lambda text: _in_pieces(EventReader(), text),
        ["data: a\n", "data:", "event: error\n", ":", "\n", "\r", "\r\n", "\n\n", "{", '{"error"', "id: 1\n", "a", "\u2028"],
        thread_from=_CHUNK,
    ),
    "events of MCP": Reader(
        lambda text: _in_pieces(EventSplitter(), text), ["data: a\n", "data:", ":", "\n", "\r", "\r\n", "\n\n", "a", "event: a\n"], thread_from=_CHUNK
    ),
    "lines of JSON": Reader(lambda text: _in_pieces(JsonLines(), text), ["{", "}", "\n", "\r", "\r\n", " ", "a"], thread_from=_CHUNK),
    **{f"{name}, bodies": _bodies(name) for name in WIRE_FORMATS},
    "the longest bodies": Reader(
        _bodies("openai-chat").read, documents=_LONGEST, longest=int(DEFAULT_BOUNDS.response_bytes), thread_from=65_536
    ),
    **{f"{name}, streams": _stream(name) for name in _STREAMS},
    "messages over HTTP": Reader(lambda text: read_message(parse_json(_encoded(text))), documents=documents.grown(_MESSAGE)),
    "decisions over HTTP": Reader(_read_decisions, documents=documents.grown(_DECISIONS)),
    "AG-UI, runs": Reader(_read_run, documents={**documents.grown(_RUN), **{f"resume: {name}": each for name, each in documents.grown(_RESUME).items()}}),
    "AG-UI, deltas": Reader(_translate, documents={"deltas": _deltas}, thread_from=2_000),
    "MCP, results": Reader(_read_mcp_message, documents=documents.grown(_RESULT), thread_from=10_000),
    "MCP, tools": Reader(_read_mcp_message, documents=documents.grown(_LIST), thread_from=10_000),
    "MCP, files": Reader(lambda text: load_servers(_write("mcp.json", text)), documents=documents.grown(_SERVERS), thread_from=0),
    "frozen JSON": Reader(lambda text: freeze(parse_json(_encoded(text))), documents=documents.JSON, thread_from=65_536),
    "documents of values": Reader(lambda text: from_json(text, AgentState), documents=_states(), thread_from=0),
    "agent files": Reader(_read_agent_file, documents=documents.TOML, longest=200_000, thread_from=0),
    "YAML": Reader(lambda text: read_front_matter(f"---\n{text}\n---\n"), documents=documents.YAML, longest=60_000, thread_from=0),
    "gzip": Reader(_decompress, documents=documents.GZIP, longest=400_000, thread_from=_CHUNK),
    "limits of grants": Reader(lambda text: Grant(arguments=[text]), _LIMITS, longest=10_000),
    # Errors quote the start of what a service has sent.
    "secrets": Reader(_SECRET.redact, _SECRETS, longest=100_000),
    "records with secrets": Reader(lambda text: _REDACTION.redact({"a": text}), _SECRETS, longest=300_000),
    "traces": Reader(_read_trace, documents=_TRACES, longest=800_000, thread_from=0),
}  # fmt: skip
