"""What an execution's tokens went to."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, evolve, frozen

from agentloop.interception.budgets.amounts import NOTHING, Amounts
from agentloop.interception.budgets.prices import Price, Prices
from agentloop.values.estimates import BYTES_PER_TOKEN, call_length, length, part_length, tools_length
from agentloop.values.inference import Usage
from agentloop.values.messages import Message
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ToolExchange, ToolSpec


@frozen
class TokenAccount:
    """What an execution's tokens and money went to: an estimate.

    Providers report one number for all that a model reads. It is divided by the share of each part in the bytes of the
    request, so the parts add up to what was reported; how exact they are depends on how evenly the parts are made into
    tokens. What a compiler left out or an interceptor changed in a request is not known here.

    Attributes:
        system_prompt: the instructions.
        tools: the descriptions of the tools.
        history: what users and the model said, calls included.
        tool_results: what tools gave back.
        answer: what the model wrote, reasoning and calls included.
        reported: whether the provider reported the tokens of every inference; else they are estimated by length.
        priced: whether every model had a price; else the money is estimated, or left out when there were no prices at all.
    """

    system_prompt: Amounts = NOTHING
    tools: Amounts = NOTHING
    history: Amounts = NOTHING
    tool_results: Amounts = NOTHING
    answer: Amounts = NOTHING
    reported: bool = True
    priced: bool = True

    @property
    def total(self) -> Amounts:
        """All parts together."""
        return self.system_prompt + self.tools + self.history + self.tool_results + self.answer

    def explain(self) -> str:
        """Return the parts with their tokens, and their dollars where there are any, for a person to read."""
        total = self.total
        lines = [f"{'' if self.reported else 'about '}{total.tokens:,} tokens{_dollars(total)}, divided by length:"]
        for name in ("system_prompt", "tools", "history", "tool_results", "answer"):
            part: Amounts = getattr(self, name)
            share = part.tokens / total.tokens if total.tokens else 0.0
            lines.append(f"  {name.replace('_', ' '):<14}{part.tokens:>10,}  {share:>4.0%}{_dollars(part)}")
        return "\n".join(lines)


def token_account(state: AgentState, *, tools: Iterable[ToolSpec] = (), prices: Prices | None = None) -> TokenAccount:
    """Divide what the current execution has used among the parts of its requests and its answers.

    Args:
        state: a state of the execution.
        tools: the tools that were on offer, as in `loop.tools.specs`; a state does not hold them.
        prices: what models cost; without them, only tokens are counted.
    """
    execution = state.execution
    if execution is None:
        return TokenAccount()
    read = _Read(length(state.context.system_prompt), tools_length(tuple(tools)))
    for message in state.messages[: execution.history_length]:
        read.add(message)
    account = TokenAccount()
    for step in execution.steps:
        if step.usage.requests:
            account = _with_step(account, step, read, prices)
        if step.message is not None:
            read.add(step.message)
    return account


@define(eq=False)
class _Read:
    """The bytes that a model reads."""

    system_prompt: int
    tools: int
    history: int = 0
    tool_results: int = 0

    def add(self, message: Message) -> None:
        for part in message.parts:
            if isinstance(part, ToolExchange):
                self.history += call_length(part.call)
                self.tool_results += length(part.execution.text)
            else:
                self.history += part_length(part)

    @property
    def total(self) -> int:
        return self.system_prompt + self.tools + self.history + self.tool_results


def _with_step(account: TokenAccount, step: AgentStep, read: _Read, prices: Prices | None) -> TokenAccount:
    usage = step.usage
    wrote = sum(map(_written, step.message.parts)) if step.message is not None else 0
    known = evolve(
        usage,
        input_tokens=read.total // BYTES_PER_TOKEN if usage.input_tokens is None else usage.input_tokens,
        output_tokens=wrote // BYTES_PER_TOKEN if usage.output_tokens is None else usage.output_tokens,
    )
    found = prices.price(step.model, known.input_tokens or 0) if prices is not None else None
    price = found or (prices.assumed if prices is not None else None)
    tokens = _divided(known.input_tokens or 0, read)
    money = _divided(_cost(price, evolve(known, output_tokens=0)), read)
    written = Amounts(
        tokens=known.output_tokens or 0, cost=_cost(price, Usage(0, known.output_tokens, requests=usage.requests))
    )
    system, offered, history, results = (
        Amounts(tokens=one, cost=cost) for one, cost in zip(tokens, money, strict=True)
    )
    return TokenAccount(
        account.system_prompt + system,
        account.tools + offered,
        account.history + history,
        account.tool_results + results,
        account.answer + written,
        reported=account.reported and usage.total_tokens is not None,
        priced=account.priced and found is not None,
    )


def _cost(price: Price | None, usage: Usage) -> int:
    return (price.cost(usage) or 0) if price is not None else 0


def _divided(amount: int, read: _Read) -> tuple[int, int, int, int]:
    """Divide an amount by bytes; what rounding leaves goes to the history."""
    total = read.total
    if not total:
        return 0, 0, amount, 0
    system, tools, results = (amount * part // total for part in (read.system_prompt, read.tools, read.tool_results))
    return system, tools, amount - system - tools - results, results


def _written(part: object) -> int:
    return call_length(part.call) if isinstance(part, ToolExchange) else part_length(part)


def _dollars(amounts: Amounts) -> str:
    return f"  ${amounts.dollars:,.4f}" if amounts.cost else ""
