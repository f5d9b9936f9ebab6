"""The prices of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.util import find_spec

from attrs import field, frozen
from attrs.validators import ge, optional

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import install_hint
from agentloop.policies.budgets.amounts import cost_units
from agentloop.values.inference import Usage
from agentloop.values.json import as_frozen_dict

_MILLION = 1_000_000
_LATEST = datetime(2999, 1, 1, 12, tzinfo=UTC)


@frozen
class Price:
    """The price of a model, in dollars per million tokens.

    Attributes:
        input: the price of input tokens.
        output: the price of output tokens, reasoning included.
        cached_input: the price of input tokens that the provider reads from its prompt cache; defaults to `input`.
        cache_write: the price of input tokens that the provider writes to its prompt cache; defaults to `input`.
    """

    input: float = field(validator=ge(0))
    output: float = field(validator=ge(0))
    cached_input: float | None = field(default=None, validator=optional(ge(0)))
    cache_write: float | None = field(default=None, validator=optional(ge(0)))

    def cost(self, usage: Usage) -> int | None:
        """Return the cost of this usage in cost units; None when its input or its output is unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        # Cached tokens are part of `input_tokens`, whatever the wire format reports.
        cached, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
        plain = max(usage.input_tokens - cached - written, 0)
        return (
            plain * self.input_token
            + cached * _per_token(self.input if self.cached_input is None else self.cached_input)
            + written * _per_token(self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output_token
        )

    @property
    def input_token(self) -> int:
        """The price of one input token, in cost units."""
        return _per_token(self.input)

    @property
    def max_input_token(self) -> int:
        """The highest price of one input token, in cost units."""
        return _per_token(max(self.input, self.cache_write or 0.0))

    @property
    def output_token(self) -> int:
        """The price of one output token, in cost units."""
        return _per_token(self.output)


def _per_token(per_million: float) -> int:
    return cost_units(per_million) // _MILLION


ASSUMED_PRICE = Price(input=5.0, output=25.0)
"""The price of a model without a known price: about that of large models in 2026."""


class Prices(ABC):
    """A source of prices. Pure: its answers do not change during an execution."""

    @abstractmethod
    def price(self, model: str, input_tokens: int = 0) -> Price | None:
        """Return the price of a model, or None when it is not known.

        Args:
            model: the model, as a request or a response names it.
            input_tokens: the input tokens of one request; some prices rise with them.
        """

    @property
    def assumed(self) -> Price:
        """The price to assume for a model whose price is not known."""
        return ASSUMED_PRICE


@frozen
class PriceTable(Prices):
    """A table of your own prices.

    Attributes:
        rows: a price for each model, by name or pattern such as `gpt-5*`; the first match counts.
    """

    rows: Mapping[str, Price] = field(converter=as_frozen_dict)

    def price(self, model: str, input_tokens: int = 0) -> Price | None:  # noqa: ARG002  # a row has one price for all sizes
        """Return the first row that matches the model."""
        return next((price for pattern, price in self.rows.items() if fnmatchcase(model, pattern)), None)

    @property
    def assumed(self) -> Price:
        """The row with the highest output price, for models that no row matches."""
        return max(self.rows.values(), key=lambda price: (price.output, price.input), default=ASSUMED_PRICE)


# --- published prices: the border to genai-prices ---------------------------------------------------------------


def _as_date(date: datetime | None) -> datetime:
    return _LATEST if date is None else date


@frozen
class PublishedPrices(Prices):
    """The prices in the data of the package genai-prices; nothing is fetched.

    Attributes:
        provider: the provider, as genai-prices names it; by default it is inferred from the model.
        at: the time at which the prices are valid; the latest prices by default.

    Raises:
        ConfigurationError: when genai-prices is not installed.
    """

    provider: str | None = None
    at: datetime = field(default=None, converter=_as_date, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if find_spec("genai_prices") is None:
            raise ConfigurationError(
                f"published prices need the extra `prices`: {install_hint('prices')}; or pass your own, as in "
                "Budget(cost=…, prices=PriceTable({'gpt-5*': Price(input=1.25, output=10)}))"
            )

    def price(self, model: str, input_tokens: int = 0) -> Price | None:
        """Return the price of a model for requests of this size."""
        return _published_price(model, self.provider, self.at, max(input_tokens, 1))


def published_prices() -> PublishedPrices | None:
    """Return the published prices; None when genai-prices is not installed."""
    return None if find_spec("genai_prices") is None else PublishedPrices()


# The package is asked for the prices of single tokens, because it only calculates whole usages.
@lru_cache(maxsize=1024)
def _published_price(model: str, provider: str | None, at: datetime, input_tokens: int) -> Price | None:
    from genai_prices import Usage, calc_price  # noqa: PLC0415  # the border: loaded when a price is needed

    def dollars(*, cached: int = 0, written: int = 0, output: int = 0) -> tuple[float, float]:
        usage = Usage(
            input_tokens=input_tokens, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=output
        )
        result = calc_price(usage, model, provider_id=provider, genai_request_timestamp=at)
        return float(result.input_price) * _MILLION / input_tokens, float(result.output_price)

    try:
        input_price, output_price = dollars(output=_MILLION)
        return Price(input_price, output_price, dollars(cached=input_tokens)[0], dollars(written=input_tokens)[0])
    except LookupError:
        return None
