"""What tokens cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fnmatch import fnmatchcase

from attrs import field, frozen
from attrs.validators import ge, optional

from agentloop.interception.budgeting.amounts import parts_of_dollar
from agentloop.values.usage import Usage

_MILLION = 1_000_000


@frozen
class Price:
    """What a model costs, in dollars per million tokens.

    Attributes:
        input: for what it reads.
        output: for what it writes, reasoning included.
        cached_input: for what the provider takes from its prompt cache; as other input when left out.
        cache_write: for what the provider writes to its prompt cache; as other input when left out.
    """

    input: float = field(validator=ge(0))
    output: float = field(validator=ge(0))
    cached_input: float | None = field(default=None, validator=optional(ge(0)))
    cache_write: float | None = field(default=None, validator=optional(ge(0)))

    def cost(self, usage: Usage) -> int | None:
        """Return what this usage costs, in parts of a dollar; None when its input or its output is unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        cached, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
        plain = max(usage.input_tokens - cached - written, 0)
        return (
            plain * self.input_token
            + cached * _token(self.input if self.cached_input is None else self.cached_input)
            + written * _token(self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output_token
        )

    @property
    def input_token(self) -> int:
        """The price of one token read, in parts of a dollar."""
        return _token(self.input)

    @property
    def dearest_input_token(self) -> int:
        """The most that one token read can cost, in parts of a dollar."""
        return _token(max(self.input, self.cache_write or 0.0))

    @property
    def output_token(self) -> int:
        """The price of one token written, in parts of a dollar."""
        return _token(self.output)


ASSUMED_PRICE = Price(input=5.0, output=25.0)
"""What is assumed of a model whose price is not known: about what large models cost in 2026."""


class Prices(ABC):
    """Knows what models cost. Pure: the same question has the same answer as long as an execution lasts."""

    @abstractmethod
    def price(self, model: str, input_tokens: int = 0) -> Price | None:
        """Return the price of a model, or None when it is not known.

        Args:
            model: the model, as a request or an answer names it.
            input_tokens: how much one request reads; some prices rise with it.
        """

    @property
    def assumed(self) -> Price:
        """What is taken for a model whose price is not known, where it is to be estimated."""
        return ASSUMED_PRICE


def _as_rows(rows: Mapping[str, Price]) -> dict[str, Price]:
    return dict(rows)


@frozen
class PriceTable(Prices):
    """Prices that a program gives.

    Attributes:
        rows: a price for each model, by name or pattern as in `gpt-5*`; the first that matches counts.
    """

    rows: Mapping[str, Price] = field(converter=_as_rows)

    def price(self, model: str, input_tokens: int = 0) -> Price | None:  # noqa: ARG002  # a row has one price for all sizes
        """Return the first row that matches the model."""
        return next((price for pattern, price in self.rows.items() if fnmatchcase(model, pattern)), None)

    @property
    def assumed(self) -> Price:
        """The dearest row by output, for models that no row matches."""
        return max(self.rows.values(), key=lambda price: (price.output, price.input), default=ASSUMED_PRICE)


def _token(per_million: float) -> int:
    return parts_of_dollar(per_million) // _MILLION
