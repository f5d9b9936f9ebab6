"""What a model is still shown of the part of a conversation that is left out."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from agentloop.values.message import Message
from agentloop.values.summary import SUMMARY


@define(eq=False)
class Passed:
    """What stays of the messages before a place, which moves forward only; each message is looked at once.

    These stay: the system messages and the summary that the conversation begins with; the user's message that opened the
    turn in which the place stands, so that what follows has its question; and the last user's message before the place, unless
    a user's message follows.

    Attributes:
        place: how many messages are passed.
        leading: how many of them belong to the beginning that always stays.
    """

    place: int = 0
    leading: int = 0
    _opening: int | None = None
    _latest: int | None = None

    def move(self, messages: Sequence[Message]) -> None:
        """Pass one more message of this conversation."""
        place, message = self.place, messages[self.place]
        if self.leading == place and (message.role == "system" or SUMMARY in message.metadata):
            self.leading += 1
        elif message.role == "user":
            if place == self.leading or not _continues(messages[place - 1]):
                self._opening = place
            self._latest = place
        self.place += 1

    def pinned(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the places of the messages that stay, besides the leading ones, in order."""
        opening, latest = self._opening, self._latest
        if opening is None or latest is None:
            return ()
        if self.place < len(messages) and messages[self.place].role == "user":
            return (opening,) if _continues(messages[self.place - 1]) else ()
        return (opening,) if opening == latest else (opening, latest)

    def kept(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that stay, in order."""
        return [*messages[: self.leading], *[messages[place] for place in self.pinned(messages)]]


def _continues(before: Message) -> bool:
    """Say whether a user's message after this one goes on with a turn instead of opening one."""
    return before.role == "user" or bool(before.exchanges)
