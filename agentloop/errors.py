"""Every error that agentloop raises.

    AgentLoopError
    ├── ContractViolation          an implementation or a caller broke a contract
    ├── BoundExceeded              input would cause more work than `Bounds` allows
    ├── ConfigurationError         the setup of a loop, model or tool cannot work
    │   ├── InvalidParameter       a parameter has the wrong type or value
    │   ├── InvalidDependencies    the dependencies of an execution do not have the type that a tool declares
    │   ├── InvalidDescriptor      a file that describes tools or agents has mistakes
    │   ├── InvalidFile            a file that describes tools or agents cannot be parsed
    │   └── SandboxUnavailable     no sandbox can run here, or a limit cannot be enforced
    ├── InterceptorFailed          an interceptor raised; the guarded operation was not performed
    ├── NotJson                    a value has no JSON form
    ├── InvalidDocument            data is not the JSON form of the expected value
    ├── ToolDefinitionError        a function or class cannot become a tool
    ├── ToolError                  a tool call did not succeed
    │   ├── UnknownTool
    │   ├── MalformedArguments
    │   ├── InvalidArguments
    │   ├── AgentsTooDeep
    │   ├── ToolBlocked
    │   ├── ToolTimedOut
    │   ├── ToolUnavailable
    │   ├── ToolInDoubt
    │   ├── ProgramFailed          a program of a model is invalid, raised an error or exceeded a limit
    │   └── ToolFailed
    ├── InferenceError             a request to a model failed
    │   ├── AuthenticationError
    │   ├── RateLimited
    │   ├── BadRequest
    │   │   ├── ContextLengthExceeded
    │   │   ├── ToolsNotSupported
    │   │   └── UnsupportedOption  the wire format of a model has no equivalent of an option
    │   ├── ProviderUnavailable
    │   └── InvalidResponse
    ├── InvalidOutput              a final answer does not have the required type
    ├── DecisionError              a decision does not match a pending call
    ├── DecisionExtractionError    the output of a model contains no decision that can be parsed
    ├── DecisionValidationError    the decisions of a model were parsed but cannot be used
    ├── InboxClosed                the execution has ended and accepts no messages
    ├── ExecutionError             an execution has no output
    │   ├── ExecutionFailed        an error ended it
    │   ├── ExecutionStopped       a limit or a request to stop ended it
    │   ├── ExecutionSuspended     calls wait for decisions
    │   └── NoOutput               a state has no final answer
    ├── ClusterError               work of a cluster was not done
    │   ├── WorkRefused            no worker can do it
    │   ├── WorkFailed             it could not be carried out
    │   ├── WorkDamaged            the row that holds it is not one that agentloop wrote
    │   ├── TooManyRecoveries      an execution ended its workers again and again
    │   └── DatabaseLost           a worker could not reach its database for too long
    └── JournalError
        ├── UnknownExecution       no execution with this id is recorded
        ├── JournalConflict        another writer drives the execution, or has continued it
        ├── ClaimLost              this process lost the right to append to the execution
        ├── JournalCorrupt         records were changed, dropped, reordered or damaged
        ├── InferenceNotRecorded   calls have started for a response that is not recorded
        ├── JournalFull            no space is left
        ├── JournalBusy            another writer holds the lock
        └── SchemaTooNew           a newer version of agentloop wrote the document

Messages name the problem, its place and the remedy; attributes hold the data for programs. Errors that programs raise
with a value of the loop (`AgentStop`, `CallSuspended`, `BatchInterrupted`, `StepInterrupted`) are defined in
`agentloop.values` and can be imported from here, too.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # errors know the types of what they carry; at run time they know no other module
    from agentloop.values.decisions import CallSuspended as CallSuspended
    from agentloop.values.interruptions import BatchFailed as BatchFailed
    from agentloop.values.interruptions import BatchInterrupted as BatchInterrupted
    from agentloop.values.interruptions import ExecutionInterrupted as ExecutionInterrupted
    from agentloop.values.interruptions import StepInterrupted as StepInterrupted
    from agentloop.values.state import AgentState
    from agentloop.values.stop import AgentStop as AgentStop
    from agentloop.values.stop import InterceptorTimedOut as InterceptorTimedOut
else:
    _DEFINED_IN_VALUES = {
        "AgentStop": "stop",
        "BatchFailed": "interruptions",
        "BatchInterrupted": "interruptions",
        "CallSuspended": "decisions",
        "ExecutionInterrupted": "interruptions",
        "InterceptorTimedOut": "stop",
        "StepInterrupted": "interruptions",
    }

    def __getattr__(name: str) -> type[AgentLoopError]:
        if name not in _DEFINED_IN_VALUES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"agentloop.values.{_DEFINED_IN_VALUES[name]}"), name)


class AgentLoopError(Exception):
    """The base class of all errors of agentloop."""


class ContractViolation(AgentLoopError):
    """An implementation or a caller broke a contract; the message names the contract and the violation."""


class BoundExceeded(AgentLoopError):
    """Input would cause more work than a bound allows.

    Attributes:
        bound: the name of the bound: an attribute of `agentloop.values.Bounds`.
        limit: its value.
    """

    def __init__(self, bound: str, limit: float, problem: str = "") -> None:
        """Create the error.

        Args:
            bound: the name of the bound.
            limit: its value.
            problem: what exceeds it.
        """
        super().__init__(f"{problem or 'too much work'}; the limit is {limit:,g} (Bounds.{bound})")
        self.bound = bound
        self.limit = limit


class ConfigurationError(AgentLoopError):
    """The setup cannot work: a missing key, an unknown model string, a wrong option."""


class InvalidParameter(ConfigurationError, TypeError, ValueError):
    """A parameter has the wrong type or value; the message says what to write instead."""


class InvalidDependencies(ConfigurationError, TypeError):
    """The dependencies of an execution do not have the type that a tool declares, as `ToolContext[Shop]`."""


class InvalidDescriptor(ConfigurationError):
    """A file that describes tools or agents has mistakes; nothing that it names was imported.

    Attributes:
        mistakes: for each mistake the file, the dotted key, the 1-based line (0 if there is none) and the problem.
    """

    def __init__(self, mistakes: Sequence[tuple[str, str, int, str]]) -> None:
        self.mistakes: tuple[tuple[str, str, int, str], ...] = tuple(mistakes)
        super().__init__("\n".join(_format_mistake(*mistake) for mistake in self.mistakes))


class SandboxUnavailable(ConfigurationError):
    """No sandbox can run here, or one of its limits cannot be enforced; nothing was started."""


def _format_mistake(file: str, key: str, line: int, message: str) -> str:
    at = f"{file}, line {line}" if line else file
    return f"{at}: {key}: {message}" if key else f"{at}: {message}"


class InvalidFile(ConfigurationError):
    """A file that describes tools or agents cannot be parsed, or exceeds a limit.

    Attributes:
        line: the 1-based line of the problem; 0 if unknown.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class InterceptorFailed(AgentLoopError):
    """An interceptor raised, so the guarded operation was not performed (law 11). `__cause__` is the error that it raised.

    Attributes:
        interceptor: the name of the interceptor.
        point: the point at which it raised, such as `before_step`.
    """

    def __init__(self, interceptor: str, point: str, error: BaseException) -> None:
        super().__init__(f"the interceptor {interceptor} failed at {point}: {type(error).__name__}: {error}")
        self.interceptor = interceptor
        self.point = point

    @classmethod
    def from_record(cls, message: str, interceptor: str, point: str) -> InterceptorFailed:
        """Return the error that a journal describes, without the error that caused it."""
        failed = cls(interceptor, point, RuntimeError())
        failed.args = (message,)
        return failed


class ForeignCancellation(AgentLoopError):
    """A part awaited something that another task cancelled. The task of the execution itself was not cancelled.

    Args:
        part: the driver, executor, model, interceptor or other part, such as `the driver ReActDriver`.
        cancelled: the `asyncio.CancelledError`, which becomes the cause.
    """

    def __init__(self, part: str, cancelled: BaseException) -> None:
        super().__init__(f"{part} awaited something that another task cancelled")
        self.__cause__: BaseException | None = cancelled


class NotJson(AgentLoopError, TypeError):
    """A value has no JSON form: an object of an unknown class, a NaN, a key that is not a string, a cycle."""


class InvalidDocument(AgentLoopError, ValueError):
    """Data is not the JSON form of the expected value."""


class ToolDefinitionError(AgentLoopError):
    """A function or class cannot become a tool; the message says what to add or change."""


class ToolError(AgentLoopError):
    """A tool call did not succeed.

    Attributes:
        path: the JSON path of the problem in the arguments or the result, such as `$.days[0]`; empty if there is none.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnknownTool(ToolError):
    """The model called a tool that is not offered."""


class MalformedArguments(ToolError):
    """The arguments of a call are not a JSON object: not JSON, cut off, or another JSON value."""


class InvalidArguments(ToolError):
    """The arguments of a call are JSON but do not satisfy the tool's schema or types."""


class CallNotAllowed(ToolError):
    """A call was not executed.

    The request did not allow it, its answer ended before the call was complete, or it is uncertain whether it is meant: it
    stands in prose, or in an answer of which a part cannot be read.
    """


class AgentsTooDeep(ToolError):
    """Agents call each other in too many levels, or the conversation was handed over too often."""


class ToolBlocked(ToolError):
    """An interceptor or an ordering rule prevented the call."""


class ToolTimedOut(ToolError):
    """The tool did not return within its time limit."""


class ToolUnavailable(ToolError):
    """The group of the tool could not be started; the tool did not run."""


class ToolInDoubt(ToolError):
    """The tool started, and it is unknown whether it finished: its process or connection was lost."""


class ProgramFailed(ToolError):
    """A program of a model is invalid, raised an error or exceeded a limit; the message names the line."""


class ToolFailed(ToolError):
    """The tool raised, or its result does not match the declared return type."""


class InferenceError(AgentLoopError):
    """A request to a model failed.

    Attributes:
        status: the HTTP status code, or None if there was no HTTP response.
        request_id: the provider's id of the request, or None if it sent none.
        retry_after: the seconds to wait before a retry, as requested by the provider, or None.
        retryable: whether the same request may succeed when it is sent again.
    """

    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after


class AuthenticationError(InferenceError):
    """The provider refused the API key, or the key has no access to the model (HTTP 401, 403)."""


class RateLimited(InferenceError):
    """The rate limit is exceeded (HTTP 429), or a quota is used up."""

    retryable = True


class BadRequest(InferenceError):
    """The provider refused the request (HTTP 400, 404, 413, 422); sending it again will not help."""


class ContextLengthExceeded(BadRequest):
    """The conversation is longer than the model's context window."""


class ToolsNotSupported(BadRequest):
    """The provider refused the request because of its tools: the model, or the server as it is configured, has no tool API.

    In the mode `auto`, a driver describes the tools to a model that no row names in the prompt instead. For other models, pass
    `mode="validated"` to the driver, or configure the server to take tools.
    """


class UnsupportedOption(BadRequest):
    """The wire format of a model has no equivalent of an option of the request; raised before anything is sent.

    Attributes:
        option: the option, such as `seed`; empty in an error that a journal stored.
        wire_format: the name of the wire format; empty in an error that a journal stored.
    """

    def __init__(self, message: str, *, option: str = "", wire_format: str = "") -> None:
        super().__init__(message)
        self.option = option
        self.wire_format = wire_format


class ProviderUnavailable(InferenceError):
    """The provider could not be reached, did not respond in time, or failed (HTTP 408, 409, 5xx)."""

    retryable = True


class InvalidResponse(InferenceError):
    """The provider's response cannot be decoded: not JSON, JSON of another shape, or a truncated stream."""


class IncompleteAnswer(AgentLoopError):
    """The model's answer did not end normally: it was filtered, or ended in an error of the provider or for an unknown reason.

    Attributes:
        finish_reason: why it ended, such as `content_filter`.
    """

    def __init__(self, finish_reason: str, provider_finish_reason: str | None = None) -> None:
        detail = f" ({provider_finish_reason})" if provider_finish_reason not in {None, finish_reason} else ""
        super().__init__(f"the answer of the model is incomplete; its finish reason is {finish_reason}{detail}")
        self.finish_reason = finish_reason


class InvalidOutput(AgentLoopError):
    """A final answer does not have the required type; the message names the path of the problem."""


class DecisionError(AgentLoopError):
    """A decision cannot be applied: no such call is pending, or it was made for another call or other arguments."""


class DecisionExtractionError(AgentLoopError):
    """The output of a model is empty, or contains no decision that can be parsed, after all allowed attempts.

    Attributes:
        problem: the problem of the last output.
        text: the last output.
    """

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(f"the answer of the model cannot be used: {problem}")
        self.problem = problem
        self.text = text


class DecisionValidationError(AgentLoopError):
    """The decisions of a model were parsed but cannot be used, after all allowed attempts.

    Attributes:
        problems: the problems of the last decision.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"the model's decision cannot be used: {'; '.join(problems)}")
        self.problems: tuple[str, ...] = tuple(problems)


class InboxClosed(AgentLoopError):
    """The execution has ended and accepts no messages."""


class ExecutionError(AgentLoopError):
    """An execution has no output; raised by `AgentLoop.run`, `AgentState.raise_for_status` and `AgentState.output`.

    The subclasses say why. The base class itself is raised for a state whose execution has not ended, and by
    `AgentLoop.run` if a loop with another output type has answered.

    Attributes:
        state: the state of the execution with all that was done, such as the calls that were made before a limit stopped it.
    """

    def __init__(self, state: AgentState, message: str = "") -> None:
        """Create the error.

        Args:
            state: the state.
            message: the problem; by default it is built from the state.
        """
        super().__init__(message or f"{_name_execution(state)} has not ended; it is {state.status.value}")
        self.state: AgentState = state

    def __reduce__(self) -> tuple[type[ExecutionError], tuple[AgentState], dict[str, object]]:
        """Rebuild copies and pickles, as of a worker process, from the state."""
        return type(self), (self.state,), {"args": self.args}


class ExecutionFailed(ExecutionError):
    """An error ended the execution. `__cause__` is the exception, in the process in which it was raised."""

    def __init__(self, state: AgentState) -> None:
        last = state.errors[-1] if state.errors else None
        why = _format_signal(state) if last is None else f": {last.type}: {last.message}"
        failed = f"{_name_execution(state)} failed after {_count_steps(state)}"
        super().__init__(state, failed + (why or ": no error was recorded"))


class ExecutionStopped(ExecutionError):
    """A limit or a request to stop ended the execution; the message says which, and how much was used.

    `state.stop_signal` has the reason for programs. If the model gave a last answer, such as the one that a `Budget` asks
    for, `state.final_text` has it.
    """

    def __init__(self, state: AgentState) -> None:
        last = "" if state.final_text is None else "; the last answer of the model is in state.final_text"
        stopped = f"{_name_execution(state)} was stopped after {_count_steps(state)}"
        super().__init__(state, f"{stopped}{_format_signal(state)}{last}")


class ExecutionSuspended(ExecutionError):
    """Calls wait for decisions; `AgentLoop.resume` continues the execution with them. `state.pending` has the calls."""

    def __init__(self, state: AgentState) -> None:
        waiting = [call for call in state.pending if not call.waits_for]
        # The first line of the text of a call is its tool.
        calls = ", ".join([f"{call.rendering.splitlines()[0]} ({call.key})" for call in waiting])
        super().__init__(
            state,
            f"{_name_execution(state)} is suspended: {calls} {'waits' if len(waiting) == 1 else 'wait'} for a decision; "
            "show a person the `rendering` of each call in error.state.pending, and continue with "
            "loop.resume(error.state, {call.key: approve(call.digest)})",
        )


class NoOutput(ExecutionError):
    """A state has no final answer; raised by `AgentState.output`. `__cause__` is an `ExecutionFailed` if it failed."""

    def __init__(self, state: AgentState) -> None:
        if state.execution is None:
            problem = "this state has no output, because it has no execution yet: pass it to AgentLoop.execute"
        else:
            last = state.errors[-1] if state.status.value == "failed" and state.errors else None
            why = _format_signal(state) if last is None else f": {last.type}: {last.message}"
            problem = f"{_name_execution(state)} has no output, it is {state.status.value}{why}"
        super().__init__(state, problem)


def _name_execution(state: AgentState) -> str:
    return f"execution {state.execution_id}" if state.execution_id else "the execution of this state"


def _count_steps(state: AgentState) -> str:
    return "1 step" if state.step_count == 1 else f"{state.step_count:,} steps"


def _format_signal(state: AgentState) -> str:
    """Return the reason of the stop signal, as the end of a sentence; empty if there is no signal."""
    signal = state.stop_signal
    if signal is None:
        return ""
    source = f" (by {signal.source})" if signal.source else ""
    return f": {signal.reason.value}{source}" + (f": {signal.message}" if signal.message else "")


class JournalError(AgentLoopError):
    """A journal cannot be read or written, or a recorded execution cannot be used.

    Attributes:
        state: the last state of the execution, if the error ended one; else None. `interrupted_state` in
            `agentloop.values` also finds it in errors that were raised from this one.
    """

    state: AgentState | None = None


class UnknownExecution(JournalError):
    """No execution with this id is recorded."""


class JournalConflict(JournalError):
    """Another writer drives the execution, or has continued it, so the records do not extend its chain."""


class ExecutionClaimed(JournalConflict):
    """A live writer has claimed the execution; try again when it has ended, or has lost its claim.

    A call of a sub-agent that another process still drives interrupts the caller, which records no outcome of the call.

    Attributes:
        execution_id: the execution; empty if unknown.
    """

    def __init__(self, message: str, *, execution_id: str = "") -> None:
        super().__init__(message)
        self.execution_id = execution_id


class ClaimLost(JournalError):
    """This process lost its claim on an execution, so it cannot append to it any more; another process may drive it.

    The execution stays in progress. `loop.recover` continues it where its record ends, in any process.

    Attributes:
        execution_id: the execution; empty if unknown.
        token: the token of the lost claim; 0 if unknown.
        reason: why it was lost.
    """

    def __init__(self, message: str, *, execution_id: str = "", token: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.execution_id = execution_id
        self.token = token
        self.reason = reason


class InferenceNotRecorded(JournalError):
    """An inference has to be repeated, but calls of its step have started for an earlier response that is not recorded.

    The loop handles this error: it settles these calls and returns to the state before the step.
    """


class JournalCorrupt(JournalError):
    """A record was changed, dropped, moved or damaged.

    Attributes:
        execution_id: the execution; empty if unknown.
        sequence: the sequence number of the first wrong record; 0 if unknown.
    """

    def __init__(self, message: str, *, execution_id: str = "", sequence: int = 0) -> None:
        super().__init__(message)
        self.execution_id = execution_id
        self.sequence = sequence


class JournalFull(JournalError):
    """No space is left to write."""


class JournalBusy(JournalError):
    """Another writer held the lock of the journal for too long."""


class SchemaTooNew(JournalError):
    """A newer version of agentloop wrote the document; it is refused, never read in part.

    Attributes:
        document_version: the schema version of the document.
        supported: the newest schema version that this agentloop reads.
    """

    def __init__(self, document_version: int, supported: int) -> None:
        super().__init__(
            f"the document has schema version {document_version}, this agentloop reads up to {supported}; "
            "read it with the agentloop that wrote it, or a newer one"
        )
        self.document_version = document_version
        self.supported = supported


class ClusterError(AgentLoopError):
    """Work that was submitted to a cluster was not done, or the file of its queues cannot be used."""


class WorkRefused(ClusterError):
    """No live worker can do the work that is submitted."""


class WorkFailed(ClusterError):
    """Submitted work could not be carried out; the execution itself has no end that is recorded."""


class WorkDamaged(ClusterError):
    """The row of the database that holds work is not one that agentloop wrote; it was not read further, and nothing of it ran."""


class TooManyRecoveries(ClusterError):
    """An execution was recovered too often without progress between; it is recorded as the error that ended it."""


class DatabaseLost(ClusterError):
    """A worker could not reach its database for too long, or lost its name to another worker meanwhile."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of this package, under the name that its distribution has here."""
    # Needed for errors only.
    from importlib.metadata import entry_points  # noqa: PLC0415  # loaded with the first missing extra

    commands = entry_points(group="console_scripts", name="agentloop")
    distributions = [command.dist.name for command in commands if command.dist is not None]
    return f"pip install '{next(iter(distributions), _DISTRIBUTION)}[{extra}]'"


_DISTRIBUTION = "agentloop-kernel"
"""The name of the distribution where it is not installed, but imported from its sources."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that asks for the known name closest to an unknown one; empty if none is close.

    A name is close if at most two fifths of its letters are wrong, missing, added or exchanged with their neighbors, or if each
    of its words is close to a word of the known name. A known name with a tag or other marks next to it is closest.
    """
    known = tuple(known)
    closest = known_part(name, known)
    if closest is None and len(name) <= _MAX_COMPARED:
        closest = _find_closest(name, known)
    return f", did you mean {closest!r}?" if closest else ""


def known_part(name: str, known: Container[str]) -> str | None:
    """Return the known name that a tag or other marks have been left next to, as in `pay</arg_value>`; None if there is none."""
    return next((part for part in _MARKS.split(name[:_MAX_SEARCHED]) if part in known), None)


_MARKS = re.compile(r"[^\w.-]+")
_MAX_SEARCHED = 2_000
_MAX_COMPARED = 200
_SLIP, _CLOSE = 0.2, 0.4
"""The shares of wrong letters in a name that was mistyped, and in one that resembles another."""
_MIN_MISSPELLED, _MIN_MISSPELLED_WORD = 3, 5
"""The lengths of the shortest name, and of the shortest word in a name, that can have a wrong letter."""


def _find_closest(name: str, known: Sequence[str]) -> str | None:
    # A slip of the pen comes before a name with the same words, and that before a rough resemblance.
    words = _words(name)
    slip = _closest_by_letters(name, known, _SLIP)
    same_words = next((other for other in known if words and {*words} <= {*_words(other)}), None)
    close = slip or same_words or _closest_by_letters(name, known, _CLOSE)
    return close or next((other for other in known if words and _has_words(_words(other), words)), None)


def _closest_by_letters(name: str, known: Sequence[str], share: float) -> str | None:
    distances = [
        (distance, other) for other in known if (distance := _distance(name.lower(), other.lower(), share)) is not None
    ]
    return min(distances, key=lambda pair: pair[0])[1] if distances else None


def _words(name: str) -> list[str]:
    return "".join([letter if letter.isalnum() else " " for letter in name.lower()]).split()


def _has_words(known: Sequence[str], words: Sequence[str]) -> bool:
    return all(any(word == other or _is_slip(word, other) for other in known) for word in words)


def _is_slip(word: str, other: str) -> bool:
    # A single letter makes another word of a short one.
    return len(word) >= _MIN_MISSPELLED_WORD and _distance(word, other, _SLIP) is not None


def _distance(name: str, other: str, share: float) -> int | None:
    """Return the number of letters to change, add, remove or exchange with a neighbor; None if they are too many."""
    longest = max(len(name), len(other))
    allowed = max(1, round(longest * share)) if longest >= _MIN_MISSPELLED else 0
    if abs(len(name) - len(other)) > allowed or longest > _MAX_COMPARED:
        return None
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(name, 1):
        earlier, before, row = before, row, [i]
        for j, expected in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != expected))
            if i > 1 and j > 1 and letter == other[j - 2] and name[i - 2] == expected:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1] if row[-1] <= allowed else None
