"""Commands to a running execution, from any process: a message for it, or a request to stop it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from attrs import field, frozen

from agentloop.errors.kinds import ContractViolation
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.messages import Message
from agentloop.values.value import Value


class CommandKind(StrEnum):
    """What a command asks for."""

    MESSAGE = "message"
    STOP = "stop"


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionCommand(Value):
    """A command to the process that runs an execution.

    Attributes:
        id: the id of the command; the same id posted again is no second command.
        execution_id: the execution.
        kind: what it asks for.
        message: the message of the user to deliver; None for other kinds.
        reason: why to stop, for the record; empty for other kinds.
        principal: who posted it; empty when that is unknown.
        posted_at: when it was posted, by the clock of the process that posted it.
        begins: the execution that the message begins, for a message that waits in a session; else empty.
        agent: the name of the agent that is to run that execution; empty for any.
        extensions: what the state of that execution holds besides its conversation, by owner.

    Raises:
        ContractViolation: a command of the kind `message` has no message, or its role is not `user`; or a command of another
            kind has a message.
    """

    id: str
    execution_id: str
    kind: CommandKind = field(converter=CommandKind)
    message: Message | None = None
    reason: str = ""
    principal: str = ""
    posted_at: datetime
    begins: str = ""
    agent: str = ""
    extensions: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    def __attrs_post_init__(self) -> None:
        if (self.message is not None) != (self.kind is CommandKind.MESSAGE):
            raise ContractViolation(f"a command of the kind {self.kind.value} has {self.message!r:.100} as its message")
        if self.message is not None and self.message.role != "user":
            raise ContractViolation(f"only a user's message can be sent to an execution, not the {self.message.role}'s")
