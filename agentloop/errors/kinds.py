"""The errors that carry no value of the loop; `agentloop.errors` has all errors, with those that are defined beside the values that they carry."""

from __future__ import annotations

from collections.abc import Sequence


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


class DependenciesFailed(AgentLoopError):
    """The function that makes the dependencies of a run raised an error, which is the cause; the run did not begin."""


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


class AskAgain(ToolError):
    """Raise this in a tool, or in a check of an answer, to send the model back with a reason.

    In a tool, it says that the call was not carried out, and why: raise it before the tool has an effect. The call is rejected,
    the message is all that the model gets, and the log has neither a traceback nor a line about it. In an `output_check`, it
    refuses a final answer, and the model writes another one.

    Args:
        message: the reason and what to do, in words for the model.
        path: the JSON path of the problem in the arguments; empty if there is none.
    """


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


class DatabaseUnavailable(ClusterError):
    """The database of a cluster cannot be reached, is locked by others for too long, or has no space left.

    What was asked for was tried several times; it may have been done all the same. Asking for it again later is safe.
    """


class DatabaseLost(ClusterError):
    """A worker could not reach its database for too long, or lost its name to another worker meanwhile."""
