"""AG-UI, the protocol between agents and front ends (https://docs.ag-ui.com, version 1.0): its events, and its requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from agentloop.durable.fold import state_at
from agentloop.models.text_calls.text_buffer import TextBuffer
from agentloop.service.server.access import Principal, RequestRefused, Scope
from agentloop.service.server.operations import (
    MAX_DECISIONS,
    MAX_PARTS,
    Operations,
    check_count,
    check_values,
    read_decision,
)
from agentloop.service.server.record_events import JsonDict, ServerEvent
from agentloop.values.decisions import Decision
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.records import ExecutionHead, outer_key
from agentloop.values.steps import ExecutionStatus

PROTOCOL_VERSION = "1.0"

_ANSWER_SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["approve", "deny", "answer", "edit"]},
        "reason": {"type": "string"},
        "value": {},
        "arguments": {"type": "object"},
        "endorse": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["kind"],
}
"""The form of the answer to an interrupt; `true` and `false` are short for `approve` and `deny`."""


# --- events -----------------------------------------------------------------------------------------------------------


class AgUiEvents:
    """Translates the events of one execution, from its first, to the events of one run of AG-UI.

    The run begins after an event of the execution and ends with its end, or with its suspension.

    Args:
        thread_id: the id of the conversation, as the client names it.
        run_id: the id of the run, as the client names it.
        after: the sequence number after which events are written; the earlier ones set the state of the translation.
        is_new: whether the run begins there, rather than being followed again from there.
    """

    def __init__(self, thread_id: str, run_id: str, after: int = 0, *, is_new: bool = True) -> None:
        self.is_over: bool = False
        self._run = {"threadId": thread_id, "runId": run_id}
        self._after = after
        self._has_begun = not is_new
        self._step = 0
        self._message = ""  # the id of the message that is open
        # The id of the message that holds the calls of the step: its text, if nothing came after that.
        self._parent = ""
        self._written = TextBuffer()  # what was written of the text of the inference that runs
        self._attempt = 1
        self._texts = 0
        # What was written of a step: it is not repeated when the step ends, also after a suspension.
        self._shown: JsonDict = {"step": 0, "text": "", "reasoning": ""}
        self._calls: set[str] = set()
        self._results: set[str] = set()

    def translate(self, event: ServerEvent) -> list[JsonDict]:
        """Return the events of AG-UI for an event; none for one before the run."""
        translated = list(self._translate(event))
        if event.sequence and event.sequence <= self._after:
            self.is_over = False
            return []
        if not self._has_begun:
            self._has_begun = True
            translated.insert(0, {"type": "RUN_STARTED", **self._run, "protocolVersion": PROTOCOL_VERSION})
        return translated

    def _translate(self, event: ServerEvent) -> Iterator[JsonDict]:
        data = event.data
        match event.type:
            case "text_delta":
                yield from self._begin_step(data["step"])
                yield from self._write_delta(data["text"], data["attempt"], event.offset)
            case "inference_completed":
                yield from self._begin_step(data["step"])
                yield from self._end_inference(data)
            case "inference_failed":
                yield from self._end_text()
                self._forget_text()
            case "call_started":
                yield from self._begin_step(data["step"])
                yield from self._begin_call(data)
            case "call_ended":
                yield from self._begin_step(data["step"])
                # What interceptors make of an outcome is in the step.
                yield from self._begin_call(data) if data.get("is_provisional") else self._end_call(data)
            case "step_completed":
                yield from self._complete_step(data)
            case "execution_suspended":
                yield from self._suspend(data)
            case "execution_ended":
                yield from self._end(data)
            case _:
                return

    # --- steps and texts ----------------------------------------------------------------------------------------

    def _begin_step(self, step: int) -> Iterator[JsonDict]:
        if step != self._step:
            yield from self._end_step()
            self._step, self._parent = step, ""
            if step != self._shown["step"]:
                self._shown = {"step": step, "text": "", "reasoning": ""}
            yield {"type": "STEP_STARTED", "stepName": f"step {step}"}

    def _end_step(self) -> Iterator[JsonDict]:
        yield from self._end_text()
        self._forget_text()
        if self._step:
            yield {"type": "STEP_FINISHED", "stepName": f"step {self._step}"}
            self._step = 0

    def _write_delta(self, text: str, attempt: int, offset: int) -> Iterator[JsonDict]:
        if attempt != self._attempt or not offset:  # what an earlier attempt, or process, wrote does not count
            yield from self._end_text()
            self._forget_text(attempt)
        if offset == len(
            self._written.text
        ):  # else the pieces before it are missing, and the record has the whole text
            yield from self._write(text)

    def _write(self, text: str) -> Iterator[JsonDict]:
        if not text:
            return
        if not self._message:
            self._message = self._parent = self._new_message()
            yield {"type": "TEXT_MESSAGE_START", "messageId": self._message, "role": "assistant"}
        self._written.append(text)
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._message, "delta": text}

    def _end_text(self) -> Iterator[JsonDict]:
        if self._message:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._message}
            self._message = ""

    def _forget_text(self, attempt: int = 1) -> None:
        self._attempt, self._written = attempt, TextBuffer()

    def _new_message(self) -> str:
        self._texts += 1
        return f"{self._run['runId']}/message/{self._texts}"

    def _end_inference(self, data: JsonDict) -> Iterator[JsonDict]:
        if data.get("purpose"):  # of an interceptor, such as a guardrail
            return
        if data.get("is_masked") or (data.get("is_provisional") and not self._written.text):
            return  # what was masked, or what the interceptors make of it, is in the step
        yield from self._show(data)

    def _show(self, data: JsonDict) -> Iterator[JsonDict]:
        """Write what a model has written, as far as it was not written yet."""
        reasoning, text = data.get("reasoning", ""), data.get("text", "")
        if reasoning and reasoning != self._shown["reasoning"]:
            message_id = self._new_message()
            yield {"type": "REASONING_START", "messageId": message_id}
            yield {"type": "REASONING_MESSAGE_START", "messageId": message_id, "role": "reasoning"}
            yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": message_id, "delta": reasoning}
            yield {"type": "REASONING_MESSAGE_END", "messageId": message_id}
            yield {"type": "REASONING_END", "messageId": message_id}
        if not text.startswith(self._written.text):
            yield from self._end_text()
            self._forget_text()
        if self._written.text or text != self._shown["text"]:
            yield from self._write(text[len(self._written.text) :])
        yield from self._end_text()
        self._forget_text()
        self._shown |= {"text": text, "reasoning": reasoning}

    # --- calls --------------------------------------------------------------------------------------------------

    def _begin_call(self, call: JsonDict) -> Iterator[JsonDict]:
        key = call["key"]
        if key in self._calls or outer_key(key):  # calls of programs are inside of those that front ends know
            return
        self._calls.add(key)
        yield from self._end_text()
        # Front ends append a call to its parent if that is the last message, and else begin a message with this id.
        self._parent = self._parent or self._new_message()
        start = {"type": "TOOL_CALL_START", "toolCallId": key, "toolCallName": call["name"]}
        yield {**start, "parentMessageId": self._parent}
        if call["arguments"]:
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": key, "delta": call["arguments"]}
        yield {"type": "TOOL_CALL_END", "toolCallId": key}

    def _end_call(self, call: JsonDict) -> Iterator[JsonDict]:
        key = call["key"]
        if key in self._results or outer_key(key):
            return
        yield from self._begin_call(call)
        self._results.add(key)
        self._parent = ""
        yield {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{key}/result",
            "toolCallId": key,
            "content": call["text"],
            "role": "tool",
        }

    def _complete_step(self, data: JsonDict) -> Iterator[JsonDict]:
        yield from self._begin_step(data["step"])
        yield from self._show(data)
        for call in data["calls"]:
            yield from self._end_call(call)
        yield from self._end_step()

    # --- ends ---------------------------------------------------------------------------------------------------

    def _suspend(self, data: JsonDict) -> Iterator[JsonDict]:
        waiting = [call for call in data["pending"] if not call["waits_for"]]
        yield from self._begin_step(data["step"])
        yield from self._show(data)
        for call in data["calls"]:
            yield from self._end_call(call)
        for call in waiting:
            yield from self._begin_call(call)
        yield from self._end_step()
        interrupts = [_interrupt(each, call) for call in waiting for each in (call["inner"] or [call])]
        yield {"type": "RUN_FINISHED", **self._run, "outcome": {"type": "interrupt", "interrupts": interrupts}}
        self.is_over = True

    def _end(self, data: JsonDict) -> Iterator[JsonDict]:
        yield from self._end_step()
        if data["status"] == "failed":
            error = data["error"] or {"type": "Error", "message": "the execution failed"}
            yield {"type": "RUN_ERROR", "message": error["message"], "code": error["type"]}
        else:
            outcome = "success" if data["status"] == "completed" else "cancelled"
            result = {"text": data["text"], "status": data["status"], "stop": data["stop"]}
            yield {"type": "RUN_FINISHED", **self._run, "outcome": {"type": outcome}, "result": result}
        self.is_over = True


def _interrupt(call: JsonDict, outer: JsonDict) -> JsonDict:
    return {
        "id": f"{call['key']}#{call['digest']}",
        "reason": "tool_approval",
        # What a front end shows is all that a person may see of the call.
        "message": "\n".join(filter(None, [call["reason"], call["rendering"]])),
        "toolCallId": outer["key"],
        "responseSchema": _ANSWER_SCHEMA,
        "metadata": {
            "key": call["key"],
            "name": call["name"],
            "arguments": call["arguments"],
            "decided_after": call["decided_after"],
            "origins": call["origins"],
            "endorsable": call["endorsable"],
            "rendering": call["rendering"],
        },
    }


# --- requests ---------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AgUiRun:
    """A run that a request of AG-UI has started.

    Attributes:
        execution_id: its execution.
        thread_id: the conversation, as the client names it.
        run_id: the run, as the client names it.
        after: the sequence number of the execution after which the run begins.
    """

    execution_id: str
    thread_id: str
    run_id: str
    after: int = 0


async def start_run(
    operations: Operations, principal: Principal, body: Any, headers: Mapping[str, str] = EMPTY_OBJECT
) -> AgUiRun:
    """Start or resume an execution as a `RunAgentInput` asks for.

    The conversation is the recorded one of the thread: of the messages in the request only the last one counts, which is the
    user's. Tools of the front end, its state and its context are not used.

    Raises:
        RequestRefused: the request has mistakes, or the last run of the thread has not ended.
        DecisionError: an answer is not about a pending call.
        JournalConflict: another request was faster.
    """
    match body:
        case {"threadId": str(thread_id), "runId": str(run_id), "messages": list(messages)} if thread_id and run_id:
            pass
        case _:
            raise RequestRefused(422, "invalid_body", "a RunAgentInput has `threadId`, `runId` and `messages`")
    agent_id = principal.execution_id(thread_id)
    journal = operations.executions.journal
    # By number: the newest by time is another one after the clock was set back.
    head = max(await journal.list(agent_id=agent_id), key=lambda head: head.number, default=None)
    execution_id = principal.execution_id(run_id)
    if await _is_taken(operations, execution_id, agent_id):
        execution_id = principal.execution_id(f"{run_id}~{hashlib.sha256(thread_id.encode()).hexdigest()[:12]}")
    run = AgUiRun(execution_id=execution_id, thread_id=thread_id, run_id=run_id)
    if body.get("resume"):
        return await _resume(operations, principal, head, body["resume"], run)
    principal.require(Scope.START)
    is_same = head is not None and head.execution_id == run.execution_id
    if head is not None and not head.status.is_terminal and not is_same:
        raise RequestRefused(409, "not_ended", f"the last run of the thread has not ended: it is {head.status.value}")
    state = None if head is None or is_same else await state_at(journal, head.execution_id, agent_id=agent_id)
    agent = _only_agent(operations)
    message = operations.labeled(principal, agent, _last_message(messages))
    request = {"thread": thread_id, "input": message.text}
    await operations.start_state(principal, agent, message, run.execution_id, state, request, agent_id, headers)
    return run


async def _is_taken(operations: Operations, execution_id: str, agent_id: str) -> bool:
    """Return whether an execution is of another thread: front ends may number the runs of each thread from the same id on."""
    head = await operations.executions.journal.head(execution_id)
    state = await operations.executions.unrecorded_state(execution_id) if head is None else None
    found = head or state
    return found is not None and found.agent_id != agent_id


def _only_agent(operations: Operations) -> str:
    agents = tuple(operations.executions.agents)
    if len(agents) != 1:
        problem = f"a RunAgentInput names no agent, so it needs a server with one; this one has {len(agents)}"
        raise RequestRefused(409, "no_single_agent", problem)
    return agents[0]


async def _resume(
    operations: Operations, principal: Principal, head: ExecutionHead | None, answers: Any, run: AgUiRun
) -> AgUiRun:
    principal.require(Scope.DECIDE)
    if head is None or head.status is not ExecutionStatus.SUSPENDED:
        raise RequestRefused(409, "not_suspended", "no run of this thread waits for an answer")
    await operations.resume(head, dict(_decisions(answers, principal)))
    return AgUiRun(execution_id=head.execution_id, thread_id=run.thread_id, run_id=run.run_id, after=head.record_count)


def _decisions(answers: Any, principal: Principal) -> Iterator[tuple[str, Decision]]:
    answers = answers if isinstance(answers, list) else []
    check_count(answers, MAX_DECISIONS, "invalid_decision", "answers")
    check_values(answers, "invalid_decision", "`resume`")
    for entry in answers:
        match entry:
            case {"interruptId": str(interrupt), "status": "resolved" | "cancelled" as status}:
                key, _, digest = interrupt.rpartition("#")
                payload = entry.get("payload") if status == "resolved" else {"kind": "deny", "reason": "cancelled"}
                yield key, read_decision(key, {**_answer(payload), "digest": digest}, principal)
            case _:
                raise RequestRefused(422, "invalid_body", "an entry of `resume` has `interruptId` and `status`")


def _answer(payload: Any) -> Mapping[str, Any]:
    match payload:
        case bool():
            return {"kind": "approve" if payload else "deny"}
        case {"approved": bool(is_approved)}:
            return {"kind": "approve" if is_approved else "deny"}
        case {"kind": str()}:
            return dict(payload)
        case _:
            raise RequestRefused(
                422, "invalid_decision", "a payload is true, false, or an object of the `responseSchema`"
            )


def _last_message(messages: Sequence[Any]) -> Message:
    match messages[-1] if messages else None:
        case {"role": "user", "content": str(text)} if text:
            return Message.user(text)
        case {"role": "user", "content": list(parts)} if parts:
            check_count(parts, MAX_PARTS, "invalid_message", "parts in the message")
            return Message.user(*[_text_part(part) for part in parts])
        case _:
            raise RequestRefused(422, "invalid_message", "the last message is that of the user, with a text")


def _text_part(part: Any) -> Text:
    match part:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case _:
            raise RequestRefused(422, "invalid_message", "only text is taken as the content of a message")
