"""Lawful implementations of unusual shapes: drivers that plan, that route and that wrap, and executors over HTTP."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from copy import copy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop import AgentState, Message, ScriptedInference, Tool, ToolCallingDriver, tool
from agentloop.contracts import (
    CanAcceptExecutionScope,
    CanAccessToolContext,
    CanCompileMessages,
    CanExecuteToolCalls,
    CanHandleEvents,
    CanInfer,
    CanIntercept,
    CanUseTools,
    ExecutionScope,
    ToolContext,
)
from agentloop.contracts.tool import CanAccessAgentState, CanAccessToolCall, CanDescribeResult
from agentloop.contracts.tools import Tools
from agentloop.drivers import Driver, ForwardingDriver, InferringDriver, StepDraft
from agentloop.errors import BatchInterrupted, InferenceError, ProviderUnavailable
from agentloop.executors import (
    ForwardingExecutor,
    ProgressReport,
    RemoteCall,
    RemoteResult,
    RemoteToolExecutor,
    not_begun,
    run_remote_call,
)
from agentloop.testing import FileLedger, Ledger, Scenario, ScriptedTurn, toy_tools
from agentloop.values import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ResponsePart,
    Text,
    ToolCall,
    ToolCalls,
    ToolExecutions,
    Usage,
    from_json,
    to_json,
)
from agentloop.values.json import freeze_object

PLANNER_USAGE = Usage(7, 3)


class Planner(CanInfer):
    """A model that has one plan for everything."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((Text("First look, then answer."),), FinishReason.STOP, PLANNER_USAGE)


@frozen(kw_only=True)
class PlanAndExecute(InferringDriver):
    """Asks a planner for a plan in the first step, keeps it in the state, and shows it to the model in every step."""

    planner: CanInfer = field()

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        bound = super().with_execution_scope(scope)
        if isinstance(self.planner, CanAcceptExecutionScope):
            bound = evolve(bound, planner=self.planner.with_execution_scope(scope.for_another_model()))
        return bound

    async def plan(self, draft: StepDraft, messages: Sequence[Message]) -> str:
        return (await self.infer(draft, InferenceRequest(tuple(messages), "Make a plan."), inference=self.planner)).text

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        if draft.state.extension("plan") is None:
            plan = await self.plan(draft, messages)
            draft.state = draft.state.with_extension("plan", plan)
        request = self.request(draft, messages)
        planned = request.with_system_prompt(f"{request.system_prompt}\nThe plan: {draft.state.extension('plan')}")
        response = await self.infer(draft, planned)
        self.conclude(draft, response)
        return response.parts


def plan_and_execute(scenario: Scenario) -> PlanAndExecute:
    """Return a driver with a planner of its own, whose tokens count as well."""
    return PlanAndExecute(inference=scenario.inference(), planner=Planner())


def plan_by_script(scenario: Scenario) -> PlanAndExecute:
    """Return one whose planner is watched, and follows a script of its own, which has one plan."""
    return PlanAndExecute(inference=scenario.inference(), planner=scenario.watch(ScriptedInference("First look.")))


@frozen(kw_only=True)
class CriticizesAnswers(PlanAndExecute):
    """Plans, and shows each answer to the planner, by a script which continues where an execution is resumed."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        if draft.response is not None and not draft.response.tool_calls:
            asked = InferenceRequest((*messages, Message.user("Is this right?")), "Say yes or no.")
            verdict = await self.infer(draft, asked, inference=self.planner)
            if verdict.text != "yes":
                raise RuntimeError(f"the planner said {verdict.text}")
        return parts


def critic(scenario: Scenario) -> CriticizesAnswers:
    """Return a driver that plans and criticizes by the same scripted model."""
    planner = scenario.watch(ScriptedInference("First look.", "yes"))
    return CriticizesAnswers(inference=scenario.inference(), planner=planner)


class AnswersByLength(CanInfer):
    """A model that keeps no position: its answer follows from the number of answers in the request."""

    def __init__(self, scenario: Scenario) -> None:
        self.turns = scenario.turns

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        number = sum(message.role == "assistant" for message in request.messages)
        return self.turns[number].response(number)


@frozen
class Router(ForwardingDriver):
    """Sends the first step to one driver, and the others to another one."""

    later: CanUseTools = field(kw_only=True)

    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> Self:
        later = ForwardingDriver(self.later).with_tool_runtime(tools, executor)
        return evolve(super().with_tool_runtime(tools, executor), later=later.inner)

    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        later = ForwardingDriver(self.later).with_compiler(compiler)
        return evolve(super().with_compiler(compiler), later=later.inner)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        later = ForwardingDriver(self.later).with_lifecycle(interceptor, events)
        return evolve(super().with_lifecycle(interceptor, events), later=later.inner)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        later = ForwardingDriver(self.later).with_execution_scope(scope)
        return evolve(super().with_execution_scope(scope), later=later.inner)

    async def use_tools(self, state: AgentState) -> AgentState:
        return await (self.inner if state.step_count == 0 else self.later).use_tools(state)


def router(scenario: Scenario) -> Router:
    """Return a driver that routes to two others."""
    model = AnswersByLength(scenario)
    return Router(ToolCallingDriver(model), later=ToolCallingDriver(model, mode="native"))


@frozen(kw_only=True)
class FollowsTurns(Driver):
    """Takes its decisions from a list, without a model and so without tokens."""

    turns: tuple[ScriptedTurn, ...]

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        turn = self.turns[draft.number - 1]
        return turn.calls or (Text(turn.text),)


@frozen
class TimedDriver(ForwardingDriver):
    """Measures its steps."""

    times: list[float] = field(factory=list)

    async def use_tools(self, state: AgentState) -> AgentState:
        began = perf_counter()
        try:
            return await self.inner.use_tools(state)
        finally:
            self.times.append(perf_counter() - began)


@frozen
class TimedExecutor(ForwardingExecutor):
    """Measures its batches."""

    times: list[float] = field(factory=list)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        began = perf_counter()
        try:
            return await self.inner.execute_tools(tool_calls, state)
        finally:
            self.times.append(perf_counter() - began)


@frozen
class PacedExecutor(ForwardingExecutor):
    """Lets a moment pass before each batch, one batch after the other."""

    turn: asyncio.Lock = field(factory=asyncio.Lock)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        try:
            async with self.turn:
                await asyncio.sleep(0.7)
        except asyncio.CancelledError as cancelled:
            raise cancelled from BatchInterrupted(not_begun(tool_calls, state))
        return await self.inner.execute_tools(tool_calls, state)


@frozen
class Bulkhead(ForwardingExecutor):
    """Runs two batches at a time, and lets the others wait."""

    places: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(2))

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        try:
            await self.places.acquire()
        except asyncio.CancelledError as cancelled:
            raise cancelled from BatchInterrupted(not_begun(tool_calls, state))
        try:
            return await self.inner.execute_tools(tool_calls, state)
        finally:
            self.places.release()


@frozen
class WorksFromAQueue(ForwardingExecutor):
    """Puts each batch into a queue, from which a task takes it that lives as long as the batch."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        queue: asyncio.Queue[tuple[ToolCalls, AgentState]] = asyncio.Queue()
        queue.put_nowait((tool_calls, state))

        async def work() -> ToolExecutions:
            return await self.inner.execute_tools(*await queue.get())

        worker = asyncio.ensure_future(work())
        try:
            await asyncio.wait([worker])
        except asyncio.CancelledError:
            worker.cancel()
            await asyncio.wait([worker])
        return await worker  # a cancellation leaves with what the batch has settled


@frozen(kw_only=True)
class Votes(InferringDriver):
    """Sends each request three times, and does what most of the answers say."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        request = self.request(draft, messages)
        answers = [await self.infer(draft, request) for _ in range(3)]
        votes = [[(call.name, call.arguments_json) for call in each.tool_calls] or each.text for each in answers]
        chosen = answers[max(range(3), key=lambda place: votes.count(votes[place]))]
        self.conclude(draft, chosen)
        return chosen.parts


def votes(scenario: Scenario) -> Votes:
    """Return a driver that lets its one model vote."""
    return Votes(inference=scenario.inference())


@frozen(kw_only=True)
class VotesOfModels(InferringDriver):
    """Sends each request to several models, and does what most of them say."""

    others: tuple[CanInfer, ...] = ()

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        bound = super().with_execution_scope(scope)
        other = scope.for_another_model()
        others = [
            each.with_execution_scope(other) if isinstance(each, CanAcceptExecutionScope) else each
            for each in self.others
        ]
        return evolve(bound, others=tuple(others))

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        request = self.request(draft, messages)
        answers = [await self.infer(draft, request)]
        answers += [await self.infer(draft, request, inference=each) for each in self.others]
        votes = [[(call.name, call.arguments_json) for call in each.tool_calls] or each.text for each in answers]
        chosen = answers[max(range(len(answers)), key=lambda place: votes.count(votes[place]))]
        self.conclude(draft, chosen)
        return chosen.parts


def votes_of_models(scenario: Scenario) -> VotesOfModels:
    """Return a driver that lets three models vote."""
    return VotesOfModels(inference=scenario.inference(), others=(scenario.inference(), scenario.inference()))


@frozen(kw_only=True)
class PlansAndJudges(PlanAndExecute):
    """Plans each step, and lets the planner look at each answer before it is used, so that its model's request is never the last one."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        plan = await self.plan(draft, messages)
        request = self.request(draft, messages)
        answer = await self.infer(draft, request.with_messages([*request.messages, Message.user(f"The plan: {plan}")]))
        judged = InferenceRequest((Message.user(f"Is this right? {answer.text}"),), "Say yes or no.")
        await self.infer(draft, judged, inference=self.planner)
        self.conclude(draft, answer)
        return answer.parts


def judge(scenario: Scenario) -> PlansAndJudges:
    """Return a driver with a planner that also judges."""
    return PlansAndJudges(inference=scenario.inference(), planner=scenario.watch(Planner()))


# --- inferences -------------------------------------------------------------------------------------------------------


@frozen
class ImprovesAnswers(CanInfer):
    """Asks its model to improve each answer, so that an inference of it is two requests."""

    model: CanInfer

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        first = await self.model.infer(request)
        improved = [*request.messages, Message.assistant(Text(first.text)), Message.user("Can you improve this?")]
        second = await self.model.infer(request.with_messages(improved))
        return evolve(second, usage=first.usage + second.usage)


@frozen
class Paces(CanInfer, CanAcceptExecutionScope):
    """Waits by the clock of its execution before each request, and so works only in one."""

    model: CanInfer
    scope: ExecutionScope | None = None

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        return evolve(self, scope=scope)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        assert self.scope is not None
        began = self.scope.clock.monotonic()
        await asyncio.sleep(0.001)
        assert self.scope.clock.monotonic() > began
        return await self.model.infer(request)


@frozen
class KeepsAnswers(CanInfer):
    """Answers a request that it knows without its model."""

    model: CanInfer
    answers: dict[InferenceRequest, InferenceResponse] = field(factory=dict)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if request not in self.answers:
            self.answers[request] = await self.model.infer(request)
        return self.answers[request]


@frozen
class KeepsAnswersForNothing(CanInfer):
    """Answers a request that it knows without its model and without tokens; equal requests at the same time are one."""

    model: CanInfer
    answers: dict[InferenceRequest, InferenceResponse] = field(factory=dict)
    locks: dict[InferenceRequest, asyncio.Lock] = field(factory=dict)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        async with self.locks.setdefault(request, asyncio.Lock()):
            known = self.answers.get(request)
            if known is not None:
                return evolve(known, usage=Usage.none())
            self.answers[request] = answer = await self.model.infer(request)
        return answer


@frozen
class SharesRequests(CanInfer):
    """Sends two requests at a time; equal ones are one, which ends when nobody waits for it any more."""

    model: CanInfer
    places: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(2))
    running: dict[InferenceRequest, asyncio.Task[InferenceResponse]] = field(factory=dict)
    waiting: Counter[InferenceRequest] = field(factory=Counter)

    async def _send(self, request: InferenceRequest) -> InferenceResponse:
        async with self.places:
            return await self.model.infer(request)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        if request not in self.running:
            self.running[request] = asyncio.ensure_future(self._send(request))
        task = self.running[request]
        self.waiting[request] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self.waiting[request] -= 1
            if not self.waiting[request]:
                del self.running[request]
                task.cancel()
                await asyncio.wait([task])


@frozen
class AsksAgain(CanInfer):
    """Asks again after a failure, and numbers the attempts of a stream."""

    model: CanInfer

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        try:
            return await self.model.infer(request)
        except InferenceError:
            return await self.model.infer(request)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        for attempt in (1, 2):
            try:
                async with aclosing(self.model.stream(request)) as stream:  # type: ignore[type-var]  # an async generator
                    async for item in stream:
                        yield item.with_attempt(attempt) if isinstance(item, InferenceDelta) else item
            except InferenceError:
                if attempt == 2:
                    raise
            else:
                return


class RestsAfterFailures(CanInfer):
    """Refuses requests for a minute after three failures in a row."""

    def __init__(self, model: CanInfer) -> None:
        self.model = model
        self.failures = 0
        self.rests_until = 0.0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        now = asyncio.get_running_loop().time()
        if self.failures >= 3 and now < self.rests_until:
            raise ProviderUnavailable("too many requests have failed")
        try:
            answer = await self.model.infer(request)
        except InferenceError:
            self.failures, self.rests_until = self.failures + 1, now + 60
            raise
        self.failures = 0
        return answer


@frozen
class MarksRequests(CanInfer):
    """Sends a number of each request along, and one request at a time."""

    model: CanInfer
    numbers: Iterator[int] = field(factory=count)
    lock: asyncio.Lock = field(factory=asyncio.Lock)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        async with self.lock:
            extra = {**request.options.extra, "request_number": next(self.numbers)}
            return await self.model.infer(request.with_options(evolve(request.options, extra=extra)))


# --- tools ------------------------------------------------------------------------------------------------------------


@tool(effect="pure")
def count_items(items: list[int]) -> dict[str, list[int]]:
    """Return the items, and how many there are."""
    return {"items": items, "count": [len(items)]}


class KnowsItsCall(Tool, CanAccessAgentState, CanAccessToolCall, CanAccessToolContext):
    """Returns what it is bound to, in a copy."""

    name = "known"
    description = "Return the agent, the tool and the shop."
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"items": {"type": "array"}}}
    effect: Any = "pure"
    state: AgentState
    call: ToolCall
    context: ToolContext[str]

    def with_agent_state(self, state: AgentState) -> Self:
        return self._with("state", state)

    def with_tool_call(self, call: ToolCall) -> Self:
        return self._with("call", call)

    def with_tool_context(self, context: ToolContext[str]) -> Self:
        return self._with("context", context)

    def _with(self, name: str, value: object) -> Self:
        bound = copy(self)
        setattr(bound, name, value)
        return bound

    async def use(self, *, items: list[int]) -> Any:
        return [self.state.agent_id, self.call.name, self.context.dependencies, *items]


@tool(effect="pure")
async def count_for_shop(items: list[int], context: ToolContext[str]) -> str:
    """Return the shop, and how many items there are."""
    await asyncio.sleep(0.001)
    return f"{context.dependencies}: {len(items)}"


@tool(effect="pure")
async def count_by_program(items: list[int]) -> int:
    """Return how many items there are, as another program counts them."""
    program = [sys.executable, "-S", "-c", f"print({len(items)})"]
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return int(output)


@tool(effect="pure")
async def count_with_progress(items: list[int], context: ToolContext) -> int:
    """Return how many items there are, and say how far it is."""
    for place, _ in enumerate(items):
        context.progress(str(place))
        await asyncio.sleep(0)
    return len(items)


@tool(effect="pure")
async def yield_items(items: list[int]) -> AsyncGenerator[int, None]:
    """Yield the items, the last of which is the result."""
    for item in [*items, 0]:
        await asyncio.sleep(0)
        yield item


class CountsItems(Tool, CanDescribeResult):
    """The same as a class, which says itself what its parameters and results are."""

    name = "count"
    description = "Return the items, and how many there are."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"type": "integer"}}},
        "required": ["items"],
    }
    result_schema = freeze_object(
        {"type": "object", "properties": {"items": {"type": "array"}}, "required": ["items", "count"]}
    )

    async def use(self, *, items: list[int]) -> Any:
        return {"items": items, "count": [len(items)]}


# --- tools behind HTTP ------------------------------------------------------------------------------------------------

SECOND = 0.02
"""How long a second of the toys takes there."""


@frozen
class HttpExecutor(RemoteToolExecutor):
    """Posts each call to a server."""

    port: int = field(kw_only=True)

    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            body = to_json(call)
            writer.write(b"POST / HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            answer = await reader.read()
        finally:
            writer.close()
        return from_json(answer.partition(b"\r\n\r\n")[2], RemoteResult)


@frozen
class SlowLink(RemoteToolExecutor):
    """Takes half a second to reach the other side, which is in this process."""

    ledger: Ledger = field(factory=Ledger)

    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
        await asyncio.sleep(0.5)
        return await run_remote_call(toy_tools(self.ledger), call)


@contextmanager
def served_toys(ledger: Path) -> Iterator[int]:
    """Serve toys over HTTP; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            call = from_json(self.rfile.read(int(self.headers["content-length"])), RemoteCall)
            tools = toy_tools(FileLedger(ledger), second=SECOND)
            answer = to_json(asyncio.run(run_remote_call(tools, call)))
            self.send_response(200)
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
