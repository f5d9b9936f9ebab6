"""Cancellation: whether the current task is being cancelled, finishing work in a task that is, and time limits for foreign code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

CUT_OFF_SECONDS = 10.0
"""The time that a cancelled operation has to end, with all that it started, such as an agent in a tool."""


def is_task_cancelled() -> bool:
    """Return whether the current task is being cancelled.

    A `CancelledError` in a task that is not comes from something that it awaited and that another task cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class CancellationWatch:
    """Tells whether the current task, or the one in which the watch began, is cancelled since then.

    A task may have been cancelled before, and run something to clean up.
    """

    __slots__ = ("_count", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._count = 0 if self._task is None else self._task.cancelling()

    def is_cancelled(self) -> bool:
        """Return whether one of the two tasks is cancelled."""
        if self._task is not None and self._task.cancelling() > self._count:
            return True
        task = asyncio.current_task()
        return task is not self._task and task is not None and task.cancelling() > 0


def has_result(task: asyncio.Future[Any]) -> bool:
    """Return whether a task has ended, and with a result."""
    return task.done() and not task.cancelled() and task.exception() is None


async def call_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of somebody else in a thread of asyncio's default executor.

    A coroutine that it returns is awaited here: nothing shows that a plain function, such as a decorator makes, returns one.

    Raises:
        RuntimeError: it raised `StopIteration`, which a future cannot hold: whoever awaits it would wait forever.
        Exception: any other error of the function.
    """

    def call() -> T:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    result = await asyncio.to_thread(call)
    return cast("T", await result) if isinstance(result, Coroutine) else result


async def compute_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a computation of ours that takes long in a thread, so that other tasks go on meanwhile.

    In virtual time it runs at once: the clock would jump while the event loop waits for the thread.

    Raises:
        Exception: any error of the function.
    """
    if getattr(asyncio.get_running_loop(), "computes_at_once", False):
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


LONG_TEXT = 2_000
"""The characters from which on a text of a model is read in a thread: each takes up to 15 µs, if it is made to."""


async def compute_on_text(text: str, function: Callable[[], T]) -> T:
    """Run a computation on a text of a model: at once on a short text, and in a thread on a long one.

    Raises:
        Exception: any error of the function.
    """
    return await compute_in_thread(function) if len(text) > LONG_TEXT else function()


async def run_shielded(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Run a coroutine to its end even if this task is cancelled, any number of times, within a time limit.

    Args:
        work: the coroutine.
        seconds: the time limit, after which it is cancelled.

    Raises:
        Exception: any error that the coroutine raises within the limit.
    """
    task = asyncio.ensure_future(work)
    await wait_through(task, seconds)  # the caller is already handling a cancellation, and raises it again afterwards
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.result()


async def wait_through(task: asyncio.Future[Any], seconds: float) -> asyncio.CancelledError | None:
    """Wait for the end of a task, for at most so many seconds, even if this task is cancelled meanwhile.

    Returns:
        The last cancellation that came meanwhile, for the caller to raise; None if there was none.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and loop.time() < deadline:
        try:
            await asyncio.wait((task,), timeout=deadline - loop.time())
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


class KeptTask(asyncio.Task[T]):
    """A task that `asyncio.run` waits for when it closes the event loop, and does not cancel as it does all others.

    For what must not be left half-way, such as the end of a process. Whoever waits for it does so with `wait_through`.
    """

    def cancel(self, msg: object = None) -> bool:
        """Cancel it, but not because the event loop is closed."""
        return asyncio._get_running_loop() is not None and super().cancel(msg)  # noqa: SLF001  # `cancel` is called outside of it


class OwnTime:
    """The time that foreign code may take, without the time for which it waits for an operation that it calls back.

    Args:
        seconds: the time; infinity for no limit.
    """

    __slots__ = ("_is_closed", "_left", "_loop", "_operations", "_since", "_timer", "over", "seconds")

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = seconds
        self._operations = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.seconds: float = 0.0
        """The seconds of its own that it has taken, up to the last operation that it called back."""
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done when the time is over."""
        self._start()

    def shorten(self, seconds: float) -> bool:
        """Leave at most this time from now, and return whether that is less than was left."""
        self._stop()
        is_less, self._left = seconds < self._left, min(self._left, seconds)
        self._start()
        return is_less

    def leave(self, seconds: float) -> None:
        """Leave this time from now, also if it is more than was left, or if nothing was."""
        self._stop()
        self._left = seconds
        if self.over.done():
            self.over = self._loop.create_future()
        self._start()

    async def without(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Await an operation; the time for it does not count.

        Raises:
            RuntimeError: the time is over, so that nothing starts any more.
            Exception: any error of the operation.
        """
        if self._is_closed or self.over.done():
            raise RuntimeError("proceed() was awaited after the time of the interceptor was over")
        self._stop()
        self._operations += 1
        try:
            return await operation()
        finally:
            self._operations -= 1
            self._start()

    def close(self) -> None:
        """Count no more."""
        self._stop()
        self._is_closed = True

    def _start(self) -> None:
        if self._operations or self._is_closed:
            return
        self._since = self._loop.time()
        # A timer for an infinite time would make a virtual clock jump to it.
        self._timer = None if self._left == inf else self._loop.call_later(max(self._left, 0.0), self._end)

    def _stop(self) -> None:
        if self._operations or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        passed = self._loop.time() - self._since
        self.seconds += passed
        self._left -= passed

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


class TimeIsOver(Exception, Generic[T]):
    """Work did not end in its own time, and was cancelled.

    Attributes:
        task: the task of the work.
        is_abandoned: whether it still runs although it was cancelled.
    """

    def __init__(self, task: asyncio.Task[Ended[T]]) -> None:
        super().__init__()
        self.task = task
        self.is_abandoned: bool = not task.done()

    @property
    def ended(self) -> Ended[T] | None:
        """What the work returned nevertheless when it was cancelled; None if it returned nothing."""
        return self.task.result() if has_result(self.task) else None


async def run_in_own_time(work: Awaitable[T], time: OwnTime, *, grace: float, keeps_result: bool = False) -> T:
    """Await foreign code in a task of its own, which is left behind when it ignores its cancellation.

    Context variables that the work sets are set for the caller, too.

    Args:
        work: the work.
        time: the time that it may take.
        grace: seconds for the work to end after it was cancelled, without the operations that it waits for.
        keeps_result: whether what the work returns nevertheless, when the task of the caller is cancelled, is returned, as if it
            was awaited here.

    Raises:
        TimeIsOver: the time is over.
        asyncio.CancelledError: the task of the caller was cancelled, or the work was by somebody else.
        Exception: any error of the work.
    """
    context = copy_context()
    task: asyncio.Task[Ended[T]] = asyncio.get_running_loop().create_task(_run_to_end(work), context=context)
    cancelled: asyncio.CancelledError | None = None
    try:
        while not (task.done() or time.over.done()):
            try:
                await asyncio.wait((task, time.over), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as error:
                if cancelled is None:
                    time.leave(grace)
                task.cancel()
                cancelled = error
        if cancelled is None and not task.done():
            time.close()
            task.cancel()
            cancelled = await wait_through(task, grace)
            if cancelled is None or (keeps_result and has_result(task)):
                _take_exception(task)
                raise TimeIsOver(task)
    finally:
        time.close()
    if cancelled is not None and not (keeps_result and has_result(task)):
        if task.cancelled():
            task.result()  # raises the error of the work, whose cause may carry what was done so far
        if task.done():
            _take_exception(task)
            raise cancelled
        raise cancelled from TimeIsOver(task)
    _set_variables(context)
    return task.result().take()


class Ended(Generic[T]):
    """The result of work, or an error that a task would raise out of the event loop, which would end the program."""

    __slots__ = ("error", "result")

    def __init__(self, result: T | None = None, error: BaseException | None = None) -> None:
        self.result = result
        self.error = error

    def take(self) -> T:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # set if there is no error


async def _run_to_end(work: Awaitable[T]) -> Ended[T]:
    try:
        return Ended(await work)
    except (SystemExit, KeyboardInterrupt) as error:
        return Ended(error=error)


def _take_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception of an ended task as retrieved, so that asyncio does not log it."""
    if task.done() and not task.cancelled():
        task.exception()


_MISSING = object()


def _set_variables(context: Context) -> None:
    variable: ContextVar[Any]
    for variable, value in context.items():
        if variable.get(_MISSING) is not value:
            variable.set(value)
