"""Messages for executions that are running, or have not begun yet."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from attrs import frozen

from agentloop.errors import ContractViolation, InboxClosed
from agentloop.values.messages import Message

_REMEMBERED = 10_000


class Inboxes:
    """The messages that wait for executions of one loop and its changed copies, by execution; for use from any thread."""

    __slots__ = ("_closed", "_lock", "_noted", "_told", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, list[Message]] = {}
        self._told: dict[str, Callable[[Message], None]] = {}
        self._noted: dict[str, list[Message]] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, execution_id: str, message: Message) -> None:
        """Let a message wait for an execution.

        Raises:
            InboxClosed: when the execution has ended.
        """
        with self._lock:
            if execution_id in self._closed:
                raise InboxClosed(
                    f"the execution {execution_id!r} has ended and takes no more messages; begin the next one from its "
                    "state: loop.execute(state.with_message(…))"
                )
            self.waiting.setdefault(execution_id, []).append(message)
            told = self._told.get(execution_id)
        if told is not None:
            told(message)

    def take(self, execution_id: str) -> list[Message]:
        """Return what waits for an execution, in the order in which it was sent; it does not wait any more."""
        with self._lock:
            return self.waiting.pop(execution_id, [])

    def open(self, execution_id: str, told: Callable[[Message], None] | None = None) -> None:
        """Take messages for an execution that begins or goes on, also if one of its id has ended before.

        Args:
            execution_id: the execution.
            told: is told each message that is put from now on, in the thread that puts it.
        """
        with self._lock:
            self._closed.pop(execution_id, None)
            if told is not None:
                self._told[execution_id] = told

    def note(self, execution_id: str, message: Message) -> bool:
        """Take it that this very message is written down, if it waits for an execution; say whether it does."""
        with self._lock:
            waits = any(one is message for one in self.waiting.get(execution_id, ()))
            if waits:
                self._noted.setdefault(execution_id, []).append(message)
            return waits

    def restore(self, execution_id: str, messages: Sequence[Message]) -> None:
        """Let messages wait that were found written down, before all others, but for those that wait here still."""
        with self._lock:
            here = self.waiting.get(execution_id, [])
            noted = [one for one in self._noted.pop(execution_id, ()) if any(one is other for other in here)]
            known, away = list[Message](), list[Message]()
            for message in messages:
                if message in noted:
                    known.append(noted.pop(noted.index(message)))
                else:
                    away.append(message)
            if away:
                self.waiting[execution_id] = [*away, *here]
            if messages:
                self._noted[execution_id] = [*known, *away]

    def leave(self, execution_id: str) -> None:
        """Tell nobody any more what is put for an execution."""
        with self._lock:
            self._told.pop(execution_id, None)

    def close_if_empty(self, execution_id: str) -> bool:
        """Take no more messages for an execution, unless one waits for it; say whether that is so."""
        with self._lock:
            if execution_id in self.waiting:
                return False
            self._closed[execution_id] = None
            self._noted.pop(execution_id, None)
            if len(self._closed) > _REMEMBERED:
                self._closed.popitem(last=False)
            return True

    def close(self, execution_id: str) -> list[Message]:
        """Take no more messages for an execution, and return those that came too late for it."""
        left: list[Message] = []
        while not self.close_if_empty(execution_id):
            left += self.take(execution_id)
        return left


@frozen
class Inbox:
    """Where messages for one execution are put, before it begins or while it runs; see `AgentLoop.inbox`.

    Attributes:
        execution_id: the execution.
    """

    execution_id: str
    _inboxes: Inboxes

    def send(self, message: Message | str) -> None:
        """Put a user's message into the execution, before its next step; from any thread.

        Messages keep their order. One that is sent before the execution begins is kept until it does, and one that is
        sent while it is suspended until it goes on, in both cases by this loop and its changed copies. When the model has
        just given its final answer, the execution goes on. When the execution ends for another reason before its next
        step, as by a limit, the message stands unanswered at the end of the final state's conversation.

        Args:
            message: a text, or a user's message.

        Raises:
            InboxClosed: when the execution has ended. The last 10,000 executions that ended are known; for one that ended
                before those, a message is kept as for one that has not begun.
            ContractViolation: when the message is not a user's.
            TypeError: when it is neither a text nor a message.
        """
        if isinstance(message, str):
            message = Message.user(message)
        if not isinstance(message, Message):
            raise TypeError(f"a message is a text or a Message, not {type(message).__name__}")
        if message.role != "user":
            raise ContractViolation(f"only a user's message can be sent to an execution, not the {message.role}'s")
        self._inboxes.put(self.execution_id, message)
