"""A mode by itself, without a loop: format a request, extract the calls of an answer, validate them."""

from __future__ import annotations

from agentloop import tool
from agentloop.models import get_mode
from agentloop.values import InferenceRequest, InferenceResponse, Message, Text


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


request = InferenceRequest([Message.user("What is 17 + 25?")], tools=(add.spec,))
answers = {
    "validated": 'I will add.\n<tool_call>{"name": "add", "arguments": {"a": 17, "b": 25}}</tool_call>',
    "parsed": "Action: add\nAction Input: {'a': 17, 'b': 'twenty'}",
    "structured": '{"next": [{"tool": "add", "arguments": {"a": 17, "b": 25}}]}',
}
for name, answer in answers.items():
    mode = get_mode(name)
    rendered = mode.render_request(request)
    print(f"{name}: {len(rendered.tools)} tools in the API, {len(rendered.system_prompt)} characters of instructions")
    response = mode.parse_response(InferenceResponse([Text(answer)]), request)
    for call in response.tool_calls:
        validation = mode.validate(call, [add.spec])
        print("  ", call.name, call.arguments, "valid" if validation.is_valid else validation.error_message)
    if response.problem:
        print("  ", response.problem)
