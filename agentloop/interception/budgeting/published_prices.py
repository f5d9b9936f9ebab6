"""Prices that providers publish: the one file that knows genai-prices, which needs the extra `prices`."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from importlib.util import find_spec

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.interception.budgeting.prices import Price, Prices

_MILLION = 1_000_000
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
        return float(found.input_price) * _MILLION / input_tokens, float(found.output_price)

    try:
        read, wrote = dollars(output=_MILLION)
        return Price(read, wrote, dollars(cached=input_tokens)[0], dollars(written=input_tokens)[0])
    except LookupError:
        return None
