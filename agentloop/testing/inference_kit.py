"""The law suite of inferences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.errors import InferenceError, UnsupportedOption
from agentloop.testing.answering_model import FAILING, AnsweringModel
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.clocks import run_in_virtual_time
from agentloop.testing.kit import PLACES, Kit, LawViolation, checked_factory, require
from agentloop.testing.samples import (
    FIDELITY,
    NUMBERED_ANSWERS,
    RICH_ANSWERS,
    RICH_REQUESTS,
    VARIANTS,
    digest_of,
    missing_marks,
    rich_requests,
)
from agentloop.testing.scenario import SCENARIOS, Scenario
from agentloop.testing.surroundings import Surroundings
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
)
from agentloop.values.serialization import to_json, to_plain
from agentloop.values.steps import NO_USAGE

T = TypeVar("T")

_MAX_TICKS = 6
_PATIENCE = 10.0
_A_DAY = 86_400.0
_REUSE = "Cancellation: a component that was cancelled, closed early or failed works as before."
SAMPLE_OPTIONS = (
    InferenceOptions(temperature=0.25),
    InferenceOptions(top_p=0.75),
    InferenceOptions(max_tokens=1234),
    InferenceOptions(stop=("one", "two")),
    InferenceOptions(seed=4321),
)
"""Options of a request, one at a time, that can be recognized wherever they arrive."""


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

    laws: tuple[int, ...] = (3, 6, 7, 9, 18, 19, 23, 33, 34, FIDELITY, YIELDING)

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

    def _on_model(
        self,
        check: Callable[[AnsweringModel], Coroutine[Any, Any, None]],
        answers: Sequence[InferenceResponse] = NUMBERED_ANSWERS,
    ) -> None:
        """Run a check in front of a new model with these answers."""

        async def run() -> None:
            model = AnsweringModel(Scenario())
            model.answers = dict(enumerate(answers))
            try:
                await check(model)
            finally:
                await model.resources.aclose()

        self._run(run())

    def _on_each(self, names: Iterable[str], check: Callable[..., Coroutine[Any, Any, None]]) -> None:
        """Run a check in front of a new model for each name."""
        self.for_each(names, lambda name: self._on_model(partial(check, name=name)))

    async def _in_time(self, work: Coroutine[Any, Any, T], after: str) -> T:
        """Await what has to end by itself: in virtual time within a day, in real time within some seconds.

        Raises:
            LawViolation: it does not end (law 34).
        """
        try:
            return await asyncio.wait_for(work, _A_DAY if self.is_virtual else _PATIENCE)
        except TimeoutError:
            said = f"{after}, the next request does not end"
            raise LawViolation(34, said, sentence=_REUSE, took_time=not self.is_virtual) from None

    def law_3(self) -> None:
        """The request is not changed."""

        async def holds(model: AnsweringModel, inference: CanInfer, _: Scenario) -> None:
            for request in (model.request(0), rich_requests(model.request(0))["calls"]):
                before = to_json(request)
                with suppress(InferenceError):
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
        """A stream yields deltas, and then, as its end, the response that `infer` returns; a new attempt is a new number."""

        async def holds(model: AnsweringModel, inference: CanInfer, scenario: Scenario) -> None:
            for index in range(len(scenario.turns)):
                await self._require_same_stream(model, inference, index)

        self._for_scenarios(holds)
        for breaks in (0, 1, PLACES):
            self._on_model(partial(self._require_streams, breaks=breaks), RICH_ANSWERS)

    async def _require_same_stream(self, model: AnsweringModel, inference: CanInfer, index: int) -> None:
        model.usages.clear()
        whole = await inference.infer(model.request(index))
        asked = len(model.usages)
        items = await _drain(inference, model.request(index))
        # An answer that was kept may cost nothing.
        is_asked = bool(asked) and len(model.usages) > asked
        ends = [place for place, item in enumerate(items) if isinstance(item, InferenceResponse)]
        require(7, ends == [len(items) - 1], f"of {len(items)} items, {ends} are responses")
        last = items[-1]
        same = isinstance(last, InferenceResponse) and _content(last) == _content(whole)
        require(7, same, f"streamed {last!r:.500}, returned {whole!r:.500}")
        same = isinstance(last, InferenceResponse) and (not is_asked or last.usage == whole.usage)
        require(7, same, f"streamed {last!r:.500}, returned {whole!r:.500}")

    async def _require_streams(self, model: AnsweringModel, breaks: int) -> None:
        """Check the streams of rich answers, also where the first one or every one breaks off."""
        for index in model.answers:
            inference = self._bound(model)
            if not breaks:
                await self._require_same_stream(model, self._bound(model), index)
            model.breaks = breaks
            items: list[InferenceDelta | InferenceResponse] = []
            error: Exception | None = None
            try:
                async for item in inference.stream(model.request(index)):
                    items.append(item)  # noqa: PERF401  # what comes before an error counts
            except InferenceError as raised:
                error = raised
            last = items[-1] if items else None
            is_whole = isinstance(last, InferenceResponse)
            broken = "a stream of the model broke off, and that of the inference" if breaks else "the stream"
            require(7, error or is_whole, f"{broken} ends without a response and without an error")
            if error is None and isinstance(last, InferenceResponse):
                _require_deltas(items, last)

    def law_9(self) -> None:
        """Each request gets its own response, streamed or not, whatever was asked before, at once, or of another inference."""

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

        for is_streamed in (False, True):
            self._on_each(VARIANTS, partial(self._require_variant, is_streamed=is_streamed))
            self._on_model(partial(self._require_executions, is_streamed=is_streamed), NUMBERED_ANSWERS)
            self._on_model(partial(self._require_in_turn, is_streamed=is_streamed), NUMBERED_ANSWERS)
            self._on_model(partial(self._require_other_callers, is_streamed=is_streamed), NUMBERED_ANSWERS)
        self._on_model(self._require_instances, NUMBERED_ANSWERS)

    async def _require_variant(self, model: AnsweringModel, name: str, *, is_streamed: bool) -> None:
        """Check that requests which differ in one entry alone get their own answers, in either order."""
        model.tells_request = True
        requests = [change(model.request(0)) for change in VARIANTS[name]]
        alone = [await _answer(self._bound(model), each, is_streamed=is_streamed) for each in requests]
        for order in ((0, 1), (1, 0)):
            shared = self._bound(model)
            for index in order:
                answer = await _answer(shared, requests[index], is_streamed=is_streamed)
                said = f"after a request that differs from it only in {name}, a request got {answer}, and alone {alone[index]}"
                require(9, answer == alone[index], said)

    async def _require_executions(self, model: AnsweringModel, *, is_streamed: bool) -> None:
        """Check that executions which share an inference get their own answers."""
        shared, count = self.factory(model), len(model.answers)
        bound = [
            shared.with_execution_scope(model.scope()) if isinstance(shared, CanAcceptExecutionScope) else shared
            for _ in range(count)
        ]
        model.delay = 0.01
        asked = [_answer(each, model.request(index), is_streamed=is_streamed) for index, each in enumerate(bound)]
        answers = await asyncio.gather(*asked)
        expected = [_said(answer) for answer in model.answers.values()]
        require(9, answers == expected, f"executions at the same time got {answers}, not {expected}")

    async def _require_in_turn(self, model: AnsweringModel, *, is_streamed: bool) -> None:
        """Check that requests in turn get their own answers, though nobody keeps them, so that one may have the identity of another."""
        inference, count = self._bound(model), len(model.answers)
        for number in range(PLACES):
            index = number % count
            answer = await _answer(inference, model.request(index), is_streamed=is_streamed)
            expected = _said(model.answers[index])
            require(9, answer == expected, f"a request in turn got {answer}, and the answer to it is {expected}")
            model.requests.clear()
            model.answered.clear()

    async def _require_other_callers(self, model: AnsweringModel, *, is_streamed: bool) -> None:
        """Check that of two callers with equal requests, one that is cancelled takes nothing away from the other one."""
        model.delay = 0.01
        expected = _said(model.answers[0])
        for ticks in range(_MAX_TICKS):
            for place in (0, 1):
                inference = self._bound(model)
                asked = [_answer(inference, model.request(0), is_streamed=is_streamed) for _ in range(2)]
                callers = [asyncio.ensure_future(each) for each in asked]
                for _ in range(ticks):
                    await asyncio.sleep(0)
                callers[place].cancel()
                await asyncio.wait(callers, timeout=_A_DAY if self.is_virtual else _PATIENCE)
                other = callers[1 - place]
                got = _outcome_of(other)
                said = f"of two callers with equal requests, one was cancelled, and the other one got {got}"
                require(9, got == expected, said)
        inference = self._bound(model)
        asked = [_answer(inference, model.request(turn), is_streamed=is_streamed) for turn in (FAILING, 0)]
        _, got = await asyncio.gather(*asked)
        require(9, got == expected, f"of two requests at the same time, one failed, and the other one got {got}")

    async def _require_instances(self, model: AnsweringModel) -> None:
        """Check that two inferences in front of two models do not answer for each other."""
        other = AnsweringModel(Scenario())
        other.answers = dict(enumerate(reversed(model.answers.values())))
        inferences = [self._bound(model), self._bound(other)]
        for index in model.answers:
            for each, asked in zip(inferences, (model, other), strict=True):
                answer, expected = _said(await each.infer(model.request(index))), _said(asked.answers[index])
                require(
                    9, answer == expected, f"beside another inference, one got {answer}, and its model said {expected}"
                )
        await other.resources.aclose()

    def law_18(self) -> None:
        """No key is in the repr, in an error or in a response."""

        async def holds(model: AnsweringModel, inference: CanInfer, _: Scenario) -> None:
            texts = [repr(inference), str(inference), to_json(await inference.infer(model.request(0))).decode()]
            try:
                await inference.infer(model.request(FAILING))
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
            await asyncio.gather(inference.infer(model.request(FAILING)), return_exceptions=True)
            await before.require_tasks_and_sockets()

        self._for_scenarios(holds)

    def law_23(self) -> None:
        """An answer that did not end normally is returned as one, or raises an error."""

        async def holds(model: AnsweringModel, reason: FinishReason) -> None:
            for is_streamed in (False, True):
                for answer in list(model.answers):
                    inference = self._bound(model)
                    with suppress(InferenceError):
                        items = await _ask(inference, model.request(answer), is_streamed=is_streamed)
                        last = items[-1]
                        ended = last.finish_reason if isinstance(last, InferenceResponse) else None
                        kept = ended is not None and ended.is_incomplete
                        require(
                            23,
                            kept,
                            f"the answer of the model ended with {reason!r}, and that of the inference with {ended!r}",
                        )

        def check(reason: FinishReason) -> None:
            self._on_model(partial(holds, reason=reason), [evolve(each, finish_reason=reason) for each in RICH_ANSWERS])

        if self.is_virtual:
            self.for_each([reason for reason in FinishReason if reason.is_incomplete], check)

    def law_33(self) -> None:
        """An option of a request is one of what is sent to the model, unless the inference refuses it."""

        async def holds(model: AnsweringModel, _: CanInfer, __: Scenario) -> None:
            for options in SAMPLE_OPTIONS:
                request = model.request(0).with_options(options)
                for is_streamed in (False, True):
                    model.requests.clear()
                    inference = self._bound(model)  # a new one, since one may keep answers
                    with suppress(UnsupportedOption):
                        await _ask(inference, request, is_streamed=is_streamed)
                        sent = [each.options for each in model.requests]
                        arrives = any(has_options(each, options) for each in sent)
                        shown = [to_plain(each) for each in sent]
                        require(
                            33, arrives, f"a request has {to_plain(options)}, and what is sent to the model {shown}"
                        )

        if self.is_virtual:
            self._for_scenarios(holds)
            self.for_each(
                SAMPLE_OPTIONS, lambda options: self._on_model(partial(self._require_options, options=options))
            )

    async def _require_options(self, model: AnsweringModel, options: InferenceOptions) -> None:
        """Check that an option is one of what is sent again after a failure."""
        for is_streamed in (False, True):
            model.failures = 1
            model.answered.clear()
            with suppress(InferenceError):
                request = model.request(0).with_options(options)
                await _ask(self._bound(model), request, is_streamed=is_streamed)
                arrives = any(has_options(each.options, options) for each in model.answered)
                said = f"a request has {to_plain(options)}, which is not sent again after a failure"
                require(33, arrives, said)

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
        self._require_reuse()

    def _require_reuse(self) -> None:
        """Check that an inference answers as before after requests that were cancelled, closed early, or failed."""
        self.for_each(
            range(_MAX_TICKS),
            lambda ticks: self._on_model(partial(self._cancel_and_ask, ticks=ticks), NUMBERED_ANSWERS),
        )
        self._on_model(self._close_and_ask, NUMBERED_ANSWERS)
        self._on_model(self._fail_and_ask, NUMBERED_ANSWERS)

    async def _require_answers(self, model: AnsweringModel, inference: CanInfer, after: str) -> None:
        for index, expected in model.answers.items():
            for is_streamed in (False, True):
                asked = _answer(inference, model.request(index), is_streamed=is_streamed)
                answer = await self._in_time(asked, after)
                require(
                    34,
                    answer == _said(expected),
                    f"{after}, the inference gives {answer}, not {_said(expected)}",
                    sentence=_REUSE,
                )

    async def _cancel_and_ask(self, model: AnsweringModel, ticks: int) -> None:
        for start in (CanInfer.infer, _drain):
            inference = self._bound(model)
            for _ in range(PLACES):
                ask = inference.infer if start is CanInfer.infer else partial(_drain, inference)
                task: asyncio.Task[object] = asyncio.ensure_future(ask(model.request(0)))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            await self._require_answers(
                model, inference, f"after a request that was cancelled after {ticks} iterations of the event loop"
            )

    async def _close_and_ask(self, model: AnsweringModel) -> None:
        inference = self._bound(model)
        for _ in range(PLACES):
            stream = inference.stream(model.request(0))
            async for _item in stream:
                break
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        await self._require_answers(model, inference, "after a stream that was closed early")

    async def _fail_and_ask(self, model: AnsweringModel) -> None:
        inference = self._bound(model)
        for _ in range(PLACES):
            for is_streamed in (False, True):
                with suppress(InferenceError):
                    failing = _ask(inference, model.request(FAILING), is_streamed=is_streamed)
                    await self._in_time(failing, "after a request that failed")
        # One that asks nothing for a while after several failures has asked again by then.
        if self.is_virtual:
            await asyncio.sleep(_A_DAY)
            await self._require_answers(model, inference, "a day after requests that failed")

    def law_44(self) -> None:
        """Everything in a request is sent, the whole answer is returned, and an error of the model is raised."""
        self._on_model(self._require_whole_answers, RICH_ANSWERS)
        self._on_model(self._require_errors)
        if self.is_virtual:
            for failures in (0, 1):
                self._on_each(RICH_REQUESTS, partial(self._require_whole_request, failures=failures))
            self._on_each(VARIANTS, self._require_difference)

    async def _require_whole_answers(self, model: AnsweringModel) -> None:
        for index, expected in model.answers.items():
            for is_streamed in (False, True):
                answer = await _answer(self._bound(model), model.request(index), is_streamed=is_streamed)
                said = f"the model answered {expected!r:.300}, and the inference returned {answer!r:.300}"
                require(FIDELITY, answer == _said(expected), said)

    async def _require_errors(self, model: AnsweringModel) -> None:
        for is_streamed in (False, True):
            model.breaks = PLACES * int(is_streamed)
            for turn in (FAILING, *([0] if is_streamed else [])):
                try:
                    items = await _ask(self._bound(model), model.request(turn), is_streamed=is_streamed)
                except InferenceError:
                    continue
                answered = model.answered and isinstance(items[-1], InferenceResponse) and turn != FAILING
                is_true = answered and _said(items[-1]) == _said(model.answers[0])
                require(
                    FIDELITY, is_true, f"each request to the model failed, and the inference returns {items!r:.500}"
                )

    async def _require_whole_request(self, model: AnsweringModel, name: str, failures: int) -> None:
        request = rich_requests(model.request(0))[name]
        for is_streamed in (False, True):
            model.failures = failures
            model.answered.clear()
            try:
                await _ask(self._bound(model), request, is_streamed=is_streamed)
            except InferenceError:
                continue  # refused
            missing = min([missing_marks(request, to_json(each)) for each in model.answered], key=len)
            again = " again after a failure" if failures else ""
            said = f"of a request with {name}, what is sent to the model{again} lacks {' '.join(missing)}"
            require(FIDELITY, not missing, said)

    async def _require_difference(self, model: AnsweringModel, name: str) -> None:
        """Check that two requests which differ in one entry alone are not sent as if they did not."""
        for is_streamed in (False, True):
            sent: list[list[str]] = []
            for change in VARIANTS[name]:
                model.answered.clear()
                try:
                    await _ask(self._bound(model), change(model.request(0)), is_streamed=is_streamed)
                except InferenceError:
                    continue  # refused
                sent.append([digest_of(each) for each in model.answered])
            differ = sent[1:] != sent[:1] or not sent
            require(FIDELITY, differ, f"two requests that differ in {name} are sent as equal ones")

    def law_45(self) -> None:
        """The event loop runs while the inference waits."""

        async def ask(model: AnsweringModel) -> None:
            inference = self._bound(model)
            for is_streamed in (False, True):
                await _ask(inference, model.request(0), is_streamed=is_streamed)

        refuse_blocking(self._on_model)(ask)


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


async def _ask(
    inference: CanInfer, request: InferenceRequest, *, is_streamed: bool
) -> Sequence[InferenceDelta | InferenceResponse]:
    """Return what is streamed, or the response alone."""
    return await _drain(inference, request) if is_streamed else [await inference.infer(request)]


async def _answer(inference: CanInfer, request: InferenceRequest, *, is_streamed: bool) -> object:
    """Return the text and the calls of the response, or the name of the error with which the request is refused."""
    try:
        return _said((await _ask(inference, request, is_streamed=is_streamed))[-1])
    except InferenceError as error:
        return type(error).__name__


def _outcome_of(task: asyncio.Future[object]) -> object:
    """Return what a caller got, or how it ended; one that still waits is cancelled."""
    if task.cancel():
        return "nothing in time"
    if task.cancelled():
        return "a cancellation"
    return task.exception() or task.result()


def _require_deltas(items: Sequence[InferenceDelta | InferenceResponse], response: InferenceResponse) -> None:
    """Check that the texts of the last attempt are the text of the response, if there are any."""
    deltas = [item for item in items if isinstance(item, InferenceDelta)]
    last = max([delta.attempt for delta in deltas], default=1)
    streamed = "".join([delta.text for delta in deltas if delta.kind == "text" and delta.attempt == last])
    # Space at the ends of an answer may be dropped when it is whole.
    same = not streamed or streamed.strip() == response.text.strip()
    require(7, same, f"the texts of the last attempt are {streamed!r:.300}, and the response is {response.text!r:.300}")


async def _drain(inference: CanInfer, request: InferenceRequest) -> Sequence[InferenceDelta | InferenceResponse]:
    return [item async for item in inference.stream(request)]


def _content(response: InferenceResponse) -> object:
    return response.parts, response.finish_reason


def _said(response: InferenceDelta | InferenceResponse) -> object:
    """Return the text and the calls of a response, whose ids may differ each time."""
    if not isinstance(response, InferenceResponse):
        return response
    return response.text, [(call.name, call.arguments) for call in response.tool_calls]
