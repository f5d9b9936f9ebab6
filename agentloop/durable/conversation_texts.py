"""The texts of recorded conversations, kept so that a turn formats and reads only what it adds.

The first record of an execution holds the whole conversation. In the next turn it begins alike: with the same messages, as objects,
and so with the same text; and where a record begins with that text, it holds those messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import is_
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define, field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.values.json import format_json
from agentloop.values.messages import Message

_MAX_CHARACTERS = 32_000_000
"""How much text is kept for one journal; beyond that, the conversations that were used least recently are formatted anew."""

_ADDED = '"add":['
"""The text in front of a conversation: the first of its kind in a body, since a string in JSON cannot hold it."""


@frozen(eq=False)
class KeptText:
    """A conversation as it was recorded last.

    Attributes:
        messages: its messages.
        text: their JSON, separated by commas.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""

    def without(self, body: str) -> str | None:
        """Return the text of the body of a first record without these messages; None if its conversation does not begin with them."""
        start, found, rest = body.partition(_ADDED)
        if not self.text or not found or not rest.startswith(self.text) or rest[len(self.text)] not in ",]":
            return None
        return start + _ADDED + rest[len(self.text) :].removeprefix(",")


@define(eq=False)
class ConversationTexts:
    """The texts of the conversations that were recorded last in one journal, by agents. Threads may share it."""

    _kept: OrderedDict[str, KeptText] = field(factory=OrderedDict)
    _size: int = 0
    _lock: Lock = field(factory=Lock)

    def beginning(self, agent_id: str, messages: Sequence[Message]) -> KeptText:
        """Return the kept text of the messages with which a conversation begins; an empty one if none is kept."""
        kept = self.last(agent_id)
        begins = len(messages) >= len(kept.messages) and all(map(is_, kept.messages, messages))
        return kept if begins else KeptText()

    def last(self, agent_id: str) -> KeptText:
        """Return the text of an agent's conversation as it was recorded last; an empty one if none is kept."""
        return self._kept.get(agent_id, KeptText())

    def keep(self, agent_id: str, kept: KeptText) -> None:
        """Keep the text of a conversation in place of the one before."""
        with self._lock:
            before = self._kept.pop(agent_id, None)
            self._size += len(kept.text) - (0 if before is None else len(before.text))
            self._kept[agent_id] = kept
            while self._size > _MAX_CHARACTERS:
                _, oldest = self._kept.popitem(last=False)
                self._size -= len(oldest.text)


_TEXTS: WeakKeyDictionary[CanJournal, ConversationTexts] = WeakKeyDictionary()


def texts_of(journal: CanJournal) -> ConversationTexts:
    """Return the texts that are kept for a journal, as long as the journal is there."""
    try:
        return _TEXTS.setdefault(journal, ConversationTexts())
    except TypeError:  # a class with an equality of its own has no hash
        return ConversationTexts()


def join_texts(body: dict[str, Any], messages: tuple[Message, ...], kept: KeptText) -> tuple[str, KeptText]:
    """Return the text of the body of a first record, of which the beginning of the conversation is kept.

    Args:
        body: the body without the kept messages; it begins with the conversation.
        messages: the conversation.
        kept: the kept text of its beginning.

    Returns:
        The text of the whole body, and that of the conversation in it.
    """
    conversation = body["state"]["messages"]
    added, conversation["add"] = conversation["add"], []
    start, end = format_json(body).decode().split(_ADDED, 1)
    texts = [kept.text, format_json(added).decode()[1:-1]]
    text = ",".join([each for each in texts if each])
    return f"{start}{_ADDED}{text}{end}", KeptText(messages, text)
