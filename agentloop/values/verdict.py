"""What an interceptor can say about a call before it runs."""

from typing import TypeAlias

from attrs import frozen

from agentloop.values.decision import Answer


@frozen
class Block:
    """The call does not run; the model is told the reason."""

    reason: str


@frozen
class Suspend:
    """The call waits for a decision; the reason is for the one who decides."""

    reason: str = ""


Verdict: TypeAlias = Block | Answer | Suspend
