"""Who wrote the arguments of a call: the user, somebody whose words the model had read, or the model after reading them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentloop.values.json import JsonValue, format_json
from agentloop.values.labels import CLEAN, UNKNOWN, ArgumentOrigin, Label, Writer
from agentloop.values.records import outer_key
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolExecution

_MAX_SEARCHED = 50
"""How many arguments are searched for in what was said and read; the others may be anybody's."""


def origins_of(
    state: AgentState,
    label: Label | None,
    said: Sequence[ArgumentOrigin],
    arguments: Mapping[str, JsonValue],
    *,
    key: str,
) -> Iterator[ArgumentOrigin]:
    """Yield who had a part in each argument, and who wrote it.

    What the user has written is his, also where others have written it, too. True, false, null and empty values have no source.

    Args:
        state: the state, whose messages are searched for the arguments of a call that was decided about after a foreign text.
        label: who had a part in the decision to make the call; None where that is not known.
        said: what the program that makes the call says about its arguments; empty for a call of a model.
        arguments: the arguments.
        key: the idempotency key of the call, which tells whether a program makes it.
    """
    known, label = {each.argument: each for each in said}, UNKNOWN if label is None else label
    writer = Writer.PROGRAM if outer_key(key) else Writer.MODEL
    words: str | None = None
    outcomes: Sequence[ToolExecution] = ()
    for index, (name, value) in enumerate(arguments.items()):
        leaves = list(_leaves(value)) if index < _MAX_SEARCHED else [""]
        if words is None and leaves and index < _MAX_SEARCHED:
            words, outcomes = _words_of_user(state), () if said else _foreign_outcomes(state)
        is_of_user = bool(leaves) and all(_is_in(leaf, words or "") for leaf in leaves)
        origin = known.get(name)
        if origin is not None and origin.writer is Writer.ENDORSED:
            yield origin
        elif said:
            control = UNKNOWN if origin is None else origin.label
            is_of_user = is_of_user and not control.is_foreign
            yield ArgumentOrigin(name, control, Writer.USER if is_of_user else Writer.PROGRAM)
        elif is_of_user:
            yield ArgumentOrigin(name, CLEAN, Writer.USER)
        else:
            quoted = (each for each in outcomes if leaves and all(_is_in(leaf, each.text) for leaf in leaves))
            source = next(quoted, None)
            if source is None:
                yield ArgumentOrigin(name, label if leaves else CLEAN, writer)
            else:
                yield ArgumentOrigin(name, source.origin, Writer.SOURCE)


def _foreign_outcomes(state: AgentState) -> list[ToolExecution]:
    """Return the outcomes whose words somebody else may have written, those of the newest messages first."""
    return [
        exchange.execution
        for message in reversed(state.messages)
        for exchange in message.exchanges
        if exchange.execution.origin.is_foreign
    ]


def _words_of_user(state: AgentState) -> str:
    asked = [
        message
        for message in state.messages
        if message.role == "user" and not (message.label and message.label.is_foreign)
    ]
    return "\n".join([message.text[message.attached :] for message in asked])


def _leaves(value: JsonValue) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool) and value != "":
        yield value if isinstance(value, str) else format_json(value).decode()


def _is_in(leaf: str, text: str) -> bool:
    """Return whether a text has a leaf, not as a part of a longer word."""
    begin = text.find(leaf) if leaf else -1
    while begin >= 0:
        before, after = text[begin - 1 : begin], text[begin + len(leaf) : begin + len(leaf) + 1]
        if not (before.isalnum() and leaf[0].isalnum()) and not (after.isalnum() and leaf[-1].isalnum()):
            return True
        begin = text.find(leaf, begin + 1)
    return False
