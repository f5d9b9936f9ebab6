"""What an inference may use at the most."""

from __future__ import annotations

from attrs import evolve, frozen

from agentloop.interception.budgeting.account import BudgetAccount, Entry
from agentloop.interception.budgeting.amounts import Amounts, Limits
from agentloop.interception.budgeting.prices import Price
from agentloop.interception.budgeting.signals import refused, stop_by
from agentloop.values.agent_state import AgentState
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.points import BeforeInference
from agentloop.values.stop import StopReason

FEWEST_OUTPUT_TOKENS = 256
"""With less, a step is not worth taking: a call or an answer would be cut."""


@frozen
class Quote:
    """The most that an inference may use.

    Attributes:
        input_tokens: about how many tokens it reads, rather too many than too few.
        output_tokens: the most that it may write.
        price: what they cost; None for nothing.
    """

    input_tokens: int
    output_tokens: int
    price: Price | None = None

    @property
    def amounts(self) -> Amounts:
        """Tokens and money, to be set aside."""
        cost = 0
        if self.price is not None:
            cost = self.input_tokens * self.price.dearest_input_token + self.output_tokens * self.price.output_token
        return Amounts(tokens=self.input_tokens + self.output_tokens, cost=cost)

    def within(self, left: Limits) -> Quote:
        """Return the quote with its output cut to what is left; it may become too little, or less than nothing."""
        return evolve(self, output_tokens=min(self.output_tokens, *self._room(left).values()))

    def is_enough(self, wanted: int) -> bool:
        """Say whether there is output left to be worth the asking, or all that was wanted."""
        return self.output_tokens >= min(wanted, FEWEST_OUTPUT_TOKENS)

    def short_of(self, left: Limits) -> StopReason:
        """Say which limit leaves the least."""
        room = self._room(left)
        return min(room, key=lambda reason: room[reason])

    def _room(self, left: Limits) -> dict[StopReason, int]:
        """Return how many tokens may be written, by limit; the wish itself where there is none."""
        room = {StopReason.TOKEN_LIMIT: self.output_tokens}
        if left.tokens is not None:
            room[StopReason.TOKEN_LIMIT] = left.tokens - self.input_tokens
        if left.cost is not None and self.price is not None and self.price.output_token:
            money = left.cost - self.input_tokens * self.price.dearest_input_token
            room[StopReason.COST_LIMIT] = money // self.price.output_token
        return room


def set_aside(
    account: BudgetAccount, entry: Entry, point: BeforeInference, left: Limits, *, most: int
) -> InferenceRequest | StopReason:
    """Set aside what a request may use, and return it as it may be made, or the limit that leaves too little for it.

    Args:
        account: where it is set aside.
        entry: the execution's part of the account.
        point: the request, and the state, which knows the model that answered before.
        left: how much it may use.
        most: the most that it may write where it says nothing about that itself.

    Raises:
        AgentStop: when its price is not known and may not be estimated.
    """
    request, spending = point.request, entry.spending
    entry.asked = _input_tokens(entry, request, point.state)
    price = spending.price(request.options.model or _last_model(point.state), entry.asked)
    if spending.unknown == "refuse" and spending.missing:
        reason = StopReason.TOKEN_LIMIT if account.limits.cost is None else StopReason.COST_LIMIT
        raise stop_by(refused(reason, spending.missing))
    wanted = request.options.max_tokens or most
    quote = Quote(entry.asked, wanted, price)
    cut = quote.within(left)
    entry.hold = account.hold(cut.amounts) if cut.is_enough(wanted) else None
    if entry.hold is None:
        return quote.short_of(left)
    if cut.output_tokens >= wanted:
        return request
    return request.with_options(evolve(request.options, max_tokens=cut.output_tokens))


def _input_tokens(entry: Entry, request: InferenceRequest, state: AgentState) -> int:
    """Return about how many tokens a request has, with what the last one with tools had beyond its own estimate.

    A driver or mode may describe the tools in words of its own, and a provider may count more than its length tells.
    """
    last = state.last_step
    if last is not None and last.number == entry.asked_in and last.usage.requests == 1 and last.usage.input_tokens:
        entry.beyond = max(0, last.usage.input_tokens - entry.measured)
    entry.measured = entry.size.tokens(request)
    entry.asked_in = state.step_count + 1 if request.tools else 0
    return entry.measured + (entry.beyond if request.tools else 0)


def _last_model(state: AgentState) -> str:
    last = state.last_step
    return last.model if last is not None else ""
