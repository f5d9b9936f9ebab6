"""What is still shown of messages that are left out."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from agentloop.values.epochs import SUMMARY
from agentloop.values.messages import Message
from agentloop.values.reprs import ShownByField


@define(eq=False, repr=False)
class RetainedMessages(ShownByField):
    """Selects what stays of the messages before a position; the position only advances, and each message is read once.

    These messages stay: the system messages and the summary at the beginning of the conversation; the user's message that
    opened the turn at the position, so that what follows has its question; and the last user's message before the position,
    unless a user's message follows.

    Attributes:
        position: how many messages were read.
        leading: how many of them are at the beginning and always stay.
    """

    position: int = 0
    leading: int = 0
    _opening: int | None = None
    _latest: int | None = None

    def advance(self, messages: Sequence[Message]) -> None:
        """Read one more message of this conversation."""
        index, message = self.position, messages[self.position]
        # Leading only while nothing else has come before.
        if self.leading == index and (message.role == "system" or SUMMARY in message.metadata):
            self.leading += 1
        elif message.role == "user":
            # A conversation may begin with calls that no question precedes.
            if self._opening is None or not _is_continued_by_user(messages[index - 1]):
                self._opening = index
            self._latest = index
        self.position += 1

    def pinned(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the indexes of the messages that stay, without the leading ones, in order."""
        opening, latest = self._opening, self._latest
        if opening is None or latest is None:
            return ()
        # When a user's message comes next, it is the question; an earlier one belongs to it only in the same turn.
        if self.position < len(messages) and messages[self.position].role == "user":
            return (opening,) if _is_continued_by_user(messages[self.position - 1]) else ()
        return (opening,) if opening == latest else (opening, latest)

    def select(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that stay, in order."""
        return [*messages[: self.leading], *[messages[index] for index in self.pinned(messages)]]


def _is_continued_by_user(message: Message) -> bool:
    """Return whether a user's message after this one continues the turn instead of opening a new one."""
    return message.role == "user" or bool(message.exchanges)
