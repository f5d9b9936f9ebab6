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

_NO_TOKENS = Usage(0, 0, 0, 0, 0)


@frozen
class ScenarioStep:
    """One step of a script. Create it with `final`, `tool_call`, `tool_calls`, `tool` or `error`.

    Attributes:
        text: the text of the response.
        calls: the calls of the response: pairs of a tool's name and arguments.
        result: the result of the one call, if it is not executed.
        is_recorded: whether the call has `result` without being executed.
        failure: the error that is raised in place of a decision.
        usage: the tokens of the response.
    """

    text: str = ""
    calls: tuple[tuple[str, JsonObject], ...] = ()
    result: JsonValue = field(default=None, converter=freeze)
    is_recorded: bool = False
    failure: Exception | None = None
    usage: Usage = _NO_TOKENS

    @classmethod
    def final(cls, text: str, *, usage: Usage = _NO_TOKENS) -> ScenarioStep:
        """Answer with this text."""
        return cls(text, usage=usage)

    @classmethod
    def tool_call(
        cls, name: str, arguments: Mapping[str, Any] = EMPTY_OBJECT, *, text: str = "", usage: Usage = _NO_TOKENS
    ) -> ScenarioStep:
        """Call a tool and execute the call."""
        return cls(text, ((name, freeze_object(arguments)),), usage=usage)

    @classmethod
    def tool_calls(
        cls, *calls: tuple[str, Mapping[str, Any]], text: str = "", usage: Usage = _NO_TOKENS
    ) -> ScenarioStep:
        """Call several tools and execute the calls as one batch."""
        return cls(text, tuple([(name, freeze_object(arguments)) for name, arguments in calls]), usage=usage)

    @classmethod
    def tool(
        cls,
        name: str,
        arguments: Mapping[str, Any] = EMPTY_OBJECT,
        *,
        result: object = None,
        usage: Usage = _NO_TOKENS,
    ) -> ScenarioStep:
        """Call a tool without executing the call; it has this result."""
        return cls("", ((name, freeze_object(arguments)),), result=result, is_recorded=True, usage=usage)

    @classmethod
    def error(cls, failure: Exception) -> ScenarioStep:
        """Raise this error."""
        return cls(failure=failure)


@frozen(eq=False, repr=False, init=False)
class ScriptedDriver(Driver):
    """Takes the steps of a script, in order, without a model. Each execution starts with the first step.

    Args:
        *script: the steps.
        **parts: any attribute of `Driver`.
    """

    script: tuple[ScenarioStep, ...] = field(default=(), kw_only=True)
    # Shared by all copies, so that a test finds the taken steps of all executions in the driver that it made.
    _taken: set[int] = field(factory=set, kw_only=True, repr=False, eq=False)

    def __init__(self, *script: ScenarioStep, **parts: Any) -> None:
        parts.setdefault("script", script)
        self.__attrs_init__(**parts)

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:  # noqa: ARG002  # a script does not depend on the messages
        """Return the decision of the script.

        Raises:
            ContractViolation: the script has no step left.
            Exception: the error of the script's step.
        """
        step = self._step(draft)
        if step.failure is not None:
            raise step.failure
        # A step without calls answers, if only with an empty text.
        text: list[ResponsePart] = [Text(step.text)] if step.text or not step.calls else []
        calls = [
            ToolCall(f"call_{index}", name, format_json(arguments).decode())
            for index, (name, arguments) in enumerate(step.calls)
        ]
        parts = (*text, *calls)
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        draft.add_response(InferenceResponse(parts, finish, step.usage, model="scripted"))
        return parts

    async def execute(self, calls: ToolCalls, draft: StepDraft) -> ToolExecutions:
        """Execute the calls, unless the script holds their result."""
        step = self._step(draft)
        if not step.is_recorded:
            return await super().execute(calls, draft)
        execution = ToolExecution.of(
            calls.calls[0],
            ToolStatus.SUCCEEDED,
            key=calls.keys[0],
            id=self.scope.ids.new_id("tool_execution"),
            at=self.scope.clock.now(),
            value=step.result,
        )
        return ToolExecutions((execution,), (), draft.state)

    def assert_complete(self) -> None:
        """Check that each step of the script was taken by an execution.

        Raises:
            AssertionError: steps were not taken; the message names them.
        """
        missing = [
            f"{number}: {step!r:.200}" for number, step in enumerate(self.script, 1) if number not in self._taken
        ]
        if missing:
            listed = "\n".join(missing)
            raise AssertionError(f"{len(missing)} of {len(self.script)} steps of the script were not taken:\n{listed}")

    def _step(self, draft: StepDraft) -> ScenarioStep:
        if draft.number > len(self.script):
            raise ContractViolation(f"the script has {len(self.script)} steps, and step {draft.number} was requested")
        self._taken.add(draft.number)
        return self.script[draft.number - 1]
