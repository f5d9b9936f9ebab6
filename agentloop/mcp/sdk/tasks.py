"""Calls that a server runs as tasks: they are polled until they end, and cancelled with their call (SEP-2663)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, TypeAlias

from mcp import MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientSession
from mcp_types import INTERNAL_ERROR, CallToolResult, EmptyResult, Request, RequestParams, Result

from agentloop.mcp.session import CURRENT_REQUEST, ProgressCallback

_LOG = logging.getLogger("agentloop.mcp")
_INITIAL_WAIT = 0.1
_MAX_WAIT = 30.0
_CANCEL_SECONDS = 5.0

TaskAnswer: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a question of a task: takes the method and the parameters of the request."""

CURRENT_PROGRESS: ContextVar[ProgressCallback | None] = ContextVar("agentloop_mcp_progress", default=None)
"""Receives the progress of the call that is being made."""


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

    identifier = "io.modelcontextprotocol/tasks"

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
                    return CallToolResult.model_validate(state.result or {})
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
