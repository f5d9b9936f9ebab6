"""What can be told about the JSON of requests and answers in any wire format, without knowing the format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.serialization import to_plain

_RESULT = re.compile(r"kit\.(?:result|error|reason|begin|nested)\.[^;\s\"]*;")
_LIMITS = (
    "length",
    "max_tokens",
    "MAX_TOKENS",
    "max_output_tokens",
    "content_filter",
    "SAFETY",
    "refusal",
    "incomplete",
)
"""Reasons for the end of an answer that is not whole, in the words of several services."""
_NO_REASON = "kit_unknown"
_PROSE = re.compile(r"\S\s+\S|\w[.!?…]$")
_MAX_SUMMANDS = 3


def parse_body(body: bytes) -> Any:
    """Return the JSON object of a body; None if it is none."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


# --- results ----------------------------------------------------------------------------------------------------------


def find_mixed_results(request: InferenceRequest, body: bytes) -> str:
    """Return what is wrong with the ids of the results in an encoded request; empty if nothing is.

    A result belongs to the call whose id stands closest to it: in the smallest object with the result that has the id of a call.
    Where the format has other ids, or none, the results are in the order of the calls.
    """
    exchanges = [part for message in request.messages for part in message.exchanges]
    marks = {_mark_of(part.execution.value, part.execution.error_message): part.call.id for part in exchanges}
    ids = set(marks.values())
    document = json.loads(body)
    if not ids & set(_strings(document)):
        text = "\n".join(_strings(document))
        places = [text.find(mark) for mark in marks]
        return "" if places == sorted(places) else f"the results are in another order than the calls: {body!r:.1000}"
    for mark, call_id in marks.items():
        found = next((near for each in _holding(document, mark) if (near := ids & set(_strings(each)))), {call_id})
        if call_id not in found:
            return f"the result {mark} of the call {call_id} is sent as that of {', '.join(sorted(found))}"
    return ""


def _mark_of(value: object, error: str) -> str:
    found = _RESULT.search(json.dumps(to_plain(value), ensure_ascii=False) if value is not None else error)
    return found[0] if found else ""


def _holding(document: Any, mark: str) -> list[Any]:
    """Return the objects and lists in which a text has a mark, the smallest one first."""
    children = list(document.values()) if isinstance(document, dict) else document if isinstance(document, list) else []
    for child in children:
        if isinstance(child, str) and mark in child:
            return [document]
        if inner := _holding(child, mark):
            return [*inner, document]
    return []


def find_changed_object(expected: Mapping[str, Any], document: Any) -> str:
    """Return an object of JSON, or of JSON in its texts, that has the names of another one and other values; empty if there is none."""
    for found in _objects(document):
        if found.keys() == expected.keys() and found != expected:
            changed = next(name for name in expected if found[name] != expected[name])
            return f"{expected[changed]!r:.300} is sent as {found[changed]!r:.300}"
    return ""


def _objects(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
        for value in data.values():
            yield from _objects(value)
    elif isinstance(data, list):
        for item in data:
            yield from _objects(item)
    elif isinstance(data, str) and (parsed := parse_body(data.encode("utf-8", "replace"))) is not None:
        yield from _objects(parsed)


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for value in data.values():
            yield from _strings(value)
    elif isinstance(data, list):
        for item in data:
            yield from _strings(item)
    elif isinstance(data, str):
        yield data


# --- counts -----------------------------------------------------------------------------------------------------------


def find_wrong_counts(body: Any, usage: Usage) -> str:
    """Return what is wrong with the counts of a response; empty if nothing is.

    Each one is a number of the body, or a sum or difference of some; together they are not less than what the body counts.
    """
    numbers = [number for _, number in _numbers(body) if number > 0]
    possible = {0, *numbers, *[abs(one - other) for one, other in combinations(numbers, 2)]}
    for count in range(2, _MAX_SUMMANDS + 1):
        possible |= {sum(summands) for summands in combinations(numbers, count)}
    counts = (
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
    )
    for name in counts:
        if (getattr(usage, name) or 0) not in possible:
            return f"{name} is {getattr(usage, name)}, which is no number of the body and no sum of its numbers"
    counted = max([number for name, number in _numbers(body) if _counts_tokens(name)], default=0)
    total = usage.total_tokens
    return f"a body that counts {counted} tokens is decoded to {usage}" if total is not None and total < counted else ""


def without_counts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the body without its counts of tokens, if they are in entries of their own."""
    counting = [
        name for name, value in body.items() if any(_counts_tokens(inner) for inner, _ in _numbers({name: value}))
    ]
    if counting and not any(isinstance(body[name], list) for name in counting):
        yield {name: value for name, value in body.items() if name not in counting}


def _counts_tokens(name: str) -> bool:
    return "token" in name.lower() and not name.lower().startswith("max")


def _numbers(data: Any, name: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _numbers(value, key)
    elif isinstance(data, list):
        for item in data:
            yield from _numbers(item, name)
    elif isinstance(data, int) and not isinstance(data, bool):
        yield name, data


# --- ends -------------------------------------------------------------------------------------------------------------


def find_normal_end(data: bytes, reason: str, decode: Callable[[bytes], object]) -> str:
    """Return how an answer that a limit has ended is taken for a whole one; empty if it is not.

    Args:
        data: an answer in one piece or as a stream.
        reason: why it ended, in the words of the provider; empty if the format does not say it.
        decode: returns the response, or an error.
    """
    for place in (
        [found.start() for found in re.finditer(re.escape(json.dumps(reason).encode()), data)] if reason else []
    ):
        ends = {}
        for word in (_NO_REASON, *_LIMITS):
            written = json.dumps(word).encode()
            outcome = decode(data[:place] + written + data[place + len(json.dumps(reason).encode()) :])
            is_read = isinstance(outcome, InferenceResponse) and outcome.provider_finish_reason == word
            ends[word] = outcome.finish_reason if is_read and isinstance(outcome, InferenceResponse) else None
        unknown = ends.pop(_NO_REASON)
        if unknown is None:
            continue  # another text that is equal to the reason
        # A format may take a word that it does not know for a normal end.
        known = {word: end for word, end in ends.items() if end is not None and end is not unknown}
        normal = [word for word, end in known.items() if not end.is_incomplete]
        if normal or not (known or unknown.is_incomplete):
            ended = normal or list(ends)
            return f"an answer that ended with {' or '.join(ended)} is decoded to one that ended normally"
    return ""


# --- texts ------------------------------------------------------------------------------------------------------------


def lost_texts(body: bytes, response: InferenceResponse) -> list[str]:
    """Return the texts of a body, and the arguments in it, that are not in the response. Words such as ids and names are none."""
    document = parse_body(body)
    if document is None:
        return []
    plain = to_plain(response)
    known = list(_strings(plain))
    arguments = [call.arguments for call in response.tool_calls]
    lost = []
    for text in _strings(document):
        parsed = parse_body(text.encode("utf-8", "replace"))
        if parsed is not None:
            if parsed not in arguments and not any(text in each for each in known):
                lost.append(text)
        elif _PROSE.search(text) and not any(text.strip() in each for each in known):
            lost.append(text)
    return lost
