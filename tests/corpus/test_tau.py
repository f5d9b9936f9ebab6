"""The tasks and conversations of tau-bench, executed by the loop and encoded in every wire format."""

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
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    from_json,
    to_json,
)
from agentloop.drivers import ScenarioStep
from agentloop.events import ToolCallCompleted
from agentloop.models import LLMConfig, wire_format
from agentloop.models.wire_formats.openai_chat.history import export_messages, import_messages
from agentloop.tools import SchemaValidator
from agentloop.values import Effect, ExecutionStatus, InferenceRequest, ToolExecution, ToolSpec, ToolStatus, thaw
from tests.corpus.pairing import Mark, marks, pairing_error
from tests.corpus.recorded_tools import RecordedCall, RecordedTool
from tests.generated import part_of

FORMATS = ("anthropic-messages", "gemini", "ollama", "openai-chat", "openai-responses")
Batches = Sequence[Sequence[RecordedCall]]
Record = dict[str, Any]


def rows(corpus: Path, name: str) -> list[Record]:
    path = corpus / "executor" / name
    if not path.exists():
        pytest.skip(f"the corpus has no {name}")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def tool_definitions(corpus: Path, domain: str) -> list[Record]:
    path = corpus / "executor" / "tau_tools.json"
    if not path.exists():
        pytest.skip("the corpus has no tools of tau-bench")
    return [tool["function"] for tool in json.loads(path.read_text("utf-8"))[domain]]


def tools_of(definitions: Sequence[Record], batches: Batches) -> tuple[list[RecordedTool], list[Any]]:
    used: list[Any] = []
    return [RecordedTool(definition, batches, used) for definition in definitions], used


def actions_of(task: Record) -> list[RecordedCall]:
    return [RecordedCall(action["name"], action["arguments"], action["result"]) for action in task["actions"]]


def calls_of(message: Record) -> list[ToolCall]:
    return [
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]


def assert_as_recorded(executions: Sequence[ToolExecution], recorded: Sequence[RecordedCall]) -> None:
    """Check that outcomes match the recording: the same calls, order, results and failures."""
    assert [(each.name, thaw(each.arguments)) for each in executions] == [
        (call.name, call.arguments) for call in recorded
    ]
    results = [each.error_message if each.has_error else each.value for each in executions]
    assert results == [call.result for call in recorded]
    statuses = [ToolStatus.FAILED if call.failed else ToolStatus.SUCCEEDED for call in recorded]
    assert [each.status for each in executions] == statuses


def assert_round_trip(state: AgentState) -> None:
    """Check that a state loads equal from its JSON, and is saved as the same bytes again."""
    saved = to_json(state)
    loaded = from_json(saved, AgentState)
    assert loaded == state
    assert to_json(loaded) == saved


def assert_used(used: Sequence[Any], batches: Batches) -> None:
    """Check that every recorded call ran once, at its step and index, with the recorded arguments."""
    expected = [
        ((step, index), call.name, call.arguments)
        for step, batch in enumerate(batches, 1)
        for index, call in enumerate(batch)
    ]
    assert sorted(used, key=lambda entry: entry[0]) == expected


def test_every_recorded_call_satisfies_the_schema_of_its_tool(corpus: Path) -> None:
    """The schemas accept all recorded arguments of tasks and conversations."""
    validators = {
        (domain, definition["name"]): SchemaValidator(definition["parameters"])
        for domain in ("airline", "retail")
        for definition in tool_definitions(corpus, domain)
    }
    tasks, conversations = rows(corpus, "tau_gold.jsonl"), rows(corpus, "tau_conversations.jsonl")
    calls = [(task["domain"], action.name, action.arguments) for task in tasks for action in actions_of(task)]
    for conversation in conversations:
        for message in conversation["messages"]:
            calls += [("airline", call.name, json.loads(call.arguments_json)) for call in calls_of(message)]
    problems = [(name, validators[domain, name].problems(arguments)) for domain, name, arguments in calls]
    assert [(name, reported) for name, reported in problems if reported] == []
    assert len(calls) > len(tasks)


def test_the_actions_of_a_task_run_one_step_after_the_other(corpus: Path) -> None:
    """With one action per step, outcomes match the recording, and the state survives a JSON round trip."""
    for task in part_of(rows(corpus, "tau_gold.jsonl")):
        recorded = actions_of(task)
        batches = [[action] for action in recorded]
        tools, used = tools_of(tool_definitions(corpus, task["domain"]), batches)
        steps = [ScenarioStep.tool_call(action.name, action.arguments) for action in recorded]
        loop = AgentLoop(ScriptedDriver(*steps, ScenarioStep.final("done")), tools, max_steps=None)
        state = loop.execute_sync(task["instruction"]).raise_for_status()
        assert_as_recorded([execution for step in state.steps for execution in step.executions], recorded)
        assert_used(used, batches)
        assert (state.final_text, state.tool_call_count) == ("done", len(recorded)), task["id"]
        assert_round_trip(state)


def test_the_actions_of_a_task_run_as_one_batch(corpus: Path) -> None:
    """With all actions in one response under the same call id, each has its own result, and events follow the call order."""
    for task in part_of(rows(corpus, "tau_gold.jsonl")):
        recorded = actions_of(task)
        if not recorded:
            continue
        tools, used = tools_of(tool_definitions(corpus, task["domain"]), [recorded])
        calls = [ToolCall("call_0", action.name, json.dumps(action.arguments)) for action in recorded]
        loop = AgentLoop(ToolCallingDriver(ScriptedInference(calls, "done")), tools)
        completed: list[ToolExecution] = []
        loop.on(ToolCallCompleted, partial(add_execution, completed))
        state = loop.execute_sync(task["instruction"]).raise_for_status()
        assert_as_recorded(state.steps[0].executions, recorded)
        assert_used(used, [recorded])
        assert completed == list(state.steps[0].executions)
        assert_round_trip(state)


def add_execution(completed: list[ToolExecution], event: ToolCallCompleted) -> None:
    completed.append(event.execution)


def executions_of(messages: Sequence[Message]) -> list[ToolExecution]:
    return [exchange.execution for message in messages for exchange in message.exchanges]


def results_after(messages: Sequence[Record], number: int) -> Iterator[str]:
    for message in messages[number + 1 :]:
        if message["role"] != "tool":
            return
        yield message["content"]


def turns_of(messages: Sequence[Record]) -> Iterator[tuple[Record, list[Record], Batches]]:
    """Yield each user message with the responses that followed it, and the recorded results of their calls."""
    question: Record = {}
    for role_is_user, group in groupby(enumerate(messages), key=lambda entry: entry[1]["role"] == "user"):
        numbered = list(group)
        if role_is_user:
            assert len(numbered) == 1
            question = numbered[0][1]
            continue
        answers = [(number, message) for number, message in numbered if message["role"] == "assistant"]
        batches = [
            [
                RecordedCall(call.name, json.loads(call.arguments_json), result)
                for call, result in zip(calls_of(message), results_after(messages, number), strict=True)
            ]
            for number, message in answers
        ]
        yield question, [message for _, message in answers], batches


def rerun(conversation: Record, definitions: Sequence[Record]) -> AgentState:
    """Run a conversation with one execution per user message, each continuing from the previous state."""
    state = AgentState.start()
    for question, answers, batches in turns_of(conversation["messages"]):
        tools, used = tools_of(definitions, batches)
        lines = [[*([each["content"]] if each["content"] else []), *calls_of(each)] for each in answers]
        is_incomplete = bool(answers[-1].get("tool_calls"))
        loop = AgentLoop(
            ToolCallingDriver(ScriptedInference(*lines)),
            tools,
            max_steps=len(lines) if is_incomplete else len(lines) + 1,
        )
        state = loop.execute_sync(state.with_message(question["content"]))
        assert state.status is (ExecutionStatus.STOPPED if is_incomplete else ExecutionStatus.COMPLETED), (
            state.explain()
        )
        assert_as_recorded(
            [execution for step in state.steps for execution in step.executions],
            [call for batch in batches for call in batch],
        )
        assert_used(used, batches)
    last = conversation["messages"][-1]
    return state.with_message(last["content"]) if last["role"] == "user" else state


def with_error_name(message: Record) -> Record:
    """Return a recorded message as agentloop formats it: failures start with the name of the error."""
    if message["role"] != "tool" or not message["content"].startswith("Error"):
        return message
    return {**message, "content": f"RecordedFailure: {message['content']}"}


def without_names(message: Record) -> Record:
    """Return a message without tool names and empty values, which not every source records."""
    return {key: value for key, value in message.items() if key != "name" and value is not None}


def test_a_conversation_exports_as_recorded(corpus: Path) -> None:
    """A conversation in one state exports the recorded messages again, with repeated call ids and with failures."""
    definitions = tool_definitions(corpus, "airline")
    repeating = failing = 0
    for conversation in part_of(rows(corpus, "tau_conversations.jsonl")):
        messages = conversation["messages"]
        state = rerun(conversation, definitions)
        executions = executions_of(state.messages)
        ids = [execution.call.id for execution in executions]
        repeating += len(set(ids)) < len(ids)
        failing += any(execution.has_error for execution in executions)
        assert len({execution.key for execution in executions}) == len(executions)
        exported = [without_names(message) for message in export_messages(state.messages)]
        assert exported == [without_names(with_error_name(message)) for message in messages], conversation["id"]
        assert_round_trip(state)
    assert repeating
    assert failing


# --- encoded requests ---------------------------------------------------------------------------------------------------


def encoded_marks(name: str, messages: Sequence[Message], system_prompt: str, specs: Sequence[ToolSpec]) -> list[Mark]:
    config = LLMConfig(model="any", base_url="http://localhost", wire_format=name)
    request = InferenceRequest(messages, system_prompt, specs)
    return marks(name, json.loads(wire_format(name).encode_request(request, config).body))


@pytest.mark.parametrize("name", FORMATS)
def test_an_imported_conversation_is_paired_in_every_format(corpus: Path, name: str) -> None:
    """In the encoded request of an imported conversation, calls are followed by their results, and none is lost or changed."""
    specs = [
        ToolSpec(definition["name"], definition["description"], definition["parameters"], Effect.EFFECT)
        for definition in tool_definitions(corpus, "airline")
    ]
    policy = (corpus / "executor" / "tau_airline_policy.md").read_text("utf-8")
    for conversation in rows(corpus, "tau_conversations.jsonl"):
        recorded = conversation["messages"]
        system_prompt, messages = import_messages([{"role": "system", "content": policy}, *recorded])
        assert system_prompt == policy
        encoded = encoded_marks(name, messages, system_prompt, specs)
        assert pairing_error(encoded) == "", conversation["id"]
        calls = [arguments for kind, _, arguments in encoded if kind == "call"]
        assert calls == [json.loads(call.arguments_json) for message in recorded for call in calls_of(message)]
        results = [result for kind, _, result in encoded if kind == "result"]
        assert results == [message["content"] for message in recorded if message["role"] == "tool"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_pairing_rule_can_fail(corpus: Path, name: str) -> None:
    """The rule reports a request without one result, and one with a late result."""
    conversations = rows(corpus, "tau_conversations.jsonl")
    recorded = next(each["messages"] for each in conversations if each["messages"][-1]["role"] == "user")
    encoded = encoded_marks(name, import_messages(recorded)[1], "", ())
    indexes = [index for index, mark in enumerate(encoded) if mark[0] == "result"]
    for index in indexes:
        without = [*encoded[:index], *encoded[index + 1 :]]
        assert pairing_error(without)
        assert pairing_error([*without, encoded[index]])
    assert indexes
