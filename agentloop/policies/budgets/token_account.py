"""An estimate of what an execution's tokens were used for."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, evolve, frozen

from agentloop.policies.budgets.amounts import NO_AMOUNTS, Amounts
from agentloop.policies.budgets.prices import Price, Prices
from agentloop.values.estimates import BYTES_PER_TOKEN, call_length, length, part_length, tools_length
from agentloop.values.inference import Usage
from agentloop.values.messages import Message
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ToolExchange, ToolSpec


@frozen
class TokenAccount:
    """An estimate of what an execution's tokens and money were used for.

    Providers report one number for the whole input. It is divided in proportion to the bytes of each part of the request,
    so the parts add up to the reported number; their accuracy depends on how evenly the text is tokenized. Parts that a
    compiler removed or an interceptor changed in a request are not known here.

    Attributes:
        system_prompt: the instructions.
        tools: the descriptions of the tools.
        history: messages of users and of the model, calls included.
        tool_results: the results of tools.
        answer: the output of the model, reasoning and calls included.
        reported: whether the provider reported the tokens of every inference; otherwise they are estimated by length.
        priced: whether every model had a price; otherwise the money is estimated, or zero without any prices.
    """

    system_prompt: Amounts = NO_AMOUNTS
    tools: Amounts = NO_AMOUNTS
    history: Amounts = NO_AMOUNTS
    tool_results: Amounts = NO_AMOUNTS
    answer: Amounts = NO_AMOUNTS
    reported: bool = True
    priced: bool = True

    @property
    def total(self) -> Amounts:
        """All parts together."""
        return self.system_prompt + self.tools + self.history + self.tool_results + self.answer

    def explain(self) -> str:
        """Return a table of the parts with their tokens, and their dollars if there are any."""
        total = self.total
        lines = [f"{'' if self.reported else 'about '}{total.tokens:,} tokens{_format_cost(total)}, divided by length:"]
        for name in ("system_prompt", "tools", "history", "tool_results", "answer"):
            part: Amounts = getattr(self, name)
            share = part.tokens / total.tokens if total.tokens else 0.0
            lines.append(f"  {name.replace('_', ' '):<14}{part.tokens:>10,}  {share:>4.0%}{_format_cost(part)}")
        return "\n".join(lines)


def token_account(state: AgentState, *, tools: Iterable[ToolSpec] = (), prices: Prices | None = None) -> TokenAccount:
    """Divide the usage of the current execution among the parts of its requests and its answers.

    Args:
        state: a state of the execution.
        tools: the tools that were offered, as in `loop.tools.specs`; a state does not contain them.
        prices: the prices of models; without them, only tokens are counted.
    """
    execution = state.execution
    if execution is None:
        return TokenAccount()
    input_bytes = _InputBytes(length(state.context.system_prompt), tools_length(tuple(tools)))
    for message in state.messages[: execution.history_length]:
        input_bytes.add(message)
    account = TokenAccount()
    for step in execution.steps:
        if step.usage.requests:
            account = _with_step(account, step, input_bytes, prices)
        if step.message is not None:
            input_bytes.add(step.message)
    return account


@define(eq=False)
class _InputBytes:
    """The size of the parts of a request."""

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


def _with_step(account: TokenAccount, step: AgentStep, input_bytes: _InputBytes, prices: Prices | None) -> TokenAccount:
    usage = step.usage
    output_bytes = sum(map(_output_bytes, step.message.parts)) if step.message is not None else 0
    input_tokens = input_bytes.total // BYTES_PER_TOKEN if usage.input_tokens is None else usage.input_tokens
    output_tokens = output_bytes // BYTES_PER_TOKEN if usage.output_tokens is None else usage.output_tokens
    known_price = prices.price(step.model, input_tokens) if prices is not None else None
    price = known_price or (prices.assumed if prices is not None else None)
    # Cached input is part of `usage`, so the input is priced with it and the output alone.
    input_cost = _cost(price, evolve(usage, input_tokens=input_tokens, output_tokens=0))
    output_cost = _cost(price, Usage(0, output_tokens, requests=usage.requests))
    system_prompt, tools, history, tool_results = (
        Amounts(tokens=tokens, cost=cost)
        for tokens, cost in zip(_divide(input_tokens, input_bytes), _divide(input_cost, input_bytes), strict=True)
    )
    return TokenAccount(
        account.system_prompt + system_prompt,
        account.tools + tools,
        account.history + history,
        account.tool_results + tool_results,
        account.answer + Amounts(tokens=output_tokens, cost=output_cost),
        reported=account.reported and usage.total_tokens is not None,
        priced=account.priced and known_price is not None,
    )


def _cost(price: Price | None, usage: Usage) -> int:
    return (price.cost(usage) or 0) if price is not None else 0


def _divide(amount: int, input_bytes: _InputBytes) -> tuple[int, int, int, int]:
    """Divide an amount in proportion to bytes; the remainder of rounding is added to the history."""
    total = input_bytes.total
    if not total:
        return 0, 0, amount, 0
    sizes = (input_bytes.system_prompt, input_bytes.tools, input_bytes.tool_results)
    system_prompt, tools, tool_results = (amount * size // total for size in sizes)
    return system_prompt, tools, amount - system_prompt - tools - tool_results, tool_results


def _output_bytes(part: object) -> int:
    return call_length(part.call) if isinstance(part, ToolExchange) else part_length(part)


def _format_cost(amounts: Amounts) -> str:
    return f"  ${amounts.dollars:,.4f}" if amounts.cost else ""
