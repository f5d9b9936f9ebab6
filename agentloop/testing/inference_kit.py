"""The law suite of inferences."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.errors import ProviderUnavailable, UnsupportedOption
from agentloop.testing.clocks import CountingIds, LoopClock, run_in_virtual_time
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.testing.scenario import SCENARIOS, Scenario
from agentloop.testing.surroundings import Surroundings
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.tools.decorator import collect_tools
from agentloop.values.inference import (
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    Usage,
    iter_deltas,
)
from agentloop.values.messages import Message
from agentloop.values.serialization import to_json, to_plain
from agentloop.values.steps import NO_USAGE

T = TypeVar("T")

_FAILING = -1
SAMPLE_OPTIONS = (
    InferenceOptions(temperature=0.25),
    InferenceOptions(top_p=0.75),
    InferenceOptions(max_tokens=1234),
    InferenceOptions(stop=("one", "two")),
    InferenceOptions(seed=4321),
)
"""Options of a request, one at a time, that can be recognized wherever they arrive."""
_TURN = re.compile(r"\bturn (-?\d+)\b")


class AnsweringModel(CanInfer):
    """The model behind the inference under test: its answer follows from the request alone.

    A request that the inference makes of one of the kit, such as to improve an answer to it, is answered by the same turn.

    Args:
        scenario: its answers.

    Attributes:
        requests: what it was asked.
        usages: the tokens of each of its responses.
        delay: the seconds before each delta and before the answer.
        resources: what an inference that is bound to an execution opens for it.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.requests: list[InferenceRequest] = []
        self.usages: list[Usage] = []
        self.delay: float = 0.0
        self.resources: Resources = Resources()

    def scope(self) -> ExecutionScope:
        """Return the scope of a new execution."""
        opened = self.resources
        return ExecutionScope(
            clock=LoopClock(),
            ids=CountingIds(),
            local_resources=opened,
            shared_resources=opened,
            kept_resources=opened,
        )

    def request(self, turn: int) -> InferenceRequest:
        """Return a request that is answered by a turn, 0-based; that of -1 fails."""
        tools = collect_tools(toy_tools(Ledger()))
        return InferenceRequest((Message.user(f"turn {turn}"),), "Play.", tools.specs)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answer the request.

        Raises:
            ProviderUnavailable: the request asks for that.
        """
        self.requests.append(request)
        await asyncio.sleep(self.delay)
        turn = _turn_of(request)
        if turn == _FAILING:
            raise ProviderUnavailable("the model of the kit fails as it was asked to")
        response = self._scenario.turns[turn].response(turn)
        self.usages.append(response.usage)
        return response

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Stream the answer.

        Raises:
            ProviderUnavailable: the request asks for that.
        """
        response = await self.infer(request)
        for delta in iter_deltas(response):
            await asyncio.sleep(self.delay)
            yield delta
        yield response


class InferenceKit(Kit):
    """Checks an inference against the laws of `CanInfer`, in front of a model of the kit.

    An inference that wraps another one gets that model as the other one. A client of a service needs a server that answers with
    the model; its time is not virtual.

    Args:
        factory: creates the inference in front of a model. The kit binds it to a scope if it accepts one, as an execution does.
        secrets: the keys that it was given; without any, law 18 says nothing.
        is_virtual: whether it runs in virtual time; False for one that does I/O, about which law 33 says nothing: what a server
            makes of an option is not known.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (3, 6, 7, 9, 18, 19, 33, 34)

    def __init__(
        self,
        factory: Callable[[CanInfer], CanInfer],
        *,
        secrets: Iterable[str] = (),
        is_virtual: bool = True,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[CanInfer], CanInfer] = checked_factory(factory)
        self.secrets: tuple[str, ...] = tuple(secrets)
        self.is_virtual = is_virtual

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return run_in_virtual_time(work) if self.is_virtual else asyncio.run(work)

    def _for_scenarios(self, check: Callable[[AnsweringModel, CanInfer, Scenario], Coroutine[Any, Any, None]]) -> None:
        async def run(scenario: Scenario) -> None:
            model = AnsweringModel(scenario)
            try:
                await check(model, self._bound(model), scenario)
            finally:
                await model.resources.aclose()

        self.for_all(SCENARIOS, lambda scenario: self._run(run(scenario)))

    def _bound(self, model: AnsweringModel) -> CanInfer:
        """Return a new inference, bound to an execution if it accepts that."""
        inference = self.factory(model)
        if not isinstance(inference, CanAcceptExecutionScope):
            return inference
        return inference.with_execution_scope(model.scope())

    def law_3(self) -> None:
        """The request is not changed."""

        async def holds(model: AnsweringModel, inference: CanInfer, _: Scenario) -> None:
            request = model.request(0)
            before = to_json(request)
            await inference.infer(request)
            await _drain(inference, request)
            require(3, to_json(request) == before, "the request was changed")

        self._for_scenarios(holds)

    def law_6(self) -> None:
        """The response has the tokens of all requests of this inference; what the model did not report is unknown."""

        async def holds(model: AnsweringModel, inference: CanInfer, scenario: Scenario) -> None:
            for index in range(len(scenario.turns)):
                model.usages.clear()
                response = await inference.infer(model.request(index))
                used = sum(model.usages, NO_USAGE)
                requests = {"requests": max(response.usage.requests, used.requests)}  # failed attempts count, too
                same = response.usage == evolve(used, **requests)
                reported = " and ".join(map(repr, model.usages))
                require(6, same, f"the model reported {reported or 'nothing'}, and the response has {response.usage}")

        self._for_scenarios(holds)

    def law_7(self) -> None:
        """A stream yields deltas, and then, as its end, the response that `infer` returns."""

        async def holds(model: AnsweringModel, inference: CanInfer, scenario: Scenario) -> None:
            for index in range(len(scenario.turns)):
                whole = await inference.infer(model.request(index))
                items = await _drain(inference, model.request(index))
                ends = [place for place, item in enumerate(items) if isinstance(item, InferenceResponse)]
                require(7, ends == [len(items) - 1], f"of {len(items)} items, {ends} are responses")
                last = items[-1]
                same = isinstance(last, InferenceResponse) and _content(last) == _content(whole)
                require(7, same, f"streamed {last!r:.500}, returned {whole!r:.500}")

        self._for_scenarios(holds)

    def law_9(self) -> None:
        """Concurrent requests get their own responses, streamed or not, and a scope is kept in a copy."""

        async def holds(model: AnsweringModel, inference: CanInfer, scenario: Scenario) -> None:
            kept = _keeps_scope(self.factory(model), model)
            require(
                9,
                not kept,
                "with_execution_scope changed the inference in place of a copy, so that executions share it",
            )
            requests = [model.request(index) for index in range(len(scenario.turns))]
            one_by_one = self._bound(model)  # another one, since one may keep answers
            alone = [_said(await one_by_one.infer(request)) for request in requests]
            model.delay, streaming = 0.01, self._bound(model)
            together = await asyncio.gather(*map(inference.infer, requests))
            streams = await asyncio.gather(*[_drain(streaming, request) for request in requests])
            for said in (list(map(_said, together)), [_said(items[-1]) for items in streams]):
                require(9, said == alone, f"requests at the same time got {said}, and one after the other {alone}")

        self._for_scenarios(holds)

    def law_18(self) -> None:
        """No key is in the repr, in an error or in a response."""

        async def holds(model: AnsweringModel, inference: CanInfer, _: Scenario) -> None:
            texts = [repr(inference), str(inference), to_json(await inference.infer(model.request(0))).decode()]
            try:
                await inference.infer(model.request(_FAILING))
            except Exception as error:  # noqa: BLE001  # every error may be shown
                texts += [str(error), repr(error), str(error.__cause__)]
            found = [text for text in texts if any(secret in text for secret in self.secrets)]
            require(18, not found, f"a key is in {found}")

        self._for_scenarios(holds)

    def law_19(self) -> None:
        """No task and no socket outlives an inference, also one that failed or was not read to its end.

        What the first inference opens, such as the connections of a client of its own, may stay open, but not become more.
        """

        async def holds(model: AnsweringModel, inference: CanInfer, _: Scenario) -> None:
            await inference.infer(model.request(0))
            before = Surroundings.now()
            stream = inference.stream(model.request(0))
            async for _item in stream:
                break
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
            await asyncio.gather(inference.infer(model.request(_FAILING)), return_exceptions=True)
            await before.require_tasks_and_sockets()

        self._for_scenarios(holds)

    def law_33(self) -> None:
        """An option of a request is one of what is sent to the model, unless the inference refuses it."""

        async def holds(model: AnsweringModel, _: CanInfer, __: Scenario) -> None:
            for options in SAMPLE_OPTIONS:
                request = model.request(0).with_options(options)
                for is_streamed in (False, True):
                    model.requests.clear()
                    inference = self._bound(model)  # a new one, since one may keep answers
                    with suppress(UnsupportedOption):
                        await (_drain(inference, request) if is_streamed else inference.infer(request))
                        sent = [each.options for each in model.requests]
                        arrives = any(has_options(each, options) for each in sent)
                        shown = [to_plain(each) for each in sent]
                        require(
                            33, arrives, f"a request has {to_plain(options)}, and what is sent to the model {shown}"
                        )

        if self.is_virtual:
            self._for_scenarios(holds)

    def law_34(self) -> None:
        """An inference that is cancelled raises the cancellation, and sends nothing more."""

        async def holds(model: AnsweringModel, inference: CanInfer, _: Scenario) -> None:
            model.delay = 60.0
            for start in (inference.infer, partial(_drain, inference)):
                task: asyncio.Task[object] = asyncio.ensure_future(start(model.request(0)))
                await asyncio.sleep(0.1)
                sent = len(model.requests)
                task.cancel()
                await asyncio.wait([task])
                require(34, task.cancelled(), "the inference was cancelled, and did not raise that")
                require(34, len(model.requests) == sent, "the inference sent a request after it was cancelled")

        self._for_scenarios(holds)


def _keeps_scope(inference: CanInfer, model: AnsweringModel) -> bool:
    """Return whether an inference that is bound to a scope is itself changed by that."""
    if not isinstance(inference, CanAcceptExecutionScope):
        return False
    before = dict(getattr(inference, "__dict__", {}))
    if inference.with_execution_scope(model.scope()) is not inference:
        return False
    return any(value is not before.get(name) for name, value in getattr(inference, "__dict__", {}).items())


def has_options(sent: InferenceOptions, asked: InferenceOptions) -> bool:
    """Return whether what is sent has all options that were asked for, with the same values.

    What sends it may add texts that end the response.
    """
    actual, expected = to_plain(sent), to_plain(asked)  # without those that are left to the provider
    return all(
        set(value) <= set(actual.get(name, ())) if isinstance(value, list) else actual.get(name) == value
        for name, value in expected.items()
    )


async def _drain(inference: CanInfer, request: InferenceRequest) -> Sequence[InferenceDelta | InferenceResponse]:
    return [item async for item in inference.stream(request)]


def _turn_of(request: InferenceRequest) -> int:
    """Return the turn that a request asks for, whatever an inference has put around the message that says so."""
    text = " ".join([message.text for message in request.messages if message.role == "user"])
    return int(_TURN.findall(text)[-1])


def _content(response: InferenceResponse) -> object:
    return response.parts, response.finish_reason, response.usage


def _said(response: InferenceDelta | InferenceResponse) -> object:
    """Return the text and the calls of a response, whose ids may differ each time."""
    if not isinstance(response, InferenceResponse):
        return response
    return response.text, [(call.name, call.arguments) for call in response.tool_calls]
