"""Compilers, inferences, listeners, modes, stores and tools that break one law each."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from attrs import evolve

from agentloop import Message, Tool, tool
from agentloop.contracts import (
    CanAcceptExecutionScope,
    CanCompileMessages,
    CanInfer,
    CanKeepAccounts,
    CanKeepState,
    CanUseMode,
    ExecutionScope,
    Namespace,
    ToolContext,
)
from agentloop.contracts.can_compile_messages import CanMarkEpoch
from agentloop.contracts.can_journal import Claim
from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate
from agentloop.contracts.can_keep_grants import CanKeepGrants, GrantChange
from agentloop.contracts.tool import CanDescribeResult, CanPresentResult
from agentloop.contracts.tools import Tools
from agentloop.durable import MemoryJournal
from agentloop.errors import ToolFailed
from agentloop.models import get_mode
from agentloop.policies import MemoryStore
from agentloop.policies.budgets.memory_accounts import MemoryAccounts
from agentloop.testing import (
    NOTATIONS,
    AccountKit,
    CompilerKit,
    GrantKit,
    InferenceKit,
    ListenerKit,
    ModeKit,
    StoreKit,
    ToolKit,
)
from agentloop.values import (
    AgentState,
    Event,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ProviderPart,
    Text,
    ToolResult,
    ToolSpec,
)
from agentloop.values.accounts import AccountKey, AccountState
from agentloop.values.epochs import Epoch
from agentloop.values.grants import GrantState, GrantUse
from agentloop.values.json import freeze_object
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.serialization import to_plain
from tests.testing.zoo.zoo import Member

LEFT: list[object] = []

# --- compilers --------------------------------------------------------------------------------------------------------


class TearsMessages(CanCompileMessages):
    """Breaks law 2: of a message with several calls, only the first is shown."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return [_with_first_call(message) for message in state.messages]


class LeavesOutCalls(CanCompileMessages):
    """Breaks law 2: of a message with calls, only the text is shown."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        texts = [(message, Message(message.role, [Text(message.text)])) for message in state.messages]
        return [text if message.exchanges else message for message, text in texts]


class WritesIntoState(CanCompileMessages):
    """Breaks law 3: the state remembers that it was compiled."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        dict.__setitem__(state.context.metadata, "compiled", 1)
        return state.messages


class CountsCompilations(CanCompileMessages):
    """Breaks law 8: the first message depends on how often the compiler was used."""

    def __init__(self) -> None:
        self.count = 0

    def compile(self, state: AgentState) -> Sequence[Message]:
        self.count += 1
        return [Message.user(f"This is request {self.count}."), *state.messages]


class KeepsFirstConversation(CanCompileMessages):
    """Breaks law 9: the first conversation is shown in every other one."""

    def __init__(self) -> None:
        self.first: Message | None = None

    def compile(self, state: AgentState) -> Sequence[Message]:
        self.first = self.first or state.messages[0]
        return [self.first, *state.messages[1:]]


class SlidesSilently(CanCompileMessages):
    """Breaks law 13: old messages are dropped, and no epoch says so."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return state.messages[-2:]


class RepeatsEpochs(SlidesSilently, CanMarkEpoch):
    """Breaks law 13: each step begins an epoch, which is that of the last step but one."""

    def epoch(self, state: AgentState) -> Epoch:
        return Epoch(dropped=state.step_count % 2)


def _with_first_call(message: Message) -> Message:
    return message if len(message.exchanges) < 2 else Message.assistant(message.exchanges[0])


def _with_bare_calls(message: Message) -> Message:
    parts = [ProviderPart("openai-chat", to_plain(exchange.call)) for exchange in message.exchanges]
    return Message.assistant(*parts) if parts else message


def _compiler(law: int, compiler: Callable[[], CanCompileMessages]) -> Member:
    return Member(compiler, law, lambda examples: CompilerKit(compiler, examples=examples))


# --- inferences -------------------------------------------------------------------------------------------------------


class Relay(CanInfer):
    """Keeps all laws; the classes below break one each."""

    def __init__(self, model: CanInfer) -> None:
        self.model = model

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await self.model.infer(request)


class ChangesRequests(Relay):
    """Breaks law 3: the request is changed in place."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        object.__setattr__(request, "system_prompt", "Be brief.")
        return await super().infer(request)


class CountsUnknownAsZero(Relay):
    """Breaks law 6: tokens that were not reported are none."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        response = await super().infer(request)
        usage = evolve(response.usage, input_tokens=response.usage.input_tokens or 0)
        return evolve(response, usage=usage)


class CountsLastRequest(Relay):
    """Breaks law 6: an answer that is asked for twice has the tokens of the second request alone."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await super().infer(request)
        return await super().infer(request)


class StreamsTwice(Relay):
    """Breaks law 7: a stream goes on after the response."""

    async def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        yield await self.infer(request)
        yield await self.infer(request)


class MixesRequests(Relay):
    """Breaks law 9: the request waits on the object, where the next one replaces it."""

    request: InferenceRequest

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        self.request = request
        await asyncio.sleep(0)
        return await super().infer(self.request)


class MixesStreams(Relay):
    """Breaks law 9: what arrives waits on the object, where another stream replaces it."""

    item: InferenceDelta | InferenceResponse

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        async for item in self.model.stream(request):
            self.item = item
            await asyncio.sleep(0)
            yield self.item


class MixesTexts(Relay):
    """Breaks law 9: the text of an answer waits on the object, where another one replaces it."""

    text: str

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        response = await super().infer(request)
        self.text = response.text
        await asyncio.sleep(0)
        return response.with_parts([Text(self.text) if isinstance(part, Text) else part for part in response.parts])


class KeepsScope(Relay, CanAcceptExecutionScope):
    """Breaks law 9: the scope of an execution is kept in the inference that all share."""

    scope: ExecutionScope

    def with_execution_scope(self, scope: ExecutionScope) -> KeepsScope:
        self.scope = scope
        return self


class ShowsKey(Relay):
    """Breaks law 18: the repr has the key."""

    def __repr__(self) -> str:
        return f"ShowsKey(key={KEY!r})"


class LeavesRequests(Relay):
    """Breaks law 19: a request goes on after its stream was closed."""

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        LEFT.append(asyncio.ensure_future(asyncio.Event().wait()))
        yield await self.infer(request)


class LeavesSockets(Relay):
    """Breaks law 19: each request has a connection that nobody closes."""

    def __init__(self, model: CanInfer) -> None:
        super().__init__(model)
        self.sockets: list[socket.socket] = []

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        self.sockets += socket.socketpair()
        return await super().infer(request)

    def __del__(self) -> None:
        for each in self.sockets:
            each.close()


class DropsOptions(Relay):
    """Breaks law 33: the request is built anew, without its options."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await super().infer(InferenceRequest(request.messages, request.system_prompt, request.tools))


class SamplesAtZero(Relay):
    """Breaks law 33: the temperature is always that of the inference."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await super().infer(request.with_options(evolve(request.options, temperature=0.0)))


class SwallowsCancellation(Relay):
    """Breaks law 34: a cancelled request has an answer."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        try:
            return await super().infer(request)
        except asyncio.CancelledError:
            return InferenceResponse((Text("never mind"),))


KEY = "sk-zoo-0123456789"


def _inference(law: int, inference: Callable[[CanInfer], CanInfer]) -> Member:
    return Member(inference, law, lambda examples: InferenceKit(inference, secrets=[KEY], examples=examples))


# --- listeners --------------------------------------------------------------------------------------------------------


def rewrites_events(event: Event) -> None:
    """Breaks law 3: the listener marks the events that it has seen."""
    object.__setattr__(event.head, "agent_id", "seen")


def knows_few_events(event: Event) -> None:
    """Breaks law 7: the listener expects that every event has an outcome."""
    assert event.execution is not None  # type: ignore[attr-defined]


def returns_awaitables(event: Event) -> Any:
    """Breaks law 7: nobody awaits what this plain function returns."""
    return asyncio.get_running_loop().create_future()


class MeddlesWithCalls:
    """Breaks law 8: the listener writes into the state, by what the events have of it."""

    def __call__(self, event: Event) -> None:
        execution = getattr(event, "execution", None)
        if execution is not None:
            object.__setattr__(execution, "value", "watched")


def leaves_tasks(event: Event) -> None:
    """Breaks law 19: each event has a task that nobody ends."""
    LEFT.append(asyncio.ensure_future(asyncio.Event().wait()))


def _listener(law: int, listener: Any) -> Member:
    def make(examples: int) -> ListenerKit:
        return ListenerKit(listener if isinstance(listener, type) else lambda: listener, examples=examples)

    return Member(listener, law, make)


# --- modes ------------------------------------------------------------------------------------------------------------


class PlainMode:
    """Passes everything on to the mode `validated`; the classes below break one law each."""

    def __init__(self) -> None:
        self.inner: Any = get_mode("validated")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def with_tools(self, tools: Tools) -> PlainMode:
        return self

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        rendered: InferenceRequest = self.inner.render_request(request)
        return rendered

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        parsed: InferenceResponse = self.inner.parse_response(response, request)
        return parsed


class RendersBareCalls(PlainMode):
    """Breaks law 2: calls are written without their results."""

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        return request.with_messages([_with_bare_calls(message) for message in request.messages])


class ChangesWhatItRenders(PlainMode):
    """Breaks law 3: the request is changed in place."""

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        object.__setattr__(request, "system_prompt", f"{request.system_prompt} Use tags.")
        return request


class ShufflesTools(PlainMode):
    """Breaks law 8: the tools are described in any order."""

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        return super().render_request(request.with_tools(random.sample(request.tools, len(request.tools))))


class KeepsFirstTools(PlainMode):
    """Breaks law 9: the tools of the first request are offered in every other one."""

    tools: Sequence[ToolSpec] = ()

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        self.tools = self.tools or request.tools
        return super().render_request(request.with_tools(self.tools))


class KeepsBoundTools(PlainMode):
    """Breaks law 9: the tools that a copy should know are known to all."""

    names: Sequence[str] = ()

    def with_tools(self, tools: Tools) -> PlainMode:
        self.names = [tool.name for tool in tools]
        return self

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        return super().render_request(request.with_system_prompt(f"Your tools: {', '.join(self.names)}."))


class ForgetsTokens(PlainMode):
    """Breaks law 12: the response is built anew, without the tokens."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        parsed = super().parse_response(response, request)
        return InferenceResponse(parsed.parts, parsed.finish_reason)


class RebuildsRequests(PlainMode):
    """Breaks law 33: the translated request is built anew, without the options."""

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        rendered = super().render_request(request)
        return InferenceRequest(rendered.messages, rendered.system_prompt, rendered.tools)


class FindsNoCalls(PlainMode):
    """Breaks law 12: calls are taken for text."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        return response


class SwallowsBrokenCalls(PlainMode):
    """Breaks law 39: what begins like a call and is none is cut out of the answer."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        parsed = super().parse_response(response, request)
        if any(not call.rejection for call in parsed.tool_calls):
            return parsed
        answer = re.sub(r"<tool_call>.*", "", response.text, flags=re.DOTALL).strip()
        return evolve(response, parts=[Text(answer)])


class ForgetsBrokenCalls(PlainMode):
    """Breaks law 39: beside a call that can be read, one that cannot is forgotten."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        blocks = re.findall(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", response.text, flags=re.DOTALL)
        if "```" in response.text or not blocks:
            return super().parse_response(response, request)
        return super().parse_response(_with_text(response, "\n".join(map(_tagged, blocks))), request)


class MakesTheFirstCall(PlainMode):
    """Breaks law 39: a model makes one call at a time, so the first one is it."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        is_quoted = "```" in response.text
        first = None if is_quoted else re.search(r"<tool_call>.*?</tool_call>", response.text, flags=re.DOTALL)
        return super().parse_response(_with_text(response, first[0]) if first else response, request)


class RunsQuotations(PlainMode):
    """Breaks law 39: tags are calls wherever they stand."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        blocks = re.findall(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", response.text, flags=re.DOTALL)
        text = "\n".join(map(_tagged, blocks)) if blocks else response.text
        return super().parse_response(_with_text(response, text), request)


class HidesQuotations(PlainMode):
    """Breaks law 39: nobody is told that a text has a call which did not run."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        return evolve(super().parse_response(response, request), quoted_calls=(), quoted_texts=())


def _tagged(call: str) -> str:
    return f"<tool_call>{call}</tool_call>"


def _with_text(response: InferenceResponse, text: str) -> InferenceResponse:
    return evolve(response, parts=[Text(text)])


class CountsMessages(PlainMode):
    """Breaks law 13: the prompt says how long the conversation is."""

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        prompt = f"{len(request.messages)} messages"
        return super().render_request(request).with_system_prompt(prompt)


class FailsOnBraces(PlainMode):
    """Breaks law 31: a text with a brace that nothing closes is an error."""

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        if response.text.count("{") != response.text.count("}"):
            raise ValueError("unbalanced braces")
        return super().parse_response(response, request)


def _mode(law: int, mode: Callable[[], Any]) -> Member:
    def factory() -> CanUseMode:
        made: CanUseMode = mode()
        return made

    return Member(mode, law, lambda examples: ModeKit(factory, NOTATIONS["validated"], examples=examples))


# --- stores -----------------------------------------------------------------------------------------------------------


class IgnoresNamespaces(MemoryStore):
    """Breaks law 9: names of one namespace mean the states of another."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        return await super().update(evolve(namespace, name="all"), key, now, transition)


class ForgetsNothing(MemoryStore):
    """Breaks law 36: states do not expire."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        return await super().update(namespace, key, 0.0, transition)


class EvictsNothing(MemoryStore):
    """Breaks law 36: a namespace has as many states as there are keys."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        return await super().update(evolve(namespace, max_entries=None), key, now, transition)


class LosesUpdates(CanKeepState):
    """Breaks law 36: between reading and writing a state, others write it."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], tuple[Any, float]] = {}

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        state, expires_at = self.states.get((namespace.name, key), (None, now))
        await asyncio.sleep(0.0005)
        update = transition(state if expires_at > now else None)
        self.states[namespace.name, key] = (update.state, update.expires_at)
        return update.result


def _store(law: int, store: Callable[[], CanKeepState]) -> Member:
    return Member(store, law, lambda examples: StoreKit(store, examples=examples))


class KeepsOneSum(MemoryAccounts):
    """Breaks law 9: all owners of an account share it."""

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        return await super().update_account(evolve(key, owner=""), change)


class ForgetsReservations(MemoryAccounts):
    """Breaks law 36: a reservation is not stored."""

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        return await super().update_account(key, lambda state: evolve(change(state), holds=()))


class LosesChanges(MemoryAccounts):
    """Breaks law 36: between reading and writing an account, others write it."""

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        before = dict(await self.accounts()).get(key, AccountState())
        await asyncio.sleep(0.0005)
        after = (await super().update_account(key, lambda _: change(before))).after
        return AccountUpdate(before, after)


def _accounts(law: int, store: Callable[[], CanKeepAccounts]) -> Member:
    return Member(store, law, lambda examples: AccountKit(store, examples=examples))


class SharesGrants(MemoryJournal):
    """Breaks law 9: whose grants they are is not looked at."""

    async def grants(self, *, owner: str | None = None, tool: str | None = None) -> Sequence[GrantState]:
        return await super().grants(tool=tool)


class ReplacesGrants(MemoryJournal):
    """Breaks law 9: a grant that is given again begins anew."""

    async def add_grant(self, state: GrantState) -> None:
        self._grants[state.id] = state


class LosesUses(MemoryJournal):
    """Breaks law 36: between reading and writing a grant, others write it."""

    async def update_grant(self, grant_id: str, change: GrantChange) -> GrantState | None:
        before = {state.id: state for state in await self.grants()}.get(grant_id)
        await asyncio.sleep(0.0005)
        return None if before is None else await super().update_grant(grant_id, lambda _: change(before))


class CountsFirst(MemoryJournal):
    """Breaks law 43: uses are counted before the records are stored, or refused."""

    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[GrantUse]
    ) -> None:
        for use in uses:
            await self.update_grant(use.grant_id, use.count_in)
        await super().append_using(head, records, claim, ())


class CountsEachAppend(MemoryJournal):
    """Breaks law 43: an append that is repeated counts its uses again."""

    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[GrantUse]
    ) -> None:
        await super().append_using(head, records, claim, ())
        for use in uses:
            await self.update_grant(use.grant_id, lambda state: evolve(state, used=state.used + 1))


class ForgetsUses(MemoryJournal):
    """Breaks law 43: the records are stored, and no use is counted."""

    async def append_using(
        self,
        head: ExecutionHead,
        records: Sequence[JournalRecord],
        claim: Claim,
        uses: Sequence[GrantUse],
    ) -> None:
        await super().append_using(head, records, claim, ())


def _grants(law: int, journal: Callable[[], CanKeepGrants]) -> Member:
    return Member(journal, law, lambda examples: GrantKit(journal, examples=examples))


# --- tools ------------------------------------------------------------------------------------------------------------


class Toy(Tool):
    """Keeps all laws; the classes below break one each."""

    name = "toy"
    description = "Play."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"items": {"type": "array"}},
        "required": ["items"],
    }

    async def use(self, *_: Any, items: list[int]) -> Any:
        await asyncio.sleep(0)
        return len(items)


class SortsInPlace(Toy):
    """Breaks law 3: the list that was passed is emptied."""

    async def use(self, *_: Any, items: list[int]) -> Any:
        count = len(items)
        items.clear()
        return count


class KeepsItsCall(Toy):
    """Breaks law 9: the arguments wait on the class, where another call replaces them."""

    effect: Any = "pure"
    items: list[int]

    async def use(self, *_: Any, items: list[int]) -> Any:
        KeepsItsCall.items = items
        await asyncio.sleep(0.001)
        return len(KeepsItsCall.items)


@tool(effect="pure")
def counts_on(items: list[int]) -> int:
    """Breaks law 14: a tool that says that it is pure counts its calls."""
    LEFT.append(items)
    return len(LEFT)


class NeedsMore(Toy):
    """Breaks law 17: the parameters do not say what is required."""

    parameters: Mapping[str, Any] = {"type": "object", "required": ["count"]}


class PromisesText(Toy, CanDescribeResult):
    """Breaks law 17: the results have another form than their schema says."""

    result_schema = freeze_object({"type": "string"})


class LeavesTask(Toy):
    """Breaks law 19: a task goes on after the call."""

    async def use(self, *_: Any, items: list[int]) -> Any:
        LEFT.append(asyncio.ensure_future(asyncio.Event().wait()))
        return len(items)


class EndsInPeace(Toy):
    """Breaks law 34: a call that is cancelled returns a result."""

    async def use(self, *_: Any, items: list[int]) -> Any:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return 0
        return len(items)


@tool(effect="pure")
async def ignores_cancellation(items: list[int], context: ToolContext) -> str:
    """Breaks law 34: a call of a function with a context, which is cancelled, returns a result."""
    try:
        await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return "never mind"
    return context.agent_id


class KeepsItsAnswer(Toy, CanPresentResult):
    """Breaks law 41: the error about a result of another form does not have the result."""

    def present(self, result: Any) -> ToolResult:
        if not isinstance(result, int):
            raise ToolFailed("the result is no number")
        return ToolResult(result)


def _tool(law: int, subject: Any) -> Member:
    def make(examples: int) -> ToolKit:
        factory = subject if isinstance(subject, type) else lambda: subject
        return ToolKit(factory, [{"items": [1, 2]}, {"items": [3]}], examples=min(examples, 4))

    return Member(subject, law, make)


OTHERS: tuple[Member, ...] = (
    _compiler(2, TearsMessages),
    _compiler(2, LeavesOutCalls),
    _compiler(3, WritesIntoState),
    _compiler(8, CountsCompilations),
    _compiler(9, KeepsFirstConversation),
    _compiler(13, SlidesSilently),
    _compiler(13, RepeatsEpochs),
    _inference(3, ChangesRequests),
    _inference(6, CountsUnknownAsZero),
    _inference(6, CountsLastRequest),
    _inference(7, StreamsTwice),
    _inference(9, MixesRequests),
    _inference(9, MixesStreams),
    _inference(9, MixesTexts),
    _inference(9, KeepsScope),
    _inference(18, ShowsKey),
    _inference(19, LeavesRequests),
    _inference(19, LeavesSockets),
    _inference(33, DropsOptions),
    _inference(33, SamplesAtZero),
    _inference(34, SwallowsCancellation),
    _listener(3, rewrites_events),
    _listener(7, knows_few_events),
    _listener(7, returns_awaitables),
    _listener(8, MeddlesWithCalls),
    _listener(19, leaves_tasks),
    _mode(2, RendersBareCalls),
    _mode(3, ChangesWhatItRenders),
    _mode(8, ShufflesTools),
    _mode(9, KeepsFirstTools),
    _mode(9, KeepsBoundTools),
    _mode(12, FindsNoCalls),
    _mode(12, ForgetsTokens),
    _mode(13, CountsMessages),
    _mode(31, FailsOnBraces),
    _mode(33, RebuildsRequests),
    _mode(39, SwallowsBrokenCalls),
    _mode(39, ForgetsBrokenCalls),
    _mode(39, MakesTheFirstCall),
    _mode(39, RunsQuotations),
    _mode(39, HidesQuotations),
    _store(9, IgnoresNamespaces),
    _store(36, ForgetsNothing),
    _store(36, EvictsNothing),
    _store(36, LosesUpdates),
    _accounts(9, KeepsOneSum),
    _accounts(36, ForgetsReservations),
    _accounts(36, LosesChanges),
    _grants(9, SharesGrants),
    _grants(9, ReplacesGrants),
    _grants(36, LosesUses),
    _grants(43, CountsFirst),
    _grants(43, CountsEachAppend),
    _grants(43, ForgetsUses),
    _tool(3, SortsInPlace),
    _tool(9, KeepsItsCall),
    _tool(14, counts_on),
    _tool(17, NeedsMore),
    _tool(17, PromisesText),
    _tool(19, LeavesTask),
    _tool(34, EndsInPeace),
    _tool(34, ignores_cancellation),
    _tool(41, KeepsItsAnswer),
)
