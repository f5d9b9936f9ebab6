"""The law suite of sessions with MCP servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

from attrs import define, field
from hypothesis import strategies as st

from agentloop._event_loops import running_loop
from agentloop.errors import ToolFailed
from agentloop.mcp.connection import list_tools
from agentloop.mcp.servers import StdioServer
from agentloop.mcp.session import ConnectionLost, LimitPause, RequestStatus, ServerSession, SessionSettings
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.clocks import run_in_real_time
from agentloop.testing.kit import Kit, LawNotChecked, checked_factory, require
from agentloop.testing.surroundings import Surroundings, require_no_trace
from agentloop.testing.toys import RICH_TEXTS
from agentloop.values.parts import Image, Text
from agentloop.values.tool_calls import ToolResult

T = TypeVar("T")
OpenSession: TypeAlias = Callable[
    [SessionSettings, Callable[[], None], LimitPause], AbstractAsyncContextManager[ServerSession]
]
"""Opens a session: takes the settings, what to call when the tools have changed, and what suspends the limits of time."""

CURRENCY = 60
"""The number of the law about what a server is now."""
_NAME = "server-of-the-kit"
_TOOLS = ("say", "hang", "fail", "refuse", "picture", "die", "change")
_SECONDS = 20.0
"""How long a check may take in real time, with the start of the server."""
_PATIENCE, _LOOK = 5.0, 0.01
_CANCELLATIONS = 3
_CALLS = st.lists(st.integers(0, 3), min_size=2, max_size=5)
"""How long concurrent calls take, in `_TICK`s."""
_TICK = 0.04
_MAX_SESSIONS = 4
"""How many servers are started for a law, at most: each is a process."""
_WORDS = ("nothing is known about the order 17", "first line\n  second line\n")

_SERVER = Path(__file__).with_name("mcp_server.py")
"""The program of the server, which runs by itself."""


class McpSessionKit(Kit):
    """Checks sessions with MCP servers against the laws of `agentloop.mcp.session.ServerSession`.

    The server of the kit is a program that speaks by standard input and output, with the handshake of 2025-11-25; it notes what it
    receives. A session by another transport starts it behind that. Everything takes real time, and each law starts a few servers.

        McpSessionKit(open_session)  # open_session(settings, on_tools_changed, pause) is an async context manager

    Args:
        open_session: opens a session, as `agentloop.mcp.sdk.session.open_session` does.
        examples: the number of examples that are tried for each law; the number of servers is bounded.
    """

    laws: tuple[int, ...] = (3, 9, 14, 19, 34, 41, 44, YIELDING, CURRENCY)

    def __init__(self, open_session: OpenSession, *, examples: int = 100) -> None:
        super().__init__(examples=min(examples, _MAX_SESSIONS))
        self.open_session: OpenSession = checked_factory(open_session)

    def require_working(self) -> None:
        """Check that a plain call is answered.

        Raises:
            LawNotChecked: it is not.
        """

        async def call(bench: _SessionBench) -> None:
            result = await bench.call("say", text="hello")
            if "hello" not in _text_of(result):
                raise LawNotChecked(f"a plain call of `say` gave {result!r}")

        try:
            self._run(call)
        except Exception as error:
            if (
                isinstance(error, AssertionError) or running_loop() is not None
            ):  # said already, or no fault of the session
                raise
            raise LawNotChecked(
                f"a session, or a plain call of `say`, raised {type(error).__name__}: {error}"
            ) from error

    def _run(self, check: Callable[[_SessionBench], Awaitable[None]]) -> None:
        """Run a check with a session that is open."""

        async def run() -> None:
            failure: Exception | None = None
            async with self._opened() as bench:
                try:
                    await check(bench)
                except Exception as error:  # noqa: BLE001  # raised below: a session may put what passes through it into a group
                    failure = error
            if failure is not None:
                raise failure

        run_in_real_time(run(), seconds=_SECONDS)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[_SessionBench]:
        with TemporaryDirectory() as folder:
            log = Path(folder, "log.jsonl")
            server = StdioServer(sys.executable, ["-S", str(_SERVER), str(log), *_TOOLS])
            settings = SessionSettings(_NAME, server, 10_000_000)
            changes: list[None] = []
            async with self.open_session(settings, lambda: changes.append(None), nullcontext) as session:
                yield _SessionBench(session, log, changes)

    def law_3(self) -> None:
        """A call does not change its arguments."""

        async def check(bench: _SessionBench) -> None:
            arguments: dict[str, Any] = {"text": "a", "more": {"list": [1, {"b": None}]}}
            before = deepcopy(arguments)
            await bench.session.call_tool("say", arguments, bench.drop, RequestStatus())
            require(3, arguments == before, f"the arguments {before} of a call are {arguments} afterwards")

        self._run(check)

    def law_9(self) -> None:
        """Each call has its own answer and its own progress, whichever is answered first."""

        async def check(bench: _SessionBench, ticks: Sequence[int]) -> None:
            updates: list[list[str]] = [[] for _ in ticks]
            calls = [
                bench.call("say", updates[place], text=f"mark-{place}", seconds=number * _TICK)
                for place, number in enumerate(ticks)
            ]
            for place, result in enumerate(await asyncio.gather(*calls)):
                others = [f"mark-{other}" for other in range(len(ticks)) if other != place]
                texts = [_text_of(result), *updates[place]]
                require_no_trace(9, texts, others, of=f"the answer or the progress of the call mark-{place}")
                require(9, f"mark-{place}" in texts[0], f"the call mark-{place} was answered by {texts[0]!r:.100}")

        self.for_all(_CALLS, lambda ticks: self._run(lambda bench: check(bench, ticks)))

    def law_14(self) -> None:
        """A call is sent once, and of one that the server may have received nobody says that it was not sent."""

        async def check(bench: _SessionBench) -> None:
            for name in ("say", "fail", "refuse"):
                with suppress(ToolFailed):
                    await bench.call(name, text="once")
                count = len(bench.calls(name))
                require(14, count == 1, f"a call of `{name}` reached the server {count} times")
            status = RequestStatus()
            try:
                result = await bench.session.call_tool("die", {}, bench.drop, status)
            except ConnectionLost:
                pass
            except ToolFailed as failure:
                reason = f"the connection was lost in the middle of a call, which failed as if the server had said so: {failure}"
                require(14, condition=False, reason=reason)
            else:
                require(
                    14,
                    condition=False,
                    reason=f"the connection was lost in the middle of a call, which gave {result!r}",
                )
            require(14, status.sent, "the server has received a call, and its status says that it was not sent")
            count = len(bench.calls("die"))
            require(14, count == 1, f"a call that ends the connection reached the server {count} times")

        self._run(check)

    def law_19(self) -> None:
        """When a session has ended, its server has, and no task is left."""

        async def run() -> None:
            before = Surroundings.now()
            async with self._opened() as bench:
                await bench.call("say", text="hello")
                pid = bench.pid
            await before.require_tasks_and_sockets()
            ended = await _within(lambda: not _is_running(pid))
            require(19, ended, "the session has ended, and the process of its server runs on")

        run_in_real_time(run(), seconds=_SECONDS)

    def law_34(self) -> None:
        """The server is told of a call that is cancelled, the call raises that, and others are not disturbed."""

        async def check(bench: _SessionBench) -> None:
            beside = asyncio.ensure_future(bench.call("say", text="beside", seconds=0.5))
            try:
                for number in range(_CANCELLATIONS):
                    await self._check_cancelled_call(bench, number)
                closed = bench.session.status.closed.is_set()
                require(34, not closed, "a call was cancelled, and its session is closed")
                said = _text_of(await beside)
                require(34, said == "beside", f"beside calls that were cancelled, another one gave {said!r}")
                said = _text_of(await bench.call("say", text="afterwards"))
                require(34, said == "afterwards", f"after calls that were cancelled, another one gave {said!r}")
            finally:
                await _end(beside)

        self._run(check)

    @staticmethod
    async def _check_cancelled_call(bench: _SessionBench, number: int) -> None:
        """Cancel a call that is never answered, after this number of others."""
        call = asyncio.ensure_future(bench.call("hang", text=f"hang-{number}"))
        try:
            began = await _within(lambda: len(bench.calls("hang")) > number)
            require(34, began, f"after {number} calls that were cancelled, another one does not reach the server")
            call.cancel()
            await asyncio.wait([call], timeout=_PATIENCE)
            require(34, call.done(), "a call was cancelled, and does not end")
            given = "" if call.cancelled() else repr(call.exception() or call.result())
            require(34, call.cancelled(), f"a call was cancelled, and gave {given:.200}")
            told = await _within(lambda: bench.calls("hang")[-1] in bench.cancelled)
            require(34, told, "a call was cancelled, and the server was not told")
        finally:
            await _end(call)

    def law_41(self) -> None:
        """What a server says about a failure is in the error of the call."""

        async def check(bench: _SessionBench) -> None:
            for name in ("fail", "refuse"):
                for text in _WORDS:
                    try:
                        result = await bench.call(name, text=text)
                    except ToolFailed as failure:
                        said = str(failure)
                    else:
                        require(
                            41,
                            condition=False,
                            reason=f"the server says that a call has failed, and it gave {result!r}",
                        )
                    require(
                        41,
                        text.strip() in said,
                        f"the server wrote {text!r} about a failure, and the error is {said!r}",
                    )

        self._run(check)

    def law_44(self) -> None:
        """Arguments reach the server, and texts and pictures the caller, as they are; each call does."""

        async def check(bench: _SessionBench) -> None:
            for text in sorted(RICH_TEXTS, key=len):
                for _ in range(2):
                    result = await bench.call("say", text=text)
                    found = _text_of(result)
                    require(44, found == text, f"the server wrote {text!r:.100}, and the result is {found!r:.100}")
                received = [each.get("text") for each in bench.arguments("say")][-2:]
                require(
                    44,
                    received == [text, text],
                    f"two calls were made with {text!r:.80}; the server got {received!r:.160}",
                )
            await list_tools(bench.session, _NAME)  # a session may look up the output schema of a tool
            result = await bench.call("picture", text="a dot")
            parts = result.content or ()
            pictures = [part for part in parts if isinstance(part, Image)]
            require(
                44,
                "a dot" in _text_of(result) and pictures,
                f"the server sent a text and a picture, and the result has {parts!r:.200}",
            )

        self._run(check)

    def law_45(self) -> None:
        """No session blocks the event loop."""

        async def check(bench: _SessionBench) -> None:
            await bench.call("say", text="hello")
            await list_tools(bench.session, _NAME)

        refuse_blocking(lambda: self._run(check))()

    def law_60(self) -> None:
        """A session lists all tools as they are, tells of each change, and of the end of its connection."""

        async def check(bench: _SessionBench) -> None:
            await self._require_tools(bench, _TOOLS)
            watch = asyncio.ensure_future(bench.watch())
            await bench.call("change", text="changed")
            told = await _within(lambda: bool(bench.changes))
            watch.cancel()
            await asyncio.wait([watch])
            require(CURRENCY, told, "the server has another tool and says so, and nobody is told")
            await self._require_tools(bench, (*_TOOLS, "new"))
            closed = bench.session.status.closed
            require(CURRENCY, not closed.is_set(), "the connection stands, and the session says that it is closed")
            with suppress(ConnectionLost, ToolFailed):
                await bench.call("die")
            ended = await _within(closed.is_set)
            require(CURRENCY, ended, "the server has ended, and the session does not say that its connection has")

        self._run(check)

    @staticmethod
    async def _require_tools(bench: _SessionBench, names: Sequence[str]) -> None:
        found = sorted([tool.name for tool in await list_tools(bench.session, _NAME)])
        require(
            CURRENCY, found == sorted(names), f"the server has the tools {sorted(names)}, and the session lists {found}"
        )


@define(eq=False)
class _SessionBench:
    """An open session, and what its server has received.

    Attributes:
        session: the session.
        log: where the server notes what it receives.
        changes: one entry for each change of the tools that was told.
    """

    session: ServerSession
    log: Path
    changes: list[None] = field(factory=list)

    async def call(self, name: str, updates: list[str] | None = None, **arguments: object) -> ToolResult:
        """Call a tool; the messages of its progress are added to the updates."""

        def report(update: Mapping[str, Any]) -> None:
            if updates is not None:
                updates.append(str(update.get("message", "")))

        return await self.session.call_tool(name, arguments, report, RequestStatus())

    def drop(self, update: Mapping[str, Any]) -> None:
        """Take no note of progress."""

    async def watch(self) -> None:
        """Note the changes of the tools that the session yields."""
        async for _ in self.session.tool_changes():
            self.changes.append(None)

    def _entries(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").split("\n") if self.log.exists() else [""]
        return [json.loads(line) for line in lines[:-1]]  # the last one may not be whole

    def calls(self, name: str) -> list[object]:
        """Return the ids of the calls of a tool, as the server got them."""
        return [each["id"] for each in self._entries() if each.get("call") == name]

    def arguments(self, name: str) -> list[dict[str, Any]]:
        """Return the arguments of the calls of a tool, as the server got them."""
        return [each["arguments"] for each in self._entries() if each.get("call") == name]

    @property
    def cancelled(self) -> list[object]:
        """The ids of the calls of whose cancellation the server was told."""
        return [each["cancelled"] for each in self._entries() if "cancelled" in each]

    @property
    def pid(self) -> int:
        """The process of the server."""
        return int(next(each["pid"] for each in self._entries() if "pid" in each))


def _text_of(result: ToolResult) -> str:
    """Return what a model reads of a result."""
    if result.content is None:
        return result.value if isinstance(result.value, str) else json.dumps(result.value)
    return "".join([part.text for part in result.content if isinstance(part, Text)])


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel what is left of a task; what it raises has been judged."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _within(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return False where it has not in time."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + _PATIENCE
    while not condition():
        if clock.time() > deadline:
            return False
        await asyncio.sleep(_LOOK)
    return True


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
