"""Calls in the text of a model that is not asked to write them there: read, refused or only noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve, frozen

from agentloop.models.modes.calls import TAG_CHARACTER, finish_with_calls, is_requested_form
from agentloop.models.modes.written_calls import describe_rejection, may_begin_in_reasoning, select_calls
from agentloop.models.text_calls import DEFAULT_FORMATS, CallGrade, read_calls
from agentloop.models.text_calls.results import ParseResult, RejectedCall
from agentloop.models.text_calls.tags import tagged_formats
from agentloop.values.bounds import Bounds
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import parse_json
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall

_WRITTEN: Final = (
    "it has a call of {!r:.80} that is written as text; call tools in the way that you were told, and not in the text. If you only want to "
    "show a call, put it in `code marks`"
)


@frozen
class LeakedCalls:
    """What a text has of calls.

    Attributes:
        result: the text as it was read.
        calls: the calls that are meant; those that must not run have a rejection.
        quoted: the calls that the text only shows.
        damaged: why a call that is meant cannot be read; empty if there is none.
        is_plain: whether the text is nothing but calls.
    """

    result: ParseResult
    calls: tuple[ToolCall, ...] = ()
    quoted: tuple[ToolCall, ...] = ()
    damaged: str = ""
    is_plain: bool = False

    @property
    def problem(self) -> str:
        """Why the text is no answer, where calls in it do not count; empty if it is one."""
        return _WRITTEN.format(self.calls[0].name) if self.calls else self.damaged


def find_leaked(
    response: InferenceResponse, request: InferenceRequest, bounds: Bounds, *, only_tagged: bool = False
) -> LeakedCalls | None:
    """Return what the text of a response has of calls; None if it is too long to be read.

    Calls in prose count only in a notation with tags, and as JSON at the end: what else stands among words may be about calls.

    Args:
        response: the response; it has no calls.
        request: the request, with the tools that the model was offered.
        bounds: limits the length of texts that are read and the steps that it takes.
        only_tagged: whether only notations with tags count.
    """
    text, formats = response.text, tagged_formats(DEFAULT_FORMATS) if only_tagged else DEFAULT_FORMATS
    begins_in_reasoning = may_begin_in_reasoning(response, request)
    result = read_calls(text, request.tools, formats=formats, bounds=bounds, begins_in_reasoning=begins_in_reasoning)
    if result.calls and result.reasoning and {*result.grades} != {CallGrade.PLAIN}:
        # A text that writes about calls may also write about tags: one alone ends no reasoning.
        result = read_calls(text, request.tools, formats=formats, bounds=bounds, begins_in_reasoning=False)
    if result.exceeded:
        return None
    grades = _grades(result, text, is_data=_is_requested(response, request))
    found = [ToolCall("", call.name, call.arguments_json, repairs=call.repairs) for call in result.calls]
    selected = select_calls(found, grades, request.tools, run_embedded="pure", unread=result.unread)
    damaged = None if found or _is_requested(response, request) else _find_damaged(result)
    return LeakedCalls(
        result,
        selected.calls,
        selected.quoted,
        "" if damaged is None else describe_rejection(damaged),
        {*grades} == {CallGrade.PLAIN} and not result.unread,
    )


def _is_requested(response: InferenceResponse, request: InferenceRequest) -> bool:
    """Whether the text is data of the form in which the answer is requested."""
    if request.response_format is None:
        return False
    try:
        return is_requested_form(parse_json(response.text), request.response_format)
    except ValueError:
        return False


def _grades(result: ParseResult, text: str, *, is_data: bool) -> list[CallGrade]:
    """Return the grades of calls, of which those in prose that may be about calls are quoted."""
    if is_data:
        return [CallGrade.QUOTED for _ in result.grades]
    end, tagged = len(text.rstrip("` \n\t")), {each.name for each in tagged_formats(DEFAULT_FORMATS)}
    return [
        CallGrade.QUOTED
        if grade is CallGrade.EMBEDDED
        and call.format not in tagged
        and not (call.format in _OBJECTS and call.end >= end)
        else grade
        for call, grade in zip(result.calls, result.grades, strict=True)
    ]


_OBJECTS: Final = frozenset({"json", "list"})


def _find_damaged(result: ParseResult) -> RejectedCall | None:
    """Return the first call that is meant and cannot be read; one in prose without tags may be about calls."""
    tagged = {each.name for each in tagged_formats(DEFAULT_FORMATS)}
    return next(
        (each for each in result.rejected if not each.is_quoted and (each.format in tagged or not each.is_embedded)),
        None,
    )


def read_leaked(response: InferenceResponse, request: InferenceRequest, bounds: Bounds) -> InferenceResponse:
    """Return the response with the calls in its text, and with its reasoning apart from the text.

    A call that is meant and cannot be read is the `problem` of the response.
    """
    leaked = find_leaked(response, request, bounds)
    if leaked is None:  # it is too long to be a call
        return response
    result, quoted_texts = leaked.result, leaked.result.shown_tags
    parts: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
    parts += [Reasoning(result.reasoning)] if result.reasoning else []
    if leaked.calls:
        parts += [Text(result.quoting_text)] if result.quoting_text.strip() else []
        reason = finish_with_calls(response.finish_reason)
        response = evolve(response, parts=(*parts, *leaked.calls), finish_reason=reason)
    elif leaked.damaged:
        return evolve(response, problem=leaked.damaged)
    elif result.reasoning:
        # The text is that of the stream, which has left out the reasoning, too.
        parts += [Text(result.full_text)] if result.full_text.strip() else []
        response = evolve(response, parts=parts)
    if not (leaked.quoted or quoted_texts):
        return response
    return evolve(response, quoted_calls=leaked.quoted, quoted_texts=quoted_texts)


def refuse_leaked(response: InferenceResponse, request: InferenceRequest, bounds: Bounds) -> InferenceResponse:
    """Return the response with a call in its text as its problem, or with what the text only quotes."""
    leaked = find_leaked(response, request, bounds, only_tagged=True)
    if leaked is None:
        return response
    if leaked.problem:
        return evolve(response, problem=leaked.problem)
    return _with_quoted(response, leaked.quoted, leaked.result.shown_tags)


def refuse_in_answer(response: InferenceResponse, request: InferenceRequest, bounds: Bounds) -> InferenceResponse:
    """Return a response whose answer, in the form of a mode, has calls of other notations: with them as its problem, or as quoted."""
    is_answer = not (response.tool_calls or response.problem or response.wants_to_continue)
    if not is_answer or TAG_CHARACTER.search(response.text) is None:
        return response
    return refuse_leaked(response, request, bounds)


def note_leaked(response: InferenceResponse, request: InferenceRequest, bounds: Bounds) -> InferenceResponse:
    """Return the response with all calls in its text, and all that is left of calls, as what the text quotes."""
    leaked = find_leaked(response, request, bounds, only_tagged=True)
    if leaked is None:
        return response
    calls = [evolve(call, rejection="") for call in (*leaked.calls, *leaked.quoted)]
    damaged = [response.text[each.start : each.end][:_MAX_SHOWN] for each in leaked.result.rejected if leaked.damaged]
    return _with_quoted(response, calls, (*leaked.result.shown_tags, *dict.fromkeys(damaged)))


_MAX_SHOWN: Final = 80


def _with_quoted(response: InferenceResponse, calls: Sequence[ToolCall], texts: Sequence[str]) -> InferenceResponse:
    return evolve(response, quoted_calls=calls, quoted_texts=texts) if calls or texts else response
