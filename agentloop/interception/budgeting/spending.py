"""What an execution has used, as its state says."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import define, evolve

from agentloop.interception.budgeting.prices import Price, Prices
from agentloop.interception.budgeting.request_size import BYTES_PER_TOKEN, length, message_length
from agentloop.values.agent_state import AgentState
from agentloop.values.agent_step import AgentStep
from agentloop.values.usage import Usage

Unknown: TypeAlias = Literal["refuse", "estimate", "allow"]
"""What to do about tokens that a provider does not report, and about models without a price: stop the execution; count an
estimate; count nothing."""


@define(eq=False)
class Spending:
    """Counts the tokens and the money of one execution; steps that were counted are not looked at again.

    Attributes:
        unknown: what to do about what is not known.
        prices: what models cost; None when money is of no interest.
        model: the model whose price is taken where neither a request nor an answer names one that has a price.
        tokens: the tokens so far.
        cost: the money so far, in parts of a dollar.
        estimated: whether anything was unknown.
        missing: what was not known first, in words; empty when all was.
    """

    unknown: Unknown = "estimate"
    prices: Prices | None = None
    model: str = ""
    tokens: int = 0
    cost: int = 0
    estimated: bool = False
    missing: str = ""
    _steps: int = 0
    _history: int = 0
    _beside: tuple[int, int, int] = (0, 0, 0)

    def count(self, state: AgentState) -> None:
        """Count what is new in a state of the execution."""
        execution = state.execution
        if execution is None:
            return
        if not self._steps and execution.steps:
            before = state.messages[: execution.history_length]
            self._history = length(state.context.system_prompt) + sum(map(message_length, before))
        for step in execution.steps[self._steps :]:
            self._count(step)
        self._steps = len(execution.steps)
        self._count_beside(execution.totals.beside)

    def _count(self, step: AgentStep) -> None:
        if not step.usage.requests:
            return
        written = message_length(step.message) if step.message is not None else 0
        tokens, cost = self.of(step.usage, step.model, self._history // BYTES_PER_TOKEN, written // BYTES_PER_TOKEN)
        self.tokens += tokens
        self.cost += cost
        self._history += written

    def _count_beside(self, beside: Usage) -> None:
        """Count the inferences between the steps, such as those for summaries: all of them anew when there are more."""
        requests, tokens, cost = self._beside
        if beside.requests == requests:
            return
        self._beside = (beside.requests, *self.of(beside, "", self._history // BYTES_PER_TOKEN, 0))
        self.tokens += self._beside[1] - tokens
        self.cost += self._beside[2] - cost

    def of(self, usage: Usage, model: str, read: int, wrote: int) -> tuple[int, int]:
        """Return the tokens and the money that an inference used.

        Args:
            usage: what the provider reports.
            model: the model that answered.
            read: about how many tokens it read, for when the provider does not say.
            wrote: about how many tokens it wrote.
        """
        if usage.total_tokens is None:
            self._miss("the provider does not report its tokens")
            if self.unknown == "allow":
                usage = evolve(usage, input_tokens=usage.input_tokens or 0, output_tokens=usage.output_tokens or 0)
            else:
                usage = evolve(
                    usage,
                    input_tokens=read if usage.input_tokens is None else usage.input_tokens,
                    output_tokens=wrote if usage.output_tokens is None else usage.output_tokens,
                )
        price = self.price(model, usage.input_tokens or 0)
        return usage.total_tokens or 0, (price.cost(usage) or 0) if price is not None else 0

    def price(self, model: str, input_tokens: int) -> Price | None:
        """Return the price of a model, or what is taken for it; None when it costs nothing that counts."""
        if self.prices is None:
            return None
        known = (self.prices.price(name, input_tokens) for name in (model, self.model) if name)
        price = next((price for price in known if price is not None), None)
        if price is not None:
            return price
        if model or self.model:
            self._miss(f"the price of the model {model or self.model!r} is not known")
        return None if self.unknown == "allow" else self.prices.assumed

    def _miss(self, what: str) -> None:
        self.estimated = True
        self.missing = self.missing or what
