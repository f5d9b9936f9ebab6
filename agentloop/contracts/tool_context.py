"""What a tool can learn about the call it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from agentloop.values.value import Value


def _nobody(_: object) -> None:
    """Take progress that nobody listens for."""


@frozen(eq=False, repr=False, kw_only=True)
class ToolContext(Value):
    """The context of one call, injected into a tool that asks for it.

    Attributes:
        execution_id: the execution that the call belongs to.
        agent_id: the agent that the execution belongs to.
        idempotency_key: `<execution id>/<step number>/<call index>`; the same again when the call is run again, so give
            it to any service that can refuse a repetition.
        dependencies: what the program gave to `AgentLoop.execute(…, dependencies=…)`.
    """

    execution_id: str
    agent_id: str
    idempotency_key: str
    dependencies: Any = None
    _report: Callable[[object], None] = field(default=_nobody, alias="report", repr=False, eq=False)

    def progress(self, update: object) -> None:
        """Tell listeners how far the work is, from a coroutine or from a thread.

        Args:
            update: JSON data: a text, a fraction, an object. It is emitted as `ToolCallProgressed`; after the call has
                ended it is dropped.

        Raises:
            NotJson: when the update has no JSON form.
        """
        self._report(update)
