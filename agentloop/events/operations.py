"""The operation in which the current code runs, and what providers have current while it does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, Token
from types import TracebackType

from agentloop.contracts.can_handle_events import CanHandleEvents, CanProvideContext
from agentloop.values.event import Operation, OperationKind
from agentloop.values.state import AGENT_NAME, AgentState
from agentloop.values.tool_calls import ToolCall

QUEUE_SECONDS: ContextVar[float | None] = ContextVar("agentloop_queue_seconds", default=None)
"""How long the execution that starts next has waited in a queue; None if it was not queued. A worker sets it."""

_LOG = logging.getLogger("agentloop.events")


class EnteredOperation:
    """Makes an operation the current one, and enters what providers have for it. Enter and leave it in one task.

    Args:
        providers: the providers of the bus.
        kind: what the operation is.
        state: the state in which it begins.
        step_number: its 1-based step.
        key: the idempotency key of a tool call; empty for anything else.
        call: the tool call; None for anything else.
    """

    __slots__ = ("_call", "_ids", "_key", "_kind", "_managers", "_name", "_providers", "_step_number", "_token")

    # Not an attrs class, and no `Operation` before somebody asks: this runs three times per turn, watched or not.
    def __init__(
        self,
        providers: Sequence[CanProvideContext],
        kind: OperationKind,
        state: AgentState,
        step_number: int,
        *,
        key: str = "",
        call: ToolCall | None = None,
    ) -> None:
        self._providers = providers
        self._kind = kind
        # Not the state itself, which would live as long as the tasks that are started in the operation.
        execution = state.execution
        self._ids = (state.agent_id, "" if execution is None else execution.id, state.parent_agent_id)
        self._name = state.extensions.get(AGENT_NAME)
        self._step_number = step_number
        self._key = key
        self._call = call
        self._managers: Sequence[AbstractContextManager[None]] = ()
        self._token: Token[EnteredOperation | None] | None = None

    @property
    def operation(self) -> Operation:
        """The operation as a value."""
        name = "" if self._name is None else str(self._name)
        return Operation(self._kind, *self._ids, self._step_number, self._key, self._call, name)

    def __enter__(self) -> None:
        self._token = _CURRENT.set(self)
        if self._providers:
            managers: list[AbstractContextManager[None]] = []
            self._managers, operation = managers, self.operation
            for provider in self._providers:
                try:
                    manager = provider.enter(operation)
                    manager.__enter__()
                    managers.append(manager)
                except Exception as error:  # noqa: BLE001  # it must not reach the execution
                    _report(provider, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for manager in reversed(self._managers):
            try:
                manager.__exit__(None, None, None)  # without the error, which no manager can swallow then
            except Exception as failure:  # noqa: BLE001  # it must not reach the execution
                _report(manager, failure)
        if self._token is not None:
            _CURRENT.reset(self._token)
            self._token = None


_CURRENT: ContextVar[EnteredOperation | None] = ContextVar("agentloop_operation", default=None)


def current_operation() -> Operation | None:
    """Return the operation in which the current code runs, such as a tool call; None outside of executions.

    It is known in coroutines and tasks, and in the threads in which tools run.
    """
    entered = _CURRENT.get()
    return None if entered is None else entered.operation


def operation_in(context: Context) -> Operation | None:
    """Return the operation in which the code of a context runs, such as that of a task; None outside of executions."""
    entered = context.get(_CURRENT)
    return None if entered is None else entered.operation


def enter_operation(
    events: CanHandleEvents,
    kind: OperationKind,
    state: AgentState,
    step_number: int | None = None,
    *,
    key: str = "",
    call: ToolCall | None = None,
) -> EnteredOperation:
    """Return what makes an operation the current one inside of a `with` statement.

    Args:
        events: the bus of the execution.
        kind: what the operation is.
        state: the state in which it begins.
        step_number: its 1-based step; None stands for the step after the state's last one.
        key: the idempotency key of a tool call.
        call: the tool call.
    """
    number = state.step_count + 1 if step_number is None else step_number
    return EnteredOperation(getattr(events, "providers", ()), kind, state, number, key=key, call=call)


def end_execution(events: CanHandleEvents, state: AgentState, step_number: int) -> None:
    """Tell the providers of contexts that a run of an execution is over."""
    providers = _providers_of(events)
    if not providers:
        return
    operation = EnteredOperation((), OperationKind.EXECUTION, state, step_number).operation
    for provider in providers:
        try:
            provider.end(operation)
        except Exception as error:  # noqa: BLE001  # it must not reach the execution
            _report(provider, error)


def current_carrier(events: CanHandleEvents) -> Mapping[str, str]:
    """Return what another process needs to continue the current context of an execution, as texts by name."""
    carrier: dict[str, str] = {}
    for provider in _providers_of(events):
        try:
            carrier |= provider.carrier()
        except Exception as error:  # noqa: BLE001  # it must not reach the execution
            _report(provider, error)
    return carrier


def _report(subject: object, error: Exception) -> None:
    _LOG.error("%s failed to provide a context", type(subject).__name__, exc_info=error)


def _providers_of(events: CanHandleEvents) -> Sequence[CanProvideContext]:
    # Not `isinstance`, which takes as long as all the rest for an abstract class.
    return getattr(events, "providers", ())
