"""The process that runs programs: the border to their interpreter, which runs them in a process of its own, without access.

It reads requests as lines of JSON and answers each with one: the calls for which the program waits, its result or its error. It is a
process apart because a value can keep the conversion of the interpreter busy forever, with the lock of Python held: then
neither a thread nor a signal handler of Python runs, and only the end of the process helps.
"""

from __future__ import annotations

import base64
import faulthandler
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time
from reprlib import repr as shorten
from typing import Any, Self

import pydantic_monty as monty
from attrs import define, field

from agentloop.errors.hints import suggest
from agentloop.models.programs.labeled_program import CallFailed, PlanEnd, PlanFailed, run_plan
from agentloop.models.programs.labeled_values import Node, ResultMarks, read_marks, write_marks
from agentloop.models.programs.program import ProgramLimits
from agentloop.values.json import MAX_DEPTH, JsonValue, format_json, parse_json

_MAX_PRINTED_BYTES = 10 * 1024 * 1024
"""The size of what a program prints between two calls, above which it ends."""
_SPARE_SUSPENSIONS = 1_000
"""For lookups of names and refused calls."""


class _Unconvertible(Exception):  # internal to this module; becomes a failure of the program
    """A value of a program has no JSON form, or is too large."""


@define(eq=False)
class _Run:
    """One run of a program."""

    source: str
    functions: Mapping[str, Sequence[str]]
    limits: ProgramLimits
    _printed: str = ""
    _printed_characters: int = 0
    _collector: monty.CollectString = field(factory=lambda: monty.CollectString(max_bytes=_MAX_PRINTED_BYTES))
    _waiting: dict[int, tuple[str, dict[str, Any]]] = field(factory=dict)
    _snapshot: bytes = b""
    _pending: list[int] = field(factory=list)
    _results: Mapping[int, Mapping[str, Any]] = field(factory=dict)
    _call_count: int = 0

    @classmethod
    def of_request(cls, request: Mapping[str, Any]) -> Self:
        """Return the run of a request: a new one, or one that goes on with the results of its calls."""
        run = cls(request["source"], request["functions"], ProgramLimits(**request["limits"]))
        if state := request["state"]:
            run._printed, run._printed_characters = state["printed"], state["printed_characters"]
            run._call_count, run._snapshot = state["call_count"], base64.b64decode(state["snapshot"])
            run._results = {int(number): result for number, result in request["results"].items()}
        return run

    def calls(self) -> dict[str, Any]:
        """Return the calls for which the program waits, in the order in which it made them, and what it goes on with."""
        state = {
            "printed": self._printed,
            "printed_characters": self._printed_characters,
            "call_count": self._call_count,
            "snapshot": base64.b64encode(self._snapshot).decode(),
        }
        return {"calls": [[number, *self._waiting[number]] for number in self._pending], "state": state}

    def advance(self, session: monty.MontySession) -> dict[str, Any]:
        """Run until the program waits for calls, which are returned, or ends, when its result is.

        Raises:
            monty.MontyError: it failed.
        """
        if self._snapshot:
            snapshot = session.load_snapshot(self._snapshot, print_callback=self._collector)
            assert isinstance(snapshot, monty.FutureSnapshot)  # noqa: S101  # it was one when it was stored
            snapshot = snapshot.resume({number: _answer(result) for number, result in self._results.items()})
        else:
            session.feed_run(_define(self.functions))
            snapshot = session.feed_start(self.source, print_callback=self._collector)
        while not isinstance(snapshot, monty.FutureSnapshot | monty.MontyComplete):
            snapshot = self._answer_snapshot(snapshot)
        self._collect()
        if isinstance(snapshot, monty.MontyComplete):
            return self._result(snapshot.output, session)
        self._snapshot, self._pending = snapshot.dump(), sorted(snapshot.pending_call_ids)
        return self.calls()

    def _answer_snapshot(self, snapshot: monty.NameLookupSnapshot | monty.FunctionSnapshot) -> monty.SyncSnapshot:
        if isinstance(snapshot, monty.NameLookupSnapshot):
            name = snapshot.variable_name
            is_known = name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in self.functions
            return snapshot.resume(value=_function(name)) if is_known else snapshot.resume()
        return snapshot.resume(self._begin_call(snapshot))

    def _collect(self) -> None:
        """Keep what was printed, up to the limit."""
        text, self._collector = self._collector.output, monty.CollectString(max_bytes=_MAX_PRINTED_BYTES)
        self._printed += text[: max(self.limits.output_characters - self._printed_characters, 0)]
        self._printed_characters += len(text)

    def _result(self, output: object, session: monty.MontySession) -> dict[str, Any]:
        conversion = _JsonConversion("the value of the program has", "characters", self.limits.output_characters)
        value = conversion.convert(output)
        notes = [
            f"a call of {name} was not awaited and not made: write `await {name}(…)`"
            for name in self._not_awaited(session)
        ]
        shown, total = self.limits.output_characters, self._printed_characters
        if total > shown:
            notes.append(f"only the first {shown:,} of {total:,} printed characters are shown")
        return {"printed": self._printed, "value": value, "notes": notes}

    def _not_awaited(self, session: monty.MontySession) -> Sequence[str]:
        """Return the names of the functions with calls that were not awaited."""
        try:
            names = session.feed_run(_NOT_AWAITED, print_callback=self._collector)
        except monty.MontyError:  # the program has ended, but damaged the list or used all its memory: a note less
            return []
        return [name for name in self.functions if name in str(names).split()]

    def _begin_call(self, snapshot: monty.FunctionSnapshot) -> monty.ExternalResult:
        name = str(snapshot.function_name).removeprefix(_PREFIX)
        if snapshot.is_os_function:
            return {"exc_type": "PermissionError", "message": f"{name} is not available in a program"}
        if name not in self.functions:
            return {"exc_type": "NameError", "message": f"name {name!r} is not defined{suggest(name, self.functions)}"}
        self._call_count += 1
        if self._call_count > self.limits.calls:
            raise _Unconvertible(f"it made more than {self.limits.calls:,} calls")
        try:
            arguments = self._arguments(name, snapshot.args, snapshot.kwargs)
        except (_Unconvertible, TypeError) as error:
            return {"exc_type": "TypeError", "message": f"{name}: {error}"}
        self._waiting[snapshot.call_id] = (name, arguments)
        return {"future": ...}

    def _arguments(self, name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        parameters = self.functions[name]
        if len(positional) > len(parameters):
            raise TypeError(f"takes {len(parameters)} arguments, and {len(positional)} were given")
        arguments = dict(zip(parameters, positional, strict=False))
        if twice := arguments.keys() & named.keys():
            raise TypeError(f"got more than one value for {min(twice)!r}")
        conversion = _JsonConversion("its arguments have", "bytes", self.limits.argument_bytes)
        converted: dict[str, Any] = conversion.convert({**arguments, **named})
        if len(format_json(converted)) > conversion.limit:
            raise conversion.too_large()
        return converted

    # --- failures -----------------------------------------------------------------------------------------------

    def describe(self, error: monty.MontyError) -> str:
        """Return an error of the program with the lines where it was raised, and what the program printed before."""
        if isinstance(error, monty.MontyCrashedError):
            return self.with_printed(f"the interpreter ended without a result: {error}")
        frames = error.traceback() if isinstance(error, monty.MontyRuntimeError | monty.MontySyntaxError) else []
        places = [
            f"line {frame.line}: {(frame.source_line or '').strip()[:_MAX_SHOWN_LINE]}"
            for frame in frames
            if not (frame.function_name or "").startswith(_PREFIX)
        ]
        if len(places) > _MAX_SHOWN_FRAMES:
            places = [*places[: _MAX_SHOWN_FRAMES // 2], "…", *places[-_MAX_SHOWN_FRAMES // 2 :]]
        return self.with_printed("\n  ".join([self._message(error)[:_MAX_SHOWN_MESSAGE], *places]))

    def _message(self, error: monty.MontyError) -> str:
        message = str(error)
        # The measured time would differ when the program runs again.
        if "time limit exceeded" in message:
            return f"TimeoutError: the program computed for more than {self.limits.seconds:g} seconds"
        if "memory limit exceeded" in message:
            return f"MemoryError: the program used more than {self.limits.memory_bytes:,} bytes"
        return f"SyntaxError: {message}" if isinstance(error, monty.MontySyntaxError) else message

    def with_printed(self, message: str) -> str:
        """Return a message with the end of what the program printed."""
        self._collect()
        printed = self._printed[-_MAX_SHOWN_OUTPUT:]
        return f"{message}\nPrinted before:\n{printed}" if printed else message


_MAX_SHOWN_LINE = 200
_MAX_SHOWN_FRAMES = 6
_MAX_SHOWN_MESSAGE = 4_000
_MAX_SHOWN_OUTPUT = 4_000


_PREFIX = "ƒ_"
"""Before the name of a function of the host; the names of functions of programs are ASCII."""


_COROUTINES = f"""
{_PREFIX}open = []

async def {_PREFIX}run(entry, function, values, named):
    entry[0] = ""
    return await function(*values, **named)
"""
"""What the functions of a program need: each entry of the list has the name of a function, until its call is awaited.

Without built-in functions, whose names a program may use for its own values.
"""
_NOT_AWAITED = f"' '.join([entry[0] for entry in {_PREFIX}open])"


def _define(functions: Iterable[str]) -> str:
    """Return the source of the functions that a program calls.

    A function of the host runs where a program calls it, not where it awaits the call. A call that a program awaits under a
    condition must not run before, and so each call is a coroutine of the interpreter.
    """
    return _COROUTINES + "".join(
        [
            f"""
def {name}(*values, **named):
    entry = ["{name}"]
    {_PREFIX}open.append(entry)
    return {_PREFIX}run(entry, {_PREFIX}{name}, values, named)
"""
            for name in functions
        ]
    )


def _function(name: str) -> Callable[[], None]:
    """Return an object that stands for a function; the interpreter reads its name and never calls it."""

    def function() -> None:
        raise NotImplementedError

    function.__name__ = name
    return function


def _answer(result: Mapping[str, Any]) -> Any:
    if result["error"]:
        return {"exc_type": result["error_type"], "message": _text(result["error"])}
    return {"return_value": _as_program_value(result["value"])}


def _text(text: str) -> str:
    """Return a text without lone surrogates, which the interpreter refuses."""
    return text.encode("utf-8", "replace").decode()


def _as_program_value(value: JsonValue) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {_text(name): _as_program_value(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_as_program_value(item) for item in value]
    return value


@define(eq=False)
class _JsonConversion:
    """Converts a value of a program to JSON data, and ends when the JSON must be too large.

    A value of a few bytes in the program can contain one list many times, at each of many levels: its size is counted
    while it is converted, because nothing could hold the whole.

    Attributes:
        subject: what is converted, for errors.
        unit: the unit of the limit, for errors.
        limit: the size of the JSON; a lower bound of it is counted here.
    """

    subject: str
    unit: str
    limit: int
    _size: int = 0

    def convert(self, value: Any, depth: int = 0) -> Any:
        """Return a value as JSON data.

        Raises:
            _Unconvertible: it has no JSON form, or is too large.
        """
        if isinstance(value, str):
            self._add(len(value))
            return value
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            # A decimal digit holds less than four bits.
            self._add(value.bit_length() // 4 if isinstance(value, int) else 1)
            return value
        if depth >= MAX_DEPTH:
            raise _Unconvertible(f"a value is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, list | tuple | set | frozenset):
            self._add(1 + len(value))
            return [self.convert(item, depth + 1) for item in value]
        if isinstance(value, dict):
            self._add(1 + len(value))
            return {self._key(name): self.convert(item, depth + 1) for name, item in value.items()}
        if isinstance(value, date | time):
            return value.isoformat()
        attributes = getattr(value, "attributes", None)  # an instance of a class of the program
        if isinstance(attributes, dict):
            return self.convert(attributes, depth + 1)
        raise _Unconvertible(
            f"a {type(value).__name__} ({shorten(value):.80}) has no JSON form; convert it to text or numbers"
        )

    def too_large(self) -> _Unconvertible:
        """Return the error of a value that is too large."""
        return _Unconvertible(f"{self.subject} too many {self.unit} of JSON: at most {self.limit:,} are allowed")

    def _add(self, size: int) -> None:
        self._size += size
        if self._size > self.limit:
            raise self.too_large()

    def _key(self, name: object) -> str:
        if isinstance(name, bool | int | float) or name is None:
            name = str(name)
        if not isinstance(name, str):
            raise _Unconvertible(f"{shorten(name):.80} cannot be a key in JSON; use text")
        self._add(len(name))
        return name


# --- planned programs -------------------------------------------------------------------------------------------


def _answer_plan(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a planned program on the results of its first calls."""
    results = [_planned_result(result) for result in request["results"]]
    try:
        ran = run_plan(request["source"], request["functions"], ProgramLimits(**request["limits"]), results)
    except PlanFailed as failed:
        return {"error": str(failed)}
    if isinstance(ran, PlanEnd):
        return {"printed": ran.printed, "value": ran.value, "notes": ran.notes, "marks": write_marks(ran.marks)}
    calls = [
        {
            "name": call.name,
            "arguments": call.arguments,
            "control": write_marks(call.control),
            "marks": {name: write_marks(marks) for name, marks in call.marks.items()},
        }
        for call in ran
    ]
    return {"calls": calls}


def _planned_result(result: Mapping[str, Any]) -> Node | CallFailed:
    if result["error"]:
        return CallFailed(_text(result["error"]), read_marks(result["marks"]))
    marks, own, identifiers = read_marks(result["marks"]), frozenset(result["own"]), frozenset(result["identifiers"])
    return ResultMarks(marks, own, identifiers).node_of(_as_program_value(result["value"]))


# --- the process ------------------------------------------------------------------------------------------------


def _answer_request(pool: monty.Monty, request: Mapping[str, Any]) -> bytes:
    # Ends this process even when no code of Python can run.
    faulthandler.dump_traceback_later(request["limits"]["seconds"] + _GRACE_SECONDS, exit=True)
    try:
        return format_json(_answer_plan(request)) if request["is_planned"] else _answer_program(pool, request)
    except ValueError as error:  # of a planned program whose text has half of a surrogate pair
        return format_json({"error": str(error)})
    finally:
        faulthandler.cancel_dump_traceback_later()


def _answer_program(pool: monty.Monty, request: Mapping[str, Any]) -> bytes:
    run = _Run.of_request(request)
    limits: monty.ResourceLimits = {
        "max_feed_duration_secs": run.limits.seconds,
        "max_memory": run.limits.memory_bytes,
        "max_recursion_depth": run.limits.recursion,
        "max_suspensions": 4 * run.limits.calls + _SPARE_SUSPENSIONS,
        "max_total_sleep_secs": 0,
    }
    # Nothing may differ when the program runs again on recorded results: no clock, no chance.
    policy: monty.OSPolicy = {"datetime": "call_host", "sleep": "call_host", "random_start": {"seed": 0}}
    try:
        with pool.checkout(limits=limits, os_policy=policy) as session:
            return format_json(run.advance(session))
    except monty.MontyError as error:
        return format_json({"error": run.describe(error)})
    except (_Unconvertible, ValueError) as error:  # a number with too many digits is a ValueError here
        return format_json({"error": run.with_printed(str(error))})


_GRACE_SECONDS = 5.0
"""Beyond the time of a program: to start its process, and to convert its values."""


def main() -> None:
    """Answer requests until the end of the input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints must not be taken for an answer
    with monty.Monty(min_processes=0, max_processes=1) as pool:
        for line in sys.stdin.buffer:
            answers.write(_answer_request(pool, parse_json(line)) + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
