"""Traces over HTTP: documents, their changes while executions run, and the page that shows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from agentloop.durable.journal import Journal
from agentloop.errors import ConfigurationError, UnknownExecution
from agentloop.service.server.access import Principal, RequestRefused, Scope
from agentloop.service.server.operations import Operations
from agentloop.service.server.record_events import JsonDict, ServerEvent
from agentloop.service.trace.comparison import compare_traces
from agentloop.service.trace.document import Trace, TraceComparison, TraceServer
from agentloop.service.trace.page import load_viewer, render_trace_page, security_policy
from agentloop.service.trace.reader import TraceReader

_MAX_READERS = 8
"""The executions of which the entries are stored, so that they are not read again for each request."""
_LOOK_SECONDS = 1.0
"""The time after which a trace is read again in any case: the agents that serve calls have records of their own."""


class TraceOperations:
    """Reads, compares and follows the traces of executions for principals.

    Args:
        operations: the operations on executions.
        needs_token: whether requests have to carry a token.
    """

    def __init__(self, operations: Operations, *, needs_token: bool) -> None:
        self._operations = operations
        self._needs_token = needs_token
        self._readers: dict[str, TraceReader] = {}

    async def document(self, principal: Principal, execution_id: str) -> Trace:
        """Return the trace of an execution.

        Raises:
            RequestRefused: there is no such execution.
            UnknownExecution: nothing is recorded of it.
        """
        return (await self._read(principal, execution_id)).document()

    async def comparison(self, principal: Principal, execution_id: str, other: str) -> TraceComparison:
        """Return the trace of another execution, with the first difference between the two; see `document`."""
        left = await self.document(principal, execution_id)
        return compare_traces(left, await self.document(principal, other))

    async def follow(
        self, principal: Principal, execution_id: str, cursor: str
    ) -> AsyncGenerator[ServerEvent | None, None] | None:
        """Return the changes of a trace after a cursor, with the deltas of inferences, until its end or deletion; None is a heartbeat.

        Returns:
            The events; None if the execution has ended, and nothing follows.

        Raises:
            RequestRefused: it is not a cursor, or there is no such execution.
            UnknownExecution: nothing is recorded of it.
        """
        reader = await self._read(principal, execution_id)
        if not reader.is_live and cursor == reader.cursor:
            return None
        try:
            reader.document(cursor)
        except ConfigurationError as error:
            raise RequestRefused(422, "invalid_parameter", str(error)) from error
        return self._changes(reader, execution_id, cursor)

    async def _changes(
        self, reader: TraceReader, execution_id: str, cursor: str
    ) -> AsyncGenerator[ServerEvent | None, None]:
        status, silence = "", 0.0
        feed = self._operations.feeds.follow(execution_id, reader.sequence, _LOOK_SECONDS, catches_up=True)
        async with aclosing(_started(feed)) as events:
            await anext(events)
            event: ServerEvent | None = None
            while True:
                if event is not None and not event.sequence:
                    yield ServerEvent("delta", _delta(event))
                elif await self._has_changed(reader, cursor, status):
                    patch = reader.document(cursor)
                    cursor, status, silence = patch["cursor"], reader.status, 0.0
                    yield ServerEvent("trace", {**patch}, cursor=cursor)
                elif (silence := silence + _LOOK_SECONDS) >= self._operations.limits.heartbeat_seconds:
                    silence = 0.0
                    yield None
                if not reader.is_live:
                    return
                try:
                    event = await anext(events)
                except StopAsyncIteration:  # it was deleted
                    return

    @staticmethod
    async def _has_changed(reader: TraceReader, cursor: str, status: str) -> bool:
        try:
            await reader.update()
        except UnknownExecution:  # it was deleted, which ends the feed
            return False
        return (reader.cursor, reader.status) != (cursor, status)

    async def _read(self, principal: Principal, execution_id: str) -> TraceReader:
        principal.require(Scope.READ)
        await self._operations.head(principal, execution_id)
        reader = self._readers.pop(execution_id, None)
        if reader is None:
            reader = TraceReader(self._operations.executions.journal, execution_id)
        self._readers[execution_id] = reader  # the last one is the newest
        if len(self._readers) > _MAX_READERS:
            del self._readers[next(iter(self._readers))]
        await reader.update()
        return reader

    def page(self, execution_id: str) -> tuple[str, Mapping[str, str]]:
        """Return the page that shows a trace, which holds no data of it, and the headers that protect it.

        Args:
            execution_id: the execution; empty for the list.

        Raises:
            RequestRefused: the viewer is not built.
        """
        try:
            viewer = load_viewer()
        except ConfigurationError as error:
            raise RequestRefused(503, "viewer_missing", str(error)) from error
        server: TraceServer = {
            "needs_token": self._needs_token,
            "execution_id": execution_id,
            "actions": self._actions(),
        }
        document = render_trace_page({"trace": None, "compare": None, "served": server}, viewer)
        return document, {
            "content-security-policy": f"{security_policy(viewer)}; frame-ancestors 'none'",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }

    def _actions(self) -> list[str]:
        executions = self._operations.executions
        can_command = bool(executions.agents) or isinstance(executions.journal, Journal)
        return [
            *(["decide"] if executions.agents else []),
            *(["send", "stop"] if can_command else []),
            "fork",
        ]


async def _started(
    events: AsyncGenerator[ServerEvent | None, None],
) -> AsyncGenerator[ServerEvent | None, None]:
    """Yield None when a feed is followed, and then its events: a feed drops the deltas of the time before."""
    async with aclosing(events):
        following = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.sleep(0)  # the task runs until it waits for an event
            yield None
            yield await following
        finally:
            following.cancel()
            await asyncio.wait((following,))
        async for event in events:
            yield event


def _delta(event: ServerEvent) -> JsonDict:
    data = event.data
    return {
        "execution_id": data["execution_id"],
        "step": data["step"],
        "attempt": data["attempt"],
        "kind": event.type.removesuffix("_delta"),
        "text": data["text"],
        "is_whole": event.is_whole,
    }
