"""What tokens cost."""

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
from agentloop.interception.budgets.amounts import parts_of_dollar
from agentloop.values.inference import Usage
from agentloop.values.json import as_frozen_dict

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


@frozen
class PriceTable(Prices):
    """Prices that a program gives.

    Attributes:
        rows: a price for each model, by name or pattern as in `gpt-5*`; the first that matches counts.
    """

    rows: Mapping[str, Price] = field(converter=as_frozen_dict)

    def price(self, model: str, input_tokens: int = 0) -> Price | None:  # noqa: ARG002  # a row has one price for all sizes
        """Return the first row that matches the model."""
        return next((price for pattern, price in self.rows.items() if fnmatchcase(model, pattern)), None)

    @property
    def assumed(self) -> Price:
        """The dearest row by output, for models that no row matches."""
        return max(self.rows.values(), key=lambda price: (price.output, price.input), default=ASSUMED_PRICE)


def _token(per_million: float) -> int:
    return parts_of_dollar(per_million) // _MILLION


_PUBLISHED_PER = 1_000_000
_NEWEST = datetime(2999, 1, 1, 12, tzinfo=UTC)


def _as_day(day: datetime | None) -> datetime:
    return _NEWEST if day is None else day


@frozen
class PublishedPrices(Prices):
    """The prices that the package genai-prices knows, from the data that came with it; nothing is fetched.

    Attributes:
        provider: the provider that is asked, as genai-prices names it; found by the model when left out.
        at: the moment whose prices count; the newest when left out.

    Raises:
        ConfigurationError: when genai-prices is not installed.
    """

    provider: str | None = None
    at: datetime = field(default=None, converter=_as_day, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if find_spec("genai_prices") is None:
            raise ConfigurationError(
                "published prices need the extra `prices`: pip install 'agentloop[prices]'; or give your own, as in "
                "Budget(cost=…, prices=PriceTable({'gpt-5*': Price(input=1.25, output=10)}))"
            )

    def price(self, model: str, input_tokens: int = 0) -> Price | None:
        """Return the price of a model for requests of this size."""
        return _price(model, self.provider, self.at, max(input_tokens, 1))


@lru_cache(maxsize=1024)
def _price(model: str, provider: str | None, at: datetime, input_tokens: int) -> Price | None:
    from genai_prices import Usage, calc_price  # noqa: PLC0415  # the border: loaded when a price is asked for

    def dollars(*, cached: int = 0, written: int = 0, output: int = 0) -> tuple[float, float]:
        usage = Usage(
            input_tokens=input_tokens, cache_read_tokens=cached, cache_write_tokens=written, output_tokens=output
        )
        found = calc_price(usage, model, provider_id=provider, genai_request_timestamp=at)
        return float(found.input_price) * _PUBLISHED_PER / input_tokens, float(found.output_price)

    try:
        read, wrote = dollars(output=_PUBLISHED_PER)
        return Price(read, wrote, dollars(cached=input_tokens)[0], dollars(written=input_tokens)[0])
    except LookupError:
        return None
