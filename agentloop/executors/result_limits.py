"""Results that do not fit into a request: a model sees their beginning, their end, their size and how to read the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import evolve, frozen

from agentloop.contracts.tool import ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.tools.results import numbered_lines
from agentloop.values.json import JsonValue, format_json
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ContentPart, ToolExecution

_CHUNK_CHARACTERS = 1_000_000


def fit_result(execution: ToolExecution, policy: ToolPolicy, default: int, tools: Tools) -> ToolExecution:
    """Return the outcome of a call with each text that a model sees cut to a maximum size.

    The program reads the value, the model the content: only the content is cut. The notice at the cut names the tool that reads
    the rest, if the loop has one. Images and other media are not cut.

    Args:
        execution: the outcome, whole.
        policy: the policy of its tool, which may have a maximum size of its own.
        default: the maximum size of each text in bytes of UTF-8, without the notice, for other tools.
        tools: the tools of the loop.
    """
    if not execution.succeeded:
        return execution
    max_bytes = policy.max_result_bytes or default

    def hint(argument: str) -> str:
        # What reads results pages through them itself: its own results are no further ones to read.
        return "" if policy.reads_results else tools.reading_hint(execution.key, argument)

    parts: tuple[ContentPart, ...]
    if execution.content is not None:
        parts = tuple([_fit_part(part, max_bytes, hint) for part in execution.content])
        is_cut = any(fit is not part for fit, part in zip(parts, execution.content, strict=True))
        return execution.with_cut(parts) if is_cut else execution
    text = _cut_value(execution.value, max_bytes, hint)
    return execution if text is None else execution.with_cut((Text(text),))


def whole_result(execution: ToolExecution) -> ToolExecution:
    """Return the outcome of a call with all that a model would see of it without limits."""
    return execution if execution.uncut is None else evolve(execution, content=execution.uncut or None, uncut=None)


def fit_again(
    execution: ToolExecution, before: ToolExecution, policy: ToolPolicy, default: int, tools: Tools
) -> ToolExecution:
    """Return what interceptors made of a result that they saw whole, cut as it was before they saw it.

    Args:
        execution: what they made of it.
        before: the outcome that they were shown, cut.
        policy: as for `fit_result`.
        default: as for `fit_result`.
        tools: as for `fit_result`.
    """
    if before.uncut is None or execution.uncut is not None:
        return execution
    if execution.value is before.value and execution.content is (before.uncut or None):
        return evolve(execution, content=before.content, uncut=before.uncut)
    return fit_result(execution, policy, default, tools)


_Hint = Callable[[str], str]
"""Returns how the rest is read with one more argument; empty if it cannot be read."""


def _fit_part(part: ContentPart, max_bytes: int, hint: _Hint) -> ContentPart:
    if not isinstance(part, Text):
        return part
    text = _cut_text(part.text, max_bytes, hint)
    return part if text is None else Text(text)


def _cut_value(value: JsonValue, max_bytes: int, hint: _Hint) -> str | None:
    """Return the text of a value, cut; None if it fits."""
    if isinstance(value, str):
        return _cut_text(value, max_bytes, hint)
    if not isinstance(value, dict | tuple):
        return None
    data = format_json(value)
    if len(data) <= max_bytes:
        return None
    kind = "an object with" if isinstance(value, Mapping) else "a list of"
    noun = "keys" if isinstance(value, Mapping) else "items"
    cut = _Cut.of_ends(data[:max_bytes], data[-max_bytes:], len(data), max_bytes)
    return cut.render(f"it is {kind} {len(value):,} {noun}", hint(""), "lists them")


def _cut_text(text: str, max_bytes: int, hint: _Hint) -> str | None:
    """Return a text, cut; None if it fits."""
    if len(text) * 4 <= max_bytes:
        return None
    # The size is computed chunk by chunk, so that a large text is not held in memory twice.
    chunks = range(0, len(text), _CHUNK_CHARACTERS)
    size = sum(len(_encode(text[start : start + _CHUNK_CHARACTERS])) for start in chunks)
    if size <= max_bytes:
        return None
    cut = _Cut.of_ends(_encode(text[:max_bytes]), _encode(text[-max_bytes:]), size, max_bytes)
    # The last line of the head may be incomplete, so that reading goes on at its beginning.
    line = len(numbered_lines(cut.head)) if cut.head else 1
    return cut.render("", hint(f"from={line}"), "continues")


@frozen
class _Cut:
    """The two ends of a text that does not fit.

    Attributes:
        head: its beginning.
        tail: its end.
        shown: the size of both in bytes.
        size: the size of the text in bytes.
    """

    head: str
    tail: str
    shown: int
    size: int

    @classmethod
    def of_ends(cls, first: bytes, last: bytes, size: int, max_bytes: int) -> _Cut:
        """Cut two thirds of the maximum from the first bytes of a text, and one third from the last ones."""
        tail_bytes = max_bytes // 3
        head = first[: max_bytes - tail_bytes].decode("utf-8", "ignore")
        tail = last[-tail_bytes:].decode("utf-8", "ignore") if tail_bytes else ""
        return cls(head, tail, len(_encode(head)) + len(_encode(tail)), size)

    def render(self, shape: str, hint: str, effect: str) -> str:
        """Return the text with a notice at the cut.

        Args:
            shape: what the whole is, in words.
            hint: how the rest is read; empty if it cannot be read.
            effect: what that does.
        """
        facts = [f"{self.shown:,} of {self.size:,} bytes are shown", shape, f"{hint} {effect}" if hint else ""]
        notice = f"[cut here: {'; '.join(filter(None, facts))}]"
        return f"{self.head}\n{notice}\n{self.tail}" if self.tail else f"{self.head}\n{notice}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
