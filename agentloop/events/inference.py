"""Events of inferences, and of responses that cannot be used."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.epochs import PrefixBreak
from agentloop.values.event import Event
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ModeChoice, Usage
from agentloop.values.tool_calls import ErrorInfo, ToolCall


@frozen(eq=False, repr=False)
class InferenceRequestStarted(Event):
    """A request is about to be sent to a model.

    Attributes:
        request: the request.
        model: the model, as `provider:model` or by its bare name; empty if it has no name.
        is_streamed: whether the response is streamed.
    """

    request: InferenceRequest
    model: str = ""
    is_streamed: bool = False


@frozen(eq=False, repr=False)
class InferenceDeltaReceived(Event):
    """A delta of a streamed response arrived; it is provisional.

    Attributes:
        delta: the delta.
    """

    delta: InferenceDelta


@frozen(eq=False, repr=False)
class InferenceRetried(Event):
    """An attempt of an inference failed and will be retried.

    Attributes:
        attempt: the 1-based number of the failed attempt.
        error: the error.
        delay: seconds until the next attempt.
        instead: the name of the inference that is used next, if it differs; else empty.
    """

    attempt: int
    error: ErrorInfo
    delay: float = 0.0
    instead: str = ""


@frozen(eq=False, repr=False)
class InferenceDelayed(Event):
    """A request waits for the limits of its model before it is sent.

    Attributes:
        reason: what it waits for, such as "60 requests per minute".
        ahead: the number of requests that wait before it.
        delay: seconds until it can be sent, at the earliest; 0 if that depends on other requests.
    """

    reason: str
    ahead: int = 0
    delay: float = 0.0


@frozen(eq=False, repr=False)
class ModelRouted(Event):
    """A request is about to be sent to one of several models, which was chosen for it.

    Attributes:
        name: the name of the chosen model.
        reason: why it was chosen; empty where nothing says so.
    """

    name: str
    reason: str = ""


@frozen(eq=False, repr=False)
class ToolLeftOut(Event):
    """A request is about to be sent without a tool that the provider does not accept. Reported once per execution.

    Attributes:
        tool: the name of the tool.
        reason: why the provider does not accept it.
    """

    tool: str
    reason: str


@frozen(eq=False, repr=False)
class InferenceResponseReceived(Event):
    """A response arrived, from the model or from an interceptor in its place.

    Attributes:
        response: the final response, after the interceptors.
    """

    response: InferenceResponse


@frozen(eq=False, repr=False)
class InferenceFailed(Event):
    """An inference failed.

    Attributes:
        error: the error.
    """

    error: ErrorInfo


@frozen(eq=False, repr=False)
class TokenUsageReported(Event):
    """The tokens of one inference.

    Attributes:
        usage: the tokens of this inference.
        total: the tokens of the execution so far, including this inference.
    """

    usage: Usage
    total: Usage


@frozen(eq=False, repr=False)
class DecisionExtractionFailed(Event):
    """A response could not be parsed, neither as calls nor as an answer.

    Attributes:
        attempt: the 1-based number of the response in its step.
        problem: the problem, in words for the model.
        text: the text of the response.
    """

    attempt: int
    problem: str
    text: str = ""


@frozen(eq=False, repr=False)
class QuotedCallsIgnored(Event):
    """The text of a response quotes tool calls, such as code in a sentence; they were found and do not run.

    Attributes:
        calls: the quoted calls, in order.
        texts: parts that only calls have and that the text only shows, such as `<tool_call>` in a sentence.
    """

    calls: tuple[ToolCall, ...]
    texts: tuple[str, ...] = ()


@frozen(eq=False, repr=False)
class ModeChosen(Event):
    """A driver chose the mode in which it calls a model.

    It is emitted before the first request to each model with a name, and when a response shows that the model needs another
    mode, which then holds for the rest of the execution.

    Attributes:
        choice: the model, the mode and the reason.
    """

    choice: ModeChoice


@frozen(eq=False, repr=False)
class PrefixBroken(Event):
    """A request does not extend the one before it, so that the provider cannot use its cache, and no epoch announced that.

    Attributes:
        cause: the first place that differs, and who wrote it.
    """

    cause: PrefixBreak


@frozen(eq=False, repr=False)
class EagerCallsDiscarded(Event):
    """Calls of pure tools ran before the answer was complete, and their outcomes were not used.

    The answer failed or has other calls, or an interceptor prevented or changed a call.

    Attributes:
        calls: the calls, in order.
    """

    calls: tuple[ToolCall, ...]


@frozen(eq=False, repr=False)
class ValidationFailed(Event):
    """A response was parsed but cannot be used: it has an invalid call, or an answer of the wrong format.

    Attributes:
        attempt: the 1-based number of the response in its step.
        problems: the problems, in words for the model.
    """

    attempt: int
    problems: tuple[str, ...]
