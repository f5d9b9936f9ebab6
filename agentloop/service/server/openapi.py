"""The description of the HTTP interface for programs: an OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop import __version__
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.service.server.record_events import EVENT_TYPES, QUEUED
from agentloop.values.labels import Writer
from agentloop.values.steps import ExecutionStatus


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the server, as plain JSON data."""
    paths: dict[str, Any] = {}
    for (method, path), operation in _OPERATIONS.items():
        paths.setdefault(path, {})[method] = {**operation, "responses": {**operation["responses"], **_PROBLEMS}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentloop", "version": __version__, "description": "Executions of agents over HTTP."},
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": dict(schema)}}


def _parameter(place: str, name: str, kind: str, description: str) -> dict[str, Any]:
    required = {"required": True} if place == "path" else {}
    return {"in": place, "name": name, "schema": {"type": kind}, "description": description, **required}


def _operation(summary: str, status: str, answer: Mapping[str, Any] | None, **parts: Any) -> dict[str, Any]:
    """Return an operation; `body` is the schema of its body, and `parameters` its parameters."""
    body = parts.pop("body", None)
    if body is not None:
        parts["requestBody"] = {"content": _json_content(body), "required": True}
    content = {} if answer is None else {"content": answer}
    return {"summary": summary, **parts, "responses": {status: {"description": summary, **content}}}


_ID = _parameter("path", "id", "string", "The id of the execution.")
_STREAM = {"text/event-stream": {"schema": _ref("Event")}}
_HTML = {"text/html": {"schema": {"type": "string"}}}
_PROBLEMS = {
    "default": {
        "description": "The request was not carried out.",
        "content": {"application/problem+json": {"schema": _ref("Problem")}},
    }
}

_OPERATIONS: Mapping[tuple[str, str], dict[str, Any]] = {
    ("post", "/executions"): _operation(
        "Start an execution, or return the one that the same request has started.",
        "201",
        _json_content(_ref("Execution")),
        body=_ref("Start"),
        parameters=[_parameter("header", "Idempotency-Key", "string", "Names the request, in place of `id`.")],
    ),
    ("get", "/executions"): _operation(
        "List executions, newest first.",
        "200",
        _json_content(_ref("Page")),
        parameters=[
            _parameter("query", "status", "string", "Only executions with this status."),
            _parameter("query", "session", "string", "Only the turns of this session."),
            _parameter("query", "agent_name", "string", "Only those of agents with this name."),
            _parameter("query", "since", "string", "Only those with a record at this time or later (ISO 8601)."),
            _parameter("query", "before", "string", "Only those whose last record is older (ISO 8601)."),
            _parameter("query", "text", "string", "Only those in which this text occurs: asked, answered or called."),
            _parameter("query", "asked_by", "string", "Only those that this person asked for."),
            _parameter("query", "tag", "string", "NAME or NAME=VALUE of their metadata; repeatable."),
            _parameter("query", "doubts", "string", "`true` for those with a call in doubt."),
            _parameter("query", "limit", "integer", "How many at most; 50 by default."),
            _parameter("query", "after", "string", "`next` of the page before."),
        ],
    ),
    ("get", "/executions/{id}"): _operation(
        "Return an execution.",
        "200",
        _json_content(_ref("Execution")),
        parameters=[_ID, _parameter("query", "wait", "integer", "Seconds to wait for its end or suspension.")],
    ),
    ("get", "/executions/{id}/state"): _operation(
        "Return the newest state, as a document that `from_json` reads.",
        "200",
        _json_content({"type": "object"}),
        parameters=[_ID],
    ),
    ("get", "/executions/{id}/events"): _operation(
        "Follow the events of an execution until its end.",
        "200",
        _STREAM,
        parameters=[
            _ID,
            _parameter("header", "Last-Event-ID", "integer", "The number of the last event that was received."),
            _parameter("query", "after", "integer", "The same, for clients that cannot set headers."),
            _parameter("query", "format", "string", "`ag-ui` for events of AG-UI."),
        ],
    ),
    ("get", "/executions/{id}/trace"): _operation(
        "Return all that is recorded of an execution, as the viewer shows it.",
        "200",
        _json_content(_ref("Trace")),
        parameters=[_ID],
    ),
    ("get", "/executions/{id}/trace/events"): _operation(
        "Follow the changes of a trace until the end of the execution.",
        "200",
        {"text/event-stream": {"schema": _ref("Trace")}},
        parameters=[
            _ID,
            _parameter("header", "Last-Event-ID", "string", "The `cursor` of what was received."),
            _parameter("query", "after", "string", "The same, for clients that cannot set headers."),
        ],
    ),
    ("get", "/executions/{id}/trace/comparison"): _operation(
        "Return the trace of another execution, and where it differs first.",
        "200",
        _json_content({"type": "object"}),
        parameters=[_ID, _parameter("query", "with", "string", "The id of the other execution.")],
    ),
    ("post", "/executions/{id}/forks"): _operation(
        "Fork an execution after a step, and run the fork.",
        "201",
        _json_content(_ref("Execution")),
        body=_ref("Fork"),
        parameters=[_ID],
    ),
    ("get", "/trace"): _operation("Return the page that lists executions.", "200", _HTML),
    ("get", "/trace/{id}"): _operation("Return the page that shows a trace.", "200", _HTML, parameters=[_ID]),
    ("post", "/executions/{id}/decisions"): _operation(
        "Decide about pending calls; 202 if the decisions are queued until a worker is free.",
        "200",
        _json_content(_ref("Execution")),
        body=_ref("Decisions"),
        parameters=[_ID],
    ),
    ("post", "/executions/{id}/messages"): _operation(
        "Send a message.", "202", None, body=_ref("Send"), parameters=[_ID]
    ),
    ("post", "/executions/{id}/stop"): _operation("Stop it.", "202", None, body=_ref("Stop"), parameters=[_ID]),
    ("get", "/grants"): _operation(
        "List what was allowed for later calls, and what calls have used of it.",
        "200",
        _json_content(_ref("Grants")),
    ),
    ("post", "/grants/{id}/revoke"): _operation(
        "End a grant: no further call can use it.", "200", _json_content(_ref("GrantState")), parameters=[_ID]
    ),
    ("delete", "/sessions/{id}"): _operation(
        "Delete a session with all its turns.",
        "200",
        _json_content(_ref("DeletedSession")),
        parameters=[_parameter("path", "id", "string", "The session.")],
    ),
    ("post", "/ag-ui"): _operation(
        "Run an agent for a front end that speaks AG-UI.",
        "200",
        {"text/event-stream": {"schema": {"type": "object", "description": "an event of AG-UI"}}},
        body={"type": "object", "description": "a RunAgentInput of AG-UI"},
    ),
    ("get", "/openapi.json"): _operation("Return this document.", "200", _json_content({"type": "object"})),
    ("get", "/health"): _operation("Say that the server runs.", "200", _json_content({"type": "object"})),
}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_MESSAGE = {
    "oneOf": [
        _TEXT,
        {"type": "object", "description": "the JSON form of a Message of the role `user`, without `provider_data`"},
    ]
}
_STATUS = {"enum": [*[status.value for status in ExecutionStatus], QUEUED]}
_PENDING = {"type": "array", "items": _ref("PendingCall")}
_ERROR = {"type": ["object", "null"], "properties": {"type": _TEXT, "message": _TEXT}}
_SUMMARY: Mapping[str, Any] = {
    "id": _TEXT,
    "agent_id": _TEXT,
    "agent_name": {**_TEXT, "description": "the name of the agent; empty without one"},
    "status": _STATUS,
    "step_count": _NUMBER,
    "input": _TEXT,
    "sequence": {**_NUMBER, "description": "the number of its last record"},
    "started_at": {"type": "string", "format": "date-time"},
    "updated_at": {"type": "string", "format": "date-time"},
}
_DECISION = {
    "oneOf": [
        _object(
            ("kind", "digest"),
            kind={"const": "approve"},
            digest=_TEXT,
            grant=_ref("Grant"),
            endorse={
                "type": "array",
                "items": _TEXT,
                "description": "arguments whose values count as the person's from now on",
            },
        ),
        _object(("kind", "digest"), kind={"const": "deny"}, digest=_TEXT, reason=_TEXT),
        _object(("kind", "digest"), kind={"const": "answer"}, digest=_TEXT, value={}),
        _object(("kind", "digest", "arguments"), kind={"const": "edit"}, digest=_TEXT, arguments={"type": "object"}),
    ]
}

_SCHEMAS: Mapping[str, Any] = {
    "Start": _object(("input",), input=_MESSAGE, id=_TEXT, agent=_TEXT, continues=_TEXT, session=_TEXT),
    "Send": _object(("message",), message=_MESSAGE),
    "Stop": _object((), reason=_TEXT),
    "Fork": _object(("at_step",), at_step=_NUMBER, effects={"enum": [policy.value for policy in ForkPolicy]}),
    "Trace": _object(
        ("version", "id", "is_patch", "cursor", "is_live", "executions"),
        version=_NUMBER,
        id=_TEXT,
        is_patch={"type": "boolean", "description": "whether it holds only what has changed after a cursor"},
        cursor={**_TEXT, "description": "the position from which to continue"},
        is_live={"type": "boolean", "description": "whether the execution can still change"},
        executions={
            "type": "array",
            "items": {"type": "object"},
            "description": "see `agentloop.service.trace.document.TraceExecution`",
        },
    ),
    "Decisions": _object(("decisions",), decisions={"type": "object", "additionalProperties": _DECISION}),
    "Grant": _object(
        (),
        arguments={"type": "array", "items": _TEXT, "description": "limits on arguments, such as `amount <= 50`"},
        uses={**_NUMBER, "description": "how many later calls"},
        total={**_TEXT, "description": "the largest sum of an argument, such as `amount <= 500`"},
        until={"type": "string", "format": "date-time"},
    ),
    "Grants": _object(("grants",), grants={"type": "array", "items": _ref("GrantState")}),
    "GrantState": {"type": "object", "description": "a grant, its `status`, and what was `used` and `spent`"},
    "DeletedSession": _object(("session", "turns"), session=_TEXT, turns={**_NUMBER, "description": "how many it had"}),
    "Summary": _object(tuple(_SUMMARY), **_SUMMARY),
    "Page": _object(
        ("executions", "next"),
        executions={"type": "array", "items": _ref("Summary")},
        next={"type": ["string", "null"], "description": "for `after` of the next page; null on the last one"},
    ),
    "Execution": _object(
        (*_SUMMARY, "text", "pending", "started_by", "stop", "error", "usage"),
        **_SUMMARY,
        text={"type": ["string", "null"], "description": "the final answer"},
        pending=_PENDING,
        started_by={**_TEXT, "description": "the principal; empty if a program has started it"},
        stop={"type": ["object", "null"], "properties": {"reason": _TEXT, "message": _TEXT, "principal": _TEXT}},
        error=_ERROR,
        usage={"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
    ),
    "PendingCall": _object(
        (
            "key",
            "id",
            "name",
            "arguments",
            "reason",
            "rendering",
            "digest",
            "decided_after",
            "origins",
            "waits_for",
            "is_decided",
            "grantable",
            "endorsable",
            "inner",
        ),
        key={**_TEXT, "description": "identifies the call in decisions"},
        id={**_TEXT, "description": "the id that the model gave the call"},
        name=_TEXT,
        arguments={**_TEXT, "description": "a JSON object as text"},
        reason=_TEXT,
        rendering={
            **_TEXT,
            "description": "the call as text, with its defaults and every character visible: what a person has to see, whole, "
            "before a decision",
        },
        digest={**_TEXT, "description": "of this call and its `rendering`; a decision with another one is refused"},
        decided_after={
            "type": ["array", "null"],
            "items": _TEXT,
            "description": "who else may have decided about the call: what the model had read; null where that is not tracked",
        },
        origins={
            "type": "array",
            "description": "who wrote each argument; empty where that is not tracked",
            "items": _object(
                ("argument", "writer", "sources"),
                argument=_TEXT,
                writer={"enum": [writer.value for writer in Writer]},
                sources={"type": "array", "items": _TEXT},
            ),
        },
        waits_for={**_TEXT, "description": "the key of a call that has to be settled first; empty for none"},
        is_decided={"type": "boolean"},
        grantable={"type": "boolean", "description": "whether its approval may have a `grant` for later calls"},
        endorsable={"type": "array", "items": _TEXT, "description": "the arguments that its approval may `endorse`"},
        inner=_PENDING,
    ),
    "Event": _object(
        ("type", "execution_id"),
        type={"enum": list(EVENT_TYPES)},
        execution_id=_TEXT,
        sequence={**_NUMBER, "description": "the number of its record, and the id of the event; none for deltas"},
        at={"type": "string", "format": "date-time"},
    ),
    "Problem": _object(("type", "status", "code", "detail"), type=_TEXT, status=_NUMBER, code=_TEXT, detail=_TEXT),
}
