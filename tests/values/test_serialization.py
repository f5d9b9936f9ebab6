"""The JSON form of values (law 4)."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import agentloop.values
from agentloop.errors import ConfigurationError, InvalidDocument, JournalError, NotJson, SchemaTooNew
from agentloop.testing import strategies
from agentloop.values import grants, points, serialization
from agentloop.values import json as json_text
from agentloop.values.accounts import AccountBalance, AccountHold, AccountKey, AccountState, Spending, SpendingLimit
from agentloop.values.authority import Declarations, Statement
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.bounds import Bounds
from agentloop.values.capabilities import Capabilities, CapabilityRow
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.decisions import Answer, Approve, Block, Deny, Edit, PendingCall, Suspend
from agentloop.values.epochs import Epoch, PrefixBreak, Summary
from agentloop.values.event import Event, EventHead, Operation
from agentloop.values.grants import Grant, GrantState, GrantUse
from agentloop.values.inference import (
    HostedTool,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    ModeChoice,
    ResponseFormat,
    TokenLogprob,
    ToolChoice,
    Usage,
)
from agentloop.values.jobs import Job, JobSchedule, JobStatus, RunningJob, WorkerNote
from agentloop.values.json import JsonArray, JsonObject, freeze, thaw
from agentloop.values.labels import ArgumentOrigin, CallOrigins, Label, Source, SourceKind, Writer
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Media, ProviderPart, Reasoning, Text
from agentloop.values.points import (
    AfterInference,
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeInference,
    BeforeToolUse,
    OnError,
)
from agentloop.values.policies import (
    CachePolicy,
    CallPolicy,
    CircuitPolicy,
    DeduplicatePolicy,
    RateLimit,
    RetryPolicy,
    SeenCall,
)
from agentloop.values.provenance import FieldChange, InterceptorWrite
from agentloop.values.records import (
    CallIntent,
    CannotTell,
    DidNotHappen,
    ExecutionHead,
    Happened,
    JournalRecord,
    RecordedAttempt,
    RecordedCall,
    RecordedInference,
    RecordKind,
)
from agentloop.values.run_requests import Identity, RunRequest
from agentloop.values.secrets import SecretFields
from agentloop.values.serialization import SCHEMA_VERSION, from_json, from_plain, make_converter, to_json, to_plain
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import AgentStep, ExecutionState, ExecutionStatus, SuspendedTurn, Totals
from agentloop.values.stop import Continuation, StopSignal
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolExchange, ToolExecution, ToolResult, ToolSpec
from agentloop.values.value import Declared, EncodeOnce, Value
from agentloop.values.writes import DeclaredWrites
from tests.generated import examples
from tests.strategies import (
    agent_contexts,
    agent_states,
    agent_steps,
    continuations,
    decisions,
    inference_deltas,
    inference_responses,
    open_turns,
    stop_signals,
    token_logprobs,
    usages,
)

GOLDEN = Path(__file__).parent / "golden" / "agent_state_v2.json"
NOW = datetime(2024, 1, 1, tzinfo=UTC)

texts = st.text(max_size=5)
states = agent_states(max_steps=1)
requests = strategies.inference_requests()
specs = strategies.tool_specs()
calls = strategies.tool_calls()
verdicts = st.builds(Block, texts) | st.builds(Suspend, texts) | st.builds(Answer, strategies.json_values())
contents = st.lists(strategies.content_parts(), max_size=2)
media = {"media_type": texts.filter(bool), "data": st.binary(max_size=5), "name": texts}
heads = st.builds(EventHead, texts, texts, st.none() | texts, st.integers(0), st.integers(1), strategies.moments())
pending = st.builds(PendingCall, texts, calls, texts, texts, st.none() | decisions())
changes = st.builds(FieldChange, texts, st.none() | texts, st.none() | texts)

attempts = st.builds(
    RecordedAttempt,
    error=strategies.error_infos(),
    failed_at=strategies.moments(),
    delay=st.floats(0, 60),
    instead=texts,
)

spendings = st.builds(Spending, st.integers(0), st.integers(0))
spending_limits = st.builds(SpendingLimit, st.none() | st.integers(0), st.none() | st.integers(0))
account_holds = st.builds(AccountHold, texts, spendings, st.integers(0), texts, st.integers(0))
sources = st.builds(Source, st.sampled_from(SourceKind), texts, texts)
labels = st.builds(Label, st.lists(sources, max_size=3))
origins = st.builds(ArgumentOrigin, texts, labels, st.sampled_from(Writer))
identities = st.builds(Identity, st.sampled_from(["ada", "Ben"]), tenant=texts, scopes=st.sets(texts, max_size=2))
given_grants = st.builds(
    Grant,
    arguments=st.lists(st.sampled_from(["amount <= 50", 'to in ["ada"]', 'payment/currency == "EUR"']), max_size=2),
    uses=st.none() | st.integers(1),
    total=st.sampled_from(["", "amount <= 500"]),
    until=st.none() | strategies.moments(),
)
grant_uses = st.builds(
    GrantUse, grant_id=texts, key=texts, execution_id=texts, token=st.integers(0), at=strategies.moments()
)
STRATEGIES: dict[type, SearchStrategy[Any]] = {
    AgentContext: agent_contexts(),
    AgentState: agent_states(),
    AgentStep: agent_steps(),
    Answer: st.builds(Answer, strategies.json_values()),
    Approve: st.builds(Approve, texts),
    Audio: st.builds(Audio, **media),
    Block: st.builds(Block, texts),
    Continuation: continuations(),
    Deny: st.builds(Deny, texts),
    Document: st.builds(Document, **media),
    Edit: st.builds(Edit, strategies.json_objects()),
    Epoch: st.builds(Epoch, texts, *[st.integers(0)] * 3),
    PrefixBreak: st.builds(
        PrefixBreak, place=texts, writer=texts, name=texts, offset=st.integers(0), tokens=st.integers(0)
    ),
    ErrorInfo: strategies.error_infos(),
    FieldChange: changes,
    InterceptorWrite: st.builds(InterceptorWrite, texts, texts, st.integers(0), changes),
    Event: st.builds(Event, heads),
    EventHead: heads,
    CallIntent: st.builds(
        CallIntent,
        key=texts,
        id=texts,
        call=calls,
        effect=st.sampled_from(Effect),
        at=strategies.moments(),
        label=st.none() | labels,
        origins=st.lists(origins, max_size=2).map(tuple),
    ),
    CannotTell: st.builds(CannotTell, texts),
    DidNotHappen: st.just(DidNotHappen()),
    ExecutionCommand: st.builds(
        ExecutionCommand,
        id=texts,
        execution_id=texts,
        kind=st.just(CommandKind.MESSAGE),
        message=st.builds(Message.user, texts),
        principal=texts,
        posted_at=strategies.moments(),
    )
    | st.builds(
        ExecutionCommand,
        id=texts,
        execution_id=texts,
        kind=st.just(CommandKind.STOP),
        reason=texts,
        posted_at=strategies.moments(),
    ),
    ExecutionHead: st.builds(
        ExecutionHead,
        execution_id=texts,
        agent_id=texts,
        number=st.integers(1),
        status=st.sampled_from(ExecutionStatus),
        started_at=strategies.moments(),
        updated_at=strategies.moments(),
    ),
    ExecutionState: states.map(lambda state: state.execution).filter(bool),
    Happened: st.builds(Happened, strategies.json_values()),
    Image: st.builds(Image, **media),
    InferenceDelta: inference_deltas(),
    HostedTool: strategies.hosted_tools(),
    ModeChoice: st.builds(ModeChoice, texts, texts, texts),
    InferenceOptions: strategies.inference_options(),
    TokenLogprob: token_logprobs(),
    InferenceRequest: requests,
    InferenceResponse: inference_responses(),
    Media: st.builds(Media, url=st.just("s3://bucket/a"), provider_data=strategies.json_objects()),
    JournalRecord: st.builds(
        JournalRecord,
        execution_id=texts,
        sequence=st.integers(1),
        kind=st.sampled_from(RecordKind),
        at=strategies.moments(),
        body=texts,
        previous_hash=texts,
        hash=texts,
    ),
    Message: strategies.messages(),
    SuspendedTurn: open_turns(),
    PendingCall: pending,
    ProviderPart: st.builds(ProviderPart, texts, strategies.json_values()),
    Reasoning: st.builds(Reasoning, texts, provider_data=strategies.json_objects()),
    RecordedCall: st.builds(
        RecordedCall,
        intent=st.builds(
            CallIntent, key=texts, id=texts, call=calls, effect=st.sampled_from(Effect), at=strategies.moments()
        ),
        execution=st.none() | strategies.tool_executions(),
        stop=st.none() | stop_signals(),
    ),
    RecordedAttempt: attempts,
    RecordedInference: st.builds(
        RecordedInference,
        response=inference_responses(),
        usage=usages(),
        started_at=st.none() | strategies.moments(),
        failed_attempts=st.lists(attempts, max_size=2),
    ),
    ResponseFormat: strategies.response_formats(),
    StopSignal: stop_signals(),
    Suspend: st.builds(Suspend, texts),
    Summary: st.builds(Summary, texts, st.integers(1), st.integers(1)),
    AccountKey: st.builds(AccountKey, texts, texts, texts),
    AccountBalance: st.builds(
        AccountBalance,
        key=st.builds(AccountKey, texts, texts, texts),
        limit=spending_limits,
        spent=spendings,
        reserved=spendings,
        unsettled=spendings,
        remaining=spending_limits,
        requests=st.integers(0),
    ),
    Spending: spendings,
    SpendingLimit: spending_limits,
    AccountHold: account_holds,
    AccountState: st.builds(
        AccountState, spending_limits, spendings, st.lists(account_holds, max_size=2), st.integers(0)
    ),
    Identity: identities,
    Label: labels,
    ArgumentOrigin: origins,
    CallOrigins: st.builds(CallOrigins, labels, st.lists(origins, max_size=2)),
    Source: sources,
    RunRequest: st.builds(
        RunRequest,
        execution_id=texts,
        principal=st.none() | identities,
        metadata=strategies.json_objects(),
        headers=strategies.json_objects(),
    ),
    grants._Limit: st.just(grants._Limit.parse('to in ["ada", 1]')),
    Grant: given_grants,
    GrantUse: grant_uses,
    GrantState: st.builds(
        GrantState,
        id=texts,
        grant=given_grants,
        tool=texts,
        definition=texts,
        given_at=strategies.moments(),
        used=st.integers(0),
        holds=st.lists(grant_uses, max_size=2),
        revoked_at=st.none() | strategies.moments(),
    ),
    Text: st.builds(Text, texts, provider_data=strategies.json_objects()),
    ToolCall: calls,
    ToolCalls: st.builds(
        lambda call, key, decided: ToolCalls([call], [key], {key: decided}), calls, texts, decisions()
    ),
    ToolChoice: requests.map(lambda request: request.tool_choice),
    ToolExchange: strategies.tool_exchanges(),
    ToolExecution: strategies.tool_executions(),
    ToolExecutions: st.builds(
        ToolExecutions, st.lists(strategies.tool_executions(), max_size=2), st.lists(pending, max_size=1), states
    ),
    ToolResult: st.builds(ToolResult, strategies.json_values(), st.none() | contents),
    ToolSpec: specs,
    Totals: st.builds(Totals, usages(), st.integers(0), usages()),
    Usage: usages(),
    **{
        kind: st.builds(kind, states)
        for kind in (
            points.Point,
            points.StatePoint,
            points.BeforeExecution,
            points.BeforeStep,
            points.AfterStep,
            points.OnStop,
            points.AfterExecution,
        )
    },
    BeforeInference: st.builds(BeforeInference, states, requests, st.none() | inference_responses()),
    AroundInference: st.builds(AroundInference, states, requests),
    AfterInference: st.builds(AfterInference, states, requests, inference_responses()),
    BeforeToolUse: st.builds(
        BeforeToolUse,
        states,
        calls,
        specs,
        texts,
        st.integers(0),
        st.none() | verdicts,
        st.none() | decisions(),
    ),
    AroundToolUse: st.builds(AroundToolUse, states, calls, specs, texts, texts, strategies.moments()),
    AfterToolUse: st.builds(AfterToolUse, states, strategies.tool_executions(), st.none() | specs),
    CachePolicy: st.builds(CachePolicy, st.floats(0.5, 1e6), max_entries=st.integers(1)),
    Bounds: st.builds(Bounds, threads=st.floats(0.5, 1e6), message_bytes=st.floats(0.5, 1e9)),
    CircuitPolicy: st.builds(CircuitPolicy, st.integers(1), st.floats(0.5, 1e6), dependency=texts),
}
NOT_DATA: set[type] = {
    Job,
    JobSchedule,
    JobStatus,
    RunningJob,
    WorkerNote,
    Capabilities,
    CapabilityRow,
    Operation,
    EncodeOnce,
    points.AroundPoint,
    OnError,
    CallPolicy,
    DeduplicatePolicy,
    RateLimit,
    RetryPolicy,
    SeenCall,
    SecretFields,
    DeclaredWrites,
    Statement,
    Declarations,
}
"""Bases without fields, the point that holds an exception, policies, which may hold functions and classes, what models can do, and what is never
stored: the call that a deduplicator compares, the fields to mask, and the paths that an interceptor declares."""


def document(kind: str, value: object, version: object = SCHEMA_VERSION) -> bytes:
    """Write an envelope around plain data."""
    return json.dumps({"schema_version": version, "kind": kind, "value": value}).encode()


def test_every_value_class_is_in_the_table() -> None:
    """Every value class has a strategy here."""
    classes: set[type] = set()
    for module in pkgutil.iter_modules(agentloop.values.__path__, "agentloop.values."):
        members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        classes |= {one for _, one in members if issubclass(one, Value) and one.__module__ == module.name}
    assert classes - {Value, Declared} == STRATEGIES.keys() | NOT_DATA


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(10))  # states are parts of many classes, and take long to generate
@given(data=st.data())
def test_a_written_value_is_read_as_an_equal_value(kind: type[Any], data: st.DataObject) -> None:
    """Every value comes back equal, and written again gives the same bytes (law 4)."""
    value = data.draw(STRATEGIES[kind])
    written = to_json(value)
    again = from_json(written, kind)
    assert again == value
    assert type(again) is kind
    assert to_json(again) == written
    assert from_json(written.decode(), kind) == value
    assert from_plain(to_plain(value), kind) == value


@settings(max_examples=examples(20))
@given(state=agent_states())
def test_the_form_is_the_same_without_orjson(state: AgentState) -> None:
    """Each implementation reads the output of the other."""
    fast = to_json(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_fast_dumps", None)
        patch.setattr(json_text, "_fast_loads", None)
        plain = to_json(state)
        assert from_json(fast, AgentState) == state
    assert from_json(plain, AgentState) == state
    assert json.loads(plain) == json.loads(fast)


def test_the_form_names_its_version_and_kind_and_no_class_path() -> None:
    """The value is in an envelope, and parts are distinguished by a tag."""
    assert to_json(Message.user("hello")) == (
        b'{"schema_version":4,"kind":"Message","value":{"role":"user","parts":[{"type":"text","text":"hello"}]}}'
    )
    assert b"agentloop" not in GOLDEN.read_bytes()


def test_default_values_are_left_out() -> None:
    """Small values have small forms."""
    assert to_plain(Usage()) == {}
    assert to_plain(AgentContext()) == {}
    assert to_plain(Usage.none())["input_tokens"] == 0


@pytest.mark.parametrize(
    "value",
    [
        OnError(AgentState.start("x"), ValueError("no")),
        EventHead("a", "e", None, 0, 1, object()),  # type: ignore[arg-type]  # what a careless caller gives
    ],
)
def test_a_value_without_a_json_form_is_not_written(value: Any) -> None:
    """The error names the class of the value that holds an exception or a foreign object."""
    with pytest.raises(NotJson, match=f"this {type(value).__name__} has no JSON form"):
        to_json(value)


def test_metadata_that_is_nested_too_deeply_is_refused() -> None:
    """The depth is measured through immutable values, so that whatever a value accepts can be read back."""
    metadata = JsonObject()
    for _ in range(199):
        metadata = JsonObject(a=metadata)
    context = AgentContext("", (), metadata)
    assert from_json(to_json(context), AgentContext) == context
    for nest in (lambda: JsonObject(a=metadata), lambda: JsonArray([metadata]), lambda: metadata.plus(b=[metadata])):
        with pytest.raises(NotJson, match="nested more than 200 levels deep"):
            nest()


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, SCHEMA_VERSION + 99])
def test_a_newer_document_is_refused_by_name(version: int) -> None:
    """It is not read in part, whatever it holds: the version alone decides."""
    for value in ({"text": "x"}, {"shape": "of the future"}, None):
        with pytest.raises(SchemaTooNew) as caught:
            from_json(document("Text", value, version), Text)
        assert (caught.value.document_version, caught.value.supported) == (version, SCHEMA_VERSION)
        assert isinstance(caught.value, JournalError)
        assert f"schema version {version}" in str(caught.value)


def test_older_documents_are_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each migration returns a document of the next version; documents of the current version are not migrated."""

    def rename(kind: str, value: Any) -> Any:
        return {"text": value["words"]} if kind == "Text" else value

    def shout(kind: str, value: Any) -> Any:
        return {**value, "text": value["text"].upper()}

    monkeypatch.setattr(serialization, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(serialization, "MIGRATIONS", {1: rename, 2: shout})
    assert from_json(document("Text", {"words": "a"}, 1), Text) == Text("A")
    assert from_json(document("Text", {"text": "a"}, 2), Text) == Text("A")
    assert from_json(document("Text", {"text": "a"}, 3), Text) == Text("a")
    assert to_json(Text("a")).startswith(b'{"schema_version":3,')


def test_extensions_of_version_1_are_moved_out_of_the_metadata() -> None:
    """In version 1 the entries of the loop were in the metadata, also in the state of a suspended sub-agent."""

    def state(metadata: Any, **fields: Any) -> Any:
        at = "2026-01-01T00:00:00+00:00"
        return {"agent_id": "a", "created_at": at, "updated_at": at, "context": {"metadata": metadata}, **fields}

    handoff = {"path": ["to_billing"], "execution": "e", "count": 1}
    inner = state({"agentloop.budget": {"execution": "e/1"}, "agentloop.summary": {"text": "…"}})
    slot = {
        "type": "pending_call",
        "key": "e/1/0",
        "call": {"id": "1", "name": "clerk"},
        "reason": "waits",
        "begun": True,
        "progress": inner,
    }
    at = "2026-01-01T00:00:00+00:00"
    turn = {"parts": [{"type": "tool_call", "id": "1", "name": "clerk"}], "slots": [slot]}
    step = {"id": "s", "number": 1, "started_at": at, "ended_at": at, "open_turn": turn}
    execution = {"id": "e", "status": "suspended", "started_at": at, "steps": [step]}
    outer = state({"tenant": 7, "agentloop.handoff": handoff}, execution=execution)
    read = from_json(document("AgentState", outer, 1), AgentState)
    assert read.context.metadata == {"tenant": 7}
    assert read.extensions == freeze({"agentloop.handoff": handoff})
    progress = from_plain(thaw(read.pending[0].progress), AgentState)
    assert progress.context.metadata == {}
    assert list(progress.extensions) == ["agentloop.budget", "agentloop.summary"]
    assert from_json(document("AgentState", outer), AgentState).context.metadata["agentloop.handoff"]


@pytest.mark.parametrize("damaged", [None, [], {}, "x"])
def test_a_damaged_older_document_is_refused(monkeypatch: pytest.MonkeyPatch, damaged: Any) -> None:
    """A migration that stumbles over damage is no crash."""
    monkeypatch.setattr(serialization, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(serialization, "MIGRATIONS", {1: lambda kind, value: {"text": value["words"].upper()}})
    with pytest.raises(InvalidDocument, match="a damaged document of schema version 1"):
        from_json(document("Text", damaged, 1), Text)


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_that_never_was_is_refused(version: int) -> None:
    """Nothing was ever written below version 1."""
    with pytest.raises(InvalidDocument, match=f"schema version {version} is no longer supported"):
        from_json(document("Text", {"text": "x"}, version), Text)


@attrs.frozen
class Order:
    """A class of a program."""

    message: Message
    number: int = 0


def test_a_new_converter_handles_every_value() -> None:
    """Classes of a program may hold values, and hooks go to a copy."""
    converter, other = make_converter(), make_converter()
    order = Order(Message.assistant(Reasoning("hm"), "hello"), 3)
    assert converter.structure(converter.unstructure(order), Order) == order
    converter.register_unstructure_hook(Text, lambda text: text.text)
    assert other.unstructure(Text("x")) == {"text": "x"}
    assert to_plain(Text("x")) == {"text": "x"}


# --- records and declarations ---------------------------------------------------------------------------------------

REFUSED_NOW: list[tuple[type[Any], dict[str, Any]]] = [
    (InferenceOptions, {"stop": ["", "END"]}),
    (InferenceOptions, {"temperature": 9}),
    (InferenceOptions, {"temperature": -1.5}),
    (InferenceOptions, {"top_p": 7}),
    (InferenceOptions, {"max_tokens": 0, "top_logprobs": 99}),
    (InferenceOptions, {"extra": {"model": "other", "stream": True}}),
    (HostedTool, {"kind": "provider"}),
    (HostedTool, {"kind": "web_search", "settings": {"allowed_domains": ["a"], "blocked_domains": ["b"]}}),
    (Image, {"url": "file:///etc/passwd"}),
    (Document, {"url": "a.pdf"}),
]
"""For values that are recorded, fields that a program cannot declare."""


@pytest.mark.parametrize(("kind", "plain"), REFUSED_NOW)
def test_a_record_is_read_whatever_is_refused_today(kind: type[Any], plain: dict[str, Any]) -> None:
    """The value is kept as it was written, inside of other values as well, and a new value with these fields is refused."""
    value = from_plain(plain, kind)
    assert to_plain(value) == plain
    assert from_json(to_json(value), kind) == value
    assert serialization.make_converter().structure(plain, kind) == value
    fields = {name: freeze(item) for name, item in plain.items()}
    with pytest.raises(ConfigurationError):
        kind(**fields)
    with pytest.raises(ConfigurationError):  # also after something was read, or could not be read
        attrs.evolve(value)
    with pytest.raises(InvalidDocument):
        from_plain({**plain, "unknown": 1}, kind)
    with pytest.raises(ConfigurationError):
        kind(**fields)


def test_damage_in_a_record_is_found() -> None:
    """A record is read as it is, and what is no value of its type is no record."""
    for kind, plain in [(InferenceOptions, {"top_p": "7"}), (HostedTool, {"kind": "unknown"}), (Image, {"url": 3})]:
        with pytest.raises(InvalidDocument):
            from_plain(plain, kind)


def test_every_value_that_refuses_a_declaration_is_read_without_the_check() -> None:
    """A class of recorded values whose constructor raises `ConfigurationError` is a `Declared` one, so that its records stay readable."""
    found = set()
    for module in pkgutil.iter_modules(agentloop.values.__path__, "agentloop.values."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__ == module.name and attrs.has(kind):
                source = "".join(
                    inspect.getsource(vars(kind)[name])
                    for name in ("__attrs_post_init__", "check_declaration")
                    if inspect.isfunction(vars(kind).get(name)) and vars(kind)[name].__module__ == module.name
                )
                if "ConfigurationError" in source:
                    found.add(kind)
    assert {kind.__name__ for kind in found} == {"HostedTool", "InferenceOptions", "Media"}
    assert all(issubclass(kind, Declared) for kind in found)
