"""A limit on tokens."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen
from attrs.validators import ge

from agentloop.interception.budget import Budget


@frozen(repr=False)
class TokenLimit(Budget):
    """Stops an execution that has used this many tokens, input and output together.

    Where a provider reports no usage, the tokens are estimated from the length of the conversation: unknown is not zero.

    Attributes:
        tokens: the most tokens of one execution. The inference that crosses the limit is still finished and kept; a `Budget`
            does not make it.
    """

    tokens: int = field(validator=ge(1))
    wrap_up: float = field(default=0.0, init=False)
    strict: bool = field(default=False, init=False)
    lends: ClassVar[bool] = False
