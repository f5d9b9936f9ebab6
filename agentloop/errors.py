"""Every error that agentloop raises.

    AgentLoopError
    ├── ContractViolation          an implementer or a caller broke a stated contract
    ├── ConfigurationError         a loop, model or tool is set up in a way that cannot work
    │   └── InvalidDescriptor      a file that describes tools has mistakes in it
    ├── InterceptorFailed          an interceptor raised, so what it guards did not happen
    ├── NotJson                    a value that has no JSON form
    ├── InvalidDocument            bytes that are not the JSON form of the value asked for
    ├── ToolDefinitionError        a function or class that cannot become a tool
    ├── ToolError                  a tool call that did not succeed
    │   ├── UnknownTool
    │   ├── MalformedArguments
    │   ├── InvalidArguments
    │   ├── AgentsTooDeep
    │   ├── ToolBlocked
    │   ├── ToolTimedOut
    │   ├── ToolUnavailable
    │   ├── ToolInDoubt
    │   └── ToolFailed
    ├── InferenceError             a model that could not be asked, or did not answer
    │   ├── AuthenticationError
    │   ├── RateLimited
    │   ├── BadRequest
    │   │   └── ContextLengthExceeded
    │   ├── ProviderUnavailable
    │   └── InvalidResponse
    ├── InvalidOutput              a final answer that has not the type that was asked for
    ├── DecisionError              a decision about a call that does not wait, or was given for another one
    ├── DecisionExtractionError    no decision could be read in what a model wrote
    ├── DecisionValidationError    the decisions of a model could be read and not be used
    ├── InboxClosed                a message for an execution that has ended
    └── JournalError
        ├── UnknownExecution       no execution of this id is recorded
        ├── JournalConflict        somebody else drives the execution, or has driven it on
        ├── JournalCorrupt         records that were changed, dropped, reordered or damaged
        ├── InferenceNotRecorded              for the loop: calls have begun for an answer that is not at hand
        ├── JournalFull
        ├── JournalBusy
        └── SchemaTooNew

A message says what was wrong, where, and what to do about it; what a program may want to act on is an attribute. Errors
that carry a value of the loop (`AgentStop`, `ExecutionFailed`, `BatchInterrupted`, `StepInterrupted`) are defined in
`agentloop.values`.
"""

from __future__ import annotations

from collections.abc import Sequence


class AgentLoopError(Exception):
    """The root: catch it to catch everything that agentloop raises on purpose."""


class ContractViolation(AgentLoopError):
    """An implementation or a caller broke what a contract promises; the message names who and how."""


class ConfigurationError(AgentLoopError):
    """Something is set up in a way that cannot work: a missing key, an unknown model string, a wrong option."""


class InvalidDescriptor(ConfigurationError):
    """A file that describes tools has mistakes in it; nothing that it names was imported.

    Attributes:
        mistakes: for each, the file, the key (dotted), the line (0 where there is none) and what is wrong.
    """

    def __init__(self, mistakes: Sequence[tuple[str, str, int, str]]) -> None:
        self.mistakes: tuple[tuple[str, str, int, str], ...] = tuple(mistakes)
        super().__init__("\n".join(_located(*mistake) for mistake in self.mistakes))


def _located(file: str, key: str, line: int, message: str) -> str:
    at = f"{file}, line {line}" if line else file
    return f"{at}: {key}: {message}" if key else f"{at}: {message}"


class InterceptorFailed(AgentLoopError):
    """An interceptor raised; what it guards did not happen (law 11). The cause is what it raised.

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


class NotJson(AgentLoopError, TypeError):
    """A value has no JSON form: an object of an unknown class, a NaN, a key that is not text, a cycle."""


class InvalidDocument(AgentLoopError, ValueError):
    """Bytes are not the JSON form of the value that was asked for."""


class ToolDefinitionError(AgentLoopError):
    """A function or class cannot become a tool as it is written; the message says what to add or change."""


class ToolError(AgentLoopError):
    """A tool call did not succeed.

    Attributes:
        path: where in the arguments or the result the problem is, as a JSON path such as `$.days[0]`; empty when the
            problem is not in one place.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnknownTool(ToolError):
    """The model asked for a tool that is not offered."""


class MalformedArguments(ToolError):
    """The arguments of a call are not a JSON object: no JSON at all, cut off, or some other JSON value."""


class InvalidArguments(ToolError):
    """The arguments of a call are JSON but do not satisfy the tool's schema or types."""


class AgentsTooDeep(ToolError):
    """An agent was called by too many agents above each other, or the conversation was handed over too often."""


class ToolBlocked(ToolError):
    """An interceptor or an ordering rule kept the call from running."""


class ToolTimedOut(ToolError):
    """The tool did not end within its time limit."""


class ToolUnavailable(ToolError):
    """The group that the tool belongs to could not be started; the tool did not run."""


class ToolInDoubt(ToolError):
    """The tool was begun and nobody can say whether it ended: what it runs on was lost meanwhile."""


class ToolFailed(ToolError):
    """The tool raised, or returned what its declared return type denies."""


class InferenceError(AgentLoopError):
    """A model could not be asked or did not give a usable answer.

    Attributes:
        status: the HTTP status code, or None when there was no HTTP answer.
        request_id: the provider's id of the request, or None when it sent none.
        retry_after: seconds that the provider asked to wait, or None.
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
    """The provider refused the key, or the key may not use this model (HTTP 401, 403)."""


class RateLimited(InferenceError):
    """The provider asks to slow down (HTTP 429), or a quota is used up."""

    retryable = True


class BadRequest(InferenceError):
    """The provider refused the request itself (HTTP 400, 404, 413, 422): sending it again will not help."""


class ContextLengthExceeded(BadRequest):
    """The conversation is longer than the model's context window."""


class ProviderUnavailable(InferenceError):
    """The provider could not be reached, did not answer in time, or failed on its own side (HTTP 408, 409, 5xx)."""

    retryable = True


class InvalidResponse(InferenceError):
    """The provider answered with something that is not an answer: no JSON, JSON of another shape, a cut stream."""


class InvalidOutput(AgentLoopError):
    """A final answer has not the type that was asked for; the message says where."""


class DecisionError(AgentLoopError):
    """A decision cannot be used: no such call waits, or the decision was given for another call or other arguments."""


class DecisionExtractionError(AgentLoopError):
    """No decision could be read in what a model wrote, as often as it was asked.

    Attributes:
        problem: what is wrong with the last answer.
        text: the last answer.
    """

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(f"the model gave no decision that can be read: {problem}")
        self.problem = problem
        self.text = text


class DecisionValidationError(AgentLoopError):
    """The decisions of a model could be read and not be used, as often as it was asked.

    Attributes:
        problems: what is wrong with the last one.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"the model's decision cannot be used: {'; '.join(problems)}")
        self.problems: tuple[str, ...] = tuple(problems)


class InboxClosed(AgentLoopError):
    """The execution has ended and takes no more messages."""


class JournalError(AgentLoopError):
    """Something is wrong with a recorded run.

    Attributes:
        state: the last `AgentState` of the execution that the error ended; None on any other error. `interrupted_state`
            in `agentloop.values` returns it with its type.
    """

    state: object | None = None


class UnknownExecution(JournalError):
    """No execution of this id is recorded."""


class JournalConflict(JournalError):
    """Somebody else drives the execution, or has driven it on meanwhile: what was to be appended does not follow."""


class InferenceNotRecorded(JournalError):
    """A model is asked again for a step whose calls have begun: these belong to an answer that is not at hand any more."""


class JournalCorrupt(JournalError):
    """A record was changed, dropped, put elsewhere or damaged.

    Attributes:
        execution_id: the execution; empty when the damage is not known to be in one.
        sequence: the record that is wrong, or the first that is; 0 when that is not known.
    """

    def __init__(self, message: str, *, execution_id: str = "", sequence: int = 0) -> None:
        super().__init__(message)
        self.execution_id = execution_id
        self.sequence = sequence


class JournalFull(JournalError):
    """There is no room to write."""


class JournalBusy(JournalError):
    """Somebody else kept the journal locked for longer than was waited."""


class SchemaTooNew(JournalError):
    """A document was written by a newer agentloop than this one; it is refused whole, never read in part.

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
