"""Messages for executions that are running or have not started yet."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from attrs import field, frozen

from agentloop.errors import ContractViolation, InboxClosed
from agentloop.values.commands import ExecutionCommand
from agentloop.values.messages import Message
from agentloop.values.value import Value

Deliver: TypeAlias = Callable[[ExecutionCommand], Awaitable[bool]]
"""Delivers the message of a command, once; returns True when that is durable, and False if no run can receive it now."""
CommandSource: TypeAlias = Callable[[Deliver], Awaitable[None]]
"""Called with the function that delivers commands, when a run has opened its inbox."""

_REMEMBERED = 10_000
"""How many ended executions are remembered, so that a message to one of them is refused."""


@frozen(eq=False, repr=False)
class Inbox(Value):
    """The inbox of one execution, before it starts or while it runs; see `AgentLoop.inbox`.

    Attributes:
        execution_id: the execution.
    """

    execution_id: str
    _inboxes: Inboxes = field(repr=False)

    def send(self, message: Message | str) -> None:
        """Send a user message to the execution, which receives it before its next step. Callable from any thread.

        Messages keep their order. One that is sent before the execution starts, or while it is suspended, waits until this
        loop or a changed copy of it starts or resumes the execution. If the model has just given a final answer, the
        execution continues. If the execution ends for another reason before its next step, such as a limit, the message is
        at the end of the final state's conversation, without an answer.

        Args:
            message: a text, or a message whose role is `user`.

        Raises:
            InboxClosed: the execution has ended. Only the last 10,000 ended executions are known; for an earlier one, the
                message waits as for an execution that has not started.
            ContractViolation: the role of the message is not `user`.
            TypeError: the message is neither a text nor a `Message`.
        """
        if isinstance(message, str):
            message = Message.user(message)
        if not isinstance(message, Message):
            raise TypeError(f"a message is a text or a Message, not {type(message).__name__}")
        if message.role != "user":
            raise ContractViolation(f"only a user's message can be sent to an execution, not the {message.role}'s")
        self._inboxes.put(self.execution_id, message)

    def listen(self, source: CommandSource) -> None:
        """Let commands bring messages to the execution, from the beginning of each run of this loop or a changed copy.

        Args:
            source: called when a run of the execution has opened its inbox, before its next step, with the function that
                delivers commands until the run ends. It is awaited.
        """
        self._inboxes.sources[self.execution_id] = source

    def stop_listening(self) -> None:
        """Let no commands bring messages any more. Idempotent."""
        self._inboxes.sources.pop(self.execution_id, None)


class Inboxes:
    """The inboxes of all executions of a loop and its changed copies. Thread-safe.

    With a journal, messages can be in two places: here, and in the records of an interrupted execution. `mark_recorded`
    and `restore` keep track of which messages are in both, so that none is received twice. A message of a command can be in a
    third place, its command: it stays here only with its record, since a command whose message is not recorded is obeyed again.

    Attributes:
        waiting: the messages that no step has received, by execution; without an entry where there are none.
        sources: what brings the messages of commands, by execution.
    """

    __slots__ = ("_closed", "_commanded", "_ids", "_listeners", "_lock", "_recorded", "sources", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, list[Message]] = {}
        self.sources: dict[str, CommandSource] = {}
        # Of the objects in `waiting`, to find one of many messages at once.
        self._ids: dict[str, set[int]] = {}
        self._listeners: dict[str, Callable[[Message], object]] = {}
        self._recorded: dict[str, list[Message]] = {}
        self._commanded: dict[str, list[Message]] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, execution_id: str, message: Message) -> None:
        """Add a message to the inbox of an execution.

        Raises:
            InboxClosed: the execution has ended.
        """
        with self._lock:
            if execution_id in self._closed:
                raise InboxClosed(
                    f"the execution {execution_id!r} has ended and takes no more messages; start the next one from its "
                    "state: loop.execute(state.with_message(…))"
                )
            self._add(execution_id, message)
            listener = self._listeners.get(execution_id)
        if listener is not None:  # called outside the lock, because it may use the inboxes
            listener(message)

    def take(self, execution_id: str) -> list[Message]:
        """Remove the messages of an execution and return them in the order in which they were sent."""
        with self._lock:
            self._ids.pop(execution_id, None)
            return self.waiting.pop(execution_id, [])

    def open(self, execution_id: str, listener: Callable[[Message], object] | None = None) -> None:
        """Open the inbox of an execution that starts or resumes, also if an execution with this id has ended.

        Args:
            execution_id: the execution.
            listener: called with each message from now on, in the thread that sends it.
        """
        with self._lock:
            self._closed.pop(execution_id, None)  # an earlier state of an ended execution can be executed again
            if listener is not None:
                self._listeners[execution_id] = listener

    def put_recorded(self, execution_id: str, message: Message) -> bool:
        """Add the message of a command, which the caller records at once; return False if no run can receive it."""
        with self._lock:
            if execution_id in self._closed or execution_id not in self._listeners:
                return False
            self._add(execution_id, message)
            for messages in (self._recorded, self._commanded):
                messages.setdefault(execution_id, []).append(message)
            return True

    def mark_recorded(self, execution_id: str, message: Message) -> bool:
        """Note that a message is about to be recorded; return False if it does not wait any more."""
        with self._lock:
            waits = id(message) in self._ids.get(execution_id, ())
            if waits:
                self._recorded.setdefault(execution_id, []).append(message)
            return waits

    def mark_all_recorded(self, execution_id: str) -> list[Message]:
        """Note that all messages that wait are about to be recorded; return those that are not recorded yet."""
        with self._lock:
            recorded = self._recorded.setdefault(execution_id, [])
            known = {id(message) for message in recorded}
            added = [message for message in self.waiting.get(execution_id, ()) if id(message) not in known]
            recorded += added
            return added

    def restore(self, execution_id: str, messages: Sequence[Message]) -> None:
        """Add recorded messages before all others, except for those that wait here already.

        Messages of commands that wait here without a record are removed: the record could not be written. So are those that the journal
        had when it was read before, and has no more: another process has received them.

        Args:
            execution_id: the execution.
            messages: the messages that its journal has as sent and not received.
        """
        with self._lock:
            here, ids = self.waiting.pop(execution_id, []), self._ids.pop(execution_id, set())
            marked = [message for message in self._recorded.pop(execution_id, ()) if id(message) in ids]
            known, missing, unmatched = _match(messages, marked)
            commanded = {id(message) for message in self._commanded.pop(execution_id, ())}
            lost = commanded & {id(message) for message in unmatched}
            for message in (*missing, *[message for message in here if id(message) not in lost]):
                self._add(execution_id, message)
            if messages:
                self._recorded[execution_id] = [*known, *missing]
                # They have a place in the journal, as those of commands have.
                self._commanded[execution_id] = [*known, *missing]

    def stop_recording(self, execution_id: str) -> None:
        """Remove the listener of an execution."""
        with self._lock:
            self._listeners.pop(execution_id, None)

    def close_if_empty(self, execution_id: str) -> bool:
        """Close the inbox of an execution unless a message waits in it; return whether it is closed."""
        with self._lock:
            if execution_id in self.waiting:
                return False
            self._closed[execution_id] = None
            self._recorded.pop(execution_id, None)
            self._commanded.pop(execution_id, None)
            if len(self._closed) > _REMEMBERED:
                self._closed.popitem(last=False)
            return True

    def close(self, execution_id: str) -> list[Message]:
        """Close the inbox of an execution and return the messages that were left in it."""
        messages: list[Message] = []
        while not self.close_if_empty(execution_id):  # another thread can send a message in between
            messages += self.take(execution_id)
        return messages

    def _add(self, execution_id: str, message: Message) -> None:
        """Add a waiting message; the caller holds the lock."""
        self.waiting.setdefault(execution_id, []).append(message)
        self._ids.setdefault(execution_id, set()).add(id(message))


def _match(
    recorded: Sequence[Message], marked: Sequence[Message]
) -> tuple[list[Message], list[Message], list[Message]]:
    """Match recorded messages with equal ones that wait and are marked as recorded.

    Equal messages can be sent twice: each recorded one matches one that waits.

    Returns:
        The waiting messages that have a match, the recorded ones without one, and the waiting ones without one.
    """
    unmatched = defaultdict[Message, deque[Message]](deque)
    for message in marked:
        unmatched[message].append(message)
    known, missing = list[Message](), list[Message]()
    for message in recorded:
        if unmatched.get(message):
            known.append(unmatched[message].popleft())
        else:
            missing.append(message)
    return known, missing, [message for same in unmatched.values() for message in same]
