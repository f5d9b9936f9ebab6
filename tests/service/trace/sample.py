"""A recorded execution with everything that a trace can show, in virtual time."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, tool
from agentloop.contracts import Tool
from agentloop.durable import MemoryJournal
from agentloop.errors import ProviderUnavailable, ToolFailed
from agentloop.interception import AfterToolUse, AroundInference, BeforeExecution, BeforeToolUse, RequireApproval
from agentloop.service.trace import build_trace
from agentloop.testing import CountingIds, CrashableJournal, LoopClock, run_in_virtual_time
from agentloop.values import InferenceRequest, InferenceResponse, Reasoning, Text, Usage, approve
from agentloop.values.points import Proceed

ORDER = "order-7"


# --- tools --------------------------------------------------------------------------------------------------------------


@tool(effect="pure")
async def stock(item: str) -> dict[str, object]:
    """Look up how many items are in stock."""
    await asyncio.sleep(1.2)
    return {"item": item, "count": 3, "shelf": ["A4", "B1"]}


@tool(effect="pure")
async def price(item: str) -> int:
    """Look up the price of an item in cents."""
    await asyncio.sleep(0.7)
    return 1299


@tool(effect="pure")
async def weather(city: str) -> str:
    """Look up the weather."""
    await asyncio.sleep(0.4)
    raise ToolFailed(f"the weather service does not know {city!r}")


@tool
async def send_mail(to: str, text: str) -> dict[str, str]:
    """Send a mail."""
    await asyncio.sleep(0.6)
    return {"sent": to, "account": "DE89 3704 0044"}


@tool
async def pay(cents: int) -> str:
    """Pay an amount."""
    await asyncio.sleep(0.9)
    return f"paid {cents}"


@tool
async def ship(item: str) -> str:
    """Ship an item."""
    await asyncio.sleep(0.5)
    return f"shipped {item}"


@tool(effect="pure")
async def search(query: str) -> list[str]:
    """Search the web."""
    await asyncio.sleep(0.8)
    return [f"{query}: a page <script>alert(1)</script>", "another page \u202e reversed"]


# --- interceptors -------------------------------------------------------------------------------------------------------


class CompanyRules(Interceptor):
    """Blocks what is too expensive, and sends mails to the test account."""

    def before_execution(self, point: BeforeExecution) -> BeforeExecution:
        return point.with_state(point.state.with_metadata(customer="ada"))

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        if point.call.name == "pay" and point.arguments["cents"] > 100_000:
            return point.block("payments above 1,000.00 are not allowed")
        if point.call.name == "send_mail":
            return point.with_call(point.call.with_arguments({**point.arguments, "to": "test@example.com"}))
        return point


class HideAccounts(Interceptor):
    """Masks numbers of accounts in results."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        value = point.execution.value
        return (
            point.with_value({**value, "account": "***"}) if isinstance(value, dict) and "account" in value else point
        )


class TryTwice(Interceptor):
    """Sends a request again when the provider is away."""

    async def around_inference(self, point: AroundInference, proceed: Proceed[InferenceResponse]) -> InferenceResponse:
        try:
            return await proceed()
        except ProviderUnavailable:
            return await proceed()


# --- the model ----------------------------------------------------------------------------------------------------------


class SlowModel(ScriptedInference):
    """Takes 0.8 seconds for each response."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(0.8)
        return await super().infer(request)


def said(
    text: str, *calls: ToolCall, tokens: tuple[int, int, int] = (900, 60, 0), thought: str = ""
) -> InferenceResponse:
    thinking = (Reasoning(thought),) if thought else ()
    parts = (*thinking, *((Text(text),) if text else ()), *calls)
    total, out, cached = tokens
    return InferenceResponse(
        parts, "tool_calls" if calls else "stop", Usage(total, out, cached, 0, 20), "gpt-5", "resp_1"
    )


SCRIPT = (
    said(
        "I look up the **lamp**.",
        ToolCall("call_1", "stock", '{"item": "lamp"}'),
        ToolCall("call_2", "price", '{"item": "lamp"}'),
        ToolCall("call_3", "weather", '{"city": "Atlantis"}'),
        thought="Stock, price and weather are independent of each other.",
    ),
    said(
        "",
        ToolCall("call_4", "research", '{"task": "Which lamps are good?"}'),
        ToolCall("call_5", "pay", '{"cents": 5000000}'),
        ToolCall("call_6", "send_mail", '{"to": "ada@example.com", "text": "Your lamp costs 12.99."}'),
        tokens=(1400, 90, 900),
    ),
    ProviderUnavailable("the provider is overloaded"),
    said("Now I pay.", ToolCall("call_7", "pay", '{"cents": 1299}'), tokens=(1900, 40, 1400)),
    said("", ToolCall("call_8", "ship", '{"item": "lamp"}'), tokens=(2100, 30, 1900)),
    said("The lamp is paid. Whether it was shipped is not known: please check.", tokens=(2300, 50, 2100)),
)
RESEARCH = (
    said("", ToolCall("call_1", "search", '{"query": "good lamps"}'), tokens=(300, 20, 0)),
    said("Those with a shade.", tokens=(500, 15, 300)),
)
PROMPT = "You sell lamps. Ask before you pay."


def order_loop(journal: MemoryJournal, provenance: str = "none", script: Sequence[object] = SCRIPT) -> AgentLoop:
    clock, ids = LoopClock(), CountingIds()
    researcher = AgentLoop.for_model(SlowModel(*RESEARCH), tools=[search], clock=clock, ids=ids)
    research: Tool = researcher.as_tool("research", "Research a question.", effect="idempotent")
    return AgentLoop.for_model(
        SlowModel(*script),  # type: ignore[arg-type]  # lines of a script
        tools=[stock, price, weather, research, pay, send_mail, ship],
        interceptors=[
            CompanyRules(),
            HideAccounts(),
            TryTwice(),
            RequireApproval(["pay"], reason="payments need a person"),
        ],
        journal=journal,
        clock=clock,
        ids=ids,
        system_prompt=PROMPT,
        provenance=provenance,
    )


async def record_order(provenance: str = "none") -> CrashableJournal:
    """Record an execution that is suspended, resumed and killed while it ships, and recovered by another process."""
    journal = CrashableJournal()
    loop = order_loop(journal, provenance)
    running = asyncio.create_task(loop.execute("Order a lamp for me, please.", execution_id=ORDER))
    await asyncio.sleep(1)
    loop.inbox(ORDER).send("In green, if there is one.")
    state = await running
    await asyncio.sleep(30)
    await loop.resume(ORDER, {call.key: approve(call.digest, principal="bob") for call in state.pending})
    # The process dies when the tool has begun to ship.
    starts = [number for number, record in enumerate(journal.appended, 1) if '"ship"' in record.body]
    started = next(number for number in starts if journal.appended[number - 1].kind == "call_intent")
    survived = await journal.after_crash(started)
    await asyncio.sleep(5)
    await order_loop(survived, provenance).recover(ORDER)
    return survived


@cache
def recorded_order(provenance: str = "none") -> CrashableJournal:
    """Return a journal with the execution; in a thread, since a test may run in an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run_in_virtual_time, record_order(provenance)).result()


if __name__ == "__main__":
    trace = asyncio.run(build_trace(recorded_order("values" if "values" in sys.argv else "none"), ORDER))
    sys.stdout.write(json.dumps(trace, indent=1, default=dict))
