"""The document of a trace: an execution as JSON for the viewer, with what every entry means.

Times are milliseconds since 1970 in UTC, with fractions. The `sequence` of an entry is the number of the record of its execution that
changed it last, so that a patch holds the entries with a larger one than its reader has. Nothing is stored twice: requests and
the conversation refer to messages by ranges of indexes, messages refer to calls by key. `viewer/src/trace.ts` describes the same types.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from agentloop.values.json import JsonValue

TRACE_VERSION = 1
"""The version of the document; a viewer refuses a newer one."""

Range: TypeAlias = list[int]
"""The first and the last index of a run of entries of a table."""


class TraceUsage(TypedDict):
    """Tokens; None where they are not known."""

    input_tokens: int | None
    output_tokens: int | None
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    requests: int


class TraceError(TypedDict):
    """An error as data."""

    type: str
    message: str
    path: str


class TraceStop(TypedDict):
    """A request to stop the execution, and who made it."""

    reason: str
    message: str
    source: str
    principal: str


class TextPart(TypedDict):
    """Text of a message, or reasoning of a model."""

    type: Literal["text", "reasoning"]
    text: str


class CallPart(TypedDict):
    """A call in a message or response.

    Attributes:
        key: the key of the call, which has its arguments and outcome; empty for a call of an earlier execution of the conversation
            and for one of a response, which hold them here.
    """

    type: Literal["call"]
    key: str
    name: str
    arguments: str
    status: str
    text: str


class MediaPart(TypedDict):
    """An image, a recording or a document; `data` is base64 for small images, else None."""

    type: Literal["media"]
    kind: Literal["image", "audio", "document"]
    media_type: str
    name: str
    url: str
    bytes: int
    data: str | None


class ProviderPayload(TypedDict):
    """An opaque part of a provider's response."""

    type: Literal["provider"]
    wire_format: str
    payload: JsonValue


TracePart: TypeAlias = TextPart | CallPart | MediaPart | ProviderPayload


class TraceMessage(TypedDict):
    """A message, identified by its index."""

    index: int
    sequence: int
    role: str
    parts: list[TracePart]


class TraceConversationChange(TypedDict):
    """A change of the conversation: the number of messages that stay, and the indexes of those that follow."""

    sequence: int
    step: int
    keep: int
    add: list[Range]


class TraceTool(TypedDict):
    """A tool as it was offered."""

    name: str
    description: str
    parameters: JsonValue
    effect: str


class TraceRequestSettings(TypedDict):
    """All of a request but its messages, identified by its index."""

    index: int
    sequence: int
    system_prompt: str
    tools: list[TraceTool]
    tool_choice: str
    parallel_tool_calls: bool | None
    response_format: JsonValue
    options: JsonValue


class TraceRendering(TypedDict):
    """How a model receives requests that its mode rewrites, with a short sample conversation; identified by its index."""

    index: int
    sequence: int
    request: JsonValue


class TraceAttempt(TypedDict):
    """An attempt of an inference that failed and was followed by another one.

    Attributes:
        ended_at: when it failed.
        delay: the milliseconds that were waited before the next attempt.
        instead: the name of the model that was asked next, if it is another one; else empty.
    """

    ended_at: float
    delay: float
    error: TraceError
    instead: str


class TraceInference(TypedDict):
    """An inference, identified by its index.

    Attributes:
        purpose: what an interceptor made it for; empty for one of the driver.
        started_at: when it started; the time of what preceded it where that is not recorded.
        requests: the requests that were sent for it; more than one means retries.
        attempts: the attempts that failed before the last one, as far as they are recorded.
        cost: dollars; None where the price or the tokens are not known.
        settings: the index of the request's settings.
        rendering: the index of the rendering; None where the model receives the request as it is.
        messages: the messages of the request.
        response: None if it failed.
        problem: why the response could not be parsed; empty if it could.
        is_superseded: whether it was repeated after an interruption, so that a later one counts.
    """

    index: int
    sequence: int
    step: int
    purpose: str
    started_at: float
    ended_at: float
    requests: int
    attempts: list[TraceAttempt]
    usage: TraceUsage
    cost: float | None
    model: str
    finish_reason: str | None
    response_id: str
    settings: int
    rendering: int | None
    messages: list[Range]
    response: list[TracePart] | None
    problem: str
    error: TraceError | None
    stop: TraceStop | None
    is_superseded: bool
    is_masked: bool


class TraceInnerCall(TypedDict):
    """A pending call of the agent or the program that serves a pending call; `rendering` as for `TracePending`."""

    key: str
    name: str
    arguments: str
    reason: str
    rendering: str
    digest: str
    waits_for: str


class TracePending(TypedDict):
    """What a call waits for: a decision with this digest, or the settlement of another call.

    Attributes:
        rendering: the call as text, which a person sees whole before a decision; the digest is that of this text.
    """

    reason: str
    rendering: str
    digest: str
    waits_for: str
    suspension: int
    inner: list[TraceInnerCall]


class TraceDecision(TypedDict):
    """A decision that was used; `detail` is the reason, the value or the arguments in it, or the id of a grant that stood in its place."""

    at: float
    kind: str
    principal: str
    detail: JsonValue


class TraceOutcome(TypedDict):
    """An outcome as the tool returned it, before interceptors changed it."""

    status: str
    value: JsonValue
    content: list[TracePart] | None
    error: TraceError | None


class TraceCall(TypedDict):
    """A call, identified by its key.

    Attributes:
        index: the 0-based place among the calls of its step, or of its program.
        parent: the key of the call whose program made it; None for a call of the model.
        arguments: the JSON text with which it ran, which may be malformed if it was rejected.
        value: the result, with integers that JavaScript would round as texts.
        requested: the arguments as the model made them, where they were changed; else None.
        effect: the declared effect of the tool; None where it is not recorded.
        status: `running`, `waiting`, or how it ended.
        starts: the times of all starts; several if it was repeated after an interruption, none if it did not run.
        original: the outcome before interceptors changed it; None where they did not.
        answered: how a fork answered it without running it; empty for others.
        source: the key of the call whose outcome a fork reused; empty for others.
        traceback: the traceback of the tool, if the call failed because the tool raised an error; else empty.
    """

    key: str
    sequence: int
    step: int
    index: int
    parent: str | None
    id: str
    name: str
    arguments: str
    requested: str | None
    effect: str | None
    status: str
    starts: list[float]
    started_at: float | None
    ended_at: float | None
    value: JsonValue
    content: list[TracePart] | None
    error: TraceError | None
    may_have_run: bool
    original: TraceOutcome | None
    answered: str
    source: str
    traceback: str
    stop: TraceStop | None
    pending: TracePending | None
    decisions: list[TraceDecision]
    is_masked: bool


class DiscardedCall(TypedDict):
    """A call that was started early and whose outcome was not used."""

    name: str
    arguments: str


class TraceStep(TypedDict):
    """A step, identified by its number; `open` while it runs, or if it was interrupted."""

    number: int
    sequence: int
    status: Literal["open", "suspended", "completed"]
    kind: str | None
    started_at: float
    ended_at: float | None
    message: int | None
    model: str
    finish_reason: str | None
    usage: TraceUsage
    errors: list[TraceError]
    discarded_calls: list[DiscardedCall]


class TraceMark(TypedDict):
    """Something else that happened: the start, a message, a suspension, a decision, a recovery, the end.

    Attributes:
        key: the call that a decision is about; empty for others.
        principal: who decided or sent; empty for others.
        downtime: the milliseconds without a process before a recovery; 0 for others.
    """

    sequence: int
    at: float
    step: int
    kind: str
    text: str
    key: str
    principal: str
    downtime: float


class TraceChange(TypedDict):
    """Something that interceptors changed.

    Attributes:
        by: the interceptor; empty where the loop records no provenance, and the change was found by comparing records.
        point: its point; empty where it is not known.
        path: what changed: `arguments`, `result`, or a path such as `state.context.system_prompt`.
        key: the key of the call; empty for others.
        before: the value as text, or its digest; None if there was none.
        after: the value as text, or its digest; None if there is none.
    """

    sequence: int
    step: int
    by: str
    point: str
    path: str
    key: str
    before: str | None
    after: str | None


class TraceCaller(TypedDict):
    """The call that an execution serves."""

    execution_id: str
    key: str
    attempt: int


class TraceFork(TypedDict):
    """Where an execution was forked from, and what happens to effects in it."""

    execution_id: str
    step: int
    effects: str


class TraceExecution(TypedDict):
    """An execution, identified by its id. In a patch, the lists hold changed entries only.

    Attributes:
        agent_name: the name of its agent; empty without one.
        principal: who asked for it, as `name` or `name@tenant`; empty where nobody is known.
        number: the 1-based index among the executions of its agent.
        status: its status; `interrupted` if it is in progress and no process runs it.
        loop: how the loop was composed when it started.
        updated_at: the time of the last record.
        waited: the milliseconds for which it was suspended or without a process.
        cost: dollars of all inferences with a known price; None if there is none.
        is_masked: whether a secret was masked in a record.
        settings: what requests consist of but their messages.
    """

    id: str
    sequence: int
    agent_id: str
    agent_name: str
    principal: str
    parent_agent_id: str | None
    number: int
    caller: TraceCaller | None
    forked_from: TraceFork | None
    status: str
    loop: JsonValue
    input: str
    output: str
    started_at: float
    updated_at: float
    ended_at: float | None
    waited: float
    stop: TraceStop | None
    errors: list[TraceError]
    usage: TraceUsage
    cost: float | None
    is_masked: bool
    steps: list[TraceStep]
    inferences: list[TraceInference]
    calls: list[TraceCall]
    messages: list[TraceMessage]
    conversation: list[TraceConversationChange]
    settings: list[TraceRequestSettings]
    renderings: list[TraceRendering]
    marks: list[TraceMark]
    changes: list[TraceChange]


class Trace(TypedDict):
    """An execution with those of the agents that serve its calls.

    Attributes:
        id: the id of the execution, which is the first of `executions` in a whole document.
        is_patch: whether it holds only what has changed after a cursor.
        cursor: the position from which to continue.
        is_live: whether the execution can still change.
        executions: the execution, then those of agents that serve its calls, ordered by id.
    """

    version: int
    id: str
    is_patch: bool
    cursor: str
    is_live: bool
    executions: list[TraceExecution]


class TraceDivergence(TypedDict):
    """The first place where two executions differ.

    Attributes:
        step: the step; 0 before the first.
        what: what differs: `input`, `request`, `response`, `call`, `outcome` or `end`.
        path: the path in it.
        left: the JSON text of the first, shortened around the difference; None if there is nothing.
        right: that of the second.
        index: the 0-based index of the inference or call in the step; None for others.
    """

    step: int
    what: str
    path: str
    left: str | None
    right: str | None
    index: int | None


class TraceComparison(TypedDict):
    """A second trace, and where it differs first; None if it does not."""

    trace: Trace
    divergence: TraceDivergence | None


class TraceServer(TypedDict):
    """What a served page can do."""

    needs_token: bool
    execution_id: str
    actions: list[str]


class TracePage(TypedDict):
    """What is embedded in a page: a trace and what it is compared with, or the server to fetch them from."""

    trace: Trace | None
    compare: TraceComparison | None
    served: TraceServer | None
