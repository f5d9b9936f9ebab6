"""A window of so many messages."""

from __future__ import annotations

from attrs import field, frozen

from agentloop.compilers.window import Measure
from agentloop.compilers.window_compiler import WindowCompiler, kept_of
from agentloop.values.agent_state import AgentState
from agentloop.values.message import Message


def _one(_: Message) -> int:
    return 1


@frozen
class SlidingWindow(WindowCompiler):
    """Shows the newest messages, at most so many; what was left out stays in the state.

    When there are too many, the oldest are dropped until `keep` are left, and an epoch begins; then requests only grow until
    there are too many again. Kept in any case: system messages and a summary at the beginning, the question that the rest
    belongs to, the last message before the window that is the user's, and the newest message, although these be more.

    Attributes:
        messages: the most messages that are shown.
        keep: how many are left when there are too many; half when left out. The more, the more is seen and the more often the
            provider's cache is lost.
        of: shows what the window is over; without the tool trace of earlier executions when left out.
    """

    messages: int = field(kw_only=False)
    keep: int | None = None

    def __attrs_post_init__(self) -> None:
        kept_of(self.messages, self.keep, "messages")

    def measure(self, state: AgentState) -> Measure:  # noqa: ARG002  # the same for every state
        """Count messages."""
        keep = kept_of(self.messages, self.keep, "messages")
        return Measure(_one, self.messages, keep, 0, f"the window of {self.messages} messages was full")
