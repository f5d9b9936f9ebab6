"""Events of what the model is shown of a conversation."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.event import Event
from agentloop.values.usage import Usage


@frozen(eq=False, repr=False)
class ContextEpochBegan(Event):
    """The next request does not extend the one before, so that the provider's cache of it ends there.

    It is also told when an execution begins, or goes on after it was suspended, with something left out.

    Attributes:
        reason: why.
        dropped: how many messages of the conversation are left out.
        kept: how many messages the model is shown.
        superseded: how many of these have results that were replaced by a notice, because later calls made them stale.
    """

    reason: str
    dropped: int
    kept: int
    superseded: int = 0


@frozen(eq=False, repr=False)
class ContextSummarised(Event):
    """The beginning of the conversation was summarised, by an inference between two steps.

    Attributes:
        summary: the text that the model is shown instead.
        covered: how many messages it stands for, from the first.
        usage: the tokens of the inference; they are counted in the execution.
    """

    summary: str
    covered: int
    usage: Usage
