"""What a scripted model knows: one question, and how to answer it."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from agentloop.cli.demo.conversation_seen import ConversationSeen
from agentloop.cli.demo.move import Move


@frozen
class Script:
    """How one question is answered, decided from the conversation alone.

    Attributes:
        question: the question.
        tools: the tools that are needed.
        next_move: decides what to do next, with tools.
        last_answer: answers with what was found so far, without tools.
    """

    question: str
    tools: frozenset[str]
    next_move: Callable[[ConversationSeen], Move]
    last_answer: Callable[[ConversationSeen], Move]
