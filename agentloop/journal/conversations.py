"""The executions of an agent, one after the other, as one conversation."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from agentloop.values.journal_record import ExecutionHead
from agentloop.values.value import Value


def _as_heads(heads: Iterable[ExecutionHead]) -> tuple[ExecutionHead, ...]:
    return tuple(heads)


@frozen(eq=False, repr=False)
class Conversation(Value):
    """What an agent was asked and did, over all its executions.

    Attributes:
        agent_id: the agent.
        parent_agent_id: the agent whose tool call it serves; None for one of its own.
        executions: its executions in the order of their numbers.
    """

    agent_id: str
    parent_agent_id: str | None
    executions: tuple[ExecutionHead, ...] = field(converter=_as_heads)


def conversations_of(heads: Iterable[ExecutionHead]) -> tuple[Conversation, ...]:
    """Group executions by their agents; a conversation stands where the first of its executions stood."""
    of_agent: dict[str, list[ExecutionHead]] = {}
    for head in heads:
        of_agent.setdefault(head.agent_id, []).append(head)
    return tuple([_conversation(sorted(group, key=_number)) for group in of_agent.values()])


def _conversation(heads: list[ExecutionHead]) -> Conversation:
    return Conversation(heads[0].agent_id, heads[0].parent_agent_id, heads)


def _number(head: ExecutionHead) -> int:
    return head.number
