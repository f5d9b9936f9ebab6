"""Where the messages of a recorded conversation stand in it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from agentloop.values.message import Message


class ConversationPlaces:
    """Finds a message of the recorded conversation by its identity, so that it is not written down again."""

    __slots__ = ("_messages", "_places")

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._places: dict[int, int] = {}

    def move(self, messages: Sequence[Message]) -> None:
        """Take a conversation as the recorded one; what it has in common with the one before it is known already."""
        known = self._messages
        same = len(known) if len(messages) >= len(known) and all(map(is_, known, messages)) else 0
        if not same:
            self._places = {}
        self._places.update({id(message): place for place, message in enumerate(messages[same:], same)})
        self._messages = messages

    def of(self, message: Message) -> int | None:
        """Return where a message stands; None when it does not."""
        return self._places.get(id(message))
