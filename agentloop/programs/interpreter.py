"""The border to the interpreter of programs: worker processes that run a program and stop at each call of a function."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from typing import Any

import pydantic_monty as monty
from attrs import define, field

from agentloop.errors import ProgramFailed, suggest
from agentloop.programs.program import CallFunctions, FunctionCall, FunctionResult, ProgramLimits, ProgramResult
from agentloop.values.json import MAX_DEPTH, JsonValue, format_json


class Interpreter:
    """Runs programs in worker processes, which have no access to files, network, environment, time or chance.

    The processes start with the first program; `aclose` ends them. A process that a program has damaged or blocked is replaced.
    When this process dies, a worker ends as soon as its program waits or has used its time.

    Args:
        limits: what each program may use.
    """

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._pool: monty.AsyncMonty | None = None
        self._starting = asyncio.Lock()

    async def run(self, source: str, functions: Mapping[str, Sequence[str]], call: CallFunctions) -> ProgramResult:
        """Run a program to its end.

        Args:
            source: the program; names at its top level may be awaited.
            functions: the names of the parameters of each function that it can call, by the name of the function.
            call: calls the functions for which it waits.

        Raises:
            ProgramFailed: it is invalid, raised an error or exceeded a limit.
            Exception: whatever `call` raises.
        """
        run = _Run(source, functions, self._limits)
        pool = await self._started()
        limits: monty.ResourceLimits = {
            "max_feed_duration_secs": self._limits.seconds,
            "max_memory": self._limits.memory_bytes,
            "max_recursion_depth": self._limits.recursion,
            "max_suspensions": 4 * self._limits.calls + _SPARE_SUSPENSIONS,
            "max_total_sleep_secs": 0,
        }
        # Nothing may differ when the program runs again on recorded results: no clock, no chance.
        policy: monty.OSPolicy = {"datetime": "call_host", "sleep": "call_host", "random_start": {"seed": 0}}
        waiting: bytes | None = None
        results: Mapping[int, FunctionResult] = {}
        while True:
            async with pool.checkout(limits=limits, os_policy=policy) as session:
                try:
                    if waiting is None:
                        snapshot = await session.feed_start(source, print_callback=run.print)
                    else:
                        snapshot = await _restore(session, waiting, results, run.print)
                    while not isinstance(snapshot, monty.AsyncFutureSnapshot | monty.MontyComplete):
                        snapshot = await run.advance(snapshot)
                    if isinstance(snapshot, monty.MontyComplete):
                        return run.result(snapshot.output)
                    waiting, numbers = snapshot.dump(), sorted(snapshot.pending_call_ids)
                except monty.MontyError as error:
                    raise ProgramFailed(run.describe(error)) from None
                except (_Unconvertible, ValueError) as error:  # a number with too many digits is a ValueError here
                    raise ProgramFailed(run.with_printed(str(error))) from None
            # The process is free for other programs meanwhile: a call may take long, or run a program itself.
            results = await run.call(numbers, call)

    async def aclose(self) -> None:
        """End the worker processes. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__(None, None, None)

    async def _started(self) -> monty.AsyncMonty:
        async with self._starting:
            if self._pool is None:
                pool = monty.AsyncMonty(min_processes=0, max_processes=self._limits.workers)
                self._pool = await pool.__aenter__()
            return self._pool


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
    _printed: list[str] = field(factory=list)
    _printed_characters: int = 0
    _waiting: dict[int, FunctionCall] = field(factory=dict)
    _call_count: int = 0

    def print(self, _: str, text: str) -> None:
        """Keep what the program prints, up to the limit. Must not raise: that would abort this process when it ends."""
        rest = self.limits.output_characters - self._printed_characters
        if rest > 0:
            self._printed.append(text[:rest])
        self._printed_characters += len(text)

    async def advance(
        self, snapshot: monty.AsyncNameLookupSnapshot | monty.AsyncFunctionSnapshot
    ) -> monty.AsyncSnapshot:
        """Look up a name, or begin a call, and return what the program waits for next."""
        if isinstance(snapshot, monty.AsyncNameLookupSnapshot):
            name = snapshot.variable_name
            return await (snapshot.resume(value=_function(name)) if name in self.functions else snapshot.resume())
        return await snapshot.resume(self._begin_call(snapshot))

    async def call(self, numbers: Sequence[int], call: CallFunctions) -> Mapping[int, FunctionResult]:
        """Make the calls for which the program waits, in the order in which it made them."""
        results = await call([self._waiting.pop(number) for number in numbers])
        return dict(zip(numbers, results, strict=True))

    def result(self, output: object) -> ProgramResult:
        """Return the result of the program."""
        value = _as_json(output)
        notes = [
            f"the call of {call.name} in line {call.line} was not awaited and not made: write `await {call.name}(…)`"
            for call in self._waiting.values()
        ]
        if self._printed_characters > self.limits.output_characters:
            notes.append(
                f"only the first {self.limits.output_characters:,} of {self._printed_characters:,} printed characters are shown"
            )
        return ProgramResult("".join(self._printed), value, tuple(notes))

    def _begin_call(self, snapshot: monty.AsyncFunctionSnapshot) -> monty.ExternalResult:
        name = str(snapshot.function_name)
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
        line = self.source.encode()[: snapshot.position.start].count(b"\n") + 1
        self._waiting[snapshot.call_id] = FunctionCall(name, arguments, line)
        return {"future": ...}

    def _arguments(self, name: str, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        parameters = self.functions[name]
        if len(positional) > len(parameters):
            raise TypeError(f"takes {len(parameters)} arguments, and {len(positional)} were given")
        arguments = dict(zip(parameters, positional, strict=False))
        if twice := arguments.keys() & named.keys():
            raise TypeError(f"got more than one value for {min(twice)!r}")
        converted = {parameter: _as_json(value) for parameter, value in {**arguments, **named}.items()}
        size, limit = len(format_json(converted)), self.limits.argument_bytes
        if size > limit:
            raise _Unconvertible(f"its arguments are {size:,} bytes, and at most {limit:,} are allowed")
        return converted

    # --- failures -----------------------------------------------------------------------------------------------

    def describe(self, error: monty.MontyError) -> str:
        """Return an error of the program with the lines where it was raised, and what the program printed before."""
        if isinstance(error, monty.MontyCrashedError):
            return self.with_printed(f"the interpreter ended without a result: {error}")
        frames = error.traceback() if isinstance(error, monty.MontyRuntimeError | monty.MontySyntaxError) else []
        places = [f"line {frame.line}: {(frame.source_line or '').strip()[:_MAX_SHOWN_LINE]}" for frame in frames]
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
        printed = "".join(self._printed)[-_MAX_SHOWN_OUTPUT:]
        return f"{message}\nPrinted before:\n{printed}" if printed else message


async def _restore(
    session: monty.AsyncMontySession,
    waiting: bytes,
    results: Mapping[int, FunctionResult],
    print_callback: Callable[[str, str], None],
) -> monty.AsyncSnapshot:
    """Continue a program of this process, which has waited for calls, with their results."""
    snapshot = await session.load_snapshot(waiting, print_callback=print_callback)
    assert isinstance(snapshot, monty.AsyncFutureSnapshot)  # noqa: S101  # it was one when it was stored
    return await snapshot.resume({number: _answer(result) for number, result in results.items()})


_MAX_SHOWN_LINE = 200
_MAX_SHOWN_FRAMES = 6
_MAX_SHOWN_MESSAGE = 4_000
_MAX_SHOWN_OUTPUT = 4_000


def _function(name: str) -> Callable[[], None]:
    """Return an object that stands for a function; the interpreter reads its name and never calls it."""

    def function() -> None:
        raise NotImplementedError

    function.__name__ = name
    return function


def _answer(result: FunctionResult) -> Any:
    if result.error:
        return {"exc_type": result.error_type, "message": _text(result.error)}
    return {"return_value": _as_program_value(result.value)}


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


def _as_json(value: Any, depth: int = 0) -> Any:
    """Return a value of a program as JSON data.

    Raises:
        _Unconvertible: it has no JSON form.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth >= MAX_DEPTH:
        raise _Unconvertible(f"a value is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_json(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_as_key(name): _as_json(item, depth + 1) for name, item in value.items()}
    if isinstance(value, date | time):
        return value.isoformat()
    attributes = getattr(value, "attributes", None)  # an instance of a class of the program
    if isinstance(attributes, dict):
        return _as_json(attributes, depth + 1)
    raise _Unconvertible(f"a {type(value).__name__} ({value!r:.80}) has no JSON form; convert it to text or numbers")


def _as_key(name: object) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, bool | int | float) or name is None:
        return str(name)
    raise _Unconvertible(f"{name!r:.80} cannot be a key in JSON; use text")
