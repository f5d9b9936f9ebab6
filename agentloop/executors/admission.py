"""The contract of a feature over the calls of an execution, and what its layers may do to the batch of their call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from agentloop.executors.call import Call
from agentloop.executors.call_layers import CallLayer
from agentloop.executors.invocation import CallRuntime
from agentloop.values.batches import ToolCalls
from agentloop.values.decisions import Answer
from agentloop.values.state import AgentState


class Admission(Protocol):
    """A batch, as the layers of its calls see it.

    Attributes:
        state: the agent's state; a layer that lets others change it assigns what they made of it.
        asked: the calls as they were asked for, with the decisions about them.
        runtime: what the calls of the execution have in common.
        features: what lays layers around the calls, outermost first.
        nested_count: the number of calls that tools have made in the step so far.
    """

    state: AgentState
    asked: ToolCalls
    runtime: CallRuntime
    features: Sequence[CanLayerCalls]
    nested_count: int

    def block(self, call: Call, reason: str) -> None:
        """Settle a call as blocked. With `stop_on_tool_block`, the calls after it do not run either.

        To settle a call as rejected, which never stops other calls, set its `rejection`, and prepare it.
        """

    def answer(self, call: Call, answer: Answer) -> None:
        """Settle a call with an answer in place of its tool's."""

    def suspend(self, call: Call, reason: str) -> None:
        """Let a call wait for a decision."""

    def fail(self, call: Call, error: Exception) -> None:
        """Settle a call around which something failed (law 11), and admit no more calls."""

    def halt(self, error: Exception, reason: str = "") -> None:
        """Admit no more calls; the error interrupts the batch."""

    def prepare(self, call: Call) -> bool:
        """Look up the tool of a changed call and prepare the arguments; return whether that succeeded, and settle the call if not.

        A call with a `rejection` is settled as rejected, with the rejection as the message.
        """

    async def readmit(self, call: Call) -> bool:
        """Admit a changed call once more: it may have to wait for others. Return whether it has a tool, and may still run."""


class CanLayerCalls(ABC):
    """A feature over all calls of an execution. It lives as long as the execution, and may keep state over calls.

    A feature and its layers keep these laws, and `CallLayerKit` checks them:

    - A layer that waits for the layers inside ends after them, and ends what it has begun, however they end (law 58).
    - A cancellation leaves it as it came, and it lets nothing run on (laws 19 and 34).
    - It proceeds once in `run`, and repeats no attempt that may have had an effect (law 14).
    - It uses the tool of a call by the layers inside (law 35), and what they raise interrupts the batch (law 11).
    - A call keeps its id, its key and its facts (law 25); an outcome keeps its stop (law 38). A call that is suspended waits (law 16).
    """

    @abstractmethod
    def open(self, call: Call, batch: Admission) -> CallLayer | None:
        """Return what the feature does about a call; None if nothing. Called in call order, before any call is admitted."""
