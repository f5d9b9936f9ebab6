"""Every part of the loop in charge acts, whichever way a conversation comes to it: a table of parts and ways, one test for each cell.

The loop in charge is called billing, and the loop that is executed the desk. What a part does is compared with what it does in an
execution that billing itself starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, field, frozen

from agentloop import (
    AgentLoop,
    AgentState,
    CanInfer,
    Message,
    Permissions,
    RequireApproval,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    ToolExecutor,
    from_json,
    handoff_to,
    to_json,
    tool,
)
from agentloop.contracts import CanCompileMessages
from agentloop.durable import MemoryJournal, fork
from agentloop.errors import ExecutionError
from agentloop.interception import BeforeExecution, BeforeStep, StepLimit, at
from agentloop.policies import ToolCallLimit
from agentloop.policies.guardrails import Guardrails, Inspection, ReplaceAnswer
from agentloop.values import (
    Bounds,
    ExecutionStatus,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ToolStatus,
    approve,
)

INPUT = "BAD: pay me back"
LIMITED = "x" * 2000


@frozen
class Sum:
    """The answer of a typed loop."""

    total: int


@define(eq=False)
class World:
    """What happened.

    Attributes:
        requests: what the model of billing was sent.
        seen: which of its parts have acted.
        paid: how many calls of its tool succeeded, in the end.
        day: what its prompt depends on.
        blocks: whether its model does not answer the next request.
        is_asked: set when it does not.
    """

    requests: list[InferenceRequest] = field(factory=list)
    seen: list[str] = field(factory=list)
    day: int = 1
    blocks: bool = False
    paid: int = 0
    is_asked: asyncio.Event = field(factory=asyncio.Event)


class Billing(CanInfer):
    """The model of billing: it calls its tool once, or as often at a time as it is told to, and answers."""

    def __init__(self, world: World, answer: str, calls: int) -> None:
        self._world, self._answer, self._calls = world, answer, calls

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Call, or answer."""
        self._world.requests.append(request)
        if self._world.blocks:
            self._world.blocks = False
            self._world.is_asked.set()
            await asyncio.Event().wait()
        has_called = any(exchange.call.name == "refund" for exchange in request.messages[-1].exchanges)
        calls = [ToolCall(f"r{index}", "refund", "{}") for index in range(self._calls)]
        return await ScriptedInference(self._answer if has_called else calls).infer(request)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Yield the response."""
        yield await self.infer(request)


class NotedCompiler(CanCompileMessages):
    """Shows everything, and notes that it was asked."""

    def __init__(self, world: World) -> None:
        self._world = world

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return all messages."""
        self._world.seen.append("compiled")
        return state.messages


# --- the parts ------------------------------------------------------------------------------------------------------


@frozen
class Part:
    """A part of billing.

    Attributes:
        options: returns the parameters of billing that it consists of.
        shows: returns what it does, from what happened and from the answer.
        answer: what the model answers.
        calls: how many calls the model makes at a time.
    """

    options: Callable[[World], dict[str, Any]]
    shows: Callable[[World, Any], object]
    answer: str = "done"
    calls: int = 1


def no_bad(inspection: Inspection) -> list[str]:
    """Find a word."""
    return ["bad"] if "BAD" in inspection.text else []


def no_done(inspection: Inspection) -> list[str]:
    """Find another word."""
    return ["done"] if "done" in inspection.text else []


def stop_bad(point: BeforeExecution) -> BeforeExecution:
    """Stop an execution whose input has a word."""
    is_bad = any("BAD" in message.text for message in point.state.messages)
    return point.stop("bad") if is_bad else point


def noted(world: World) -> Any:
    """Return an interceptor that notes that it ran."""

    def note(point: BeforeStep) -> BeforeStep:
        world.seen.append("before_step")
        return point

    return at("before_step", note)


def last(world: World) -> InferenceRequest:
    """Return the last request."""
    return world.requests[-1]


PARTS: Mapping[str, Part] = {
    "model": Part(lambda _: {}, lambda world, output: (bool(world.requests), output)),
    "tools": Part(lambda _: {}, lambda world, _: (world.paid, "refund" in [spec.name for spec in last(world).tools])),
    "executor": Part(
        lambda _: {"executor": ToolExecutor(max_result_bytes=300)},
        lambda world, _: max(len(each.execution.text) for each in last(world).messages[-1].exchanges) < len(LIMITED),
    ),
    "compiler": Part(lambda world: {"compiler": NotedCompiler(world)}, lambda world, _: "compiled" in world.seen),
    "prompt": Part(lambda _: {"system_prompt": "You are billing."}, lambda world, _: last(world).system_prompt),
    "prompt by a function": Part(
        lambda world: {"system_prompt": lambda _: f"You are billing on day {world.day}."},
        lambda world, _: last(world).system_prompt == f"You are billing on day {world.day}.",
    ),
    "output type": Part(lambda _: {"output_type": Sum}, lambda _, output: output, answer='{"total": 5}'),
    "response format": Part(
        lambda _: {"output_type": Sum}, lambda world, _: last(world).response_format, answer='{"total": 5}'
    ),
    "input guardrail that stops": Part(
        lambda _: {"interceptors": [Guardrails(input=[no_bad])]}, lambda world, output: (world.paid, output)
    ),
    "input guardrail before the request": Part(
        lambda _: {"interceptors": [Guardrails(input=[no_bad], concurrent=False)]},
        lambda world, output: (world.paid, output),
    ),
    "input guardrail that replaces": Part(
        lambda _: {"interceptors": [Guardrails(input=[no_bad], on_input=ReplaceAnswer("no"))]},
        lambda world, output: (world.paid, output),
    ),
    "input guardrail that asks": Part(
        lambda _: {"interceptors": [Guardrails(input=[no_bad], on_input="ask")]},
        lambda world, output: (world.paid, output),
    ),
    "output guardrail": Part(
        lambda _: {"interceptors": [Guardrails(output=[no_done], on_output=ReplaceAnswer("masked"))]},
        lambda world, output: (world.paid, output),
    ),
    "before_execution": Part(
        lambda _: {"interceptors": [at("before_execution", stop_bad)]}, lambda world, output: (world.paid, output)
    ),
    "before_step": Part(lambda world: {"interceptors": [noted(world)]}, lambda world, _: "before_step" in world.seen),
    # The limits of both loops count the steps and calls of the whole execution.
    "max_steps": Part(lambda _: {"max_steps": 1}, lambda world, output: (len(world.requests) <= 1, output)),
    "step limit": Part(lambda _: {"interceptors": [StepLimit(1)]}, lambda _, output: output),
    "tool call limit": Part(
        lambda _: {"interceptors": [ToolCallLimit(1)]}, lambda world, output: (world.paid <= 1, output), calls=2
    ),
    "permissions": Part(
        lambda _: {"interceptors": [Permissions(deny=["refund"])]}, lambda world, output: (world.paid, output)
    ),
    "approval": Part(
        lambda _: {"interceptors": [RequireApproval(["refund"])]}, lambda world, output: (world.paid, output)
    ),
    "bounds": Part(
        lambda _: {"bounds": Bounds(calls_per_answer=1)}, lambda world, output: (world.paid, output is None), calls=2
    ),
}


# --- the ways -------------------------------------------------------------------------------------------------------


@define(eq=False)
class Scene:
    """The loops of a conversation; each call makes them anew, as another process does.

    Attributes:
        part: the part of billing that is looked at.
        world: what happens.
        journal: the journal of the desk.
        asks: whether the handoff needs an approval.
    """

    part: Part
    world: World = field(factory=World)
    journal: MemoryJournal | None = None
    asks: bool = False

    def billing(self) -> AgentLoop[Any]:
        """Return the loop in charge."""

        @tool(effect="idempotent")
        def refund() -> str:
            """Pay back."""
            return LIMITED

        model = Billing(self.world, self.part.answer, self.part.calls)
        return AgentLoop(ToolCallingDriver(model, mode="native"), [refund], **self.part.options(self.world))

    def desk(self, target: AgentLoop[Any] | None = None) -> AgentLoop[Any]:
        """Return the loop that is executed, which hands over."""
        over = handoff_to(target or self.billing(), name="to_billing", description="Money.")
        guards = [RequireApproval(["to_billing"])] if self.asks else []
        model = ScriptedInference(*[ToolCall("h", "to_billing", "{}")] * 3)
        driver = ToolCallingDriver(model, mode="native")
        return AgentLoop(driver, [over], interceptors=guards, system_prompt="You are the desk.", journal=self.journal)


async def start(scene: Scene) -> AgentState:
    """Execute billing itself."""
    return await scene.billing().execute(INPUT)


async def hand_over(scene: Scene) -> AgentState:
    """Execute the desk."""
    return await scene.desk().execute(INPUT)


async def hand_over_typed(scene: Scene) -> AgentState:
    """Execute a desk with an output type of its own, which billing does not have."""
    return await scene.desk().replace(output_type=dict[str, list[int]]).execute(INPUT)


async def stream(scene: Scene) -> AgentState:
    """Read the text of the execution."""
    async with scene.desk().stream(INPUT) as events:
        async for _ in events:
            pass
    assert events.state is not None
    return events.state


async def hand_over_twice(scene: Scene) -> AgentState:
    """A loop between the two hands over, too."""
    return await scene.desk(scene.desk()).execute(INPUT)


async def hand_over_again(scene: Scene) -> AgentState:
    """Billing had the conversation in an earlier execution, and continues it."""
    scene.world.day = 0
    state = await scene.desk().execute("hello")
    if state.status is ExecutionStatus.SUSPENDED:  # the part asks for an approval
        waiting = {call.key: approve() for call in state.pending}
        state = await scene.desk().resume(state, waiting)
    scene.world.seen.clear()
    scene.world.requests.clear()
    scene.world.day = 1
    return await scene.desk().execute(from_json(to_json(state), AgentState).with_message(INPUT))


async def resume(scene: Scene) -> AgentState:
    """The handoff waits for an approval, in another process."""
    scene.asks = True
    suspended = await scene.desk().execute(INPUT)
    stored = from_json(to_json(suspended), AgentState)
    return await scene.desk().resume(stored, {call.key: approve(call.digest) for call in stored.pending})


async def resume_by_id(scene: Scene) -> AgentState:
    """The handoff waits for an approval, and the journal holds the state."""
    scene.asks, scene.journal = True, MemoryJournal()
    suspended = await scene.desk().execute(INPUT, execution_id="e")
    return await scene.desk().resume("e", {call.key: approve(call.digest) for call in suspended.pending})


async def _interrupt(scene: Scene) -> None:
    """Interrupt the execution while billing's model is asked for the first time, if it is."""
    scene.journal, scene.world.blocks = MemoryJournal(), True
    running = asyncio.ensure_future(scene.desk().execute(INPUT, execution_id="e"))
    asked = asyncio.ensure_future(scene.world.is_asked.wait())
    await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    asked.cancel()
    await asyncio.wait((running, asked))
    scene.world.blocks = False


async def recover(scene: Scene) -> AgentState:
    """Another process continues the execution after a crash."""
    await _interrupt(scene)
    return await scene.desk().recover("e")


async def get_or_start_after_a_crash(scene: Scene) -> AgentState:
    """Another process continues it by the id of its work."""
    await _interrupt(scene)
    return await scene.desk().get_or_start(INPUT, "e")


async def get_or_start(scene: Scene) -> AgentState:
    """The id starts the execution."""
    scene.journal = MemoryJournal()
    return await scene.desk().get_or_start(INPUT, "e")


async def read_by_recover(scene: Scene) -> AgentState:
    """The execution has ended, and `recover` returns it."""
    await get_or_start(scene)
    return await scene.desk().recover("e")


async def read_by_get_or_start(scene: Scene) -> AgentState:
    """The execution has ended, and `get_or_start` returns it."""
    await get_or_start(scene)
    return await scene.desk().get_or_start("another input", "e")


async def continue_a_fork(scene: Scene) -> AgentState:
    """A fork that begins after the handoff."""
    await get_or_start(scene)
    assert scene.journal is not None
    scene.world.seen.clear()
    requests, scene.world.requests = scene.world.requests, []
    forked = await fork(scene.journal, "e", at_step=1, effects="reuse")
    state = await scene.desk().recover(forked)
    assert len(scene.world.requests) == len(requests)
    return state


async def sub_agent(scene: Scene) -> AgentState:
    """The desk is a tool of another loop; the answer is read from its record."""
    scene.journal = MemoryJournal()
    model = ScriptedInference(ToolCall("s", "desk", f'{{"task": "{INPUT}"}}'), "told")
    top = AgentLoop(
        ToolCallingDriver(model, mode="native"), [scene.desk().as_tool("desk", "Helps.")], journal=scene.journal
    )
    await top.execute("go", execution_id="top")
    return await scene.desk().recover("top/1/0/agent")


WAYS: Mapping[str, Callable[[Scene], Awaitable[AgentState]]] = {
    "handoff": hand_over,
    "handoff of a typed loop": hand_over_typed,
    "handoff in a stream": stream,
    "two handoffs": hand_over_twice,
    "next execution": hand_over_again,
    "resume": resume,
    "resume by id": resume_by_id,
    "recover": recover,
    "recover what has ended": read_by_recover,
    "get_or_start": get_or_start,
    "get_or_start after a crash": get_or_start_after_a_crash,
    "get_or_start what has ended": read_by_get_or_start,
    "fork": continue_a_fork,
    "sub-agent": sub_agent,
}


async def what_happens(part: Part, way: Callable[[Scene], Awaitable[AgentState]]) -> object:
    """Return what a part does on a way."""
    scene = Scene(part)
    state = await way(scene)
    settled = [each for step in state.steps for each in step.executions if each.name == "refund"]
    scene.world.paid = sum(each.status is ToolStatus.SUCCEEDED for each in settled)
    output = state.output if state.status is ExecutionStatus.COMPLETED else None
    return part.shows(scene.world, output)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", PARTS)
async def test_a_part_of_the_loop_in_charge_acts_on_every_way(part: str, way: str) -> None:
    """It does what it does in an execution that its loop starts itself."""
    assert await what_happens(PARTS[part], WAYS[way]) == await what_happens(PARTS[part], start)


# --- what the table does not show -----------------------------------------------------------------------------------


async def test_a_guardrail_of_a_loop_that_takes_over_sees_each_message_once() -> None:
    """It sees the input of the execution before its model's first answer, and what is new after that."""
    texts: list[str] = []

    def note(inspection: Inspection) -> list[str]:
        texts.append(inspection.text)
        return []

    part = Part(lambda _: {"interceptors": [Guardrails(input=[note])]}, lambda *_: None)
    state = await Scene(part).desk().execute(INPUT)
    assert texts == [INPUT]
    await Scene(part).desk().execute(state.with_message("more"))
    assert texts == [INPUT, "more"]


async def test_a_loop_that_takes_over_again_sees_what_was_said_meanwhile() -> None:
    """Its guardrails and its `before_execution` pass at each handoff."""
    seen: list[str] = []

    def note(point: BeforeExecution) -> BeforeExecution:
        seen.append(point.state.messages[0].text)
        return point

    loops: dict[str, AgentLoop] = {}
    back = handoff_to(lambda: loops["desk"], name="back", description="Back.")
    over = handoff_to(lambda: loops["billing"], name="over", description="Over.")

    def made(tools: list[Any], *lines: Any, **parts: Any) -> AgentLoop:
        return AgentLoop(ToolCallingDriver(in_turn(*lines), mode="native"), tools, **parts)

    guards = [at("before_execution", note), Guardrails(input=[no_bad])]
    loops["billing"] = made([back], ToolCall("b", "back", "{}"), "done", interceptors=guards)
    loops["desk"] = made([over], ToolCall("o", "over", "{}"), ToolCall("p", "over", "{}"))
    state = await loops["desk"].execute("hello")
    assert state.final_text == "done"
    assert seen == ["hello", "hello"]


def in_turn(*lines: Any) -> ScriptedInference:
    """Return a model that goes on with its lines, also after handoffs and in later executions."""
    left = list(lines)
    return ScriptedInference(*[lambda _: left.pop(0)] * len(lines))


async def test_run_returns_no_answer_of_another_type_than_its_loop_has() -> None:
    """The error says so, and has the state with the answer; a loop without an output type promises nothing."""
    text, typed = PARTS["model"], PARTS["output type"]
    with pytest.raises(ExecutionError, match=r"no answer of the type 'Sum': 'to_billing' handed") as caught:
        await Scene(text).desk().replace(output_type=Sum).run(INPUT)
    assert caught.value.state.output == "done"
    assert await Scene(typed).desk().replace(output_type=Sum).run(INPUT) == Sum(5)
    assert await Scene(typed).desk().run(INPUT) == Sum(5)


async def test_a_conversation_goes_back_to_the_executed_loop_if_the_other_one_does_not_exist_any_more() -> None:
    """That loop has its own prompt again, and a handoff leads from it as from a new conversation."""
    scene = Scene(PARTS["model"])
    state = await scene.desk().execute(INPUT)
    model = in_turn("It is closed.", ToolCall("1", "to_sales", "{}"))
    sales = AgentLoop(ToolCallingDriver(in_turn("sold", "sold again")), system_prompt="You are sales.")
    over = handoff_to(sales, name="to_sales", description="Sales.")
    changed = AgentLoop(ToolCallingDriver(model), [over], system_prompt="You are the new desk.")
    state = await changed.execute(state.with_message("and now?"))
    assert state.final_text == "It is closed."
    assert model.requests[0].system_prompt == "You are the new desk."
    for text in ("sold", "sold again"):
        state = await changed.execute(state.with_message("sell"))
        assert (state.final_text, state.context.system_prompt) == (text, "You are sales.")


async def test_what_has_ended_is_read_as_it_is_if_its_loop_does_not_exist_any_more() -> None:
    """The answer is that of the record, and no error of a type that it never had."""
    scene = Scene(PARTS["model"])
    await get_or_start(scene)
    changed: AgentLoop[Any] = AgentLoop(ToolCallingDriver(ScriptedInference()), output_type=Sum, journal=scene.journal)
    assert (await changed.recover("e")).output == "done"
    assert (await changed.get_or_start(INPUT, "e")).output == "done"
