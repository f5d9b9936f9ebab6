"""Five hundred tickets under one sum: the batch stops at it, and says how far it came. Scripted, in virtual time."""

from __future__ import annotations

import asyncio

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.events import BudgetShareUsed
from agentloop.policies import BudgetAccount, Price, PriceTable
from agentloop.testing import LoopClock, run_in_virtual_time
from agentloop.values import FinishReason, InferenceRequest, InferenceResponse, Text, Usage


class Model(CanInfer):
    """Stands for a provider: each answer takes a second and costs about a cent."""

    async def infer(self, _: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(1)
        return InferenceResponse((Text("Answered."),), FinishReason.STOP, Usage(900, 100), "big-1")


sum_of_batch = BudgetAccount(
    "tickets",
    cost=1.40,
    prices=PriceTable({"big-*": Price(input=10, output=50)}),
    model="big-1",
    max_output_tokens=300,
)


async def main() -> None:
    loop = AgentLoop(ToolCallingDriver(Model()), interceptors=[sum_of_batch], clock=LoopClock())
    loop.on(BudgetShareUsed, lambda event: print(f"{event.percent} % of the sum"))
    slots = asyncio.Semaphore(20)

    async def answer(number: int) -> bool:
        async with slots:
            state = await loop.execute(f"Ticket {number}")
            return state.status == "completed"

    answered = await asyncio.gather(*[answer(number) for number in range(500)])
    balance = await sum_of_batch.balance()
    print(f"{sum(answered)} of {len(answered)} tickets answered for ${balance.spent.dollars:.2f}")
    print(f"${balance.remaining.dollars:.4f} left; the next ticket is number {answered.index(False)}")


if __name__ == "__main__":
    run_in_virtual_time(main())
