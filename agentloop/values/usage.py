"""Token counts."""

from __future__ import annotations

from typing import Self

from attrs import frozen

from agentloop.values.value import Value


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


@frozen(eq=False, repr=False)
class Usage(Value):
    """Tokens that one or more inferences used. Unknown is None, never zero, and stays unknown in a sum.

    Attributes:
        input_tokens: everything the model read, cached input included.
        output_tokens: everything the model wrote, reasoning included.
        cached_input_tokens: the part of the input that the provider took from its prompt cache.
        cache_write_tokens: the part of the input that the provider wrote to its prompt cache.
        reasoning_tokens: the part of the output that was reasoning.
        requests: how many inferences this counts.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    requests: int = 1

    @classmethod
    def none(cls) -> Self:
        """Return the usage of no inference at all: the zero of addition."""
        return cls(0, 0, 0, 0, 0, 0)

    @property
    def total_tokens(self) -> int | None:
        """Input and output together, or None when either is unknown."""
        return _sum(self.input_tokens, self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.cached_input_tokens, other.cached_input_tokens),
            _sum(self.cache_write_tokens, other.cache_write_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
            self.requests + other.requests,
        )
