"""A limit on tokens."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import ge

from agentloop.interception.interceptor import Interceptor
from agentloop.interception.step_limit import LIMIT_PRIORITY
from agentloop.interception.token_estimate import estimated_tokens
from agentloop.values.json_value import JsonObject
from agentloop.values.points import BeforeStep
from agentloop.values.stop import StopReason


@frozen
class TokenLimit(Interceptor):
    """Stops an execution that has used this many tokens, input and output together.

    Where a provider reports no usage, the tokens are estimated from the length of the conversation: unknown is not zero.

    Attributes:
        tokens: the most tokens of one execution. The inference that crosses the limit is still finished and kept.
    """

    tokens: int = field(validator=ge(1))
    priority: int = LIMIT_PRIORITY

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop instead of going over the limit; to settle calls that waited takes no tokens."""
        if point.state.open_turn is not None:
            return point
        used = point.state.usage.total_tokens
        known = used is not None
        if used is None:
            used = estimated_tokens(point.state)
        if used < self.tokens:
            return point
        return point.stop(
            f"the limit of {self.tokens} tokens is reached: {'' if known else 'about '}{used} used",
            reason=StopReason.TOKEN_LIMIT,
            context=JsonObject(limit=self.tokens, tokens=used, estimated=not known),
        )
