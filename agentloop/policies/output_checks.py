"""Checks of final answers that send the model back: functions of a program, and models as judges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from inspect import isawaitable
from typing import Any, Self, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle, OutputCheck
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import AskAgain, ContractViolation, InvalidOutput, InvalidParameter
from agentloop.events.bus import emit
from agentloop.events.execution import GuardrailTripped
from agentloop.interception.interceptor import Interceptor
from agentloop.policies.asking import WRITES, ask_again, times_asked
from agentloop.policies.guardrails import Finding, Inspection, ModelJudge, recorded_verdict, run_check
from agentloop.values.json import JsonObject
from agentloop.values.points import AfterStep
from agentloop.values.signatures import parameter_count
from agentloop.values.stop import NO_SIGNALS, StopReason

AnswerCheck: TypeAlias = Callable[..., object]
"""A plain or async function of an answer, or of an answer and an `Inspection`. It returns None, or raises `AskAgain`."""

_JUDGE_SECONDS = 60.0


def output_checks(checks: object) -> Sequence[AnswerCheck | ModelJudge]:
    """Return the checks of the parameter `output_check`.

    Raises:
        InvalidParameter: one of them is no check, or a function with other parameters.
    """
    listed: Sequence[object] = tuple(checks) if isinstance(checks, Iterable) else (checks,)
    return tuple([_as_check(check) for check in listed])


def checking_layer(
    checks: Sequence[AnswerCheck | ModelJudge], read: OutputCheck | None, max_retries: int
) -> CanIntercept:
    """Return the interceptor that asks these checks about final answers.

    Args:
        checks: the checks.
        read: parses the text of an answer into the output type; None for text.
        max_retries: how often the model may be sent back in an execution.
    """
    return OutputChecks(checks=checks, read=read, max_retries=max_retries)


def _as_check(check: object) -> AnswerCheck | ModelJudge:
    if isinstance(check, ModelJudge):
        return check
    if not callable(check):
        raise InvalidParameter(f"output_check is a function of the answer, or a ModelJudge, not {check!r:.100}")
    if parameter_count(check) not in {1, 2}:
        raise InvalidParameter(
            f"the output_check {_name_of(check)} has to take the answer, or the answer and an Inspection: write def check(answer) or "
            "def check(answer, inspection)"
        )
    return check


def _name_of(check: object) -> str:
    return str(getattr(check, "__name__", type(check).__name__))


@frozen(kw_only=True)
class OutputChecks(Interceptor, CanAcceptLifecycle, CanAcceptExecutionScope):
    """Asks checks about each final answer, in their order, until one refuses it.

    A refused answer stays in the conversation, followed by a message with the reason, and another step begins. After `max_retries`
    of them, the execution stops with the reason `retry_limit`, and keeps the last answer.

    Attributes:
        checks: the checks.
        read: parses the text of an answer into the output type; None for text.
        max_retries: how often the model may be sent back in an execution.
        priority: the position among other interceptors.
    """

    checks: Sequence[AnswerCheck | ModelJudge]
    read: OutputCheck | None = field(default=None, repr=False)
    max_retries: int = 2
    priority: int = 900
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False)
    _scope: ExecutionScope | None = field(default=None, repr=False, eq=False)
    writes: Collection[str] | None = field(default=WRITES, init=False, repr=False)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that emits what is refused to this bus."""
        return evolve(self, events=events)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy for one execution, whose judges are bound to it."""
        bound = [check.with_execution_scope(scope) if isinstance(check, ModelJudge) else check for check in self.checks]
        return evolve(self, checks=bound, scope=scope)

    async def after_step(self, point: AfterStep) -> AfterStep:
        """Check the answer of the step, if it has one that would complete the execution.

        Raises:
            ContractViolation: a check returned something.
            ValueError: a judge gave no verdict.
            Exception: what a check raised that is not an `AskAgain`.
        """
        state = point.state
        continuation = NO_SIGNALS if state.execution is None else state.execution.continuation
        text = state.final_text
        if text is None or continuation.requested or continuation.signals:
            return point
        try:
            answer = text if self.read is None else self.read(text)
        except InvalidOutput:  # of a loop with another type that the conversation was handed over to
            return point
        message = state.final_response
        inspection = Inspection("output", text, () if message is None else message.parts, state, point.dependencies)
        reason = ""
        for check in self.checks:
            if isinstance(check, ModelJudge):
                finding = await self._ask_judge(check, inspection)
                if finding.response is not None:
                    point = point.with_state(point.state.with_usage(finding.response.usage))
                reason = _verdict_of(check, finding)
            else:
                reason = await _ask(check, answer, inspection)
            if reason:
                return await self._refuse(point, reason)
        return point

    async def _refuse(self, point: AfterStep, reason: str) -> AfterStep:
        asked = times_asked(point.state)
        is_last = asked >= self.max_retries
        if self._events is not None:
            outcome = "stop" if is_last else "again"
            await emit(self._events, GuardrailTripped, point.state, "output", (reason,), outcome)
        if not is_last:
            return ask_again(point, reason)
        times = {0: "", 1: ", after the model was sent back once"}.get(
            asked, f", after the model was sent back {asked} times"
        )
        return point.stop(
            f"the answer does not pass its check{times}: {reason}",
            reason=StopReason.RETRY_LIMIT,
            source="output_check",
            context=JsonObject(problem=reason, retries=asked),
        )

    async def _ask_judge(self, judge: ModelJudge, inspection: Inspection) -> Finding:
        """Return the verdict of a judge; the recorded one, if there is one."""
        recorded = recorded_verdict(judge, inspection, self._scope)
        if recorded is not None:
            return recorded
        finding = await run_check(judge, inspection, _JUDGE_SECONDS)
        if self._scope is not None:
            finding.record(self._scope)
        return finding


def _verdict_of(judge: ModelJudge, finding: Finding) -> str:
    """Return why a judge refuses an answer; empty if it passes."""
    if finding.error is not None:
        raise finding.error
    if finding.response is None:
        raise ValueError(f"the judge {judge.name!r} gave no verdict")
    return "; ".join(judge.problems(finding.response))


async def _ask(check: AnswerCheck, answer: Any, inspection: Inspection) -> str:
    """Return why a function refuses an answer; empty if it passes."""
    try:
        returned = check(answer) if parameter_count(check) == 1 else check(answer, inspection)
        returned = await returned if isawaitable(returned) else returned
    except AskAgain as again:
        return str(again) or f"the check {_name_of(check)} refused it"
    if returned is not None:
        raise ContractViolation(
            f"the output_check {_name_of(check)} returned {returned!r:.100}; it returns None, or raises AskAgain with the reason"
        )
    return ""
