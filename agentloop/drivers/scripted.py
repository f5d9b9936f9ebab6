"""A driver that follows a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentloop.drivers.driver import Driver, StepDraft
from agentloop.errors import ContractViolation
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.inference import FinishReason, InferenceResponse, Usage
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, format_json, freeze, freeze_object
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus

_USAGE = Usage(0, 0, 0, 0, 0)


@frozen
class ScenarioStep:
    """One step of a script; made by `final`, `tool_call`, `tool_calls`, `tool` and `error`.

    Attributes:
        text: what the model says.
        calls: what it calls: pairs of a tool's name and arguments.
        result: what the one call returns, when it is not executed.
        is_recorded: whether `result` is to be taken instead of executing the call.
        failure: what is raised instead of deciding.
        usage: the tokens to report.
    """

    text: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()
    result: JsonValue = field(default=None, converter=freeze)
    is_recorded: bool = False
    failure: Exception | None = None
    usage: Usage = _USAGE

    @classmethod
    def final(cls, text: str, *, usage: Usage = _USAGE) -> ScenarioStep:
        """Answer with this text."""
        return cls(text, usage=usage)

    @classmethod
    def tool_call(
        cls, name: str, arguments: Mapping[str, Any] = EMPTY_OBJECT, *, text: str = "", usage: Usage = _USAGE
    ) -> ScenarioStep:
        """Call a tool, which is executed."""
        return cls(text, ((name, freeze_object(arguments)),), usage=usage)

    @classmethod
    def tool_calls(cls, *calls: tuple[str, Mapping[str, Any]], text: str = "", usage: Usage = _USAGE) -> ScenarioStep:
        """Call several tools in one batch, which is executed."""
        return cls(text, tuple([(name, freeze_object(arguments)) for name, arguments in calls]), usage=usage)

    @classmethod
    def tool(
        cls, name: str, arguments: Mapping[str, Any] = EMPTY_OBJECT, *, result: object = None, usage: Usage = _USAGE
    ) -> ScenarioStep:
        """Call a tool that is not executed: it returns this result."""
        return cls("", ((name, freeze_object(arguments)),), result=result, is_recorded=True, usage=usage)

    @classmethod
    def error(cls, failure: Exception) -> ScenarioStep:
        """Raise this."""
        return cls(failure=failure)


@frozen(init=False)
class ScriptedDriver(Driver):
    """Takes the steps of a script, in order, without a model; each execution begins at the first step.

    Args:
        *script: the steps.
        **parts: any attribute of `Driver`.
    """

    script: tuple[ScenarioStep, ...] = field(default=(), kw_only=True)

    def __init__(self, *script: ScenarioStep, **parts: Any) -> None:
        parts.setdefault("script", script)
        self.__attrs_init__(**parts)

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:  # noqa: ARG002  # a script does not read
        """Decide what the script says.

        Raises:
            ContractViolation: when the script is at its end.
            Exception: when the step of the script is an error.
        """
        step = self._step(draft)
        if step.failure is not None:
            raise step.failure
        text: list[ResponsePart] = [Text(step.text)] if step.text or not step.calls else []
        calls = [
            ToolCall(f"call_{place}", name, format_json(arguments).decode())
            for place, (name, arguments) in enumerate(step.calls)
        ]
        parts = (*text, *calls)
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        draft.count(InferenceResponse(parts, finish, step.usage, model="scripted"))
        return parts

    async def execute(self, calls: ToolCalls, draft: StepDraft) -> ToolExecutions:
        """Have calls executed, unless the script says what they return."""
        step = self._step(draft)
        if not step.is_recorded:
            return await super().execute(calls, draft)
        now = self.scope.clock.now()
        execution = ToolExecution.of(
            calls.calls[0],
            ToolStatus.SUCCEEDED,
            key=calls.keys[0],
            id=self.scope.ids.new_id("tool_execution"),
            at=now,
            value=step.result,
        )
        return ToolExecutions((execution,), (), draft.state)

    def _step(self, draft: StepDraft) -> ScenarioStep:
        if draft.number > len(self.script):
            raise ContractViolation(f"the script has {len(self.script)} steps, and step {draft.number} was asked for")
        return self.script[draft.number - 1]
