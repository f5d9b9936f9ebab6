"""Tracebacks of tools that raised, for the record of the call; no model sees them."""

from __future__ import annotations

from traceback import TracebackException
from types import TracebackType
from typing import Final

from agentloop.contracts.run_log import CallLog
from agentloop.values.records import TRACEBACK

_MAX_FRAMES: Final = 30
_MAX_CHARACTERS: Final = 10_000

_CALLERS: Final = ("agentloop.executors.", "agentloop.tools.function_tool", "asyncio.", "concurrent.futures.")
"""The beginnings of the names of modules that call tools; their frames say nothing about a tool."""


def attach_traceback(log: CallLog, key: str, error: BaseException) -> None:
    """Store the traceback of what a tool raised with the outcome of its call.

    Args:
        log: where the call is recorded.
        key: the key of the call.
        error: what the tool raised.
    """
    # Masked before it is cut, so that no half of a secret is stored. Nothing is left for the journal to mask: a record in which
    # something was masked is not used again when the execution is recovered.
    text = log.masked(_format(error))
    log.attach(key, TRACEBACK, {"text": _cut(text)})


def _format(error: BaseException) -> str:
    """Return the last frames of an error and of its causes, from the tool on."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None and _calls_tools(traceback):
        traceback = traceback.tb_next
    try:
        lines = TracebackException(type(error), error, traceback, limit=-_MAX_FRAMES, compact=True).format()
        return "".join(lines).rstrip()
    except Exception as problem:  # noqa: BLE001  # an error of a tool may fail in any way when it is described
        return f"{type(error).__name__}; its traceback could not be written: {type(problem).__name__}"


def _calls_tools(traceback: TracebackType) -> bool:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).startswith(_CALLERS)


def _cut(text: str) -> str:
    """Return the beginning of a long text, where the first cause is, and its end, where the error is."""
    left_out = len(text) - _MAX_CHARACTERS
    if left_out <= 0:
        return text
    first = _MAX_CHARACTERS // 4
    return f"{text[:first]}\n… {left_out:,} characters are left out …\n{text[first + left_out :]}"
