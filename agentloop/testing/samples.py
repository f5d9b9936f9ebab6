"""Requests and answers with much in them: long, nested and non-ASCII texts, and marks that can be found again wherever they arrive."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from attrs import evolve

from agentloop.values.inference import (
    FinishReason,
    HostedTool,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    ToolChoice,
    Usage,
)
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.messages import Message
from agentloop.values.parts import Image, Reasoning, Text
from agentloop.values.serialization import to_json
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExchange, ToolExecution, ToolSpec, ToolStatus

FIDELITY = 44
"""The number of the law about what has to arrive whole."""
_LONG = 70_000
"""More characters than a column for texts of 64 KiB, or a line of a log, takes."""
_MARK = re.compile(r"kit\.[^;\s\"]+;")
_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_USAGE = Usage(10, 5, 0, 0, 0)
NESTED: Mapping[str, Any] = {
    "größe": "“10” • 😀",
    "list": [1, 2.5, None, True, {"deep": [[], {}, [{"deeper": ["a", "b"]}]]}],
    "text": 'a "quoted" \\ text\nof two lines, with <tags> and {braces}',
    "large": 12345678901234567890,
}
"""Arguments of a call, or a result, of every type of JSON."""


def _answer(*parts: Any, reason: FinishReason = FinishReason.STOP) -> InferenceResponse:
    return InferenceResponse(parts, reason, _USAGE, "kit", "response")


_CALLS = (
    ToolCall("a", "echo").with_arguments({"value": 1, **NESTED}),
    ToolCall("b", "echo").with_arguments({"value": 1, **NESTED}),
    ToolCall("c", "whoami").with_arguments({}),
    ToolCall("d", "echo").with_arguments({"text": f"{'x' * _LONG} end"}),
)
RICH_ANSWERS: Sequence[InferenceResponse] = (
    _answer(Text("Größe “10” • 😀,\nno no no no, and that is all. ")),
    _answer(Text("Let me look."), *_CALLS, reason=FinishReason.TOOL_CALLS),
    _answer(Reasoning("Which one?", provider_data={"kit": {"signature": "s"}}), Text("Both."), *_CALLS[1:3]),
    _answer(Text(f"{'y' * _LONG} end")),
)
"""Answers of a model: texts beside calls, equal calls, reasoning, nested arguments, long and non-ASCII texts, repeated words."""
NUMBERED_ANSWERS: Sequence[InferenceResponse] = tuple(
    [_answer(Text(f"This is answer {word}.")) for word in ("one", "two", "three")]
)
"""Answers that differ."""


TWINS: Sequence[tuple[str, str]] = (
    ("order-a", "Order-A"),
    ("a_b", "axb"),
    ("a%", "abc"),
    ("a*", "abcd"),
    ("a", "a "),
    (" b", "b"),
    ("caf\u00e9", "cafe\u0301"),
    ("\ufb01le", "file"),
    ("stra\u00dfe", "strasse"),
    ("7", "07"),
    ("a/b", "a.b"),
    ("a:b", "a|b"),
    ("a+b", "a%20b"),
    ("a\\b", "a\\\\b"),
    ("it's", "it''s"),
    ("None", "null"),
    (f"{'x' * 300}1", f"{'x' * 300}2"),
)
"""Pairs of names that a storage can take for one: by case, patterns, spaces, forms of Unicode, escapes, numbers and length."""


# --- requests that differ in one entry --------------------------------------------------------------------------------

_Change = Callable[[InferenceRequest], InferenceRequest]


def _options(**changes: Any) -> _Change:
    return lambda request: request.with_options(evolve(request.options, **changes))


def _before(*messages: Message) -> _Change:
    return lambda request: request.with_messages([*messages, *request.messages])


def _behind(text: str) -> _Change:
    return lambda request: request.with_messages([Message.user(f"{text} {request.messages[-1].text}")])


def _tools(*tools: ToolSpec) -> _Change:
    return lambda request: request.with_tools([*request.tools, *tools])


def _spec(name: str = "look", description: str = "Look.", parameter: str = "A place.") -> ToolSpec:
    place = {"type": "string", "description": parameter}
    return ToolSpec(name, description, {"type": "object", "properties": {"place": place}})


def _offered(**changes: Any) -> _Change:
    return lambda request: evolve(_tools(_spec())(request), **changes)


def _format(kind: str) -> _Change:
    schema = {"type": "object", "properties": {"a": {"type": kind}}}
    return lambda request: request.with_response_format(ResponseFormat(schema))


def exchange(
    text: str = "done",
    argument: str = "here",
    status: ToolStatus = ToolStatus.SUCCEEDED,
    *,
    number: int = 0,
    value: Any = None,
    more: Mapping[str, Any] = EMPTY_OBJECT,
) -> ToolExchange:
    """Return a call and its result, or its error where the status is another one.

    Args:
        text: the result, or the message of the error.
        argument: the argument of the call.
        status: how the call ended.
        number: a number for the ids, so that several calls of a message differ.
        value: a result that is not a text.
        more: further arguments.
    """
    call = ToolCall(f"kitcall{number}", "look").with_arguments({"place": argument, **more})
    succeeded = status is ToolStatus.SUCCEEDED
    execution = ToolExecution.of(
        call,
        status,
        key=f"execution/1/{number}",
        id=f"execution-{number}",
        at=_MOMENT,
        value=(text if value is None else value) if succeeded else None,
        error=None if succeeded else ErrorInfo("ToolFailed", text),
    )
    return ToolExchange(call, execution)


def _called(*arguments: Any) -> _Change:
    return _before(Message.user("Look."), Message.assistant(exchange(*arguments)))


def _picture(data: bytes) -> Message:
    return Message.user(Image(media_type="image/png", data=data))


_FAR = "x" * 5_000
VARIANTS: Mapping[str, tuple[_Change, _Change]] = {
    "an earlier message": (_before(Message.user("I am Ada.")), _before(Message.user("I am Bob."))),
    "the number of messages": (_before(), _before(Message.user("Hello."), Message.assistant("Hello."))),
    "the role of a message": (_before(Message.user("I am Ada.")), _before(Message.assistant("I am Ada."))),
    "the last message": (_behind("Ada asks:"), _behind("Bob asks:")),
    "the end of a long message": (_behind(f"{_FAR} Ada asks:"), _behind(f"{_FAR} Bob asks:")),
    "the case of a letter": (_behind("ada asks:"), _behind("Ada asks:")),
    "an accent": (_behind("André asks:"), _behind("Andre asks:")),
    "white space": (_behind("if a:\n    b"), _behind("if a:\n b")),
    "the result of a call": (_called("red"), _called("blue")),
    "the arguments of a call": (_called("red", "here"), _called("red", "there")),
    "the failure of a call": (_called("red"), _called("red", "here", ToolStatus.FAILED)),
    "an image": (_before(_picture(b"one")), _before(_picture(b"two"))),
    "the system prompt": (lambda request: request, lambda request: request.with_system_prompt("Play for Bob.")),
    "the number of tools": (_tools(), _tools(_spec())),
    "the name of a tool": (_tools(_spec()), _tools(_spec("peek"))),
    "the description of a tool": (_tools(_spec()), _tools(_spec(description="Look twice."))),
    "a parameter of a tool": (_tools(_spec()), _tools(_spec(parameter="Another place."))),
    "the choice of tools": (_tools(_spec()), _offered(tool_choice=ToolChoice.none())),
    "parallel_tool_calls": (_tools(_spec()), _offered(parallel_tool_calls=False)),
    "the response format": (_format("string"), _format("integer")),
    "the model": (_options(model="one"), _options(model="two")),
    "temperature": (_options(temperature=0.25), _options(temperature=0.75)),
    "top_p": (_options(top_p=0.25), _options(top_p=0.75)),
    "max_tokens": (_options(max_tokens=1000), _options(max_tokens=2000)),
    "stop": (_options(stop=("one",)), _options(stop=("two",))),
    "seed": (_options(seed=1), _options(seed=2)),
    "reasoning_effort": (_options(reasoning_effort="low"), _options(reasoning_effort="high")),
    "hosted_tools": (_options(), _options(hosted_tools=(HostedTool.web_search(),))),
    "logprobs": (_options(), _options(logprobs=True)),
    "extra": (_options(extra={"kit": 1}), _options(extra={"kit": 2})),
}
"""For each entry of a request, two changes that give requests which differ in it alone."""


def digest_of(request: InferenceRequest) -> str:
    """Return a text that differs for different requests, but for what an inference may add to `extra` of the options itself."""
    extra = {name: value for name, value in request.options.extra.items() if name == "kit"}
    known = request.with_options(evolve(request.options, extra=extra))
    return sha256(to_json(known)).hexdigest()[:12]


# --- requests with marks ----------------------------------------------------------------------------------------------


def _added(base: InferenceRequest, *messages: Message) -> InferenceRequest:
    return _before(*messages)(base)


def rich_requests(base: InferenceRequest) -> Mapping[str, InferenceRequest]:
    """Return requests by what is in them besides the base. Each part that a model has to read has a mark.

    Args:
        base: a request whose last message is kept as the last one.
    """
    many = [Message.user(f"Note kit.message.{number};") for number in range(15)]
    talk = [each for message in many for each in (message, Message.assistant("Yes."))]
    calls = [
        exchange("kit.result.of.the.first.call;", "kit.argument.of.the.first.call;", number=1),
        exchange("kit.error.of.the.second.call;", "there", ToolStatus.FAILED, number=2),
        exchange("kit.reason.of.the.third.call;", "there", ToolStatus.REJECTED, number=3),
        exchange(f"kit.begin.of.a.long.result; {'z' * _LONG} kit.end.of.a.long.result;", number=4),
        exchange(number=5, value={"größe": ["kit.nested.result;", {"deep": [[{"deeper": "kit.größe.😀;"}]]}]}),
        exchange(number=6, argument=f"{'a' * _LONG} kit.end.of.a.long.argument;"),
    ]
    beside = Message.assistant("kit.text.beside.calls;", *calls)
    again = [Message.assistant(exchange(f"kit.result.of.call.{number};", number=number)) for number in (7, 8)]
    spec = _spec("kit_tool", "kit.description.of.a.tool;", "kit.description.of.a.parameter;")
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "kit.schema.of.the.answer;"}}}
    long = Message.user(f"kit.begin.of.a.long.message; {'m' * _LONG} kit.end.of.a.long.message;")
    return {
        "messages": _added(base, *talk),
        "long and non-ASCII texts": _added(base, long, Message.assistant("kit.größe.😀;")),
        "texts in a row": _added(
            base, Message.user("kit.one.of.two.messages;"), Message.user("kit.two.of.two.messages;")
        ),
        "texts of a message": _added(base, Message.user(Text("kit.one.of.two.texts;"), Text("kit.two.of.two.texts;"))),
        "a system prompt": base.with_system_prompt(f"kit.begin.of.the.prompt; {'s' * _LONG} kit.end.of.the.prompt;"),
        "calls": _added(base, Message.user("Look."), beside, *again).with_tools([*base.tools, _spec()]),
        "nested arguments": _added(base, Message.user("Look."), Message.assistant(exchange(more=NESTED))),
        "tools": base.with_tools([spec, *base.tools]),
        "a response format": base.with_response_format(ResponseFormat(schema)),
    }


RICH_REQUESTS: Sequence[str] = tuple(rich_requests(InferenceRequest((Message.user("Go."),))))
"""The names of the rich requests."""


def missing_marks(request: InferenceRequest, sent: bytes) -> list[str]:
    """Return the marks of a request that are not in JSON which was made of it, also in JSON inside of its texts."""
    found = set(_MARK.findall("\n".join(_texts(json.loads(sent)))))
    marks = dict.fromkeys(_MARK.findall("\n".join(_texts(json.loads(to_json(request))))))
    return [mark for mark in marks if mark not in found]


def _texts(data: Any) -> Iterator[str]:
    """Yield the texts of JSON, and those of JSON in them."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield name
            yield from _texts(value)
    elif isinstance(data, list):
        for item in data:
            yield from _texts(item)
    elif isinstance(data, str):
        yield data
        if "\\" in data:
            # A result or arguments may be written as JSON among other text, where characters are escaped.
            yield re.sub(r"(?:\\+u[0-9a-fA-F]{4})+", _unescape, data)


def _unescape(match: re.Match[str]) -> str:
    codes = re.findall(r"u([0-9a-fA-F]{4})", match[0])
    return b"".join([int(code, 16).to_bytes(2, "big") for code in codes]).decode("utf-16-be", "replace")
