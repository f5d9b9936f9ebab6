"""Messages, which cannot hold a call without its execution."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ContractViolation
from agentloop.testing.strategies import content_parts, messages, tool_exchanges, tool_executions
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution, ToolStatus
from tests.strategies import response_parts

CALL = ToolCall("call_1", "find", "{}")
PICTURE = Image(url="https://example.com/x.png")
NOW = datetime(2024, 1, 1, tzinfo=UTC)


def execution(call: ToolCall, key: str) -> ToolExecution:
    """Return the execution of a call."""
    return ToolExecution(id="e", key=key, call=call, status=ToolStatus.SUCCEEDED, started_at=NOW, ended_at=NOW)


def test_text_becomes_a_text_part() -> None:
    """The constructors accept text, parts, or both in any order."""
    assert Message.user("hello") == Message("user", (Text("hello"),))
    assert Message.user("a", PICTURE, "b").parts == (Text("a"), PICTURE, Text("b"))
    assert Message.system("a", Text("b")).parts == (Text("a"), Text("b"))
    assert Message.assistant(Reasoning("hm"), "a").parts == (Reasoning("hm"), Text("a"))
    assert Message.user().parts == ()


@pytest.mark.parametrize(
    "parts", ["hello", ["hello"], ("hello",), iter(["hello"]), Text("hello"), [Text("hello")], (Text("hello"),)]
)
def test_parts_are_taken_in_every_form(parts: Any) -> None:
    """A single part or any iterable of parts becomes a tuple of parts."""
    assert Message("user", parts).parts == (Text("hello"),)


def test_a_list_of_parts_is_copied() -> None:
    """Changing the list that was passed in does not change the message."""
    parts: list[Any] = [Text("a")]
    message = Message("user", parts)
    parts.append(Text("b"))
    assert message.parts == (Text("a"),)


@given(st.sampled_from(["user", "assistant", "system"]), content_parts(), tool_exchanges())
def test_each_role_holds_its_parts_and_no_others(role: Any, content: Any, exchange: ToolExchange) -> None:
    """Users send text and media, system messages text, assistants anything but a bare call."""
    allowed = {
        "user": (Text, Image, Audio, Document),
        "system": (Text,),
        "assistant": (Text, Image, Audio, Document, Reasoning, ProviderPart, ToolExchange),
    }[role]
    for part in (content, exchange, Reasoning("hm"), ProviderPart("format", {})):
        if isinstance(part, allowed):
            assert Message(role, (part,)).parts == (part,)
        else:
            with pytest.raises(
                ContractViolation, match=f"a message of role {role} holds .*; not {type(part).__name__}"
            ):
                Message(role, (part,))


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_bare_call_is_refused_and_the_error_names_the_remedy(role: Any, place: int) -> None:
    """No message holds a call without its execution (law 2)."""
    parts: list[Any] = [Text("x"), Text("y")]
    parts[place] = CALL
    with pytest.raises(ContractViolation) as caught:
        Message(role, parts)
    assert str(caught.value) == (
        "a message cannot hold the bare tool call 'find': give it together with its execution as a ToolExchange (law 2)"
    )


@pytest.mark.parametrize("part", [None, 5, {"type": "text", "text": "x"}, b"x", object()])
def test_objects_that_are_not_parts_are_refused(part: Any) -> None:
    """The error names the class of the object."""
    with pytest.raises(ContractViolation, match=f"not {type(part).__name__}"):
        Message.user(part)


@pytest.mark.parametrize("role", ["tool", "", "USER", None])
def test_an_unknown_role_is_refused(role: Any) -> None:
    """There are three roles; results of tools have no messages of their own."""
    with pytest.raises(ContractViolation, match=r"^a message's role is user, assistant or system, not "):
        Message(role, ())


@given(st.data())
def test_a_response_becomes_a_message_with_its_calls_joined_by_position(data: st.DataObject) -> None:
    """Each call is joined with the execution at its index; other parts are unchanged."""
    parts: list[ResponsePart] = data.draw(st.lists(response_parts(), max_size=5))
    calls = [part for part in parts if isinstance(part, ToolCall)]
    executions = [data.draw(tool_executions(call=call, key=str(index))) for index, call in enumerate(calls)]
    message = Message.of_response(parts, executions)
    assert message.role == "assistant"
    assert [part.call if isinstance(part, ToolExchange) else part for part in message.parts] == parts
    assert [exchange.execution for exchange in message.exchanges] == executions


def test_calls_with_equal_ids_are_joined_by_position() -> None:
    """Providers repeat and omit ids; the place in the answer decides."""
    calls = [ToolCall("", "a"), ToolCall("", "b"), ToolCall("", "a")]
    executions = [execution(call, key) for call, key in zip(calls, "xyz", strict=True)]
    assert [exchange.execution.key for exchange in Message.of_response(calls, executions).exchanges] == ["x", "y", "z"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_response_needs_as_many_executions_as_calls(count: int) -> None:
    """Missing and additional outcomes are refused (laws 1 and 2)."""
    executions = [execution(CALL, str(number)) for number in range(count)]
    with pytest.raises(
        ContractViolation, match=rf"^2 tool calls need 2 executions, there are {count} \(laws 1 and 2\)$"
    ):
        Message.of_response([CALL, Text("x"), CALL], executions)


@given(messages())
def test_text_and_exchanges_are_those_of_the_parts(message: Message) -> None:
    """The accessors return only text or exchanges, in order."""
    assert message.text == "".join(part.text for part in message.parts if isinstance(part, Text))
    assert list(message.exchanges) == [part for part in message.parts if isinstance(part, ToolExchange)]


@given(messages())
def test_a_change_returns_another_message(message: Message) -> None:
    """Parts and metadata are replaced in a copy; the rest is equal."""
    before = (message.role, message.parts, message.metadata)
    changed = message.with_parts(["new"])
    noted = message.with_metadata(seen=[1])
    assert (changed.role, changed.parts, changed.metadata) == (message.role, (Text("new"),), message.metadata)
    assert (noted.role, noted.parts, noted.metadata) == (
        message.role,
        message.parts,
        {**message.metadata, "seen": (1,)},
    )
    assert (message.role, message.parts, message.metadata) == before
