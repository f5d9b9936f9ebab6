"""What an interceptor can say about a call before it runs."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from agentloop.values.decision import Answer
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Block(Value):
    """The call does not run; the model is told the reason."""

    reason: str


@frozen(eq=False, repr=False)
class Suspend(Value):
    """The call waits for a decision; the reason is for the one who decides."""

    reason: str = ""


Verdict: TypeAlias = Block | Answer | Suspend
