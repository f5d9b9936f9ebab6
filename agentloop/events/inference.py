"""Events of an inference."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.event import Event
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, Usage
from agentloop.values.tool_calls import ErrorInfo


@frozen(eq=False, repr=False)
class InferenceRequestStarted(Event):
    """A model is being asked.

    Attributes:
        request: what it is asked.
    """

    request: InferenceRequest


@frozen(eq=False, repr=False)
class InferenceDeltaReceived(Event):
    """A piece of an answer came while it is still being written; what it says is provisional.

    Attributes:
        delta: the piece.
    """

    delta: InferenceDelta


@frozen(eq=False, repr=False)
class InferenceRetried(Event):
    """An attempt to ask the model failed and is being repeated.

    Attributes:
        attempt: the number of the attempt that failed, from 1.
        error: why it failed.
        delay: seconds until the next attempt.
        instead: what is asked next, when it is not the same again.
    """

    attempt: int
    error: ErrorInfo
    delay: float = 0.0
    instead: str = ""


@frozen(eq=False, repr=False)
class InferenceResponseReceived(Event):
    """A model answered, or an interceptor answered in its place; what it says is final.

    Attributes:
        response: the answer, after the interceptors.
    """

    response: InferenceResponse


@frozen(eq=False, repr=False)
class InferenceFailed(Event):
    """A model could not be asked, or gave no usable answer.

    Attributes:
        error: why.
    """

    error: ErrorInfo


@frozen(eq=False, repr=False)
class TokenUsageReported(Event):
    """Tokens of one inference.

    Attributes:
        usage: the tokens of this inference.
        total: the tokens of the execution so far, this inference included.
    """

    usage: Usage
    total: Usage


@frozen(eq=False, repr=False)
class DecisionExtractionFailed(Event):
    """A model's answer could not be read as calls or as an answer.

    Attributes:
        attempt: which answer of the step it was, from 1.
        problem: what is wrong with it, as the model is told.
        text: what the model wrote, as far as it was text.
    """

    attempt: int
    problem: str
    text: str = ""


@frozen(eq=False, repr=False)
class ValidationFailed(Event):
    """A model's answer was read, and cannot be used: a call that cannot be executed, or an answer of another form.

    Attributes:
        attempt: which answer of the step it was, from 1.
        problems: what is wrong with it, as the model is told.
    """

    attempt: int
    problems: tuple[str, ...]
