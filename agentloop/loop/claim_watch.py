"""The watch over the claim of a running execution."""

from __future__ import annotations

import asyncio

from attrs import define, field

from agentloop.contracts.run_log import LifecycleLog
from agentloop.errors import ClaimLost


@define(eq=False)
class ClaimWatch:
    """Interrupts what an execution waits for when its claim is lost, such as an inference.

    It cancels the task of the execution, as `asyncio.timeout` does, and `end` returns the loss in place of that cancellation.
    A tool that has begun is not cancelled: its effect may be half done, and the end of its call finds the claim lost.

    Attributes:
        log: the log of the execution.
    """

    log: LifecycleLog
    _task: asyncio.Task[object] | None = field(default=None, init=False)
    _cancellations: int = field(default=0, init=False)
    _loss: ClaimLost | None = field(default=None, init=False)
    _has_cancelled: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.log.on_claim_lost(self._interrupt)

    def start(self) -> None:
        """Begin to watch: the current task drives the execution until `end`.

        Raises:
            ClaimLost: the claim was lost while nothing drove the execution.
        """
        self._task = asyncio.current_task()
        self._cancellations = 0 if self._task is None else self._task.cancelling()
        if self._loss is not None:
            raise self._loss

    def end(self, error: BaseException | None = None) -> BaseException | None:
        """Watch no more; return the error with which the run ends.

        Args:
            error: the error that has left the run; None if there is none.
        """
        task, self._task = self._task, None
        if not self._has_cancelled or task is None:
            return error
        self._has_cancelled = False
        is_cancelled_by_others = task.uncancel() > self._cancellations
        if isinstance(error, asyncio.CancelledError) and is_cancelled_by_others:
            return error
        return self._loss

    def _interrupt(self, loss: ClaimLost) -> None:
        self._loss = loss
        task = self._task
        # A task that finds the loss itself gets it as an error. It is not cancelled: it waits for nothing, and before Python 3.13,
        # `uncancel` does not take back the cancellation of a task that runs.
        if task is None or task is asyncio.current_task() or self.log.has_running_calls:
            return
        self._has_cancelled = True
        task.cancel(f"the claim is lost: {loss.reason}")
