"""Running a loop from a program without an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from inspect import GEN_SUSPENDED, getgeneratorstate
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

from agentloop._event_loops import new_runner, run_in_event_loop, run_with, running_loop
from agentloop.loop.event_stream import EventStream, ExecutionStream, TextStream
from agentloop.values.event import Event
from agentloop.values.state import AgentState, Output_co

T = TypeVar("T")

_ALTERNATIVES = {
    "execute_sync": "await loop.execute(…)",
    "run_sync": "await loop.run(…)",
    "resume_sync": "await loop.resume(…)",
    "recover_sync": "await loop.recover(…)",
    "get_or_start_sync": "await loop.get_or_start(…)",
    "iterate_sync": "async for state in loop.iterate(…)",
    "stream_sync": "async for event in loop.stream(…)",
    "stream_text_sync": "async for text in loop.stream_text(…)",
}
_END: Final = object()


def run_to_end(name: str, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end in a new event loop.

    Args:
        name: the method that was called.
        start: creates the coroutine.

    Raises:
        RuntimeError: inside a running event loop.
    """
    _refuse_inside_event_loop(name)
    return run_in_event_loop(start())


def iterate(name: str, start: Callable[[], AsyncIterator[T]]) -> Generator[T, None, None]:
    """Iterate over an async iterator in a new event loop, which is idle between the items.

    Args:
        name: the method that was called.
        start: creates the iterator; it has a method `aclose`.

    Raises:
        RuntimeError: inside a running event loop.
    """
    _refuse_inside_event_loop(name)
    return _iterate(start)


def _iterate(start: Callable[[], AsyncIterator[T]]) -> Generator[T, None, None]:
    with new_runner() as runner:
        items: Any = start()
        try:
            while True:
                item = run_with(runner, anext(items, _END))
                if item is _END:
                    return
                yield cast("T", item)
        finally:
            run_with(runner, items.aclose())


def _refuse_inside_event_loop(name: str) -> None:
    if running_loop() is not None:
        raise RuntimeError(f"{name} cannot be used inside a running event loop; use {_ALTERNATIVES[name]}")


class SyncStream(Iterator[T], Generic[T, Output_co]):
    """The base of the streams of one execution for programs without an event loop.

    The execution runs while the next item is awaited, and is idle in between. `close`, or the end of a `with`, cancels an
    execution that has not ended.
    """

    def __init__(self, name: str, stream: ExecutionStream[T, Output_co]) -> None:
        """Create the stream.

        Args:
            name: the method that was called.
            stream: the stream for programs with an event loop.

        Raises:
            RuntimeError: inside a running event loop.
        """
        self._name = name
        self._stream = stream
        self._items: Generator[T, None, None] = iterate(name, lambda: stream)

    @property
    def state(self) -> AgentState[Output_co] | None:
        """The final state of the execution, also after a cancellation; None before its end."""
        return self._stream.state

    @property
    def output(self) -> Output_co:
        """The final answer.

        Raises:
            ContractViolation: the execution has not ended.
            NoOutput: there is no answer.
        """
        return self._stream.output

    def __next__(self) -> T:
        # Before the items are touched: a generator that has raised is over, and would take the execution with it.
        _refuse_inside_event_loop(self._name)
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the stream; an execution that has not ended is cancelled.

        Raises:
            RuntimeError: inside a running event loop, if the execution has begun and not ended.
        """
        if getgeneratorstate(self._items) == GEN_SUSPENDED:
            _refuse_inside_event_loop(self._name)
        self._items.close()


class SyncEventStream(SyncStream[Event, Output_co]):
    """The events of one execution, for programs without an event loop; see `AgentLoop.stream_sync`."""

    def __init__(self, stream: EventStream[Output_co]) -> None:
        super().__init__("stream_sync", stream)


class SyncTextStream(SyncStream[str, Output_co]):
    """The text of one execution as it is written, for programs without an event loop; see `AgentLoop.stream_text_sync`."""

    def __init__(self, stream: TextStream[Output_co]) -> None:
        super().__init__("stream_text_sync", stream)
        self._text_stream = stream

    @property
    def text(self) -> str:
        """The text so far, without abandoned ones; see `TextStream.text`."""
        return self._text_stream.text

    @property
    def restarts(self) -> int:
        """How many texts were abandoned after a part of them was yielded; see `TextStream.restarts`."""
        return self._text_stream.restarts
