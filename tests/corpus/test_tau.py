"""The tasks and conversations of tau-bench, run through the loop and spelled for every wire format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    Message,
    ScenarioStep,
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    from_json,
    to_json,
)
from agentloop.events import ToolCallCompleted
from agentloop.inference import LLMConfig, wire_format
from agentloop.inference.wire_formats.openai_chat.history import export_messages, import_messages
from agentloop.tools import SchemaValidator
from agentloop.values import Effect, ExecutionStatus, InferenceRequest, ToolExecution, ToolSpec, ToolStatus, thaw
from tests.corpus.pairing import Mark, marks, unpaired
from tests.corpus.recorded_tools import RecordedCall, RecordedTool

FORMATS = ("anthropic-messages", "gemini", "ollama", "openai-chat", "openai-responses")
Batches = Sequence[Sequence[RecordedCall]]
Record = dict[str, Any]


def rows(corpus: Path, name: str) -> list[Record]:
    path = corpus / "executor" / name
    if not path.exists():
        pytest.skip(f"the corpus has no {name}")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def described_tools(corpus: Path, domain: str) -> list[Record]:
    path = corpus / "executor" / "tau_tools.json"
    if not path.exists():
        pytest.skip("the corpus has no tools of tau-bench")
    return [one["function"] for one in json.loads(path.read_text("utf-8"))[domain]]


def tools_of(described: Sequence[Record], batches: Batches) -> tuple[list[RecordedTool], list[Any]]:
    used: list[Any] = []
    return [RecordedTool(one, batches, used) for one in described], used


def actions_of(task: Record) -> list[RecordedCall]:
    return [RecordedCall(one["name"], one["arguments"], one["result"]) for one in task["actions"]]


def calls_of(message: Record) -> list[ToolCall]:
    return [
        ToolCall(one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in message.get("tool_calls") or ()
    ]


def assert_as_recorded(executions: Sequence[ToolExecution], recorded: Sequence[RecordedCall]) -> None:
    """Hold outcomes against the recording: same calls, same order, same results, failures as failures."""
    assert [(one.name, thaw(one.arguments)) for one in executions] == [(one.name, one.arguments) for one in recorded]
    told = [one.error_message if one.has_error else one.value for one in executions]
    assert told == [one.result for one in recorded]
    statuses = [ToolStatus.FAILED if one.failed else ToolStatus.SUCCEEDED for one in recorded]
    assert [one.status for one in executions] == statuses


def assert_round_trip(state: AgentState) -> None:
    """A state reads back equal, and is written again to the same bytes."""
    written = to_json(state)
    read = from_json(written, AgentState)
    assert read == state
    assert to_json(read) == written


def assert_used(used: Sequence[Any], batches: Batches) -> None:
    """Every recorded call ran once, in its place, with the recorded arguments."""
    expected = [
        ((step, place), one.name, one.arguments)
        for step, batch in enumerate(batches, 1)
        for place, one in enumerate(batch)
    ]
    assert sorted(used, key=lambda one: one[0]) == expected


def test_every_recorded_call_fits_the_schema_of_its_tool(corpus: Path) -> None:
    """The schemas accept what was recorded, in tasks and in conversations."""
    validators = {
        (domain, one["name"]): SchemaValidator(one["parameters"])
        for domain in ("airline", "retail")
        for one in described_tools(corpus, domain)
    }
    tasks, conversations = rows(corpus, "tau_gold.jsonl"), rows(corpus, "tau_conversations.jsonl")
    made = [(task["domain"], one.name, one.arguments) for task in tasks for one in actions_of(task)]
    for conversation in conversations:
        for message in conversation["messages"]:
            made += [("airline", call.name, json.loads(call.arguments_json)) for call in calls_of(message)]
    problems = [(name, validators[domain, name].problems(arguments)) for domain, name, arguments in made]
    assert [(name, found) for name, found in problems if found] == []
    assert len(made) > len(tasks)


def test_the_actions_of_a_task_run_one_step_after_the_other(corpus: Path) -> None:
    """Each action is a step of its own: outcomes are the calls in order with the recorded results, and the state reads back."""
    for task in rows(corpus, "tau_gold.jsonl"):
        recorded = actions_of(task)
        batches = [[one] for one in recorded]
        tools, used = tools_of(described_tools(corpus, task["domain"]), batches)
        steps = [ScenarioStep.tool_call(one.name, one.arguments) for one in recorded]
        loop = AgentLoop(ScriptedDriver(*steps, ScenarioStep.final("done")), tools, max_steps=None)
        state = loop.execute_sync(task["instruction"]).raise_for_failure()
        assert_as_recorded([one for step in state.steps for one in step.executions], recorded)
        assert_used(used, batches)
        assert (state.final_text, state.tool_call_count) == ("done", len(recorded)), task["id"]
        assert_round_trip(state)


def test_the_actions_of_a_task_run_as_one_batch(corpus: Path) -> None:
    """All actions in one answer, under one repeated call id: each has its own result, and listeners hear them in call order."""
    for task in rows(corpus, "tau_gold.jsonl"):
        recorded = actions_of(task)
        if not recorded:
            continue
        tools, used = tools_of(described_tools(corpus, task["domain"]), [recorded])
        calls = [ToolCall("call_0", one.name, json.dumps(one.arguments)) for one in recorded]
        loop = AgentLoop(ToolCallingDriver(ScriptedInference(calls, "done")), tools)
        heard: list[ToolExecution] = []
        loop.on(ToolCallCompleted, partial(note, heard))
        state = loop.execute_sync(task["instruction"]).raise_for_failure()
        assert_as_recorded(state.steps[0].executions, recorded)
        assert_used(used, [recorded])
        assert heard == list(state.steps[0].executions)
        assert_round_trip(state)


def note(heard: list[ToolExecution], event: ToolCallCompleted) -> None:
    heard.append(event.execution)


def executions_of(messages: Sequence[Message]) -> list[ToolExecution]:
    return [exchange.execution for message in messages for exchange in message.exchanges]


def results_after(messages: Sequence[Record], number: int) -> Iterator[str]:
    for message in messages[number + 1 :]:
        if message["role"] != "tool":
            return
        yield message["content"]


def turns_of(messages: Sequence[Record]) -> Iterator[tuple[Record, list[Record], Batches]]:
    """Yield each message of the user with the answers that followed it, and what their calls gave."""
    asked: Record = {}
    for role_is_user, group in groupby(enumerate(messages), key=lambda one: one[1]["role"] == "user"):
        numbered = list(group)
        if role_is_user:
            assert len(numbered) == 1
            asked = numbered[0][1]
            continue
        answers = [(number, message) for number, message in numbered if message["role"] == "assistant"]
        batches = [
            [
                RecordedCall(call.name, json.loads(call.arguments_json), result)
                for call, result in zip(calls_of(message), results_after(messages, number), strict=True)
            ]
            for number, message in answers
        ]
        yield asked, [message for _, message in answers], batches


def rerun(conversation: Record, described: Sequence[Record]) -> AgentState:
    """Run a conversation: an execution for each message of the user, each going on from the state before."""
    state = AgentState.start()
    for asked, answers, batches in turns_of(conversation["messages"]):
        tools, used = tools_of(described, batches)
        lines = [[*([one["content"]] if one["content"] else []), *calls_of(one)] for one in answers]
        cut_off = bool(answers[-1].get("tool_calls"))
        loop = AgentLoop(
            ToolCallingDriver(ScriptedInference(*lines)), tools, max_steps=len(lines) if cut_off else len(lines) + 1
        )
        state = loop.execute_sync(state.with_message(asked["content"]))
        assert state.status is (ExecutionStatus.STOPPED if cut_off else ExecutionStatus.COMPLETED), state.explain()
        assert_as_recorded([one for step in state.steps for one in step.executions], [c for b in batches for c in b])
        assert_used(used, batches)
    last = conversation["messages"][-1]
    return state.with_message(last["content"]) if last["role"] == "user" else state


def as_told(message: Record) -> Record:
    """Return a recorded message as agentloop tells it: a failure is told with the name of its error."""
    if message["role"] != "tool" or not message["content"].startswith("Error"):
        return message
    return {**message, "content": f"RecordedFailure: {message['content']}"}


def as_compared(message: Record) -> Record:
    return {key: value for key, value in message.items() if key != "name" and value is not None}


def test_a_conversation_runs_as_it_was_recorded(corpus: Path) -> None:
    """All turns through one growing state give the recorded messages again, also where call ids come back, and failures."""
    described = described_tools(corpus, "airline")
    repeating = failing = 0
    for conversation in rows(corpus, "tau_conversations.jsonl"):
        messages = conversation["messages"]
        state = rerun(conversation, described)
        executions = executions_of(state.messages)
        ids = [one.call.id for one in executions]
        repeating += len(set(ids)) < len(ids)
        failing += any(one.has_error for one in executions)
        assert len({one.key for one in executions}) == len(executions)
        exported = [as_compared(one) for one in export_messages(state.messages)]
        assert exported == [as_compared(as_told(one)) for one in messages], conversation["id"]
        assert_round_trip(state)
    assert repeating
    assert failing


# --- what is sent ---------------------------------------------------------------------------------------------------


def spelled(name: str, messages: Sequence[Message], system_prompt: str, specs: Sequence[ToolSpec]) -> list[Mark]:
    config = LLMConfig(model="any", base_url="http://localhost", wire_format=name)
    request = InferenceRequest(messages, system_prompt, specs)
    return marks(name, json.loads(wire_format(name).encode_request(request, config).body))


@pytest.mark.parametrize("name", FORMATS)
def test_an_imported_conversation_is_paired_in_every_format(corpus: Path, name: str) -> None:
    """Taken over from elsewhere, every call is followed by its result, and none is lost or changed on the way."""
    specs = [
        ToolSpec(one["name"], one["description"], one["parameters"], Effect.EFFECT)
        for one in described_tools(corpus, "airline")
    ]
    policy = (corpus / "executor" / "tau_airline_policy.md").read_text("utf-8")
    for conversation in rows(corpus, "tau_conversations.jsonl"):
        recorded = conversation["messages"]
        system_prompt, messages = import_messages([{"role": "system", "content": policy}, *recorded])
        assert system_prompt == policy
        found = spelled(name, messages, system_prompt, specs)
        assert unpaired(found) == "", conversation["id"]
        calls = [arguments for kind, _, arguments in found if kind == "call"]
        assert calls == [json.loads(call.arguments_json) for message in recorded for call in calls_of(message)]
        results = [told for kind, _, told in found if kind == "result"]
        assert results == [message["content"] for message in recorded if message["role"] == "tool"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_pairing_rule_can_fail(corpus: Path, name: str) -> None:
    """A request from which a result is taken, or in which one comes late, is found out."""
    conversations = rows(corpus, "tau_conversations.jsonl")
    recorded = next(one["messages"] for one in conversations if one["messages"][-1]["role"] == "user")
    found = spelled(name, import_messages(recorded)[1], "", ())
    places = [place for place, mark in enumerate(found) if mark[0] == "result"]
    for place in places:
        without = [*found[:place], *found[place + 1 :]]
        assert unpaired(without)
        assert unpaired([*without, found[place]])
    assert places
