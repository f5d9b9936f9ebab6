"""The tool by which a planned program asks a model about data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, FunctionInference, ScriptedInference, Tool, ToolCall, tool
from agentloop.agents.ask import ask_tool
from agentloop.durable import MemoryJournal, replay
from agentloop.models import RunProgram
from agentloop.values import InferenceRequest, ToolStatus, approve
from agentloop.values.json import thaw

SOURCE = """
bill = await read_bill()
amount = await ask(data=bill, question="How much?", type="number")
await pay(to="Bob", amount=amount)
"""


async def test_an_answer_is_a_value_whose_label_is_that_of_the_data() -> None:
    """The model sees the data and the question, has no tools, and is asked once, also if the call that uses the answer waits."""
    asked: list[InferenceRequest] = []
    paid: list[float] = []

    def answer(request: InferenceRequest) -> str:
        asked.append(request)
        return '{"answer": 98.7}'

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


@tool(effect="pure")
async def read_bill() -> str:
    """Return a bill."""
    return "Car rental: 98.70"


async def ask(source: str, *answers: str) -> tuple[str, list[InferenceRequest], AgentState[Any]]:
    """Run a program that asks; return what it shows, the requests to the model that is asked, and the state."""
    asked: list[InferenceRequest] = []
    left, journal = list(answers), MemoryJournal()

    def answer(request: InferenceRequest) -> str:
        asked.append(request)
        return left.pop(0)

    code = f"bill = await read_bill()\n{source}"
    model = ScriptedInference(ToolCall("1", "run_program", json.dumps({"code": code})), "done")
    tools: list[Tool] = [read_bill, ask_tool(FunctionInference(answer)), RunProgram(planned=True)]
    loop = AgentLoop.for_model(model, tools=tools, approve="untrusted", journal=journal)
    state = await loop.execute("Go.", execution_id="e")
    (execution,) = state.steps[0].executions
    assert (await replay(journal, "e", loop=loop)).divergence is None
    return execution.text, asked, state


SCHEMA = {
    "type": "object",
    "properties": {"to": {"$ref": "#/$defs/name"}},
    "required": ["to"],
    "$defs": {"name": {"type": "string", "maxLength": 5}},
}


@pytest.mark.parametrize(
    ("type_", "wrong", "right", "shown"),
    [
        ("number", '"much"', "98.7", "99.7"),
        ("integer", "98.7", "98", "99"),
        ("boolean", '"yes"', "true", "2"),
        (["car", "house"], '"boat"', '"car"', None),
        ("string", "98.7", '"Car rental"', None),
        ("text", "[]", '"Car rental"', None),
        ("list", '"a"', '["a", "b"]', None),
        (SCHEMA, '{"to": "somebody"}', '{"to": "Eve"}', None),
    ],
)
async def test_an_answer_has_the_type_that_was_asked_for(type_: Any, wrong: str, right: str, shown: str | None) -> None:
    """The model is asked again for another one; the value needs no conversion, and has the label of the data whatever its type."""
    source = f"x = await ask(data=bill, question='What?', type={type_!r})\n{'x + 1' if shown else 'x'}"
    text, asked, state = await ask(source, f'{{"answer": {wrong}}}', f'{{"answer": {right}}}')
    assert len(asked) == 2
    assert json.loads(asked[0].messages[-1].text) == {"data": "Car rental: 98.70", "question": "What?", "type": type_}
    value = state.steps[0].executions[0].value
    assert isinstance(value, Mapping)
    assert thaw(value["value"]) == json.loads(shown or right), text
    assert str(state.steps[0].executions[0].origin) == "the result of read_bill"


@pytest.mark.parametrize(
    ("answers", "type_", "problem"),
    [
        (['{"answer": null}'], "'number'", "the data have no answer of this type"),
        (['{"answer": "x"}'] * 3, "'number'", ""),
        (["no"] * 3, "'boolean'", ""),
        ([], "{'type': 'nothing'}", "the type of the answer is no JSON Schema"),
        ([], "'colour'", "InvalidArguments"),
    ],
)
async def test_a_failed_answer_is_an_error_that_the_program_can_handle(
    answers: list[str], type_: str, problem: str
) -> None:
    """It ends the program, which shows the error, or `except` goes on; what follows depends on what was asked about."""
    question = f"x = await ask(data=bill, question='?', type={type_})"
    text, _, state = await ask(f"{question}\nprint(x)", *answers)
    assert state.steps[0].executions[0].status is ToolStatus.FAILED
    assert text.startswith("ProgramFailed: line 2: RuntimeError: ask: ")
    assert problem in text
    handled = f"try:\n    {question}\nexcept RuntimeError as error:\n    x = 'nothing'\nprint(x)"
    text, _, state = await ask(handled, *answers)
    assert (text, state.steps[0].executions[0].status) == ("nothing", ToolStatus.SUCCEEDED)
    assert state.steps[0].executions[0].origin.is_foreign
