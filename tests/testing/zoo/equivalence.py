"""Drivers that behave otherwise than the reference driver, and parts that make an eager start visible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from attrs import evolve, frozen

from agentloop import Message, ReActDriver, ToolCall, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.drivers import StepDraft
from agentloop.executors.eager import EagerBatch, _EarlyRun
from agentloop.interception import at
from agentloop.interception.stack import InterceptorStack
from agentloop.testing import NOTATIONS, EagerStartKit, EquivalenceKit
from agentloop.values import Effect, InferenceRequest, InferenceResponse, ResponsePart, Text
from tests.testing.zoo.zoo import Member


@frozen(kw_only=True)
class SkipsAPoint(ReActDriver):
    """Breaks the law: the point `after_inference` is skipped."""

    async def infer(
        self, draft: StepDraft, request: InferenceRequest, *, inference: CanInfer | None = None
    ) -> InferenceResponse:
        stack = self.interceptor
        stack_without = InterceptorStack.of(
            [at("before_inference", stack.handle), at("around_inference", stack.around)]
        )
        without = evolve(self, interceptor=stack_without)
        return await super(SkipsAPoint, without).infer(draft, request, inference=inference)


@frozen(kw_only=True)
class ReversesCalls(ReActDriver):
    """Breaks the law: calls are in another order."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        return tuple(reversed(await super().decide(draft, messages)))


@frozen(kw_only=True)
class ChangesArguments(ReActDriver):
    """Breaks the law: an argument differs from the model's."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple([_rounded(part) if isinstance(part, ToolCall) else part for part in parts])


@frozen(kw_only=True)
class ChangesAnswer(ReActDriver):
    """Breaks the law: the answer gets another wording."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple([Text(f"{part.text}!") if isinstance(part, Text) else part for part in parts])


@frozen(kw_only=True)
class AnswersAtOnce(ReActDriver):
    """Breaks the law: calls are dropped, and the first step is the last."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple([part for part in parts if not isinstance(part, ToolCall)]) or (Text("done"),)


def _rounded(call: ToolCall) -> ToolCall:
    return call.with_arguments({**call.arguments, "value": 10 * (int(str(call.arguments["value"])) // 10)})


def _driver_member(driver: Any) -> Member:
    def make(examples: int) -> EquivalenceKit:
        return EquivalenceKit(
            lambda scenario: driver(scenario.inference(NOTATIONS["react-json"]), output="json"), examples=examples
        )

    return Member(driver, 12, make)


EQUIVALENCE: tuple[Member, ...] = tuple(
    map(_driver_member, (SkipsAPoint, ReversesCalls, ChangesArguments, ChangesAnswer, AnswersAtOnce))
)


# --- eager start ------------------------------------------------------------------------------------------------------


def drop_silently(batch: Any) -> None:
    """Discard runs without a trace."""
    for run in batch._runs.values():
        run.discard()
    batch._begin()


def leave_running(batch: Any) -> None:
    """Forget runs instead of ending them."""
    batch._all_runs._tasks.clear()
    batch._begin()


def serve_any_call(*_: Any) -> bool:
    """Use the outcome of another call."""
    return True


def start_any_call(*_: Any) -> bool:
    """Start calls that have an effect."""
    return True


def start_no_call(*_: Any) -> bool:
    """Start no call before its answer is complete."""
    return False


class PatchedEagerKit(EagerStartKit):
    """A kit that checks the driver of the package while one of its parts is another one."""

    place: type
    name: str
    broken: Any

    def check(self, law: int) -> None:
        with mock.patch.object(self.place, self.name, self.broken):
            super().check(law)


def eager_driver(model: CanInfer, eager: bool) -> ToolCallingDriver:  # noqa: FBT001  # of the kit
    return ToolCallingDriver(model, streaming=True, eager=eager, max_retries=0)


def _eager_member(law: int, place: type, name: str, broken: Any, effect: Effect = Effect.PURE) -> Member:
    def make(examples: int) -> EagerStartKit:
        kit = PatchedEagerKit(eager_driver, effect=effect, examples=4 * examples)
        kit.place, kit.name, kit.broken = place, name, broken
        return kit

    return Member(broken, law, make)


EAGER: tuple[Member, ...] = (
    _eager_member(7, _EarlyRun, "serves", serve_any_call),
    _eager_member(8, _EarlyRun, "serves", serve_any_call),
    _eager_member(12, EagerBatch, "discard", drop_silently),
    _eager_member(14, EagerBatch, "_may_run_early", start_any_call, Effect.EFFECT),
    _eager_member(19, EagerBatch, "discard", leave_running),
    _eager_member(38, EagerBatch, "_may_run_early", start_no_call),
)
