"""The prices of tokens, and what an execution's tokens were used for."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import util

import pytest
from genai_prices import Usage as PublishedUsage
from genai_prices import calc_price
from hypothesis import given

from agentloop import AgentState, Budget, CostLimit, ScriptedInference
from agentloop.errors import ConfigurationError
from agentloop.policies import Price, Prices, PriceTable, PublishedPrices, token_account
from agentloop.policies.budgets.prices import ASSUMED_PRICE
from agentloop.policies.budgets.token_account import TokenAccount
from agentloop.testing import Ledger, Scenario, run_in_virtual_time, toy_call, toy_tools
from agentloop.testing.scenario import SCENARIOS
from agentloop.values import InferenceResponse, Text, Usage
from agentloop.values.accounts import COST_UNITS_PER_DOLLAR
from tests.policies.budget_models import PersistentModel, create_loop, status_and_reason


def test_a_price_counts_each_kind_of_token_once() -> None:
    """Input that is read from or written to the cache is part of the input, with prices of its own."""
    price = Price(input=3, output=15, cached_input=0.3, cache_write=3.75)
    cost = price.cost(Usage(1_000_000, 100_000, 400_000, 200_000, 0))
    assert cost == round((0.4 * 3 + 0.4 * 0.3 + 0.2 * 3.75 + 0.1 * 15) * COST_UNITS_PER_DOLLAR)
    assert Price(input=3, output=15).cost(Usage(1_000_000, 0, 400_000)) == 3 * COST_UNITS_PER_DOLLAR
    assert price.cost(Usage(None, 5)) is None


@pytest.mark.parametrize("kind", ["input", "output", "cached_input", "cache_write"])
def test_a_price_may_be_small_or_zero_and_never_negative(kind: str) -> None:
    """A model of less than a dollar per million tokens has a price, and so has one without any."""
    dollars = {"input": 2.0, "output": 3.0}
    for small in (0.15, 0.0):
        assert getattr(Price(**{**dollars, kind: small}), kind) == small
    with pytest.raises(ValueError, match=kind):
        Price(**{**dollars, kind: -0.1})


def test_the_first_row_that_matches_counts() -> None:
    """Rows match by name or pattern, in order; other models are assumed to have the highest price of the table."""
    small, large = Price(input=1, output=2), Price(input=5, output=30)
    table = PriceTable({"house-mini*": small, "house-*": large})
    assert table.price("house-mini-2026") == small
    assert table.price("house-max") == large
    assert table.price("other") is None
    assert table.assumed == large
    assert PriceTable({}).assumed == ASSUMED_PRICE


@pytest.mark.parametrize("written", [0, 3_000])
def test_published_prices_agree_with_the_package(written: int) -> None:
    """A model costs what genai-prices calculates for the same tokens, also of those that are written to a cache."""
    prices = PublishedPrices()
    for model in ("gpt-4o-2024-08-06", "claude-sonnet-4-5", "gemini-2.5-pro"):
        price = prices.price(model, 10_000)
        assert price is not None
        published = calc_price(
            PublishedUsage(input_tokens=10_000, cache_read_tokens=2_000, cache_write_tokens=written, output_tokens=700),
            model,
            genai_request_timestamp=prices.at,
        )
        cost = price.cost(Usage(10_000, 700, 2_000, written))
        assert cost is not None
        assert cost / COST_UNITS_PER_DOLLAR == pytest.approx(float(published.total_price))
    assert prices.price("no such model") is None


def test_published_prices_of_an_earlier_time() -> None:
    """The prices are those that were valid at the given time; by default the latest."""
    before, latest = PublishedPrices(at=datetime(2025, 1, 1, tzinfo=UTC)).price("o3"), PublishedPrices().price("o3")
    assert before is not None
    assert latest is not None
    assert before.input == 10
    assert latest.input < 10


def test_prices_may_depend_on_the_size_of_a_request() -> None:
    """A model with a higher price for long requests has that price."""
    short, long = (PublishedPrices().price("gemini-2.5-pro", size) for size in (10_000, 300_000))
    assert short is not None
    assert long is not None
    assert long.input > short.input
    assert long.output > short.output


class PricesBySize(Prices):
    """A price that depends on the size of a request; keeps the sizes that it was asked for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def price(self, model: str, input_tokens: int = 0) -> Price | None:
        self.sizes.append(input_tokens)
        return Price(input=1 if input_tokens < 200_000 else 2, output=4)


@pytest.mark.parametrize(("usage", "size"), [(Usage(1_200, 5), 1_200), (Usage(0, 5), 0), (Usage(None, 5), 0)])
def test_prices_are_asked_for_the_input_that_was_used(usage: Usage, size: int) -> None:
    """It is zero when a provider reports none and nothing is to be estimated, never less."""
    prices = PricesBySize()
    budget = Budget(cost=1, prices=prices, unknown="allow", strict=False)
    model = ScriptedInference(InferenceResponse((Text("done"),), usage=usage, model="house"))
    state = run_in_virtual_time(create_loop(model, budget).execute("go"))
    assert state.final_text == "done"
    assert set(prices.sizes) == {size}


def test_published_prices_need_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the error of a cost limit says how to install it; a table of prices does not need it."""
    find_spec = util.find_spec
    monkeypatch.setattr(
        "agentloop.policies.budgets.prices.find_spec",
        lambda name: None if name == "genai_prices" else find_spec(name),
    )
    with pytest.raises(ConfigurationError, match=r"pip install 'agentloop-kernel\[prices\]'"):
        CostLimit(1.0)
    assert CostLimit(1.0, prices=PriceTable({})).cost == 1.0
    assert Budget(tokens=5).prices is None


def test_a_cost_limit_uses_published_prices() -> None:
    """If the package is installed, a cost limit needs no prices."""
    state = run_in_virtual_time(
        create_loop(PersistentModel(model="gpt-4o-2024-08-06"), Budget(cost=0.05)).execute("go")
    )
    assert status_and_reason(state) == ("stopped", "cost_limit")
    assert state.final_text == "what I found"
    assert state.usage.input_tokens is not None
    assert state.usage.output_tokens is not None
    assert state.usage.input_tokens * 2.5e-6 + state.usage.output_tokens * 10e-6 <= 0.05


# --- the token account ------------------------------------------------------------------------------------------------


@given(SCENARIOS)
def test_the_parts_add_up_to_the_reported_tokens(scenario: Scenario) -> None:
    """The parts of the account contain exactly the tokens that the provider reported."""
    state = run_in_virtual_time(create_loop(scenario.inference()).execute(AgentState.start("go")))
    account = token_account(state, tools=[tool.spec for tool in toy_tools(Ledger())])
    is_reported = all(step.usage.total_tokens is not None for step in state.steps)
    assert account.reported is is_reported
    if is_reported:
        assert account.total.tokens == state.usage.total_tokens
        assert account.answer.tokens == state.usage.output_tokens


def test_the_input_is_divided_by_length() -> None:
    """Each part has tokens in proportion to its length, and results of tools are not part of the history."""
    responses = [
        InferenceResponse((toy_call("echo", 7),), usage=Usage(1_000, 10)),
        InferenceResponse((Text("seven"),), usage=Usage(2_000, 20)),
    ]
    start = AgentState.start("q" * 100, system_prompt="s" * 300)
    state = run_in_virtual_time(create_loop(ScriptedInference(*responses)).execute(start))
    account = token_account(state, prices=PriceTable({"*": Price(input=10, output=50)}))
    call_bytes = len("echo") + len(toy_call("echo", 7).arguments_json)
    second_input_bytes = 300 + 100 + call_bytes + len("7")
    assert account.system_prompt.tokens == 750 + 2_000 * 300 // second_input_bytes
    assert account.tool_results.tokens == 2_000 // second_input_bytes
    assert account.answer.tokens == 30
    assert account.tools.tokens == 0
    assert account.total.tokens == 3_030
    assert account.total.dollars == pytest.approx(3_000 * 10e-6 + 30 * 50e-6)
    assert account.priced
    assert not token_account(state, prices=PriceTable({})).priced
    assert account.explain().splitlines()[0] == "3,030 tokens  $0.0315, divided by length:"


def test_tokens_that_are_not_reported_are_estimated() -> None:
    """Without reported tokens the account is estimated by length, and says so."""
    response = InferenceResponse((Text("a" * 400),), usage=Usage())
    state = run_in_virtual_time(create_loop(ScriptedInference(response)).execute(AgentState.start("q" * 800)))
    account = token_account(state)
    assert (account.history.tokens, account.answer.tokens, account.reported) == (200, 100, False)
    assert account.explain().startswith("about 300 tokens")
    assert token_account(AgentState.start("go")).total.tokens == 0
    assert {line.split()[-1] for line in TokenAccount().explain().splitlines()[1:]} == {"0%"}
