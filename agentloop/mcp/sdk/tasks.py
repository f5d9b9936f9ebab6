"""Calls that a server runs as tasks, which clients poll until they end (SEP-2663): those of other servers, and of ours."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, TypeAlias

from attrs import define
from mcp import MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientSession
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    ClientCapabilities,
    EmptyResult,
    Request,
    RequestParams,
    Result,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agentloop.mcp.answers import readable_answer
from agentloop.mcp.session import CURRENT_PROGRESS, CURRENT_REQUEST, ProgressCallback, TaskAnswer
from agentloop.values.time_and_ids import Clock, SystemClock

_LOG = logging.getLogger("agentloop.mcp")
_SERVER_LOG = logging.getLogger("agentloop.mcp.server")
_EXTENSION = "io.modelcontextprotocol/tasks"
_INITIAL_WAIT = 0.1
_MAX_WAIT = 30.0
_CANCEL_SECONDS = 5.0


class TaskFailed(MCPError):
    """A task has failed, or its server has cancelled it."""


class _TaskCreated(Result):
    """The answer to a call that has become a task."""

    result_type: Literal["task"]
    task_id: str
    poll_interval_ms: int | None = None


class _TaskState(Result):
    """The state of a task, with its result when it has ended."""

    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, dict[str, Any]] | None = None


class _TaskParams(RequestParams):
    task_id: str


class _AnswerParams(_TaskParams):
    input_responses: dict[str, Any]


class _GetTask(Request[_TaskParams, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: _TaskParams


class _CancelTask(Request[_TaskParams, Literal["tasks/cancel"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: _TaskParams


class _UpdateTask(Request[_AnswerParams, Literal["tasks/update"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: _AnswerParams


class TaskExtension(ClientExtension):
    """Lets servers since 2026-07-28 answer calls with tasks, which the SDK declares only together with this extension.

    Args:
        answer: answers the questions of tasks.
    """

    identifier = _EXTENSION

    def __init__(self, answer: TaskAnswer) -> None:
        self._answer = answer

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the one form of results that the extension adds."""
        return (ResultClaim(result_type="task", model=_TaskCreated, resolve=self._resolve),)

    async def _resolve(self, created: _TaskCreated, context: ClaimContext) -> CallToolResult:
        status = CURRENT_REQUEST.get()
        if status is not None:
            status.task = created.task_id
            if status.on_task is not None:
                await self._announce(status.on_task, context.session, created.task_id)
        return await self.wait(context.session, created.task_id, created.poll_interval_ms)

    async def _announce(self, on_task: Callable[[str], Awaitable[None]], session: ClientSession, task: str) -> None:
        try:
            await on_task(task)
        except BaseException:
            # Nobody will wait for it.
            await _cancel(session, task)
            raise

    async def wait(self, session: ClientSession, task: str, poll_interval_ms: int | None = None) -> CallToolResult:
        """Wait until a task has ended; it is cancelled together with this.

        Args:
            session: the session, which may be another than that of the call.
            task: the id of the task.
            poll_interval_ms: how often to ask, in milliseconds, as the server wishes.

        Raises:
            TaskFailed: when the task has failed, or was cancelled by the server.
            MCPError: when the server rejects a request, since it does not know the task, or a question is declined.
        """
        seconds, message, answered = _seconds(poll_interval_ms), "", set[str]()
        try:
            while True:
                state = await session.send_request(_GetTask(params=_TaskParams(task_id=task)), _TaskState)
                if state.status_message and state.status_message != message:
                    message = state.status_message
                    _report(message)
                if state.status == "completed":
                    return CallToolResult.model_validate(readable_answer(state.result or {}))
                if state.status in {"failed", "cancelled"}:
                    raise _failure(state)
                if state.status == "input_required":
                    await self._answer_all(session, task, state, answered)
                await asyncio.sleep(seconds)
                seconds = _seconds(state.poll_interval_ms) if state.poll_interval_ms else min(seconds * 2, _MAX_WAIT)
        except asyncio.CancelledError:
            await _cancel(session, task)
            raise

    async def _answer_all(self, session: ClientSession, task: str, state: _TaskState, answered: set[str]) -> None:
        """Answer the questions of a task that were not answered yet; a server repeats them until it has the answers."""
        requests = {key: request for key, request in (state.input_requests or {}).items() if key not in answered}
        if requests:
            try:
                responses = {
                    key: dict(await self._answer(str(request.get("method")), request.get("params") or {}))
                    for key, request in requests.items()
                }
            except MCPError:
                await _cancel(session, task)
                raise
            params = _AnswerParams(task_id=task, input_responses=responses)
            await session.send_request(_UpdateTask(params=params), EmptyResult)
            answered.update(requests)


def _seconds(milliseconds: int | None) -> float:
    """Return how long to wait: as the server wishes, within limits of ours."""
    return _INITIAL_WAIT if milliseconds is None else min(max(milliseconds / 1000, _INITIAL_WAIT), _MAX_WAIT)


def _report(message: str) -> None:
    report = CURRENT_PROGRESS.get()
    if report is not None:
        report({"message": message})


def _failure(state: _TaskState) -> TaskFailed:
    error = state.error or {}
    text = error.get("message") or state.status_message or f"the task was {state.status}"
    code = error.get("code")
    return TaskFailed(code if isinstance(code, int) else INTERNAL_ERROR, str(text))


async def _cancel(session: ClientSession, task: str) -> None:
    """Cancel a task at its server, which may be away."""
    request = _CancelTask(params=_TaskParams(task_id=task))
    cancelling = asyncio.ensure_future(session.send_request(request, EmptyResult, _CANCEL_SECONDS))
    await asyncio.wait((cancelling,), timeout=_CANCEL_SECONDS)
    if not cancelling.done():
        cancelling.cancel()
        await asyncio.wait((cancelling,))
    elif (error := cancelling.exception()) is not None:
        _LOG.debug("the task %s could not be cancelled: %s", task, error)


# --- our server ---------------------------------------------------------------------------------------------------

_REQUIRED = {"extensions": {_EXTENSION: dict[str, Any]()}}
_MAX_TASKS = 256
_TTL_SECONDS = 3600
_POLL_MILLISECONDS = 500

_Context: TypeAlias = ServerRequestContext[Any, Any]


@define(eq=False)
class _ServedTask:
    """A call that runs as a task, or has ended as one."""

    id: str
    created_at: datetime
    updated_at: datetime
    running: asyncio.Task[CallToolResult]
    expiry: asyncio.TimerHandle
    clock: Clock
    message: str = ""

    def describe(self) -> dict[str, Any]:
        """Return the task as all responses describe it."""
        description: dict[str, Any] = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created_at.isoformat(),
            "lastUpdatedAt": self.updated_at.isoformat(),
            "ttlMs": _TTL_SECONDS * 1000,
            "pollIntervalMs": _POLL_MILLISECONDS,
        }
        return {**description, "statusMessage": self.message} if self.message else description

    @property
    def status(self) -> str:
        """How far it is. A tool that fails has a result; only what never reached a result has failed."""
        if not self.running.done():
            return "working"
        if self.running.cancelled():
            return "cancelled"
        return "completed" if self.running.exception() is None else "failed"

    def outcome(self) -> dict[str, Any]:
        """Return what its end adds to its description."""
        match self.status:
            case "completed":
                return {"result": self.running.result().model_dump(by_alias=True, mode="json", exclude_none=True)}
            case "failed":
                return {"error": _error_of(self.running.exception())}
            case _:
                return {}

    def report(self, update: Mapping[str, Any]) -> None:
        """Note the progress of the call."""
        total = f"/{update['total']:g}" if update.get("total") is not None else ""
        self.message = str(update.get("message") or f"{update['progress']:g}{total}")
        self.updated_at = self.clock.now()

    def end(self) -> None:
        """Note the end of the call."""
        self.updated_at = self.clock.now()
        if not self.running.cancelled() and (error := self.running.exception()) is not None:
            _SERVER_LOG.error("a call that ran as a task has failed", exc_info=error)


class ServedTasks:
    """The tasks of a server. They are in memory only: with the server, they are cancelled and forgotten.

    At most 256 are known at once, including those that have ended; each is known for an hour, and is cancelled then. Ids cannot
    be guessed: whoever knows one may ask for its task.

    Args:
        patterns: the names of the tools whose calls become tasks; `*` matches any characters.
        clock: tells when tasks began and ended.
    """

    def __init__(self, patterns: Sequence[str], clock: Clock | None = None) -> None:
        self._patterns = tuple(patterns)
        self._clock = SystemClock() if clock is None else clock
        self._tasks: dict[str, _ServedTask] = {}

    def install(self, server: Server[Any]) -> None:
        """Let a server declare the extension and answer its requests, if the calls of any tool become tasks."""
        if self._patterns:
            server.extensions[_EXTENSION] = {}
            for method, handler in (("get", self._get), ("update", self._update), ("cancel", self._cancel)):
                server.add_request_handler(f"tasks/{method}", _TaskParams, handler)

    def accepts(self, tool: str, context: _Context) -> bool:
        """Return whether a call becomes a task: its tool does, its client knows the extension, and there is room."""
        is_task = any(fnmatchcase(tool, pattern) for pattern in self._patterns)
        return is_task and _knows_tasks(context) and len(self._tasks) < _MAX_TASKS

    def start(self, call: Callable[[ProgressCallback], Awaitable[CallToolResult]]) -> dict[str, Any]:
        """Start a call as a task; return the response to the client.

        Args:
            call: makes the call, and passes its progress on.
        """
        name, now, loop = secrets.token_urlsafe(24), self._clock.now(), asyncio.get_running_loop()

        async def run() -> CallToolResult:
            return await call(task.report)

        running = asyncio.create_task(run(), name=f"MCP task {name}")
        expiry = loop.call_later(_TTL_SECONDS, self._expire, name)
        task = _ServedTask(name, now, now, running, expiry, self._clock)
        running.add_done_callback(lambda _: task.end())
        self._tasks[name] = task
        return {"resultType": "task", **task.describe()}

    async def aclose(self) -> None:
        """Cancel and forget all tasks."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.expiry.cancel()
            task.running.cancel()
        if tasks:
            await asyncio.wait([task.running for task in tasks.values()], timeout=_CANCEL_SECONDS)

    def _expire(self, name: str) -> None:
        self._tasks.pop(name).running.cancel()

    async def _get(self, context: _Context, params: _TaskParams) -> dict[str, Any]:
        task = self._find(context, params)
        return {"resultType": "complete", **task.describe(), **task.outcome()}

    async def _update(self, context: _Context, params: _TaskParams) -> dict[str, Any]:
        """Ignore answers: our tasks ask nothing."""
        self._find(context, params)
        return {"resultType": "complete"}

    async def _cancel(self, context: _Context, params: _TaskParams) -> dict[str, Any]:
        self._find(context, params).running.cancel()
        return {"resultType": "complete"}

    def _find(self, context: _Context, params: _TaskParams) -> _ServedTask:
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "there are no tasks in this version of the protocol")
        if not _knows_tasks(context):
            required = {"requiredCapabilities": _REQUIRED}
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client does not declare the extension {_EXTENSION}", required
            )
        # Proxies route by the header, so it has to agree with what is answered.
        name = None if context.request is None else context.request.headers.get("mcp-name")
        if name is not None and name != params.task_id:
            raise MCPError(HEADER_MISMATCH, "the header Mcp-Name is not the id of the task")
        task = self._tasks.get(params.task_id)
        if task is None:
            raise MCPError(INVALID_PARAMS, "there is no task of this id, or its time is over")
        return task


def _knows_tasks(context: _Context) -> bool:
    required = ClientCapabilities.model_validate(_REQUIRED)
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and context.session.check_client_capability(required)


def _error_of(error: BaseException | None) -> dict[str, Any]:
    if isinstance(error, MCPError):
        return {"code": error.code, "message": error.message}
    return {"code": INTERNAL_ERROR, "message": f"the call has failed: {type(error).__name__}"}
