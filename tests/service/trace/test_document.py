"""Tests of the document of a trace: what it holds of an execution, its patches, and its size."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from attrs import evolve

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, tool
from agentloop.compilers import SlidingWindow
from agentloop.contracts import CanInfer
from agentloop.durable import MemoryJournal
from agentloop.durable.chain import chain_record
from agentloop.errors import ConfigurationError, ProviderUnavailable, UnknownExecution
from agentloop.interception import AroundInference
from agentloop.models import FallbackInference
from agentloop.policies import Price, PriceTable
from agentloop.service.trace import TraceReader, build_trace, document
from agentloop.testing import CrashableJournal, LoopClock, run_in_virtual_time
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import InferenceRequest, InferenceResponse, JournalRecord
from agentloop.values.json import format_json, parse_json
from agentloop.values.points import Proceed
from tests.service.trace.merging import merge
from tests.service.trace.sample import ORDER, PROMPT, SlowModel, recorded_order

VIEWER_TYPES = Path(__file__).parents[3] / "viewer" / "src" / "trace.ts"


async def trace_of(journal: MemoryJournal, execution_id: str = ORDER, **options: Any) -> Any:
    """Return the trace as the viewer gets it."""
    return parse_json(format_json(await build_trace(journal, execution_id, **options)))


async def root_of(journal: MemoryJournal) -> dict[str, Any]:
    execution: dict[str, Any] = (await trace_of(journal))["executions"][0]
    return execution


def calls_of(execution: dict[str, Any]) -> dict[str, Any]:
    return {call["key"].removeprefix(f"{ORDER}/"): call for call in execution["calls"]}


# --- what a trace holds -------------------------------------------------------------------------------------------------


async def test_parallel_calls_have_their_own_times() -> None:
    """Each call of a step has its start, its end and its outcome, also one that failed beside others."""
    calls = calls_of(await root_of(recorded_order()))
    start = calls["1/0"]["started_at"]
    spans = {key: (calls[key]["started_at"] - start, calls[key]["ended_at"] - start) for key in ("1/0", "1/1", "1/2")}
    assert spans == {"1/0": (0, 1200), "1/1": (0, 700), "1/2": (0, 400)}
    assert [calls[key]["status"] for key in spans] == ["succeeded", "succeeded", "failed"]
    assert calls["1/0"]["value"] == {"item": "lamp", "count": 3, "shelf": ["A4", "B1"]}
    assert "Atlantis" in calls["1/2"]["error"]["message"]


async def test_a_sub_agent_names_the_call_that_it_serves() -> None:
    """The execution of an agent follows that of its caller, and has the key of the call."""
    root, agent = (await trace_of(recorded_order()))["executions"]
    assert root["caller"] is None
    assert agent["caller"] == {"execution_id": ORDER, "key": f"{ORDER}/2/0", "attempt": 1}
    assert agent["output"] == calls_of(root)["2/0"]["value"] == "Those with a shade."
    assert (
        calls_of(root)["2/0"]["started_at"]
        <= agent["started_at"]
        < agent["ended_at"]
        <= calls_of(root)["2/0"]["ended_at"]
    )


async def test_a_call_whose_tool_raised_has_its_traceback() -> None:
    """Only the call that failed has one, and it begins with the tool."""
    calls = calls_of(await root_of(recorded_order()))
    failed = {key: call["traceback"] for key, call in calls.items() if call["traceback"]}
    assert {calls[key]["status"] for key in failed} == {"failed"}
    assert "weather" in {calls[key]["name"] for key in failed}
    assert all('raise ToolFailed(f"the weather service' in text for text in failed.values())


async def test_a_blocked_call_has_a_reason_and_no_start() -> None:
    """A call that an interceptor blocked is there with its arguments and the reason, and never started."""
    call = calls_of(await root_of(recorded_order()))["2/1"]
    assert (call["status"], call["starts"], call["arguments"]) == ("blocked", [], '{"cents": 5000000}')
    assert "not allowed" in call["error"]["message"]


async def test_changes_of_interceptors_are_found_in_the_records() -> None:
    """Without provenance, a trace has changed arguments, results and metadata before and after, of nobody."""
    root = await root_of(recorded_order())
    mail = calls_of(root)["2/2"]
    assert (parse_json(mail["requested"])["to"], parse_json(mail["arguments"])["to"]) == (
        "ada@example.com",
        "test@example.com",
    )
    assert (mail["original"]["value"]["account"], mail["value"]["account"]) == ("DE89 3704 0044", "***")
    changes = {change["path"]: change for change in root["changes"]}
    assert set(changes) == {"arguments", "result", "state.context.metadata"}
    assert changes["arguments"]["key"] == changes["result"]["key"] == f"{ORDER}/2/2"
    assert {change["by"] for change in root["changes"]} == {""}


async def test_with_provenance_changes_name_their_interceptors() -> None:
    """Where the loop records provenance, each change has the interceptor, its point and the values."""
    changes = (await root_of(recorded_order("values")))["changes"]
    found = {(change["by"], change["point"], change["path"]): change for change in changes}
    edited = found["CompanyRules", "before_tool_use", "call.arguments.to"]
    assert (edited["step"], edited["before"], edited["after"]) == (2, '"ada@example.com"', '"test@example.com"')
    assert found["HideAccounts", "after_tool_use", "execution.value.account"]["after"] == '"***"'
    assert len(changes) == len(found) == 5


async def test_a_request_is_that_of_the_record() -> None:
    """An inference refers to what was sent: prompt, tools, and the messages by their places in the table."""
    root = await root_of(recorded_order())
    third = root["inferences"][2]
    settings = root["settings"][third["settings"]]
    assert len(root["settings"]) == 1
    assert settings["system_prompt"] == PROMPT
    assert [each["name"] for each in settings["tools"]][:2] == ["stock", "price"]
    assert third["messages"] == [[0, 3]]
    assert [root["messages"][index]["role"] for index in range(4)] == ["user", "assistant", "user", "assistant"]
    assert third["requests"] == 2
    assert third["ended_at"] - third["started_at"] == 1600
    assert third["response"][0] == {"type": "text", "text": "Now I pay."}


class WaitAndTryAgain(Interceptor):
    """Waits two seconds before it sends a request again."""

    async def around_inference(self, point: AroundInference, proceed: Proceed[InferenceResponse]) -> InferenceResponse:
        try:
            return await proceed()
        except ProviderUnavailable:
            await asyncio.sleep(2)
            return await proceed()


async def _record_retries(model: CanInfer) -> MemoryJournal:
    journal = MemoryJournal()
    layers, clock = [WaitAndTryAgain()], LoopClock()
    await asyncio.sleep(1)
    await AgentLoop.for_model(model, interceptors=layers, journal=journal, clock=clock).execute(
        "Hi.", execution_id=ORDER
    )
    return journal


def test_an_inference_has_its_start_and_the_attempts_that_failed() -> None:
    """Each has the time at which it failed, and the time that was waited after it, which is no part of the attempt."""
    away = ProviderUnavailable("the provider is away")
    journal = run_in_virtual_time(_record_retries(SlowModel(away, "Hello.")))
    execution = asyncio.run(root_of(journal))
    (inference,) = execution["inferences"]
    start = execution["started_at"]
    assert (inference["started_at"] - start, inference["ended_at"] - start) == (0, 3600)
    (attempt,) = inference["attempts"]
    assert (attempt["ended_at"] - start, attempt["delay"], attempt["instead"]) == (800, 2000, "")
    assert attempt["error"]["type"] == "ProviderUnavailable"
    # Of the last attempt there is the error of the inference.
    failing = run_in_virtual_time(_record_retries(SlowModel(away, away)))
    (failed,) = asyncio.run(root_of(failing))["inferences"]
    assert len(failed["attempts"]) == 1
    assert failed["error"]["message"] == "the provider is away"


def test_an_attempt_names_the_model_that_was_asked_instead() -> None:
    """After a fallback, the attempt of the first model is among those that failed."""
    first, second = SlowModel(ProviderUnavailable("away")), SlowModel("Hello.")
    journal = run_in_virtual_time(_record_retries(FallbackInference([first, second])))
    (inference,) = asyncio.run(root_of(journal))["inferences"]
    assert [(each["error"]["message"], each["instead"]) for each in inference["attempts"]] == [
        ("away", "ScriptedInference(1 line)")
    ]
    assert inference["ended_at"] - inference["attempts"][0]["ended_at"] == 800


async def test_a_journal_without_starts_of_inferences_is_shown() -> None:
    """In records of earlier versions an inference has no start and no attempts: it starts when what preceded it ended."""
    head = await recorded_order().head(ORDER)
    records: list[JournalRecord] = []
    assert head is not None
    for record in await recorded_order().read(ORDER):
        body = parse_json(record.body)
        former = {name: value for name, value in body.items() if name not in {"started_at", "failed_attempts"}}
        text, previous = format_json(former).decode(), records[-1].hash if records else ""
        records.append(chain_record(ORDER, record.sequence, record.kind, text, at=record.at, previous_hash=previous))
    journal = MemoryJournal()
    await append_claimed(journal, evolve(head, last_hash=records[-1].hash), records)
    former, current = await root_of(journal), await root_of(recorded_order())
    assert [each["attempts"] for each in former["inferences"]] == [[]] * len(current["inferences"])
    assert [each["ended_at"] for each in former["inferences"]] == [each["ended_at"] for each in current["inferences"]]
    for inference in former["inferences"]:
        assert former["started_at"] <= inference["started_at"] < inference["ended_at"]


async def test_costs_follow_the_prices() -> None:
    """The cost of each inference is that of its tokens, cached ones included; that of an unknown model is not known."""
    prices = PriceTable({"gpt-5": Price(input=1.0, output=10.0, cached_input=0.1)})
    root, agent = (await trace_of(recorded_order(), prices=prices))["executions"]
    assert root["inferences"][1]["cost"] == pytest.approx((500 * 1.0 + 900 * 0.1 + 90 * 10.0) / 1e6)
    assert root["cost"] == pytest.approx(sum(each["cost"] for each in root["inferences"]))
    other = await trace_of(recorded_order(), prices=PriceTable({"other": Price(input=1.0, output=1.0)}))
    assert other["executions"][0]["cost"] is None
    assert agent["cost"] is not None


async def test_an_approval_has_who_decided() -> None:
    """A call that waited has its decision, and the marks tell when it was suspended, decided and resumed."""
    root = await root_of(recorded_order())
    decided = calls_of(root)["3/0"]["decisions"]
    assert [(each["kind"], each["principal"]) for each in decided] == [("approve", "bob")]
    marks = [(mark["kind"], mark["principal"]) for mark in root["marks"]]
    assert marks[3:6] == [("suspended", ""), ("decision", "bob"), ("resumed", "")]
    assert root["waited"] == 36_300


async def test_a_crash_shows_as_doubt_and_downtime() -> None:
    """A call with an effect that was interrupted is in doubt, and the recovery has the time without a process."""
    root = await root_of(recorded_order())
    call = calls_of(root)["4/0"]
    assert (call["status"], call["may_have_run"], len(call["starts"])) == ("in_doubt", True, 1)
    assert [mark["downtime"] for mark in root["marks"] if mark["kind"] == "recovered"] == [6300]


async def test_messages_that_were_sent_are_in_the_conversation_once() -> None:
    """A message that a step took is one entry of the table, for its request and for the conversation."""
    root = await root_of(recorded_order())
    texts = [message["parts"][0].get("text") for message in root["messages"]]
    assert texts.count("In green, if there is one.") == 1
    grown: list[int] = []
    for change in root["conversation"]:
        grown[change["keep"] :] = [index for first, last in change["add"] for index in range(first, last + 1)]
    assert grown == list(range(len(root["messages"])))


async def test_a_waiting_call_has_what_a_decision_needs() -> None:
    """A suspended call has its text, its digest and its reason, and the execution is suspended."""
    journal = await recorded_order().after_crash(_count_until(recorded_order(), "execution_suspended"))
    root = await root_of(journal)
    call = calls_of(root)["3/0"]
    assert (root["status"], call["status"], call["pending"]["reason"]) == (
        "suspended",
        "waiting",
        "payments need a person",
    )
    state = await journal.state(ORDER)
    assert call["pending"]["digest"] == state.pending[0].digest
    assert call["pending"]["rendering"] == state.pending[0].rendering
    assert root["steps"][-1]["status"] == "suspended"


async def test_an_interrupted_execution_says_so() -> None:
    """An execution whose process has died is interrupted; its last call has a start and no outcome."""
    journal = await recorded_order().after_crash(_count_until(recorded_order(), "call_intent", last=True))
    root = await root_of(journal)
    assert root["status"] == "interrupted"
    assert calls_of(root)["4/0"]["status"] == "running"
    assert root["steps"][-1]["status"] == "open"


def _count_until(journal: CrashableJournal, kind: str, *, last: bool = False) -> int:
    appended = journal.appended
    numbers = [
        number for number, record in enumerate(appended, 1) if record.kind == kind and record.execution_id == ORDER
    ]
    return int(numbers[-1 if last else 0])


async def test_large_integers_keep_their_digits() -> None:
    """An id that JavaScript would round is a text, at any depth; other values stay as they are."""

    @tool(effect="pure")
    def find() -> dict[str, object]:
        """Find."""
        return {"id": 2**60 + 1, "list": [{"id": -(2**60) - 1}, 7, True, 1.5], "size": 2**53 - 1}

    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "find", "{}"), "Done."), tools=[find], journal=journal)
    await loop.execute("Go.", execution_id="large")
    call = (await trace_of(journal, "large"))["executions"][0]["calls"][0]
    assert call["value"] == {
        "id": "1152921504606846977",
        "list": [{"id": "-1152921504606846977"}, 7, True, 1.5],
        "size": 2**53 - 1,
    }


async def test_masked_secrets_stay_masked() -> None:
    """What a journal masks is not in its traces, and the execution says that something is."""
    journal = MemoryJournal(secrets=["sk-12345678"])
    model = ScriptedInference(ToolCall("1", "look", '{"number": 1}'), "The key is sk-12345678.")
    await AgentLoop.for_model(model, tools=[look], journal=journal).execute("Use sk-12345678.", execution_id="masked")
    trace = await trace_of(journal, "masked")
    assert b"sk-12345678" not in format_json(trace)
    assert trace["executions"][0]["is_masked"]
    assert [each["is_masked"] for each in trace["executions"][0]["inferences"]][-1]


async def test_an_unknown_execution_is_an_error() -> None:
    """There is no empty trace for an id that nothing has."""
    with pytest.raises(UnknownExecution, match="nobody"):
        await build_trace(MemoryJournal(), "nobody")


# --- changed conversations ----------------------------------------------------------------------------------------------


async def test_a_request_that_leaves_messages_out_names_those_that_it_has() -> None:
    """A window of the conversation is ranges of the same table, and no copy of messages."""
    journal = MemoryJournal()
    await _stepping(journal, 6, compiler=SlidingWindow(4)).execute("Go.", execution_id="windowed")
    root = (await trace_of(journal, "windowed"))["executions"][0]
    assert [each["messages"] for each in root["inferences"]][3:5] == [[[0, 3]], [[0, 0], [4, 4]]]
    assert len(root["messages"]) == 8


async def test_a_mode_that_rewrites_requests_has_a_rendering() -> None:
    """Where the mode changes how tools are offered, the inference refers to the form that the model receives."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(
        ScriptedInference('{"answer": 1}', "Done."), tools=[look], mode="structured", journal=journal
    )
    await loop.execute("Go.", execution_id="rewritten")
    root = (await trace_of(journal, "rewritten"))["executions"][0]
    assert root["inferences"][0]["rendering"] == 0
    assert "request" in root["renderings"][0]


async def test_history_of_earlier_executions_holds_its_calls() -> None:
    """Calls of earlier turns are shown within their messages, since this execution did not make them."""
    journal = MemoryJournal()
    loop = _stepping(journal, 1)
    state = await loop.execute("Go.", execution_id="turn-1")
    await loop.execute(state.with_message("Again."), execution_id="turn-2")
    root = (await trace_of(journal, "turn-2"))["executions"][0]
    past = root["messages"][1]["parts"][0]
    assert (past["key"], past["name"], past["text"]) == ("", "look", "seen 1")
    assert {call["key"] for call in root["calls"]} == {"turn-2/1/0"}


async def test_a_fork_has_the_steps_of_its_source() -> None:
    """A fork shows where it comes from, and the calls of the steps that it starts with."""
    journal = MemoryJournal()
    loop = _stepping(journal, 2)
    await loop.execute("Go.", execution_id="source")
    fork = await journal.fork("source", 1)
    await loop.recover(fork)
    root = (await trace_of(journal, fork))["executions"][0]
    assert root["forked_from"] == {"execution_id": "source", "step": 1, "effects": "reuse"}
    assert [step["number"] for step in root["steps"]] == [1, 2, 3]
    assert [call["key"] for call in root["calls"]] == ["source/1/0", f"{fork}/2/0"]


@tool(effect="pure")
def look(number: int = 0) -> str:
    """Look."""
    return f"seen {number}"


def _stepping(journal: MemoryJournal, steps: int, **parts: Any) -> AgentLoop:
    """Return a loop that makes one call in each of some steps, and answers."""

    def respond(request: InferenceRequest) -> InferenceResponse | str:
        results = [exchange.execution.text for exchange in request.messages[-1].exchanges]
        number = int(results[0].removeprefix("seen ")) + 1 if results else 1
        if number > steps:
            return "Done."
        return InferenceResponse((ToolCall(f"call_{number}", "look", f'{{"number": {number}}}'),))

    model = ScriptedInference(*[respond] * (2 * steps + 2))
    return AgentLoop.for_model(model, tools=[look], journal=journal, max_steps=None, **parts)


# --- patches ------------------------------------------------------------------------------------------------------------


async def test_patches_add_up_to_the_whole_trace() -> None:
    """At every moment of a run, what a reader has, merged with the patch after its cursor, is the trace of that moment."""
    journal = recorded_order()
    grown: Any = None
    reader: TraceReader | None = None
    for count in range(1, len(journal.appended) + 1):
        now = await journal.after_crash(count)
        whole = await trace_of(now)
        grown = whole if grown is None else merge(grown, await trace_of(now, after=grown["cursor"]))
        reader = reader or TraceReader(now, ORDER)
        reader._journal = now
        await reader.update()
        assert parse_json(format_json(reader.document())) == whole
        assert grown == whole


async def test_a_patch_without_news_has_no_entries() -> None:
    """After its own cursor, a trace has nothing but how the execution stands."""
    whole = await trace_of(recorded_order())
    patch = await trace_of(recorded_order(), after=whole["cursor"])
    assert patch["is_patch"]
    assert [each["id"] for each in patch["executions"]] == [ORDER]
    assert all(
        value == [] for name, value in patch["executions"][0].items() if name in {"steps", "calls", "messages", "marks"}
    )


async def test_a_deleted_execution_is_not_shown_with_the_next_one_of_its_id() -> None:
    """A reader that goes on when an id is used again has the new execution, and no agent that served the old one."""
    journal = MemoryJournal()
    helper = AgentLoop.for_model(ScriptedInference("Helped.")).as_tool("helper", "Help.")
    model = ScriptedInference(ToolCall("1", "helper", '{"task": "Help."}'), "Done.")
    await AgentLoop.for_model(model, tools=[helper], journal=journal).execute("Go.", execution_id="job")
    reader = TraceReader(journal, "job")
    await reader.update()
    assert [each["id"] for each in reader.document()["executions"]] == ["job", "job/1/0/agent"]
    await journal.delete("job")
    await AgentLoop.for_model(ScriptedInference("Done."), journal=journal).execute("Go again.", execution_id="job")
    await reader.update()
    assert parse_json(format_json(reader.document())) == await trace_of(journal, "job")
    assert [each["input"] for each in reader.document()["executions"]] == ["Go again."]


@pytest.mark.parametrize("cursor", ["x", "1;2", "-1", "1;2/0/agent:x", "٣", "1" * 5000])
async def test_what_is_not_a_cursor_is_refused(cursor: str) -> None:
    """A cursor is taken as it was given out, and nothing else."""
    with pytest.raises(ConfigurationError, match="cursor"):
        await build_trace(recorded_order(), ORDER, after=cursor)


async def test_a_trace_grows_with_its_steps_and_not_faster() -> None:
    """A step adds the same number of bytes early and late: nothing is stored twice."""
    sizes = []
    for steps in (20, 60, 100):
        journal = MemoryJournal()
        await _stepping(journal, steps).execute("Go.", execution_id="long")
        sizes.append(len(format_json(await build_trace(journal, "long"))))
    assert (sizes[2] - sizes[1]) / (sizes[1] - sizes[0]) == pytest.approx(1, abs=0.05)
    assert (sizes[2] - sizes[1]) / 40 < 2500


# --- the types ----------------------------------------------------------------------------------------------------------


def typescript_interfaces() -> dict[str, set[str]]:
    text = re.sub(r"/\*.*?\*/", "", VIEWER_TYPES.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"//.*", "", text)
    found = {}
    for name, body in re.findall(r"export interface (\w+) \{(.*?)\n?\}(?=\s*(?:export|$))", text, re.DOTALL):
        flat = re.sub(r"\{[^{}]*\}", "object", body)
        found[name] = set(re.findall(r"(\w+)\??:", flat))
    return found


@pytest.mark.skipif(not VIEWER_TYPES.exists(), reason="this distribution does not have the sources of the viewer")
def test_the_viewer_knows_the_same_types() -> None:
    """Each interface of the viewer has the fields of the type of the same name here."""
    interfaces = typescript_interfaces()
    known = {name: set(get_type_hints(kind)) for name, kind in vars(document).items() if is_typeddict(kind)}
    shared = interfaces.keys() & known.keys()
    assert len(shared) >= 18
    assert {name: interfaces[name] for name in shared} == {name: known[name] for name in shared}


async def test_every_entry_has_the_fields_of_its_type() -> None:
    """No field of a document is missing in its type, and none of the type in the document."""
    _check(document.Trace, await trace_of(recorded_order()))
    _check(document.Trace, await trace_of(recorded_order("values")))


def _check(kind: Any, value: Any) -> None:
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        assert set(value) == set(hints), kind
        for name, hint in hints.items():
            _check(hint, value[name])
    elif get_origin(kind) is list:
        for item in value:
            _check(get_args(kind)[0], item)
    elif value is not None and (options := [each for each in get_args(kind) if is_typeddict(each)]):
        # The parts of messages are told apart by their fields.
        assert any(set(value) == set(get_type_hints(each)) for each in options), value
