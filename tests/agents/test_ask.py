"""The tool by which a planned program asks a model about data."""

from __future__ import annotations

import json

from agentloop import AgentLoop, FunctionInference, ScriptedInference, Tool, ToolCall, tool
from agentloop.agents.ask import ask_tool
from agentloop.durable import MemoryJournal
from agentloop.models import RunProgram
from agentloop.values import InferenceRequest, approve

SOURCE = """
bill = await read_bill()
amount = float(await ask(data=bill, question="How much?", type="number"))
await pay(to="Bob", amount=amount)
"""


async def test_an_answer_is_a_value_whose_label_is_that_of_the_data() -> None:
    """The model sees the data and the question, has no tools, and is asked once, also if the call that uses the answer waits."""
    asked: list[InferenceRequest] = []
    paid: list[float] = []

    def answer(request: InferenceRequest) -> str:
        asked.append(request)
        return "98.7"

    @tool(effect="pure")
    async def read_bill() -> str:
        """Return a bill."""
        return "Car rental: 98.70"

    @tool(own="*")
    async def pay(to: str, amount: float) -> str:
        """Pay somebody."""
        paid.append(amount)
        return "paid"

    model = ScriptedInference(ToolCall("1", "run_program", json.dumps({"code": SOURCE})), "Paid.")
    tools: list[Tool] = [read_bill, pay, ask_tool(FunctionInference(answer)), RunProgram(planned=True)]
    loop = AgentLoop.for_model(model, tools=tools, approve="untrusted", journal=MemoryJournal())
    state = await loop.execute("Pay the bill.", execution_id="e")
    (waiting,) = [call for call in state.pending if not call.waits_for]
    assert waiting.reason == "somebody else wrote what it is about"
    assert [f"{each.argument}: {each}" for each in waiting.origins] == [
        "to: the program",
        "amount: the program, from the result of read_bill",
    ]
    state = await loop.resume("e", {waiting.key: approve(waiting.digest)})
    assert (state.final_text, paid, len(asked)) == ("Paid.", [98.7], 1)
    assert asked[0].tools == ()
    assert json.loads(asked[0].messages[-1].text) == {
        "data": "Car rental: 98.70",
        "question": "How much?",
        "type": "number",
    }
