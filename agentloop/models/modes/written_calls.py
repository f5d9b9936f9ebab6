"""Calls that a model writes as text: which of them run, and what may stand around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias, get_args

from attrs import evolve, frozen

from agentloop.errors import BoundExceeded
from agentloop.models.text_calls import CallGrade
from agentloop.models.text_calls.grades import is_call_language
from agentloop.models.text_calls.openings import REASONING_TAGS, UNPAIRED_CLOSERS
from agentloop.models.text_calls.results import RejectedCall
from agentloop.values.bounds import Bounds
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.tool_calls import Effect, ToolCall, ToolSpec

RunEmbedded: TypeAlias = Literal["pure", "always", "never"]
"""When calls that stand in prose run: `pure` if every call of the answer is of a tool with the effect `pure`."""

RUN_EMBEDDED: Final = frozenset(get_args(RunEmbedded))

_EMBEDDED: Final = (
    "it stands among other text, so that it is not certain whether it is meant to run; write the calls alone, in the form that "
    "you were told, without any other text"
)
_UNREAD: Final = (
    "no call of this answer was run, since a part of the answer cannot be read: {}; write all calls again, in the form that you "
    "were told"
)


@frozen
class SelectedCalls:
    """The calls of a text, as far as they are meant to run.

    Attributes:
        calls: the calls; those that must not run have a rejection.
        quoted: the calls that the text only quotes.
    """

    calls: tuple[ToolCall, ...] = ()
    quoted: tuple[ToolCall, ...] = ()


def select_calls(
    calls: Sequence[ToolCall],
    grades: Sequence[CallGrade],
    tools: Sequence[ToolSpec],
    *,
    run_embedded: RunEmbedded,
    unread: str = "",
) -> SelectedCalls:
    """Return which calls of a text run: all that are not quoted, or none of them.

    Args:
        calls: all calls of the text.
        grades: for each call, how it stands in the text.
        tools: the offered tools.
        run_embedded: when calls in prose run.
        unread: why another part of the text, which resembles a call, cannot be read; empty if everything can.
    """
    quoted = tuple([call for call, grade in zip(calls, grades, strict=True) if grade is CallGrade.QUOTED])
    meant = tuple([call for call, grade in zip(calls, grades, strict=True) if grade is not CallGrade.QUOTED])
    rejection = ""
    if unread:
        rejection = _UNREAD.format(unread)
    elif CallGrade.EMBEDDED in grades and run_embedded != "always":
        pure = {spec.name for spec in tools if spec.effect is Effect.PURE}
        if run_embedded == "never" or not all(call.name in pure for call in calls):
            rejection = _EMBEDDED
    if rejection:
        meant = tuple([evolve(call, rejection=rejection) for call in meant])
    return SelectedCalls(meant, quoted)


def describe_rejection(rejected: RejectedCall) -> str:
    """Return why an answer cannot be used that has a call which cannot be read, in words for the model."""
    # Alone, a reason such as `unexpected hi` does not tell a model what it is about.
    if rejected.format == "reasoning":
        return rejected.reason
    return f"it has a call that cannot be read ({rejected.reason})"


def may_begin_in_reasoning(response: InferenceResponse, request: InferenceRequest) -> bool:
    """Whether a closing tag of reasoning may end reasoning whose opening tag was part of the prompt.

    It does not if the provider returned the reasoning separately, or if the tag occurs in what the model was shown: then the
    answer may quote it.
    """
    text = response.text
    tags = [tag for tag in UNPAIRED_CLOSERS if tag in text]
    if not tags:
        return True
    return not response.reasoning and not any(tag in shown for shown in _shown_texts(request) for tag in tags)


def _shown_texts(request: InferenceRequest) -> Iterator[str]:
    for message in request.messages:
        if message.role != "assistant":
            yield message.text
        for exchange in message.exchanges:
            yield exchange.execution.text


def describe_excess(bound: str, bounds: Bounds) -> str:
    """Return why a text was not read for calls: the bound that it exceeds."""
    return str(BoundExceeded(bound, getattr(bounds, bound), "the answer is too long or too intricate to be read"))


_FENCE: Final = "```"


def strip_fence(text: str) -> str:
    """Return the content of a text that is one fenced block and nothing else, or the text itself; without outer white space."""
    stripped = text.strip()
    if not (stripped.startswith(_FENCE) and stripped.endswith(_FENCE)):
        return stripped
    info, newline, content = stripped[len(_FENCE) :].partition("\n")
    is_block = newline and content.endswith(_FENCE) and is_call_language(info)
    return content[: -len(_FENCE)].strip() if is_block else stripped


def split_reasoning(text: str) -> tuple[tuple[str, ...], str]:
    """Return the reasoning that is marked by tags at the beginning of a text, and the rest of the text."""
    stripped = text.lstrip()
    for opener, closer in REASONING_TAGS:
        end = stripped.find(closer)
        if end >= 0 and stripped.startswith(opener):
            return (stripped[len(opener) : end].strip(),), stripped[end + len(closer) :]
    return (), text
