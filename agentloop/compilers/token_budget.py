"""A window of so many tokens."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen

from agentloop.compilers.window import Measure
from agentloop.compilers.window_compiler import WindowCompiler, kept_of
from agentloop.interception.message_tokens import message_tokens
from agentloop.values.agent_state import AgentState
from agentloop.values.message import Message


@frozen
class TokenBudget(WindowCompiler):
    """Shows the newest messages, as many as fit into so many tokens; what was left out stays in the state.

    When they do not fit any more, stale results become notices, the oldest messages are dropped until `keep` tokens are left,
    and an epoch begins; then requests only grow until the budget is spent again. Kept in any case: system messages and a
    summary at the beginning, the question that the rest belongs to, the last message before the window that is the user's,
    and the newest message, although these be more.

    Attributes:
        tokens: the most tokens of system prompt and messages together. The tools on offer and the answer are not among them.
        keep: how many tokens are left when there are too many; half when left out.
        estimate: says how many tokens a message takes; by its length when left out. It is asked once for each message.
        of: shows what the window is over; without the tool trace of earlier executions when left out.
    """

    tokens: int = field(kw_only=False)
    keep: int | None = None
    estimate: Callable[[Message], int] = field(default=message_tokens, repr=False)

    def __attrs_post_init__(self) -> None:
        kept_of(self.tokens, self.keep, "tokens")

    def measure(self, state: AgentState) -> Measure:
        """Count tokens, those of the system prompt first."""
        keep = kept_of(self.tokens, self.keep, "tokens")
        prompt = state.context.system_prompt
        base = self.estimate(Message.system(prompt)) if prompt else 0
        return Measure(self.estimate, self.tokens, keep, base, f"the budget of {self.tokens} tokens was spent")
